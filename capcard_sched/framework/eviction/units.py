"""Eviction units: one pod that its gang can spare, or the rest of a gang."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.toolkit.gang_slack import split_slack
from capcard_sched.model.annotations import EVICT_SCOPE
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.resources import Vector

#: Statuses of pods that can be evicted.
LIVE = (TaskStatus.RUNNING, TaskStatus.BOUND)
_STARTING = (TaskStatus.BINDING, TaskStatus.ALLOCATED, TaskStatus.PIPELINED)


class VictimUnit(NamedTuple):
    """Pods that are evicted together."""

    job: Job
    #: Every evicted pod, on all nodes.
    tasks: tuple[Task, ...]
    #: The resources they free on the evaluated node: int64 [resource columns].
    gain: Vector
    #: Whether the job is below its minimum without them, and whether they are the rest of it.
    breaks: bool
    whole: bool


class GangMembers(NamedTuple):
    """The running and bound members of a job, valid while the job does not change."""

    #: In eviction order.
    members: tuple[Task, ...]
    #: Those without permanent protection.
    movable: tuple[Task, ...]
    #: Node row to the resources they hold there: int64 [resource columns].
    held: dict[int, Vector]


def evict_scope(session: Session, job: Job) -> str:
    """The part of the job that is evicted at once when its minimum is broken: `whole`, `member` or `job`."""
    result = session.dispatch.first("evict_scope", job)
    if result is not None:
        return str(result)
    return "job" if job.annotations.get(EVICT_SCOPE) == "job" else "whole"


def units_of(
    job: Job,
    here: list[Task],
    allowed: set[str],
    kept: dict[str, str],
    *,
    scope: str,
    gang_of: Callable[[Job], GangMembers],
    singly: bool,
) -> list[VictimUnit]:
    """The units of a job that free something on a node, in eviction order.

    `here`: its members on the node, in eviction order; `allowed`: uids of all members that may be evicted, on any node;
    `kept` gets the cause `gang` for members that stay because others of the gang do. `scope`: the job's `evict_scope`;
    `gang_of`: its members; `singly`: every pod is a unit, whatever happens to the gang.
    """
    scope = "member" if singly else scope
    may_go = [task for task in here if task.uid in allowed]
    if scope == "member" or (scope == "whole" and job.min_available <= 1):
        left = job.ready_tasks - job.min_available
        return [
            VictimUnit(job, (task,), task.cls.request, not singly and position >= left, whole=False)
            for position, task in enumerate(may_go)
        ]
    spare, rest = split_slack(may_go) if scope == "whole" else ([], may_go)
    units = [VictimUnit(job, (task,), task.cls.request, breaks=False, whole=False) for task in spare]
    if not rest:
        return units
    gang = gang_of(job)
    if job.count(_STARTING) or any(task.uid not in allowed for task in gang.members):
        for task in rest:
            kept.setdefault(task.uid, "gang")
        return units
    node = here[0].node
    assert node is not None
    return [*units, VictimUnit(job, gang.members, gang.held[node.row], breaks=True, whole=True)]


def tasks_of(units: Iterable[VictimUnit]) -> list[Task]:
    """Every evicted pod, without duplicates."""
    return list({task.uid: task for unit in units for task in unit.tasks}.values())


def minimal_set(units: Sequence[VictimUnit], fits: Callable[[list[VictimUnit]], bool]) -> list[VictimUnit] | None:
    """The first units, in the given order, without which the pod fits; None when all together are not enough.

    A unit that the others make unnecessary is left out, the last one first. A whole gang replaces its spare members.
    """
    chosen: list[VictimUnit] = []
    for unit in units:
        if unit.whole:
            chosen = [one for one in chosen if one.job is not unit.job]
        chosen.append(unit)
        if fits(chosen):
            break
    else:
        return None
    for unit in chosen[-2::-1]:
        rest = [one for one in chosen if one is not unit]
        if fits(rest):
            chosen = rest
    return chosen


def covers(shortfall: Vector) -> Callable[[list[VictimUnit]], bool]:
    """Whether units free a shortfall (int64 [resource columns]) on their node."""
    lacking = [(column, shortfall.item(column)) for column in np.flatnonzero(shortfall).tolist()]

    def fits(units: list[VictimUnit]) -> bool:
        return all(sum(unit.gain.item(column) for unit in units) >= amount for column, amount in lacking)

    return fits
