"""Memory of connections that ended.

The daemon collects garbage of the oldest generation hardly ever, so a connection must not be in a reference cycle. Runs
on the event loop of the daemon; transports of asyncio hold themselves.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from capcard_sched.kube.client import Client, Unreachable
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.pool import _Connection
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node
from tests.controlplane.proxy import Proxy

pytestmark = pytest.mark.processes

_OF_CLIENTS = frozenset({Unreachable, ConnectionRefusedError, _Connection})
#: Number of connections, and the largest number of objects of one type that the last of them may keep.
_ENDED = 12
_KEPT = 4


def kept_of(client: Client) -> Counter[str]:
    """Number of objects of connections and errors of a client by type, also of those in reference cycles."""
    found = [each for each in gc.get_objects() if type(each) in _OF_CLIENTS]
    tls = [each for each in gc.get_objects() if type(each) is ssl.SSLObject and each.context is client.connection.ssl]
    return Counter(type(each).__name__ for each in [*found, *tls])


async def break_a_watch(client: Client, proxy: Proxy) -> None:
    async with client.stream("/api/v1/nodes", {"watch": "1"}) as stream:
        await stream.read()
        proxy.reset_streams("nodes")
        with pytest.raises(Unreachable):
            await stream.read()


async def time_out_a_watch(client: Client, _: Proxy) -> None:
    async with client.stream("/api/v1/nodes", {"watch": "1"}, silence=0.5) as stream:
        await stream.read()
        with pytest.raises(TimeoutError):
            await stream.read()


async def leave_a_watch(client: Client, _: Proxy) -> None:
    async with client.stream("/api/v1/nodes", {"watch": "1"}) as stream:
        await stream.pause(0.01)


async def refuse_a_watch(client: Client, proxy: Proxy) -> None:
    reset = proxy.reset("WATCH", "nodes", times=None)
    with pytest.raises(Unreachable):
        async with client.stream("/api/v1/nodes", {"watch": "1"}):
            pass
    reset.lift()


async def lose_a_response(client: Client, proxy: Proxy) -> None:
    proxy.reset("PATCH", "nodes")
    with pytest.raises(Unreachable):
        await client.request("PATCH", object_path("Node", "", "n"), body=b"{}")


async def time_out_a_request(client: Client, proxy: Proxy) -> None:
    proxy.delay("PATCH", "nodes", 0.2)
    with pytest.raises(Unreachable):
        await client.request("PATCH", object_path("Node", "", "n"), body=b"{}", timeout=0.05)


async def refuse_a_request(client: Client, _: Proxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = f"https://127.0.0.1:{listener.getsockname()[1]}"
    async with Client(msgspec.structs.replace(client.connection, server=server)) as other:
        with pytest.raises(Unreachable):
            await other.request("GET", object_path("Node", "", "n"))


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(break_a_watch, id="a watch breaks"),
        pytest.param(time_out_a_watch, id="a watch is silent"),
        pytest.param(leave_a_watch, id="a watch is left"),
        pytest.param(refuse_a_watch, id="a watch has no response"),
        pytest.param(refuse_a_request, id="a request has no connection"),
        pytest.param(lose_a_response, id="a request has no response"),
        pytest.param(time_out_a_request, id="a request times out"),
    ],
)
async def test_a_connection_that_ended_needs_no_garbage_collection(
    cluster: Cluster, proxy: Proxy, end: Callable[[Client, Proxy], Awaitable[None]]
) -> None:
    await cluster.create(node("n"))
    async with Client(load_connection(str(proxy.kubeconfig_for()))) as client:
        await end(client, proxy)
        gc.collect()
        gc.disable()
        try:
            before = kept_of(client)
            for _ in range(_ENDED):
                await end(client, proxy)
                await asyncio.sleep(0.01)
            grown = {name: count for name, count in (kept_of(client) - before).items() if count > _KEPT}
        finally:
            gc.enable()
    assert grown == {}
