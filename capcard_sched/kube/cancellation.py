"""Detection of cancellations that a library swallows.

aiohappyeyeballs (and aiohttp through it) cancels the losing attempts of a connection race. A cancellation of the caller
at that moment is swallowed and the connection is returned. A loop that runs until cancelled would then never end. The
task still counts its cancellations.
"""

from __future__ import annotations

import asyncio


def cancellations() -> int:
    """Number of cancellations of the running task so far; growth across a call means that the call swallowed one."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
