"""Lower bounds of the eviction cost per node, for all nodes at once: the search for victims starts at the lowest.

Candidates are counted in the smallest units that can leave: one pod, or all members on a node of a gang that is evicted
whole. The table is built once per session; a search selects from it, and each row with enough capacity gets a bound
that no plan for the row undercuts. Where one unit is enough, the bound is the cost of the plan, unless a plugin
protects a pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np

from capcard_sched.model.resources import CPU_COLUMN, PODS_COLUMN
from capcard_sched.model.status import EVICTABLE_STATUSES, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.resources import Matrix, Vector

_T = TypeVar("_T")
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
        self, session: Session, tasks: list[Task], rows: Rows, scopes_of: Callable[[list[Job]], list[str]]
    ) -> None:
        """`tasks`: the candidates, with their `rows` (intp). `scopes_of` returns the `evict_scope` of each job."""
        self._session = session
        #: The jobs with candidates, and their queues, each with its number.
        self._jobs, jobs_of = _numbered([task.job for task in tasks if task.job is not None])
        jobs, queues = list(self._jobs), session.queues
        self._queues, queue_of = _numbered([job.queue for job in jobs])
        known = [(queues[job.queue].priority, job.priority) for job in jobs]
        ranks = {priorities: rank for rank, priorities in enumerate(sorted(set(known)))}
        #: (queue priority, job priority) by rank.
        self.priorities: list[tuple[int, int]] = list(ranks)
        #: bool [jobs]: whether any pod is left, after the first `_seen` evictions of the session.
        self._left: Mask = np.ones(len(jobs), dtype=bool)
        self._seen = 0
        job_ranks = np.array([ranks[priorities] for priorities in known], dtype=np.intp)
        scopes = np.array(scopes_of(jobs), dtype=str)
        minimum = np.array([job.min_available for job in jobs], dtype=np.intp)
        slack = np.array([job.ready_tasks for job in jobs], dtype=np.intp) - minimum
        #: Whether the remaining members can only leave all at once.
        whole = (scopes == "job") | ((scopes == "whole") & (minimum > 1) & (slack <= 0))
        first_status, second_status = EVICTABLE_STATUSES
        counts = [job.counts for job in jobs]
        live = np.array([each[first_status] + each[second_status] for each in counts], dtype=np.intp)
        breaks = whole | (slack <= 0)
        created = np.array([task.created for task in tasks], dtype=np.float64)
        oldest = np.full(len(jobs), np.inf)
        np.minimum.at(oldest, jobs_of, created)
        status = TaskStatus.RUNNING
        running = np.array([task.status is status for task in tasks], dtype=bool)
        gang = whole[jobs_of]
        own = np.where(gang, 0, np.arange(1, len(tasks) + 1))
        order = np.lexsort((own, jobs_of, job_ranks[jobs_of], rows))
        rows, jobs_of, own, gang = rows[order], jobs_of[order], own[order], gang[order]
        first = np.ones(len(tasks), dtype=bool)
        first[1:] = (rows[1:] != rows[:-1]) | (jobs_of[1:] != jobs_of[:-1]) | (own[1:] != own[:-1])
        starts = first.nonzero()[0]
        classes, class_of = _numbered([task.cls for task in tasks])
        requests = self._columns([cls.request for cls in classes])[:, class_of[order]]
        rows, jobs_of, gang = rows[starts], jobs_of[starts], gang[starts]
        gains = np.add.reduceat(requests, starts, axis=1)
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
            totals=np.where(gang, self._columns([job.allocated for job in jobs])[:, jobs_of], gains),
            created=np.where(gang, oldest[jobs_of], created[order][starts]),
        )

    def _columns(self, amounts: list[Vector]) -> Matrix:
        """Amounts, int64 [resources] each, as int64 [resources, amounts]."""
        width = self._session.resources.width
        return np.ascontiguousarray(np.array(amounts, dtype=np.int64).reshape(len(amounts), width).T)

    def of_job(self, job: Job) -> Mask:
        """The units of a job: bool [units]."""
        found: Mask = self.units.jobs == self._jobs.get(job, -1)
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
        evictions, tasks = self._session.results.evictions, self._session.snapshot.tasks_by_uid
        for intent in evictions[self._seen :]:
            job = tasks[intent.uid].job
            number = self._jobs.get(job) if job is not None else None
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
        chosen = (candidates & feasible[units.rows] & self._left[units.jobs]).nonzero()[0]
        if not len(chosen):
            return {}
        rows = units.rows[chosen]
        starts, places = _runs(rows)
        nodes = rows[starts]
        lacking = np.where(request > 0, np.maximum(request - self._session.nodes.future_idle(nodes), 0), 0)
        columns = np.flatnonzero(lacking.any(axis=0))
        # Resources by units from here on: operations over all units run along the rows of arrays.
        shortfall = lacking[:, columns].T
        each = shortfall[:, places]
        picked = columns[:, None], chosen
        gains = units.gains[picked]
        sums = gains.cumsum(axis=1)
        sums -= (sums[:, starts] - gains[:, starts])[:, places]
        covered = np.where((sums >= each).all(axis=0), np.arange(len(rows)), len(rows))
        reached = np.minimum.reduceat(covered, starts)
        enough = reached < len(rows)
        if not enough.any():
            return {}
        ranks = units.ranks[chosen]
        lowest = ranks[np.minimum(reached, len(rows) - 1)]
        within = ranks <= lowest[places]
        spared = np.add.reduceat(np.where(within & ~units.breaks[chosen], gains, 0), starts, axis=1)
        breaks = (spared < shortfall).any(axis=0)
        largest = np.maximum.reduceat(np.where(within, units.peaks[picked], 0), starts, axis=1)
        pods = (-(-shortfall // np.maximum(largest, 1))).max(axis=0, initial=0)
        sizes = np.where(within, units.sizes[chosen], _MANY)
        pods = np.where(pods > 0, np.maximum(pods, _two_smallest(sizes, places, starts)), 0)
        columns_of_rows = (column.tolist() for column in (nodes, lowest, breaks, pods, enough))
        found: dict[int, Cost] = {
            row: (*self.priorities[rank], breaking, count, 0, LEAST)
            for row, rank, breaking, count, fits in zip(*columns_of_rows, strict=True)
            if fits
        }
        alone, devices = (gains >= each).all(axis=0), device_columns(request)
        self._singles(found, chosen[alone], lacking[:, devices].sum(axis=1)[places[alone]], devices)
        return found

    def _singles(self, found: dict[int, Cost], chosen: Rows, lacking: Vector, devices: Rows) -> None:
        """Lowers the bounds of rows on which one unit is enough, and cheaper than several.

        `chosen`: these units; `lacking`: the shortfall of the `devices` (columns) on their rows, int64 [chosen].
        """
        units = self.units
        rows, ranks, breaks, sizes = units.rows[chosen], units.ranks[chosen], units.breaks[chosen], units.sizes[chosen]
        surplus, ages = units.totals[devices[:, None], chosen].sum(axis=0) - lacking, -units.created[chosen]
        best = np.lexsort((ages, surplus, sizes, breaks, ranks, rows))[_runs(rows)[0]]
        columns = (column[best].tolist() for column in (rows, ranks, breaks, sizes, surplus, ages))
        for row, rank, breaking, size, beyond, age in zip(*columns, strict=True):
            alone = (*self.priorities[rank], breaking, size, beyond, age)
            several = found[row]
            if several[3] and alone < several:
                found[row] = alone


def _numbered(objects: list[_T]) -> tuple[dict[_T, int], Rows]:
    """The distinct objects with their numbers, in order, and the number of each object."""
    numbers = {one: number for number, one in enumerate(dict.fromkeys(objects))}
    return numbers, np.fromiter(map(numbers.__getitem__, objects), np.intp, len(objects))


def _runs(rows: Rows) -> tuple[Rows, Rows]:
    """The starts of the runs of equal values in ascending `rows`, and the number of the run of each."""
    first = np.ones(len(rows), dtype=bool)
    np.not_equal(rows[1:], rows[:-1], out=first[1:])
    return first.nonzero()[0], first.cumsum() - 1


def _two_smallest(sizes: Rows, places: Rows, starts: Rows) -> Rows:
    """The least number of pods in two units of each run; very large without two. Runs as of `_runs`."""
    ordered = sizes[np.lexsort((sizes, places))]
    least = ordered[starts]
    ordered[starts] = _MANY
    total: Rows = np.minimum(least + np.minimum.reduceat(ordered, starts), _MANY)
    return total


def device_columns(request: Vector) -> Rows:
    """Of the requested resource columns (int64 [resources]) those whose surplus counts: devices, else cpu."""
    devices: Rows = request.nonzero()[0]
    devices = devices[devices > PODS_COLUMN]  # cpu, memory and pods come first
    return devices if len(devices) else np.array([CPU_COLUMN], dtype=np.intp)
