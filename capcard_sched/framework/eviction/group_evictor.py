"""Preemption for jobs with subgroups or a hard network topology.

Each unit of a job with subgroups gets capacity for all its pods or none, until the minimum of every level is met. Where
pods must share a HyperNode, HyperNodes are tried one after the other: victims in several of them help no job. Of the
first ones of a tier with enough victims, that with the least cost is taken.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.framework.eviction.evictor import Attempt, Evictor
from capcard_sched.framework.placement.hypernode_bounds import PLACED
from capcard_sched.framework.session.group_units import GroupUnit, next_unit, units_of
from capcard_sched.framework.session.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from capcard_sched.framework.eviction.bounds import Cost
    from capcard_sched.framework.eviction.scope import WithinQueue
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.hyper_nodes import NetworkTopology
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Matrix, Vector

#: HyperNodes that one attempt tries.
_MOST_DOMAINS: Final = 64
#: HyperNodes of one tier whose costs are compared.
_MOST_COMPARED: Final = 8


class _Domain(NamedTuple):
    """A HyperNode by number, and its tier; None for no limit."""

    number: int | None = None
    tier: int = 0


class GroupEvictor(Evictor):
    """Finds capacity for the pods of all jobs."""

    def __init__(
        self, session: Session, scope: WithinQueue, *, reservation_seconds: float, rows: Sequence[int] | None = None
    ) -> None:
        """As of `Evictor`."""
        super().__init__(session, scope, reservation_seconds=reservation_seconds, rows=rows)
        #: The cost of the last trial; None for one that failed.
        self._cost: Cost | None = None

    def evict_for(self, queue: Queue, job: Job, tasks: Sequence[Task]) -> int:
        """As `Evictor.evict_for`; a job with subgroups has one attempt per session."""
        confined, evict = self._session.engine.confined, super().evict_for
        is_shared = not self._scope.singly and self._must_share(job.topology) and not job.count(PLACED)
        if job.groups is not None:
            evict = self._evict_for_units
        if is_shared:
            needed = self._session.needed_by_evictions(job)
            try:
                tried = partial(self._try_domain, queue, job, partial(evict, queue, job, tasks))
                best = self._cheapest(self._domains(job.topology, None, tasks, needed), tried)
                if best is not None and best.number is not None:
                    confined[job.key] = best.number
                    return evict(queue, job, tasks)
            finally:
                confined.clear()
        if is_shared and job.groups is not None:
            return 0
        try:
            return evict(queue, job, tasks)  # also where no HyperNode has enough victims: records the failure
        finally:
            confined.clear()

    def _try_domain(self, queue: Queue, job: Job, evict: Callable[[], int], domain: _Domain) -> Cost | None:
        """The cost of the victims in one HyperNode, without an eviction; None where they are not enough."""
        confined = self._session.engine.confined
        if self._session.deadline.is_exhausted(queue.name) or domain.number is None:
            return None
        confined[job.key] = domain.number
        self._is_trial, self._cost = True, None
        try:
            evict()
        finally:
            self._is_trial = False
            confined.clear()
        return self._cost

    def _finish(self, statement: Statement, queue: Queue, job: Job) -> bool:
        if not self._is_trial:
            return super()._finish(statement, queue, job)
        self._reprieve(statement, queue, job)
        self._cost = self._cost_since(statement, 0)
        self._undo(statement)
        return False

    def _cost_since(self, statement: Statement, length: int) -> Cost:
        """The cost of the victims since the statement had `length` operations; () for none."""
        units, gone = self._units_since(statement, length)
        return self._scope.cost(self._session, units, gone, 0, 0) if units else ()

    @staticmethod
    def _cheapest(domains: Iterable[_Domain], cost_of: Callable[[_Domain], Cost | None]) -> _Domain | None:
        """The domain with the least cost, among the first ones of the lowest tier that has any; None without one."""
        found: list[tuple[Cost, int, _Domain]] = []
        for domain in domains:
            if found and (domain.tier > found[0][2].tier or len(found) >= _MOST_COMPARED or not found[-1][0]):
                break
            cost = cost_of(domain)
            if cost is not None:
                found.append((cost, len(found), domain))
        return min(found)[2] if found else None

    def _must_share(self, topology: NetworkTopology | None) -> bool:
        """Whether pods with a topology share a HyperNode of a known tier."""
        if topology is None or not topology.hard:
            return False
        return topology.allowed(self._session.snapshot.tree.of(topology)) is not None

    def _domains(
        self, topology: NetworkTopology | None, inside: int | None, tasks: Sequence[Task], needed: int
    ) -> Iterator[_Domain]:
        """The HyperNodes for pods with a topology, lowest tier first, then those with capacity for most of the pods.

        One without a number for pods without a hard topology. `inside`: HyperNode that contains them. Those that hold
        fewer pods than `needed` if all others but nominated ones leave are left out: of 40 gangs for which 1,000 nodes
        are cleared, each would try those of the gangs before it.
        """
        if not self._must_share(topology):
            yield _Domain()
            return
        assert topology is not None
        session, tree = self._session, self._session.snapshot.tree.of(topology)
        highest = topology.allowed(tree)
        assert highest is not None
        allowed = tree.tiers <= highest
        if inside is not None:
            allowed &= tree.meets(inside) == inside
        wanted = np.min([task.cls.fit_request for task in tasks], axis=0)  # that of no pod is lower in any resource
        table, columns = session.nodes, np.flatnonzero(wanted)

        def places_in(amounts: Matrix) -> Vector:
            found: Vector = (np.maximum(amounts[:, columns], 0) // wanted[columns]).min(axis=1, initial=len(tasks))
            return found

        places = places_in(table.future_idle(np.arange(len(table))))
        most = places_in(table.allocatable - table.pipelined)
        found: list[tuple[int, int, int]] = []
        for number in np.flatnonzero(allowed).tolist():
            rows = tree.rows_of(number)
            if most[rows].sum() >= needed:
                found.append((int(tree.tiers[number]), -min(int(places[rows].sum()), len(tasks)), number))
        for tier, _, number in sorted(found)[:_MOST_DOMAINS]:
            yield _Domain(number, tier)

    def _evict_for_units(self, queue: Queue, job: Job, tasks: Sequence[Task]) -> int:
        """One transaction of a job with subgroups. Returns 1 when it was committed."""
        session, statement = self._session, Statement(self._session)
        units = units_of(session, job, tasks)
        waiting = [*units.groups, *units.singles]
        placed = False
        unplaced: Task | None = None
        try:
            while waiting and not (placed and session.job_pipelined(job)):
                if session.deadline.is_exhausted(queue.name):
                    break
                unit = waiting.pop(next_unit(job, waiting))
                if self._place_unit(statement, queue, job, unit):
                    placed = True
                    waiting += _extras_of(job, unit)
                else:
                    unplaced = unplaced or unit.tasks[0]
            if not placed or not session.job_pipelined(job):
                self._undo(statement)
                self._explain(queue, job, unplaced)
                return 0
            return int(self._finish(statement, queue, job))
        except Exception:
            self._undo(statement)
            raise

    def _place_unit(self, statement: Statement, queue: Queue, job: Job, unit: GroupUnit) -> bool:
        """Pipelines the pods of a unit, evicting others; nothing is left behind when some do not fit."""
        groups, confined, group = job.groups, self._session.engine.confined, unit.group
        assert groups is not None
        is_fresh = group is not None and not unit.is_begun
        topology = groups.policies[group.policy].topology if group is not None and is_fresh else None
        place = partial(self._place_in, statement, queue, job, unit)

        def cost_of(domain: _Domain) -> Cost | None:
            mark = len(statement)
            if self._session.deadline.is_exhausted(queue.name) or not place(domain):
                return None
            cost = self._cost_since(statement, mark)
            self._take_back(statement, unit, job, mark)
            return cost

        domains = list(self._domains(topology, confined.get(job.key), unit.tasks, unit.need))
        best = self._cheapest(domains, cost_of) if len(domains) > 1 else next(iter(domains), None)
        return best is not None and place(best)

    def _place_in(self, statement: Statement, queue: Queue, job: Job, unit: GroupUnit, domain: _Domain) -> bool:
        """`_place_unit` in one HyperNode."""
        if domain.number is not None:
            self._session.engine.confined[job.key, unit.group] = domain.number
        mark, placed = len(statement), 0
        for position, task in enumerate(unit.tasks):
            if placed == unit.need or placed + len(unit.tasks) - position < unit.need:
                break
            if not task.cls.may_preempt:
                continue
            key = self._state.key(queue, job, task)
            if self._place(statement, queue, job, task, key) is Attempt.PLACED:
                placed += 1
        if placed == unit.need:
            return True
        self._take_back(statement, unit, job, mark)
        return False

    def _take_back(self, statement: Statement, unit: GroupUnit, job: Job, length: int) -> None:
        statement.rollback(length)
        self._state.end_statement(undone=True)
        self._session.engine.confined.pop((job.key, unit.group), None)


def _extras_of(job: Job, unit: GroupUnit) -> list[GroupUnit]:
    """The pods beyond the size of a subgroup that a unit completes, as units of their own."""
    left = [task for task in unit.tasks if task.uid in job.pending] if unit.completes else []
    return [GroupUnit(unit.group, (task,), 1, completes=False, is_begun=True) for task in left]
