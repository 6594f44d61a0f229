"""Exponential backoff with jitter between attempts; a success resets it."""

from __future__ import annotations

import random


class RetryBackoff:
    """Delays between `first` and `longest` seconds; jitter takes away up to half of the doubled delay."""

    def __init__(self, first: float = 0.2, longest: float = 30.0, rng: random.Random | None = None) -> None:
        self._first = first
        self._longest = longest
        self._rng = rng or random.Random()  # noqa: S311 -- jitter, not a secret
        self._failures = 0

    def next(self) -> float:
        """Count one failure and return the delay before the next attempt, in seconds."""
        self._failures += 1
        bound = min(self._longest, self._first * 2.0 ** min(self._failures, 64))
        return max(self._first, self._rng.uniform(bound / 2, bound))

    def reset(self) -> None:
        """Start from `first` again, after a success."""
        self._failures = 0
