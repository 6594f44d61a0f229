"""Durations of like jobs: a survival curve per group of jobs, and its quantiles, given the time a job runs already.

Jobs that still run count as at least as long (censored); jobs that ran before the observation began count from the age
they had then (left-truncated). So neither the short jobs of a young history nor the long ones of a snapshot dominate.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

#: Ended jobs, longer than the present age of a job, that a group needs to estimate its end: with fewer, the 10th and
#: the 90th percentile are not observed.
FEWEST_LIKE_JOBS: Final = 9


class JobFeatures(NamedTuple):
    """The features by which jobs are alike."""

    namespace: str
    queue: str
    #: Name of the workload without numbers and hashes at its end.
    stem: str
    #: The card, or `A|B`; the resource of pods without a card name; "" for pods without either.
    card: str
    #: Cards of one pod.
    per_pod: float
    #: Cards of the job (cores, for a job without cards), rounded up to a power of two.
    size: int
    #: Of the pod with most cards: thousandths of a core, and bytes of memory; None: unknown.
    requests: tuple[int, int] | None = None


class JobRun(NamedTuple):
    """The time for which a job held its nodes. Times in Unix seconds."""

    #: Namespace and uid of its owner; equal for two views of one run.
    key: str
    shape: JobFeatures
    start: float
    #: Ends of jobs are known from here on: a job that ended earlier would not be among the runs.
    observed_from: float
    #: Its end, or the last moment at which it is known to run.
    last: float
    ended: bool


class LikeJobs(NamedTuple):
    """The group that an estimate rests on: its ended jobs that ran longer, and what they have in common."""

    jobs: int
    alike: str


#: From narrow to wide: the features in common, and the key of the group.
_LEVELS: Final[tuple[tuple[str, Callable[[JobFeatures], Hashable]], ...]] = (
    ("queue, name, cards, size and requests", lambda shape: shape),
    ("queue, name, cards and size", lambda shape: shape[:-1]),
    ("queue and name", lambda shape: (shape.namespace, shape.queue, shape.stem)),
    ("queue, card and size", lambda shape: (shape.queue, shape.card, shape.size)),
    ("card and size", lambda shape: (shape.card, shape.size)),
)


class DurationTable:
    """Durations of jobs, by what they have in common."""

    def __init__(self, runs: Iterable[JobRun]) -> None:
        self._groups: dict[tuple[int, Hashable], list[tuple[float, float, bool]]] = {}
        self._curves: dict[tuple[int, Hashable], _Curve] = {}
        for run in runs:
            # Timestamps have whole seconds.
            seen = (max(run.observed_from - run.start, 0.0), max(run.last - run.start, 1.0), run.ended)
            if seen[0] < seen[1]:
                for level, (_, key) in enumerate(_LEVELS):
                    self._groups.setdefault((level, key(run.shape)), []).append(seen)

    def like_jobs(self, shape: JobFeatures, age: float) -> LikeJobs | None:
        """The narrowest group with enough jobs that ran longer than `age` seconds; None without one."""
        for level, (alike, _) in enumerate(_LEVELS):
            longer = self._curve(level, shape).longer(age)
            if longer >= FEWEST_LIKE_JOBS:
                return LikeJobs(longer, alike)
        return None

    def quantile(self, shape: JobFeatures, age: float, share: float) -> float | None:
        """Seconds that a `share` (0 to 1) of the like jobs older than `age` exceeds: always more than `age`.

        Beyond the longest job of a group the next wider group decides. None: longer than any like job.
        """
        for level in range(len(_LEVELS)):
            curve = self._curve(level, shape)
            if curve.longer(age) >= FEWEST_LIKE_JOBS:
                found = curve.quantile(age, share)
                if found is not None:
                    return found
                share /= curve.beyond(age)
                age = curve.longest
        return None

    def _curve(self, level: int, shape: JobFeatures) -> _Curve:
        key = (level, _LEVELS[level][1](shape))
        found = self._curves.get(key)
        if found is None:
            found = self._curves[key] = _Curve(self._groups.get(key, ()))
        return found


class _Curve:
    """The survival curve of one group: product limit, with one more job at risk that outlives all.

    So n ended jobs divide the time into n + 1 parts of equal probability, the last one open.
    """

    def __init__(self, seen: Iterable[tuple[float, float, bool]]) -> None:
        seen = list(seen)
        entries, exits = sorted(entry for entry, _, _ in seen), sorted(last for _, last, _ in seen)
        #: Durations of ended jobs, ascending.
        self._ends = sorted(last for _, last, ended in seen if ended)
        #: Minus the probability to last longer, ascending: for bisection.
        self._negative: list[float] = []
        left, index = 1.0, 0
        while index < len(self._ends):
            end = self._ends[index]
            following = bisect_right(self._ends, end, index)
            at_risk = bisect_left(entries, end) - bisect_left(exits, end)
            left *= 1 - (following - index) / (at_risk + 1)
            self._negative += [-left] * (following - index)
            index = following

    @property
    def longest(self) -> float:
        """The longest duration of an ended job; 0 without one."""
        return self._ends[-1] if self._ends else 0.0

    def longer(self, age: float) -> int:
        """Number of ended jobs that ran longer than `age`. O(log jobs)."""
        return len(self._ends) - bisect_right(self._ends, age)

    def beyond(self, age: float) -> float:
        """The share of the jobs older than `age` that outlives all ended ones."""
        return -self._negative[-1] / self._base(age)

    def quantile(self, age: float, share: float) -> float | None:
        """The duration that a `share` of the jobs older than `age` exceeds; None beyond the longest."""
        first = bisect_right(self._ends, age)
        index = bisect_left(self._negative, -share * self._base(age), first)
        return self._ends[index] if index < len(self._ends) else None

    def _base(self, age: float) -> float:
        first = bisect_right(self._ends, age)
        return -self._negative[first - 1] if first else 1.0
