"""CardBudgets: periods, card-hours as text, facts and statuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.card_budgets import (
    CARD_HOUR,
    PERIODS,
    BudgetUse,
    CardBudget,
    CardBudgetObject,
    base_use,
    budget_status,
    card_budget_facts,
    hours_text,
    period_at,
    spent_at,
    status_patch,
    use_of,
    with_condition,
)
from capcard_sched.model.timestamps import format_timestamp, parse_timestamp
from capcard_sched.simulation.store import merged

USES = st.integers(0, 10**12 * CARD_HOUR // 10**3)
HOURS = st.integers(0, 10**6)
MOMENTS = st.integers(0, 4_102_444_800_000)


def budget(hours: int = 100, period: str = "month") -> CardBudget:
    return CardBudget("b", "q", period, "stop", {"A": hours}, {}, (), "")


def object_of(spec: dict[str, Any], status: dict[str, Any] | None = None) -> CardBudgetObject:
    given = {"queue": "q", "period": "month", "cards": {"A": "100h"}, **spec}
    return msgspec.convert({"metadata": {"name": "b"}, "spec": given, "status": status or {}}, CardBudgetObject)


@pytest.mark.parametrize(
    "period, moment, begin, end",
    [
        ("month", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ("month", "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("month", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ("week", "2026-01-01T00:00:00Z", "2025-12-29T00:00:00Z", "2026-01-05T00:00:00Z"),
        ("week", "2026-01-05T00:00:00Z", "2026-01-05T00:00:00Z", "2026-01-12T00:00:00Z"),
        ("rolling30d", "2026-01-31T06:00:00Z", "2026-01-01T06:00:00Z", ""),
    ],
)
def test_periods_are_those_of_utc(period: str, moment: str, begin: str, end: str) -> None:
    found = period_at(period, round(parse_timestamp(moment) * 1000))
    assert format_timestamp(found.begin / 1000) == begin
    assert (format_timestamp(found.end / 1000) if found.end is not None else "") == end


@given(moment=MOMENTS, period=st.sampled_from(PERIODS))
def test_a_moment_is_in_its_period_and_the_end_in_the_next(moment: int, period: str) -> None:
    found = period_at(period, moment)
    assert found.begin <= moment
    if found.end is not None:
        assert moment < found.end
        assert period_at(period, found.begin) == period_at(period, found.end - 1) == found
        assert period_at(period, found.end).begin == found.end


@given(use=USES, hours=HOURS)
def test_the_status_is_spent_exactly_when_the_use_reaches_the_limit(use: int, hours: int) -> None:
    status = budget_status(budget(hours), BudgetUse({"A": use}, {}), 0, None)
    assert status["spent"] == (use >= hours * CARD_HOUR)
    facts, problems = card_budget_facts(object_of({"cards": {"A": f"{hours}h"}}, status))
    assert not problems
    assert facts is not None
    assert facts.spent == (("A",) if use >= hours * CARD_HOUR else ())
    assert use_of(hours_text(use)) <= use < use_of(hours_text(use)) + CARD_HOUR // 100


@given(use=st.integers(0, 200 * CARD_HOUR), held=st.integers(0, 10**6))
def test_the_forecast_is_the_first_moment_at_which_the_budget_is_spent(use: int, held: int) -> None:
    moment = spent_at(budget(), BudgetUse({"A": use}, {"A": held}), 1000)
    if moment is None:
        assert use >= 100 * CARD_HOUR or not held
        return
    assert use + (moment - 1000) * held >= 100 * CARD_HOUR
    assert use + (moment - 1001) * held < 100 * CARD_HOUR


@pytest.mark.parametrize(
    "status, used, spent",
    [
        ({}, {}, ()),
        ({"used": {"A": "100.00h"}, "remaining": {"A": "0.00h"}}, {"A": "100.00h"}, ("A",)),
        ({"used": {"A": "90.00h"}, "remaining": {"A": "10.00h"}}, {"A": "90.00h"}, ()),
        ({"used": {"B": "100.00h"}, "remaining": {"B": "0.00h"}}, {}, ()),
        ({"used": {"A": "lots"}, "remaining": {"A": "0.00h"}}, {}, ()),
        ({"used": {"A": "100.00h"}, "remaining": {"A": "none"}}, {"A": "100.00h"}, ()),
        ({"used": {"A": "100.00h"}}, {"A": "100.00h"}, ()),
    ],
)
def test_facts_are_those_of_the_status(status: dict[str, Any], used: dict[str, str], spent: tuple[str, ...]) -> None:
    facts, problems = card_budget_facts(object_of({}, status))
    assert not problems
    assert facts is not None
    assert (facts.used, facts.spent) == (used, spent)


def test_a_patch_leads_from_any_status_to_the_new_one() -> None:
    before = {
        "used": {"gone": "1.00h"},
        "remaining": {"gone": "1.00h"},
        "periodEnd": "2026-02-01T00:00:00Z",
        "conditions": [{"type": "Other", "status": "True"}, {"type": "Spent", "status": "True"}],
    }
    rolling = budget(period="rolling30d")
    status = with_condition(budget_status(rolling, BudgetUse({}, {}), 0, 7), before, 0)
    assert merged(before, status_patch(status, before)) == status
    assert [one["type"] for one in status["conditions"]] == ["Other", "Spent"]
    assert status["observedGeneration"] == 7
    assert "periodEnd" not in status


def test_the_transition_time_of_the_condition_changes_with_its_status_only() -> None:
    spent, left = ({"A": 100 * CARD_HOUR}, {"A": 0})
    first = with_condition(budget_status(budget(), BudgetUse(left, {}), 0, 1), {}, 0)
    second = with_condition(budget_status(budget(), BudgetUse(left, {}), 5000, 1), first, 5000)
    third = with_condition(budget_status(budget(), BudgetUse(spent, {}), 9000, 1), second, 9000)
    times = [one["conditions"][0]["lastTransitionTime"] for one in (first, second, third)]
    assert times == ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-01T00:00:09Z"]


@pytest.mark.parametrize(
    "period, start, used",
    [
        ("month", "2026-01-01T00:00:00Z", {"A": CARD_HOUR}),
        ("month", "2025-12-01T00:00:00Z", {}),
        ("month", "", {}),
        ("rolling30d", "2025-12-11T12:00:00Z", {"A": CARD_HOUR}),
        ("rolling30d", "2025-10-11T12:00:00Z", {}),
    ],
)
def test_a_given_status_counts_in_its_period_only(period: str, start: str, used: dict[str, int]) -> None:
    obj = object_of({"period": period}, {"used": {"A": "1.00h"}, "remaining": {"A": "99.00h"}, "periodStart": start})
    facts, _ = card_budget_facts(obj)
    assert facts is not None
    assert base_use(obj, facts, round(parse_timestamp("2026-01-10T12:00:00Z") * 1000)) == used
