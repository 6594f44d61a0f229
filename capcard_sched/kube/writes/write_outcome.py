"""How an attempt at a status, a condition or an event ended."""

from __future__ import annotations

from typing import NamedTuple


class WriteOutcome(NamedTuple):
    """Written, to be repeated, or given up."""

    written: bool
    #: Repeat it, `wait` seconds from now at the earliest.
    retry: bool = False
    #: Status of the answer; 0 when there was none.
    code: int = 0
    message: str = ""
    wait: float = 0.0
    #: The server is busy or away: slow down, not only for this object.
    throttled: bool = False
