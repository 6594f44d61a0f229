"""Limits of a queue in cpu and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from capcard_sched.model.queue import Queue


class Dimension(NamedTuple):
    """One of cpu (milli-cores) and memory (bytes) of one queue."""

    #: `spec.capability`; None when it has no value, which differs from 0.
    capability: int | None
    real_capability: int
    deserved: int
    #: The limit of all checks: the capability, else the real capability.
    limit: int


def dimension(queue: Queue, name: str, free: int) -> Dimension:
    """The limits of one queue in one dimension; device resources in these fields are ignored.

    `free`: the amount of the cluster that no queue is guaranteed.
    """
    capability = (queue.capability or {}).get(name)
    guarantee = (queue.guarantee or {}).get(name, 0)
    real = limit = free + guarantee
    if capability is not None:
        real, limit = min(real, capability), capability
    deserved = max(min((queue.deserved or {}).get(name, 0), real), guarantee)
    return Dimension(capability, real, deserved, limit)
