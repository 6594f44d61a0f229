"""Heaps of jobs and queues by sort keys, and the rounds of actions over them.

Keys are computed when an element is pushed. A key that depends on shares is fresh again after the element was pushed
back; between pushes it is as old as the push, as in Volcano.
"""

from __future__ import annotations

from functools import cache
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.backlog.failed_searches import EvictionInputs, SearchVersion
from capcard_sched.framework.session.session_deadline import Deferral
from capcard_sched.model import reasons
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from capcard_sched.framework.backlog.eviction_bounds import Skipped
    from capcard_sched.framework.backlog.failed_searches import EvictionHook, RepeatedSearch
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.reasons import Reason

Item = TypeVar("Item")


class KeyHeap(Generic[Item]):
    """A heap of items by key; equal keys keep their push order (keys end in a name, so they differ)."""

    __slots__ = ("_entries", "_pushes", "key", "last")

    def __init__(self, key: Callable[[Item], tuple[Any, ...]]) -> None:
        self.key = key
        #: The key of the last popped item.
        self.last: tuple[Any, ...] = ()
        self._entries: list[tuple[tuple[Any, ...], int, Item]] = []
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, item: Item, key: tuple[Any, ...] | None = None) -> None:
        """Adds an item under its current key, or under that of an earlier time. O(log n)."""
        self._pushes += 1
        heappush(self._entries, (self.key(item) if key is None else key, self._pushes, item))

    def __iter__(self) -> Iterator[Item]:
        """The items in their order, whatever the order of their pushes. O(n log n)."""
        return (entry[2] for entry in sorted(self._entries))

    def pop(self) -> Item:
        """Removes and returns the first item. O(log n). IndexError when empty."""
        self.last, _, item = heappop(self._entries)
        return item


class _Later(NamedTuple):
    """Skipped jobs, and the keys of their queues before the first attempt."""

    skipped: Skipped
    enters: Callable[[Job], bool]
    queue_keys: Mapping[str, tuple[Any, ...]]


