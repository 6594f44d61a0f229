"""Metrics of one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.plugin import Sample
from capcard_sched.model.resources import CPU_COLUMN, MEMORY_COLUMN
from capcard_sched.plugins.capacity.branch import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.model.resources import ResourceColumns, Vector
    from capcard_sched.plugins.capacity.branch import Branch


def samples(branch: Branch, request: Vector, inqueue: Vector, resources: ResourceColumns) -> Iterator[Sample]:
    """All series of a queue. The capability is exported only where one is set.

    `request`: requests of allocated and pending pods. `inqueue`: reservations of admitted jobs.
    """
    labels = {"queue_name": branch.name}
    kinds = {
        "allocated": branch.allocated,
        "request": request,
        "deserved": branch.deserved,
        "inqueue": inqueue,
        "real_capacity": branch.real_capability,
    }
    if branch.queue is not None and branch.queue.capability:
        kinds["capacity"] = branch.capability
    for kind, vector in kinds.items():
        for column, resource in enumerate(resources.names):
            amount = vector.item(column) if column < len(vector) else 0
            if amount >= UNLIMITED:
                continue
            if column == CPU_COLUMN:
                yield Sample(f"queue_{kind}_milli_cpu", labels, amount)
            elif column == MEMORY_COLUMN:
                yield Sample(f"queue_{kind}_memory_bytes", labels, amount)
            else:
                yield Sample(f"queue_{kind}_scalar_resources", {**labels, "resource": resource}, amount)
    share = branch.dominant_share()
    yield Sample("queue_share", labels, share)
    yield Sample("queue_overused", labels, float(share > 1))
