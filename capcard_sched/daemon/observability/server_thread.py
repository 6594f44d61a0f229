"""Pages that respond while the event loop of the service is busy."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from capcard_sched.daemon.observability.server import HttpServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.daemon.flag_values import AddressFlag
    from capcard_sched.daemon.observability.server import Page


class ServerThread:
    """An HttpServer with an event loop and a thread of its own: it responds while another event loop is busy."""

    def __init__(self, address: AddressFlag, pages: Mapping[str, Page]) -> None:
        """`pages`: handlers of GET; they read what other threads change."""
        self._server = HttpServer(address, pages)
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Listen. Raises ServeError."""
        self._thread.start()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._server.start(), self._loop))

    async def stop(self) -> None:
        """Stop the server and its thread."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        with self._runner:  # cancels what the server left behind
            self._loop.run_forever()
