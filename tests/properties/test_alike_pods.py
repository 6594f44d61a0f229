"""Pods that differ in names of generated claims alone get the nodes and devices that they get one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from capcard_sched.framework.placement.engine import PlacementEngine
from tests.properties.test_failed_claims import CONFS, Claimants, Gang, World, _Event

#: Mostly claims of one kind; also alternatives, the claim that pods share, and none.
_kinds = st.sampled_from([0, 0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8, -1, -2])
_gangs = st.builds(
    lambda queue, pods, is_whole, cpu, high: Gang(queue, len(pods) if is_whole else 1, pods, cpu, high),
    st.sampled_from(["q", "q", "r"]),
    st.one_of(
        st.builds(lambda kind, count: (kind,) * count, _kinds, st.integers(2, 7)),
        st.builds(lambda kind, other, count: (*(kind,) * count, other), _kinds, _kinds, st.integers(1, 4)),
    ),
    st.booleans(),
    st.integers(1, 3),
    st.booleans(),
)
_WHAT: Final = (
    *("end", "delete pod", "add gang", "renew claim", "delete claim", "take claim", "cordon", "slice", "quota"),
)
_worlds = st.builds(
    World,
    nodes=st.lists(
        st.tuples(
            st.sampled_from([5, 20, 20, 64]),
            st.lists(st.tuples(st.sampled_from("aaab"), st.integers(0, 1)), min_size=1, max_size=6),
        ),
        min_size=2,
        max_size=5,
    ),
    gangs=st.lists(_gangs, min_size=2, max_size=5),
    turns=st.lists(
        st.tuples(
            st.lists(
                st.builds(_Event, st.sampled_from(_WHAT), st.integers(0, 30), st.integers(0, 30)),
                min_size=1,
                max_size=2,
            ),
            st.sampled_from([1, 301]),
        ),
        min_size=1,
        max_size=4,
    ),
    held=st.integers(0, 3),
)
_ONE_BY_ONE: Final = 1


def _decisions(conf: str, world: World) -> list[Any]:
    claimants, found = Claimants(CONFS[conf], world), []
    for events, seconds in ([], 1), *world.turns, ([], 1):
        for event in events:
            claimants.happen(event)
        found.append(claimants.step(seconds, late=False))
    return found


@pytest.mark.parametrize("conf", sorted(CONFS))
@given(world=_worlds)
@settings(deadline=None)
def test_alike_pods_are_placed_as_one_by_one(conf: str, world: World) -> None:
    found = _decisions(conf, world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlacementEngine, "max_alike", _ONE_BY_ONE)
        assert _decisions(conf, world) == found


@pytest.mark.parametrize("most", [_ONE_BY_ONE, PlacementEngine.max_alike])
def test_a_quota_ends_while_pods_choose_among_cards(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlacementEngine, "max_alike", most)
    claimants = Claimants(CONFS["cards"], World([(64, [("a", 0), ("a", 0), ("b", 0), ("b", 0)])] * 3, [], [], held=0))
    claimants.happen(_Event("quota", 0, 2))
    claimants.add_gang(Gang("q", 1, (2,) * 6, 1))
    decisions = [each for _ in range(4) for each in claimants.step(1, late=False)[0]]
    assert Counter(each.annotations["volcano.sh/card.assigned"] for each in decisions) == {"a": 2, "b": 2}
