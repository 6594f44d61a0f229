"""Fields of Volcano and Kubernetes that the product knows and that have no effect: one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model.kinds import kind_of
from capcard_sched.validation.checks import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.validation.inventory import Json

#: Kind to paths, with `*` for every entry of a list, each with the effect that is missing and the accepted form.
_FIELDS: Final = {
    "PodGroup": (
        ("spec topologyAffinity", "affinity between groups is not supported: groups may share a HyperNode", "no value"),
    ),
    "Queue": (
        ("spec allowedNamespaces", "NamespaceQueues are not supported: none attaches to the queue", "no value"),
        ("spec extendClusters", "jobs are not dispatched to other clusters", "no value"),
    ),
}


def unsupported_fields(obj: Json) -> Iterator[Finding]:
    """Warnings about the present fields without effect."""
    for path, message, accepted in _FIELDS.get(kind_of(obj), ()):
        for place in _places(obj, path.split(), ""):
            yield Finding("warning", place, f"has no effect: {message}", accepted)


def _places(value: object, path: list[str], place: str) -> Iterator[str]:
    """The places of present values under a path."""
    if not path:
        if value not in (None, [], {}, ""):
            yield place
    elif isinstance(value, list) and path[0] == "*":
        for index, entry in enumerate(value):
            yield from _places(entry, path[1:], f"{place}[{index}]")
    elif isinstance(value, dict):
        yield from _places(value.get(path[0]), path[1:], f"{place}.{path[0]}".lstrip("."))
