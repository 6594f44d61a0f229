"""Estimates the use of pods that no measurement includes yet.

An average over a period includes a pod that ran for part of the period in that proportion. The rest is estimated, so an
estimate decays to 0 within one period. Amounts are whole thousandths of a core and bytes, so that undoing is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capcard_sched.model.quantity import milli, units
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.model.usage import PERIOD_SECONDS, STALE_SECONDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.resources import Matrix
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.usage.arguments import Estimator

_MOST_CLASSES = 4096
#: Seconds between two computations of the sums, so that estimates decay without new measurements.
_REFRESH_SECONDS = 30.0


class Estimate(NamedTuple):
    """The estimated use of one pod before any measurement."""

    node: str
    #: Thousandths of a core, bytes.
    cpu: int
    memory: int
    #: Unix seconds of the placement.
    placed: float


def estimate(
    request: int, limit: int | None, unnamed: int, *, request_ratio: float, burst_ratio: float, risk: float
) -> int:
    """Estimated use of one resource in base units; `unnamed` for a pod without request and limit."""
    if not request and limit is None:
        return int(unnamed * risk)
    burst = max(0, limit - request) if limit is not None else 0
    amount = int((request * request_ratio + burst * burst_ratio) * risk)
    return amount if limit is None else min(amount, limit)


class Estimates:
    """Estimates of pods that this scheduler placed, and their sums by node row."""

    def __init__(self, settings: Estimator) -> None:
        self._settings = settings
        self._unnamed = milli(settings.be_cpu), units(settings.be_mem)
        #: Key of a job to its estimated pods by uid.
        self._by_job: dict[str, dict[str, Estimate]] = {}
        self._amounts: dict[tuple[int, bool], tuple[int, int]] = {}
        #: cpu and memory in base units: int64 [nodes, 2].
        self.sums: Matrix = np.zeros((0, 2), dtype=np.int64)
        self._summed_at = 0.0

    def open(self, session: Session, *, anew: bool) -> bool:
        """Remove pods that left their node. Recomputes the sums if `anew` or if needed; returns whether it did."""
        changed = session.changed
        keys = list(self._by_job) if changed.everything else [key for key in changed.jobs if key in self._by_job]
        for key in keys:
            anew |= self._forget_gone(session, key)
        anew |= bool(self._by_job) and session.now >= self._summed_at + _REFRESH_SECONDS
        if anew:
            self._sum_up(session)
        if len(self._amounts) > _MOST_CLASSES:
            self._amounts.clear()
        return anew

    def _forget_gone(self, session: Session, key: str) -> bool:
        known, tasks = self._by_job[key], session.snapshot.tasks_by_uid
        gone = [
            uid
            for uid, found in known.items()
            if (task := tasks.get(uid)) is None or task.node is None or task.node.name != found.node
        ]
        for uid in gone:
            del known[uid]
        if not known:
            del self._by_job[key]
        return bool(gone)

    def _sum_up(self, session: Session) -> None:
        """Compute the sums and drop expired estimates. O(nodes + estimated pods)."""
        table, usage, now = session.nodes, session.snapshot.usage, session.now
        self._summed_at = now
        self.sums = np.zeros((len(table), 2), dtype=np.int64)
        for key, known in list(self._by_job.items()):
            for uid, found in list(known.items()):
                load = usage.get(found.node)
                measured = now if load is None or load.at is None else min(now, load.at)
                left = 1.0 - max(0.0, measured - found.placed) / PERIOD_SECONDS
                node = table.by_name.get(found.node)
                if left <= 0 or node is None or now - found.placed >= PERIOD_SECONDS + STALE_SECONDS:
                    del known[uid]
                    continue
                self.sums[node.row] += int(found.cpu * left), int(found.memory * left)
            if not known:
                del self._by_job[key]

    def add(self, task: Task, node: Node, now: float, *, risky: bool) -> None:
        """Add a placed pod; `risky`: the load of the node is at least `risk_threshold`."""
        assert task.job is not None, task
        cpu, memory = self._of_class(task.cls, risky=risky)
        self._by_job.setdefault(task.job.key, {})[task.uid] = Estimate(node.name, cpu, memory, now)
        self.sums[node.row] += cpu, memory

    def remove(self, task: Task, node: Node) -> None:
        known = self._by_job.get(task.job.key if task.job is not None else "", {})
        found = known.pop(task.uid, None)
        if found is not None:
            self.sums[node.row] -= found.cpu, found.memory

    def _of_class(self, cls: TaskClass, *, risky: bool) -> tuple[int, int]:
        found = self._amounts.get((cls.id, risky))
        if found is None:
            settings = self._settings
            cpu, memory = (
                estimate(
                    cls.requests.get(resource, 0),
                    cls.limits.get(resource),
                    unnamed,
                    request_ratio=settings.request_ratio,
                    burst_ratio=settings.burst_ratio,
                    risk=settings.risk_factor if risky else 1.0,
                )
                for resource, unnamed in zip((CPU, MEMORY), self._unnamed, strict=True)
            )
            found = self._amounts[cls.id, risky] = cpu, memory
        return found

    def percent(self, allocatable: Matrix, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """The sums of some rows in percent of their allocatable (int64 [k, resources]): float64 [k, 2]."""
        offered = allocatable[:, :2]
        return np.where(offered > 0, self.sums[rows] * 100.0 / np.maximum(offered, 1), 0.0)
