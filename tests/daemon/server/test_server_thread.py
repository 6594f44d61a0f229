"""Probes of the admission server do not depend on the event loop of its reviews."""

from __future__ import annotations

from urllib.request import urlopen

from capcard_sched.daemon.flag_values import AddressFlag
from capcard_sched.daemon.observability.health import Health
from capcard_sched.daemon.observability.server import health_pages
from capcard_sched.daemon.observability.server_thread import ServerThread
from tests.clock import Clock


def _read(url: str) -> bytes:
    """The response, after a wait that blocks the thread."""
    with urlopen(url, timeout=120) as response:
        return bytes(response.read())


async def test_probes_are_served_while_the_event_loop_is_busy() -> None:
    """The request blocks the event loop of the test until its response: no task of that loop can make it."""
    server = ServerThread(AddressFlag("127.0.0.1", 0), health_pages(Health(1.0, Clock())))
    await server.start()
    try:
        assert _read(f"http://127.0.0.1:{server.port}/healthz") == b"ok\n"
    finally:
        await server.stop()
