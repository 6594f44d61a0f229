"""Best-first search for the cheapest preemption plan, ordered by a lower bound per node.

One search serves all pods of one signature, queue and priorities. It starts from a vector pass over all candidates:
rows without enough candidates are excluded at once, and the others get a lower bound of their cost. Rows are evaluated
one by one, best bound first, until none of the rest can be cheaper.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.node_view import NodeView
from capcard_sched.framework.eviction.bounds import LEAST, Cost
from capcard_sched.framework.eviction.node_plans import NodePlans, PreemptionPlan
from capcard_sched.framework.eviction.victim_index import VictimIndex

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.eviction.scope import WithinQueue
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue

#: Number of plans from which a row is evaluated only if its victims can have lower priority.
_ENOUGH = 128


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
        self._signature = signature
        index = session.once(VictimIndex) if rows is None else VictimIndex(session, rows)
        self.plans = NodePlans(session, scope, index, signature, queue)
        #: Rows that pass every filter but that of capacity: bool [nodes].
        by_quota = bool(signature.contexts) and (over_quota or scope.frees_own_quota)
        self.feasible = session.engine.open_to_evictions(signature) if by_quota else session.engine.feasible(signature)
        #: Rows that fit the pod once releasing pods are gone, with their scores where these follow from the row alone,
        #: and the table's serial of that result.
        self._free: dict[int, float] = {}
        self._free_serial = -1
        #: Whether some row had a plan, possible or not.
        self.is_planned = False
        assert task.job is not None
        if rows is None:
            # One vector pass: the rows with enough candidates, each with its lower bound.
            table = index.units
            bounds = table.bounds(scope.mask(table, task.job), signature.cls.fit_request, self.feasible)
        else:
            bounds = {row: (LEAST,) for row in index.by_row if self.feasible[row]}
        self._bounds = dict.fromkeys(bounds, (LEAST,)) if scope.singly else bounds  # alone, the cost has another order
        self._unseen = [(cost, row) for row, cost in self._bounds.items()]
        heapify(self._unseen)
        self._found: list[tuple[Cost, int, PreemptionPlan]] = []
        #: Rows in one of the heaps, and those removed from them since `end_statement`.
        self._waiting = set(bounds)
        self._used: list[int] = []

    @property
    def by_tiers(self) -> bool:
        """Whether a tier of plugins decided on the candidates of some row alone."""
        return self.plans.by_tiers

    def free_row(self) -> int:
        """The best row without victims, nominations kept; -1 without one."""
        engine, table, free, signature = self._session.engine, self._session.nodes, self._free, self._signature
        keeps_scores, found = engine.picks_highest(signature), None
        if self._free_serial < 0 or engine.reads_other_nodes(signature):
            free.clear()
            found = engine.candidates(signature, future=True)
        elif self._free_serial != table.serial:
            changed = (table.stamps > self._free_serial).nonzero()[0]
            for row in changed.tolist():
                free.pop(row, None)
            found = engine.candidates(signature, future=True, among=changed)
        serial, self._free_serial = table.serial, -1  # if a hook fails, all rows are read again
        if found is not None and len(found):
            scores = engine.totals(signature, NodeView(table, found, future=True)) if keeps_scores else found
            free.update(zip(found.tolist(), scores.tolist(), strict=True))
            if keeps_scores and np.isnan(scores).any():
                keeps_scores, serial = False, -1  # `choose` ranks NaN, now and until all scores are numbers
        self._free_serial = serial
        if not free:
            return -1
        if keeps_scores:
            best = max(free.values())
            return min(row for row, score in free.items() if score == best)
        return engine.choose(signature, np.array(sorted(free), dtype=np.intp), future=True)

    def next(self, task: Task) -> PreemptionPlan | None:
        """The cheapest current plan for the pod, removed from the search; None without one.

        The plan has no units when its row has capacity but another filter rejects the pod.
        """
        found, unseen, table = self._found, self._unseen, self._session.nodes
        while True:
            while unseen and self._may_be_cheaper(unseen[0][0]):
                row = heappop(unseen)[1]
                plan = self.plans.plan(row, task)
                if plan is not None:
                    heappush(found, (plan.cost, row, plan))
                else:
                    self._mark_used(row)
            if not found:
                return None
            cost, row, plan = heappop(found)
            fresh = plan if plan.serial == table.serial else self.plans.plan(row, task)
            if fresh is not None and fresh.cost > cost:
                heappush(found, (fresh.cost, row, fresh))
                continue
            self._mark_used(row)
            if fresh is not None:
                self.is_planned = True
                return fresh

    def _may_be_cheaper(self, bound: Cost) -> bool:
        found = self._found
        if not found:
            return True
        best = found[0][0]
        if bound >= best:
            return False
        return len(found) < _ENOUGH or bound[:2] < best[:2]

    def _mark_used(self, row: int) -> None:
        self._waiting.discard(row)
        self._used.append(row)

    def add(self, plan: PreemptionPlan) -> None:
        """Adds a plan that was computed in another way."""
        if plan.row not in self._waiting:
            self._waiting.add(plan.row)
            heappush(self._found, (plan.cost, plan.row, plan))

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

    # --- reports ----------------------------------------------------------------------------------------------------

    def report(self, task: Task) -> tuple[Counter[str], int]:
        """The pods by protecting cause on the feasible rows, and the number of rows without enough candidates."""
        return self.plans.report(task, self.feasible.nonzero()[0].tolist())
