"""The result of `explain` as data: why a job or pod is pending. Reports render it."""

from __future__ import annotations

from typing import Literal

import msgspec

from capcard_sched.model.refusal import Refusal


class CardUse(msgspec.Struct, frozen=True):
    """One card in one queue, in cards."""

    card: str
    #: None for a parent queue without a card quota: no limit.
    quota: float | None
    allocated: float
    inqueue: float
    #: Cards in the cluster.
    total: float
    #: The queue. Amounts of a parent are the sums of its subtree.
    queue: str = ""
    #: The unused quota here and in every ancestor with a card quota, never below 0; None without a limit.
    free: float | None = None


class QueueUse(msgspec.Struct, frozen=True):
    """Quota and usage of one queue; the usage of a parent is the sum of its subtree."""

    name: str
    state: str
    #: Jobs in the queue, and the number of those with pending pods or without admission.
    jobs: int
    waiting: int
    cards: tuple[CardUse, ...]
    #: Resource to (limit or None, allocated), base units; without the device resources that cards cover.
    resources: dict[str, tuple[int | None, int]]
    #: Limits of the queue without effect.
    warnings: tuple[str, ...] = ()
    #: `spec.parent`; "" when unset.
    parent: str = ""


class NodeReason(msgspec.Struct, frozen=True):
    """One filter reason and the number of nodes it applies to."""

    reason: str
    nodes: int
    plugin: str
    hook: str


class NodeDetail(msgspec.Struct, frozen=True):
    """Figures behind the rejection of one node by one plugin."""

    node: str
    plugin: str
    #: One sentence per device.
    texts: tuple[str, ...]


class TaskExplanation(msgspec.Struct, frozen=True):
    """Why pods of one template are pending. `names` share all other fields."""

    names: tuple[str, ...]
    #: Result of the last attempt: refused (mostly by a quota), no node fits, a node fits, nominated, not tried.
    outcome: Literal["refused", "unfit", "schedulable", "pipelined", "untried"]
    message: str
    refusal: Refusal | None = None
    node: str = ""
    nodes: tuple[NodeReason, ...] = ()
    #: The rejected nodes that come nearest to fitting.
    details: tuple[NodeDetail, ...] = ()
    #: Nodes on which preemption might help.
    evictable_nodes: int = 0


class VictimsConsidered(msgspec.Struct, frozen=True):
    """Result of one search for preemption victims for a pending pod."""

    #: The action: `preempt` or `reclaim`.
    action: str
    #: The preemptor.
    pod: str
    #: Nodes in the cluster.
    nodes: int
    #: (protecting rule, number of pods), in descending order of the number.
    kept: tuple[tuple[str, int], ...]
    #: Nodes on which all eligible victims together are not enough.
    not_enough: int = 0

    @property
    def text(self) -> str:
        """`2 service-type, 1 not enough`, in descending order of the number, then by name."""
        counts = [*self.kept, *([("not enough", self.not_enough)] if self.not_enough else [])]
        return ", ".join(f"{count} {cause}" for cause, count in sorted(counts, key=lambda entry: (-entry[1], entry[0])))


class EvictedPod(msgspec.Struct, frozen=True):
    """An evicted pod: action and preemptor."""

    pod: str
    node: str
    action: str
    by: str
    queue: str
    #: Unix seconds.
    at: float


class Explanation(msgspec.Struct, frozen=True):
    """Why a job is pending, or that it is not."""

    namespace: str
    name: str
    queue: str
    queue_state: str
    phase: str
    placed: int
    minimum: int
    tasks: int
    waiting_seconds: float
    #: Summary in one line.
    summary: str
    #: Refusals of the job itself (enqueue, validity, plugin errors).
    refusals: tuple[Refusal, ...] = ()
    pending: tuple[TaskExplanation, ...] = ()
    #: Cards of its queue, then those of ancestors with a card quota, nearest first.
    cards: tuple[CardUse, ...] = ()
    #: Pending jobs of the same queue that are ordered before it.
    ahead: tuple[str, ...] = ()
    #: Searches for preemption victims.
    victims: tuple[VictimsConsidered, ...] = ()
    #: Recently evicted pods of the job, oldest first.
    evicted: tuple[EvictedPod, ...] = ()
    #: Messages of `Evict` events of the PodGroup on a live cluster, oldest first.
    eviction_events: tuple[str, ...] = ()
