"""Affinity and anti-affinity between the tasks of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.model.annotations import (
    TASK_TOPOLOGY_AFFINITY,
    TASK_TOPOLOGY_ANTI_AFFINITY,
    TASK_TOPOLOGY_TASK_ORDER,
)
from capcard_sched.model.quoting import shortened

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

GROUPS_FORM: Final = 'names of tasks joined by ",", in groups joined by ";", such as "ps,worker;chief"'
ORDER_FORM: Final = 'names of tasks joined by ",", the first to be placed first, such as "ps,worker"'
#: Annotation to its accepted form.
FORMS: Final = {
    TASK_TOPOLOGY_AFFINITY: GROUPS_FORM,
    TASK_TOPOLOGY_ANTI_AFFINITY: GROUPS_FORM,
    TASK_TOPOLOGY_TASK_ORDER: ORDER_FORM,
}


class TaskAffinityGroups(NamedTuple):
    """Groups of task names. A group of one name applies to the pods of that task."""

    affinity: tuple[tuple[str, ...], ...] = ()
    anti_affinity: tuple[tuple[str, ...], ...] = ()
    order: tuple[str, ...] = ()

    def names(self) -> set[str]:
        """Every task in a group."""
        return {name for group in (*self.affinity, *self.anti_affinity) for name in group}


class TopologyProblem(NamedTuple):
    key: str
    detail: str
    #: A well-formed name without task: its pods may not exist yet.
    unknown: bool = False


def topology_of(
    annotations: Mapping[str, str], tasks: Container[str] | None
) -> tuple[TaskAffinityGroups, list[TopologyProblem]]:
    """Parse the annotations of a job; blanks around names and empty groups are dropped.

    `tasks` are the names of the job's tasks, None when unknown. Returns the first problem of each annotation; with any
    problem the groups are not used.
    """
    problems: dict[str, TopologyProblem] = {}

    def read(key: str, text: str) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for name in map(str.strip, text.split(",")) if text.strip() else ():
            if not name:
                problem = TopologyProblem(key, f"<{shortened(text)}> contains an empty name")
            elif name in names:
                problem = TopologyProblem(key, f"<{shortened(name)}> occurs twice in <{shortened(text)}>")
            elif tasks is not None and name not in tasks:
                problem = TopologyProblem(key, f"<{shortened(name)}> is not a task of the job", unknown=True)
            else:
                names[name] = None
                continue
            problems.setdefault(key, problem)
            break
        return tuple(names)

    def groups(key: str) -> tuple[tuple[str, ...], ...]:
        found: dict[tuple[str, ...], None] = {}
        for text in annotations.get(key, "").split(";"):
            group = read(key, text)
            if key in problems:
                break
            if group:
                found[group] = None
        return tuple(found)

    topology = TaskAffinityGroups(
        groups(TASK_TOPOLOGY_AFFINITY),
        groups(TASK_TOPOLOGY_ANTI_AFFINITY),
        read(TASK_TOPOLOGY_TASK_ORDER, annotations.get(TASK_TOPOLOGY_TASK_ORDER, "")),
    )
    return topology, list(problems.values())
