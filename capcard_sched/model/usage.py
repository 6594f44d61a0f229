"""Measured load of nodes, and its validity."""

from __future__ import annotations

import re
from typing import Final

import msgspec

#: Seconds, and the same as text. Window of the averages.
PERIOD_SECONDS: Final = 600.0
PERIOD: Final = "10m"
#: Seconds. Older measurements are ignored.
STALE_SECONDS: Final = 300.0

_ENTRY = re.compile(r"\s*(cpu|memory)\s*=\s*(\d{1,3}(?:\.\d{1,4})?)\s*")
#: The accepted form of `parse_usage`, for messages.
USAGE_FORM: Final = '"cpu=80,memory=50" in percent from 0 to 100; one of the two may be left out'


class NodeUsage(msgspec.Struct, frozen=True):
    """The average load of one node over the last `PERIOD_SECONDS` before it was measured."""

    #: Percent, 0 to 100; None when unknown.
    cpu: float | None = None
    memory: float | None = None
    #: Unix seconds of the measurement; None for a load that is valid until the next one.
    at: float | None = None

    def is_fresh(self, now: float) -> bool:
        """Whether it is valid at `now`, Unix seconds."""
        return self.at is None or now - self.at < STALE_SECONDS


class UsageFormError(ValueError):
    """Text that is not a load of a node."""


def parse_usage(text: str) -> NodeUsage:
    """Parse `cpu=80,memory=50` as a load without expiry. Raises UsageFormError."""
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _ENTRY.fullmatch(part)
        if match is None or match[1] in found or float(match[2]) > 100:
            raise UsageFormError(f"expected {USAGE_FORM}, got {text[:64]!r}")
        found[match[1]] = float(match[2])
    return NodeUsage(**found)
