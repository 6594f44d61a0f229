"""Why something waits, as data: the answer of `explain`, rendered elsewhere."""

from __future__ import annotations

from typing import Literal

import msgspec

from capcard_sched.model.refusal import Refusal


class CardUse(msgspec.Struct, frozen=True):
    """One card in one queue, in cards."""

    card: str
    quota: float
    allocated: float
    inqueue: float
    #: Cards in the cluster.
    total: float

    @property
    def free(self) -> float:
        """What the quota still leaves, never below 0."""
        return max(0.0, self.quota - self.allocated)


class QueueUse(msgspec.Struct, frozen=True):
    """What one queue may use, and uses."""

    name: str
    state: str
    #: Jobs in the queue, and how many of them have pods without a node or are not admitted.
    jobs: int
    waiting: int
    cards: tuple[CardUse, ...]
    #: Resource to (limit or None, allocated), base units; cards' device resources are left out where cards tell.
    resources: dict[str, tuple[int | None, int]]


class NodeReason(msgspec.Struct, frozen=True):
    """One reason why nodes cannot take a pod, and how many nodes gave it."""

    reason: str
    nodes: int
    plugin: str
    hook: str


class TaskExplanation(msgspec.Struct, frozen=True):
    """Why pending pods of one template wait. `names` share everything below."""

    names: tuple[str, ...]
    #: How the last attempt ended: refused (by a quota, mostly), no node, would fit, promised releasing room, not tried.
    outcome: Literal["refused", "unfit", "schedulable", "pipelined", "untried"]
    message: str
    refusal: Refusal | None = None
    node: str = ""
    nodes: tuple[NodeReason, ...] = ()
    #: Nodes on which evicting something could help.
    evictable_nodes: int = 0


class VictimsConsidered(msgspec.Struct, frozen=True):
    """What came of looking for room that others could give up, for pods of a job that waits."""

    #: The action: `preempt` or `reclaim`.
    action: str
    #: The pod it was looked for.
    pod: str
    #: Nodes in the cluster.
    nodes: int
    #: (what protected pods, how many pods); most first.
    kept: tuple[tuple[str, int], ...]
    #: Nodes on which all that may go is not enough.
    not_enough: int = 0

    @property
    def text(self) -> str:
        """`2 service-type, 1 not enough`: most first, then by name."""
        counts = [*self.kept, *([("not enough", self.not_enough)] if self.not_enough else [])]
        return ", ".join(f"{count} {cause}" for cause, count in sorted(counts, key=lambda entry: (-entry[1], entry[0])))


class EvictedPod(msgspec.Struct, frozen=True):
    """A pod that had to leave: which, by which action, and who got its room."""

    pod: str
    node: str
    action: str
    by: str
    queue: str
    #: Unix seconds.
    at: float


class Explanation(msgspec.Struct, frozen=True):
    """Why a job waits, or that it does not."""

    namespace: str
    name: str
    queue: str
    queue_state: str
    phase: str
    placed: int
    minimum: int
    tasks: int
    waiting_seconds: float
    #: The one line that matters most.
    summary: str
    #: Refusals of the job itself (enqueue, validity, contained failures).
    refusals: tuple[Refusal, ...] = ()
    pending: tuple[TaskExplanation, ...] = ()
    cards: tuple[CardUse, ...] = ()
    #: Jobs of the same queue that come first and wait too.
    ahead: tuple[str, ...] = ()
    #: What came of looking for room to take from others.
    victims: tuple[VictimsConsidered, ...] = ()
    #: Pods of the job that were evicted last, oldest first.
    evicted: tuple[EvictedPod, ...] = ()
    #: Messages of `Evict` events of the PodGroup on a live cluster, oldest first.
    eviction_events: tuple[str, ...] = ()
