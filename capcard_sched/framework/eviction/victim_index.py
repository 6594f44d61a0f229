"""The candidates for eviction, by node and by job, and the units in which they leave.

The index is built once per session, on its first use. A unit is one pod that its gang can spare, or the rest of a gang.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.eviction.bounds import UnitTable
from capcard_sched.framework.toolkit.gang_slack import spare_subgroups, split_slack
from capcard_sched.model.annotations import EVICT_SCOPE
from capcard_sched.model.job import CRITICAL_CLASSES, SYSTEM_NAMESPACE
from capcard_sched.model.pod_facts import preemptable_of
from capcard_sched.model.status import EVICTABLE_STATUSES, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any

    from capcard_sched.framework.api.node_view import Rows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.groups import SubGroups
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector

#: Pods that are never evicted, whatever the conf.
SYSTEM_CRITICAL = "system-critical"
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


class _Sums(NamedTuple):
    """The sums of a job at one moment. Each eviction replaces `releasing`; a placement may restore `allocated`."""

    allocated: Vector
    releasing: Vector
    ready: int

    @classmethod
    def of(cls, job: Job) -> _Sums:
        return cls(job.allocated, job.releasing, job.ready_tasks)

    def is_of(self, job: Job) -> bool:
        """Whether no pod of the job was placed or evicted since."""
        return self.allocated is job.allocated and self.releasing is job.releasing and self.ready == job.ready_tasks


class GangMembers(NamedTuple):
    """The running and bound members of a job, valid while the job does not change."""

    #: In eviction order.
    members: tuple[Task, ...]
    #: Those without permanent protection.
    movable: tuple[Task, ...]
    #: Node row to the resources they hold there: int64 [resource columns].
    held: dict[int, Vector]


def may_be_evicted(task: Task) -> bool:
    """The pod's own `volcano.sh/preemptable`, else its PodGroup's, else true."""
    if task.preemptable is not None:
        return task.preemptable
    job = task.job
    if job is None or not (job.annotations or job.labels):
        return True
    return preemptable_of(job.annotations, job.labels) is not False


def protection(session: Session, task: Task) -> str:
    """The cause that protects a placed pod in this session; "" for none."""
    if task.status not in EVICTABLE_STATUSES:
        return "terminating" if task.deleting or task.status is TaskStatus.RELEASING else "not-running"
    if task.deleting:
        return "terminating"
    if not may_be_evicted(task):
        return "not-preemptable"
    if task.job is None or task.job.key not in session.jobs:
        return "no-job"
    if task.namespace == SYSTEM_NAMESPACE or task.cls.priority_class_name in CRITICAL_CLASSES:
        return SYSTEM_CRITICAL
    if session.carry_over.refused_evictions.get(task.uid, session.now) > session.now:
        return "eviction-refused"
    return ""


class _OpenJobs(dict["Job | None", bool]):
    """Whether no property of a job protects its pods."""

    def __init__(self, session: Session) -> None:
        self._jobs = session.jobs

    def __missing__(self, job: Job | None) -> bool:
        found = self[job] = (
            job is not None
            and job.key in self._jobs
            and job.namespace != SYSTEM_NAMESPACE
            and (not (job.annotations or job.labels) or preemptable_of(job.annotations, job.labels) is not False)
        )
        return found


def evict_scope(session: Session, job: Job) -> str:
    """The part of the job that is evicted at once when its minimum is broken: `whole`, `member` or `job`."""
    return _scope(job, session.dispatch.first("evict_scope", job))


def _scope(job: Job, result: object) -> str:
    """`evict_scope` by the first result of a plugin; None without one."""
    if result is not None:
        return str(result)
    return "job" if job.annotations.get(EVICT_SCOPE) == "job" else "whole"


class VictimIndex:
    """Candidates in order of node row. O(pods) once per session, or O(pods of some nodes)."""

    def __init__(self, session: Session, among: Iterable[int] | None = None) -> None:
        """`among`: rows of nodes, ascending; None: all."""
        self._session = session
        #: Row to the pods on it without permanent protection.
        self.by_row: dict[int, list[Task]] = {}
        #: Row to the number of protected pods by cause.
        self.kept: dict[int, Counter[str]] = {}
        #: Row to the system pods on it, for which queue and job are checked first.
        self.critical: dict[int, list[Task]] = {}
        self.tasks: list[Task] = []
        counts: list[int] = []
        self._is_open, nodes = _OpenJobs(session), session.nodes.nodes
        for row in range(len(nodes)) if among is None else among:
            found = self._movable(nodes[row].tasks.values(), partial(self._protect, row))
            if found:
                self.by_row[row] = found
                self.tasks += found
                counts.append(len(found))
        #: intp [candidates], ascending.
        self.rows: Rows = np.repeat(np.array([*self.by_row], dtype=np.intp), counts)
        self._task_keys: dict[str, tuple[Any, ...]] = {}
        self._job_keys: dict[str, tuple[_Sums, tuple[Any, ...]]] = {}
        self._scopes: dict[str, str] = {}
        self._gangs: dict[str, tuple[_Sums, GangMembers]] = {}

    def _movable(self, tasks: Collection[Task], protect: Callable[[Task], str]) -> list[Task]:
        """Those of some pods without permanent protection. `protect`: `protection`, for pods that may have one."""
        is_open, refused = self._is_open, self._session.carry_over.refused_evictions
        found = [
            task
            for task in tasks
            if is_open[task.job]
            and task.status in EVICTABLE_STATUSES
            and not task.deleting
            and task.preemptable is not False
            and task.cls.priority_class_name not in CRITICAL_CLASSES
            and task.uid not in refused
        ]
        if len(found) == len(tasks):
            return found
        free = set(found)
        return [task for task in tasks if task in free or not protect(task)]

    def _protect(self, row: int, task: Task) -> str:
        """Records a pod with a cause of `protection`, which is returned."""
        cause = protection(self._session, task)
        if cause == SYSTEM_CRITICAL:
            self.critical.setdefault(row, []).append(task)
        elif cause:
            self.kept.setdefault(row, Counter())[cause] += 1
        return cause

    @cached_property
    def units(self) -> UnitTable:
        return UnitTable(self._session, self.tasks, self.rows, self.scopes_of)

    # --- gangs ------------------------------------------------------------------------------------------------------

    def scopes_of(self, jobs: Sequence[Job]) -> list[str]:
        """`scope_of` each of some jobs."""
        results = self._session.dispatch.first_of("evict_scope", jobs)
        found = [_scope(job, result) for job, result in zip(jobs, results, strict=True)]
        self._scopes.update(zip([job.key for job in jobs], found, strict=True))
        return found

    def scope_of(self, job: Job) -> str:
        """`evict_scope`, computed once per session."""
        scope = self._scopes.get(job.key)
        if scope is None:
            scope = self._scopes[job.key] = evict_scope(self._session, job)
        return scope

    def gang(self, job: Job) -> GangMembers:
        """The running and bound members; recomputed after placements and evictions."""
        known = self._gangs.get(job.key)
        if known is None or not known[0].is_of(job):
            members = [task for task in job.tasks.values() if task.status in EVICTABLE_STATUSES]
            movable = tuple(self._movable(members, partial(protection, self._session)))
            members.sort(key=self.task_key, reverse=True)
            held: dict[int, Vector] = {}
            for task in members:
                assert task.node is not None
                row = task.node.row
                held[row] = held[row] + task.cls.request if row in held else task.cls.request
            known = self._gangs[job.key] = _Sums.of(job), GangMembers(tuple(members), movable, held)
        return known[1]

    # --- order ------------------------------------------------------------------------------------------------------

    def task_key(self, task: Task) -> tuple[Any, ...]:
        """The task's sort key, computed once per session."""
        key = self._task_keys.get(task.uid)
        if key is None:
            key = self._task_keys[task.uid] = self._session.task_key(task)
        return key

    def _job_key(self, job: Job) -> tuple[Any, ...]:
        known = self._job_keys.get(job.key)
        if known is None or not known[0].is_of(job):
            known = self._job_keys[job.key] = _Sums.of(job), self._session.job_key(job)
        return known[1]

    def by_job(self, tasks: list[Task], reclaimer: Queue) -> list[tuple[Job, list[Task]]]:
        """Tasks by job in eviction order: queues in victim order, then jobs, then tasks, reversed."""
        jobs: dict[Job, list[Task]] = {}
        for task in tasks:
            assert task.job is not None
            jobs.setdefault(task.job, []).append(task)
        found = list(jobs.items())
        for _, members in found:
            if len(members) > 1:
                members.sort(key=self.task_key, reverse=True)
        if len(found) > 1:
            found.sort(key=lambda entry: self._job_key(entry[0]), reverse=True)
            names = {job.queue for job, _ in found}
            if len(names) > 1:
                ranks = self._session.victim_queue_ranks(names, reclaimer)
                found.sort(key=lambda entry: ranks[entry[0].queue])
        return found


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
    if scope == "whole" and job.groups is not None:
        return subgroup_units(job, job.groups, may_go, allowed, kept, gang_of(job))
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


