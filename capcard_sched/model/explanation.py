"""Figures of queues, victims and charges, for diagnoses and reports."""

from __future__ import annotations

from typing import Final

import msgspec

from capcard_sched.model.quoting import plural

#: Cause for which a pod is no victim, as the search counts it, to words; another cause is the plugin that protects it.
CAUSES: Final = {
    "not-preemptable": "not preemptable",
    "other-queue": "of other queues",
    "priority": "of no lower priority",
    "same-queue": "of the same queue",
    "service-type": "without volcano.sh/service.type=training",
    "other-job": "of other jobs",
    "no-job": "in no queue, or of other schedulers",
    "queue-not-reclaimable": "in queues with reclaimable: false",
    "terminating": "terminating",
    "not-running": "not running",
    "not-best-effort": "with requests",
    "same-job": "of the same job",
    "eviction-refused": "whose eviction was refused",
    "no-use": "without the missing resources",
    "system-critical": "critical for the system",
    "preemptable": "kept by plugins",
    "reclaimable": "kept by plugins",
}


_NONE_LOWER: Final = "no pod of lower priority"


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
    #: Free cards of the cluster that no pod of the mix of requests can use where they are; None without such pods.
    stranded: float | None = None


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


class VictimsConsidered(msgspec.Struct, frozen=True, rename="camel"):
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

    def causes(self, *besides: str) -> list[str]:
        """`2 pods of no lower priority`, `too little to free on 1 node`; without the pods of some causes."""
        kept = [(cause, count) for cause, count in self.kept if cause not in besides]
        if [cause for cause, _ in kept] == ["priority"]:
            parts = [_NONE_LOWER]
        else:
            parts = [f"{plural(count, 'pod')} {CAUSES.get(cause, f'protected by {cause}')}" for cause, count in kept]
        return parts + ([f"too little to free on {plural(self.not_enough, 'node')}"] if self.not_enough else [])

    def searched(self) -> list[str]:
        """`not eligible: 2 pods of other queues`, `too little to free on 1 node`."""
        pods = self.causes()
        short = [pods.pop()] if self.not_enough else []
        if pods and pods != [_NONE_LOWER]:
            pods = [f"not eligible: {', '.join(pods)}"]
        return [*pods, *short]


class EvictedPod(msgspec.Struct, frozen=True):
    """An evicted pod: action and preemptor."""

    pod: str
    node: str
    action: str
    by: str
    queue: str
    #: Unix seconds.
    at: float


class PodCards(msgspec.Struct, frozen=True):
    """The cards that a pod accepts, and the amount that its queue is charged, in thousandths."""

    #: As written, preferred first; inferred from the resource for a pod without a card name.
    names: tuple[str, ...]
    #: Those of them that some node provides.
    alternatives: tuple[str, ...]
    amount: int
    #: Why the charge cannot be computed, "" when it can.
    error: str = ""
    #: Further cards that it gets beside, with their amounts.
    others: tuple[tuple[str, int], ...] = ()

    @property
    def choices(self) -> tuple[tuple[str, ...], ...]:
        """Sets of cards of which a pod gets one each, with those that some node provides."""
        return (self.alternatives, *[(card,) for card, _ in self.others])


class JobCards(msgspec.Struct, frozen=True):
    """The amounts of one job in the accounts of its queue: thousandths of cards, by card or `A|B`."""

    held: dict[str, int]
    #: Reserved for its pods without a node.
    reserved: dict[str, int]
