"""Cancellations that a library loses.

Who opens a connection to several addresses at a time (aiohappyeyeballs, and aiohttp by it) ends the attempts that lost,
and a cancellation of the caller that comes in that moment ends there: the connection is returned as if nothing were.
Loops that go on until cancelled would then go on for ever. The task itself still counts how often it was cancelled.
"""

from __future__ import annotations

import asyncio


def cancellations() -> int:
    """How often the running task was cancelled so far: when a call returns and this has grown, it lost one."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
