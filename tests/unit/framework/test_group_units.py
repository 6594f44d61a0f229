"""The order of units: few pods complete the minimum, at a bounded cost per job."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.session import group_units
from capcard_sched.framework.session.group_units import GroupUnit, _first_of_fewest


def _units(needs: list[int]) -> list[GroupUnit]:
    return [GroupUnit(None, (), need, completes=True, is_begun=False) for need in needs]


def _by_subsets(needs: list[int], lacking: int) -> int:
    """The same by all subsets of the units of several pods, single pods filling up what these lack."""
    several, singles = [at for at, need in enumerate(needs) if need > 1], needs.count(1)
    sums: dict[int, list[tuple[int, ...]]] = {}
    for chosen in range(1 << len(several)):
        members = tuple(at for place, at in enumerate(several) if chosen >> place & 1)
        sums.setdefault(sum(needs[at] for at in members), []).append(members)
    enough = [total for total in sums if total + singles >= lacking]
    exact = [total for total in enough if total <= lacking]
    total = max(exact) if exact else min(enough, default=0)
    if total:
        return min(members[0] for members in sums[total])
    return needs.index(1) if 1 in needs else 0


@given(st.lists(st.integers(1, 6), max_size=9), st.integers(0, 30))
def test_the_first_unit_is_of_those_that_complete_the_minimum_with_the_fewest_pods(
    needs: list[int], lacking: int
) -> None:
    assert _first_of_fewest(_units(needs), lacking) == _by_subsets(needs, lacking)


def test_a_job_of_thousands_of_units_has_a_bounded_cost() -> None:
    """Each call removes one unit, as a placement does."""
    waiting = _units([2 + number % 5 for number in range(4000)])
    lacking, taken = sum(unit.need for unit in waiting) - 3, 0
    begun = time.process_time()
    while lacking > 0 and waiting:
        unit = waiting.pop(_first_of_fewest(waiting, lacking))
        lacking, taken = lacking - unit.need, taken + 1
    assert lacking == 0, "the sum is exact"
    assert taken > 3990
    assert time.process_time() - begun < 5


def test_beyond_the_compared_units_all_are_needed() -> None:
    most = group_units._MOST_COMPARED
    assert _first_of_fewest(_units([1, *[2] * (most + 10)]), 2 * most + 1) == 1
