"""References of workloads to PriorityClasses that do not exist."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from capcard_sched.model.job import CRITICAL_CLASSES
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.inventory import Json, value_at

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_POD_EFFECT: Final = "the API server rejects pods that name it"
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
    for field, body in places:
        name = value_at(body, "spec", "priorityClassName")
        if not isinstance(name, str) or not name or name in known or name in CRITICAL_CLASSES:
            continue
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1)
        meant = f'; did you mean "{close[0]}"?' if close else ""
        effect = "the priority of the PodGroup is the default" if obj.get("kind") == "PodGroup" else _POD_EFFECT
        message = f'PriorityClass "{name}" does not exist: {effect}{meant}'
        accepted = ", ".join(names[:_SHOWN]) or "the name of a PriorityClass, or no value"
        yield Finding("warning", f"{field}.priorityClassName", message, accepted)
