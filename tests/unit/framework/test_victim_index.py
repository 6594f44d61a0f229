"""The minimal victims on one node: the first units, in order, that cover a shortfall, without those not needed."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.eviction.victim_index import VictimIndex, VictimUnit, covers, minimal_set
from capcard_sched.framework.session.statement import Statement
from tests.vectors.notation import VectorHarness


class _Job(NamedTuple):
    key: str


_job = cache(_Job)


def _unit(name: str, *gain: int) -> VictimUnit:
    """`e!` is the rest of gang `e`: it includes the gang's spare members `e1`, `e2`, ..."""
    job: Any = _job(name[0])
    return VictimUnit(job, (), np.array(gain, dtype=np.int64), name.endswith("!"), name.endswith("!"))


_VECTORS = [
    pytest.param("a2 b2 c2", (4,), "a b", id="the first ones"),
    pytest.param("a2 b2", (4,), "a b", id="exactly enough"),
    pytest.param("a2 b2", (5,), None, id="not enough"),
    pytest.param("", (1,), None, id="none"),
    pytest.param("a2 b4", (4,), "b", id="the last one alone is enough"),
    pytest.param("a1 b1 c4", (4,), "c", id="two that are not needed"),
    pytest.param("a1 b2 c3", (4,), "a c", id="the later of two goes free"),
    pytest.param("a2,0 b0,2 c2,2", (2, 2), "a b", id="both resources"),
    pytest.param("a2,0 b2,1 c0,2", (2, 2), "a c", id="one that frees too little of the second resource is not needed"),
    pytest.param("a2,9", (2, 0), "a", id="only what is lacking counts"),
    pytest.param("a2,0 b2,0", (2, 1), None, id="one of two resources is not enough"),
    pytest.param("e1 e!3", (4,), None, id="a spare member counts once"),
    pytest.param("e1 a1 e!3", (4,), "a e", id="a gang replaces its spare member"),
    pytest.param("a1 e!4", (4,), "e", id="a gang makes others unnecessary"),
]


def _units(text: str) -> list[VictimUnit]:
    found = []
    for word in text.split():
        name = word.rstrip("0123456789,")
        found.append(_unit(name, *(int(amount) for amount in word.removeprefix(name).split(","))))
    return found


@pytest.mark.parametrize("units, shortfall, victims", _VECTORS)
def test_minimal_victims(units: str, shortfall: tuple[int, ...], victims: str | None) -> None:
    chosen = minimal_set(_units(units), covers(np.array(shortfall, dtype=np.int64)))
    assert (None if chosen is None else " ".join(unit.job.key for unit in chosen)) == victims


def test_the_spare_members_of_a_gang_leave_alone_where_a_later_unit_makes_the_gang_unnecessary() -> None:
    chosen = minimal_set(_units("e1 e!3 b3"), covers(np.array((4,), dtype=np.int64)))
    assert chosen is not None
    assert [(unit.job.key, unit.whole) for unit in chosen] == [("e", False), ("b", False)]


_amounts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8)


@given(gains=_amounts, shortfall=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_the_victims_are_enough_and_none_of_them_can_stay(
    gains: list[tuple[int, int]], shortfall: tuple[int, int]
) -> None:
    units = [_unit(str(position), *gain) for position, gain in enumerate(gains)]
    chosen = minimal_set(units, covers(np.array(shortfall, dtype=np.int64)))

    def enough(victims: list[VictimUnit]) -> bool:
        total = np.sum([unit.gain for unit in victims], axis=0, dtype=np.int64) if victims else np.zeros(2)
        return bool((total >= np.array(shortfall)).all())

    if chosen is None:
        assert not units or not enough(units)
        return
    assert enough(chosen)
    if any(shortfall):
        assert not any(enough([one for one in chosen if one is not unit]) for unit in chosen)


def test_the_members_of_a_gang_are_read_again_after_one_left_and_another_was_placed() -> None:
    h = VectorHarness('actions: "allocate"\ntiers: [{plugins: [{name: gang}]}]')
    h.do("node n1 cpu=4; queue q; group g min=1; pod a cpu=1 @n1; pod b cpu=1")
    session, job = h.session(), h.job("g")
    index, statement = VictimIndex(session), Statement(session)
    assert [task.name for task in index.gang(job).movable] == ["a"]
    statement.evict(h.task("a"), "make room")
    statement.allocate(job, [h.task("b")], [session.nodes.by_name["n1"]])
    assert index.gang(job).movable == ()
    statement.discard()
    assert [task.name for task in index.gang(job).movable] == ["a"]
