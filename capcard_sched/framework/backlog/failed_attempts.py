"""Failed attempts that remain valid: waiting jobs that a session skips because none of their inputs changed.

An attempt to place a job reads the job, the books of its queue, the static results of the nodes for its classes, and
free resources. While all of these are unchanged, or changed only for the worse, another attempt fails in the same way.
A record is dropped, and its job attempted again, when

- the job changed,
- the allocation version of its queue changed (hook `allocation_version`), and its failure reads more of it than that
  the quotas admit its pods (`QueueBooks`),
- a node has capacity for more pods of one of its classes, and the sum over all nodes reaches what the job needs; of
  pods with ResourceClaims that have devices of single nodes only, devices that are free count, too (hook `most_pods`),
- the nodes have capacity for fewer pods than those that were placed before a quota refused the next one,
- a ResourceClaim of its pods changed, or it has some and a ResourceSlice, DeviceClass or taint rule changed,
- a static result or a signature context of one of its classes changed,
- a plugin's wakeup was reached, or its events are to be repeated.

Evictions for a skipped job are searched only while they may help it (`EvictionBounds`), and a failed search is not
repeated until one of its inputs changes (`FailedSearches`).

A job refused at admission has a record, too, which remains valid while the admission version of its group is the same
(`RefusedAdmissions`). The checks run per queue, group and class, never per job: a session costs what changed.
"""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.framework.api.dispatch import HookFailed, run_hook
from capcard_sched.framework.api.node_view import NodeView
from capcard_sched.framework.api.plugin import Reads
from capcard_sched.framework.backlog.class_fits import ClassFit, FitChange
from capcard_sched.framework.backlog.eviction_bounds import EvictionBounds, Skipped
from capcard_sched.framework.backlog.queue_books import (
    AllocationVersion,
    CapacityShortage,
    QueueBooks,
    RefusedAdmissions,
)
from capcard_sched.model.status import PodGroupPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from capcard_sched.framework.api.dispatch import Dispatch
    from capcard_sched.framework.api.node_view import PodSignature, Rows
    from capcard_sched.framework.backlog.class_fits import MostPods
    from capcard_sched.framework.backlog.failed_searches import EvictionHook, EvictionInputs, FailedSearches
    from capcard_sched.framework.backlog.queue_books import AdmissionVersion
    from capcard_sched.framework.backlog.task_outcome import TaskOutcome
    from capcard_sched.framework.placement.signature_cache import SignatureCache
    from capcard_sched.model.intents import ObjectRef
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.state.cluster import ClusterState

#: Maximum number of classes with counts per node; jobs of further classes are attempted in every session.
_MAX_CLASSES = 512
#: The pods needed by a job that failed for want of more than free resources: any change of a node may help it.
_ANY_CHANGE = 0


class PlacementFailure(NamedTuple):
    """A failed attempt of the running session."""

    job: Job
    #: Pods of each signature that did not fit, 0 where any change of a node counts; negative: pods that fit, where
    #: fewer count.
    shortages: Mapping[PodSignature, int]
    #: The allocation version of the queue at the attempt; None for none.
    version: AllocationVersion | None


class _Need(NamedTuple):
    """A class of pods that a job lacks nodes for."""

    key: Hashable
    #: Pods of the class that the job needs.
    pods: int
    #: One of them.
    sample: Task


class FailedAttempt(NamedTuple):
    """The record of one job."""

    job: Job
    queue: str
    #: The classes of its failure; None for a job refused at admission.
    needs: tuple[_Need, ...] | None
    #: Keys of the ResourceClaims of its pending pods.
    claims: frozenset[str]
    #: Unix seconds at which the job is attempted again.
    expires: float
    #: The outcomes of its tasks, by uid, and the refusals of the attempt.
    outcomes: dict[str, TaskOutcome]
    refusals: dict[tuple[ObjectRef, str], Refusal]


class _Class:
    """A class in a context, with the jobs that wait for it."""

    __slots__ = ("fit", "sample", "waiting")

    def __init__(self, fit: ClassFit, sample: Task) -> None:
        self.fit = fit
        #: A waiting task of the class.
        self.sample = sample
        #: Pods needed to the keys of the jobs.
        self.waiting: dict[int, set[str]] = {}


