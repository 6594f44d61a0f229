"""The drf plugin: hooks over `shares` and `hierarchy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.plugin import Placement, Plugin, Sample
from capcard_sched.plugins.drf.hierarchy import Hierarchy, Shares, held, holds_nothing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector

#: Share. Smaller differences count as equal in `preemptable`.
SHARE_DELTA = 1e-6


class Drf(Plugin):
    """The job with the smallest dominant share goes first; with `enableHierarchy` the queue tree decides too."""

    name = "drf"

    def setup(self) -> None:
        self._shares: Shares
        #: Dominant share by job key, of jobs with usage; absent until computed.
        self._job_shares: dict[str, float] = {}
        self._session: Session | None = None
        self._tree = Hierarchy() if self.hierarchy else None

    def open(self, session: Session) -> None:
        self._session = session
        changed = session.changed
        kept = not changed.everything and hasattr(self, "_shares")
        if kept and self._shares.is_of(session.snapshot.total, session.resources):
            for key in changed.jobs:
                self._job_shares.pop(key, None)
        else:
            self._shares = Shares(session.snapshot.total, session.resources)
            self._job_shares.clear()
        if self._tree is not None:
            self._tree.refresh(session, self._shares)

    def job_order(self, job: Job) -> float:
        return 0.0 if holds_nothing(job) else self._share(job)

    def queue_order(self, queue: Queue) -> tuple[float, ...]:
        """Empty, hence equal for all queues, without a hierarchy."""
        return () if self._tree is None else self._tree.key(queue.name)

    def preemptable(self, task: Task, candidates: Sequence[Task]) -> list[Task]:
        """Tasks of jobs whose share after the eviction is at least the preemptor's.

        Every candidate, victim or not, is subtracted from the usage of its job.
        """
        if task.job is None:
            return []
        shares, resources = self._shares, self._shares.resources
        preemptor = shares.dominant(held(task.job, resources) + resources.fit(task.cls.request))
        left: dict[str, Vector] = {}
        victims = []
        for candidate in candidates:
            job = candidate.job
            if job is None:
                continue
            rest = left.get(job.key)
            if rest is None:
                rest = left[job.key] = held(job, resources).copy()
            rest -= resources.fit(candidate.cls.request)
            if shares.dominant(rest) >= preemptor - SHARE_DELTA:
                victims.append(candidate)
        return victims

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> list[Task] | None:
        """Tasks whose queue still comes after the reclaimer's without them and the victims so far.

        Abstains without a hierarchy.
        """
        if self._tree is None:
            return None
        return [] if task.job is None else self._tree.reclaim_victims(task, task.job, candidates)

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[()] | None:
        """Empty: shares follow from the jobs and the cluster's total. None with a hierarchy, which reads all queues."""
        return () if self._tree is None else None

    def on_allocate(self, placement: Placement) -> None:
        self._refresh(placement.job)

    def on_deallocate(self, placement: Placement) -> None:
        self._refresh(placement.job)

    def metrics(self) -> Iterator[Sample]:
        """`job_share` of every job with usage; a job without a series has a share of 0."""
        jobs = () if self._session is None else self._session.jobs.values()
        for job in jobs:
            if not holds_nothing(job):
                yield Sample("job_share", {"job_ns": job.namespace, "job_id": job.name}, self._share(job))

    def _share(self, job: Job) -> float:
        share = self._job_shares.get(job.key)
        if share is None:
            share = self._job_shares[job.key] = self._shares.dominant(held(job, self._shares.resources))
        return share

    def _refresh(self, job: Job) -> None:
        self._job_shares.pop(job.key, None)
        if self._tree is not None:
            self._tree.touch(job)
