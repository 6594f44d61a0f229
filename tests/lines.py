"""Cost in executed lines of Python: the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class TooManyLinesError(Exception):
    """Work took more lines than it may."""


def executed_lines(work: Callable[[], object], most: int | None = None) -> int:
    """The number of lines that work executes. Raises TooManyLinesError beyond `most`."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if most is not None and count > most:
                raise TooManyLinesError
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(former)
    return count
