"""Whether a request fits the limits of a queue beside its usage, for all cards and claims together."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from capcard_sched.framework.quota.limits import QuotaShortage
from capcard_sched.model.refusal import Figures
from capcard_sched.plugins.capacity_card.charge import alternatives_of
from capcard_sched.plugins.capacity_card.multi_card_admission import MultiCardAdmission

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.plugins.capacity_card.charge import ChargeSum


class QueueUsage:
    """Allocated and reserved amounts of a queue at one moment, beside its limits."""

    def __init__(self, queue: str, used: ChargeSum, limit: Callable[[str], int]) -> None:
        """`limit`: the limit of a key."""
        self.queue = queue
        self.used = used
        self.limit = limit
        self._has_claims = any("|" in key for key in used)
        self._admission: MultiCardAdmission | None = None

    @cached_property
    def content(self) -> tuple[object, ...]:
        """The queue and the amounts: equal for equal usages."""
        return self.queue, *sorted(self.used.items())

    def shortage(self, need: ChargeSum, *, same_card: bool) -> QuotaShortage | None:
        """The first requested key, in sorted order, that does not fit together with all others of the queue.

        Alternatives of a claim add up, except with `same_card`.
        """
        requests = {key: amount for key, amount in need.items() if amount > 0}
        limit, used = self.limit, self.used
        joint = self._has_claims or any("|" in key for key in requests)
        admission: MultiCardAdmission | None = None
        for key in sorted(requests):
            requested, alternatives = requests[key], alternatives_of(key)
            total = used[key] + requested
            if len(alternatives) == 1:
                if total > limit(key):
                    return self._short(Figures(key, requested, total, limit(key)))
                if not joint:
                    continue
            elif same_card:
                options = tuple(
                    Figures(card, requested, used[card] + requests.get(card, 0) + requested, limit(card))
                    for card in alternatives
                )
                if all(option.total > option.limit for option in options):  # reported with the figures of the last one
                    return self._short(Figures(key, requested, options[-1].total, options[-1].limit), options)
            if admission is None:
                if self._admission is None:
                    self._admission = MultiCardAdmission.of(used, limit)
                admission = self._admission.with_more(requests)
            found = admission.overdraft(alternatives)
            if found is not None:
                options = tuple(
                    Figures(card, requested, used[card] + requests.get(card, 0), limit(card))
                    for card in sorted(found.cards)
                )
                return self._short(Figures(key, requested, found.total, found.limit), options)
        return None

    def _short(self, figures: Figures, alternatives: tuple[Figures, ...] = ()) -> QuotaShortage:
        return QuotaShortage([figures.resource], figures, self.queue, alternatives)