class FailedAttempts:
    """The records of all skipped jobs. They are not among the active jobs of the state.

    B1 at 200 nodes and 400 gangs, one new pod: 2.2 ms; 48 ms where each session attempts every job.
    """

    def __init__(self, state: ClusterState, dispatch: Dispatch) -> None:
        self._state = state
        self._dispatch = dispatch
        depends_on_time = Reads.CLOCK in dispatch.reads
        self._is_supported = dispatch.has_allocation_versions and not depends_on_time
        self._skips_refused = dispatch.has_admission_versions and not depends_on_time
        self._admissions = RefusedAdmissions()
        self._books = QueueBooks()
        #: What evictions may do for the skipped jobs.
        self._evictions = EvictionBounds(state, dispatch, self._books)
        self._records: dict[str, FailedAttempt] = {}
        self._classes: dict[Hashable, _Class] = {}
        #: Key of a ResourceClaim to the keys of the jobs that wait with it.
        self._by_claim: dict[str, set[str]] = {}
        self._expiries: list[tuple[float, str]] = []
        self._is_disabled = False
        #: Whether some pod terminates: only then attempts count leaving pods as gone.
        self._is_releasing = False
        self._cache: SignatureCache | None = None
        self._access_version: Callable[[Queue], Hashable] | None = None
        #: The outcomes of the tasks of skipped jobs, by uid.
        self.outcomes: dict[str, TaskOutcome] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Job]:
        return (record.job for record in self._records.values())

    def get(self, key: str) -> FailedAttempt | None:
        return self._records.get(key)

    def disable(self) -> None:
        """Record nothing from now on: further sessions attempt every job."""
        self._is_disabled = True

    @property
    def refused_queues(self) -> set[str]:
        """Queues with a skipped job in phase Pending."""
        return self._admissions.queues

    # --- opening a session ------------------------------------------------------------------------------------------

    def open(
        self,
        cache: SignatureCache,
        now: float,
        access_version: Callable[[Queue], Hashable],
        admission_version: Callable[[Job], AdmissionVersion | None],
        admits: Callable[[Job, int, int], bool],
        *,
        changed_jobs: Iterable[str],
        changed_devices: AbstractSet[str],
        everything: bool,
    ) -> None:
        """Drops the records that no longer hold; their jobs are active again. Raises nothing.

        `access_version`: of a queue's rules on jobs; `admission_version`: of a job's votes; `admits` as `quotas_admit`;
        `changed_devices` as of `Changes.devices`; `everything`: all records.
        """
        self._cache, self._access_version = cache, access_version
        is_releasing, self._is_releasing = self._is_releasing, bool(self._state.nodes.releasing.any())
        self._evictions.searches.open()
        if not self._records:
            return
        if everything:
            self.drop_all()
            return
        self._evictions.note_changes(changed_jobs)
        for key in changed_jobs:
            self._drop(key)  # the state decides whether a changed job is active
        self._wake_users(changed_devices)
        while self._expiries and self._expiries[0][0] <= now:
            expires, key = heappop(self._expiries)
            record = self._records.get(key)
            if record is not None and record.expires == expires:
                self._wake(key)
        try:
            self._check_classes(cache, recount=is_releasing != self._is_releasing)
            for key in self._books.outdated(self._version_of, partial(self._admits, admits)):
                self._wake(key)
            for key in list(self._admissions.outdated(admission_version)):
                self._wake(key)
        except HookFailed:
            self.drop_all()  # the attempts report the failure

    def _version_of(self, name: str) -> AllocationVersion | None:
        queue = self._state.queues.get(name)
        return None if queue is None else self.version(queue)

    def _admits(self, admits: Callable[[Job, int, int], bool], key: str, shortage: CapacityShortage) -> bool:
        return admits(self._records[key].job, shortage.needed, self._classes[shortage.cls].fit.total)

    def _wake_users(self, changed: AbstractSet[str]) -> None:
        """Attempts the jobs with changed ResourceClaims again; all with claims after a change of another object."""
        users = self._by_claim
        names = changed & users.keys() if not any(map(_is_no_claim, changed)) else set(users)
        for key in sorted({key for name in names for key in users[name]}):
            self._wake(key)

    def _check_classes(self, cache: SignatureCache, *, recount: bool) -> None:
        """`recount`: whether leaving pods counted as gone at the last check, and do not now, or the reverse."""
        table = self._state.nodes
        changed: dict[int, Rows] = {}
        for key in list(self._classes):
            entry = self._classes.get(key)
            if entry is None:
                continue
            fit, task = entry.fit, entry.sample
            job = task.job
            queue = self._state.queues.get(job.queue) if job is not None else None
            signature = None if queue is None else cache.intern(task.cls, cache.contexts(queue, task))
            if signature is None or _class_key(signature, task) != key:
                self._wake_class(key, everything=True)
                continue
            is_bounded, fit.most = fit.most is not None, self._most_pods(signature)
            if is_bounded != (fit.most is not None):
                self._wake_class(key, everything=True)
                continue
            feasible, _ = cache.static_results(signature)
            if not fit.is_current(table, feasible) or (recount and is_bounded):
                change = fit.rebuild(table, feasible)
            else:
                if fit.serial == table.serial:
                    continue
                rows = changed.get(fit.serial)
                if rows is None:
                    rows = changed[fit.serial] = (table.stamps > fit.serial).nonzero()[0]
                change = fit.update(table, rows)
            if change is not FitChange.NONE:
                self._wake_class(key, is_more=change is FitChange.MORE)

    # --- the records ------------------------------------------------------------------------------------------------

    def add(
        self,
        failure: PlacementFailure,
        expires: float,
        outcomes: dict[str, TaskOutcome],
        refusals: dict[tuple[ObjectRef, str], Refusal],
        evictions: Callable[[Job], Mapping[EvictionHook, Mapping[PodSignature, int] | None]],
    ) -> None:
        """Records a failed attempt at the end of its session, unless its queue changed since.

        `evictions` returns the kinds of eviction that the job may try, with the needs as of `EvictionBounds.add`.
        """
        job, needs, version = failure
        queue = self._state.queues.get(job.queue)
        if (
            self._is_disabled
            or version is None
            or queue is None
            or self.version(queue) != version
            or self._cache is None
            or len(self._classes) + len(needs) > _MAX_CLASSES
        ):
            return
        fresh: dict[Hashable, _Class] = {}
        found: list[_Need] = []
        for signature, (key, needed, sample) in _by_class(job, needs).items():
            entry = self._classes.get(key)
            try:
                fit = self._fit_of(signature) if entry is None else entry.fit
            except HookFailed:
                return  # the next attempt reports the failure
            count = needed
            # Node states change without a change of their node, and so do devices in an attempt.
            is_by_amounts = not self._dispatch.has("node_state") and fit.most is None
            if needed < 0:
                if not is_by_amounts or fit.total < -needed:
                    return
            elif needed <= fit.total:  # more than free resources is missing
                if not is_by_amounts:
                    return
                count = _ANY_CHANGE
            if entry is None:
                fresh[key] = _Class(fit, sample)
            found.append(_Need(key, count, sample))
        self._classes.update(fresh)
        for need in found:
            self._classes[need.key].waiting.setdefault(need.pods, set()).add(job.key)
        self._keep(FailedAttempt(job, job.queue, tuple(found), _claims_of(job), expires, outcomes, refusals))
        is_limited = any(outcome.refusal is not None for outcome in outcomes.values()) or any(
            hook != "reclaimable" for _, hook in refusals
        )
        shortage = None
        if not is_limited and len(found) == 1 and found[0].pods != _ANY_CHANGE and self._is_of_one_class(job):
            shortage = CapacityShortage(found[0].key, found[0].pods)
        self._books.add(job.key, version, shortage)
        for hook, classes in evictions(job).items():
            self._evictions.add(hook, job, self._cache, classes)

    def _is_of_one_class(self, job: Job) -> bool:
        """Whether all pending pods have the same signature."""
        assert self._cache is not None
        queue = self._state.queues[job.queue]
        samples = {(task.cls, id(task.labels)): task for task in job.pending.values()}.values()
        first, *others = [self._cache.intern(task.cls, self._cache.contexts(queue, task)).row_key for task in samples]
        return all(other == first for other in others)

    def may_evict(self, hook: EvictionHook, changed_jobs: Iterable[str], inputs: EvictionInputs) -> Skipped:
        """The skipped jobs that may evict. `changed_jobs`: keys of those that changed in this session.

        A skipped job that changed lost pods to an earlier action: it may evict now.
        """
        if self._cache is None:
            return Skipped([], {})
        changed = set(changed_jobs)
        found = self._evictions.skipped(hook, self._cache, changed, inputs)
        return found._replace(promising=sorted({*found.promising, *(changed & self._records.keys())}))

    @property
    def searches(self) -> FailedSearches:
        return self._evictions.searches

    def end_evictions(self, hook: EvictionHook, *, evicted: bool) -> None:
        """Ends an action; `evicted`: the session evicts pods."""
        if evicted:
            self.searches.forget_fresh(hook)
        else:
            self._evictions.note_no_eviction()

    def is_hopeless(self, hook: EvictionHook, job: Job, signature: PodSignature, needed: int) -> bool:
        """Whether evictions cannot help an active job that needs pods of one signature; call `may_evict` first."""
        return self._cache is not None and self._evictions.is_hopeless(hook, job, self._cache, signature, needed)

    def add_refused(
        self,
        job: Job,
        version: AdmissionVersion,
        admission_version: Callable[[Job], AdmissionVersion | None],
        expires: float,
        outcomes: dict[str, TaskOutcome],
        refusals: dict[tuple[ObjectRef, str], Refusal],
    ) -> None:
        """Records a refusal at admission at the end of its session, unless its `version` changed since."""
        queue = self._state.queues.get(job.queue)
        if self._is_disabled:
            return
        if self._skips_refused and queue is not None and not queue.strict_fifo and admission_version(job) == version:
            self._keep(FailedAttempt(job, job.queue, None, _claims_of(job), expires, outcomes, refusals))
            self._admissions.add(job, version, admission_version)

    def _keep(self, record: FailedAttempt) -> None:
        key = record.job.key
        self._records[key] = record
        for claim in record.claims:
            self._by_claim.setdefault(claim, set()).add(key)
        heappush(self._expiries, (record.expires, key))
        self.outcomes |= record.outcomes
        self._state.active.pop(key, None)

    def _fit_of(self, signature: PodSignature) -> ClassFit:
        assert self._cache is not None
        feasible, _ = self._cache.static_results(signature)
        most = self._most_pods(signature)
        return ClassFit(signature.cls, signature.contexts, self._state.nodes, feasible, most=most)

    def _most_pods(self, signature: PodSignature) -> MostPods | None:
        """The bound on the pods of a signature beside amounts. May raise HookFailed."""
        table, future = self._state.nodes, self._is_releasing
        for plugin, call in self._dispatch.entries("most_pods") if signature.cls.claims else ():
            most = call(signature)
            if most is not None:
                return lambda rows: run_hook(plugin, "most_pods", most, NodeView(table, rows, future=future))
        return None

    def drop(self, job: Job) -> None:
        """Drops the record of a job that this session changed."""
        self._wake(job.key)

    def drop_all(self) -> None:
        """Drops every record; all jobs are active again."""
        for key in list(self._records):
            self._wake(key)
        self._expiries.clear()

    def _wake(self, key: str) -> None:
        record = self._drop(key)
        if record is not None:
            job = self._state.schedulable.get(key)
            if job is not None and (job.pending or job.phase is PodGroupPhase.PENDING):
                self._state.active[key] = job

    def _wake_class(self, key: Hashable, *, is_more: bool = False, everything: bool = False) -> None:
        """Attempts the jobs again that a change of the nodes of a class concerns; `is_more`: some node fits more."""
        entry = self._classes[key]
        waiting, total = entry.waiting, entry.fit.total
        for count in sorted(waiting):
            is_concerned = total < -count if count < 0 else count == _ANY_CHANGE or (is_more and count <= total)
            if everything or is_concerned:
                for job_key in sorted(waiting.get(count, ())):
                    self._wake(job_key)

    def _drop(self, key: str) -> FailedAttempt | None:
        record = self._records.pop(key, None)
        if record is None:
            return None
        for uid in record.outcomes:
            self.outcomes.pop(uid, None)
        if record.needs is None:
            self._admissions.discard(key)
            return record
        for claim in record.claims:
            self._by_claim[claim].discard(key)
            if not self._by_claim[claim]:
                del self._by_claim[claim]
        self._evictions.discard(key, record.queue)
        self._books.discard(key)
        for class_key, count, _ in record.needs:
            entry = self._classes[class_key]
            keys = entry.waiting[count]
            keys.discard(key)
            if not keys:
                del entry.waiting[count]
            if not entry.waiting:
                del self._classes[class_key]
            elif entry.sample.job is record.job:
                other = self._records[next(iter(next(iter(entry.waiting.values()))))]
                entry.sample = next(need.sample for need in other.needs or () if need.key == class_key)
        return record

    def version(self, queue: Queue) -> AllocationVersion | None:
        """The allocation versions of all plugins for a queue; None when no failure of its jobs can be kept."""
        if not self._is_supported or self._access_version is None:
            return None
        found: tuple[Hashable, ...] = self._dispatch.keys("allocation_version", queue)
        return None if None in found else AllocationVersion(queue.name, self._access_version(queue), found)


