"""The scope of a preemption."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Scope(NamedTuple):
    """The candidates of an action and its hook."""

    #: Between jobs of one queue, within one job, or across queues.
    kind: Literal["within-queue", "within-job", "across-queues"]
    hook: Literal["preemptable", "reclaimable"]
    #: Name of the action: the reason of its evictions.
    action: str
