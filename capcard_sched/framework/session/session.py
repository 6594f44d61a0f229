"""A session: a snapshot of the cluster, the hooks of the plugins over it, and the decisions.

It offers hooks and queries, and holds no policy. `SessionCloser` writes conditions, statuses and events at its end.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from operator import lt
from typing import TYPE_CHECKING, Any, Final, TypeVar

from capcard_sched.framework.api.node_view import NodeView
from capcard_sched.framework.backlog.failed_attempts import FailedAttempts, PlacementFailure
from capcard_sched.framework.session.assumptions import Assumptions
from capcard_sched.framework.session.carry_over import REFRESH_SECONDS, AdmissionRefusal, CarryOver
from capcard_sched.framework.session.namespace_work import NamespaceWork
from capcard_sched.framework.session.pending_reasons import job_fit_text
from capcard_sched.framework.session.queue_access import QueueAccess
from capcard_sched.framework.session.results import SessionResults
from capcard_sched.framework.session.session_deadline import SessionDeadline
from capcard_sched.framework.session.snapshot import Snapshot
from capcard_sched.model.status import PHASE_INQUEUE, PHASE_PENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np

    from capcard_sched.framework.api.dispatch import Dispatch
    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.backlog.failed_searches import EvictionHook
    from capcard_sched.framework.placement.engine import PlacementEngine
    from capcard_sched.framework.placement.signature_cache import SignatureCache
    from capcard_sched.model.intents import Bind
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import ExceededLimit, Refusal
    from capcard_sched.model.task_class import DeviceAccounting
    from capcard_sched.state.changes import Changes
    from capcard_sched.state.cluster import ClusterState

    #: Called with a job whose attempt failed, before its placements are undone, and the engine of the attempt.
    FailureObserver = Callable[["Session", Job, PlacementEngine], None]

_T = TypeVar("_T")
_NO_INDEX = 1 << 62


class Session:
    """See the module docstring. Lives for one run of the actions."""

    def __init__(
        self,
        state: ClusterState,
        dispatch: Dispatch,
        engine: PlacementEngine,
        changed: Changes,
        *,
        uid: str,
        now: float,
        actions: tuple[str, ...],
        memory: CarryOver | None = None,
        failed_attempts: FailedAttempts | None = None,
        on_commit: Callable[[list[Bind]], None] | None = None,
        calls_webhooks: bool = False,
        deadline: SessionDeadline | None = None,
        observe_failure: FailureObserver = lambda *_: None,
    ) -> None:
        #: Transition id.
        self.uid = uid
        #: The tables of the cluster; those that most hooks read have their names here, too.
        self.snapshot: Final = Snapshot(state)
        self.state: Final = state
        self.resources: Final = self.snapshot.resources
        self.jobs: Final = self.snapshot.jobs
        self.queues: Final = self.snapshot.queues
        self.nodes: Final = self.snapshot.nodes
        #: The jobs that queues accept.
        self._queue_access = QueueAccess(self.snapshot, dispatch.plugins)
        #: Bounds the time of each queue's attempts.
        self.deadline = SessionDeadline() if deadline is None else deadline
        #: Bounds the searches and comparisons of each namespace.
        self.namespace_work: Final = NamespaceWork(
            state.claims.searches.failed, self.snapshot.devices.work, has_claims=bool(state.claims.claims)
        )
        devices = self.snapshot.devices
        devices.work.begin(devices.version, devices.count)
        #: The state that outlives the session.
        self.carry_over = CarryOver() if memory is None else memory
        #: The waiting jobs that this session skips.
        self.failed_attempts = FailedAttempts(state, dispatch) if failed_attempts is None else failed_attempts
        #: What the session decided and recorded so far.
        self.results: Final = SessionResults(
            state, changed, uid, self.carry_over, self.failed_attempts, on_commit, self.deadline.cuts
        )
        #: The assumptions under which quotas are read.
        self.assumptions: Final = Assumptions(self.carry_over)
        self.dispatch = dispatch
        self.engine = engine
        #: The changes since the last session: `.everything`, `.jobs`, `.queues`, `.nodes` (keys and names).
        self.changed = changed
        #: Unix seconds; names of the configured actions.
        self.now, self.actions = now, actions
        self._refused_jobs: dict[str, tuple[Job, tuple[object, ...]]] = {}
        #: By key, jobs refused at admission with the version of their votes: the next sessions may skip them.
        self.refused_jobs: Final[Mapping[str, tuple[Job, tuple[object, ...]]]] = self._refused_jobs
        #: Job key to the last text of `job_fit_error`, with the number of changes and the counts that it follows from.
        self._fit_texts: dict[str, tuple[tuple[int, tuple[int, ...]], str]] = {}
        self._failures: dict[str, PlacementFailure] = {}
        #: Failures of this session by job key: the next sessions may skip these jobs.
        self.failures: Final[Mapping[str, PlacementFailure]] = self._failures
        self.observe_failure: Final = observe_failure
        #: Whether plugins may call webhooks: not in trials, whose decisions are discarded.
        self.calls_webhooks: Final = calls_webhooks
        #: The eviction count of the last check of releasing tasks, and its result.
        self._coming: tuple[int, bool] | None = None
        self._made: dict[Callable[[Session], Any], Any] = {}

    # --- rows --------------------------------------------------------------------------------------------------------

    def rows(self, indices: np.ndarray[Any, Any]) -> NodeView:
        """A view of the nodes with these rows (intp [k])."""
        return NodeView(self.state.nodes, indices)

    def all_rows(self) -> NodeView:
        """A view of all nodes, by row."""
        return self.engine.all_rows()

    def account_devices(self, accounting: DeviceAccounting) -> None:
        """Count the devices of pods this way from now on; for the hook `prepare`."""
        if self.state.account_devices(accounting):
            self.changed.everything = True
            self.results.touch(*self.state.schedulable)
        self.snapshot.set_device_totals(accounting.totals)

    # --- orders -----------------------------------------------------------------------------------------------------

    def job_key(self, job: Job) -> tuple[Any, ...]:
        """Sort key of a job: plugins, then age, then key."""
        return (*self.dispatch.keys("job_order", job), job.created, job.key)

    def queue_key(self, queue: Queue) -> tuple[Any, ...]:
        """Sort key of a queue: plugins, then age, then name."""
        return (*self.dispatch.keys("queue_order", queue), queue.created, queue.name)

    def task_key(self, task: Task) -> tuple[Any, ...]:
        """Sort key of a task: plugins, then index in the name, age, uid."""
        index = task.index if task.index >= 0 else _NO_INDEX
        return (*self.dispatch.keys("task_order", task), index, task.created, task.uid)

    def pending_tasks(self, job: Job) -> list[Task]:
        """Pending tasks that are neither gated nor held, in task order, those that a role still needs first."""
        tasks = self._ordered_tasks(job)
        missing = job.missing_of_roles() if len(tasks) > 1 else {}
        if not missing:
            return tasks
        needed: list[Task] = []
        others: list[Task] = []
        for task in tasks:
            is_needed = missing.get(task.role, 0) > 0
            (needed if is_needed else others).append(task)
            if is_needed:
                missing[task.role] -= 1
        return needed + others

    def _ordered_tasks(self, job: Job) -> list[Task]:
        tasks = list(job.pending.values())
        if len(tasks) < 2:
            return tasks
        keys, indices = self.dispatch.keys_of("task_order", tasks), [task.index for task in tasks]
        keys = [own for own in keys if own.count(own[0]) < len(own)]
        if not keys and indices[0] >= 0 and all(map(lt, indices, indices[1:])):
            return tasks  # as they were created
        own = [(task.index if task.index >= 0 else _NO_INDEX, task.created, task.uid, task) for task in tasks]
        return [order[-1][-1] for order in sorted(zip(*keys, own, strict=True))]

    def victim_queue_ranks(self, names: Iterable[str], reclaimer: Queue) -> dict[str, int]:
        """The order in which queues lose pods to a reclaimer's: plugins, then the reverse of the queue order."""
        queues = [self.queues[name] for name in names]
        queues.sort(key=self.queue_key, reverse=True)
        if self.dispatch.has("victim_queue_order"):
            queues.sort(key=lambda queue: self.dispatch.keys("victim_queue_order", queue, reclaimer))
        return {queue.name: rank for rank, queue in enumerate(queues)}

    # --- hooks ------------------------------------------------------------------------------------------------------

    def job_ready(self, job: Job) -> bool:
        """Whether every plugin agrees that the gang may run."""
        return self.dispatch.all("job_ready", job)

    def job_pipelined(self, job: Job) -> bool:
        """Whether the gang reaches its minimum with pipelined tasks."""
        return self.dispatch.votes("job_pipelined", job)[0]

    def job_starving(self, job: Job) -> bool:
        """Whether the job may preempt: all votes of the first tier that has any."""
        return self.dispatch.first_tier_all("job_starving", job)

    def may_reclaim(self, job: Job) -> bool:
        """Whether the job may reclaim from other queues: by plugin, else when it is starving."""
        result = self.dispatch.first("may_reclaim", job)
        return self.job_starving(job) if result is None else bool(result)

    def job_valid(self, job: Job) -> Refusal | None:
        """The reason for not scheduling the job at all, or None."""
        return self._queue_access.refusal(job, "job_valid") or self.dispatch.refusal("job_valid", job)

    def exceeded_limit(self, job: Job) -> ExceededLimit | None:
        """The limit of a queue that the minimum of a waiting job exceeds, or that of the nodes: it can never start."""
        return None if job.is_ready() else self.dispatch.first("exceeded_limit", job) or job.node_limit

    def job_enqueueable(self, job: Job) -> tuple[bool, Refusal | None]:
        """Whether the job may leave phase Pending.

        A refusal is reused while its admission version is unchanged, and at most for some time while only its figures
        change: each change of a queue changes the figures of all its waiting jobs.
        """
        barred = self._queue_access.refusal(job, "job_enqueueable")
        if barred is not None:
            version = self.admission_version(job)
            if version is not None:
                self._refused_jobs[job.key] = job, version
            return False, barred
        known = self.carry_over.admissions.get(job.key)
        grounds = None if known is None else self.admission_version(job)
        if known is not None and grounds is not None and known.version == grounds:
            self._keep_refusal(job, known._replace(is_repeated=True))
            return False, known.refusal
        with self.assumptions.assume_admission():
            admitted, refusal = self.dispatch.votes("job_enqueueable", job)
        self.carry_over.drop_admission(job.key)
        if not admitted and refusal is not None:
            if grounds is None:
                grounds = self.admission_version(job)
            if grounds is None:
                return admitted, refusal
            unchanged = job.key not in self.changed.jobs and not self.changed.everything
            if known is not None and unchanged and self.now < known.refresh_at and known.refusal.is_like(refusal):
                self._keep_refusal(job, known._replace(version=grounds, is_repeated=True))
                return False, known.refusal
            self._keep_refusal(job, AdmissionRefusal(grounds, refusal, self.now + REFRESH_SECONDS, is_repeated=False))
        return admitted, refusal

    def _keep_refusal(self, job: Job, known: AdmissionRefusal) -> None:
        self.carry_over.keep_admission(job.key, known)
        self._refused_jobs[job.key] = job, known.version

    def admission_version(self, job: Job) -> tuple[object, ...] | None:
        """The value that the admission of a job follows from; None when some plugin declares none."""
        if not self.dispatch.has_admission_versions:
            return None
        barred = self._queue_access.refusal(job, "job_enqueueable")
        # Also of a job that its queue does not accept: limits that its minimum exceeds are reported all the same.
        grounds: list[object] = [job.uid, None if barred is None else barred.message]
        with self.assumptions.assume_admission():
            grounds += self.dispatch.keys("admission_version", job)
        return tuple(grounds) if None not in grounds[2:] else None

    def overused(self, queue: Queue) -> bool:
        """Whether some plugin reports that the queue has all it deserves."""
        return self.dispatch.any("overused", queue)

    def is_unserved(self, job: Job) -> bool:
        """Whether a tried job is neither ready nor pipelined."""
        return self.results.guarded(job, lambda job: not self.job_ready(job) and not self.job_pipelined(job)) or False

    def job_fit_error(self, job: Job) -> str:
        """The text of a job that is not ready; "" where nothing carries it out."""
        if self.carry_over.is_silent:
            return ""
        grounds = self.results.outcome_changes, tuple(job.counts)
        known = self._fit_texts.get(job.key)
        if known is None or known[0] != grounds:  # the condition and the event of a gang have the same text
            known = self._fit_texts[job.key] = grounds, job_fit_text(job, self.results.outcome_of, self.task_key)
        return known[1]

    def once(self, make: Callable[[Session], _T]) -> _T:
        """The object that `make` builds for this session: built at the first call, shared afterwards."""
        if make not in self._made:
            self._made[make] = make(self)
        found: _T = self._made[make]
        return found

    def skip_failed_attempts(
        self, cache: SignatureCache, admits: Callable[[Session, Job, int, int], bool], *, everything: bool
    ) -> None:
        """Has the session skip the jobs whose failed attempt is valid; `everything`: none of them. Raises nothing.

        `admits` as `quotas_admit`. Call it once, with the nominations renewed.
        """
        self.failed_attempts.open(
            cache,
            self.now,
            self._queue_access.version,
            self.admission_version,
            partial(admits, self),
            changed_jobs=self.changed.jobs,
            changed_devices=self.changed.devices,
            everything=everything,
        )

    def release(self) -> None:
        """Forget what `once` built, at the start of the next session: it refers to this session, a reference cycle."""
        self._made.clear()

    # --- phases -----------------------------------------------------------------------------------------------------

    def in_phase_pending(self) -> Iterable[Job]:
        """Jobs in phase Pending, skipped ones included. O(active and skipped jobs)."""
        return [job for job in self._waiting() if job.phase is PHASE_PENDING]

    def to_admit(self) -> Iterable[Job]:
        """Jobs in phase Pending that may be admitted now. O(active jobs)."""
        return [job for job in self.state.active.values() if job.phase is PHASE_PENDING]

    def with_pending_tasks(self) -> Iterable[Job]:
        """Jobs with pending tasks, skipped ones included. O(active and skipped jobs)."""
        return [job for job in self._waiting() if job.pending]

    def _waiting(self) -> Iterator[Job]:
        """Active jobs and skipped ones; a skipped job without its PodGroup has a record until a session visits it."""
        return (job for job in chain(self.state.active.values(), self.failed_attempts) if job.uid)

    def if_pods_wait(self, moment: float | None) -> float | None:
        """The moment of a wake-up that concerns pending pods only; None without any."""
        return moment if moment is not None and any(True for _ in self.with_pending_tasks()) else None

    def to_attempt(self) -> Iterable[Job]:
        """Jobs with pending tasks that may be placed now. O(active jobs)."""
        return [job for job in self.state.active.values() if job.pending]

    def note_failure(self, queue: Queue, job: Job, shortages: dict[PodSignature, int] | None) -> None:
        """Records that the job could not be placed for want of quota or capacity; `shortages`: those of the attempt.

        None, or a job that waits for its turn in a strict FIFO queue, is attempted again in the next session.
        """
        if shortages is None or queue.strict_fifo or job.pending_best_effort or job.has_topology:
            self._failures.pop(job.key, None)
        else:
            self._failures[job.key] = PlacementFailure(job, shortages, self.failed_attempts.version(queue))

    def eviction_needs(self, job: Job) -> dict[EvictionHook, dict[PodSignature, int] | None]:
        """The hooks of the evictions that a waiting job may try: its pending classes, each with the pods that it needs.

        One pod of each of several classes; None if its victims have no bound. May raise HookFailed.
        """
        actions: dict[EvictionHook, str] = {}
        if "preempt" in self.actions and self.job_starving(job):
            actions["preemptable"] = "preempt"
        if "reclaim" in self.actions and self.may_reclaim(job):
            actions["reclaimable"] = "reclaim"
        if not actions:
            return {}
        signatures = self.pending_signatures(job)
        needs = dict.fromkeys(signatures, self.needed_by_evictions(job) if len(signatures) == 1 else 1)
        deferred = self.carry_over.deferrals
        return {
            hook: None
            if job.queue in deferred.get(action, ()) or (action == "preempt" and job.allocated_tasks)
            else needs
            for hook, action in actions.items()
        }

    def pending_signatures(self, job: Job) -> list[PodSignature]:
        """The signatures of the pending tasks, in order of their first task."""
        queue, samples = self.queues[job.queue], {(task.cls, id(task.labels)): task for task in job.pending.values()}
        return list(dict.fromkeys(self.engine.signature(queue, task) for task in samples.values()))

    def needed_by_evictions(self, job: Job) -> int:
        """The pods that one success of an eviction attempt places."""
        return 1 if self.job_pipelined(job) else max(1, job.min_available - job.ready_tasks - job.waiting_tasks)

    def repeats_failed_evictions(self, job: Job, hook: EvictionHook) -> bool:
        """Whether an unchanged job of one class would find no victims again; its refusal is then repeated.

        For an active job, after `FailedAttempts.may_evict` and while the session evicts nothing. May raise HookFailed.
        """
        queue, refusal = self.queues[job.queue], None
        unchanged = not (self.changed.everything or job.key in self.changed.jobs or job.key in self.state.changes.jobs)
        if not unchanged or job.allocated_tasks or queue.strict_fifo or job.groups is not None:
            return False
        with self.assumptions.plan_nominations():
            signatures, task = self.pending_signatures(job), next(iter(job.pending.values()))
            if len(signatures) > 1:
                return False
            if hook == "reclaimable":
                uid, refusal, refresh_at = self.carry_over.reclaim_refusals.get(job.key, ("", None, 0.0))
                if uid not in job.pending or self.now >= refresh_at:
                    return False
                if any(self.dispatch.refusal(hook, queue, task) for hook in ("preemptive", "allocatable")):
                    return False
            if self.dispatch.refusal("pre_predicate", signatures[0]) is not None:
                return False
            if not self.failed_attempts.is_hopeless(hook, job, signatures[0], self.needed_by_evictions(job)):
                return False
        if refusal is not None:
            self.results.refuse(job.pending[uid], refusal)
        return True

    def enqueue(self, job: Job) -> None:
        """Moves the job from phase Pending to Inqueue."""
        job.phase = PHASE_INQUEUE
        self.results.report.add_enqueued(job.key)
        self.results.touch(job.key)
        self.state.changes.jobs.add(job.key)

    def requeue(self, job: Job) -> None:
        """Returns an admitted job to phase Pending; its reservation is free from the next session on."""
        self.failed_attempts.drop(job)
        job.phase = PHASE_PENDING
        self.results.touch(job.key)
        self.state.changes.jobs.add(job.key)
        self.state.active[job.key] = job
        self.results.report.add_requeued(job.key)

    def is_pending_phase(self, job: Job) -> bool:
        """Whether the job is in phase Pending."""
        return job.phase is PHASE_PENDING

    def has_releasing(self) -> bool:
        """Whether any task is releasing. O(nodes) once, and again after evictions.

        An eviction that was undone may still count; the search for its capacity then finds none.
        """
        known, releases = self._coming, self.engine.releases
        if known is None or known[0] != releases:
            known = self._coming = releases, bool(self.nodes.releasing.any())
        return known[1]
