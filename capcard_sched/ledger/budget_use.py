"""Card-time of a span by queue and card, for CardBudgets: one statement per table, however many charges there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import func, select

from capcard_sched.ledger import schema
from capcard_sched.ledger.charge_sums import held_cards
from capcard_sched.model.card_budgets import covering

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.ledger.database import LedgerDatabase


class CardTime(NamedTuple):
    """Thousandths of a card times milliseconds in the span, and thousandths held at its end."""

    used: int
    held: int


_NONE: Final = CardTime(0, 0)


def card_times(database: LedgerDatabase, begin: int, until: int) -> dict[tuple[str, str], CardTime]:
    """Use from `begin` to `until` (Unix milliseconds) by queue and card. Raises LedgerError.

    Removed charges count by whole UTC days from `begin` on.
    """
    daily = schema.DAILY_USE
    charges, days = database.read_all(
        [
            held_cards(begin, until, ("queue", "card")),
            select(daily.c.queue, daily.c.card, func.sum(daily.c.used))
            .where(daily.c.day >= begin, daily.c.day < until)
            .group_by(daily.c.queue, daily.c.card),
        ]
    )
    found = {(row.queue, row.card): CardTime(row.used, row.thousandths) for row in charges}
    for queue, card, used in map(tuple, days):
        more = found.get((queue, card), _NONE)
        found[queue, card] = more._replace(used=more.used + int(used))
    return found


def subtree_times(
    times: Mapping[tuple[str, str], CardTime], parents: Mapping[str, str]
) -> dict[tuple[str, str], CardTime]:
    """The sums by queue and card over the queues that its budgets cover. O(times x depth of the tree).

    `parents`: each queue to its parent, "" for root.
    """
    found: dict[tuple[str, str], CardTime] = {}
    for (queue, card), use in times.items():
        for above in covering(queue, parents.get):
            known = found.get((above, card), _NONE)
            found[above, card] = CardTime(known.used + use.used, known.held + use.held)
    return found
