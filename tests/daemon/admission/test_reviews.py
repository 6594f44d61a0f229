"""The pages of the webhooks under the most expensive objects: other tenants have their answers meanwhile."""

from __future__ import annotations

import asyncio
import gc
import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import aiohttp
import msgspec
import pytest

from capcard_sched.admission.pods import AdmissionConfig
from capcard_sched.admission.webhooks import WEBHOOKS, WebhookContext
from capcard_sched.daemon.admission.reviews import BODY_BYTES, AdmissionMetrics, Reviews
from capcard_sched.daemon.admission.rule_worker import SMALL_BYTES, RuleWorker
from capcard_sched.daemon.admission.service import LIMITS
from capcard_sched.daemon.flag_values import AddressFlag
from capcard_sched.daemon.observability.logs import Logs
from capcard_sched.daemon.observability.server import HttpServer
from capcard_sched.kube.client import Client
from tests.unit.admission.objects import view
from tests.unit.admission.worst import WORST, Worst, review


class _Quiet:
    verbosity = 0


class Server:
    """The webhook pages on loopback, without TLS and with time for a slow machine; no queue can be looked up."""

    def __init__(self) -> None:
        self.worker = RuleWorker()
        context = WebhookContext(view(), AdmissionConfig(), ("capcard-sched", "volcano"))
        reviews = Reviews(
            context, self.worker, AdmissionMetrics(), cast("Logs", _Quiet()), cast("Client", _Unreachable())
        )
        self.http = HttpServer(
            AddressFlag("127.0.0.1", 0),
            {},
            posts={path: reviews.page(hook, lambda: True) for path, hook in WEBHOOKS.items()},
            body_bytes=BODY_BYTES,
            limits=LIMITS._replace(header_seconds=60.0, idle_seconds=600.0, response_seconds=600.0),
        )

    async def ask(self, session: aiohttp.ClientSession, path: str, body: bytes) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.http.port}{path}"
        async with session.post(url, data=io.BytesIO(body)) as response:
            if response.status == 503 and WEBHOOKS[path].is_advisory:
                return {"allowed": True}
            assert response.status == 200, await response.text()
            found: dict[str, Any] = (await response.json())["response"]
            return found


class _Unreachable:
    async def request(self, *_: object, **__: object) -> bytes:
        raise ValueError


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    await found.http.start()
    yield found
    await found.http.stop()
    found.worker.close()


def _of_size(worst: Worst, size: int) -> bytes:
    """The review of the object with about `size` bytes."""
    per_entry = len(msgspec.json.encode(worst.build(1000))) / 1000
    return msgspec.json.encode(review(worst.build(int(size / per_entry)), namespace="hostile"))


async def test_twenty_of_the_worst_objects_do_not_delay_others(server: Server) -> None:
    harmless = WORST["PodGroup: annotations"]
    body = msgspec.json.encode(review(harmless.build(0), namespace="healthy"))
    expensive = ("Job: tasks without anything", "Job: annotations of templates", "PodGroup: minimums of tasks",
                 "Queue: a hierarchy", "Pod: alternatives", "Deployment: annotations")  # fmt: skip
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        attacks = [
            asyncio.create_task(server.ask(session, WORST[name].path, attack))
            for name in expensive
            for attack in [_of_size(WORST[name], 500_000)] * 20
        ]
        answered = 0
        while not all(task.done() for task in attacks):
            assert (await server.ask(session, harmless.path, body))["allowed"]
            answered += 1
            await asyncio.sleep(0.01)
        answers = await asyncio.gather(*attacks)
    assert answered >= 10, "others had their answers meanwhile"
    texts = [each["status"]["message"] for each in answers if not each["allowed"]]
    assert any("the checks take more than " in text for text in texts), texts[:2]
    assert any("reviews of namespace hostile wait; try again" in text for text in texts)


async def test_a_burst_of_pods_of_one_namespace_is_admitted(server: Server) -> None:
    body = msgspec.json.encode(review(WORST["Pod: alternatives"].build(0), namespace="rollout"))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        url = f"http://127.0.0.1:{server.http.port}/pods/validate"

        async def status() -> int:
            async with session.post(url, data=body) as response:
                return response.status

        assert {*await asyncio.gather(*(status() for _ in range(200)))} == {200}


def _big_job(least: int) -> dict[str, Any]:
    """A vcjob of half a MiB; `least`: its minAvailable."""
    env = [{"name": f"NAME_{index}", "value": "x" * 60} for index in range(20)]
    container = {"name": "main", "image": "x", "env": env, "resources": {"limits": {"cpu": "500m"}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    tasks = [{"name": f"t{index}", "replicas": 1, "template": template} for index in range(250)]
    spec = {"schedulerName": "capcard-sched", "queue": "default", "minAvailable": least, "tasks": tasks}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}


async def test_a_large_job_that_was_created_can_be_scaled(server: Server) -> None:
    gc.collect()  # else a collection of all objects of the tests may count for the budget
    async with aiohttp.ClientSession() as session:
        created = review(_big_job(2), namespace="a")
        assert (await server.ask(session, "/jobs/validate", msgspec.json.encode(created)))["allowed"]
        changed = review(_big_job(1), namespace="a")
        changed["request"] |= {"operation": "UPDATE", "oldObject": _big_job(2)}
        assert (await server.ask(session, "/jobs/validate", msgspec.json.encode(changed)))["allowed"]


async def test_a_body_above_the_limit_is_refused_before_it_is_read(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http.port)
    writer.write(f"POST /jobs/validate HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY_BYTES + 1}\r\n\r\n".encode())
    assert b" 413 " in await reader.readline()
    writer.close()


async def test_slow_clients_of_large_bodies_leave_the_connections_of_others(server: Server) -> None:
    """Each of them holds a connection; further ones are refused, and no connection with a review is aborted."""
    head = f"POST /jobs/validate HTTP/1.1\r\nHost: x\r\nContent-Length: {SMALL_BYTES + 1}\r\n\r\n".encode()
    body = msgspec.json.encode(review(WORST["PodGroup: annotations"].build(0), namespace="healthy"))
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(300):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.http.port)
            stack.callback(writer.close)
            writer.write(head)
            readers.append(reader)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        assert (await server.ask(session, "/podgroups/validate", body))["allowed"]
        lines = {await reader.readline() for reader in readers[200:]}
    assert lines == {b"HTTP/1.1 429 Too Many Requests\r\n"}


@pytest.mark.parametrize("body", [b"", b"{}", b"[" * 100_000, b'{"request": {}}', b'{"request": {"uid": 1}}'])
async def test_a_body_that_is_no_review_is_refused(server: Server, body: bytes) -> None:
    url = f"http://127.0.0.1:{server.http.port}/jobs/validate"
    async with aiohttp.ClientSession() as session, session.post(url, data=body) as response:
        assert response.status == 400
