"""Weighted shares: the exact fill, the iterative rounds, and their agreement."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.plugins.proportion import fill, iterate
from capcard_sched.testing import Harness
from tests.unit.plugins.capacity.clusters import work

_PODS = 2


class Case(NamedTuple):
    id: str
    total: int
    weights: list[int]
    requests: list[int]
    guarantees: list[int]
    capabilities: list[int | None]
    exact: list[int]
    rounds: list[int]


CASES = [
    Case("a small request is met, the rest goes on", 10_000, [1, 1], [2000, 20_000], [0, 0], [None, None],
         [2000, 8000], [2000, 8000]),
    Case("by weight", 12_000, [1, 2], [20_000, 20_000], [0, 0], [None, None], [4000, 8000], [4000, 8000]),
    Case("no more than the capability", 10_000, [1, 1], [20_000, 20_000], [0, 0], [3000, None],
         [3000, 7000], [3000, 7000]),
    Case("a guarantee is kept free", 10_000, [1, 1], [0, 20_000], [4000, 0], [None, None],
         [4000, 6000], [4000, 6000]),
    Case("cpu", 8000, [1, 3], [8000, 2000], [0, 0], [None, None], [6000, 2000], [6000, 2000]),
    Case("gpu", 8000, [1, 3], [1000, 8000], [0, 0], [None, None], [1000, 7000], [1000, 7000]),
    Case("three queues", 10_000, [1, 2, 1], [1000, 3000, 20_000], [0, 0, 0], [None, None, None],
         [1000, 3000, 6000], [1000, 3000, 6000]),
    Case("a guarantee is no head start", 20_000, [1, 1, 2], [20_000, 20_000, 2000], [6000, 0, 0],
         [None, None, None], [9000, 9000, 2000], [9500, 8500, 2000]),
    Case("a guarantee does not oversubscribe", 12_000, [1, 1, 1], [20_000] * 3, [6000, 0, 0],
         [None, None, None], [6000, 3000, 3000], [6000, 4000, 4000]),
]  # fmt: skip


def _real_capabilities(case: Case) -> list[int]:
    free = case.total - sum(case.guarantees)
    return [
        min(free + guarantee, case.total if capability is None else capability)
        for guarantee, capability in zip(case.guarantees, case.capabilities, strict=True)
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_exact_fill_gives_the_worked_amounts(case: Case) -> None:
    ceilings = [min(pair) for pair in zip(_real_capabilities(case), case.requests, strict=True)]
    assert fill(case.total, case.weights, case.guarantees, ceilings) == case.exact


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_rounds_of_the_reference_give_the_worked_amounts(case: Case) -> None:
    def column(values: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.array([[value, 0, 0] for value in values], dtype=np.int64)

    deserved = iterate(
        np.array([case.total, 0, 110]),
        np.array(case.weights),
        column(case.guarantees),
        column(_real_capabilities(case)),
        column(case.requests),
        pods_column=_PODS,
    )
    assert deserved[:, 0].tolist() == pytest.approx(case.rounds, abs=0.1)


def test_rounds_keep_a_blocked_queue_in_the_division() -> None:
    total = np.array([8000, 8000, 110])
    requests = np.array([[8000, 1000, 1], [2000, 8000, 1]])
    capability = np.array([[8000, 8000, 110]] * 2)
    deserved = iterate(
        total, np.array([1, 3]), np.zeros((2, 3), dtype=np.int64), capability, requests, pods_column=_PODS
    )
    assert deserved[:, :2] == pytest.approx(np.array([[6000, 1000], [2000, 7000]]), abs=0.5)


def test_pods_alone_keep_no_round_going() -> None:
    no_units = np.zeros((1, 3), dtype=np.int64)
    deserved = iterate(
        np.array([0, 0, 110]), np.array([1]), no_units, no_units + 110, np.array([[0, 0, 200]]), pods_column=_PODS
    )
    assert deserved.tolist() == [[0, 0, 110]]


def test_weights_below_one_get_their_floor() -> None:
    assert fill(100, [0, -1, 1], [5, 7, 0], [50, 50, 1000]) == [5, 7, 88]


def test_those_at_their_ceiling_stay_there_while_others_wait_at_their_floor() -> None:
    assert fill(15, [1, 1], [0, 10], [5, 20]) == [5, 10]
    assert fill(14, [1, 1], [0, 10], [5, 20]) == [4, 10]
    assert fill(16, [1, 1], [0, 10], [5, 20]) == [5, 11]


def test_floors_beyond_the_total_are_given_all_the_same() -> None:
    assert fill(10, [1, 1], [8, 8], [20, 20]) == [8, 8]


_QUEUE = st.tuples(st.integers(1, 50), st.integers(0, 40), st.integers(0, 200))


@given(st.integers(0, 1000), st.lists(_QUEUE, min_size=1, max_size=8))
def test_all_entries_share_one_level(total: int, queues: list[tuple[int, int, int]]) -> None:
    weights = [weight for weight, _, _ in queues]
    floors = [floor for _, floor, _ in queues]
    tops = [max(floor, ceiling) for _, floor, ceiling in queues]
    shares = fill(total, weights, floors, tops)
    assert all(floor <= share <= top for floor, share, top in zip(floors, shares, tops, strict=True))
    assert sum(shares) <= max(total, sum(floors))
    # Less than one base unit each is lost to rounding.
    assert sum(shares) > min(max(total, sum(floors)), sum(tops)) - len(queues)
    # No queue that could take more stands lower, for its weight, than any that is above its floor.
    for share, weight, top in zip(shares, weights, tops, strict=True):
        for other, other_weight, floor in zip(shares, weights, floors, strict=True):
            if share < top and other > floor:
                assert Fraction(share + 1, weight) > Fraction(other, other_weight)


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20_000)), min_size=1, max_size=6),
)
def test_without_guarantees_exact_and_rounds_agree(total: int, queues: list[tuple[int, int]]) -> None:
    weights = [weight for weight, _ in queues]
    requests = [request for _, request in queues]
    exact = fill(total, weights, [0] * len(queues), [min(total, request) for request in requests])
    rows = np.array([[request, 0, 0] for request in requests], dtype=np.int64)
    rounds = iterate(np.array([total, 0, 0]), np.array(weights), rows * 0, rows * 0 + total, rows, pods_column=_PODS)
    assert rounds[:, 0] == pytest.approx(np.array(exact), abs=1.5)


@given(st.integers(0, 1000), st.lists(_QUEUE, min_size=1, max_size=8))
def test_the_order_of_queues_does_not_matter(total: int, queues: list[tuple[int, int, int]]) -> None:
    def shares(given: list[tuple[int, int, int]]) -> dict[tuple[int, int, int], int]:
        weights, floors, ceilings = ([queue[i] for queue in given] for i in range(3))
        return dict(zip(given, fill(total, weights, floors, ceilings), strict=True))

    assert shares(queues) == shares(queues[::-1]) == shares(sorted(queues))


def test_deserved_never_adds_up_to_more_than_the_cluster() -> None:
    h = Harness('actions: "enqueue, allocate"\ntiers: [{plugins: [{name: proportion}]}]')
    h.node("n1", cpu="10", memory="10Gi", pods=10_000)
    rng = np.random.default_rng(1)
    for i in range(12):
        h.queue(f"q{i}", weight=int(rng.integers(1, 9)))
        work(h, f"q{i}", waits=int(rng.integers(0, 9)), each=f"{rng.integers(1, 3000)}m")
    h.session()
    deserved = [one.value for one in h.plugin("proportion").metrics() if one.name == "queue_deserved_milli_cpu"]
    assert 9_900 < sum(deserved) <= 10_000


def test_a_refusal_names_its_hook() -> None:
    h = Harness("actions: allocate\ntiers: [{plugins: [{name: proportion}]}]")
    h.node("n", cpu="4")
    h.queue("q")
    h.group("g")
    h.pod("p", requests={"cpu": "8"})
    queue = h.session().queues["q"]
    for hook in ("allocatable", "preemptive"):
        assert getattr(h.plugin("proportion"), hook)(queue, h.task("p")).hook == hook
