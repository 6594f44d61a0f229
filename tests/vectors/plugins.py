"""Plugins that vectors name beside the installed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from capcard_sched.framework.api.plugin import Placement, Plugin
from capcard_sched.model.job import Task
from capcard_sched.model.queue import Queue
from capcard_sched.model.refusal import Refusal
from tests.evictions import Tide


class QueueCards(Plugin):
    """A quota of cards per queue, kept from placements; `preemptive` and `allocatable` go by it."""

    name: ClassVar[str] = "cards"
    limit: ClassVar[int] = 8000

    def open(self, session: Any) -> None:
        column = session.resources.column("nvidia.com/gpu")
        self._column = column
        self.used = {name: int(queue.allocated[column]) for name, queue in session.queues.items()}

    def _vote(self, queue: Queue, task: Task) -> Refusal | None:
        if self.used[queue.name] + int(task.cls.request[self._column]) <= self.limit:
            return None
        return Refusal("preemptive", self.name, "Full", f"queue {queue.name} is full", event=True)

    preemptive = _vote
    allocatable = _vote

    def _charge(self, placement: Placement, sign: int) -> None:
        amount = int(placement.cls.request[self._column]) * len(placement.tasks)
        self.used[placement.job.queue] += sign * amount

    def on_allocate(self, placement: Placement) -> None:
        self._charge(placement, +1)

    def on_deallocate(self, placement: Placement) -> None:
        self._charge(placement, -1)


class Grumpy(Plugin):
    """Fails for the pod r-w-0."""

    name: ClassVar[str] = "grumpy"

    def preemptive(self, queue: Queue, task: Task) -> Refusal | None:
        if task.name == "r-w-0":
            raise RuntimeError("not today")
        return None


class Pointing(Plugin):
    """Names the pods with the label `shuffle: out`; fails for one with `shuffle: boom`."""

    name: ClassVar[str] = "pointing"

    def victim_tasks(self, tasks: Sequence[Task]) -> list[Task]:
        if any(task.labels.get("shuffle") == "boom" for task in tasks):
            raise RuntimeError("boom")
        return [task for task in tasks if task.labels.get("shuffle") == "out"]


PLUGINS: Final[tuple[type[Plugin], ...]] = (Tide, QueueCards, Grumpy, Pointing)