class Rounds:
    """Jobs by queue: the best queue first, in it the best job.

    A job or queue whose key hook fails is skipped and reported. The jobs of a queue beyond its share of the session
    deadline are deferred: in the next session they precede the jobs that were tried, except in a strict FIFO queue.
    Those of a namespace beyond a bound precede the tried ones of such namespaces; jobs of others keep their order.
    """

    __slots__ = ("_action", "_attempted", "_deferred", "_held", "_hook", "_jobs", "_later", "_queues", "_session")

    def __init__(self, session: Session, action: str, hook: str = "") -> None:
        """`action`: its name; `hook`: the hook of the refusal that deferred jobs get, "" for none."""
        self._session = session
        self._action, self._hook = action, hook
        #: Deferred jobs of the last session, by queue.
        self._deferred = session.carry_over.pop_deferrals(action)
        #: Keys of the jobs tried so far, by queue.
        self._attempted: dict[str, list[str]] = {}
        #: By queue, jobs of namespaces beyond a bound of searches or comparisons.
        self._held: dict[str, list[Job]] = {}
        self._jobs: dict[str, KeyHeap[Job]] = {}
        self._queues: KeyHeap[Queue] = KeyHeap(session.queue_key)
        #: Jobs that take part once the session evicts; None when they do, or when there are none.
        self._later: _Later | None = None

    def __bool__(self) -> bool:
        return len(self._queues) > 0

    def add(self, job: Job) -> None:
        """Adds a job, and its queue with it."""
        if job.queue not in self._jobs:
            queue = self._session.queues[job.queue]
            self._jobs[job.queue] = KeyHeap(self._key_of_jobs(queue))
            self.push_queue(queue)
        self.push_job(job)

    def _key_of_jobs(self, queue: Queue) -> Callable[[Job], tuple[Any, ...]]:
        deferred, job_key = self._deferred.get(queue.name), self._session.job_key
        if deferred is None or queue.strict_fifo:
            return job_key
        tried = deferred.tried
        return lambda job: (tried.get(job.key, 0), *job_key(job))

    def add_later(self, skipped: Skipped, enters: Callable[[Job], bool]) -> None:
        """Adds skipped jobs for which `enters` is true once the session evicts (`note_evictions`): at their places."""
        session = self._session
        keys = {}
        for queue in [session.queues[name] for name in skipped.others if name in session.queues]:
            key = session.results.guarded(queue, session.queue_key)
            if key is not None:
                keys[queue.name] = key
        self._later = _Later(skipped, enters, keys)
        self.note_evictions(None)

    def note_evictions(self, current: Queue | None) -> None:
        """Adds the jobs of `add_later` once the session has evicted, except those before the last attempt.

        `current`: the queue of the last attempt, None before the first. What comes before it failed, or would have.
        """
        session, later = self._session, self._later
        if later is None or not session.results.evictions:
            return
        self._later = None
        known, waiting = set(later.skipped.promising), {queue.name for queue in self._queues}
        for name, start in later.queue_keys.items():
            own = current is not None and name == current.name
            heap = self._jobs.get(name)
            if (
                current is not None
                and not own
                and name not in waiting
                and (heap is not None or start < self._queues.last)
            ):
                continue
            jobs = [session.jobs[key] for key in later.skipped.others[name] if key not in known and key in session.jobs]
            jobs = [job for job in jobs if later.enters(job)]
            if own and heap is not None:
                jobs = [job for job in jobs if heap.key(job) > heap.last]
            if jobs and heap is None:
                queue = session.queues[name]
                self._jobs[name] = KeyHeap(self._key_of_jobs(queue))
                self._queues.push(queue, start)
            for job in jobs:
                self.push_job(job)

    def push_job(self, job: Job) -> None:
        self._session.results.guarded(job, self._jobs[job.queue].push)

    def push_queue(self, queue: Queue) -> None:
        self._session.results.guarded(queue, self._queues.push)

    def pop_queue(self) -> tuple[Queue, KeyHeap[Job]]:
        """The best queue and its jobs. IndexError when no queue is left."""
        queue = self._queues.pop()
        return queue, self._jobs[queue.name]

    def pop_job(self, queue: Queue) -> Job | None:
        """The best job of a queue, to be tried now. None beyond the queue's share: its jobs are deferred.

        Jobs of a namespace beyond a bound of searches or comparisons are passed over, and deferred with the last job.
        IndexError when no job is left.
        """
        waiting = self._jobs[queue.name]
        deadline, work = self._session.deadline, self._session.namespace_work
        if deadline.may_defer and not deadline.allows_attempt(queue.name):
            self._defer(queue, waiting)
            return None
        job = waiting.pop()
        if work.is_enabled:
            held = self._held.setdefault(queue.name, [])
            while not work.allows_attempt(job):
                held.append(job)
                if queue.strict_fifo or not waiting:
                    self._defer(queue, waiting, of_namespaces=True)
                    return None
                job = waiting.pop()
            if held and not waiting:
                self._attempted.setdefault(queue.name, []).append(job.key)
                self._defer(queue, waiting, of_namespaces=True)
                return job
        if deadline.may_defer or work.is_enabled:
            self._attempted.setdefault(queue.name, []).append(job.key)
        return job

    def _defer(self, queue: Queue, waiting: KeyHeap[Job], *, of_namespaces: bool = False) -> None:
        """Leaves jobs to the next session: those that wait behind the queue's share, and the held ones.

        `of_namespaces`: the held ones alone; in a strict FIFO queue others wait behind them, in their order.
        """
        session, known = self._session, self._deferred.get(queue.name)
        attempted = self._attempted.get(queue.name, ())
        order = dict.fromkeys(known.tried if known is not None else ())
        for key in attempted:
            order.pop(key, None)
            order[key] = None
        refusal = self._refusal(reasons.SESSION_DEADLINE, queue) if known is None else known.refusal
        since_change = frozenset(attempted)
        if known is not None and not session.changed:
            since_change |= known.since_change
        held, jobs = self._held.pop(queue.name, ()), session.jobs
        beyond_bounds = {job.namespace for job in held}
        behind = [
            key for key in order if key in jobs and not (of_namespaces and jobs[key].namespace not in beyond_bounds)
        ]
        tried = {key: position for position, key in enumerate(behind, 1)}
        session.carry_over.defer(self._action, queue.name, Deferral(refusal, tried, since_change))
        beyond = ((job, self._refusal(session.namespace_work.reason(job), queue)) for job in held)
        for job, reason in chain(beyond, ((job, refusal) for job in waiting)):
            if job.key not in since_change:
                session.results.report.leave_unfinished()
            if self._hook and job.key not in order:
                session.results.refuse(job, reason)
            if self._hook:
                session.results.explain_pending(job, reason)

    def _refusal(self, row: Reason, queue: Queue) -> Refusal:
        message = row.render(queue=queue.name)
        return Refusal(self._hook, "", row.code, message, queue=queue.name, in_order=True)