def _class_key(signature: PodSignature, task: Task) -> Hashable:
    """The class of a pod: pods with other names of generated claims are of one; contexts of claims follow the queue."""
    return (signature.row_key, task.job.queue) if signature.cls.claims and task.job is not None else signature.row_key


def _by_class(job: Job, needs: Mapping[PodSignature, int]) -> dict[PodSignature, _Need]:
    """One signature of each class, with what the job needs of the class."""
    samples = {task.cls: task for task in reversed([*job.pending.values()])}
    found: dict[Hashable, tuple[PodSignature, _Need]] = {}
    for signature, needed in needs.items():
        sample = samples[signature.cls]
        key = _class_key(signature, sample)
        known = found.get(key)
        if known is None or known[1].pods < needed:
            found[key] = signature, _Need(key, needed, sample)
    return dict(found.values())


def _claims_of(job: Job) -> frozenset[str]:
    """The keys of the ResourceClaims of the pending pods."""
    with_claims = [task for task in job.pending.values() if task.cls.claims]
    return frozenset(f"{task.namespace}/{each.claim}" for task in with_claims for each in task.cls.claims if each.claim)


def _is_no_claim(name: str) -> bool:
    """Of `Changes.devices`: the kind and name of another object than a ResourceClaim."""
    return " " in name
