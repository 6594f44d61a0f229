"""Preemption: victims are planned and tried on a statement, and evicted only when the preemptor gets its capacity.

A job below its minimum is one transaction: capacity for all its missing members, or no eviction. Beyond its minimum
each pod is a transaction of its own. On every node evictions stay only if the preemptor is placed there, with every
filter run again without the victims. A pod that could immediately preempt back is not evicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.eviction import nominations
from capcard_sched.framework.eviction.search import PreemptionPlan, VictimSearch, shortfall_text
from capcard_sched.framework.eviction.victim_index import minimal_set, tasks_of
from capcard_sched.framework.session.carry_over import REFRESH_SECONDS
from capcard_sched.framework.session.failed_searches import RepeatedSearch, search_id
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model import reasons
from capcard_sched.model.explanation import EvictedPod, VictimsConsidered
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.eviction.scope import WithinQueue
    from capcard_sched.framework.eviction.victim_index import VictimUnit
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector

    #: Signature, key of the scope, job and pod priority: preemptors that share a search.
    SearchKey = tuple[PodSignature, tuple[str, str], int, int]

#: Maximum number of trial nodes per pod, where sums do not show whether it would fit.
_MOST_TRIALS = 128


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
        self._searches: dict[SearchKey, VictimSearch] = {}
        #: Searches used since the last statement ended.
        self._used: set[VictimSearch] = set()
        #: Searches of pods that a quota refused.
        self._over_quota: set[SearchKey] = set()
        self._commits = 0
        #: uid of a pod to its shortfall on its node: int64 [resource columns].
        self._shortfalls: dict[str, Vector] = {}

    # --- jobs -------------------------------------------------------------------------------------------------------

    def attempt(self, queue: Queue, job: Job, tasks: Sequence[Task], may: Callable[[Job], bool]) -> Sequence[Task]:
        """`evict_for` for a job for which `may` is true; a failure is recorded. Returns the tasks to return for."""
        try:
            if not tasks or not may(job):
                return ()
            with self._session.plan_nominations():
                done = self.evict_for(queue, job, tasks)
            return tasks[done:] if done else ()
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._session.record_hook_error(job, error)
            return ()

    def evict_for(self, queue: Queue, job: Job, tasks: Sequence[Task]) -> int:
        """One transaction of a job: its minimum, or one pod beyond it. `tasks`: pending ones in task order.

        Returns the number of processed tasks; 0 when nothing more can be done for the job in this session.
        """
        session = self._session
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
                key = self._key(queue, job, task)
                if key in failed or not task.may_preempt:
                    continue
                search = self._searches.get(key)
                if search is not None and search.is_hopeless(self._commits, needed - placed):
                    unplaced = unplaced or (task if search.hopeless[2] else None)
                    failed.add(key)
                    continue
                found = self._place(statement, queue, job, task, key)
                if found:
                    placed += 1
                    if not whole or session.job_pipelined(job):
                        break
                else:
                    failed.add(key)
                    unplaced = unplaced or (None if found is None else task)
                    search = self._searches.get(key)
                    if search is not None and (not placed or len({one.cls for one in tasks}) == 1):
                        search.hopeless = self._commits, needed, found is not None
                    if not whole or job.min_available == len(job.tasks):
                        break
            if not placed or not session.job_pipelined(job):
                self._undo(statement)
                self._note_failure(job, failed, needed, placed, searched=unplaced is not None)
                if unplaced is not None:
                    self._explain(queue, job, unplaced)
                return 0 if whole else done
            if not statement.evicted and not self._leans_on_evictions(statement):
                self._undo(statement)  # idle capacity is left to allocate
                return done
            self._commit(statement, queue, job)
            if unplaced is not None:
                self._explain(queue, job, unplaced)
        except Exception:
            self._undo(statement)
            raise
        return done

    def _note_failure(self, job: Job, failed: set[SearchKey], needed: int, placed: int, *, searched: bool) -> None:
        """Records an undone attempt for the next sessions, unless it read more than the records compare."""
        session, hook = self._session, self._scope.hook
        if self._scope.singly or session.evictions or (placed and not failed):
            return
        signatures = session.pending_signatures(job)
        if not all(map(session.engine.reads_amounts_only, signatures)):
            return
        searches = [search for key in failed if (search := self._searches.get(key)) is not None]
        barred = [causes for search in searches for causes in search.barred.values()]
        if hook == "reclaimable" and any("would-take-back" in causes for causes in barred):
            return  # the books of the victims' queues were read as those of a preemptor
        found = search_id(hook, job, signatures)
        # A quota may leave free capacity: which nodes have it then follows from all nodes.
        is_over = not failed.isdisjoint(self._over_quota)
        is_partial = (placed > 0 and is_over) or found.pods == job.key
        is_planned = is_partial or any(search.is_planned for search in searches)
        result = RepeatedSearch(placed, any(search.by_tiers for search in searches), searched and not is_over)
        session.failed_attempts.searches.note(found, needed, result, is_planned=is_planned)

    def repeat(self, job: Job, rows: Sequence[int]) -> RepeatedSearch | None:
        """Attempts a job with pods of one signature anew, on a statement. None when one of the rows may have a plan.

        None, too, for an error of a plugin, which the attempt of the job reports.
        """
        session, queue = self._session, self._session.queues[job.queue]
        only = Evictor(session, self._scope, reservation_seconds=self._seconds, rows=rows)
        statement, placed, found = Statement(session), 0, None
        try:
            with session.plan_nominations():
                for task in session.pending_tasks(job):
                    if not task.may_preempt:
                        break
                    found = only._place(statement, queue, job, task, only._key(queue, job, task))
                    if not found:
                        break
                    placed += 1
                    if session.job_pipelined(job):
                        return None
        except Exception:  # noqa: BLE001 - a plugin may raise anything
            return None
        finally:
            statement.rollback(0)
        searches = only._searches.values()
        if any(search.is_planned for search in searches) or (placed and only._over_quota):
            return None
        by_tiers = any(search.by_tiers for search in searches)
        return RepeatedSearch(placed, by_tiers, found is False and not only._over_quota)

    def _leans_on_evictions(self, statement: Statement) -> bool:
        """Whether some pod of the statement depends on capacity that this session's evictions free."""
        session = self._session
        if not session.evictions:
            return False
        table = session.nodes
        rows = [node.row for placement in statement.pipelined for node in placement.nodes]
        return bool((table.used[rows] > table.allocatable[rows] - table.pipelined[rows]).any())

    def _undo(self, statement: Statement) -> None:
        statement.rollback(0)  # the outcomes of allocate are kept
        self._end_statement(undone=True)

    def _end_statement(self, *, undone: bool) -> None:
        for search in self._used:
            search.end_statement(undone=undone)
        self._used.clear()

    def _key(self, queue: Queue, job: Job, task: Task) -> SearchKey:
        """The key under which preemptors share a search."""
        signature = self._session.engine.signature(queue, task)
        return signature, self._scope.key(job), job.priority, task.priority

    # --- pods -------------------------------------------------------------------------------------------------------

    def _place(self, statement: Statement, queue: Queue, job: Job, task: Task, key: SearchKey) -> bool | None:
        """Pipelines a pod, evicting others if necessary. False with nothing left behind.

        `key`: as of `_key`. None when a quota or a check of the pod itself refuses, whatever is evicted.
        """
        session, signature = self._session, key[0]
        dispatch = session.dispatch
        refusal = self._scope.refusal(session, queue, task)
        if refusal is not None:
            if self._rows is None:
                session.refuse(task, refusal)
            return None
        if dispatch.refusal("pre_predicate", signature) is not None:
            return None
        quota = dispatch.refusal("allocatable", queue, task)
        over_quota = quota is not None
        if over_quota:
            self._over_quota.add(key)
        if quota is not None and not self._scope.frees_own_quota and quota.queue in ("", queue.name):
            return None
        search = self._searches.get(key)
        if search is None:
            search = VictimSearch(session, self._scope, signature, queue, task, over_quota=over_quota, rows=self._rows)
            self._searches[key] = search
        self._used.add(search)
        if not over_quota:
            row = search.free_row()
            if row >= 0:
                statement.pipeline(job, [task], [session.nodes.nodes[row]])
                return True
        trials = 0
        while (plan := search.next(task)) is not None:
            if plan.units:
                obstacle = self._carry_out(statement, queue, job, task, plan)
                if not obstacle:
                    search.restore(plan.row)
                    return True
                search.barred[plan.row] = {obstacle: len(tasks_of(plan.units))}
            trials += 1
            tried = None
            if not plan.tried and trials <= _MOST_TRIALS:
                tried = self._trial(statement, queue, task, search, plan.row)
            if tried is not None:
                search.add(tried)
            else:
                search.kept.setdefault(plan.row, {})
        return False

    def _carry_out(self, statement: Statement, queue: Queue, job: Job, task: Task, plan: PreemptionPlan) -> str:
        """Evicts the victims and pipelines the pod. The obstacle, with nothing left behind, else ""."""
        session = self._session
        node = session.nodes.nodes[plan.row]
        mark = len(statement)
        self._shortfalls[task.uid] = plan.shortfall
        lacking = shortfall_text(session, (task, plan.shortfall))
        message = f"{self._scope.action}: {lacking} on node {node.name} for {task.key} of queue {queue.name}"
        obstacle = "predicates"
        try:
            self._evict(statement, plan.units, queue, task, message)
            if self._fits(queue, task, plan.row):
                statement.pipeline(job, [task], [node])
                victims = [unit.tasks[0] for unit in plan.units]
                if not self._scope.is_preempted_back(session, statement, job, task, node, victims):
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
            chosen = minimal_set(search.units(row, task, None), fits_without)
        finally:
            statement.rollback(mark)
        if chosen is None:
            return None
        return search.priced(row, chosen, search.shortfall(row), tried=True)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _commit(self, statement: Statement, queue: Queue, job: Job) -> None:
        session = self._session
        victims, promises = statement.evicted, statement.pipelined
        begun = len(session.evictions)
        statement.commit()
        self._commits += 1
        self._end_statement(undone=False)
        nominations.nominate(session, promises, victims, self._scope.action, self._seconds)
        session.drop_preemption_report(job, self._scope.action)
        self._report(queue, promises, victims, begun)

    def _report(self, queue: Queue, promises: list[Placement], victims: list[Task], begun: int) -> None:
        """Events on the jobs of the victims and on the preemptor, and the records for `explain`."""
        session = self._session
        by_pod: dict[str, list[Task]] = {}
        of_job: dict[str, list[Task]] = {}
        takers: dict[str, str] = {}
        for victim, intent in zip(victims, session.evictions[begun:], strict=True):
            by_pod.setdefault(intent.by, []).append(victim)
            assert victim.job is not None
            of_job.setdefault(victim.job.key, []).append(victim)
            takers.setdefault(victim.job.key, intent.by)
            evicted = EvictedPod(victim.name, intent.node, self._scope.action, intent.by, intent.queue, session.now)
            session.carry_over.remember_eviction(victim.job.key, evicted)
        for key in sorted(of_job):
            members = of_job[key]
            first = members[0].job
            assert first is not None
            session.touch(key)
            if not first.implicit:
                message = reasons.GROUP_EVICTED.render(
                    action=self._scope.action, pods=len(members), by=takers[key], queue=queue.name
                )
                session.notice(first, reasons.GROUP_EVICTED, message)
        row = self._scope.success
        served = {
            task: node.name
            for placement in promises
            for task, node in zip(placement.tasks, placement.nodes, strict=True)
            if task.key in by_pod
        }
        for task, node in served.items():
            session.notice(task, row, self._beneficiary_text(row, {task: node}, by_pod[task.key]))
        job = next((task.job for task in served), None)
        if job is not None and not job.implicit:
            session.notice(job, row, self._beneficiary_text(row, served, victims))

    def _beneficiary_text(self, row: reasons.Reason, served: Mapping[Task, str], victims: Sequence[Task]) -> str:
        """The text of an event about the pods of a job (to their nodes) that the evictions serve."""
        names = sorted({victim.job.key for victim in victims if victim.job is not None})
        lacking = shortfall_text(self._session, *((task, self._shortfalls[task.uid]) for task in served))
        return row.render(
            pods=len(victims), jobs=len(names), node=", ".join(sorted(set(served.values()))), names=", ".join(names),
            lacking=lacking,
        )  # fmt: skip

    def _explain(self, queue: Queue, job: Job, task: Task) -> None:
        """Records the candidates of an unplaced pod and the causes that protect them."""
        session, action = self._session, self._scope.action
        if action in session.preemption_reports.get(job.key, {}):
            return
        search = self._searches.get(self._key(queue, job, task))
        if search is None:
            return  # a quota or a check of the pod itself refused, and that is recorded
        if search.known_report is None or search.known_report[0] != self._commits:
            search.known_report = self._commits, *search.report(task)
        _, kept, not_enough = search.known_report
        considered = VictimsConsidered(
            action, task.name, len(session.nodes), tuple(sorted(kept.items(), key=lambda entry: (-entry[1], entry[0]))),
            not_enough,
        )  # fmt: skip
        session.report_preemption(job, considered)
        failure = self._scope.failure
        if failure is not None:
            causes = f": {considered.text}" if considered.text else ""
            message = failure.render(nodes=considered.nodes, causes=causes)
            refusal = Refusal(self._scope.hook, "", failure.code, message, queue=queue.name, event=True)
            self._refuse(job, task, refusal)

    def _refuse(self, job: Job, task: Task, refusal: Refusal) -> None:
        """Refuses the pod. An unchanged job keeps its refusal; pod and figures are refreshed at intervals."""
        session, carry_over = self._session, self._session.carry_over
        uid, before, refresh_at = carry_over.reclaim_refusals.get(job.key, ("", refusal, 0.0))
        changed = session.changed.everything or job.key in session.changed.jobs
        if uid in job.pending and session.now < refresh_at and not changed:
            session.refuse(job.pending[uid], before)
            return
        carry_over.keep_reclaim_refusal(job.key, task.uid, refusal, session.now + REFRESH_SECONDS)
        session.refuse(task, before if uid == task.uid and before == refusal else refusal)
