"""Preemption: victims are planned and tried on a statement, and evicted only when the preemptor gets its capacity.

A job below its minimum is one transaction: capacity for all its missing members, or no eviction. Beyond its minimum
each pod is a transaction of its own. On every node evictions stay only if the preemptor is placed there, with every
filter run again without the victims. A pod that could immediately preempt back is not evicted.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from capcard_sched.framework.eviction import nominations
from capcard_sched.framework.eviction.eviction_events import EvictionEvents
from capcard_sched.framework.eviction.reprieve import LEAST_OPERATIONS, Reprieve
from capcard_sched.framework.eviction.search_state import SearchState
from capcard_sched.framework.eviction.victim_index import minimal_set, tasks_of
from capcard_sched.framework.session.statement import EvictionOperation, Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.backlog.failed_searches import RepeatedSearch
    from capcard_sched.framework.eviction.node_plans import PreemptionPlan
    from capcard_sched.framework.eviction.scope import WithinQueue
    from capcard_sched.framework.eviction.search import VictimSearch
    from capcard_sched.framework.eviction.search_state import SearchKey
    from capcard_sched.framework.eviction.victim_index import VictimUnit
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue

#: Maximum number of trial nodes per pod, where sums do not show whether it would fit.
_MOST_TRIALS = 128


class Attempt(Enum):
    """The result of an attempt to place one pod."""

    PLACED = "placed"
    #: Evictions on no node give the pod a place.
    NO_PLAN = "no plan"
    #: A quota or a check of the pod itself refuses it, whatever is evicted.
    REFUSED = "refused"


class Evictor:
    """Finds capacity for the pods of jobs within one scope, during one action."""

    def __init__(
        self, session: Session, scope: WithinQueue, *, reservation_seconds: float, rows: Sequence[int] | None = None
    ) -> None:
        """`reservation_seconds`: lifetime of a nomination after its victims; `rows`: those with victims, None: all."""
        self._session = session
        self._scope = scope
        self._seconds = reservation_seconds
        self._rows = rows
        self._state = SearchState(session, scope, rows)
        self._events = EvictionEvents(session, scope)
        #: Whether attempts end without evictions and refusals.
        self._is_trial = False
        #: By uid of a victim, the unit of its last eviction, which may be undone since.
        self._units: dict[str, VictimUnit] = {}

    # --- jobs -------------------------------------------------------------------------------------------------------

    def attempt(self, queue: Queue, job: Job, tasks: Sequence[Task], may: Callable[[Job], bool]) -> Sequence[Task]:
        """`evict_for` for a job for which `may` is true; a failure is recorded. Returns the tasks to return for."""
        try:
            if not tasks or not may(job):
                return ()
            with self._session.assumptions.plan_nominations():
                done = self.evict_for(queue, job, tasks)
            return tasks[done:] if done else ()
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._session.results.record_hook_error(job, error)
            return ()

    def evict_for(self, queue: Queue, job: Job, tasks: Sequence[Task]) -> int:
        """One transaction of a job: its minimum, or one pod beyond it. `tasks`: pending ones in task order.

        Returns the number of processed tasks; 0 when nothing more can be done for the job in this session.
        """
        session, state = self._session, self._state
        statement = Statement(session)
        whole, needed = not session.job_pipelined(job), session.needed_by_evictions(job)
        done = placed = 0
        failed: set[SearchKey] = set()
        unplaced: Task | None = None
        try:
            for task in tasks:
                if session.deadline.is_exhausted(queue.name):
                    self._undo(statement)
                    return 0
                done += 1
                key = state.key(queue, job, task)
                if key in failed or not task.may_preempt:
                    continue
                failure = state.failure(key, needed - placed)
                if failure is not None:
                    unplaced = unplaced or (task if failure.was_searched else None)
                    failed.add(key)
                    continue
                found = self._place(statement, queue, job, task, key)
                if found is Attempt.PLACED:
                    placed += 1
                    if not whole or session.job_pipelined(job):
                        break
                else:
                    failed.add(key)
                    was_searched = found is Attempt.NO_PLAN
                    unplaced = unplaced or (task if was_searched else None)
                    if not placed or len({one.cls for one in tasks}) == 1:
                        state.note_failure(key, needed, was_searched=was_searched)
                    if not whole or job.min_available == len(job.tasks):
                        break
            if not placed or not session.job_pipelined(job):
                self._undo(statement)
                state.remember(job, failed, needed, placed, searched=unplaced is not None)
                self._explain(queue, job, unplaced)
                return 0 if whole else done
            if self._finish(statement, queue, job):
                self._explain(queue, job, unplaced)
        except Exception:
            self._undo(statement)
            raise
        return done

    def repeat(self, job: Job, rows: Sequence[int]) -> RepeatedSearch | None:
        """Attempts a job with pods of one signature anew, on a statement. None when one of the rows may have a plan.

        None, too, for an error of a plugin, which the attempt of the job reports.
        """
        session, queue = self._session, self._session.queues[job.queue]
        only = Evictor(session, self._scope, reservation_seconds=self._seconds, rows=rows)
        statement, placed, found = Statement(session), 0, None
        try:
            with session.assumptions.plan_nominations():
                for task in session.pending_tasks(job):
                    if not task.may_preempt:
                        break
                    found = only._place(statement, queue, job, task, only._state.key(queue, job, task))
                    if found is not Attempt.PLACED:
                        break
                    placed += 1
                    if session.job_pipelined(job):
                        return None
        except Exception:  # noqa: BLE001 - a plugin may raise anything
            return None
        finally:
            statement.rollback(0)
        return only._state.repeated(placed, was_searched=found is Attempt.NO_PLAN)

    def _leans_on_evictions(self, statement: Statement) -> bool:
        """Whether some pod of the statement depends on capacity that this session's evictions free."""
        session = self._session
        if not session.results.evictions:
            return False
        table = session.nodes
        rows = {node.row for placement in statement.pipelined for node in placement.nodes}
        used, allocatable, pipelined = table.used, table.allocatable, table.pipelined
        return any((used[row] > allocatable[row] - pipelined[row]).any() for row in rows)

    def _undo(self, statement: Statement) -> None:
        statement.rollback(0)  # the outcomes of allocate are kept
        self._state.end_statement(undone=True)

    # --- pods -------------------------------------------------------------------------------------------------------

    def _place(self, statement: Statement, queue: Queue, job: Job, task: Task, key: SearchKey) -> Attempt:
        """Pipelines a pod, evicting others if necessary; nothing is left behind unless it is placed.

        `key`: of the pod, as of `SearchState.key`.
        """
        session = self._session
        if self._is_refused(queue, task, key[0]):
            return Attempt.REFUSED
        quota = session.dispatch.refusal("allocatable", queue, task)
        if quota is not None:
            self._state.note_over_quota(key)
            if not self._scope.frees_own_quota and quota.queue in ("", queue.name):
                return Attempt.REFUSED
        search = self._state.search(key, queue, task, over_quota=quota is not None)
        if quota is None:
            row = search.free_row()
            if row >= 0:
                statement.pipeline(job, [task], [session.nodes.nodes[row]])
                return Attempt.PLACED
        trials = 0
        while (plan := search.next(task)) is not None:
            if plan.units:
                obstacle = self._carry_out(statement, queue, job, task, plan)
                if not obstacle:
                    search.restore(plan.row)
                    return Attempt.PLACED
                search.plans.bar(plan, obstacle)
            trials += 1
            if not plan.tried and trials <= _MOST_TRIALS:
                tried = self._trial(statement, queue, task, search, plan.row)
                if tried is not None:
                    search.add(tried)
        return Attempt.NO_PLAN

    def _is_refused(self, queue: Queue, task: Task, signature: PodSignature) -> bool:
        """Whether the scope or a check of the pod itself refuses it."""
        session = self._session
        refusal = self._scope.refusal(session, queue, task)
        if refusal is not None and self._rows is None and not self._is_trial:
            session.results.refuse(task, refusal)
        return refusal is not None or session.dispatch.refusal("pre_predicate", signature) is not None

    def _carry_out(self, statement: Statement, queue: Queue, job: Job, task: Task, plan: PreemptionPlan) -> str:
        """Evicts the victims and pipelines the pod. The obstacle, with nothing left behind, else ""."""
        session = self._session
        node = session.nodes.nodes[plan.row]
        mark = len(statement)
        message = self._events.victim_text(queue, task, plan)
        obstacle = "predicates"
        try:
            self._evict(statement, plan.units, queue, task, message)
            if self._fits(queue, task, plan.row):
                statement.pipeline(job, [task], [node])
                victims = [unit.tasks[0] for unit in plan.units]
                if not self._scope.is_preempted_back(session, statement, job, task, node, victims):
                    self._units.update((victim.uid, unit) for unit in plan.units for victim in unit.tasks)
                    return ""
                obstacle = "would-take-back"
        except Exception:
            statement.rollback(mark)
            raise
        statement.rollback(mark)
        return obstacle

    def _evict(self, statement: Statement, units: Iterable[VictimUnit], queue: Queue, task: Task, message: str) -> None:
        for victim in tasks_of(units):
            statement.evict(victim, self._scope.action, message, by=task.key, queue=queue.name)

    def _fits(self, queue: Queue, task: Task, row: int) -> bool:
        session = self._session
        signature = session.engine.signature(queue, task)  # evictions open alternatives
        return (
            session.engine.fits(signature, row, future=True)
            and session.dispatch.refusal("allocatable", queue, task) is None
        )

    def _trial(
        self, statement: Statement, queue: Queue, task: Task, search: VictimSearch, row: int
    ) -> PreemptionPlan | None:
        """Trial evictions for a row where sums are not enough: ports, affinity, counts, quota."""
        mark = len(statement)

        def fits_without(gone: list[VictimUnit]) -> bool:
            statement.rollback(mark)
            self._evict(statement, gone, queue, task, self._scope.action)
            return self._fits(queue, task, row)

        try:
            chosen = minimal_set(search.plans.units(row, task, None), fits_without)
        finally:
            statement.rollback(mark)
        if chosen is None:
            return None
        return search.plans.priced(row, chosen, search.plans.shortfall(row), tried=True)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _finish(self, statement: Statement, queue: Queue, job: Job) -> bool:
        """Commits a statement that places the pods of a job, unless idle capacity is enough, which allocate uses."""
        self._reprieve(statement, queue, job)
        if not statement.evicted and not self._leans_on_evictions(statement):
            self._undo(statement)
            return False
        self._commit(statement, queue, job)
        return True

    def _reprieve(self, statement: Statement, queue: Queue, job: Job) -> None:
        """Takes back the evictions that the placed pods do not need."""
        if len(statement) < LEAST_OPERATIONS:
            return
        text = None if self._is_trial else partial(self._events.taker_text, queue)
        Reprieve(self._session, self._scope, statement, queue, job, text).run(self._units_since(statement, 0)[0])

    def _units_since(self, statement: Statement, length: int) -> tuple[list[VictimUnit], list[Task]]:
        """The units evicted since the statement had `length` operations, in order, and their pods."""
        gone = [one.task for one in statement.operations[length:] if isinstance(one, EvictionOperation)]
        return list({id(unit): unit for unit in (self._units[task.uid] for task in gone)}.values()), gone

    def _commit(self, statement: Statement, queue: Queue, job: Job) -> None:
        session = self._session
        victims, promises = statement.evicted, statement.pipelined
        begun = len(session.results.evictions)
        statement.commit()
        self._state.commit()
        nominations.nominate(session, promises, victims, self._scope.action, self._seconds)
        session.results.drop_preemption_report(job, self._scope.action)
        self._events.committed(queue, promises, victims, begun)

    def _explain(self, queue: Queue, job: Job, task: Task | None) -> None:
        """Reports the unplaced pod, if any, once per action: over all nodes, instead of those of one HyperNode."""
        session = self._session
        if (
            task is None
            or session.engine.confined
            or self._scope.action in session.results.preemption_reports.get(job.key, {})
        ):
            return
        found = self._state.report(self._state.key(queue, job, task), task)
        if found is not None:  # else a quota or a check of the pod itself refused, and that is recorded
            self._events.unplaced(queue, job, task, *found)
