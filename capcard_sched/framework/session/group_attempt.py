"""One visit to a job with subgroups: the minimum of every level or nothing, then one further unit at a time.

Without a network topology the units are placed in order on the nodes that score best; where that fails, and wherever
subgroups have domains, `GroupPlan` decides which units start and where, and the pods are placed by score inside of
these domains, or exactly as planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.backlog.task_outcome import TaskOutcome
from capcard_sched.framework.session.gang_allocator import GangAllocator
from capcard_sched.framework.session.group_search import GroupSearch, PlannedUnit
from capcard_sched.framework.session.group_units import GroupUnit, units_of
from capcard_sched.model import reasons
from capcard_sched.model.quoting import plural
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.placement.engine import PlacementEngine
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.session.statement import Statement
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal

#: Plans of one visit whose placement fails for other reasons than amounts.
_MOST_PLANS: Final = 32
#: Subgroups of a waiting job that are tried alone, for their reason.
_MOST_EXPLAINED: Final = 16


class GroupAttempt:
    """One visit; its placements are on the statement afterwards."""

    def __init__(self, session: Session, statement: Statement, queue: Queue, job: Job, tasks: Sequence[Task]) -> None:
        """`tasks`: pending ones in task order."""
        self._session = session
        self._statement = statement
        self._queue = queue
        self._job = job
        self._tasks = tasks
        self._was_ready = session.job_ready(job)
        self._units = units_of(session, job, tasks)
        self._tried: set[GroupUnit] = set()
        #: Whether the failure depends only on the job, the books of its queue and the nodes.
        self._is_repeatable = not session.results.pipelined_tasks
        self._ended = False

    def run(self, *, alone: bool) -> bool:
        """Places what should be placed now. Returns whether to commit; the statement may be kept otherwise.

        `alone`: no other job waits, so that a ready job may place all its units in one visit.
        """
        for later in (False, True) if self._session.has_releasing() else (False,):
            placed = self._grow(alone=alone, later=later) if self._was_ready else self._start(later=later)
            if placed:
                return not later
        self._explain()
        return False

    def rest(self) -> list[Task]:
        """The tasks to return for after a commit: those of units that were not tried."""
        if self._was_ready:
            left = [unit for unit in (*self._units.groups, *self._units.singles) if unit not in self._tried]
            waiting = {task.uid for unit in left for task in unit.tasks}
            return [task for task in self._tasks if task.uid in waiting and task.status is TaskStatus.PENDING]
        return [task for task in self._tasks if task.status is TaskStatus.PENDING]

    def shortages(self) -> dict[PodSignature, int] | None:
        """As of `GangAllocator.shortages`: any change of a node may help."""
        return dict.fromkeys(self._session.pending_signatures(self._job), 0) if self._is_repeatable else None

    # --- starting ---------------------------------------------------------------------------------------------------

    def _start(self, *, later: bool) -> bool:
        """Places the minimum of every level. `later`: on capacity that is being released, too."""
        units = self._units
        if not self._job.has_topology:
            if self._start_in_order(later=later):
                return True
            self._statement.rollback(0)
        search = GroupSearch(self._session, self._queue, self._job, units, future=later)
        refusal = search.refusal()
        if refusal is not None:
            self._refuse(refusal)
            return False
        for _ in range(_MOST_PLANS):
            if self._session.deadline.is_exhausted(self._queue.name):
                self._is_repeatable = False
                break
            plan = search.start()
            if plan is None:
                break
            failed = self._carry_out(plan, later=later)
            if failed is None:
                return self._session.job_ready(self._job) or (later and self._session.job_pipelined(self._job))
            search.ban(failed, everywhere=self._is_refused(failed))
        self._ended = self._ended or search.ended
        return False

    def _start_in_order(self, *, later: bool) -> bool:
        """Places units in order, each where it scores best, until the job is ready."""
        session, job = self._session, self._job
        done = session.job_pipelined if later else session.job_ready
        engine = session.engine
        for unit in self._units.groups:
            if done(job):
                return True
            self._place(engine, unit, unit.tasks, later=later)
        roles = job.missing_of_roles()
        singles = [unit.tasks[0] for unit in self._singles_now()]
        singles.sort(key=lambda task: task.role not in roles)
        while singles and not done(job):
            lacking = max(1, job.missing_tasks - job.waiting_tasks)
            run = singles[:lacking]
            if not self._place(engine, GroupUnit(None, tuple(run), len(run), False, False), run, later=later):
                if len(run) == 1:
                    singles = singles[1:]
                    continue
                for task in run:
                    self._place(engine, GroupUnit(None, (task,), 1, False, False), (task,), later=later)
            singles = singles[len(run) :]
        return done(job)

    def _singles_now(self) -> list[GroupUnit]:
        """Single pods, those beyond the size of the subgroups that the statement completes included."""
        groups = self._job.groups
        assert groups is not None
        found = [*self._units.singles]
        for unit in self._units.groups:
            assert unit.group is not None
            if groups.ready_of(unit.group, pipelined=True) >= groups.size_of(unit.group):
                found += [
                    GroupUnit(unit.group, (task,), 1, completes=False, is_begun=True)
                    for task in unit.tasks
                    if task.status is TaskStatus.PENDING
                ]
        return found

    # --- growing ----------------------------------------------------------------------------------------------------

    def _grow(self, *, alone: bool, later: bool) -> bool:
        """Places the first unit that fits, or all that do (`alone`): subgroups, then single pods."""
        found = False
        for unit in self._units.groups:
            if found and (not alone or self._session.deadline.is_over(self._queue.name)):
                return True
            self._tried.add(unit)
            found = self._place_further(unit, later=later) or found
        if not later and (alone or not found):
            found = self._place_singles(alone=alone) or found
        return found

    def _place_singles(self, *, alone: bool) -> bool:
        """Places single pods as those of a job without subgroups, one or all of them (`alone`)."""
        singles, begin = self._units.singles, len(self._statement)
        if not singles:
            return False
        tasks = [unit.tasks[0] for unit in singles]
        trial = GangAllocator(self._session, self._statement, self._queue, self._job, tasks)
        self._tried.update(singles[: trial.run(alone=alone)])
        if trial.shortages is None:
            self._is_repeatable = False
        return len(self._statement) > begin

    def _place_further(self, unit: GroupUnit, *, later: bool) -> bool:
        """Places one unit of a ready job."""
        if not self._job.has_topology and self._place(self._session.engine, unit, unit.tasks, later=later):
            return True
        search = GroupSearch(self._session, self._queue, self._job, self._units, future=later)
        refusal = search.refusal()
        if refusal is not None:
            self._refuse(refusal)
            return False
        for _ in range(_MOST_PLANS):
            plan = search.further(unit)
            if plan is None:
                return False
            failed = self._carry_out(plan, later=later)
            if failed is None:
                return True
            search.ban(failed, everywhere=self._is_refused(failed))
        return False

    # --- placing ----------------------------------------------------------------------------------------------------

    def _place(self, engine: PlacementEngine, unit: GroupUnit, tasks: Sequence[Task], *, later: bool) -> bool:
        """Places the pods of a unit by score, all that it needs or none."""
        statement, before = self._statement, len(self._statement)
        trial = GangAllocator(self._session, statement, self._queue, self._job, tasks, engine, count=unit.need)
        trial.run(alone=False)
        if trial.shortages is None:
            self._is_repeatable = False
        if trial.placed == unit.need and (later or not statement.pipelines_since(before)):
            return True
        statement.rollback(before)
        self._share_refusal(tasks)
        return False

    def _share_refusal(self, tasks: Sequence[Task]) -> None:
        """Gives the refusal of one pod of a unit by a quota to all of them."""
        session = self._session
        found = next((one for task in tasks if (one := session.results.outcomes.get(task.uid)) and one.refusal), None)
        if found is None or found.refusal is None or len(tasks) < 2:
            return
        for task in tasks:
            session.results.set_outcome(task, found)
            session.results.refuse(task, found.refusal)

    def _carry_out(self, plan: Sequence[PlannedUnit], *, later: bool) -> PlannedUnit | None:
        """Places a plan: by score inside of each domain, else exactly. The unit that fails both ways, else None."""
        statement, session = self._statement, self._session
        begin = len(statement)
        failed = None
        for exactly in (False, True):
            for planned in plan:
                tasks = [task for task, _ in planned.pods]
                if exactly:
                    done = self._place_exactly(planned, later=later)
                else:
                    engine = session.engine
                    if planned.place >= 0:
                        engine = engine.restrict(planned.place, by_tree=True)
                    unit = planned.unit._replace(need=len(tasks))
                    done = self._place(engine, unit, tasks, later=later)
                if not done:
                    statement.rollback(begin)
                    failed = planned
                    break
            else:
                return None
            if self._is_refused(planned):
                break
        return failed

    def _place_exactly(self, planned: PlannedUnit, *, later: bool) -> bool:
        session, engine, statement = self._session, self._session.engine, self._statement
        self._is_repeatable = False
        for task, row in planned.pods:
            signature = engine.signature(self._queue, task)
            refusal = session.dispatch.refusal("pre_predicate", signature)
            if refusal is not None:
                session.results.set_outcome(task, TaskOutcome("unfit", refusal.message, refusal=refusal))
                return False
            grant = engine.quota_grant(self._queue, signature, [task])
            if grant.count <= 0:
                if grant.refusal is not None:
                    session.results.refuse(task, grant.refusal)
                    session.results.set_outcome(
                        task, TaskOutcome("refused", grant.refusal.message, refusal=grant.refusal)
                    )
                return False
            if grant.alternatives is not None and row not in grant.alternatives:
                return False
            node = session.nodes.nodes[row]
            if engine.fits(signature, row, future=False):
                statement.allocate(self._job, [task], [node])
            elif later and engine.fits(signature, row, future=True):
                statement.pipeline(self._job, [task], [node])
            else:
                return False
        return True

    def _is_refused(self, planned: PlannedUnit) -> bool:
        """Whether a quota, or a check before all nodes, refuses a pod of the unit."""
        outcomes = self._session.results.outcomes
        return any((one := outcomes.get(task.uid)) is not None and one.refusal is not None for task, _ in planned.pods)

    # --- reasons ----------------------------------------------------------------------------------------------------

    def _refuse(self, refusal: Refusal) -> None:
        session = self._session
        session.results.drop_outcomes(self._tasks)
        session.results.refuse(self._job, refusal)
        session.results.explain_pending(self._job, refusal)

    def _explain(self) -> None:
        """Gives a reason to the pods without one."""
        groups, session = self._job.groups, self._session
        assert groups is not None
        for group, tasks in self._units.incomplete.items():
            text = reasons.SUBGROUP_INCOMPLETE.render(
                policy=groups.policies[group.policy].name, found=groups.ready_of(group) + len(tasks),
                size=plural(groups.size_of(group), "pod"), subgroup="/".join(group.values),
            )  # fmt: skip
            for task in tasks:
                session.results.set_outcome(task, TaskOutcome("unfit", text))
        search = GroupSearch(session, self._queue, self._job, self._units, future=False)
        together: list[GroupUnit] = []
        for number, unit in enumerate(self._units.groups):
            unexplained = {task.uid for task in unit.tasks if session.results.outcomes.get(task.uid) is None}
            if not unexplained:
                continue
            is_tried = not self._was_ready and number < _MOST_EXPLAINED
            found = search.further(unit, together) if is_tried else None
            if found is not None:  # it waits for the other subgroups
                together.append(unit)
                for task, row in next((one.pods for one in found if one.unit is unit), ()):
                    if task.uid in unexplained:
                        node = session.nodes.nodes[row].name
                        session.results.set_outcome(task, TaskOutcome("schedulable", "", node))
                continue
            text = self._text_of(unit, search)
            fitting = self._most_of(unit, search, together) if is_tried else frozenset()
            for task in unit.tasks:
                if task.uid in unexplained:
                    outcome = TaskOutcome("unfit", text, fits_partly=task.uid in fitting)
                    session.results.set_outcome(task, outcome)

    @staticmethod
    def _most_of(unit: GroupUnit, search: GroupSearch, together: list[GroupUnit]) -> frozenset[str]:
        """The uids of as many pods of a subgroup as fit in one of its domains, beside the units `together`.

        They are added to these.
        """
        least, most, best = 1, unit.need - 1, None
        while least <= most:
            need = (least + most) // 2
            part = unit._replace(need=need)
            found = search.further(part, together)
            if found is None:
                most = need - 1
            else:
                best, least = (part, found), need + 1
        if best is None:
            return frozenset()
        together.append(best[0])
        return frozenset(task.uid for one in best[1] if one.unit is best[0] for task, _ in one.pods)

    def _text_of(self, unit: GroupUnit, search: GroupSearch) -> str:
        """The reason of a subgroup without nodes."""
        groups, group = self._job.groups, unit.group
        assert groups is not None
        assert group is not None
        if search.is_beyond(unit):
            return reasons.BEYOND_HYPER_NODES.text
        if self._ended:
            return reasons.SUBGROUP_SEARCH_ENDED.render()
        policy, name = groups.policies[group.policy].name, "/".join(group.values)
        return reasons.SUBGROUP_UNPLACED.render(policy=policy, subgroup=name, need=plural(unit.need, "pod"))
