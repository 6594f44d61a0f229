"""Fields of Volcano and Kubernetes that the product knows and that have no effect: one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.model.kinds import kind_of
from capcard_sched.model.kube_groups import KubeGroupSpec, held_text
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
