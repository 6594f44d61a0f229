"""`capcard-sched web`: serves pages about a cluster."""

from __future__ import annotations

import asyncio
import re
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from cyclopts import Group, Parameter

from capcard_sched.cli.exit_codes import BadInputError, usage_error
from capcard_sched.cli.output import put
from capcard_sched.cli.sources.load import leave_cache
from capcard_sched.cli.sources.source import Source
from capcard_sched.daemon.flag_values import AddressFlag, read_address

if TYPE_CHECKING:
    from capcard_sched.cli.web_live import FollowedCluster
    from capcard_sched.web.access import Access
    from capcard_sched.web.source import PageSource

_DEFAULT_ADDRESS = "127.0.0.1:8090"
#: Name of the Lease in the namespace of the process.
_DEFAULT_LEASE: Final = "capcard-sched-web"
_PROXY: Final = Group("With --authentication proxy", sort_key=4)
#: A name of a header of HTTP.
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

Authentication: TypeAlias = Literal["none", "token", "proxy"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Proxy:
    """Flags of an authenticating proxy."""

    proxy_header: Annotated[str, Parameter(group=_PROXY, metavar="NAME")] = "X-Remote-User"
    """Header with the name of the user."""

    proxy_groups_header: Annotated[str, Parameter(group=_PROXY, show_default=False, metavar="NAME")] = ""
    """Header with the groups of the user, separated by commas; the proxy replaces that of a client. Default: none."""

    proxy_secret: Annotated[Path | None, Parameter(group=_PROXY, metavar="FILE")] = None
    """File with the secret that the proxy adds to each request as X-Capcard-Proxy-Secret; read again with each."""


def web(
    *,
    listen_address: Annotated[str, Parameter(metavar="HOST:PORT")] = _DEFAULT_ADDRESS,
    authentication: Annotated[Authentication | None, Parameter(show_default=False)] = None,
    ledger: Annotated[str, Parameter(show_default=False, metavar="FILE|URL")] = "",
    lease: Annotated[str, Parameter(show_default=False, metavar="NAMESPACE/NAME")] = "",
    proxy: Proxy = Proxy(),
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """Serve pages about queues, jobs and nodes, with diagnoses, what-if and a time machine.

    With -f, runs the manifests through the simulator; with --recording, shows a recording: every page at any moment.
    Without either, follows a live cluster. The same as JSON is under /api/v1 (docs/web.md). Writes nothing
    but the statuses of CardBudgets, with --ledger (docs/budgets.md). Ends on SIGTERM and SIGINT.

    Exit status: 0 when it is ended; 2 on bad input; 1 on an internal error.

    Args:
        listen_address: Address of the server.
        authentication: `none`: every client sees everything. `token`: a bearer token of the live cluster; a viewer sees
            the jobs of namespaces in which the user may get pods. `proxy`: the same for the user that an authenticating
            proxy names in a header. Default: none on a loopback address, else token.
        ledger: Database of the page of usage: a file, or postgresql://USER@HOST:PORT/NAME (docs/ledger.md). That of a
            live cluster is created where necessary, and jobs, held cards and quotas are recorded in it. Of several
            processes with one PostgreSQL, the one that holds a Lease records.
        lease: The Lease. Default: capcard-sched-web, in the namespace of the pod or of the context.
        proxy: Flags of an authenticating proxy.
        source: Flags that select the cluster.
    """
    try:
        address = read_address(listen_address)
    except ValueError as error:
        return usage_error(f"--listen-address: {error}")
    try:
        chosen = _authentication(authentication, address, source, proxy)
        _check_lease(lease, ledger, source)
        if source.is_live:
            _serve_live(source, address, (ledger, lease), chosen, proxy)
        else:
            from capcard_sched.cli.web_files import FileClusters

            clusters = FileClusters(source, ledger)
            clusters.load()
            asyncio.run(_serve(clusters, _local_access(address), address))
    except BadInputError as error:
        return usage_error(str(error))
    except asyncio.CancelledError:
        return 0
    return 0


def _authentication(given: Authentication | None, address: AddressFlag, source: Source, proxy: Proxy) -> Authentication:
    """The authentication of viewers. Raises BadInputError."""
    if given is None and not _is_loopback(address) and not source.is_live:
        raise BadInputError(
            f"--listen-address: {address}: not a loopback address; --authentication none shows the input to all clients"
        )
    if given in {"token", "proxy"} and not source.is_live:
        raise BadInputError(f"--authentication {given}: needs a live cluster, which reviews the users")
    if given == "proxy":
        _check_proxy(proxy)
    elif proxy != Proxy():
        raise BadInputError("--proxy-header, --proxy-groups-header, --proxy-secret: need --authentication proxy")
    return given or ("none" if _is_loopback(address) else "token")


def _check_lease(lease: str, ledger: str, source: Source) -> None:
    """Raises BadInputError."""
    if not lease:
        return
    from capcard_sched.daemon.common_options import is_object_name
    from capcard_sched.ledger.database import is_server

    if not source.is_live or not is_server(ledger):
        raise BadInputError(
            "--lease: needs a live cluster and --ledger postgresql://...: one process records in a file"
        )
    namespace, slash, name = lease.partition("/")
    if not slash or not is_object_name(namespace) or not is_object_name(name):
        raise BadInputError(f"--lease: {lease!r}: expected NAMESPACE/NAME, such as capcard-system/{_DEFAULT_LEASE}")


def _check_proxy(proxy: Proxy) -> None:
    """Raises BadInputError for flags with which a client could name its own user."""
    from capcard_sched.web.reviewed_access import PROOF_HEADER, read_secret

    flags = (("--proxy-header", proxy.proxy_header), ("--proxy-groups-header", proxy.proxy_groups_header))
    for flag, name in flags:
        if name and not _HEADER.fullmatch(name):
            raise BadInputError(f"{flag}: {name!r}: expected the name of a header, such as X-Remote-User")
    if not proxy.proxy_header:
        raise BadInputError("--proxy-header: expected the name of a header, such as X-Remote-User")
    names = [name.lower() for _, name in flags if name]
    if len({*names, PROOF_HEADER.lower()}) <= len(names):
        raise BadInputError(f"--proxy-header, --proxy-groups-header: expected two names, and not {PROOF_HEADER}")
    if proxy.proxy_secret is None:
        raise BadInputError("--authentication proxy: needs --proxy-secret: without it, a client names any user")
    try:
        read_secret(proxy.proxy_secret)
    except OSError as error:
        raise BadInputError(f"--proxy-secret: {proxy.proxy_secret}: {error.strerror}") from None
    except ValueError as error:
        raise BadInputError(f"--proxy-secret: {error}") from None


def _is_loopback(address: AddressFlag) -> bool:
    try:
        return address.host == "localhost" or ip_address(address.host).is_loopback
    except ValueError:
        return False


def _local_access(address: AddressFlag) -> Access:
    from capcard_sched.web.access import LocalAccess

    return LocalAccess((address.host,) if _is_loopback(address) else None)


def _serve_live(
    source: Source, address: AddressFlag, ledger: tuple[str, str], authentication: Authentication, proxy: Proxy
) -> None:
    """Follow a live cluster and serve. Raises BadInputError and CancelledError."""
    from capcard_sched.cli.sources.cores import build_core, options_of
    from capcard_sched.cli.sources.held_cluster import run_followed
    from capcard_sched.cli.sources.live import connection_of
    from capcard_sched.cli.web_live import FollowedCluster
    from capcard_sched.gc import keep_all

    if source.cache:
        leave_cache(source.cache, "web follows the cluster itself")
    connection = connection_of(source.kubeconfig, source.context)
    core = build_core(None, None, options_of(source))
    keep_all()  # until the lists are complete

    async def serve() -> None:
        held = FollowedCluster(core, connection, connection.namespace or "default")
        await _follow(source, held, address, ledger, authentication, proxy)

    run_followed(serve())


async def _follow(
    source: Source,
    held: FollowedCluster,
    address: AddressFlag,
    ledger: tuple[str, str],
    authentication: Authentication,
    proxy: Proxy,
) -> None:
    """Serve while the cluster is followed, until a signal. Raises groups of BadInputError."""
    from capcard_sched.cli.web_live import LiveClusters
    from capcard_sched.kube.client import Client
    from capcard_sched.web.reviewed_access import ProxyAccess, TokenAccess

    task = asyncio.current_task()
    assert task is not None
    async with AsyncExitStack() as stack:
        access = _local_access(address)
        if authentication != "none":
            client = await stack.enter_async_context(Client(held.connection))
            if authentication == "token":
                access = TokenAccess(client, held.namespaces)
            else:
                assert proxy.proxy_secret is not None
                headers = proxy.proxy_header, proxy.proxy_groups_header
                access = ProxyAccess(client, held.namespaces, *headers, proxy.proxy_secret)
        follow = held.follow(await held.find_kinds())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(follow)]
            url, lease = ledger
            if url:
                from capcard_sched.cli.ledger_replica import LedgerReplica
                from capcard_sched.ledger.database import is_server

                held_lease = lease or f"{held.namespace}/{_DEFAULT_LEASE}" if is_server(url) else ""
                tasks.append(group.create_task(LedgerReplica(url, held, held_lease).run()))
            await _serve(LiveClusters(source, held, url), access, address)
            for followed in tasks:
                followed.cancel()


async def _serve(source: PageSource, access: Access, address: AddressFlag) -> None:
    """Serve until SIGTERM or SIGINT. Raises BadInputError for an address in use."""
    from capcard_sched.web.server import WebServer

    server, ended = WebServer(source, access), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        port = await server.start(address.host or "0.0.0.0", address.port)  # noqa: S104 - the flag selects it
    except OSError as error:
        raise BadInputError(f"--listen-address: {address}: {error.strerror or error}") from None
    put(f"serving on http://{address.host or '127.0.0.1'}:{port}/", flush=True)
    preparing = asyncio.create_task(source.prepare())
    await ended.wait()
    preparing.cancel()
    await asyncio.gather(preparing, return_exceptions=True)
    await server.stop()
