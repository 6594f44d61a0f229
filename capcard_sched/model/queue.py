"""Queues, and the namespaces whose jobs a queue accepts (`capcard-sched.io/namespaces`).

The annotation has names and globs separated by commas (`team-a, team-b-*`), or a label selector as kubectl takes it
(`team in (a, b), tier!=test`). A text with an operator is a selector.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.objects import LabelSelector, Requirement
from capcard_sched.model.selectors import label_selector_problem, matches_labels, namespace_labels
from capcard_sched.model.text_cache import text_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.job import Job
    from capcard_sched.model.objects import QueueAffinity
    from capcard_sched.model.resources import Vector

#: The queue above all queues that name no parent.
ROOT: Final = "root"

#: The queue of workloads and NamespaceQueues that name none.
DEFAULT: Final = "default"


@dataclass(slots=True, eq=False, repr=False)
class Queue:
    """One Queue or NamespaceQueue, its jobs and their usage. Owned by the state."""

    name: str
    #: Sum of `Job.allocated` over `jobs`: int64 [resource columns].
    allocated: Vector
    #: Sum of `Job.releasing` over `jobs`.
    releasing: Vector
    uid: str = ""
    weight: int = 1
    #: `spec.priority`, 0 when unset.
    priority: int = 0
    #: Unset reads as True.
    reclaimable: bool = True
    parent: str = ""
    #: `spec.dequeueStrategy: fifo`: the first unserved job blocks the jobs behind it.
    strict_fifo: bool = False
    #: Base units; None when the field is unset. Only keys the user wrote.
    capability: Mapping[str, int] | None = None
    deserved: Mapping[str, int] | None = None
    guarantee: Mapping[str, int] | None = None
    #: `spec.affinity`: node groups, for the plugin of that name.
    affinity: QueueAffinity | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    #: `status.state`; "" reads as `Open`. `Deleted` for a queue in `ClusterState.deleted_queues`.
    state: str = "Open"
    #: Why pods of a NamespaceQueue may not start; "" when they may.
    blocked: str = ""
    #: `status.allocated` as last seen or written, base units; None before the first write.
    status_allocated: Mapping[str, int] | None = None
    created: float = 0.0
    #: Jobs with a PodGroup in this queue, by key.
    jobs: dict[str, Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.uid = self.uid or self.name

    @property
    def is_open(self) -> bool:
        """Whether the queue admits new jobs: state Open or unset."""
        return self.state in ("", "Open")

    @property
    def limits(self) -> tuple[object, ...]:
        """The fields that limit its jobs and those below it, compared by equality."""
        return self.uid, self.parent, self.capability, self.guarantee, self.annotations.get(CARD_QUOTA)

    def __repr__(self) -> str:
        return f"Queue({self.name}, {self.state})"


def ancestors(queue: Queue, queues: Mapping[str, Queue]) -> list[Queue]:
    """Its parents, nearest first, up to root; a missing or cyclic parent ends the list."""
    found: list[Queue] = []
    seen = {queue.name, ""}
    above = queues.get(queue.parent or ROOT) if queue.name != ROOT else None
    while above is not None and above.name not in seen:
        found.append(above)
        seen.add(above.name)
        above = queues.get(above.parent or ROOT) if above.name != ROOT else None
    return found


def subtree(queue: Queue, queues: Mapping[str, Queue]) -> list[Queue]:
    """The queue and all queues below it. By level, then by name."""
    found, names = [queue], {queue.name}
    while below := [one for name, one in sorted(queues.items()) if one.parent in names and name not in names]:
        found += below
        names.update(one.name for one in below)
    return found


#: Characters.
MAX_TEXT: Final = 4096
ACCEPTED: Final = "names and globs (team-a, team-b-*) or a label selector (team in (a, b), tier!=test)"

_NAME = re.compile(r"[a-z0-9*?]([a-z0-9*?-]{0,61}[a-z0-9*?])?")
_EQUALS = re.compile(r"([^\s!=(),]+)\s*(!=|==|=)\s*([^\s!=(),]*)")
_SET = re.compile(r"([^\s!=(),]+)\s+(in|notin)\s*\(([^()]*)\)")
_EXISTS = re.compile(r"(!?)\s*([^\s!=(),]+)")
_SEPARATOR = re.compile(r",(?![^()]*\))")


class NamespaceRule:
    """A parsed annotation."""

    def __init__(self, text: str) -> None:
        """Never raises: a malformed text accepts no namespace and has a `problem`."""
        self.problem = ""
        self._globs: tuple[str, ...] = ()
        self._selector: LabelSelector | None = None
        parts = [part.strip() for part in _SEPARATOR.split(text)] if text.strip() else []
        if len(text) > MAX_TEXT:
            self.problem = f"longer than {MAX_TEXT} characters"
        elif not parts:
            self.problem = "empty: it accepts no namespace"
        elif re.search(r"[=!()]", text):
            try:
                self._selector = parse_label_selector(text)
            except ValueError as error:
                self.problem = str(error)
        else:
            wrong = next((part for part in parts if not _NAME.fullmatch(part)), None)
            if wrong is None:
                self._globs = tuple(parts)
            else:
                self.problem = f"<{wrong[:64]}> is neither a namespace nor a glob"

    @property
    def reads_labels(self) -> bool:
        """Whether the labels of a namespace decide, not its name."""
        return self._selector is not None

    def accepts(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """Whether the jobs of a namespace are accepted; `labels` of the namespace, None when it is unknown."""
        if self._selector is not None:
            return matches_labels(self._selector, namespace_labels(namespace, labels))
        return any(fnmatchcase(namespace, glob) for glob in self._globs)


# Computed 4.4 us, kept 0.5 (benchmarks/caches.py).
@text_cache(1024)
def namespace_rule(text: str) -> NamespaceRule:
    """The rule of an annotation text."""
    return NamespaceRule(text)


def parse_label_selector(text: str) -> LabelSelector:
    """A label selector as kubectl takes it: `team in (a, b), tier!=test, gpu`. Raises ValueError."""
    found = []
    for part in (part.strip() for part in _SEPARATOR.split(text)):
        requirement = _requirement(part)
        if requirement is None:
            raise ValueError(f"<{part[:64]}> is not a requirement of a label selector")
        found.append(requirement)
    selector = LabelSelector(match_expressions=tuple(found))
    problem = label_selector_problem(selector)
    if problem:
        raise ValueError(problem)
    return selector


def _requirement(text: str) -> Requirement | None:
    if match := _SET.fullmatch(text):
        values = tuple(value.strip() for value in match[3].split(","))
        return Requirement(key=match[1], operator="In" if match[2] == "in" else "NotIn", values=values)
    if match := _EQUALS.fullmatch(text):
        return Requirement(key=match[1], operator="NotIn" if match[2] == "!=" else "In", values=(match[3],))
    if match := _EXISTS.fullmatch(text):
        return Requirement(key=match[2], operator="DoesNotExist" if match[1] else "Exists")
    return None
