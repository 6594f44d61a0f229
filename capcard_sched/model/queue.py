"""Queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.job import Job
    from capcard_sched.model.objects import QueueAffinity
    from capcard_sched.model.resources import Vector


class Queue:
    """One Queue object and what its jobs hold. Owned by the state."""

    __slots__ = (
        "affinity",
        "allocated",
        "annotations",
        "capability",
        "created",
        "deserved",
        "guarantee",
        "in_turn",
        "jobs",
        "labels",
        "name",
        "parent",
        "priority",
        "reclaimable",
        "state",
        "status_allocated",
        "uid",
        "weight",
    )

    name: str
    uid: str
    weight: int
    #: `spec.priority`, 0 when unset.
    priority: int
    #: Unset reads as True.
    reclaimable: bool
    parent: str
    #: `spec.dequeueStrategy: fifo`: nobody gets anything before the first job has what it waits for (W-36).
    in_turn: bool
    #: Base units; None when the field is unset. Only keys the user wrote.
    capability: Mapping[str, int] | None
    deserved: Mapping[str, int] | None
    guarantee: Mapping[str, int] | None
    #: `spec.affinity`: node groups, for the plugin of that name.
    affinity: QueueAffinity | None
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    #: `status.state`; "" reads as `Open`.
    state: str
    #: `status.allocated` as last seen or written, base units; None while nothing was ever written.
    status_allocated: Mapping[str, int] | None
    created: float
    #: Jobs with a PodGroup in this queue, by key.
    jobs: dict[str, Job]
    #: Sum of `Job.allocated` over `jobs`: int64 [resource columns].
    allocated: Vector

    def __init__(self, name: str, allocated: Vector) -> None:
        self.name = name
        self.uid = name
        self.weight = 1
        self.priority = 0
        self.reclaimable = True
        self.parent = ""
        self.in_turn = False
        self.capability = None
        self.deserved = None
        self.guarantee = None
        self.affinity = None
        self.annotations = {}
        self.labels = {}
        self.state = "Open"
        self.status_allocated = None
        self.created = 0.0
        self.jobs = {}
        self.allocated = allocated

    @property
    def is_open(self) -> bool:
        """Whether new work may enter: state Open or not set."""
        return self.state in ("", "Open")

    def __repr__(self) -> str:
        return f"Queue({self.name}, {self.state})"
