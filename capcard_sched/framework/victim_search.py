"""Where a pod could be placed if others left: the cheapest nodes first, found without asking about each of them.

One search serves all pods of one profile, queue and priorities. It starts from a vector pass over all candidates: rows
where everything that may go is not enough are out at once, and for the others there is a bound on how cheap they could
be. Rows are looked at one by one, best bound first, until none of the rest can be cheaper (W-03, W-09).
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from capcard_sched.framework.victims import Unit, live_members, units_of
from capcard_sched.model.resources import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN

if TYPE_CHECKING:
    from capcard_sched.framework.rows import Profile
    from capcard_sched.framework.session import Session
    from capcard_sched.framework.victims import Scope
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector
    from capcard_sched.model.task import Task

#: What a plan costs; the cheaper is the smaller. Bounds begin as costs do.
Cost: TypeAlias = tuple[float, ...]

#: With so many plans at hand, rows are only looked at if their victims could be of lower priority.
_ENOUGH = 128
#: Bounds tell so many priorities apart; beyond that all rows may be the cheapest.
_MOST_LEVELS = 16
#: Rows that a report looks at anew; of others it tells what was found out on the way.
_MOST_REPORTED = 64
_LEAST = float("-inf")


class Plan(NamedTuple):
    """How a node makes room for one pod."""

    cost: Cost
    row: int
    units: tuple[Unit, ...]
    #: What the pod lacks there: int64 [resource columns].
    deficit: Vector
    #: The table's serial when the plan was made.
    serial: int
    #: Whether it was tried out on a statement.
    tried: bool = False

    @property
    def victims(self) -> list[Task]:
        """Every pod that leaves, each once."""
        return list({task.uid: task for unit in self.units for task in unit.tasks}.values())


class Search:
    """See the module docstring."""

    def __init__(
        self, session: Session, scope: Scope, profile: Profile, queue: Queue, task: Task, *, widest: int = 0
    ) -> None:
        """`widest`: how many nodes are compared in topology-aware mode (core reference §4.5), 0 for the other mode."""
        self._session = session
        self._scope = scope
        self._index = session.victim_index()
        self._queue = queue
        self.profile = profile
        self._columns = np.flatnonzero(profile.cls.request)
        self._widest = widest
        self._feasible = session.engine.feasible(profile)
        #: Rows on which the pod fits once releasing pods are gone, and the table's serial they were found at.
        self._free: set[int] = set()
        self._free_serial = -1
        #: Row to what protected pods on it when it was last looked at; "" stands for "not enough".
        self.kept: dict[int, Counter[str]] = {}
        #: Row to the pods that could go and whose going does not help, by what is in the way all the same.
        self.barred: dict[int, Counter[str]] = {}
        self._bounds: dict[int, Cost] = {}
        self._unseen: list[tuple[Cost, int]] = []
        self._plans: list[tuple[Cost, int, Plan]] = []
        #: Rows that stand in one of the heaps, and those that left them since `settle`.
        self._waiting: set[int] = set()
        self._taken: list[int] = []
        assert task.job is not None
        self._bound(task)

    # --- free room --------------------------------------------------------------------------------------------------

    def free_row(self) -> int:
        """The best row where nobody has to leave, promises kept; -1 when there is none."""
        engine, table = self._session.engine, self._session.nodes
        if self._free_serial < 0 or engine.is_domain_bound(self.profile):
            self._free = set(engine.candidates(self.profile, future=True).tolist())
        elif self._free_serial != table.serial:
            changed = np.flatnonzero(table.stamps > self._free_serial)
            self._free.difference_update(changed.tolist())
            self._free.update(engine.candidates(self.profile, future=True, among=changed).tolist())
        self._free_serial = table.serial
        if not self._free:
            return -1
        return engine.choose(self.profile, np.array(sorted(self._free), dtype=np.intp))

    # --- bounds -----------------------------------------------------------------------------------------------------

    def _bound(self, task: Task) -> None:
        """One vector pass: the rows where enough could go, each with the least it could cost."""
        index, columns = self._index, self._columns
        assert task.job is not None
        chosen = np.flatnonzero(index.mask(self._scope, task.job)) if len(index.tasks) else np.zeros(0, dtype=np.intp)
        if not len(chosen):
            return
        rows = index.rows[chosen]
        starts = np.concatenate(([0], np.flatnonzero(rows[1:] != rows[:-1]) + 1))
        rows = rows[starts]
        requests = index.requests[chosen][:, columns]
        table = self._session.nodes
        future = table.allocatable[rows] - table.used[rows] + table.releasing[rows] - table.pipelined[rows]
        deficit = np.maximum(self.profile.cls.request[columns] - future[:, columns], 0)
        enough = (np.add.reduceat(requests, starts, axis=0) >= deficit).all(axis=1) & self._feasible[rows]
        if not enough.any():
            return
        largest = np.maximum.reduceat(requests, starts, axis=0)
        pods = np.where(deficit > 0, -(-deficit // np.maximum(largest, 1)), 0).max(axis=1, initial=0)
        ranks, known = index.levels
        ranks = ranks[chosen]
        lowest = np.minimum.reduceat(ranks, starts)
        if len(known) <= _MOST_LEVELS:
            lowest = np.full(len(rows), len(known) - 1)
            for level in range(len(known) - 2, -1, -1):
                part = np.where((ranks <= level)[:, None], requests, 0)
                lowest[(np.add.reduceat(part, starts, axis=0) >= deficit).all(axis=1)] = level
        for position in np.flatnonzero(enough).tolist():
            row = int(rows[position])
            queue_priority, job_priority = known[lowest[position]]
            if self._scope.kind == "inside" or self._widest:
                cost: Cost = (_LEAST,)
            else:
                cost = (queue_priority, job_priority, 0, int(pods[position]), _LEAST)
            self._bounds[row] = cost
            self._unseen.append((cost, row))
            self._waiting.add(row)
        heapify(self._unseen)

    # --- plans ------------------------------------------------------------------------------------------------------

    def next(self, task: Task) -> Plan | None:
        """The cheapest plan for the pod as things stand, taken out of the search; None when there is none.

        The plan has no units when its row has room but something else is in the way.
        """
        plans, unseen, table = self._plans, self._unseen, self._session.nodes
        while True:
            while unseen and self._may_be_cheaper(unseen[0][0]):
                row = heappop(unseen)[1]
                plan = self.plan(row, task)
                if plan is not None:
                    heappush(plans, (plan.cost, row, plan))
                else:
                    self._take(row)
            if not plans:
                return None
            cost, row, plan = heappop(plans)
            if plan.serial == table.serial:
                self._take(row)
                return plan
            fresh = self.plan(row, task)
            if fresh is None:
                self._take(row)
            elif fresh.cost <= cost:
                self._take(row)
                return fresh
            else:
                heappush(plans, (fresh.cost, row, fresh))

    def _may_be_cheaper(self, bound: Cost) -> bool:
        plans = self._plans
        if not plans:
            return True
        if self._widest:
            return len(plans) < self._widest
        best = plans[0][0]
        if bound >= best:
            return False
        return len(plans) < _ENOUGH or bound[:2] < best[:2]

    def _take(self, row: int) -> None:
        self._waiting.discard(row)
        self._taken.append(row)

    def offer(self, plan: Plan) -> None:
        """Put a plan back, after it was worked out in another way."""
        if plan.row not in self._waiting:
            self._waiting.add(plan.row)
            heappush(self._plans, (plan.cost, plan.row, plan))

    def again(self, row: int) -> None:
        """A row that was taken may be of use again."""
        bound = self._bounds.get(row)
        if bound is not None and row not in self._waiting:
            self._waiting.add(row)
            heappush(self._unseen, (bound, row))

    def settle(self, *, undone: bool) -> None:
        """A statement ended; when it was undone, all rows that were taken meanwhile may be of use again."""
        if undone:
            for row in self._taken:
                self.again(row)
        self._taken.clear()

    def deficit(self, row: int) -> Vector:
        """What the pod lacks on a row: int64 [resource columns]."""
        table, request = self._session.nodes, self.profile.cls.request
        future = table.allocatable[row] - table.used[row] + table.releasing[row] - table.pipelined[row]
        lacking: Vector = np.where(request > 0, np.maximum(request - future, 0), 0)
        return lacking

    def units(self, row: int, task: Task, deficit: Vector | None) -> list[Unit]:
        """The units that may leave a row, first to leave first; with a `deficit`, those that help against it."""
        session, index = self._session, self._index
        kept = Counter(index.kept.get(row, {}))
        candidates: list[Task] = []
        for victim in index.by_row.get(row, ()):
            cause = index.outside(self._scope, task, victim)
            if cause:
                kept[cause] += 1
            else:
                candidates.append(victim)
        self.kept[row] = kept
        if not candidates:
            return []
        lacking = None if deficit is None else np.flatnonzero(deficit)
        helps = {victim.uid for victim in candidates if lacking is None or bool(victim.cls.request[lacking].any())}
        useful = index.by_job([victim for victim in candidates if victim.uid in helps], self._queue)
        rest = [victim for victim in candidates if victim.uid not in helps]
        asked = [victim for _, members in useful for victim in members] + rest
        singly = self._scope.kind == "inside"
        if not singly:
            asked += self._elsewhere(useful, {victim.uid for victim in asked}, task)
        judgement = session.dispatch.judge(self._scope.hook, task, asked)
        allowed = {victim.uid for victim in judgement.victims}
        causes = dict(judgement.kept)
        units = [unit for job, here in useful for unit in units_of(session, job, here, allowed, causes, singly=singly)]
        for victim in candidates:
            if victim.uid not in allowed or victim.uid in causes:
                kept[causes.get(victim.uid, self._scope.hook)] += 1
            elif victim.uid not in helps:
                kept["no-use"] += 1
        return units

    def _elsewhere(self, jobs: list[tuple[Job, list[Task]]], known: set[str], task: Task) -> list[Task]:
        """Members on other nodes of gangs that could have to go whole, as far as they may go at all."""
        index, found = self._index, []
        for job, _ in jobs:
            if len(job.tasks) > 1 and (job.min_available > 1 or job.annotations):
                found += [
                    member
                    for member in live_members(job)
                    if member.uid not in known
                    and member.uid in index.movable
                    and not index.outside(self._scope, task, member)
                ]
        return found

    def plan(self, row: int, task: Task) -> Plan | None:
        """How a row makes room by resources alone: taken greedily, then whoever is not needed is spared (W-09)."""
        deficit = self.deficit(row)
        units = self.units(row, task, deficit if deficit.any() else None)
        if not units:
            return None
        if not deficit.any():
            return Plan((_LEAST,), row, (), deficit, self._session.nodes.serial)
        chosen = cover(units, deficit[self._columns], self._columns)
        if chosen is None:
            self.kept[row][""] += 1
            return None
        del self.kept[row]
        return self.priced(row, chosen, deficit)

    def priced(self, row: int, units: list[Unit], deficit: Vector, *, tried: bool = False) -> Plan:
        """A plan with its cost (tidal reference §7.2.7; in topology-aware mode core reference §4.5)."""
        tasks = {task.uid: task for unit in units for task in unit.tasks}.values()
        queues = self._session.queues
        if self._widest:
            top = max(task.priority for task in tasks)
            total = sum(task.priority + 2**31 for task in tasks)
            latest = max(task.created for task in tasks if task.priority == top)
            cost: Cost = (top, total, len(tasks), -latest, row)
        elif self._scope.kind == "inside":
            cost = (max(task.priority for task in tasks), len(tasks), self._surplus(units, deficit), row)
        else:
            cost = (
                max(queues[unit.job.queue].priority for unit in units),
                max(unit.job.priority for unit in units),
                len({unit.job.key for unit in units if unit.breaks}),
                len(tasks),
                self._surplus(units, deficit),
                -min(task.created for task in tasks),
                row,
            )
        return Plan(cost, row, tuple(units), deficit, self._session.nodes.serial, tried)

    def _surplus(self, units: list[Unit], deficit: Vector) -> int:
        """What is freed anywhere beyond need, of the devices the pod asks for; of cpu when it asks for none."""
        ordinary = (CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN)
        columns = [column for column in self._columns.tolist() if column not in ordinary] or [CPU_COLUMN]
        freed = sum(int(task.cls.request[columns].sum()) for unit in units for task in unit.tasks)
        return freed - int(deficit[columns].sum())

    # --- reports ----------------------------------------------------------------------------------------------------

    def report(self, task: Task) -> tuple[Counter[str], int]:
        """What protected how many pods on the rows the pod could use, and on how many rows all is not enough."""
        index = self._index
        rows = [row for row in np.flatnonzero(self._feasible).tolist() if row in index.by_row or row in index.kept]
        total: Counter[str] = Counter()
        for position, row in enumerate(rows):
            if position < _MOST_REPORTED:  # what was found out on the way may have been undone since
                deficit = self.deficit(row)
                units = self.units(row, task, deficit if deficit.any() else None)
                if units and cover(units, deficit[self._columns], self._columns) is None:
                    self.kept[row][""] += 1
            total.update(self.kept.get(row, {}))
            total.update(self.barred.get(row, {}))
        return total, total.pop("", 0)


def cover(units: list[Unit], deficit: Vector, columns: np.ndarray[tuple[int], np.dtype[np.intp]]) -> list[Unit] | None:
    """The units to take so that a deficit (int64 [columns]) is covered, in the order they are given.

    None when all together are not enough. Nobody is among them without whom the rest would do.
    """
    chosen: list[Unit] = []
    total = np.zeros(len(columns), dtype=np.int64)
    for unit in units:
        if unit.whole:  # its spare members go with it
            for part in chosen:
                if part.job is unit.job:
                    total -= part.gain[columns]
            chosen = [part for part in chosen if part.job is not unit.job]
        chosen.append(unit)
        total += unit.gain[columns]
        if (total >= deficit).all():
            break
    else:
        return None
    for unit in chosen[::-1]:
        without = total - unit.gain[columns]
        if (without >= deficit).all():
            chosen = [one for one in chosen if one is not unit]
            total = without
    return chosen
