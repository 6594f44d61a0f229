"""Measured load of nodes: what a source of metrics says, and how long it counts (plugins reference §15, §21)."""

from __future__ import annotations

import re
from typing import Final

import msgspec

#: What the averages are over, in seconds and as people write it.
PERIOD_SECONDS: Final = 600.0
PERIOD: Final = "10m"
#: What was measured longer ago counts no more, in seconds.
STALE_SECONDS: Final = 300.0

_ENTRY = re.compile(r"\s*(cpu|memory)\s*=\s*(\d{1,3}(?:\.\d{1,4})?)\s*")
#: The accepted form of `parse_usage`, for messages.
USAGE_FORM: Final = '"cpu=80,memory=50" in percent from 0 to 100; one of the two may be left out'


class NodeUsage(msgspec.Struct, frozen=True):
    """The average load of one node over the last `PERIOD_SECONDS` before it was measured."""

    #: Percent, 0 to 100; None when it is not known.
    cpu: float | None = None
    memory: float | None = None
    #: When it was measured, Unix seconds; None for a load that holds until another one is told.
    at: float | None = None

    def is_fresh(self, now: float) -> bool:
        """Whether it still counts at `now`, Unix seconds."""
        return self.at is None or now - self.at < STALE_SECONDS


class UsageFormError(ValueError):
    """Text that is no load of a node."""


def parse_usage(text: str) -> NodeUsage:
    """`cpu=80,memory=50`, as a load that holds. Raises UsageFormError."""
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _ENTRY.fullmatch(part)
        if match is None or match[1] in found or float(match[2]) > 100:
            raise UsageFormError(f"expected {USAGE_FORM}, got {text[:64]!r}")
        found[match[1]] = float(match[2])
    return NodeUsage(**found)
