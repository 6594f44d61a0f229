"""Builds the parts of the daemon that need the event loop, and runs those of any service until it is stopped.

API clients, writer, informers, leadership, HTTP servers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from capcard_sched.daemon.leadership import Leadership
from capcard_sched.kube import claims, volumes
from capcard_sched.kube.binding_locks import BindingLocks
from capcard_sched.kube.client import Client
from capcard_sched.kube.informers import Informers
from capcard_sched.kube.kinds import chosen_kinds
from capcard_sched.kube.node_locks import NodeLocks
from capcard_sched.kube.writes.api_writer import LOW_WORKERS, ApiWriter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from contextlib import AsyncExitStack

    from capcard_sched.daemon.leadership import LeadershipHandler
    from capcard_sched.daemon.observability.health import Health
    from capcard_sched.daemon.observability.logs import Logs
    from capcard_sched.daemon.observability.metrics import Metrics
    from capcard_sched.daemon.observability.observer import LoggingObserver
    from capcard_sched.daemon.options import Options
    from capcard_sched.daemon.scheduler_thread import SchedulerThread
    from capcard_sched.kube.connection import Connection
    from capcard_sched.kube.writes.binder import PreBind
    from capcard_sched.model.intents import Bind

#: Connections: for reads, in addition to those of writers.
_READERS: Final = 8
#: Connections: for the Lease, separate so that renewals never wait for a free one.
_LEASE_CONNECTIONS: Final = 4


@dataclass(frozen=True)
class Backend:
    """The API server's side of the daemon."""

    client: Client
    informers: Informers
    writer: ApiWriter
    leadership: Leadership


async def open_backend(
    stack: AsyncExitStack,
    options: Options,
    connection: Connection,
    thread: SchedulerThread,
    observer: LoggingObserver,
    handler: LeadershipHandler,
) -> Backend:
    """Open the clients on `stack` and build what uses them. Starts nothing."""
    client = await stack.enter_async_context(
        Client(
            connection,
            connections=options.bind_workers + LOW_WORKERS + _READERS,
            qps=options.kube_api_qps,
            burst=options.kube_api_burst,
            observer=observer,
        )
    )
    lease_client = await stack.enter_async_context(Client(connection, connections=_LEASE_CONNECTIONS))
    namespace = options.lease_namespace or connection.namespace or "default"
    fenced = client if options.fence else None
    leadership = Leadership(options, lease_client, namespace, options.lease_name, handler, fenced)
    writer = ApiWriter(
        client,
        thread.deliver,
        observer,
        time_left=leadership.time_left,
        server_seconds=leadership.server_seconds,
        binders=options.bind_workers,
        scheduler_name=options.component,
        use_eviction_api=options.use_eviction_api,
        fence=leadership.fence_token,
        pre_bind=_pre_bind(NodeLocks(), observer, leadership.fence_token),
        bind_lock=BindingLocks().held,
        undo_pre_bind=partial(claims.release_claims, observer=observer, fence=leadership.fence_token),
    )
    kinds = chosen_kinds(
        node_selector=[(match.label, match.value) for match in options.node_selector],
        priority_classes=options.priority_class,
        provisioning=bool(options.provisioning_request_class),
        config_maps=thread.config_maps(),
    )
    return Backend(client, Informers(client, thread.deliver, observer, kinds), writer, leadership)


def _pre_bind(locks: NodeLocks, observer: LoggingObserver, fence: Callable[[], str | None]) -> PreBind:
    """Bind the volumes of a pod, reserve its ResourceClaims, then take the lock of its node."""

    async def run(client: Client, bind: Bind) -> None:
        if bind.volumes:
            await volumes.bind_volumes(client, bind)
        if bind.claims:
            await claims.reserve_claims(client, bind, observer, fence)
        if bind.node_lock:
            await locks.acquire(client, bind)

    return run


async def open_servers(
    stack: AsyncExitStack,
    options: Options,
    logs: Logs,
    metrics: Metrics,
    health: Health,
    sample: Callable[[], Awaitable[None]],
) -> None:
    """Open the configured ports and the debug socket on `stack`. Raises ServeError."""
    from capcard_sched.daemon.observability.level_server import LevelServer
    from capcard_sched.daemon.observability.server import Tls, open_pages

    log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
    tls = None
    if options.tls_cert_file is not None and options.tls_private_key_file is not None:
        tls = Tls(options.tls_cert_file, options.tls_private_key_file, options.ca_cert_file)
    await open_pages(stack, log, options, metrics, health, sample, tls)
    if options.debug_socket_dir is not None:
        level = LevelServer(logs, options.debug_socket_dir)
        await level.start()
        stack.push_async_callback(level.stop)


async def run_until(stop: asyncio.Event, parts: Collection[asyncio.Task[None]]) -> None:
    """Return once `stop` is set. Parts may return earlier; raises the exception of one that fails."""
    stopped = asyncio.create_task(stop.wait())
    waiting: set[asyncio.Task[Any]] = {stopped, *parts}
    try:
        while not stopped.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        stopped.cancel()


async def cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
