"""Heaps of jobs and queues by sort keys, and the rounds of actions over them.

Keys are computed when an element is pushed. A key that depends on shares is fresh again after the element was pushed
back; between pushes it is as old as the push, as in Volcano.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job
    from capcard_sched.model.queue import Queue

Item = TypeVar("Item")


class KeyHeap(Generic[Item]):
    """A heap of items by key; equal keys keep their push order (keys end in a name, so they differ)."""

    __slots__ = ("_entries", "_key", "_pushes")

    def __init__(self, key: Callable[[Item], tuple[Any, ...]]) -> None:
        self._key = key
        self._entries: list[tuple[tuple[Any, ...], int, Item]] = []
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, item: Item) -> None:
        """Adds an item under its current key. O(log n)."""
        self._pushes += 1
        heappush(self._entries, (self._key(item), self._pushes, item))

    def __iter__(self) -> Iterator[Item]:
        """The items, in no particular order."""
        return (entry[2] for entry in self._entries)

    def pop(self) -> Item:
        """Removes and returns the first item. O(log n). IndexError when empty."""
        return heappop(self._entries)[2]


class Rounds:
    """Jobs by queue: the best queue first, in it the best job.

    A job or queue whose key hook fails is skipped and reported.
    """

    __slots__ = ("_jobs", "_queues", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._jobs: dict[str, KeyHeap[Job]] = {}
        self._queues: KeyHeap[Queue] = KeyHeap(session.queue_key)

    def __len__(self) -> int:
        """The number of queues to be popped."""
        return len(self._queues)

    def add(self, job: Job) -> None:
        """Adds a job, and its queue with it."""
        if job.queue not in self._jobs:
            self._jobs[job.queue] = KeyHeap(self._session.job_key)
            self.push_queue(self._session.queues[job.queue])
        self.push_job(job)

    def push_job(self, job: Job) -> None:
        """Pushes a job back."""
        try:
            self._jobs[job.queue].push(job)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._session.record_hook_error(job, error)

    def push_queue(self, queue: Queue) -> None:
        """Pushes a queue back."""
        try:
            self._queues.push(queue)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self._session.record_hook_error(queue, error)

    def pop_queue(self) -> tuple[Queue, KeyHeap[Job]]:
        """The best queue and its jobs. IndexError when no queue is left."""
        queue = self._queues.pop()
        return queue, self._jobs[queue.name]


def contenders(session: Session, may: Callable[[Job], bool]) -> Rounds:
    """The admitted, valid jobs with pending tasks, not blocked by the head of their queue, for which `may` is true."""
    rounds = Rounds(session)
    for job in session.with_pending_tasks():
        if session.is_pending_phase(job) or job.key in session.blocked_by_head:
            continue
        try:
            if session.job_valid(job) is None and may(job):
                rounds.add(job)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            session.record_hook_error(job, error)
    return rounds
