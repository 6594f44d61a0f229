"""The results of a session: outcomes, refusals, events, conditions and annotations, written at its close."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from capcard_sched.devices.selector_work import EvaluationsPostponedError
from capcard_sched.framework.api.dispatch import HookFailed, error_text
from capcard_sched.framework.api.plugin import OutsideError
from capcard_sched.framework.backlog.task_outcome import TaskOutcome
from capcard_sched.framework.session.report import WHOLE_SESSION, HookError, SessionReport
from capcard_sched.model import reasons
from capcard_sched.model.intents import ObjectRef, WriteConfigMap
from capcard_sched.model.job import Job, Task
from capcard_sched.model.namespace_queues import queue_ref
from capcard_sched.model.queue import Queue
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.backlog.failed_attempts import FailedAttempts
    from capcard_sched.framework.session.carry_over import CarryOver
    from capcard_sched.framework.session.session_deadline import QueueCut
    from capcard_sched.model.explanation import VictimsConsidered
    from capcard_sched.model.intents import Bind, Evict
    from capcard_sched.model.job import Node
    from capcard_sched.state.changes import Changes
    from capcard_sched.state.cluster import ClusterState

    Subject = Job | Task | Queue | Node

_S = TypeVar("_S", Job, Queue)
_T = TypeVar("_T")


class GroupCondition(NamedTuple):
    """A PodGroup condition to be set at close."""

    type: str
    reason: str
    message: str


class PendingEvent(NamedTuple):
    """An event that is not a refusal."""

    object: ObjectRef
    reason: reasons.Reason
    message: str
    component: str


def reference(subject: Subject) -> ObjectRef:
    """The Kubernetes object of a refusal or an event."""
    if isinstance(subject, Task):
        return ObjectRef("Pod", subject.namespace, subject.name, subject.uid)
    if isinstance(subject, Job):
        return ObjectRef("PodGroup", subject.namespace, subject.name, subject.uid)
    if isinstance(subject, Queue):
        return queue_ref(subject.name)
    return ObjectRef("Node", "", subject.name)


class SessionResults:
    """The results so far. Plugins and actions record them by method."""

    def __init__(
        self,
        state: ClusterState,
        changed: Changes,
        uid: str,
        carry_over: CarryOver,
        failed_attempts: FailedAttempts,
        on_commit: Callable[[list[Bind]], None] | None,
        cuts: Mapping[str, QueueCut],
    ) -> None:
        """`on_commit` gets the bindings of each gang at its commit; `cuts`: those of the session deadline."""
        self._state, self._changed = state, changed
        self._carry_over = carry_over
        self._failed_attempts = failed_attempts
        self.report = SessionReport(uid, cuts)
        self._outcomes: dict[str, TaskOutcome] = {}
        #: Outcomes of the last attempts by uid of the task.
        self.outcomes: Final[Mapping[str, TaskOutcome]] = self._outcomes
        #: The number of changes of outcomes: equal numbers, equal outcomes.
        self.outcome_changes = 0
        self._refusals: dict[tuple[ObjectRef, str], Refusal] = {}
        #: (object, hook) to the last refusal.
        self.refusals: Final[Mapping[tuple[ObjectRef, str], Refusal]] = self._refusals
        self._preemption_reports: dict[str, dict[str, VictimsConsidered]] = {}
        #: Key of a job to the result of its search for victims, by action.
        self.preemption_reports: Final[Mapping[str, Mapping[str, VictimsConsidered]]] = self._preemption_reports
        self._bound: list[str] = []
        #: Uids of the pods of these bindings, also after the close.
        self.bound: Final[Sequence[str]] = self._bound
        self._binds: list[Bind] = []
        #: All bindings decided so far; none after the close.
        self.binds: Final[Sequence[Bind]] = self._binds
        self._evictions: list[Evict] = []
        #: All evictions decided so far.
        self.evictions: Final[Sequence[Evict]] = self._evictions
        self._on_commit = on_commit
        #: The number of pipelined tasks, and the placements to be undone at close.
        self._pipelined_tasks = 0
        self._pipelines: list[Placement] = []
        #: Keys of the jobs with pipelined placements, as of the close.
        self.pipelined_jobs: frozenset[str] = frozenset()
        self._notices: list[PendingEvent] = []
        #: Events besides those of refusals.
        self.notices: Final[Sequence[PendingEvent]] = self._notices
        self._blocked_by_head: dict[str, str] = {}
        #: Keys of jobs blocked by the head of their strict FIFO queue, to that of the head.
        self.blocked_by_head: Final[Mapping[str, str]] = self._blocked_by_head
        self._conditions: dict[str, tuple[GroupCondition, ...]] = {}
        #: Jobs with equal conditions share them.
        self._equal_conditions: dict[tuple[GroupCondition, ...], tuple[GroupCondition, ...]] = {}
        #: Conditions to be set at close, by key of the job.
        self.conditions: Final[Mapping[str, Sequence[GroupCondition]]] = self._conditions
        self._queue_annotations: dict[str, dict[str, str | None]] = {}
        #: Annotations to be merged at close, by name of the queue.
        self.queue_annotations: Final[Mapping[str, Mapping[str, str | None]]] = self._queue_annotations
        self._node_annotations: dict[str, dict[str, str | None]] = {}
        #: Annotations to be merged at close, by name of the node.
        self.node_annotations: Final[Mapping[str, Mapping[str, str | None]]] = self._node_annotations
        self._config_map_writes: dict[tuple[str, str], WriteConfigMap] = {}
        #: ConfigMaps to be written at close, by namespace and name.
        self.config_map_writes: Final[Mapping[tuple[str, str], WriteConfigMap]] = self._config_map_writes
        #: A dict without values: 10,000 keys take 0.2 MiB, and in a set 0.5.
        self._touched_jobs: dict[str, None] = dict.fromkeys(changed.jobs)
        #: Keys of jobs that changed or were considered: the candidates for a new status.
        self.touched_jobs: Final[AbstractSet[str]] = self._touched_jobs.keys()
        if changed.everything:
            self._touched_jobs.update(dict.fromkeys(state.schedulable))

    # --- queries ----------------------------------------------------------------------------------------------------

    @property
    def pipelined_tasks(self) -> int:
        """The number of pipelined tasks."""
        return self._pipelined_tasks

    def outcome_of(self, uid: str) -> TaskOutcome | None:
        """The outcome of a task's last attempt, in this session or in an earlier one that still holds."""
        return self.outcomes.get(uid) or self._failed_attempts.outcomes.get(uid)

    def refusal_of(self, task: Task, hook: str) -> Refusal | None:
        """The refusal of a task by a hook, of this session or of an earlier one that still holds."""
        key = reference(task), hook
        refusal = self.refusals.get(key)
        if refusal is None and task.job is not None and (record := self._failed_attempts.get(task.job.key)) is not None:
            refusal = record.refusals.get(key)
        return refusal

    def refusals_of(self, job: Job) -> list[Refusal]:
        """The refusals of a job, of this session or of an earlier one that still hold."""
        record = self._failed_attempts.get(job.key)
        found = {**(record.refusals if record is not None else {}), **self.refusals}
        return [
            refusal
            for (ref, _), refusal in found.items()
            if ref.kind == "PodGroup" and ref.namespace == job.namespace and ref.name == job.name
        ]

    @property
    def unplaced(self) -> int:
        """The number of tasks that the last attempts did not place."""
        return len(self.outcomes) + len(self._failed_attempts.outcomes)

    def schedulable_pending(self, job: Job) -> int:
        """The number of pending tasks that had a node in an attempt that was undone."""
        outcomes = self.outcomes
        return sum(1 for uid in job.pending if (found := outcomes.get(uid)) is not None and found.kind == "schedulable")

    # --- decisions --------------------------------------------------------------------------------------------------

    def add_binds(self, binds: list[Bind]) -> None:
        """Adds the bindings of a gang and hands them over."""
        self._binds += binds
        self._bound += [bind.uid for bind in binds]
        if binds and self._on_commit is not None:
            self._on_commit(binds)

    def add_eviction(self, eviction: Evict) -> None:
        """Adds an eviction."""
        self._evictions.append(eviction)
        self.report.add_evicted(eviction.uid)

    def count_pipelined(self, tasks: int) -> None:
        """Counts tasks that were pipelined, or that no longer are (below 0)."""
        self._pipelined_tasks += tasks

    def keep_pipeline(self, placement: Placement) -> None:
        """Keeps a pipelined placement until the session closes."""
        self._pipelines.append(placement)

    def pop_pipelines(self) -> list[Placement]:
        """The kept placements, last first, which the caller undoes."""
        taken, self._pipelines = self._pipelines[::-1], []
        self.pipelined_jobs = frozenset(placement.job.key for placement in taken)
        return taken

    def report_preemption(self, job: Job, considered: VictimsConsidered) -> None:
        """Records the result of a search for victims that left a pod of the job unplaced."""
        self._preemption_reports.setdefault(job.key, {})[considered.action] = considered

    def drop_preemption_report(self, job: Job, action: str) -> None:
        """Drops the result of an earlier search of the job: the action evicts pods for it."""
        self._preemption_reports.get(job.key, {}).pop(action, None)

    def end(self) -> None:
        """Drops what only the close of the session reads: readers may keep a session until the next one."""
        self._conditions.clear()
        self._equal_conditions.clear()
        self._binds.clear()
        self._changed.jobs = set()

    # --- records ----------------------------------------------------------------------------------------------------

    def touch(self, *jobs: str) -> None:
        """Makes jobs, by key, candidates for a new status."""
        for key in jobs:
            self._touched_jobs[key] = None

    def set_outcome(self, task: Task, outcome: TaskOutcome) -> None:
        """Records the outcome of a task's attempt."""
        self._outcomes[task.uid] = outcome
        self.outcome_changes += 1

    def end_skipping(self, job: Job) -> None:
        """Has a skipped job that got nominations written now and attempted from the next session on.

        Its other pods keep the outcomes of its last attempt.
        """
        record = self._failed_attempts.get(job.key)
        if record is not None:
            for uid, outcome in record.outcomes.items():
                self._outcomes.setdefault(uid, outcome)
            self._failed_attempts.drop(job)
            self.outcome_changes += 1
            self.touch(job.key)

    def drop_outcomes(self, tasks: Iterable[Task]) -> None:
        """Drops the outcomes of tasks that were placed or are attempted again."""
        for task in tasks if self._outcomes else ():
            self._outcomes.pop(task.uid, None)
        self.outcome_changes += 1

    def withdraw_refusals(self, kept: int) -> None:
        """Drops the refusals behind the first `kept` ones of the report."""
        for ref, refusal in self.report.withdraw_refusals(kept):
            self._refusals.pop((ref, refusal.hook), None)

    def refuse(self, subject: Subject, refusal: Refusal) -> None:
        """Records a refusal of a job, task, queue or node. The last one per object and hook counts."""
        ref = reference(subject)
        self._refusals[ref, refusal.hook] = refusal
        self.report.add_refusal(ref, refusal)
        if isinstance(subject, Job) and not self._carry_over.repeats(ref, refusal):
            self.touch(subject.key)

    def explain_pending(self, job: Job, refusal: Refusal) -> None:
        """Gives the job's refusal to its pending tasks without an outcome of their own."""
        outcome = TaskOutcome("refused", refusal.message, refusal=refusal)
        for uid in job.pending:
            self._outcomes.setdefault(uid, outcome)
        self.outcome_changes += 1

    def mark_partly_fitting(self, uids: Iterable[str]) -> None:
        """Records pods that fit where most pods of their gang do. Pods without an outcome stay as they are."""
        for uid in uids:
            outcome = self._outcomes.get(uid)
            if outcome is not None:
                self._outcomes[uid] = msgspec.structs.replace(outcome, fits_partly=True)
        self.outcome_changes += 1

    def refuse_all(self, jobs: Iterable[Job], refusal: Refusal) -> None:
        """Records the same refusal for several jobs and their pending tasks."""
        for job in jobs:
            self.refuse(job, refusal)
            self.explain_pending(job, refusal)

    def refuse_behind_head(self, queue: Queue, first: Job, waiting: Iterable[Job], hook: str) -> None:
        """Strict FIFO: a blocked head blocks the jobs behind it. `hook`: the hook in which the head was blocked."""
        row = reasons.QUEUE_STRICT_FIFO
        message = row.render(queue=queue.name, job=first.key)
        jobs = list(waiting)
        self._blocked_by_head.update((job.key, first.key) for job in jobs)
        self.refuse_all(jobs, Refusal(hook, "", row.code, message, queue=queue.name, in_order=True))

    def notice(self, subject: Subject, reason: reasons.Reason, message: str, component: str = "") -> None:
        """Adds an event about an object; the core writes it once."""
        self.notice_about(reference(subject), reason, message, component)

    def notice_about(self, ref: ObjectRef, reason: reasons.Reason, message: str, component: str = "") -> None:
        """`notice` for an object that is no subject of the session."""
        self._notices.append(PendingEvent(ref, reason, message, component))

    def set_condition(self, job: Job, type: str, reason: str, message: str) -> None:
        """Sets a PodGroup condition to True at close; the opposite of Scheduled/Unschedulable becomes False."""
        conditions = *self._conditions.get(job.key, ()), GroupCondition(type, reason, message)
        self._conditions[job.key] = self._equal_conditions.setdefault(conditions, conditions)

    def annotate_node(self, node: Node, annotations: Mapping[str, str | None]) -> None:
        """Merges annotations into a node at close; None removes a key."""
        self._node_annotations.setdefault(node.name, {}).update(annotations)

    def annotate_queue(self, queue: Queue, annotations: Mapping[str, str | None]) -> None:
        """Merges annotations into a queue at close; None removes a key."""
        self._queue_annotations.setdefault(queue.name, {}).update(annotations)

    def write_config_map(self, namespace: str, name: str, data: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Creates a ConfigMap at close, or sets these keys and labels."""
        self._config_map_writes[namespace, name] = WriteConfigMap(namespace, name, dict(data), dict(labels))

    def guarded(self, subject: _S, call: Callable[[_S], _T]) -> _T | None:
        """The result of a call about one object; None when it fails, which is recorded."""
        try:
            return call(subject)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self.record_hook_error(subject, error)
            return None

    def record_failure(self, plugin: str, hook: str, error: Exception, where: str = WHOLE_SESSION) -> None:
        """Records a failure that is not about one object: of a hook, or of an action (`where`)."""
        self.report.add_error(HookError(plugin, hook, error_text(error), where))

    def _postpone(self, subject: Subject) -> None:
        """An attempt reached the bound of its namespace: the next session continues."""
        row = reasons.CLAIM_SELECTORS
        refusal = Refusal("allocatable", "", row.code, row.render(), in_order=True)
        self.report.leave_unfinished()
        self.refuse(subject, refusal)
        if isinstance(subject, Job):
            self.explain_pending(subject, refusal)

    def record_hook_error(self, subject: Subject, error: Exception) -> None:
        """Records a failure around one object; the session continues with the others."""
        plugin, hook = (error.plugin, error.hook) if isinstance(error, HookFailed) else ("", "")
        if hook in ("on_allocate", "on_deallocate"):
            self._state.changes.force_resync = True  # the plugin's sums may be wrong
        cause = error.error if isinstance(error, HookFailed) else error
        if isinstance(cause, EvaluationsPostponedError):
            self._postpone(subject)
            return
        text = error_text(error)
        ref = reference(subject)
        outside = isinstance(cause, OutsideError)
        self.report.add_error(HookError(plugin, hook, text, f"{ref.kind} {ref.namespace}/{ref.name}", outside))
        message = reasons.PLUGIN_FAILED.render(plugin=plugin or "framework", hook=hook or "session", error=text)
        self.refuse(
            subject,
            Refusal(hook or "session", plugin, reasons.PLUGIN_FAILED.code, message, event=True),
        )