def subgroup_units(
    job: Job, groups: SubGroups, may_go: list[Task], allowed: set[str], kept: dict[str, str], gang: GangMembers
) -> list[VictimUnit]:
    """`units_of` of a job with subgroups: single pods, whole subgroups, then the whole job."""
    if not may_go:
        return []
    singles, whole, rest = spare_subgroups(job, may_go)
    units = [VictimUnit(job, (task,), task.cls.request, breaks=False, whole=False) for task in singles]
    for group in whole:
        here = [task for task in may_go if groups.of(task) == group]
        members = tuple(task for task in gang.members if groups.of(task) == group)
        if any(task.uid not in allowed for task in members):
            for task in here:
                kept.setdefault(task.uid, "gang")
            continue
        gain = np.sum([task.cls.request for task in members if task.node is here[0].node], axis=0)
        units.append(VictimUnit(job, members, gain, breaks=False, whole=False))
    if not rest:
        return units
    if job.count(_STARTING) or any(task.uid not in allowed for task in gang.members):
        for task in rest:
            kept.setdefault(task.uid, "gang")
        return units
    node = rest[0].node
    assert node is not None
    return [*units, VictimUnit(job, gang.members, gang.held[node.row], breaks=True, whole=True)]


def tasks_of(units: Iterable[VictimUnit]) -> list[Task]:
    """Every evicted pod, without duplicates, in the order of the units."""
    return list({task.uid: task for unit in units for task in unit.tasks}.values())


