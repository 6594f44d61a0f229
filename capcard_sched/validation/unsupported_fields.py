"""Fields of Volcano and Kubernetes that the product knows and that have no effect: one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.model import annotations as keys
from capcard_sched.model.group_affinity import AFFINITY_FIELD, AFFINITY_PLUGIN, term_problems, terms_excess
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.kube_groups import KubeGroupSpec, held_text, type_problem
from capcard_sched.validation.checks import Finding, annotation_field
from capcard_sched.validation.inventory import texts
from capcard_sched.validation.templates import NATIVE_SCHEDULERS, templates_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from capcard_sched.validation.inventory import Json

#: The affinity between groups, the plugin that gives it an effect, and the fields of it that no plugin reads.
_AFFINITY: Final = AFFINITY_FIELD.replace(".", " ")
_NO_AFFINITY: Final = f"without the plugin {AFFINITY_PLUGIN}: groups may share a HyperNode"
_OTHER_AFFINITY: Final = "only podGroupAntiAffinity is supported"
#: Kind to paths, with `*` for every entry of a list, each with the effect that is missing and the accepted form.
_FIELDS: Final = {
    "PodGroup": (
        (f"{_AFFINITY} podGroupAffinity", _OTHER_AFFINITY, "no value"),
        (f"{_AFFINITY} subGroupAffinity", _OTHER_AFFINITY, "no value"),
        (f"{_AFFINITY} subGroupAntiAffinity", _OTHER_AFFINITY, "no value"),
    ),
    "Queue": (("spec extendClusters", "jobs are not dispatched to other clusters", "no value"),),
}

#: Annotations of workloads, pods and pod templates to the plugin that alone reads them.
_READ_BY: Final = {
    keys.SLA_WAITING_TIME: "sla",
    keys.SLA_WAITING_TIME_ALIAS: "sla",
    keys.REVOCABLE_ZONE: "tdm",
    keys.COOLDOWN_TIME: "cdp",
    keys.NUMA_TOPOLOGY_POLICY: "numa-aware",
    keys.TASK_TOPOLOGY_AFFINITY: "task-topology",
    keys.TASK_TOPOLOGY_ANTI_AFFINITY: "task-topology",
    keys.TASK_TOPOLOGY_TASK_ORDER: "task-topology",
    keys.RESOURCE_STRATEGY_SCORING_TYPE: "resource-strategy-fit",
    keys.RESOURCE_STRATEGY_WEIGHT: "resource-strategy-fit",
}
#: Kind to fields that one plugin alone reads.
_FIELDS_READ_BY: Final = {
    "Queue": (("spec affinity", "nodegroup"),),
    "Job": (("spec tasks * topologyPolicy", "numa-aware"),),
}
#: The value of `topologyPolicy` without a policy.
_NO_POLICY: Final = "none"

#: Kind to the paths of network topologies.
_TOPOLOGIES: Final = {
    "PodGroup": ("spec networkTopology", "spec subGroupPolicy * networkTopology"),
    "Job": ("spec networkTopology", "spec tasks * partitionPolicy networkTopology"),
}


def unsupported_fields(obj: Json, plugins: Collection[str] = ()) -> Iterator[Finding]:
    """Warnings about the present fields without effect. `plugins`: names of those of the scheduler-conf."""
    if kind_of(obj) == "PodGroup" and AFFINITY_PLUGIN not in plugins:
        for place in _places(obj, _AFFINITY.split(), ""):
            yield Finding("warning", place, f"has no effect {_NO_AFFINITY}", "the plugin, or no value")
    for path, message, accepted in _FIELDS.get(kind_of(obj), ()):
        for place in _places(obj, path.split(), ""):
            yield Finding("warning", place, f"has no effect: {message}", accepted)


def fields_without_plugin(obj: Json, plugins: Collection[str]) -> Iterator[Finding]:
    """Warnings about fields and annotations that a plugin which is not in the scheduler-conf alone reads.

    `plugins`: names of those of the scheduler-conf.
    """
    for path, plugin in _FIELDS_READ_BY.get(kind_of(obj), ()):
        for place, value in _values(obj, path.split(), ""):
            if plugin not in plugins and value not in (None, [], {}, "", _NO_POLICY):
                yield _without(plugin, place)
    every = list(templates_of(obj))
    templates = [one for one in every if one.scheduler not in NATIVE_SCHEDULERS]
    if every and not templates:
        return
    own = {"metadata": texts(obj, "metadata", "annotations")}
    for at, noted in {**own, **{one.metadata_path: one.annotations for one in templates}}.items():
        for key in noted:
            plugin = _READ_BY.get(key, "")
            is_none = key == keys.NUMA_TOPOLOGY_POLICY and noted[key] == _NO_POLICY
            if plugin and plugin not in plugins and not is_none:
                yield _without(plugin, annotation_field(key, at))


def _without(plugin: str, field: str) -> Finding:
    message = f"has no effect: the scheduler-conf has no plugin {plugin}"
    return Finding("warning", field, message, f"the plugin {plugin}, or no value")


def hard_without_tier(obj: Json) -> Iterator[Finding]:
    """Warnings about hard network topologies without a tier, which mean the lowest one."""
    for path in _TOPOLOGIES.get(kind_of(obj), ()):
        for place, topology in _values(obj, path.split(), ""):
            named = isinstance(topology, dict) and {"highestTierAllowed", "highestTierName"} & topology.keys()
            if isinstance(topology, dict) and not named and (topology.get("mode") or "hard") == "hard":
                text = "is hard without a tier: pods stay in one HyperNode of tier 1; Volcano sets no limit"
                yield Finding("warning", place, text, "highestTierAllowed, highestTierName, or mode soft")


def check_affinity(group: Json) -> Iterator[Finding]:
    """Errors about the terms of `topologyAffinity` of a PodGroup: too many, or such that Volcano rejects, too."""
    spec = group.get("spec")
    if excess := terms_excess(spec.get("topologyAffinity") if isinstance(spec, dict) else None):
        yield Finding("error", f"{AFFINITY_FIELD}.podGroupAntiAffinity", excess, "fewer terms, in several PodGroups")
        return
    for side in ("required", "preferred"):
        for place, term in _values(group, ["spec", "topologyAffinity", "podGroupAntiAffinity", side, "*"], ""):
            for field, message, accepted in term_problems(term, is_required=side == "required"):
                yield Finding("error", f"{place}{field}", message, accepted)


def check_kube_group(obj: Json) -> Iterator[Finding]:
    """A warning about a PodGroup of `scheduling.k8s.io` with unsupported fields: its pods wait."""
    try:
        spec = msgspec.convert(obj.get("spec") or {}, KubeGroupSpec)
    except msgspec.ValidationError:
        return  # the checks of types report it
    held = held_text(spec)
    if held and type_problem(spec) is None:
        field, accepted = "spec", "schedulingPolicy with basic or gang"
        if held.startswith("spec.disruptionMode"):
            field, accepted = "spec.disruptionMode", "single: {} or all: {}, or no value"
            held = held.replace("spec.disruptionMode", "mode").replace(" of the PodGroup", "")
        yield Finding("warning", field, f"{held}: its pods wait", accepted)


def _places(value: object, path: list[str], place: str) -> Iterator[str]:
    """The places of present values under a path."""
    return (found for found, content in _values(value, path, place) if content not in (None, [], {}, ""))


def _values(value: object, path: list[str], place: str) -> Iterator[tuple[str, object]]:
    """The values under a path, with their places."""
    if not path:
        yield place, value
    elif isinstance(value, list) and path[0] == "*":
        for index, entry in enumerate(value):
            yield from _values(entry, path[1:], f"{place}[{index}]")
    elif isinstance(value, dict):
        step = f'["{path[0]}"]' if "/" in path[0] else f".{path[0]}"
        yield from _values(value.get(path[0]), path[1:], f"{place}{step}".lstrip("."))
