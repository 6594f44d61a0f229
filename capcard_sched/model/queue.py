"""Queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from capcard_sched.model.annotations import CARD_QUOTA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.job import Job
    from capcard_sched.model.objects import QueueAffinity
    from capcard_sched.model.resources import Vector


#: The queue above all queues that name no parent.
ROOT: Final = "root"


@dataclass(slots=True, eq=False, repr=False)
class Queue:
    """One Queue object, its jobs and their usage. Owned by the state."""

    name: str
    #: Sum of `Job.allocated` over `jobs`: int64 [resource columns].
    allocated: Vector
    #: Sum of `Job.releasing` over `jobs`.
    releasing: Vector
    uid: str = ""
    weight: int = 1
    #: `spec.priority`, 0 when unset.
    priority: int = 0
    #: Unset reads as True.
    reclaimable: bool = True
    parent: str = ""
    #: `spec.dequeueStrategy: fifo`: the first unserved job blocks the jobs behind it.
    strict_fifo: bool = False
    #: Base units; None when the field is unset. Only keys the user wrote.
    capability: Mapping[str, int] | None = None
    deserved: Mapping[str, int] | None = None
    guarantee: Mapping[str, int] | None = None
    #: `spec.affinity`: node groups, for the plugin of that name.
    affinity: QueueAffinity | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    #: `status.state`; "" reads as `Open`. `Deleted` for a queue in `ClusterState.deleted_queues`.
    state: str = "Open"
    #: `status.allocated` as last seen or written, base units; None before the first write.
    status_allocated: Mapping[str, int] | None = None
    created: float = 0.0
    #: Jobs with a PodGroup in this queue, by key.
    jobs: dict[str, Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.uid = self.uid or self.name

    @property
    def is_open(self) -> bool:
        """Whether the queue admits new jobs: state Open or unset."""
        return self.state in ("", "Open")

    @property
    def limits(self) -> tuple[object, ...]:
        """The fields that limit its jobs and those below it, compared by equality."""
        return self.uid, self.parent, self.capability, self.guarantee, self.annotations.get(CARD_QUOTA)

    def __repr__(self) -> str:
        return f"Queue({self.name}, {self.state})"


def ancestors(queue: Queue, queues: Mapping[str, Queue]) -> list[Queue]:
    """Its parents, nearest first, up to root; a missing or cyclic parent ends the list."""
    found: list[Queue] = []
    seen = {queue.name, ""}
    above = queues.get(queue.parent or ROOT) if queue.name != ROOT else None
    while above is not None and above.name not in seen:
        found.append(above)
        seen.add(above.name)
        above = queues.get(above.parent or ROOT) if above.name != ROOT else None
    return found
