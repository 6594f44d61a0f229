"""Viewers of a live cluster who try to see what is not theirs, or to take the server from others."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import pytest

from capcard_sched.web.pages import PAGES
from capcard_sched.web.server import STREAMS, STREAMS_OF_ONE, VIEWS_OF_ONE
from tests.clock import until
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import gang, gpu_node, granted, job, plain, queue
from tests.e2e.asking import A10, CARD
from tests.web.served import Served
from tests.web.test_live import get, serving_live

#: Seconds of a step on a loaded machine.
_SECONDS: Final = 120
#: Part of every name in the namespace of a peer.
_SECRET: Final = "zebra"
_PEER: Final = f"{_SECRET}-team"
_MINE: Final = "mine"
#: Sizes of a crowd: clients of streams, of which every user has as many.
_CLIENTS, _USERS = 1_000, 10
#: A scheduler-conf that doubles in size with each line.
_BOMB: Final = (
    "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)) + "tiers: *a39\n"
)


async def _set_the_scene(cluster: Cluster) -> None:
    """The peer holds the quota for which `mine/own` waits, and names occur wherever an object may have them."""
    for name in (_PEER, _MINE):
        await cluster.make_namespace(name)
    await cluster.create_all(
        [
            gpu_node("n1", A10, 8),
            queue("q", cards={A10: 4}, capability={"cpu": "32"}),
            queue("shared", cards={A10: 8}, allowedNamespaces=[_PEER, _MINE]),
        ]
    )
    await cluster.create_all(
        [
            plain(
                "NamespaceQueue",
                f"{_SECRET}-queue",
                "scheduling.volcano.sh/v1beta1",
                namespace=_PEER,
                spec={"parent": "cluster/shared"},
            ),
            *_of(_PEER, gang(f"{_SECRET}-runs", 4, queue="q", cards=A10, requests=CARD)),
            *_of(_PEER, gang(f"{_SECRET}-waits", 2, queue="q", cards=A10, requests=CARD)),
            *_of(_PEER, gang(f"{_SECRET}-local", 1, queue=f"namespace/{_SECRET}-queue", cards=A10, requests=CARD)),
            *_of(_PEER, gang(f"{_SECRET}-never", 1, queue="q", cards="No-Such-Card", requests=CARD)),
            *_of(_PEER, [job(f"{_SECRET}-job", 1, minAvailable=1)]),
            *_of(_MINE, gang("own", 2, queue="q", cards=A10, requests=CARD)),
        ]
    )
    for member in range(4):
        await cluster.bind(f"{_SECRET}-runs-{member}", "n1", namespace=_PEER)
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    await cluster.apply(_of(_MINE, granted("somebody", rules)))


def _of(namespace: str, objects: Any) -> list[Any]:
    for each in objects:
        each["metadata"]["namespace"] = namespace
    return list(objects)


def _addresses(ledger: bool) -> list[str]:
    """Addresses of all pages and documents, of the viewer's own objects and of the peer's."""
    found = []
    names = {
        "/jobs/{namespace}/{name}": [
            f"/jobs/{_PEER}/{_SECRET}-runs",
            f"/jobs/{_PEER}/{_SECRET}-job?kind=vcjob&fix=1",
            f"/jobs/{_MINE}/own",
            f"/jobs/{_MINE}/own?fix=1",
        ],
        "/queues/{name}": ["/queues/q", "/queues/shared", "/queues/none", f"/queues/{_PEER}%2F{_SECRET}-queue"],
        "/jobs": ["/jobs", f"/jobs?namespace={_PEER}", "/jobs?text=ebra-", "/jobs?stage=CannotStart"],
        "/nodes": ["/nodes", "/nodes?queue=q"],
        "/what-if": ["/what-if", "/what-if?quota=q/A10=8", "/what-if?drain=n1", "/what-if?drain=none"],
        "/usage": ["/usage", "/usage?by=namespace", "/usage?by=user", "/usage?by=queue,card", "/usage?by=service"],
        "/ledger/usage": ["/ledger/usage?by=queue", "/ledger/usage?by=namespace"],
        "/ledger/history": ["/ledger/history", f"/ledger/history?namespace={_PEER}"],
    }
    for page in PAGES:
        for address in names.get(page.document, [page.document]):
            if page.address:
                found.append("/" if page.address == "/" else address)
            found.append(f"/api/v1{address}")
    found += ["/usage.csv", "/usage.csv?by=queue", "/usage.csv?by=namespace"]
    return found if ledger else [each for each in found if "usage" not in each]


@pytest.mark.parametrize("user", ["nobody", "somebody"])
async def test_a_viewer_reads_nothing_of_namespaces_whose_pods_he_may_not_get(
    user: str, cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await _set_the_scene(cluster)
    config = control_plane.kubeconfig_for("admin", namespace=cluster.namespace, name="web")
    flags = ("--authentication", "token", "--ledger", str(tmp_path / "live.db"))
    admin, token = control_plane.token("admin"), control_plane.token(user)
    async with serving_live(config, *flags) as served:

        async def is_recorded() -> bool:
            reply = await get(served, "/api/v1/ledger/history", admin)
            return f"{_SECRET}-runs" in reply.body and "own" in reply.body

        await until(is_recorded, "the jobs are in the ledger", within=_SECONDS)
        seen, leaks = set[int](), list[str]()
        moment = (await get(served, "/api/v1/overview", admin)).json["moment"]["now"]
        past = [f"{address}?at={moment}" for address in ("/", "/queues", "/queues/q", "/jobs", "/usage")]
        for address in [*_addresses(ledger=True), *past, *(f"/api/v1{each}" for each in past if each[1] != "?")]:
            reply = await get(served, address, token)
            assert reply.status < HTTPStatus.INTERNAL_SERVER_ERROR, (address, reply.body)
            seen.add(reply.status)
            shown = reply.body
            for word in re.findall(rf"{_SECRET}[-\w]*", address):  # the page repeats its address and parameters
                shown = shown.replace(word, "")
            if _SECRET in shown:
                place = shown.index(_SECRET)
                leaks.append(f"{address}: ...{shown[max(0, place - 80) : place + 60]}...")
        assert leaks == []
        assert seen >= {200, 400, 404}
        own = await get(served, f"/api/v1/jobs/{_MINE}/own", token)
        assert own.status == (200 if user == "somebody" else 404)
        assert (await get(served, f"/api/v1/jobs/{_PEER}/{_SECRET}-runs", token)).status == 404
        text = b""
        async with _client(served, token) as session, session.get("/api/v1/events") as stream:
            await cluster.create_all(_of(_PEER, gang(f"{_SECRET}-more", 1, queue="q", cards=A10, requests=CARD)))
            async with asyncio.timeout(_SECONDS):
                while b"event: change" not in text:
                    text += await stream.content.readline()
        assert re.fullmatch(rb"(event: (change|beat|stale)\n|data: \d*\n|\n)*", text), text


def _client(served: Served, token: str) -> aiohttp.ClientSession:
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=_SECONDS)
    headers = {"Authorization": f"Bearer {token}"}
    return aiohttp.ClientSession(served.url, headers=headers, connector=connector, timeout=timeout)


def _resident(served: Served) -> int:
    """MiB of memory of the server itself."""
    return int(Path(f"/proc/{served.pid}/statm").read_text().split()[1]) * 4096 >> 20


async def test_a_crowd_of_streams_takes_neither_memory_nor_pages(cluster: Cluster, control_plane: ControlPlane) -> None:
    await _set_the_scene(cluster)
    config = control_plane.kubeconfig_for("admin", namespace=cluster.namespace, name="web")
    for number in range(_USERS):
        await cluster.create(plain("ServiceAccount", f"user-{number}", namespace=_MINE))
    tokens = [await cluster.token_of(f"user-{number}", namespace=_MINE) for number in range(_USERS)]
    async with serving_live(config, "--authentication", "token") as served, AsyncExitStack() as clients:
        assert (await get(served, "/", control_plane.token("somebody"))).status == 200
        before = _resident(served)
        slots = asyncio.Semaphore(50)  # connections that are being made

        async def follow(session: aiohttp.ClientSession) -> int:
            async with slots:
                return (await clients.enter_async_context(session.get("/api/v1/events"))).status

        sessions = [await clients.enter_async_context(_client(served, token)) for token in tokens]
        statuses = await asyncio.gather(*(follow(sessions[number % _USERS]) for number in range(_CLIENTS)))
        assert (statuses.count(200), statuses.count(503)) == (STREAMS_OF_ONE, _CLIENTS - STREAMS_OF_ONE), (
            "the accounts of a namespace are one viewer"
        )
        people = [control_plane.token(user) for user in ("somebody", "nobody", "admin", "scheduler-a", "scheduler-b")]
        others = [await clients.enter_async_context(_client(served, token)) for token in people]
        more = await asyncio.gather(*(follow(others[number % len(others)]) for number in range(100)))
        assert more.count(200) == STREAMS - STREAMS_OF_ONE, "streams of all users have a bound, too"
        for token in people:
            assert (await get(served, "/jobs", token)).status == 200, "others get pages"
        assert _resident(served) - before < 64
        await clients.aclose()

        async def is_free() -> bool:
            async with _client(served, people[0]) as session, session.get("/api/v1/events") as stream:
                return stream.status == 200

        await until(is_free, "streams of closed connections are free", within=_SECONDS)


async def test_comparisons_of_one_viewer_do_not_keep_others_from_pages(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    await _set_the_scene(cluster)
    config = control_plane.kubeconfig_for("admin", namespace=cluster.namespace, name="web")
    somebody = control_plane.token("somebody")
    async with (
        serving_live(config, "--authentication", "token") as served,
        _client(served, control_plane.token("admin")) as hostile,
    ):
        assert (await get(served, "/jobs", somebody)).status == 200

        async def compare(query: str) -> tuple[int, str]:
            async with hostile.get(f"/api/v1/what-if?{query}") as response:
                document = await response.json()
                return response.status, document.get("error") or document.get("message") or ""

        huge = ",".join(["9999xn1"] * 5000)
        running = [asyncio.create_task(compare(f"add-nodes={number}xn1")) for number in range(2_000, 2_000 + 24)]
        for address in ("/jobs", f"/jobs/{_MINE}/own", "/nodes", f"/jobs/{_MINE}/own?fix=1"):
            assert (await get(served, address, somebody)).status == 200
        assert not all(each.done() for each in running), "no page waited for the comparisons"
        ended = [await each for each in running]
        assert {status for status, _ in ended} <= {200, 503}
        refused = [text for status, text in ended if status == 503]
        assert refused
        assert set(refused) == {f"{VIEWS_OF_ONE} pages of this user are being made already"}
        for query, text in (
            (f"add-nodes={huge}", "at most 10000 further nodes"),
            ("add-nodes=99999xn1", "at most 10000 further nodes"),
            ("conf=" + "a" * 30_000, "scheduler-conf"),
            (f"conf={quote(_BOMB)}", "scheduler-conf"),
        ):
            status, error = await compare(query)
            assert status == 200
            assert text in error
        assert (await get(served, "/", somebody)).status == 200
