"""The counter of card-seconds equals the ledger within one scrape interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from sys import getrefcount

import hypothesis.strategies as st
from hypothesis import given, settings

from capcard_sched.ledger.card_seconds import CardSecondsCounter
from capcard_sched.ledger.database import IN_MEMORY
from capcard_sched.ledger.usage_ledger import open_ledger
from capcard_sched.ledger.usage_report import UsageQuery
from capcard_sched.model.deltas import Delta, ObjectChanged, ObjectGone
from capcard_sched.model.intents import Intent
from capcard_sched.simulation.clock import EPOCH
from tests.clock import Clock
from tests.objects import pod
from tests.unit.ledger.simulated_day import UNTIL, SimulatedDay, objects

SCRAPE = 15
DAY = 86400.0
Steps = Sequence[tuple[float, list[Delta], list[Intent]]]


class ScrapedCounter:
    """A counter that is read at an interval."""

    def __init__(self, since: float = 0.0) -> None:
        """`since`: seconds after the beginning of the day, when the process starts and becomes leader."""
        self._clock = Clock(EPOCH + since)
        self._counter = CardSecondsCounter("default", self._clock)
        self._counter.lead(leading=True)
        self._next = since + SCRAPE
        self.values: dict[tuple[str, str, str], list[float]] = {}

    def start(self, first: Sequence[Delta]) -> None:
        """The first lists, in any order of kinds."""
        self._counter.apply(first)
        self._counter.lists_applied()

    def follow(self, steps: Steps, until: float) -> None:
        """Take steps and scrapes up to some seconds of the day; the leadership ends there."""
        left = list(steps)
        while self._next <= until:
            while left and left[0][0] <= EPOCH + self._next:
                self._step(left.pop(0))
            self._clock.now = EPOCH + self._next
            self._read()
            self._next += SCRAPE
        for step in left:
            self._step(step)
        self._clock.now = EPOCH + until
        self._read()
        self._counter.lead(leading=False)
        self._clock.now += DAY
        assert self._counter.read() == []

    def _step(self, step: tuple[float, list[Delta], list[Intent]]) -> None:
        self._clock.now = step[0]
        self._counter.apply(step[1], step[0])

    def _read(self) -> None:
        for labels, value in self._counter.read():
            values = self.values.setdefault(labels, [])
            assert not values or values[-1] <= value, "a counter does not decrease"
            values.append(value)

    def totals(self) -> Counter[tuple[str, str, str]]:
        return Counter({labels: values[-1] for labels, values in self.values.items() if values[-1]})

    def increase(self, labels: tuple[str, str, str]) -> float:
        """PromQL's, without extrapolation: the first value of a series is not counted."""
        return self.values[labels][-1] - self.values[labels][0]


def ledger_seconds(day: SimulatedDay) -> dict[tuple[str, str, str], float]:
    """Card-seconds by queue, card and service type."""
    with open_ledger(IN_MEMORY) as ledger:
        ledger.start("day", "simulation", EPOCH)
        for now, deltas, intents in day.steps:
            ledger.feed(now, deltas, intents)
        ledger.flush()
        report = ledger.usage(UsageQuery(EPOCH - DAY, EPOCH + DAY, ("queue", "card", "service")))
    return {(row.group[0], row.group[1], row.group[2]): row.used / 1e6 for row in report.rows if row.used}


def number_of_cards(seed: int) -> int:
    """Of the largest type."""
    found: Counter[str] = Counter()
    for one in objects(seed):
        if one["kind"] == "Node":
            labels = one["metadata"]["labels"]
            found[labels["nvidia.com/gpu.product"]] += int(labels["nvidia.com/gpu.count"])
    return max(found.values())


@given(seed=st.integers(0, 10_000))
@settings(max_examples=max(10, settings().max_examples // 8))
def test_the_increase_of_the_counter_equals_the_ledger_within_one_scrape_interval(seed: int) -> None:
    day = SimulatedDay(seed)
    counter = ScrapedCounter()
    counter.start(day.steps[0][1])
    counter.follow(day.steps[1:], UNTIL)
    used = ledger_seconds(day)
    assert counter.totals() == used
    interval = SCRAPE * number_of_cards(seed)
    assert [labels for labels in counter.values if used.get(labels, 0) - counter.increase(labels) > interval] == []


@given(seed=st.integers(0, 10_000), half=st.integers(1, UNTIL - 1))
@settings(max_examples=max(10, settings().max_examples // 8))
def test_the_counters_of_two_leaders_add_up_to_the_ledger(seed: int, half: int) -> None:
    day = SimulatedDay(seed)
    before = [step for step in day.steps if step[0] <= EPOCH + half]
    first, second = ScrapedCounter(), ScrapedCounter(half)
    first.start(day.steps[0][1])
    first.follow(before[1:], half)
    present: dict[tuple[str, str, str], Delta] = {}
    for delta in (delta for _, deltas, _ in before for delta in deltas):
        if isinstance(delta, ObjectChanged):
            meta = delta.object.metadata
            present[type(delta.object).__name__, meta.namespace or "", meta.name] = delta
        elif isinstance(delta, ObjectGone):
            present.pop((f"{delta.kind}Object", delta.namespace, delta.name), None)
    second.start([*reversed(present.values())])  # pods before their nodes and PodGroups
    second.follow(day.steps[len(before) :], UNTIL)
    used, total = ledger_seconds(day), first.totals() + second.totals()
    # A step of the simulation is a second: a binding before the change of leaders may arrive after it.
    unseen = number_of_cards(seed)
    assert {labels for labels in used.keys() | total if not 0 <= used.get(labels, 0) - total[labels] <= unseen} == set()


def test_pods_that_wait_are_not_held_until_the_first_lists_are_complete() -> None:
    pods = [
        pod("waiting", requests={"nvidia.com/gpu": "1"}).object,
        pod("running", requests={"cpu": "1"}, node="n1").object,
        pod("training", requests={"nvidia.com/gpu": "1"}, node="n1").object,
    ]
    counter, before = CardSecondsCounter(), [getrefcount(each) for each in pods]
    counter.apply([ObjectChanged(each) for each in pods])
    after = [getrefcount(each) for each in pods]
    assert [now - former for now, former in zip(after, before, strict=True)] == [0, 0, 1], "10,000 take 32 MiB"