def minimal_set(units: Sequence[VictimUnit], fits: Callable[[list[VictimUnit]], bool]) -> list[VictimUnit] | None:
    """The first units, in the given order, without which the pod fits; None when all together are not enough.

    A whole gang or subgroup replaces its spare members. Units that the others make unnecessary are left out, the last
    one first; so are whole gangs and subgroups if their spare members are enough beside later units.
    """
    chosen: list[VictimUnit] = []
    replaced: dict[int, list[VictimUnit]] = {}
    for unit in units:
        if unit.whole:
            parts = [one for one in chosen if one.job is unit.job]
        else:
            parts = [one for one in chosen if one.tasks[0] in unit.tasks] if len(unit.tasks) > 1 else []
        if parts:
            replaced[id(unit)] = parts
            chosen = [one for one in chosen if all(one is not part for part in parts)]
        chosen.append(unit)
        if fits(chosen):
            break
    else:
        return None
    waiting = chosen[:-1]
    while waiting:
        unit = waiting.pop()
        spare = replaced.get(id(unit))
        for instead in ([], spare) if spare else ([],):
            place = next(at for at, one in enumerate(chosen) if one is unit)
            fewer = [*chosen[:place], *instead, *chosen[place + 1 :]]
            if fits(fewer):
                chosen = fewer
                waiting += instead
                break
    return chosen


def covers(shortfall: Vector) -> Callable[[list[VictimUnit]], bool]:
    """Whether units free a shortfall (int64 [resource columns]) on their node."""
    lacking = [(column, shortfall.item(column)) for column in shortfall.nonzero()[0].tolist()]

    def fits(units: list[VictimUnit]) -> bool:
        return all(sum(unit.gain.item(column) for unit in units) >= amount for column, amount in lacking)

    return fits
