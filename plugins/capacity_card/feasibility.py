"""Whether a request fits the limits of a queue beside its usage, for all cards and claims together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.reasons import INSUFFICIENT_CPU_QUOTA, INSUFFICIENT_MEMORY_QUOTA, INSUFFICIENT_SCALAR_QUOTA
from capcard_sched.model.refusal import Figures
from capcard_sched.model.resources import CPU, MEMORY
from capcard_sched.plugins.capacity_card.charge import ChargeSum, alternatives_of
from capcard_sched.plugins.capacity_card.multi_card_admission import MultiCardAdmission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.model.reasons import Reason
    from capcard_sched.plugins.capacity_card.quota import QueueQuota


class Shortage(NamedTuple):
    """A failed check: its dimension, the figures, and for a claim those of every alternative."""

    reason: Reason
    figures: Figures
    alternatives: tuple[Figures, ...] = ()
    #: The ancestor of the queue whose limit it is; "" for the queue's own limit.
    ancestor: str = ""


class QueueUsage:
    """Allocated and reserved amounts of a queue at one moment, beside its limits."""

    def __init__(self, used: ChargeSum, limit: Callable[[str], int]) -> None:
        """`limit`: the limit of a card in thousandths."""
        self.used = used
        self.limit = limit
        self.admission = MultiCardAdmission.of(used.cards, limit)

    def card_shortage(self, need: Mapping[str, int], *, same_card: bool) -> Shortage | None:
        """The first requested card or claim that does not fit together with all others of the queue.

        Alternatives of a claim add up, except with `same_card`.
        """
        requests = {key: amount for key, amount in need.items() if amount > 0}
        limit, used = self.limit, self.used.cards
        admission: MultiCardAdmission | None = None
        for key in sorted(requests):
            requested, alternatives = requests[key], alternatives_of(key)
            total = used.get(key, 0) + requested
            if len(alternatives) == 1:
                if total > limit(key):
                    return Shortage(INSUFFICIENT_SCALAR_QUOTA, Figures(key, requested, total, limit(key)))
                if not self.admission.has_claims and len(requests) == 1:
                    return None
            elif same_card:
                options = tuple(
                    Figures(card, requested, used.get(card, 0) + requests.get(card, 0) + requested, limit(card))
                    for card in alternatives
                )
                if all(option.total > option.limit for option in options):
                    return _of_alternatives(key, options)
            if admission is None:
                admission = self.admission.with_more(requests)
            found = admission.overdraft(alternatives)
            if found is not None:
                figures = Figures(key, requested, found.total, found.limit)
                options = tuple(
                    Figures(card, requested, used.get(card, 0) + requests.get(card, 0), limit(card))
                    for card in sorted(found.cards)
                )
                return Shortage(INSUFFICIENT_SCALAR_QUOTA, figures, options)
        return None


def impossible_need(
    quota: QueueQuota, limits: Iterable[tuple[str, Callable[[str], int]]], need: ChargeSum, *, same_card: bool
) -> Shortage | None:
    """The limit that a need exceeds in empty queues: such a job can never start. None for a possible need.

    `limits`: the limits of cards of the queue ("") and of its limiting ancestors (by name). cpu and memory count only
    with a capability of the queue: the total of the cluster may grow.
    """
    cpu, memory = quota.cpu.capability, quota.memory.capability
    if cpu is not None and need.cpu > cpu:
        return Shortage(INSUFFICIENT_CPU_QUOTA, Figures(CPU, need.cpu, need.cpu, cpu))
    if memory is not None and need.memory > memory:
        return Shortage(INSUFFICIENT_MEMORY_QUOTA, Figures(MEMORY, need.memory, need.memory, memory))
    if not need.cards:
        return None
    for ancestor, limit in limits:
        found = QueueUsage(ChargeSum(), limit).card_shortage(need.cards, same_card=same_card)
        if found is not None:
            return found._replace(ancestor=ancestor)
    return None


def _of_alternatives(key: str, options: tuple[Figures, ...]) -> Shortage:
    """No alternative covers the claim alone: reported with the figures of the last one."""
    last = options[-1]
    return Shortage(INSUFFICIENT_SCALAR_QUOTA, Figures(key, last.requested, last.total, last.limit), options)
