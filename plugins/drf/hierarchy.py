"""Dominant shares, and hierarchical dominant resource fairness: a tree of queues with jobs as leaves.

Two annotations of a queue give its path and the weights along it; a queue without them is a child of the root with
weight 1. Only the queues with changed jobs and the groups above them are recomputed, and only when an order is read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import ResourceColumns, Vector

#: float64 [resource columns] or [rows, resource columns].
Floats = npt.NDArray[np.float64]

#: The slots of `Job.counts` of allocated and nominated tasks: ALLOCATED to RUNNING, adjacent.
_HOLDING = slice(int(TaskStatus.ALLOCATED), int(TaskStatus.RUNNING) + 1)


class Shares:
    """The cluster total as divisor.

    Resources with a total of 0 have no share. `pods` is a resource like any other: many tiny pods can be pod-dominant.
    """

    __slots__ = ("resources", "total", "total_or_inf")

    def __init__(self, total: Vector, resources: ResourceColumns) -> None:
        self.resources = resources
        #: int64 [resource columns].
        self.total = resources.fit(total).copy()
        #: float64 [resource columns]; infinity where the total is 0.
        self.total_or_inf: Floats = np.where(self.total > 0, self.total.astype(np.float64), np.inf)

    def is_of(self, total: Vector, resources: ResourceColumns) -> bool:
        return resources is self.resources and np.array_equal(self.total, resources.fit(total))

    def dominant(self, amounts: Vector | Floats) -> float:
        return float((amounts / self.total_or_inf).max())

    def dominants(self, rows: Floats) -> Floats:
        """The dominant share of each row: float64 [rows]."""
        if not len(rows):
            return np.zeros(0)
        result: Floats = (rows / self.total_or_inf).max(axis=1)
        return result


def held(job: Job, resources: ResourceColumns) -> Vector:
    """Requests of the job's allocated and nominated tasks: int64 [resource columns], read only.

    Nominated tasks (PIPELINED) count, so that a job cannot collect nominations at a share of 0.
    """
    allocated = resources.fit(job.allocated)
    if not job.counts[TaskStatus.PIPELINED]:
        return allocated
    total = allocated.copy()
    for task in job.tasks.values():
        if task.status is TaskStatus.PIPELINED:
            total += resources.fit(task.cls.request)
    return total


def holds_nothing(job: Job) -> bool:
    """Whether no task of the job is allocated or nominated. Cheap: called for every job in every session."""
    return not any(job.counts[_HOLDING])


PATH_ANNOTATION = "volcano.sh/hierarchy"
WEIGHTS_ANNOTATION = "volcano.sh/hierarchy-weights"


class Leaves:
    """The jobs of one queue: allocated and requested amounts of the jobs with usage, as rows."""

    __slots__ = ("allocated", "empty_jobs", "requested", "rows", "saturated", "shares", "total")

    def __init__(self, queue: Queue, shares: Shares, shifts: dict[str, Vector]) -> None:
        """`shifts`: amounts to add to the usage of a job, by job key, for trial evictions."""
        resources = shares.resources
        allocated: list[Vector] = []
        requested: list[Vector] = []
        #: Row of each job with usage, by key.
        self.rows: dict[str, int] = {}
        for key, job in queue.jobs.items():
            if holds_nothing(job) and key not in shifts:
                continue
            amounts = held(job, resources)
            if key in shifts:
                amounts = amounts + shifts[key]
            if amounts.any():
                self.rows[key] = len(allocated)
                allocated.append(amounts)
                requested.append(resources.fit(job.total_request))
        #: Number of jobs without usage; they are never saturated.
        self.empty_jobs = len(queue.jobs) - len(allocated)
        #: float64 [jobs with usage, resource columns].
        self.allocated = _rows(allocated, resources.width)
        #: float64 [resource columns]: the sum of `allocated`.
        self.total: Floats = self.allocated.sum(axis=0)
        self.requested = _rows(requested, resources.width)
        #: Dominant share per row, and whether the job is saturated.
        self.shares = shares.dominants(self.allocated)
        self.saturated: npt.NDArray[np.bool_] = np.zeros(len(allocated), dtype=bool)

    def saturate(self, demanding: npt.NDArray[np.bool_]) -> None:
        """A job is saturated when a resource it holds is fully granted or exhausted in the cluster."""
        self.saturated = _saturated(self.allocated, self.requested, demanding)

    def shift(self, row: int, amounts: Vector, shares: Shares, demanding: npt.NDArray[np.bool_]) -> None:
        """Add `amounts` to the usage of a row. A job without usage afterwards counts like one that never had any."""
        self.allocated[row] += amounts
        self.total = self.total + amounts
        part = slice(row, row + 1)
        self.shares[part] = shares.dominants(self.allocated[part])
        self.saturated[part] = _saturated(self.allocated[part], self.requested[part], demanding)


def _saturated(allocated: Floats, requested: Floats, demanding: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    granted = (allocated > 0) & (requested > 0) & ((allocated >= requested) | ~demanding)
    full: npt.NDArray[np.bool_] = np.any(granted, axis=1)
    return full


class Group:
    """A node of the tree. A queue is a group whose leaves are its jobs."""

    __slots__ = ("allocation", "children", "fresh", "leaves", "parent", "saturated", "share", "weight")

    def __init__(self, parent: Group | None, weight: float, width: int) -> None:
        self.parent = parent
        self.weight = weight
        self.children: dict[str, Group] = {}
        self.leaves: list[Leaves] = []
        #: float64 [resource columns]: the scaled usage of the group.
        self.allocation: Floats = np.zeros(width)
        self.share = 0.0
        self.saturated = True
        self.fresh = False

    def expire(self) -> None:
        """Mark this group and those above it stale."""
        group: Group | None = self
        while group is not None:
            group.fresh = False
            group = group.parent

    def compute(self, shares: Shares) -> None:
        """Recompute allocation, share and saturation, bottom-up.

        Each unsaturated child counts with the smallest share among them (`mdr`), so that children above it do not
        reduce the share left to their group.
        """
        if self.fresh:
            return
        for child in self.children.values():
            child.compute(shares)
        groups = [child for child in self.children.values() if child.share > 0]
        none = np.zeros(0)
        rows = np.vstack(
            [
                none.reshape(0, len(self.allocation)),
                *(x.allocated for x in self.leaves),
                *(g.allocation for g in groups),
            ]
        )
        row_shares = np.hstack([none, *(x.shares for x in self.leaves), *(g.share for g in groups)])
        full = np.hstack([none, *(x.saturated for x in self.leaves), *(g.saturated for g in groups)]).astype(bool)
        open_shares = row_shares[~full & (row_shares > 0)]
        mdr = min(1.0, float(open_shares.min())) if len(open_shares) else 1.0
        scale = np.where(full | (row_shares <= 0), 1.0, mdr / np.where(row_shares > 0, row_shares, 1.0))
        self.allocation = (rows * scale[:, None]).sum(axis=0)
        self.share = shares.dominant(self.allocation)
        self.saturated = (
            bool(full.all())
            and all(child.saturated for child in self.children.values())
            and not any(leaves.empty_jobs for leaves in self.leaves)
        )
        self.fresh = True


class Hierarchy:
    """The tree of all queues of the session."""

    def __init__(self) -> None:
        self._session: Session
        self._shares: Shares
        self._root: Group
        self._groups: dict[str, Group] = {}
        self._leaves: dict[str, Leaves] = {}
        #: Path and weights of each queue in the current tree.
        self._places: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = {}
        #: Queues with changed jobs.
        self._stale: set[str] = set()
        self._shifts: dict[str, Vector] = {}
        self._demanding: npt.NDArray[np.bool_] = np.zeros(0, dtype=bool)
        #: Usage of all jobs: float64 [resource columns].
        self._total: Floats = np.zeros(0)

    def refresh(self, session: Session, shares: Shares) -> None:
        """Start a session. Rebuilds the tree when a queue was added, removed or moved, or the cluster total changed."""
        self._session = session
        places = {name: _place(queue) for name, queue in session.queues.items()}
        changed = session.changed
        if places != self._places or changed.everything or shares is not getattr(self, "_shares", None):
            self._places = places
            self._shares = shares
            self._build()
        else:
            jobs = session.jobs
            self._stale.update(jobs[key].queue for key in changed.jobs if key in jobs)
            # A job that left a queue changes the number of its jobs.
            for name, queue in session.queues.items():
                if self._leaves_count(name) != len(queue.jobs):
                    self._stale.add(name)

    def touch(self, job: Job) -> None:
        """Mark the job's queue stale: its placements changed."""
        self._stale.add(job.queue)

    def key(self, queue: str) -> tuple[float, ...]:
        """Saturation and weighted share of each group from below the root to the queue; smaller goes first."""
        self._refresh_leaves()
        levels: list[float] = []
        group: Group | None = self._groups.get(queue)
        while group is not None and group.parent is not None:
            group.compute(self._shares)
            levels[:0] = (float(group.saturated), group.share / group.weight)
            group = group.parent
        return tuple(levels)

    def reclaim_victims(self, task: Task, reclaimer: Job, candidates: Sequence[Task]) -> list[Task]:
        """Candidates whose queue comes strictly after the reclaimer's once the reclaimer is placed.

        Victims add up: each candidate is examined without the victims before it.
        """
        resources = self._shares.resources
        self._shift(reclaimer, resources.fit(task.cls.request))
        tried = {reclaimer.key: reclaimer}
        victims = []
        for candidate in candidates:
            job = candidate.job
            if job is None or job.queue not in self._groups:
                continue
            tried[job.key] = job
            request = resources.fit(candidate.cls.request)
            self._shift(job, -request)
            ours, theirs = self.key(reclaimer.queue), self.key(job.queue)
            depth = min(len(ours), len(theirs))
            if ours[:depth] < theirs[:depth]:
                victims.append(candidate)
            else:
                self._shift(job, request)
        for job in tried.values():
            self._shift(job, -self._shifts[job.key])
        self._shifts.clear()
        return victims

    def _shift(self, job: Job, amounts: Vector) -> None:
        """Add `amounts` to the usage of a job on trial. O(1) for a job with usage, else its queue is reloaded."""
        self._refresh_leaves()
        before = self._shifts.get(job.key)
        self._shifts[job.key] = amounts if before is None else before + amounts
        leaves = self._leaves[job.queue]
        row = leaves.rows.get(job.key)
        if row is None:
            self._stale.add(job.queue)
            return
        self._total = self._total + amounts
        demanding = self._total < self._shares.total
        leaves.shift(row, amounts, self._shares, demanding)
        self._groups[job.queue].expire()
        if not np.array_equal(demanding, self._demanding):
            self._demand(demanding, self._leaves)

    def _demand(self, demanding: npt.NDArray[np.bool_], queues: Iterable[str]) -> None:
        self._demanding = demanding
        for name in queues:
            self._leaves[name].saturate(demanding)
            self._groups[name].expire()

    def _leaves_count(self, queue: str) -> int:
        leaves = self._leaves.get(queue)
        return -1 if leaves is None else len(leaves.shares) + leaves.empty_jobs

    def _build(self) -> None:
        width = self._shares.resources.width
        self._root = Group(None, 1.0, width)
        self._groups.clear()
        self._leaves.clear()
        for name in sorted(self._places):
            group = self._root
            for part, weight in zip(*self._places[name], strict=True):
                child = group.children.get(part)
                if child is None:
                    child = group.children[part] = Group(group, weight, width)
                group = child
            self._groups[name] = group
        self._demanding = np.zeros(0, dtype=bool)
        self._stale = set(self._places)

    def _refresh_leaves(self) -> None:
        """Reload the stale queues; recompute the saturation of all jobs when a resource became exhausted or free."""
        if not self._stale:
            return
        queues, shares = self._session.queues, self._shares
        moved = self._stale & self._groups.keys()
        self._stale = set()
        for name in sorted(moved):
            group, old = self._groups[name], self._leaves.get(name)
            leaves = self._leaves[name] = Leaves(queues[name], shares, self._shifts)
            if old is not None:
                group.leaves.remove(old)
            group.leaves.append(leaves)
            group.expire()
        self._total = np.sum([leaves.total for leaves in self._leaves.values()], axis=0)
        demanding = self._total < shares.total
        self._demand(demanding, moved if np.array_equal(demanding, self._demanding) else self._leaves)


def _rows(vectors: list[Vector], width: int) -> Floats:
    return np.array(vectors, dtype=np.float64) if vectors else np.zeros((0, width))


def _place(queue: Queue) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Group names and weights from below the root down to the queue."""
    text = queue.annotations.get(PATH_ANNOTATION, "")
    if not text:
        return (queue.name,), (1.0,)
    path = text.split("/")[1:]
    weights = [_weight(word) for word in queue.annotations.get(WEIGHTS_ANNOTATION, "").split("/")[1 : len(path) + 1]]
    return tuple(path), (*weights, *[1.0] * (len(path) - len(weights)))


def _weight(word: str) -> float:
    """The parsed weight; 1 for text that is not a number >= 1."""
    try:
        weight = float(word)
    except ValueError:
        return 1.0
    return weight if math.isfinite(weight) and weight >= 1 else 1.0
