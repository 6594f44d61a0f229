"""Cards in use over time by card and queue, and evictions: of a simulated run or of a recording."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate, pairwise
from math import inf
from typing import TYPE_CHECKING, Final

from capcard_sched.model.trials import InsightPart
from capcard_sched.reports.evictions import preemptor_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.reports.recording import Recorder

#: Points of a series; a longer one is reduced to the means of as many intervals.
_MOST_POINTS: Final = 480
#: Evictions listed.
_MOST_EVICTIONS: Final = 200


class QueueSeries(InsightPart, frozen=True, kw_only=True):
    """Cards of one queue in use, as a step function: each amount holds from its time to the next."""

    #: "" for shared cards: the queues of their tenants are not recorded.
    queue: str
    #: Seconds since the beginning, in ascending order.
    times: tuple[float, ...]
    amounts: tuple[float, ...]

    def mean(self, begin: float, end: float) -> float:
        """The mean between two times in seconds since the beginning."""
        area = 0.0
        edges = [*self.times, max(end, self.times[-1] if self.times else end)]
        for amount, (left, right) in zip(self.amounts, pairwise(edges), strict=True):
            area += amount * max(0.0, min(right, end) - max(left, begin))
        return area / (end - begin) if end > begin else 0.0


class CardSeries(InsightPart, frozen=True, kw_only=True):
    """One card over the run."""

    card: str
    #: Cards of the cluster at the end.
    total: float
    queues: tuple[QueueSeries, ...]


class EvictionMark(InsightPart, frozen=True, kw_only=True):
    """One pod that the scheduler evicted. `at` in seconds since the beginning."""

    at: float
    pod: str
    queue: str
    node: str
    #: "" and 0 without cards.
    card: str
    cards: float
    #: The pod that takes its place, and the action.
    preemptor: str


class History(InsightPart, frozen=True, kw_only=True):
    """A whole run. Times of its parts are seconds since `begin`, which is in Unix seconds."""

    begin: float
    end: float
    cards: tuple[CardSeries, ...] = ()
    evictions: tuple[EvictionMark, ...] = ()
    #: Key of a PodGroup to the spans in which some of its pods had cards; an open one ends with infinity.
    lives: dict[str, tuple[tuple[float, float], ...]] = {}
    #: Evicted pod to the key of its PodGroup.
    jobs: dict[str, str] = {}

    @property
    def seconds(self) -> float:
        """The length of the run, never negative."""
        return max(0.0, self.end - self.begin)


def history_of(recorder: Recorder, begin: float) -> History:
    """The history of a recorded run since `begin`, in Unix seconds."""
    changes: dict[str, dict[str, dict[float, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    for interval in recorder.card_intervals:
        by_time = changes[interval.card][recorder.queues.get(interval.job, "")]
        by_time[interval.since - begin] += interval.cards
        if interval.until is not None:
            by_time[interval.until - begin] -= interval.cards
    for card, use in recorder.use.items():
        if card not in changes:  # shared cards
            for (_, before), (moment, now) in pairwise([(0.0, 0), *use]):
                changes[card][""][moment - begin] += now - before
    length = max(0.0, recorder.end - begin)
    return History(
        begin=begin,
        end=recorder.end,
        cards=tuple(
            CardSeries(
                card=card,
                total=recorder.totals.get(card, 0),
                queues=tuple(_series(queue, by_time, length) for queue, by_time in sorted(queues.items())),
            )
            for card, queues in sorted(changes.items())
        ),
        evictions=tuple(
            EvictionMark(
                at=one.at,
                pod=one.pod,
                queue=one.queue,
                node=one.node,
                card=one.card,
                cards=one.cards,
                preemptor=preemptor_text(one.message),
            )
            for one in recorder.evictions[-_MOST_EVICTIONS:]
        ),
        lives=_lives(recorder, begin),
        jobs={one.pod: recorder.pods[one.uid].job for one in recorder.evictions if one.uid in recorder.pods},
    )


def _lives(recorder: Recorder, begin: float) -> dict[str, tuple[tuple[float, float], ...]]:
    """The union of the card intervals of each job."""
    found: dict[str, list[tuple[float, float]]] = {}
    for interval in recorder.card_intervals:  # in order of time
        spans = found.setdefault(interval.job, [])
        left, right = interval.since - begin, inf if interval.until is None else interval.until - begin
        if spans and left <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], right)
        else:
            spans.append((left, right))
    return {job: tuple(spans) for job, spans in found.items()}


def _series(queue: str, changes: dict[float, float], length: float) -> QueueSeries:
    changes.setdefault(0.0, 0.0)
    times = sorted(changes)
    amounts = list(accumulate(changes[at] for at in times))
    if len(times) > _MOST_POINTS:
        times, amounts = _means(times, amounts, length)
    return QueueSeries(queue=queue, times=tuple(times), amounts=tuple(amounts))


def _means(times: Sequence[float], amounts: Sequence[float], length: float) -> tuple[list[float], list[float]]:
    """The means of equal intervals."""
    edges = [length * index / _MOST_POINTS for index in range(_MOST_POINTS + 1)]
    found, position, current = [], 0, 0.0
    for left, right in pairwise(edges):
        area, moment = 0.0, left
        while position < len(times) and times[position] < right:
            at = max(left, times[position])
            area += current * (at - moment)
            current, moment = amounts[position], at
            position += 1
        found.append((area + current * (right - moment)) / (right - left))
    return edges[:-1], found
