"""Best-first search for the cheapest preemption plan, ordered by a lower bound per node.

One search serves all pods of one signature, queue and priorities. It starts from a vector pass over all candidates:
rows without enough candidates are excluded at once, and the others get a lower bound of their cost. Rows are evaluated
one by one, best bound first, until none of the rest can be cheaper.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush
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
from capcard_sched.model.annotations import CARD_NAME
from capcard_sched.model.quantity import format_amount, is_scalar
from capcard_sched.model.resources import PODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.api.node_view import PodSignature, Rows
    from capcard_sched.framework.eviction.scope import WithinQueue
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector

#: Number of plans from which a row is evaluated only if its victims can have lower priority.
_ENOUGH = 128
#: Maximum number of rows that a report evaluates anew; the others use earlier results.
_MOST_REPORTED = 64


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


class VictimSearch:
    """See the module docstring."""

    def __init__(
        self,
        session: Session,
        scope: WithinQueue,
        signature: PodSignature,
        queue: Queue,
        task: Task,
        *,
        over_quota: bool = False,
        rows: Sequence[int] | None = None,
    ) -> None:
        """`over_quota`: a quota refuses the pod that evictions within the scope can free.

        `rows`: rows of nodes, ascending, with the only possible plans; None: all.
        """
        self._session = session
        self._scope = scope
        self._index = session.once(VictimIndex) if rows is None else VictimIndex(session, rows)
        self._queue = queue
        self.signature = signature
        #: The resources whose surplus counts, and the amount of them per class.
        self._counted = device_columns(signature.cls.fit_request)
        self._held: dict[int, int] = {}
        #: The alternative of the pod on each node: intp [nodes]; None without alternatives.
        self._alternatives: Rows | None = session.dispatch.first("alternatives", signature)
        #: Rows that pass every filter but that of capacity: bool [nodes].
        by_quota = bool(signature.contexts) and (over_quota or scope.frees_own_quota)
        self.feasible = session.engine.open_to_evictions(signature) if by_quota else session.engine.feasible(signature)
        #: Rows that fit the pod once releasing pods are gone, and the table's serial of that result.
        self._free: set[int] = set()
        self._free_serial = -1
        #: Of the last failed search: the commits before, the fewest missing pods, whether nodes were searched.
        self.hopeless = (-1, 0, False)
        #: The number of commits before the last report, and the report.
        self.known_report: tuple[int, Counter[str], int] | None = None
        #: Row to the causes that protected pods on it at its last evaluation; "" is "not enough".
        self.kept: dict[int, dict[str, int]] = {}
        #: Row to the candidates whose eviction does not help, by obstacle.
        self.barred: dict[int, dict[str, int]] = {}
        #: The number of evictions before, and whether plugins protect a job from the preemptor, by key.
        self._protected: tuple[int, dict[str, bool]] = (0, {})
        #: Whether some row had a plan, possible or not, and whether a tier of plugins decided alone.
        self.is_planned = self.by_tiers = False
        assert task.job is not None
        if rows is None:
            # One vector pass: the rows with enough candidates, each with its lower bound.
            table = self._index.units
            bounds = table.bounds(scope.mask(table, task.job), signature.cls.fit_request, self.feasible)
        else:
            bounds = {row: (LEAST,) for row in self._index.by_row if self.feasible[row]}
        self._bounds = dict.fromkeys(bounds, (LEAST,)) if scope.singly else bounds  # alone, the cost has another order
        self._unseen = [(cost, row) for row, cost in self._bounds.items()]
        heapify(self._unseen)
        self._plans: list[tuple[Cost, int, PreemptionPlan]] = []
        #: Rows in one of the heaps, and those removed from them since `end_statement`.
        self._waiting = set(bounds)
        self._used: list[int] = []

    def is_hopeless(self, commits: int, missing: int) -> bool:
        """Whether a search since the last commit failed for this number of missing pods or fewer."""
        return self.hopeless[0] == commits and missing >= self.hopeless[1]

    # --- free capacity ----------------------------------------------------------------------------------------------

    def free_row(self) -> int:
        """The best row without victims, nominations kept; -1 without one."""
        engine, table = self._session.engine, self._session.nodes
        if self._free_serial < 0 or engine.reads_other_nodes(self.signature):
            self._free = set(engine.candidates(self.signature, future=True).tolist())
        elif self._free_serial != table.serial:
            changed = np.flatnonzero(table.stamps > self._free_serial)
            self._free.difference_update(changed.tolist())
            self._free.update(engine.candidates(self.signature, future=True, among=changed).tolist())
        self._free_serial = table.serial
        if not self._free:
            return -1
        return engine.choose(self.signature, np.array(sorted(self._free), dtype=np.intp), future=True)

    # --- plans ------------------------------------------------------------------------------------------------------

    def next(self, task: Task) -> PreemptionPlan | None:
        """The cheapest current plan for the pod, removed from the search; None without one.

        The plan has no units when its row has capacity but another filter rejects the pod.
        """
        plans, unseen, table = self._plans, self._unseen, self._session.nodes
        while True:
            while unseen and self._may_be_cheaper(unseen[0][0]):
                row = heappop(unseen)[1]
                plan = self.plan(row, task)
                if plan is not None:
                    heappush(plans, (plan.cost, row, plan))
                else:
                    self._mark_used(row)
            if not plans:
                return None
            cost, row, plan = heappop(plans)
            fresh = plan if plan.serial == table.serial else self.plan(row, task)
            if fresh is not None and fresh.cost > cost:
                heappush(plans, (fresh.cost, row, fresh))
                continue
            self._mark_used(row)
            if fresh is not None:
                self.is_planned = True
                return fresh

    def _may_be_cheaper(self, bound: Cost) -> bool:
        plans = self._plans
        if not plans:
            return True
        best = plans[0][0]
        if bound >= best:
            return False
        return len(plans) < _ENOUGH or bound[:2] < best[:2]

    def _mark_used(self, row: int) -> None:
        self._waiting.discard(row)
        self._used.append(row)

    def add(self, plan: PreemptionPlan) -> None:
        """Adds a plan that was computed in another way."""
        if plan.row not in self._waiting:
            self._waiting.add(plan.row)
            heappush(self._plans, (plan.cost, plan.row, plan))

    def restore(self, row: int) -> None:
        """Returns a used row to the search."""
        bound = self._bounds.get(row)
        if bound is not None and row not in self._waiting:
            self._waiting.add(row)
            heappush(self._unseen, (bound, row))

    def end_statement(self, *, undone: bool) -> None:
        """Ends a statement; when it was undone, its used rows return to the search."""
        if undone:
            for row in self._used:
                self.restore(row)
        self._used.clear()

    def shortfall(self, row: int) -> Vector:
        """The pod's shortfall on a row: int64 [resource columns]."""
        table, request = self._session.nodes, self.signature.cls.fit_request
        lacking: Vector = np.where(request > 0, np.maximum(request - table.future_idle(row), 0), 0)
        return lacking

    def units(self, row: int, task: Task, shortfall: Vector | None) -> list[VictimUnit]:
        """The units that may be evicted from a row, first victim first; with a `shortfall`, those that reduce it."""
        session, index = self._session, self._index
        session.report.count_examined_node()
        kept = dict(index.kept.get(row, ()))
        for victim in index.critical.get(row, ()):
            cause = self._scope.outside(session, task, victim) or SYSTEM_CRITICAL
            kept[cause] = kept.get(cause, 0) + 1
        candidates: list[Task] = []
        outside, singly = self._scope.outside, self._scope.singly
        for victim in index.by_row.get(row, ()):
            cause = outside(session, task, victim)
            if cause:
                kept[cause] = kept.get(cause, 0) + 1
            else:
                candidates.append(victim)
        self.kept[row] = kept
        if not candidates:
            return []
        helping = {victim.cls for victim in candidates}  # those that hold some of the missing resources
        if shortfall is not None:
            lacking = np.flatnonzero(shortfall)
            helping = {cls for cls in helping if cls.request[lacking].any()}
        useful = index.by_job([victim for victim in candidates if victim.cls in helping], self._queue)
        judged = [victim for _, members in useful for victim in members]
        judged += [victim for victim in candidates if victim.cls not in helping]
        if not singly:
            judged += self._elsewhere(useful, set(judged), task)
        judgement = session.dispatch.judge(self._scope.hook, task, judged)
        self.by_tiers |= judgement.by_tiers
        allowed = {victim.uid for victim in judgement.victims}
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
        return units

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
        if chosen is None:
            self.kept[row][""] = 1
            return None
        del self.kept[row]
        return self.priced(row, chosen, shortfall)

    def _is_protected(self, row: int, task: Task) -> bool:
        """Whether plugins protect every candidate of a row, whatever the order.

        Read only once the session evicts: the record of a failed search without evictions needs every judgement.
        """
        session, scope = self._session, self._scope
        evictions = len(session.evictions)
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

    def priced(self, row: int, units: list[VictimUnit], shortfall: Vector, *, tried: bool = False) -> PreemptionPlan:
        """A plan with its cost."""
        tasks = tasks_of(units)
        alternative = 0 if self._alternatives is None else int(self._alternatives[row])
        cost = (*self._scope.cost(self._session, units, tasks, self._surplus(units, shortfall), alternative), row)
        return PreemptionPlan(cost, row, tuple(units), shortfall, self._session.nodes.serial, tried)

    def _surplus(self, units: list[VictimUnit], shortfall: Vector) -> int:
        """The surplus freed anywhere, of the devices the pod requests; of cpu when it requests none."""
        known, freed = self._held, 0
        for unit in units:
            for task in unit.tasks:
                held = known.get(task.cls.id)
                if held is None:
                    held = known[task.cls.id] = int(task.cls.request[self._counted].sum())
                freed += held
        return freed - int(shortfall[self._counted].sum())

    # --- reports ----------------------------------------------------------------------------------------------------

    def report(self, task: Task) -> tuple[Counter[str], int]:
        """The pods by protecting cause on the feasible rows, and the number of rows without enough candidates."""
        index = self._index
        total: Counter[str] = Counter()
        looked = 0
        for row in np.flatnonzero(self.feasible).tolist():
            if row not in index.by_row and row not in index.kept and row not in index.critical:
                continue
            if looked < _MOST_REPORTED:  # earlier results may have been undone
                looked += 1
                shortfall = self.shortfall(row)
                units = self.units(row, task, shortfall if shortfall.any() else None)
                if units and minimal_set(units, covers(shortfall)) is None:
                    self.kept[row][""] = 1
            for causes in (self.kept.get(row), self.barred.get(row)):
                for cause, count in causes.items() if causes else ():
                    total[cause] += count
        return total, total.pop("", 0)


def shortfall_text(session: Session, *parts: tuple[Task, Vector]) -> str:
    """The total shortfall of pods, in order of name: `NVIDIA-H200: 4`, or `NVIDIA-H200: 2, cpu: 8, memory: 4Gi`.

    `parts`: each pod with its shortfall, int64 [resource columns], base units. Cards have the name in the pod's
    annotation. Pod slots are omitted unless nothing else is missing.
    """
    totals: dict[str, tuple[str, int]] = {}
    for task, amounts in parts:
        lacking = session.resources.amounts(amounts)
        devices = [name for name in lacking if is_scalar(name) and name != PODS]
        card = task.cls.annotations.get(CARD_NAME) if len(devices) == 1 else None
        for resource, amount in lacking.items():
            if resource != PODS or len(lacking) == 1:
                name = card if card and resource in devices else resource
                totals[name] = resource, amount + totals.get(name, ("", 0))[1]
    found = ", ".join(f"{name}: {format_amount(*totals[name])}" for name in sorted(totals))
    return found or ("devices of ResourceClaims" if any(task.cls.claims for task, _ in parts) else "a place")
