"""Multi-card admission against a search over all assignments."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from capcard_sched.model.cards import QuotaGroup
from capcard_sched.model.refusal import Figures
from capcard_sched.plugins.capacity_card.card_flow import reachable_sum
from capcard_sched.plugins.capacity_card.charge import ChargeSum
from capcard_sched.plugins.capacity_card.multi_card_admission import MultiCardAdmission, Overdraft, QueueUsage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CARDS = "ABCD"
SETS = [frozenset(cards) for size in (2, 3) for cards in combinations(CARDS, size)]

amounts = st.integers(0, 4)
per_card = st.fixed_dictionaries(dict.fromkeys(CARDS, amounts))
claimed = st.lists(st.tuples(st.sampled_from(SETS), amounts), max_size=4)


def admission_of(
    used: Mapping[str, int], claims: Iterable[tuple[Iterable[str], int]], limits: Mapping[str, int]
) -> MultiCardAdmission:
    keys = (("|".join(sorted(cards)), amount) for cards, amount in claims)
    return MultiCardAdmission((*used.items(), *keys), limits.__getitem__)


def can_all_be_met(free: dict[str, int], claims: list[tuple[frozenset[str], int]]) -> bool:
    """By trying every way to give cards one at a time."""
    units = [cards for cards, amount in claims for _ in range(amount)]
    states = {tuple(sorted(free.items()))}
    for cards in units:
        states = {
            tuple(sorted({**dict(state), card: dict(state)[card] - 1}.items()))
            for state in states
            for card in cards
            if dict(state)[card] > 0
        }
    return bool(states)


@given(limits=per_card, used=per_card, claims=claimed)
@example(limits=dict.fromkeys(CARDS, 2), used=dict.fromkeys(CARDS, 0), claims=[(SETS[0], 4), (SETS[3], 2)])
@example(  # the second claim gets card B in two steps and gives all of it back
    limits={"A": 2, "B": 2, "C": 4, "D": 2},
    used=dict.fromkeys(CARDS, 0),
    claims=[(frozenset("ABC"), 3), (frozenset("BD"), 3), (frozenset("AD"), 3)],
)
@settings(max_examples=3 * settings().max_examples)
def test_claims_pass_exactly_when_all_can_be_met(
    limits: dict[str, int], used: dict[str, int], claims: list[tuple[frozenset[str], int]]
) -> None:
    admission = admission_of(used, claims, limits)
    possible = can_all_be_met({card: max(0, limits[card] - used[card]) for card in CARDS}, claims)
    overdraft = admission.overdraft(CARDS)
    assert (overdraft is None) == possible
    assert overdraft is None or overdraft.total > overdraft.limit


@given(limits=per_card, used=per_card, claims=claimed, requested=st.sampled_from(SETS), amount=st.integers(1, 4))
@settings(max_examples=2 * settings().max_examples)
def test_a_request_is_refused_with_a_violated_set_around_it(
    limits: dict[str, int],
    used: dict[str, int],
    claims: list[tuple[frozenset[str], int]],
    requested: frozenset[str],
    amount: int,
) -> None:
    free = {card: max(0, limits[card] - used[card]) for card in CARDS}
    more = [*claims, (requested, amount)]
    overdraft = admission_of(used, more, limits).overdraft(requested)
    if overdraft is None:
        # Claims of others that cannot be met do not count: the request itself can be met.
        assert can_all_be_met(free, [(requested, amount)])
        assert not can_all_be_met(free, claims) or can_all_be_met(free, more)
    else:
        cards = overdraft.cards
        assert cards & requested
        assert sum(count for claim, count in more if claim <= cards) > sum(free[card] for card in cards)
        assert overdraft.total > overdraft.limit


FAMILIES = [
    ("AB",),
    ("CD",),
    ("ABC",),
    ("ABCD",),
    ("AB", "CD"),
    ("AB", "ABCD"),
    ("AB", "ABC", "ABCD"),
    ("AB", "CD", "ABCD"),
]
families = st.sampled_from(FAMILIES).flatmap(
    lambda names: st.tuples(*[st.tuples(st.just(name), st.integers(0, 7)) for name in names])
)


def groups_of(family: Iterable[tuple[str, int]]) -> list[QuotaGroup]:
    return [QuotaGroup("|".join(name), frozenset(name), limit) for name, limit in family]


def are_met_within(limits: Mapping[str, int], groups: list[QuotaGroup], amounts: Mapping[str, int]) -> bool:
    """By trying every way to give single cards and claims one at a time."""
    units = [key.split("|") for key, amount in amounts.items() for _ in range(amount)]
    states: set[tuple[int, ...]] = {(0, 0, 0, 0)}
    for cards in units:
        states = {
            tuple(count + (one == card) for one, count in zip(CARDS, state, strict=True))
            for state in states
            for card in cards
        }
        states = {
            state
            for state in states
            if all(count <= limits[card] for card, count in zip(CARDS, state, strict=True))
            and all(
                sum(count for card, count in zip(CARDS, state, strict=True) if card in one.cards) <= one.limit
                for one in groups
            )
        }
    return bool(states)


def amounts_by_key(used: Mapping[str, int], claims: Iterable[tuple[Iterable[str], int]]) -> ChargeSum:
    found = ChargeSum({card: amount for card, amount in used.items() if amount})
    found.add(("|".join(sorted(cards)), amount) for cards, amount in claims)
    return found


@given(
    limits=st.fixed_dictionaries(dict.fromkeys(CARDS, st.integers(0, 5))),
    family=families,
    used=st.fixed_dictionaries(dict.fromkeys(CARDS, st.integers(0, 2))),
    held=st.lists(st.tuples(st.sampled_from(SETS), st.integers(0, 2)), max_size=2),
    need=st.fixed_dictionaries(dict.fromkeys(CARDS, st.integers(0, 2))),
    claims=st.lists(st.tuples(st.sampled_from(SETS), st.integers(0, 3)), max_size=3),
)
@settings(max_examples=6 * settings().max_examples, suppress_health_check=[HealthCheck.filter_too_much])
def test_requests_pass_exactly_when_all_fit_cards_and_groups(
    limits: dict[str, int],
    family: tuple[tuple[str, int], ...],
    used: dict[str, int],
    held: list[tuple[frozenset[str], int]],
    need: dict[str, int],
    claims: list[tuple[frozenset[str], int]],
) -> None:
    groups = groups_of(family)
    before, more = amounts_by_key(used, held), amounts_by_key(need, claims)
    assume(are_met_within(limits, groups, before))
    both = ChargeSum(before)
    both += more
    found = QueueUsage("q", before, limits.__getitem__, groups).shortage(more, same_card=False)
    assert (found is None) == are_met_within(limits, groups, both), found
    assert found is None or found.figures.total > found.figures.limit


@given(
    limits=st.fixed_dictionaries(dict.fromkeys(CARDS, st.integers(0, 5))), family=families, cards=st.sampled_from(SETS)
)
def test_the_reachable_sum_is_the_largest_one(
    limits: dict[str, int], family: tuple[tuple[str, int], ...], cards: frozenset[str]
) -> None:
    groups = groups_of(family)
    found = reachable_sum({card: limits[card] for card in sorted(cards)}, [(one, one.limit) for one in groups])
    key = "|".join(sorted(cards))
    assert are_met_within(limits, groups, {key: found})
    assert not are_met_within(limits, groups, {key: found + 1})


def test_the_smallest_violated_set_is_reported() -> None:
    claims = [({"A", "B"}, 4), ({"B", "C"}, 4)]
    limits = {"A": 2, "B": 1, "C": 9}
    assert admission_of({}, claims, limits).overdraft("A") == Overdraft(frozenset("AB"), 4, 3)


def test_a_shortage_of_alternatives_has_the_figures_of_each_card() -> None:
    usage = QueueUsage("q", ChargeSum({"A": 3, "B": 1}), {"A": 4, "B": 4}.__getitem__)
    found = usage.shortage(ChargeSum({"A|B": 5, "B": 1}), same_card=False)
    assert found is not None
    assert found.alternatives == (Figures("A", 5, 3, 4), Figures("B", 5, 2, 4))


def test_claims_elsewhere_are_not_held_against_a_card() -> None:
    admission = admission_of({}, [({"C", "D"}, 9)], dict.fromkeys(CARDS, 1))
    assert admission.overdraft("A") is None


@pytest.mark.parametrize("extra", [0, 1])
def test_many_overlapping_claims_stay_cheap(extra: int) -> None:
    """A user may write any number of alternatives."""
    cards = [f"card-{i}" for i in range(40)]
    claims = [({cards[i], cards[(i + 1) % 40]}, 1000) for i in range(40)]
    claims.append(({cards[0], cards[20]}, extra))
    admission = admission_of({}, claims, dict.fromkeys(cards, 1000))
    overdraft = admission.overdraft([cards[0]])
    assert overdraft == (None if not extra else Overdraft(frozenset(cards), 40000 + extra, 40000))
