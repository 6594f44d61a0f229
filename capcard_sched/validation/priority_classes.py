"""References of workloads to PriorityClasses that do not exist."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from capcard_sched.model.job import CRITICAL_CLASSES
from capcard_sched.model.kinds import kind_of
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.inventory import Json, object_name, value_at

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_POD_EFFECT: Final = "the API server rejects pods that name it"
#: Unknown names of one object that are compared with known ones, and the number of those: a comparison takes time.
_MOST_COMPARED: Final = 4
_MOST_KNOWN: Final = 100
#: Names that one finding lists.
_SHOWN: Final = 10


def check_priority_classes(
    obj: Json, templates: Sequence[tuple[str, Json]], known: Collection[str]
) -> Iterator[Finding]:
    """Warnings for `priorityClassName` of a PodGroup, a vcjob and of pod templates.

    `templates`: the path of each template, "" for a pod, and the template; `known`: the existing classes.
    """
    places = [(f"{path}.spec" if path else "spec", body) for path, body in templates]
    if obj.get("kind") in {"PodGroup", "Job"}:
        places.insert(0, ("spec", obj))
    names, hints = sorted(known), dict[str, str]()
    for field, body in places:
        name = value_at(body, "spec", "priorityClassName")
        if not isinstance(name, str) or not name or name in known or name in CRITICAL_CLASSES:
            continue
        if name not in hints and len(hints) < _MOST_COMPARED:
            close = difflib.get_close_matches(name, names[:_MOST_KNOWN], n=1)
            hints[name] = f'; did you mean "{close[0]}"?' if close else ""
        meant = hints.get(name, "")
        effect = "the priority of the PodGroup is the default" if obj.get("kind") == "PodGroup" else _POD_EFFECT
        message = f'PriorityClass "{name}" does not exist: {effect}{meant}'
        accepted = ", ".join(names[:_SHOWN]) or "the name of a PriorityClass, or no value"
        yield Finding("warning", f"{field}.priorityClassName", message, accepted)


def check_defaults(objects: Iterable[Json]) -> Iterator[tuple[int, Finding]]:
    """Errors for a second PriorityClass with `globalDefault`, which an API server rejects, by index of its object."""
    first = ""
    for index, obj in enumerate(objects):
        if kind_of(obj) != "PriorityClass" or obj.get("globalDefault") is not True:
            continue
        name = object_name(obj)
        if first and first != name:
            message = f"PriorityClass {first} is the default already: the API server rejects a second one"
            yield index, Finding("error", "globalDefault", message, "false, or no value")
        first = first or name
