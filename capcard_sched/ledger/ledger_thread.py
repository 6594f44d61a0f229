"""Calls of a ledger beside an event loop, which neither a task nor the end of the process waits for.

Threads of `asyncio.to_thread` are joined at the end of the loop and of the process: a database that hangs would hold
both up.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


async def in_ledger_thread(call: Callable[[], _T], discard: Callable[[_T], object] = lambda _: None) -> _T:
    """The result of a call in a thread of its own. Cancellation leaves the call running: `discard` gets its result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def end(result: _T | None, error: BaseException | None) -> None:
        if future.cancelled():
            if error is None:
                discard(result)  # type: ignore[arg-type]
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 - for the caller
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end, result, error)

    threading.Thread(target=run, name="ledger", daemon=True).start()
    return await future
