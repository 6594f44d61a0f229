"""Dominant shares: the largest usage/total of any resource of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from capcard_sched.model.job import Job
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
        """Whether these are the shares of that total."""
        return resources is self.resources and np.array_equal(self.total, resources.fit(total))

    def dominant(self, amounts: Vector | Floats) -> float:
        """The dominant share of one vector."""
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
