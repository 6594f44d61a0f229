"""Members that a job lost: failed pods, and pods on nodes whose kubelet does not work; in the words of all reports."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from capcard_sched.model.node_conditions import lost_word
from capcard_sched.model.quoting import brief
from capcard_sched.model.status import COMPLETED_STATUSES, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.job import Task

_NODE, _KNOWN, _TAINTS = attrgetter("node"), attrgetter("known"), attrgetter("taints")


def failures_of(tasks: Iterable[Task]) -> list[str]:
    """`pod a failed (Evicted)`, one sentence per reason."""
    return _sentences(
        (task, f"failed{f' ({task.failure})' if task.failure else ''}") for task in tasks if _failed(task)
    )


def stranded_of(tasks: Iterable[Task]) -> list[str]:
    """`pod a is on node n1, which is unreachable`, one sentence per node; another one for its terminating pods."""
    tasks = list(tasks)
    nodes = set(map(_NODE, tasks)) - {None}
    if all(map(_KNOWN, nodes)) and not any(map(_TAINTS, nodes)):
        return []  # most nodes have no taints
    found = []
    for task in tasks:
        if task.node is None or task.status in COMPLETED_STATUSES:
            continue
        word = lost_word(task.node)
        if not word:
            continue
        status = "{} terminating" if task.deleting or task.status is TaskStatus.RELEASING else "{}"
        end = ": it ends when the node is ready again or removed" if "terminating" in status else ""
        found.append((task, f"{status} on node {task.node.name}, which is {word}{end}"))
    return _sentences(found) if found else []


def terminating_of(tasks: Iterable[Task]) -> list[str]:
    """`pod a is terminating on node n1`, one sentence per node, without the pods of `stranded_of`."""
    return _sentences(
        (task, f"{{}} terminating on node {task.node.name}")
        for task in tasks
        if task.status is TaskStatus.RELEASING and task.node is not None and not lost_word(task.node)
    )


def unknown_of(tasks: Iterable[Task]) -> list[str]:
    """`pod a on node n1 is in phase Unknown`, one sentence per node, without the pods of `stranded_of`."""
    return _sentences(
        (task, f"on node {task.node.name} {{}} in phase Unknown")
        for task in tasks
        if task.status is TaskStatus.UNKNOWN and task.node is not None and not lost_word(task.node)
    )


def losses_of(tasks: Iterable[Task]) -> list[str]:
    """The sentences of `failures_of`, then those of `stranded_of` and of `unknown_of`."""
    members = list(tasks)
    return [*failures_of(members), *stranded_of(members), *unknown_of(members)]


def _failed(task: Task) -> bool:
    return task.status is TaskStatus.FAILED


def _sentences(found: Iterable[tuple[Task, str]]) -> list[str]:
    """One sentence per text with its pods, by the first of them. `{}` is the place of the verb."""
    pods: dict[str, list[str]] = {}
    for task, text in sorted(found, key=lambda item: (item[0].index, item[0].name)):
        pods.setdefault(text, []).append(task.name)
    return [
        f"pod {names[0]} {text.format('is')}"
        if len(names) == 1
        else f"{len(names)} pods ({brief(names)}) {text.format('are').replace(': it ends', ': they end')}"
        for text, names in pods.items()
    ]
