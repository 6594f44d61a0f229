"""Cards in use over time: the mean of each of equally long parts of a period, by card and queue."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.ledger.usage_report import Interval, UsageReport

#: Parts of a period at most, and the least length of one (milliseconds).
_PARTS: Final = 240
_SHORTEST: Final = 60_000


class UsageSeries(NamedTuple):
    """Mean numbers of cards of one card and queue in successive parts of `length` seconds."""

    card: str
    queue: str
    length: float
    means: list[float]


class UsageOverTime(NamedTuple):
    """A report, and the series of its period; days of daily sums are in the report only."""

    report: UsageReport
    series: list[UsageSeries]
    #: Length of the series.
    seconds: float


def usage_series(intervals: Iterable[Interval], begin: int, end: int) -> list[UsageSeries]:
    """The cards that queues held between two moments (Unix milliseconds), by card and queue. O(intervals)."""
    if end <= begin:
        return []
    count = max(1, min(_PARTS, (end - begin) // _SHORTEST))
    length = (end - begin) / count
    parts: defaultdict[tuple[str, str], _PartSums] = defaultdict(lambda: _PartSums(begin, length, count))
    for interval in intervals:
        if interval.began < end and interval.ended > begin:
            parts[interval.card, interval.queue].add(interval, begin, end)
    return [UsageSeries(card, queue, length / 1000, found.means()) for (card, queue), found in sorted(parts.items())]


class _PartSums:
    """Sums of intervals by part: whole parts as differences, the two ends of an interval on their own."""

    def __init__(self, begin: int, length: float, count: int) -> None:
        self._begin, self._length = begin, length
        self._whole = [0.0] * (count + 1)
        self._ends = [0.0] * (count + 1)

    def add(self, interval: Interval, begin: int, end: int) -> None:
        """Add the part of an interval in the period."""
        first = (max(interval.began, begin) - self._begin) / self._length
        last = (min(interval.ended, end) - self._begin) / self._length
        # From `first`, the amount counts in all later parts, and in its own by the rest of it; to `last` likewise.
        for place, sign in ((first, 1), (last, -1)):
            part = int(place)
            self._ends[part] += sign * interval.thousandths * (1 - (place - part))
            if part + 1 < len(self._whole):
                self._whole[part + 1] += sign * interval.thousandths

    def means(self) -> list[float]:
        """Mean number of cards in each part, to three decimals."""
        found = zip(accumulate(self._whole), self._ends, strict=True)
        return [round((whole + ends) / 1000, 3) for whole, ends in found][:-1]
