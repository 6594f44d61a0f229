"""`capcard-sched web`: serves pages about a cluster."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from capcard_sched.cli.cluster_source import Source
from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.cli.inputs import BadInputError
from capcard_sched.cli.output import put
from capcard_sched.daemon.flag_values import AddressFlag, read_address

if TYPE_CHECKING:
    from capcard_sched.web.access import Access
    from capcard_sched.web.source import PageSource

_DEFAULT_ADDRESS = "127.0.0.1:8090"


def web(
    *,
    listen_address: Annotated[str, Parameter(metavar="HOST:PORT")] = _DEFAULT_ADDRESS,
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """Serve pages about queues, jobs and nodes, with diagnoses, what-if and a time machine; writes nothing.

    With -f, runs the manifests through the simulator; with --recording, shows a recording: every page at any moment.
    The same as JSON is under /api/v1 (docs/web.md). Sends no request to another host, and ends on SIGTERM and SIGINT.

    Exit status: 0 when it is ended; 2 on bad input; 1 on an internal error.

    Args:
        listen_address: Address of the server.
        source: Flags that select the cluster.
    """
    try:
        address = read_address(listen_address)
    except ValueError as error:
        return usage_error(f"--listen-address: {error}")
    try:
        if source.is_live:
            raise BadInputError("-f or --recording is required")
        from capcard_sched.cli.web_files import FileClusters
        from capcard_sched.web.access import LocalAccess

        clusters = FileClusters(source)
        clusters.load()
        asyncio.run(_serve(clusters, LocalAccess((address.host,)), address))
    except BadInputError as error:
        return usage_error(str(error))
    return 0


async def _serve(source: PageSource, access: Access, address: AddressFlag) -> None:
    """Serve until SIGTERM or SIGINT. Raises BadInputError for an address in use."""
    from capcard_sched.web.server import WebServer

    server, ended = WebServer(source, access), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        port = await server.start(address.host or "0.0.0.0", address.port)  # noqa: S104 - as the flag says
    except OSError as error:
        raise BadInputError(f"--listen-address: {address}: {error.strerror or error}") from None
    put(f"serving on http://{address.host or '127.0.0.1'}:{port}/", flush=True)
    await ended.wait()
    await server.stop()
