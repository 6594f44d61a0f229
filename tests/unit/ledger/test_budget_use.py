"""Card-time for budgets equals the integral of the pods, and is additive over spans."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import given, settings

from capcard_sched.ledger.budget_use import CardTime, card_times, subtree_times
from capcard_sched.ledger.database import IN_MEMORY
from capcard_sched.ledger.rollup import roll_up
from capcard_sched.ledger.usage_ledger import UsageLedger, open_ledger
from capcard_sched.simulation.clock import EPOCH
from capcard_sched.web.budget_operator import in_order
from tests.unit.ledger.simulated_day import SimulatedDay

#: Milliseconds.
BEGIN = EPOCH * 1000
DAY = 86_400_000


def recorded(ledger: UsageLedger, seed: int) -> SimulatedDay:
    day = SimulatedDay(seed)
    ledger.start("day", "simulation", EPOCH)
    for now, deltas, intents in day.steps:
        ledger.feed(now, deltas, intents)
    ledger.flush()
    return day


def used(found: dict[tuple[str, str], CardTime]) -> dict[tuple[str, str], int]:
    return {key: use.used for key, use in found.items() if use.used}


@given(seed=st.integers(0, 10_000), at=st.integers(0, 600_000))
@settings(max_examples=max(5, settings().max_examples // 10))
def test_use_is_the_integral_and_additive(seed: int, at: int) -> None:
    with open_ledger(IN_MEMORY) as ledger:
        day = recorded(ledger, seed)
        end = round(day.end * 1000)
        middle = min(BEGIN + at, end)
        whole = card_times(ledger.database, BEGIN, end)
        assert used(whole) == day.integral
        first, second = (card_times(ledger.database, *span) for span in ((BEGIN, middle), (middle, end)))
        none = CardTime(0, 0)
        sums = {key: first.get(key, none).used + second.get(key, none).used for key in {*first, *second}}
        assert {key: amount for key, amount in sums.items() if amount} == day.integral
        # The cards held at a moment are the use of the millisecond after it.
        after = card_times(ledger.database, middle, middle + 1) if middle < end else {}
        if middle < end:
            assert {key: use.held for key, use in first.items() if use.held} == used(after)


def test_removed_charges_count_by_day(new_url: Callable[[], str]) -> None:
    with open_ledger(new_url()) as ledger:
        day = recorded(ledger, 7)
        assert day.integral
        end = round(day.end * 1000)
        before = card_times(ledger.database, BEGIN, end)
        roll_up(ledger.database, BEGIN + 2 * DAY)
        assert used(card_times(ledger.database, BEGIN, end)) == used(before) == day.integral


def test_times_of_a_subtree_are_summed_up_once() -> None:
    parents = {"root": "", "up": "root", "a": "up", "b": "up", "x": "y", "y": "x", "top": ""}
    times = {
        (queue, "card"): CardTime(10**number, 1) for number, queue in enumerate(("a", "b", "up", "x", "gone", "top"))
    }
    found = {queue: use.used for (queue, _), use in subtree_times(times, parents).items()}
    assert found == {"a": 1, "b": 10, "up": 111, "x": 1000, "y": 1000, "gone": 10_000, "top": 100_000, "root": 111_111}


def test_statuses_of_changed_budgets_are_written_first() -> None:
    budgets = {
        name: {"metadata": {"generation": 2}, "status": {"observedGeneration": shown}}
        for name, shown in (("known", 2), ("changed", 1), ("also-known", 2))
    } | {"new": {"metadata": {"generation": 1}}}
    patches = dict.fromkeys(budgets, "")
    assert [name for name, _ in in_order(patches, budgets)] == ["changed", "new", "known", "also-known"]
