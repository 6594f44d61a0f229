"""Preemption plans of single nodes: the candidates on a node, those that are enough, and what protects the others."""

from __future__ import annotations

from collections import Counter
from itertools import compress, groupby
from operator import attrgetter, not_
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.framework.eviction.bounds import LEAST, Cost, device_columns
from capcard_sched.framework.eviction.victim_index import (
    SYSTEM_CRITICAL,
    VictimIndex,
    VictimUnit,
    covers,
    minimal_set,
    tasks_of,
    units_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.framework.api.node_view import PodSignature, Rows
    from capcard_sched.framework.eviction.scope import WithinQueue
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.status import TaskStatus
    from capcard_sched.model.task_class import TaskClass

#: Maximum number of rows that a report evaluates anew; the others use earlier results.
_MOST_REPORTED = 64
_CLASS, _JOB, _UID = attrgetter("cls"), attrgetter("job"), attrgetter("uid")
_JOB_AND_CLASS, _KIND = attrgetter("job", "cls"), attrgetter("job", "status", "cls.best_effort")


class PreemptionPlan(NamedTuple):
    """The victims on one node for one pod."""

    cost: Cost
    row: int
    units: tuple[VictimUnit, ...]
    #: The pod's shortfall there: int64 [resource columns].
    shortfall: Vector
    #: The table's serial of the plan.
    serial: int
    #: Whether it was tried on a statement.
    tried: bool = False


class _HeldAmounts(dict["TaskClass", int]):
    """The sum of some columns of the requests of each class."""

    def __init__(self, columns: Rows) -> None:
        super().__init__()
        self._columns = columns

    def __missing__(self, cls: TaskClass) -> int:
        held = self[cls] = int(cls.request[self._columns].sum())
        return held


class NodePlans:
    """The plans of each node for the pods of one signature, queue and priorities."""

    def __init__(
        self, session: Session, scope: WithinQueue, index: VictimIndex, signature: PodSignature, queue: Queue
    ) -> None:
        """`queue`: of the preemptors."""
        self._session = session
        self._scope = scope
        self._index = index
        self._signature = signature
        self._queue = queue
        #: The resources whose surplus counts, and the amount of them per class.
        self._counted = device_columns(signature.cls.fit_request)
        self._held = _HeldAmounts(self._counted)
        #: The alternative of the pod on each node: intp [nodes]; None without alternatives.
        self._alternatives: Rows | None = session.dispatch.first("alternatives", signature)
        #: The job of the last preemptor, and the cause that excludes pods by (job, status, best effort).
        self._outside: tuple[Job | None, dict[tuple[Job | None, TaskStatus, bool], str]] = (None, {})
        #: Row to the causes that protected pods on it at its last evaluation; "" is "not enough".
        self._kept: dict[int, dict[str, int]] = {}
        #: Row to the candidates whose eviction does not help, by obstacle.
        self._barred: dict[int, dict[str, int]] = {}
        #: The number of evictions before, and whether plugins protect a job from the preemptor, by key.
        self._protected: tuple[int, dict[str, bool]] = (0, {})
        #: Whether a tier of plugins decided alone.
        self.by_tiers = False

    # --- plans ------------------------------------------------------------------------------------------------------

    def plan(self, row: int, task: Task) -> PreemptionPlan | None:
        """The plan for a row by resources alone: greedy, without units that are not needed."""
        if self._session.carry_over.leaves_out_counts and self._is_protected(row, task):
            return None
        shortfall = self.shortfall(row)
        units = self.units(row, task, shortfall if shortfall.any() else None)
        if not units:
            return None
        if not shortfall.any():
            return PreemptionPlan((LEAST,), row, (), shortfall, self._session.nodes.serial)
        chosen = minimal_set(units, covers(shortfall))
        found = [] if chosen is None else [self.priced(row, chosen, shortfall)]
        if self._has_other_spares(row, chosen):
            chosen = minimal_set(self.units(row, task, shortfall, by_gain=True), covers(shortfall))
            found += [] if chosen is None else [self.priced(row, chosen, shortfall)]
        if not found:
            self._kept[row][""] = 1
            return None
        del self._kept[row]
        return min(found, key=lambda plan: plan.cost)

    def _has_other_spares(self, row: int, chosen: list[VictimUnit] | None) -> bool:
        """Whether other members beyond the minimum of a gang may leave instead of whole gangs or subgroups."""
        if self._scope.singly or not (chosen is None or any(len(unit.tasks) > 1 for unit in chosen)):
            return False
        victims = self._index.by_row.get(row, ())
        pairs = set(map(_JOB_AND_CLASS, victims))
        if len(pairs) == len(set(map(_JOB, victims))):
            return False  # no job has pods of two classes here
        kinds: dict[Job, TaskClass] = {}
        for job, cls in pairs:
            if job is None or job.ready_tasks <= job.min_available or (job.min_available <= 1 and job.groups is None):
                continue
            other = kinds.setdefault(job, cls)
            if other is not cls and (other.request != cls.request).any():
                return True
        return False

    def priced(self, row: int, units: list[VictimUnit], shortfall: Vector, *, tried: bool = False) -> PreemptionPlan:
        """A plan with its cost."""
        tasks = tasks_of(units)
        alternative = 0 if self._alternatives is None else int(self._alternatives[row])
        cost = (*self._scope.cost(self._session, units, tasks, self._surplus(tasks, shortfall), alternative), row)
        return PreemptionPlan(cost, row, tuple(units), shortfall, self._session.nodes.serial, tried)

    def shortfall(self, row: int) -> Vector:
        """The pod's shortfall on a row: int64 [resource columns]."""
        table, request = self._session.nodes, self._signature.cls.fit_request
        lacking: Vector = np.where(request > 0, np.maximum(request - table.future_idle(row), 0), 0)
        return lacking

    def _surplus(self, tasks: list[Task], shortfall: Vector) -> int:
        """The surplus freed anywhere, of the devices the pod requests; of cpu when it requests none."""
        return sum(map(self._held.__getitem__, map(_CLASS, tasks))) - int(shortfall[self._counted].sum())

    # --- candidates -------------------------------------------------------------------------------------------------

    def units(self, row: int, task: Task, shortfall: Vector | None, *, by_gain: bool = False) -> list[VictimUnit]:
        """The units that may be evicted from a row, first victim first; with a `shortfall`, those that reduce it.

        `by_gain`: of each job, the pods that reduce it most come first.
        """
        session, index, singly = self._session, self._index, self._scope.singly
        session.results.report.count_examined_node()
        candidates, kept = self._candidates(row, task)
        self._kept[row] = kept
        if not candidates:
            return []
        helping = set(map(_CLASS, candidates))  # those that hold some of the missing resources
        if shortfall is not None:
            lacking = shortfall.nonzero()[0]
            helping = {cls for cls in helping if cls.request[lacking].any()}
        useful = index.by_job([victim for victim in candidates if victim.cls in helping], self._queue)
        if by_gain and shortfall is not None:
            lacking = shortfall.nonzero()[0]
            gains = {cls: np.minimum(cls.request[lacking] / shortfall[lacking], 1.0).sum() for cls in helping}
            for _, members in useful:
                members.sort(key=lambda victim: -gains[victim.cls])
        judged = [victim for _, members in useful for victim in members]
        judged += [victim for victim in candidates if victim.cls not in helping]
        if not singly:
            judged += self._elsewhere(useful, set(judged), task)
        judgement = session.dispatch.judge(self._scope.hook, task, judged)
        self.by_tiers |= judgement.by_tiers
        allowed = set(map(_UID, judgement.victims))
        causes = dict(judgement.kept)
        units = [
            unit
            for job, here in useful
            for unit in units_of(
                job, here, allowed, causes, scope=index.scope_of(job), gang_of=index.gang, singly=singly
            )
        ]
        for victim in candidates:
            if victim.uid not in allowed or victim.uid in causes:
                cause = causes.get(victim.uid, self._scope.hook)
            elif victim.cls not in helping:
                cause = "no-use"
            else:
                continue
            kept[cause] = kept.get(cause, 0) + 1
        return _least_harm_first(units)

    def _candidates(self, row: int, task: Task) -> tuple[list[Task], dict[str, int]]:
        """The pods on a row that the scope allows, and the number of the others by cause."""
        session, index, outside = self._session, self._index, self._scope.outside
        kept = dict(index.kept.get(row, ()))
        for victim in index.critical.get(row, ()):
            cause = outside(session, task, victim) or SYSTEM_CRITICAL
            kept[cause] = kept.get(cause, 0) + 1
        if self._outside[0] is not task.job:
            self._outside = task.job, {}
        known, victims = self._outside[1], index.by_row.get(row, ())
        kinds = list(map(_KIND, victims))
        for kind, victim in dict(zip(kinds, victims, strict=True)).items():
            if kind not in known:
                known[kind] = outside(session, task, victim)
        causes = list(map(known.__getitem__, kinds))
        for cause, count in Counter(filter(None, causes)).items():
            kept[cause] = kept.get(cause, 0) + count
        return list(compress(victims, map(not_, causes))), kept

    def _elsewhere(self, jobs: list[tuple[Job, list[Task]]], known: set[Task], task: Task) -> list[Task]:
        """Members on other nodes of gangs that may be evicted whole, as far as they are candidates."""
        statuses, found = self._scope.statuses, []
        asks_little = task.cls.best_effort
        for job, _ in jobs:
            if len(job.tasks) > 1 and (job.min_available > 1 or job.annotations or job.groups is not None):
                found += [
                    member
                    for member in self._index.gang(job).movable
                    if member not in known and member.status in statuses and (not asks_little or member.cls.best_effort)
                ]
        return found

    def _is_protected(self, row: int, task: Task) -> bool:
        """Whether plugins protect every candidate of a row, whatever the order.

        Read only once the session evicts: the record of a failed search without evictions needs every judgement.
        """
        session, scope = self._session, self._scope
        evictions = len(session.results.evictions)
        if not evictions or scope.singly or task.job is None:
            return False
        if self._protected[0] != evictions:
            self._protected = evictions, {}
        known, priority = self._protected[1], task.job.priority if scope.hook == "preemptable" else 0
        for victim in self._index.by_row.get(row, ()):
            assert victim.job is not None
            is_kept = known.get(victim.job.key)
            if is_kept is None:
                is_kept = known[victim.job.key] = session.dispatch.protects(scope.hook, victim.job, priority)
            if not is_kept:
                return False
        return True

    # --- causes -----------------------------------------------------------------------------------------------------

    def bar(self, plan: PreemptionPlan, obstacle: str) -> None:
        """Records that the victims of a plan do not help, with the obstacle."""
        self._barred[plan.row] = {obstacle: len(tasks_of(plan.units))}

    def obstacles(self) -> set[str]:
        return {obstacle for causes in self._barred.values() for obstacle in causes}

    def report(self, task: Task, rows: Iterable[int]) -> tuple[Counter[str], int]:
        """The pods by protecting cause on the rows, and the number of those without enough candidates."""
        index = self._index
        total: Counter[str] = Counter()
        looked = 0
        for row in rows:
            if row not in index.by_row and row not in index.kept and row not in index.critical:
                continue
            if looked < _MOST_REPORTED:  # earlier results may have been undone
                looked += 1
                shortfall = self.shortfall(row)
                units = self.units(row, task, shortfall if shortfall.any() else None)
                if units and minimal_set(units, covers(shortfall)) is None:
                    self._kept[row][""] = 1
            for causes in (self._kept.get(row), self._barred.get(row)):
                for cause, count in causes.items() if causes else ():
                    total[cause] += count
        return total, total.pop("", 0)


def _least_harm_first(units: list[VictimUnit]) -> list[VictimUnit]:
    """Per queue and priority of jobs and pods: single pods, then subgroups, then pods that gangs need."""
    if len({(unit.breaks, len(unit.tasks) > 1) for unit in units}) < 2:
        return units
    found: list[VictimUnit] = []
    for _, group in groupby(units, key=_rank):
        found += sorted(group, key=lambda unit: (unit.breaks, len(unit.tasks) > 1))
    return found


def _rank(unit: VictimUnit) -> tuple[str, int, int]:
    return unit.job.queue, unit.job.priority, max(task.priority for task in unit.tasks)
