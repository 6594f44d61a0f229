"""Places the pending tasks of one job on a statement, in one visit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.backlog.task_outcome import TaskOutcome
from capcard_sched.model import reasons
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.placement.engine import PlacementEngine
    from capcard_sched.framework.placement.ranking import KnownLimit, Ranking
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.session.statement import Statement
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason


class GangAllocator:
    """One visit to a job: places as many of its tasks as should be placed now.

    Tasks are taken in task order, in runs of one signature. The queue's quotas admit a run, the placement engine places
    it, and the statement records it; every task that is not placed gets an outcome with the reason. `run` returns when
    the job has its share for now, or cannot get more.
    """

    def __init__(
        self,
        session: Session,
        statement: Statement,
        queue: Queue,
        job: Job,
        tasks: Sequence[Task],
        engine: PlacementEngine | None = None,
        *,
        explains: bool = True,
        count: int = 0,
    ) -> None:
        """`engine`: the session's own when it is None; `explains`: whether outcomes contain the reasons.

        `count`: places this number of the tasks, whatever the job needs, or as many as fit; 0: what the job needs.
        """
        self._session = session
        self._engine = session.engine if engine is None else engine
        self._explains = explains
        self._statement = statement
        self._queue = queue
        self._job = job
        self._tasks = tasks
        self._position = 0
        self._placed = 0
        #: Whether all results so far depend only on the amounts and static results of the nodes.
        self.by_amounts = True
        self._failed_roles: set[str] = set()
        self._placed_signatures: set[PodSignature] = set()
        #: Whether the choice of a node depended on more than the amounts of the nodes that the pod may use.
        self._chose_by_others = False
        #: Whether pods were placed at once that differ in names of generated claims.
        self._has_alike = False
        #: Whether the charge of a placed pod may depend on its node.
        self._charged_by_node = False
        #: See `shortages`.
        self._shortages: dict[PodSignature, int] | None = {} if not session.results.pipelined_tasks else None
        #: Signatures whose pods read more of nodes than amounts.
        self._unchecked: set[PodSignature] = set()
        #: Tasks without which the job does not start; any further one once it is ready.
        self._needed = count or max(1, job.missing_tasks)
        self._count = count
        #: The number of tasks that quotas admit, as far as they admit fewer than needed.
        self._reachable = self._needed
        #: Rows of this visit while it used a single signature; None once it used several.
        self._rows: list[int] | None = None if count else []

    @property
    def placed(self) -> int:
        return self._placed

    def run(self, *, alone: bool) -> int:
        """Places tasks. `alone`: no other job waits, so that an elastic job may place all its tasks in one visit.

        Returns the number of processed tasks; the rest is tried again after the visits of other jobs.
        """
        session, job, tasks = self._session, self._job, self._tasks
        while self._position < len(tasks) and not 0 < self._count <= self._placed:
            ready = not self._count and session.job_ready(job)
            if ready and self._placed and not alone:
                break
            if ready and self._position and session.deadline.is_over(self._queue.name):
                break
            if not ready and session.deadline.is_exhausted(self._queue.name):
                self._end_unfinished(reasons.ATTEMPT_TOO_LONG)
                break
            if self._position and session.namespace_work.is_exhausted(job):
                if not ready:
                    self._end_unfinished(session.namespace_work.reason(job))
                break
            signature = self._engine.signature(self._queue, tasks[self._position])
            if ready:
                most = len(tasks) if alone else 1
            elif self._count:
                most = self._count - self._placed
            else:
                most = max(1, job.missing_tasks) if self._placed else self._needed
            end = self._end_of_run(signature, most)
            if not self._place_run(signature, tasks[self._position : end], ready, most):
                break
        return self._position

    def try_rest(self) -> None:
        """Tries the tasks behind the one that ended a failed visit: their outcomes are part of what the gang lacks.

        The caller discards the statement afterwards, and has read `all_shortages` before.
        """
        session = self._session
        while self._position < len(self._tasks):
            if session.deadline.is_exhausted(self._queue.name) or session.namespace_work.is_exhausted(self._job):
                break
            signature = self._engine.signature(self._queue, self._tasks[self._position])
            most = len(self._tasks)
            end = self._end_of_run(signature, most)
            self._place_run(signature, self._tasks[self._position : end], ready=True, most=most)

    @property
    def shortages(self) -> dict[PodSignature, int] | None:
        """The pods of each signature that the job needs and that did not fit, 0 where any change counts.

        None when the failure depends on more than the job, the books of its queue, free resources and devices.
        """
        if self._shortages is not None and not all(map(self._is_bounded, self._unchecked)):
            self._shortages = None
        self._unchecked.clear()
        return self._shortages

    def all_shortages(self) -> dict[PodSignature, int] | None:
        """`shortages`, with the signatures that were placed: they are a part of the failure of those behind them.

        Quotas that refuse further pods of the only signature do so wherever the nodes hold as many pods as it placed:
        the negative count of these. Where choices depend on other nodes, the failure of several signatures does, too.
        """
        found = self.shortages
        if found is None:
            return None
        placed = self._placed_signatures - found.keys()
        if not found and len(placed) == 1 and not self._charged_by_node and not self._has_alike:
            return dict.fromkeys(placed, -self._placed)
        if self._chose_by_others and len({each.row_key for each in (*placed, *found)}) > 1:
            return None
        return {**found, **dict.fromkeys(placed, 0)}

    def _end_unfinished(self, row: Reason) -> None:
        """Gives up on the rest of the gang: the attempt reached a bound of the session."""
        refusal = Refusal("allocatable", "", row.code, row.render(), queue=self._queue.name, in_order=True)
        self._give_up(len(self._tasks), TaskOutcome("refused", refusal.message, refusal=refusal))
        self.by_amounts, self._shortages = False, None

    def _end_of_run(self, signature: PodSignature, limit: int) -> int:
        """The end of the run of up to `limit` tasks that share the signature."""
        tasks, position = self._tasks, self._position
        end, most, cls = position + 1, min(len(tasks), position + limit), signature.cls
        if end == most:
            return end
        contexts, queue, first, others = self._engine.contexts, self._queue, tasks[position], tasks[end:most]
        own: object = None
        if not [task for task in others if task.cls is not cls or task.labels is not first.labels]:
            return most
        for task in others:
            if task.cls is not cls:
                break
            if task.labels is not first.labels:  # else the contexts are equal, by contract
                own = contexts(queue, first) if own is None else own
                if contexts(queue, task) != own:
                    break
            end += 1
        return end

    def _place_run(self, signature: PodSignature, run: Sequence[Task], ready: bool, most: int) -> bool:
        """Places some of a run, and up to `most` pods with those alike behind it. False when the visit is over."""
        engine, job = self._engine, self._job
        refusal = self._session.dispatch.refusal("pre_predicate", signature)
        if refusal is not None:
            self._shortages = None
            return self._fail(signature, TaskOutcome("unfit", refusal.message, refusal=refusal))
        grant = engine.quota_grant(self._queue, signature, run)
        if grant.count <= 0:
            self._refuse(signature, grant.refusal)
            return True
        if grant.count < len(run):  # with more capacity the quota refuses the next task
            self._reachable = min(self._reachable, self._placed + grant.count)
        task = run[0]
        if task.nominated_node and self._place_nominated(signature, task):
            return True
        # A quota without the batch form sees each pod on its node before the next one.
        self._charged_by_node |= grant.alternatives is not None or grant.at_once == 1
        ranking = engine.ranking(signature) if engine.reads_amounts_only(signature) else None
        if ranking is None or ranking.is_per_node or self._is_idle_capacity_nominated():
            if not engine.fits_by_amounts(signature):
                self._unchecked.add(signature)
            if self._shortages is not None and self._is_idle_capacity_nominated():
                self._shortages = None
            return self._place_one(signature, task, most)
        known = None if ready or self._count else ranking.known_limit
        if known is not None and self._is_known_unschedulable(signature, known, run, grant.count):
            return False
        rows = ranking.take(min(grant.count, grant.at_once), grant.alternatives, grant.alternative_limits)
        if not rows:
            return self._pipeline_one(signature, task, ranking)
        if grant.alternatives is not None:
            self.by_amounts = False
        nodes = self._session.nodes.nodes
        self._statement.allocate(job, list(run[: len(rows)]), [nodes[row] for row in rows])
        ranking.applied()
        self._advance(signature, rows)
        return True

    def _advance(self, signature: PodSignature, rows: list[int]) -> None:
        self._position += len(rows)
        self._placed += len(rows)
        self._placed_signatures.add(signature)
        if len(self._placed_signatures) > 1:
            self._rows = None
        elif self._rows is not None:
            self._rows += rows

    def _put(
        self, place: Callable[[Job, list[Task], list[Node]], None], signature: PodSignature, task: Task, row: int
    ) -> bool:
        """Places one task by a method of the statement. True."""
        place(self._job, [task], [self._session.nodes.nodes[row]])
        self._placed_signatures.add(signature)
        self._rows = None
        self._position += 1
        self._placed += 1
        return True

    def _refuse(self, signature: PodSignature, refusal: Refusal | None) -> None:
        """Records the quota's refusal for all further tasks of the signature."""
        end = self._end_of_run(signature, len(self._tasks))
        if refusal is not None:
            if refusal.in_order:  # the next session tries again
                self.by_amounts, self._shortages = False, None
            for task in self._tasks[self._position : end]:
                self._session.results.refuse(task, refusal)
        self._give_up(end, TaskOutcome("refused", refusal.message if refusal is not None else "", refusal=refusal))

    def _place_nominated(self, signature: PodSignature, task: Task) -> bool:
        """Tries only the nominated node of the task; the task stays pipelined there while the nomination holds."""
        session = self._session
        node = session.nodes.by_name.get(task.nominated_node)
        if node is None:
            return False
        self._shortages = None
        if self._engine.fits(signature, node.row, future=False):
            place = self._statement.allocate
        elif task.uid in session.carry_over.nominations and self._engine.fits(signature, node.row, future=True):
            place = self._statement.pipeline
        else:
            return False
        self.by_amounts = False
        return self._put(place, signature, task, node.row)

    def _is_idle_capacity_nominated(self) -> bool:
        """Whether pipelined tasks hold more of a node than its releasing ones: idle capacity is then not free."""
        table = self._session.nodes
        return bool(self._session.results.pipelined_tasks and (table.pipelined > table.releasing).any())

    def _place_one(self, signature: PodSignature, task: Task, most: int) -> bool:
        """Places one pod: its nodes depend on each other or on nominations, or differ in more than amounts.

        With it up to `most` pods that differ in names of generated claims alone, where their nodes are known at once.
        """
        self.by_amounts = False
        alike = self._alike(task, most) if task.cls.alike else [task]
        rows = self._engine.best_rows(signature, len(alike))
        if not rows:
            return self._pipeline_one(signature, task, None)
        self._chose_by_others = True
        if len(rows) > 1 and (count := self._admitted_alike(signature, alike[: len(rows)])) > 1:
            nodes = self._session.nodes.nodes
            self._statement.allocate(self._job, alike[:count], [nodes[row] for row in rows[:count]])
            self._advance(signature, rows[:count])
            self._rows, self._has_alike = None, True
            return True
        return self._put(self._statement.allocate, signature, task, rows[0])

    def _alike(self, first: Task, most: int) -> list[Task]:
        """The next up to `most` tasks whose classes and labels differ in names of generated claims alone."""
        number, found = first.cls.alike, [first]
        most = min(most, self._engine.max_alike) if all(each.template for each in first.cls.claims) else 1
        for task in self._tasks[self._position + 1 : self._position + most]:
            if task.cls.alike != number or task.labels is not first.labels or task.nominated_node:
                break
            found.append(task)
        return found

    def _admitted_alike(self, signature: PodSignature, alike: Sequence[Task]) -> int:
        """How many of some tasks have claims of equal content, and quota beside each other."""
        if self._session.namespace_work.is_exhausted(self._job):
            return 1
        count = 1 + self._engine.count_alike(self._queue, signature, alike[1:])
        grant = self._engine.quota_grant(self._queue, signature, alike[:count]) if count > 1 else None
        return 1 if grant is None or grant.alternatives is not None else min(grant.count, grant.at_once)

    def _pipeline_one(self, signature: PodSignature, task: Task, ranking: Ranking | None) -> bool:
        """No idle capacity: pipelines the task on capacity that is being released, or gives up on the signature."""
        engine = self._engine
        if self._session.has_releasing():
            self.by_amounts = False
            row = engine.choose(signature, engine.candidates(signature, future=True), future=True)
            if row >= 0:
                return self._put(self._statement.pipeline, signature, task, row)
        text = engine.diagnose(signature)[0] if self._explains else ""
        self._note_shortage(signature)
        if ranking is not None and self._rows is not None and self._placed_signatures <= {signature}:
            ranking.known_limit = (self._rows, engine.releases, text)
        return self._fail(signature, TaskOutcome("unfit", text))

    # --- giving up --------------------------------------------------------------------------------------------------

    def _note_shortage(self, signature: PodSignature) -> None:
        if self.shortages is not None:
            alike = all(task.cls is signature.cls for task in self._tasks) or self._are_alike(signature)
            self.shortages[signature] = min(self._needed, self._reachable) if alike else 1

    def _are_alike(self, signature: PodSignature) -> bool:
        """Whether the pods differ from those of the signature in the names of generated claims alone."""
        number, rest = signature.cls.alike, self._tasks[self._position :]
        if not number or any(task.cls.alike != number for task in self._tasks):
            return False
        found = [*self._placed_signatures, *(self._engine.signature(self._queue, task) for task in rest)]
        return all(each.row_key == signature.row_key for each in (*found, *(self.shortages or ())))

    def _is_bounded(self, signature: PodSignature) -> bool:
        """Whether all that keeps pods with claims off the nodes is bounded (hook `most_pods`)."""
        entries = self._session.dispatch.entries("most_pods") if signature.cls.claims else ()
        return any(call(signature) is not None for _, call in entries)

    def _is_known_unschedulable(
        self, run_signature: PodSignature, known: KnownLimit, run: Sequence[Task], admitted: int
    ) -> bool:
        """Whether an earlier job of this session proved that the gang cannot reach its minimum.

        Only when all missing members have this one signature; they get the outcomes of a full attempt. Quotas admit
        `admitted` of them: where these fit, the quota refuses the next one.
        """
        rows, releases, text = known
        if self._placed or releases != self._engine.releases or self._session.has_releasing():
            return False
        needed = self._job.missing_tasks
        if len(run) < needed or len(rows) >= min(needed, admitted) or len(run) != len(self._tasks):
            return False
        self._note_shortage(run_signature)
        for task, row in zip(run, rows, strict=False):
            self._session.results.set_outcome(task, TaskOutcome("schedulable", "", self._session.nodes.nodes[row].name))
        self._position += len(rows)
        self._give_up(len(self._tasks), TaskOutcome("unfit", text))
        return True

    def _fail(self, signature: PodSignature, outcome: TaskOutcome) -> bool:
        """Records that no node fits the next tasks of the signature. Returns whether to try the rest of the job."""
        end = self._end_of_run(signature, len(self._tasks))
        self._failed_roles.update(task.role for task in self._tasks[self._position : end])
        self._give_up(end, outcome)
        rest = self._tasks[end:]
        if self._count:
            return self._placed + len(rest) >= self._count
        return bool(rest) and need_continue_allocating(self._job, self._failed_roles, rest)

    def _give_up(self, end: int, outcome: TaskOutcome) -> None:
        """Records the outcome of the tasks up to `end`, which are not placed."""
        for task in self._tasks[self._position : end]:
            self._session.results.set_outcome(task, outcome)
        self._position = end


def need_continue_allocating(job: Job, failed_roles: set[str], rest: Sequence[Task]) -> bool:
    """Whether the tasks behind one that does not fit are worth trying."""
    if job.min_available == len(job.tasks):
        return False
    ready = job.ready_tasks
    if job.min_task_member and not job.checks_roles:
        return ready + sum(1 for task in rest if task.role not in failed_roles) >= job.min_available
    if ready + job.waiting_tasks + job.pending_best_effort + len(rest) < job.min_available:
        return False
    return all(job.role_pipelined(role) >= job.min_task_member.get(role, 0) for role in failed_roles)
