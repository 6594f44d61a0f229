"""Outcome of an attempt to write a status, a condition or an event."""

from __future__ import annotations

from typing import NamedTuple


class WriteOutcome(NamedTuple):
    """Written, retried, or dropped."""

    written: bool
    #: Retry after at least `wait` seconds.
    retry: bool = False
    #: Status of the response; 0 without one.
    code: int = 0
    message: str = ""
    wait: float = 0.0
    #: The server is overloaded or unreachable: the worker pauses.
    throttled: bool = False
