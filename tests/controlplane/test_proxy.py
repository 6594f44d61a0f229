"""The fault proxy does each thing it can do, and nothing else."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.manifests import node, pod
from tests.controlplane.proxy import Proxy, failure

pytestmark = pytest.mark.campaign

LOST = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, ConnectionResetError)


@pytest_asyncio.fixture
async def through(cluster: Cluster, proxy: Proxy) -> AsyncIterator[Cluster]:
    """The same cluster through the proxy, with pod `p` and node `n` in it."""
    await cluster.create_all([node("n"), pod("p")])
    async with Cluster(cluster.control_plane, namespace=cluster.namespace, server=proxy.url) as client:
        yield client


async def bind(client: Cluster) -> tuple[int, dict[str, str]]:
    """One try at a binding, however it ends: status and headers."""
    path = await client.path("pods", "p", subresource="binding")
    target = {"apiVersion": "v1", "kind": "Node", "name": "n"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": target}
    async with client.session.post(path, json=body) as answer:
        await answer.read()
        return answer.status, dict(answer.headers)


async def test_unmatched_requests_pass_unchanged(cluster: Cluster, through: Cluster, proxy: Proxy) -> None:
    proxy.reset("POST", "/binding$")
    assert await through.get("pods", "p") == await cluster.get("pods", "p")
    big = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"}, "data": {"k": "x" * 300_000}}
    await through.create(big)
    assert (await through.list("configmaps"))[0]["data"] == big["data"]
    with pytest.raises(RequestError, match="404 NotFound"):
        await through.get("pods", "other")


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422, 429, 500, 503])
async def test_a_response_of_the_proxy_itself(cluster: Cluster, through: Cluster, proxy: Proxy, status: int) -> None:
    proxy.answer("POST", "/binding$", status, retry_after=7 if status == 429 else None)
    answered, headers = await bind(through)
    assert (answered, headers.get("Retry-After")) == (status, "7" if status == 429 else None)
    assert await cluster.bound() == {}
    assert (await bind(through))[0] == 201


async def test_faults_strike_at_the_nth_match_and_so_often(cluster: Cluster, through: Cluster, proxy: Proxy) -> None:
    fault = proxy.answer("GET", "/pods/p$", 503, nth=2, times=2)

    async def status() -> int:
        async with through.session.get(await through.path("pods", "p")) as answer:
            return answer.status

    assert [await status() for _ in range(5)] == [200, 503, 503, 200, 200]
    assert (fault.matches, fault.strikes) == (5, 2)
    endless = proxy.answer("GET", "/pods/p$", 503, times=None)
    assert [await status() for _ in range(3)] == [503, 503, 503]
    endless.lift()
    assert await status() == 200


async def test_a_reset_before_the_server_saw_it(cluster: Cluster, through: Cluster, proxy: Proxy) -> None:
    fault = proxy.reset("POST", "/binding$")
    with pytest.raises(LOST):
        await bind(through)
    await fault.struck()
    assert await cluster.bound() == {}
    assert [each.status for each in proxy.exchanges if each.path.endswith("/binding")] == [0]


async def test_a_lost_response_to_a_write_that_took_effect(cluster: Cluster, through: Cluster, proxy: Proxy) -> None:
    proxy.lose_answer("POST", "/binding$")
    with pytest.raises(LOST):
        await bind(through)
    assert await cluster.bound() == {"p": "n"}


async def test_an_error_in_place_of_the_response_to_a_write_that_took_effect(
    cluster: Cluster, through: Cluster, proxy: Proxy
) -> None:
    proxy.replace_answer("POST", "/binding$", 504)
    assert (await bind(through))[0] == 504
    assert await cluster.bound() == {"p": "n"}


@pytest.mark.parametrize("after", [False, True])
async def test_a_delay_before_or_after_it_is_done(
    cluster: Cluster, through: Cluster, proxy: Proxy, after: bool
) -> None:
    fault = proxy.delay("POST", "/binding$", 0.3, after=after)
    began = time.monotonic()
    request = asyncio.create_task(bind(through))
    await fault.struck()
    await asyncio.sleep(0.15)
    assert await cluster.bound() == ({"p": "n"} if after else {})
    assert (await request)[0] == 201
    assert time.monotonic() - began >= 0.3
    assert await cluster.bound() == {"p": "n"}


async def test_a_client_that_gives_up_takes_a_held_back_request_along(
    cluster: Cluster, through: Cluster, proxy: Proxy
) -> None:
    fault = proxy.delay("POST", "/binding$", 0.2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await bind(through)
    await fault.struck()
    await asyncio.sleep(0.3)
    assert await cluster.bound() == {}


async def watched(client: Cluster, seen: list[str]) -> None:
    """Names of pods as a watch shows them."""
    path = await client.path("pods")
    async with client.session.get(path, params={"watch": "true"}) as answer:
        async for line in answer.content:
            event = json.loads(line)
            seen.append(event["object"]["metadata"].get("name") or event["object"]["reason"])


async def test_a_stream_cut_in_the_middle_of_an_event(cluster: Cluster, through: Cluster, proxy: Proxy) -> None:
    cut = proxy.cut("/pods$", nth=3)
    content = bytearray()

    async def read() -> None:
        async with through.session.get(await through.path("pods"), params={"watch": "true"}) as answer:
            async for piece in answer.content.iter_any():
                content.extend(piece)

    reading = asyncio.create_task(read())
    await cluster.wait_until(lambda: proxy.watching("/pods$"), "the watch")
    await cluster.create(pod("q"))
    await cluster.create(pod("r"))
    with pytest.raises((aiohttp.ClientPayloadError, *LOST)):
        await reading
    await cut.struck()
    first, second, third = content.split(b"\n")
    assert [json.loads(line)["object"]["metadata"]["name"] for line in (first, second)] == ["p", "q"]
    assert b'"name":"r"' in third
    with pytest.raises(json.JSONDecodeError):
        json.loads(third)


async def test_a_pause_holds_events_back_and_keeps_their_order(
    cluster: Cluster, through: Cluster, proxy: Proxy
) -> None:
    seen: list[str] = []
    watching = asyncio.create_task(watched(through, seen))
    await cluster.wait_until(lambda: seen == ["p"], "the first event")
    pause = proxy.pause("/pods$")
    await cluster.create(pod("q"))
    await cluster.create(pod("r"))
    await asyncio.sleep(0.2)
    assert seen == ["p"]
    pause.resume()
    await cluster.wait_until(lambda: seen == ["p", "q", "r"], "what was held back")
    watching.cancel()


async def test_events_of_the_tests_own_on_a_stream(cluster: Cluster, through: Cluster, proxy: Proxy) -> None:
    seen: list[str] = []
    watching = asyncio.create_task(watched(through, seen))
    await cluster.wait_until(lambda: seen == ["p"], "the first event")
    assert await proxy.inject("/pods$", {"type": "ERROR", "object": failure(410, "too old resource version")}) == 1
    await cluster.wait_until(lambda: seen == ["p", "Expired"], "the error")
    watching.cancel()


async def test_streams_reset_all_at_once(cluster: Cluster, through: Cluster, proxy: Proxy) -> None:
    seen: list[str] = []
    watching = asyncio.create_task(watched(through, seen))
    await cluster.wait_until(lambda: seen == ["p"], "the first event")
    assert proxy.reset_streams("/nodes$") == 0
    assert proxy.reset_streams("/pods$") == 1
    with pytest.raises((aiohttp.ClientPayloadError, *LOST)):
        await watching
    await cluster.wait_until(lambda: not proxy.watching(""), "the stream's end")


async def test_a_server_that_is_away_is_seen_as_a_reset(cluster: Cluster, through: Cluster, proxy: Proxy) -> None:
    cluster.control_plane.kill_apiserver()
    with pytest.raises(LOST):
        await bind(through)
    await asyncio.to_thread(cluster.control_plane.start_apiserver)
    assert (await bind(through))[0] == 201


async def test_repair_ends_every_fault(cluster: Cluster, through: Cluster, proxy: Proxy) -> None:
    proxy.answer("POST", "/binding$", 500, times=None)
    proxy.cut("/pods$", times=None)
    proxy.pause("/pods$")
    proxy.mend()
    seen: list[str] = []
    watching = asyncio.create_task(watched(through, seen))
    await cluster.wait_until(lambda: seen == ["p"], "the first event")
    assert (await bind(through))[0] == 201
    watching.cancel()


async def test_kubectl_works_through_it(cluster: Cluster, through: Cluster, proxy: Proxy) -> None:
    kubectl = cluster.control_plane.programs / "kubectl"
    words = ["--kubeconfig", str(proxy.kubeconfig_for("admin")), "-n", cluster.namespace, "get", "pods", "-o", "name"]
    process = await asyncio.create_subprocess_exec(kubectl, *words, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output == b"pod/p\n"
    assert any(each.path.endswith("/pods") for each in proxy.exchanges)
