"""Lower bounds of the eviction cost per node, for all nodes at once: the search for victims starts at the lowest.

Candidates are counted in the smallest units that can leave: one pod, or all members on a node of a gang that is evicted
whole. The table is built once per session; a search selects from it, and each row with enough capacity gets a bound
that no plan for the row undercuts. Where one unit is enough, the bound is the cost of the plan, unless a plugin
protects a pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from capcard_sched.model.resources import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN
from capcard_sched.model.status import EVICTABLE_STATUSES, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.resources import Matrix, Vector

#: The cost of a plan; lower is better. A bound is a prefix of a cost.
Cost: TypeAlias = tuple[float, ...]

LEAST = float("-inf")
#: More pods than any plan evicts.
_MANY = 1 << 40


class UnitColumns(NamedTuple):
    """The eviction units, in order of node row and then of priority, the lower first.

    Gangs as of the table's creation: they only shrink, so that no cost here is too high later.
    """

    #: intp [units]: node row, rank of queue and job priority, job number, queue number.
    rows: Rows
    ranks: Rows
    jobs: Rows
    queues: Rows
    #: bool [units]: would break a gang's minimum; all its pods run.
    breaks: Mask
    running: Mask
    #: intp [units]: pods that leave, on all nodes.
    sizes: Rows
    #: int64 [resources, units]: freed on the row, of that by the largest pod, and freed on all nodes.
    gains: Matrix
    peaks: Matrix
    totals: Matrix
    #: float64 [units]: creation of the oldest pod, Unix seconds.
    created: npt.NDArray[np.float64]


class UnitTable:
    """The units of a session, and the selection for a preemptor."""

    def __init__(
        self, session: Session, tasks: list[Task], rows: Rows, requests: Matrix, scope_of: Callable[[Job], str]
    ) -> None:
        """`tasks`: the candidates, with their `rows` (intp) and `requests` (int64 [candidates, resources]).

        `scope_of` returns the `evict_scope` of a job.
        """
        self._session = session
        jobs: list[Job] = []
        numbers: dict[str, int] = {}
        of_task = []
        for task in tasks:
            job = task.job
            assert job is not None
            number = numbers.get(job.key)
            if number is None:
                number = numbers[job.key] = len(jobs)
                jobs.append(job)
            of_task.append(number)
        self._numbers = numbers
        queues = session.queues
        known = sorted({(queues[job.queue].priority, job.priority) for job in jobs})
        #: (queue priority, job priority) by rank.
        self.priorities: list[tuple[int, int]] = known
        ranks = {priorities: rank for rank, priorities in enumerate(known)}
        self._queues = {name: number for number, name in enumerate(dict.fromkeys(job.queue for job in jobs))}
        #: bool [jobs]: whether any pod is left, after the first `_seen` evictions of the session.
        self._left: Mask = np.ones(len(jobs), dtype=bool)
        self._seen = 0
        scopes = [scope_of(job) for job in jobs]
        jobs_of = np.array(of_task, dtype=np.intp)
        job_ranks = np.array([ranks[queues[job.queue].priority, job.priority] for job in jobs], dtype=np.intp)
        count = len(jobs_of)
        slack = np.array([job.ready_tasks - job.min_available for job in jobs], dtype=np.intp)
        #: Whether the remaining members can only leave all at once.
        whole = np.array(
            [
                scope == "job" or (scope == "whole" and job.min_available > 1 and job.ready_tasks <= job.min_available)
                for job, scope in zip(jobs, scopes, strict=True)
            ],
            dtype=bool,
        )
        live = np.array([job.count(EVICTABLE_STATUSES) for job in jobs], dtype=np.intp)
        breaks = whole | (slack <= 0)
        created = np.array([task.created for task in tasks], dtype=np.float64)
        oldest = np.full(len(jobs), np.inf)
        np.minimum.at(oldest, jobs_of, created)
        running = np.array([task.status is TaskStatus.RUNNING for task in tasks], dtype=bool)
        gang = whole[jobs_of]
        own = np.where(gang, 0, np.arange(1, count + 1))
        order = np.lexsort((own, jobs_of, job_ranks[jobs_of], rows))
        rows, jobs_of, own, gang = rows[order], jobs_of[order], own[order], gang[order]
        first = np.ones(count, dtype=bool)
        first[1:] = (rows[1:] != rows[:-1]) | (jobs_of[1:] != jobs_of[:-1]) | (own[1:] != own[:-1])
        starts = np.flatnonzero(first)
        requests = np.ascontiguousarray(requests[order].T)
        rows, jobs_of, gang = rows[starts], jobs_of[starts], gang[starts]
        gains = np.add.reduceat(requests, starts, axis=1)
        allocated = np.array([job.allocated for job in jobs], dtype=np.int64).reshape(len(jobs), len(requests)).T
        queue_of = np.array([self._queues[job.queue] for job in jobs], dtype=np.intp)
        #: The units.
        self.units = UnitColumns(
            rows=rows,
            ranks=job_ranks[jobs_of],
            jobs=jobs_of,
            queues=queue_of[jobs_of],
            breaks=breaks[jobs_of],
            running=np.logical_and.reduceat(running[order], starts),
            sizes=np.where(gang, live[jobs_of], 1),
            gains=gains,
            peaks=np.maximum.reduceat(requests, starts, axis=1),
            totals=np.where(gang, allocated[:, jobs_of], gains),
            created=np.where(gang, oldest[jobs_of], created[order][starts]),
        )

    def of_job(self, job: Job) -> Mask:
        """The units of a job: bool [units]."""
        found: Mask = self.units.jobs == self._numbers.get(job.key, -1)
        return found

    def of_queue(self, queue: str) -> Mask:
        """The units of a queue, by name: bool [units]."""
        found: Mask = self.units.queues == self._queues.get(queue, -1)
        return found

    def reclaimable(self) -> Mask:
        """The units of reclaimable queues: bool [units]."""
        queues = self._session.queues
        allowed = np.array([queues[name].reclaimable for name in self._queues], dtype=bool)
        found: Mask = allowed[self.units.queues]
        return found

    def _note_evictions(self) -> None:
        """Excludes jobs without remaining pods."""
        evictions, tasks = self._session.evictions, self._session.tasks_by_uid
        for intent in evictions[self._seen :]:
            job = tasks[intent.uid].job
            number = self._numbers.get(job.key) if job is not None else None
            if job is not None and number is not None and not job.count(EVICTABLE_STATUSES):
                self._left[number] = False
        self._seen = len(evictions)

    def bounds(self, candidates: Mask, request: Vector, feasible: Mask) -> dict[int, Cost]:
        """Row to the lower bound of the cost of a request (int64 [resources]) there.

        Only rows with enough `candidates` (bool [units]), of those that are `feasible` (bool [nodes]). O(units of the
        feasible rows).
        """
        units = self.units
        self._note_evictions()
        chosen = np.flatnonzero(candidates & feasible[units.rows] & self._left[units.jobs])
        if not len(chosen):
            return {}
        rows = units.rows[chosen]
        starts = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
        lengths = np.diff(np.append(starts, len(rows)))
        nodes = rows[starts]
        table = self._session.nodes
        columns = np.flatnonzero(request)
        future = table.future_idle(nodes)
        # Resources by units from here on: operations over all units run along the rows of arrays.
        shortfall = np.maximum(request[columns, None] - future[:, columns].T, 0)
        each = np.repeat(shortfall, lengths, axis=1)
        gains = units.gains[np.ix_(columns, chosen)]
        ranks = units.ranks[chosen]
        sums = np.cumsum(gains, axis=1)
        sums -= np.repeat(sums[:, starts] - gains[:, starts], lengths, axis=1)
        covered = np.where((sums >= each).all(axis=0), np.arange(len(rows)), len(rows))
        reached = np.minimum.reduceat(covered, starts)
        enough = reached < len(rows)
        if not enough.any():
            return {}
        lowest = ranks[np.minimum(reached, len(rows) - 1)]
        within = ranks <= np.repeat(lowest, lengths)
        spared = np.add.reduceat(np.where(within & ~units.breaks[chosen], gains, 0), starts, axis=1)
        breaks: Mask = np.any(spared < shortfall, axis=0)
        peaks = np.where(within, units.peaks[np.ix_(columns, chosen)], 0)
        largest = np.maximum(np.maximum.reduceat(peaks, starts, axis=1), 1)
        pods = np.where(shortfall > 0, -(-shortfall // largest), 0).max(axis=0)
        pods = np.where(pods > 0, np.maximum(pods, _two_smallest(units.sizes[chosen], within, starts)), 0)
        several = [
            (*self.priorities[rank], breaking, count, 0, LEAST)
            for rank, breaking, count in zip(lowest.tolist(), breaks.tolist(), pods.tolist(), strict=True)
        ]
        found = {row: cost for row, cost, fits in zip(nodes.tolist(), several, enough.tolist(), strict=True) if fits}
        self._singles(found, chosen[(gains >= each).all(axis=0)], nodes, shortfall, columns)
        return found

    def _singles(self, found: dict[int, Cost], chosen: Rows, nodes: Rows, shortfall: Matrix, columns: Rows) -> None:
        """Lowers the bounds of rows on which one unit is enough, and cheaper than several."""
        units = self.units
        rows = units.rows[chosen]
        devices = device_columns(columns)
        lacking = shortfall[np.isin(columns, devices)].sum(axis=0)[np.searchsorted(nodes, rows)]
        surplus = units.totals[np.ix_(devices, chosen)].sum(axis=0) - lacking
        ranks, breaks, sizes = units.ranks[chosen], units.breaks[chosen], units.sizes[chosen]
        created = units.created[chosen]
        order = np.lexsort((-created, surplus, sizes, breaks, ranks, rows))
        rows = rows[order]
        best = order[np.concatenate(([True], rows[1:] != rows[:-1]))[: len(rows)]]
        for row, rank, breaking, size, beyond, since in zip(
            units.rows[chosen[best]].tolist(),
            ranks[best].tolist(),
            breaks[best].tolist(),
            sizes[best].tolist(),
            surplus[best].tolist(),
            created[best].tolist(),
            strict=True,
        ):
            alone = (*self.priorities[rank], breaking, size, beyond, -since)
            several = found[row]
            found[row] = alone if several[3] and alone < several else several


def _two_smallest(sizes: Rows, within: Mask, starts: Rows) -> Rows:
    """The least number of pods in two units of each run, of those `within`; very large without two."""
    counted = np.where(within, sizes, _MANY)
    least = np.minimum.reduceat(counted, starts)
    same = counted == np.repeat(least, np.diff(np.append(starts, len(sizes))))
    place = np.where(same, np.arange(len(sizes)), len(sizes))
    counted[np.minimum.reduceat(place, starts)] = _MANY
    total: Rows = np.minimum(least + np.minimum.reduceat(counted, starts), _MANY)
    return total


def device_columns(columns: Rows) -> Rows:
    """Of the requested resource columns those whose surplus counts: devices, else cpu."""
    ordinary = np.isin(columns, (CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN))
    return np.array([CPU_COLUMN], dtype=np.intp) if ordinary.all() else columns[~ordinary]