def contenders(
    session: Session,
    action: str,
    may: Callable[[Job], bool],
    hook: EvictionHook,
    repeat: Callable[[Job, Sequence[int]], RepeatedSearch | None],
) -> Rounds:
    """The admitted, valid jobs with pending tasks, not blocked by the head of their queue, for which `may` is true.

    Skipped jobs that evictions cannot help take part once the session evicts: they may use what others free. `repeat`
    searches victims for a skipped job on some rows only, as of `EvictionInputs`.
    """
    rounds = Rounds(session, action)

    def enters(job: Job) -> bool:
        if session.is_pending_phase(job) or job.key in session.results.blocked_by_head:
            return False
        return session.results.guarded(job, lambda job: session.job_valid(job) is None and may(job)) or False

    def repeats(job: Job) -> bool:
        try:
            return not session.results.evictions and session.repeats_failed_evictions(job, hook)
        except Exception:  # noqa: BLE001 - the attempt reports what a plugin raises
            return False

    placed = (placement.job.key for placement in session.results.report.placements)
    changed_jobs = chain(session.state.changes.jobs, placed)
    skipped, jobs = session.failed_attempts.may_evict(hook, changed_jobs, _inputs(session, hook, repeat)), session.jobs
    repeating: dict[str, dict[str, object]] = {}
    for job in session.to_attempt():
        if not enters(job):
            continue
        if repeats(job):
            repeating.setdefault(job.queue, {})[job.key] = None
        else:
            rounds.add(job)
    for key in skipped.promising:
        if key in jobs and enters(jobs[key]):
            rounds.add(jobs[key])
    later = {name: {**skipped.others.get(name, {}), **keys} for name, keys in repeating.items()}
    rounds.add_later(skipped._replace(others={**skipped.others, **later}), enters)
    return rounds


def _inputs(
    session: Session, hook: EvictionHook, repeat: Callable[[Job, Sequence[int]], RepeatedSearch | None]
) -> EvictionInputs:
    """The books that searches for victims read now. A session that evicted already repeats no search."""
    dispatch, queues = session.dispatch, session.queues
    across = hook == "reclaimable"
    # The states of devices are more than nodes and pods.
    versions = dispatch.eviction_versions(hook)
    is_known = versions is not None and not dispatch.has("node_state") and not session.results.evictions
    is_known = is_known and (len(session.failed_attempts) > 0 or any(True for _ in session.to_attempt()))

    def books(name: str, role: str) -> Hashable:
        found: list[Hashable] = [queues[name].priority]
        for _, call in versions or ():
            version = call(hook, queues[name], role)
            if version is None:
                return None
            found.append(version)
        return tuple(found)

    try:
        names = sorted(name for name, queue in queues.items() if queue.reclaimable and queue.allocated.any())
        victims = {name: books(name, "victim") for name in names} if is_known and across else {}
        is_known = is_known and None not in victims.values()
    except HookFailed:  # the attempt reports what a plugin raises
        is_known, victims = False, {}
    # The keys of pods whose eviction was refused a short time ago, and the amounts from which shares follow.
    common = session.snapshot.total.tobytes(), frozenset(session.carry_over.refused_evictions)

    @cache
    def version(name: str) -> SearchVersion | None:
        if not is_known or name not in queues:
            return None
        try:
            roles = ("preemptor",) if across else ("preemptor", "victim")
            allocation, found = session.failed_attempts.version(queues[name]), [books(name, role) for role in roles]
            ranks(name)
        except HookFailed:
            return None
        if allocation is None or None in found:
            return None
        return SearchVersion(allocation, (*found, queues[name].reclaimable, *common))

    by_preemptor = dispatch.has("victim_queue_order")

    @cache
    def ranks_for(name: str) -> tuple[str, ...]:
        found = session.victim_queue_ranks(victims, queues[name]) if victims else {}
        return tuple(sorted(found, key=found.__getitem__))

    def ranks(name: str) -> tuple[str, ...]:
        return ranks_for(name if by_preemptor else next(iter(victims), name))

    return EvictionInputs(version, victims, ranks, dispatch.has_victims_by_usage(hook), repeat)
