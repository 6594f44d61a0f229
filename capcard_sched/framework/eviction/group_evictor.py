"""Preemption for jobs with subgroups or a hard network topology.

Each unit of a job with subgroups gets capacity for all its pods or none, until the minimum of every level is met. Where
pods must share a HyperNode, the HyperNodes are tried one after the other: victims in several of them help no job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from capcard_sched.framework.eviction.evictor import Attempt, Evictor
from capcard_sched.framework.placement.hypernode_bounds import PLACED
from capcard_sched.framework.session.group_units import units_of
from capcard_sched.framework.session.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.framework.session.group_units import GroupUnit
    from capcard_sched.model.hyper_nodes import NetworkTopology
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue

#: HyperNodes that one attempt tries.
_MOST_DOMAINS: Final = 64


class GroupEvictor(Evictor):
    """Finds capacity for the pods of all jobs."""

    def evict_for(self, queue: Queue, job: Job, tasks: Sequence[Task]) -> int:
        """As `Evictor.evict_for`; a job with subgroups has one attempt per session."""
        confined = self._session.engine.confined
        if job.groups is None:
            done = super().evict_for(queue, job, tasks)
            if done or self._scope.singly or not self._must_share(job.topology) or job.count(PLACED):
                return done
        domains = self._domains(job.topology, None, tasks) if not job.count(PLACED) else [None]
        try:
            for domain in domains:
                if self._session.deadline.is_exhausted(queue.name):
                    break
                if domain is not None:
                    confined[job.key] = domain
                evict = super().evict_for if job.groups is None else self._evict_for_units
                if done := evict(queue, job, tasks):
                    return done
        finally:
            confined.clear()
        return 0

    def _must_share(self, topology: NetworkTopology | None) -> bool:
        """Whether pods with a topology share a HyperNode of a known tier."""
        tree = self._session.snapshot.tree.of(topology)
        return topology is not None and topology.hard and topology.allowed(tree) is not None

    def _domains(
        self, topology: NetworkTopology | None, inside: int | None, tasks: Sequence[Task]
    ) -> Iterator[int | None]:
        """The HyperNodes for pods with a topology, lowest tier first; None alone without a hard one.

        `inside`: HyperNode that contains them. Those that are too small for the pods, even empty, are left out.
        """
        if not self._must_share(topology):
            yield None
            return
        assert topology is not None
        session, tree = self._session, self._session.snapshot.tree.of(topology)
        highest = topology.allowed(tree)
        assert highest is not None
        allowed = tree.tiers <= highest
        if inside is not None:
            allowed &= tree.meets(inside) == inside
        wanted = min((task.cls.fit_request for task in tasks), key=lambda request: request.tolist())
        found = 0
        for number in sorted(np.flatnonzero(allowed).tolist(), key=lambda one: (int(tree.tiers[one]), one)):
            total = session.nodes.allocatable[tree.rows_of(number)].sum(axis=0)
            if (total >= wanted).all() and found < _MOST_DOMAINS:
                found += 1
                yield number

    def _evict_for_units(self, queue: Queue, job: Job, tasks: Sequence[Task]) -> int:
        """One transaction of a job with subgroups. Returns 1 when it was committed."""
        session, statement = self._session, Statement(self._session)
        units = units_of(session, job, tasks)
        placed = False
        unplaced: Task | None = None
        try:
            for unit in (*units.groups, *units.singles):
                if session.deadline.is_exhausted(queue.name):
                    break
                if session.job_pipelined(job) and placed:
                    break
                if self._place_unit(statement, queue, job, unit):
                    placed = True
                else:
                    unplaced = unplaced or unit.tasks[0]
            if placed and not session.job_pipelined(job):
                self._place_extras(statement, queue, job, units.groups)
            if not placed or not session.job_pipelined(job):
                self._undo(statement)
                self._explain(queue, job, unplaced)
                return 0
            if not statement.evicted and not self._leans_on_evictions(statement):
                self._undo(statement)  # idle capacity is left to allocate
                return 0
            self._commit(statement, queue, job)
        except Exception:
            self._undo(statement)
            raise
        return 1

    def _place_extras(self, statement: Statement, queue: Queue, job: Job, units: Sequence[GroupUnit]) -> None:
        """Places pods beyond the size of the subgroups, until the job has its minimum."""
        for unit in units:
            for task in unit.tasks if self._is_complete(job, unit) else ():
                if self._session.job_pipelined(job):
                    return
                if task.uid in job.pending:
                    self._place(statement, queue, job, task, self._state.key(queue, job, task))

    @staticmethod
    def _is_complete(job: Job, unit: GroupUnit) -> bool:
        groups = job.groups
        assert groups is not None
        return unit.group is not None and groups.ready_of(unit.group, pipelined=True) >= groups.size_of(unit.group)

    def _place_unit(self, statement: Statement, queue: Queue, job: Job, unit: GroupUnit) -> bool:
        """Pipelines the pods of a unit, evicting others; nothing is left behind when some do not fit."""
        groups, confined, group = job.groups, self._session.engine.confined, unit.group
        assert groups is not None
        is_fresh = group is not None and not unit.is_begun
        topology = groups.policies[group.policy].topology if group is not None and is_fresh else None
        for domain in self._domains(topology, confined.get(job.key), unit.tasks):
            if domain is not None:
                confined[job.key, group] = domain
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
            statement.rollback(mark)
            self._state.end_statement(undone=True)
            confined.pop((job.key, group), None)
        return False
