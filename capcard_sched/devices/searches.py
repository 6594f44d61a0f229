"""Counts of the searches for devices by result, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Literal, TypeAlias, get_args

#: `no_devices`: the devices that are free do not fulfil the claims. `invalid_claim`: no node can, whatever its devices.
Result: TypeAlias = Literal[
    "allocated",
    "no_devices",
    "incomplete_pool",
    "invalid_pool",
    "gave_up",
    "selector_error",
    "invalid_claim",
    "unsupported",
]
RESULTS: Final[tuple[Result, ...]] = get_args(Result)
#: Upper bounds of the trials of devices of a search.
TRIALS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 10_000.0)


class SearchCounts:
    """Results, and trials of devices, of all searches since the start."""

    def __init__(self) -> None:
        self.results: dict[Result, int] = dict.fromkeys(RESULTS, 0)
        #: Searches by trials: at most each of `TRIALS`, then more.
        self.trials = [0] * (len(TRIALS) + 1)
        self.all_trials = 0

    def failed(self) -> int:
        """The number of searches that found no devices."""
        return sum(self.results.values()) - self.results["allocated"]

    def refused(self, result: Result) -> None:
        """Counts a claim that no search was made for."""
        self.results[result] += 1

    def searched(self, result: Result, trials: int) -> None:
        """Counts a search."""
        self.results[result] += 1
        self.all_trials += trials
        self.trials[bisect_left(TRIALS, trials)] += 1
