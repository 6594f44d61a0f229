"""Limits of a queue: its card quota, and its cpu and memory.

For cards, guarantee and capability both equal the quota, hence deserved, real capability and limit do too, whatever
the cluster has: quotas may exceed the cards of the cluster on purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.framework.quota.limits import UNLIMITED
from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.cards import CardSyntaxError, is_card_quota, parse_card_quota
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.capacity_card.charge import CPU_KEY, MEMORY_KEY, PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.model.queue import Queue
    from capcard_sched.plugins.capacity_card.charge import ChargeSum


class CardQuota(NamedTuple):
    """The parsed annotation `volcano.sh/card.quota`: all of it or nothing."""

    #: Card to thousandths. A card that is not listed has quota 0.
    cards: Mapping[str, int]
    #: The syntax error, "" for a valid annotation.
    problem: str
    #: Whether the queue has the annotation. Without it a parent limits nothing.
    present: bool


def card_quota(queue: Queue) -> CardQuota:
    """The card quota of a queue; empty when any part of it is malformed."""
    text = queue.annotations.get(CARD_QUOTA)
    try:
        return CardQuota(parse_card_quota(text), "", is_card_quota(text))
    except CardSyntaxError as problem:
        return CardQuota({}, str(problem), present=True)


class Dimension(NamedTuple):
    """One of cpu (milli-cores) and memory (bytes) of one queue."""

    #: `spec.capability`; None when it has no value, which differs from 0.
    capability: int | None
    real_capability: int
    deserved: int
    #: The limit of all checks: the capability, else the real capability.
    limit: int


class ClusterAmounts(NamedTuple):
    """Total and guaranteed amounts of the cluster in one dimension."""

    total: int
    guaranteed: int


def dimension(queue: Queue, name: str, cluster: ClusterAmounts) -> Dimension:
    """The limits of one queue in one dimension; device resources in these fields are ignored."""
    capability = (queue.capability or {}).get(name)
    guarantee = (queue.guarantee or {}).get(name, 0)
    real = max(0, cluster.total - cluster.guaranteed) + guarantee
    limit = real if capability is None else capability
    if capability is not None:
        real = min(real, capability)
    deserved = max(min((queue.deserved or {}).get(name, 0), real), guarantee)
    return Dimension(capability, real, deserved, limit)


def guaranteed(queues: Iterable[Queue], name: str) -> int:
    """The sum of `spec.guarantee` of all queues, open or not."""
    return sum((queue.guarantee or {}).get(name, 0) for queue in queues)


class QueueQuota(NamedTuple):
    """All limits of a queue."""

    cards: Mapping[str, int]
    problem: str
    #: Whether the cards of queues below it are limited too.
    limits_subtree: bool
    #: Limits of the shared devices that `spec.capability` names.
    shares: Mapping[str, int]
    #: Resources of all shared devices. Those that nothing names have no limit.
    known_shares: frozenset[str]
    cpu: Dimension
    memory: Dimension
    #: Limits of the queue's own jobs: cpu, memory, cards, and the shares named.
    limits: Mapping[str, int]

    def limit(self, key: str) -> int:
        """The limit of the queue's own jobs: 0 for a card that is not listed, none for a share that is not named."""
        limit = self.limits.get(key)
        return self.subtree_limit(key) if limit is None else limit

    def subtree_limit(self, key: str) -> int:
        """The limit of the queue and all queues below it, given a card quota: `spec.capability` does not count."""
        limit = self.cards.get(key)
        if limit is not None:
            return limit
        return UNLIMITED if key in PLAIN or key in self.known_shares else 0

    def ceiling(self, key: str) -> int:
        """The limit of the queue's own jobs in a cluster of any size."""
        if key not in PLAIN:
            return self.limit(key)
        capability = (self.cpu if key == CPU_KEY else self.memory).capability
        return UNLIMITED if capability is None else capability

    @property
    def is_empty(self) -> bool:
        """No cpu or memory capability and no valid card quota entry."""
        return not (self.cards or self.shares) and self.cpu.capability is None and self.memory.capability is None

    @property
    def own_limits(self) -> tuple[object, ...]:
        """The limits that do not depend on the cluster."""
        return self.cards, self.shares, self.limits_subtree, self.cpu.capability, self.memory.capability

    def share(self, allocated: ChargeSum) -> float:
        """The largest allocated/deserved over dimensions that deserve anything; 0 without any."""
        deserved = {**self.cards, CPU_KEY: self.cpu.deserved, MEMORY_KEY: self.memory.deserved}
        return max((allocated[key] / amount for key, amount in deserved.items() if amount > 0), default=0.0)


def queue_quota(
    queue: Queue, cards: CardQuota, known_shares: frozenset[str], cpu: ClusterAmounts, memory: ClusterAmounts
) -> QueueQuota:
    """The quota of a queue in a cluster. `known_shares`: resources of shared devices."""
    dimensions = dimension(queue, CPU, cpu), dimension(queue, MEMORY, memory)
    shares = {name: amount for name, amount in (queue.capability or {}).items() if name in known_shares}
    limits = {**cards.cards, **shares, CPU_KEY: dimensions[0].limit, MEMORY_KEY: dimensions[1].limit}
    return QueueQuota(cards.cards, cards.problem, cards.present, shares, known_shares, *dimensions, limits)
