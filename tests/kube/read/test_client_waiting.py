"""Waiting times: between attempts, and for the client-side limit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.kube.client import Throttle
from capcard_sched.kube.writes.write_backoff import RetryBackoff
from tests.clock import Clock


@given(st.integers(0, 2**32))
def test_delays_double_within_their_bounds(seed: int) -> None:
    backoff = RetryBackoff(0.2, 30.0, random.Random(seed))
    for turn in range(1, 12):
        bound = min(30.0, 0.2 * 2**turn)
        assert max(0.2, bound / 2) <= backoff.next() <= bound


def test_after_a_success_delays_are_short_again() -> None:
    backoff = RetryBackoff(0.2, 30.0, random.Random(1))
    for _ in range(2_000):  # no overflow, however long the outage
        longest = backoff.next()
    assert longest >= 15.0
    backoff.reset()
    assert backoff.next() <= 0.4


def test_two_clients_do_not_come_back_together() -> None:
    first, second = RetryBackoff(rng=random.Random(1)), RetryBackoff(rng=random.Random(2))
    assert [first.next() for _ in range(5)] != [second.next() for _ in range(5)]


def test_a_burst_goes_at_once_the_rest_at_the_rate_and_a_pause_fills_the_burst_and_no_more() -> None:
    clock = Clock()
    throttle = Throttle(qps=10, burst=3, clock=clock)
    assert [throttle.reserve() for _ in range(6)] == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])
    clock.now += 1_000
    assert [throttle.reserve() for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=60), st.floats(1, 100), st.integers(1, 20))
def test_no_window_holds_more_than_burst_and_rate_allow(pauses: list[float], qps: float, burst: int) -> None:
    clock = Clock()
    throttle = Throttle(qps, burst, clock)
    sent = []
    for pause in pauses:
        clock.now += pause
        sent.append(clock.now + throttle.reserve())
    assert sent == sorted(sent)  # first come, first served
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            assert last - first + 1 <= burst + (sent[last] - sent[first]) * qps + 1e-6


@pytest.mark.parametrize("qps", [0, -1])
def test_no_rate_means_no_limit(qps: float) -> None:
    throttle = Throttle(qps, 1)
    assert [throttle.reserve() for _ in range(100)] == [0.0] * 100
