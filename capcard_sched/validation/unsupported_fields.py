"""Fields of Volcano and Kubernetes that the product knows and that have no effect: one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.model.kinds import kind_of
from capcard_sched.model.kube_groups import KubeGroupSpec, held_text
from capcard_sched.model.numbers import MAX_INT32
from capcard_sched.validation.checks import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.validation.inventory import Json

#: Kind to paths, with `*` for every entry of a list, each with the effect that is missing and the accepted form.
_FIELDS: Final = {
    "PodGroup": (
        ("spec topologyAffinity", "affinity between groups is not supported: groups may share a HyperNode", "no value"),
    ),
    "Queue": (("spec extendClusters", "jobs are not dispatched to other clusters", "no value"),),
}

#: Kind to the paths of network topologies.
_TOPOLOGIES: Final = {
    "PodGroup": ("spec networkTopology", "spec subGroupPolicy * networkTopology"),
    "Job": ("spec networkTopology", "spec tasks * partitionPolicy networkTopology"),
}


def unsupported_fields(obj: Json) -> Iterator[Finding]:
    """Warnings about the present fields without effect."""
    for path, message, accepted in _FIELDS.get(kind_of(obj), ()):
        for place in _places(obj, path.split(), ""):
            yield Finding("warning", place, f"has no effect: {message}", accepted)


def hard_without_tier(obj: Json) -> Iterator[Finding]:
    """Warnings about hard network topologies without a tier, which mean the lowest one."""
    for path in _TOPOLOGIES.get(kind_of(obj), ()):
        for place, topology in _values(obj, path.split(), ""):
            named = isinstance(topology, dict) and {"highestTierAllowed", "highestTierName"} & topology.keys()
            if isinstance(topology, dict) and not named and (topology.get("mode") or "hard") == "hard":
                text = "is hard without a tier: pods stay in one HyperNode of tier 1; Volcano sets no limit"
                yield Finding("warning", place, text, "highestTierAllowed, highestTierName, or mode soft")


def check_affinity(group: Json) -> Iterator[Finding]:
    """Errors about the terms of `topologyAffinity` of a PodGroup that Volcano rejects, too."""
    for side in ("required", "preferred"):
        for place, term in _values(group, ["spec", "topologyAffinity", "podGroupAntiAffinity", side, "*"], ""):
            for field, message, accepted in _term_problems(term, is_required=side == "required"):
                yield Finding("error", f"{place}{field}", message, accepted)


def _term_problems(term: Any, *, is_required: bool) -> Iterator[tuple[str, str, str]]:
    """Fields, messages and accepted forms."""
    if not isinstance(term, dict):
        yield "", "is no term", "a mapping with podGroupSelector, and topologyTierName or topologyTier"
        return
    if not isinstance(term.get("podGroupSelector"), dict):
        yield ".podGroupSelector", "is required", "a label selector of PodGroups"
    tier, name, weight = (term.get(key) for key in ("topologyTier", "topologyTierName", "weight"))
    if (tier is None) == (not name):
        yield "", f"has {'both' if name else 'none'} of topologyTierName and topologyTier", "one of them"
    elif tier is not None and not _is_within(tier, 0, MAX_INT32):
        yield ".topologyTier", "is no tier", "a whole number from 0 on"
    if is_required and weight is not None:
        yield ".weight", "is not accepted in a required term", "no value"
    elif not is_required and not _is_within(weight, 1, 100):
        yield ".weight", "is required in a preferred term", "a whole number from 1 to 100"


def _is_within(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_kube_group(obj: Json) -> Iterator[Finding]:
    """A warning about a PodGroup of `scheduling.k8s.io` with unsupported fields: its pods wait."""
    try:
        held = held_text(msgspec.convert(obj.get("spec") or {}, KubeGroupSpec))
    except msgspec.ValidationError:
        return  # the checks of types report it
    if held:
        yield Finding("warning", "spec", f"{held}: its pods wait", "schedulingPolicy with basic or gang")


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
