"""A webhook on loopback: aiohttp.web in a thread of its own, so that plugins meet real connections and real delays."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any, Self

from aiohttp import web

from capcard_sched.testing import Harness
from capcard_sched_extender import wire
from capcard_sched_extender.client import WebhookClient
from capcard_sched_extender.port import BreakerState

QUESTION = wire.verb("predicate", wire.PredicateResponse)
YES = wire.PredicateResponse()

#: Response of a verb: a JSON value, a function from the request to one, or a handler that does it all by itself.
Reply = Any


class Raw:
    """An answer that is sent as it stands."""

    def __init__(self, body: bytes = b"", status: int = 200, *, delay: float = 0.0) -> None:
        self.body = body
        self.status = status
        #: Seconds before the answer.
        self.delay = delay


class Drip:
    """A response that comes byte by byte, `pause` seconds apart, and longer than any client waits."""

    def __init__(self, pause: float) -> None:
        self.pause = pause


class Webhook:
    """Answers verbs by `replies`, and records the requests. A context manager."""

    def __init__(self, **replies: Reply) -> None:
        self.replies: dict[str, Reply] = replies
        #: (verb, request) in the order they came.
        self.received: list[tuple[str, Any]] = []
        #: Calls that are being answered now, and the most there were at a time.
        self.under_way = self.most_under_way = 0
        self.connections: set[Any] = set()
        self._tasks = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._tasks.get_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._runner: web.AppRunner
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        with self._tasks:  # cancels the requests without an answer: their collection would be logged in another test
            self._loop.run_forever()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{verb:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.connections.add(request.transport)
        try:
            return await self._answer(request)
        finally:
            self.under_way -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        verb = request.match_info["verb"]
        received = json.loads(await request.read())
        self.received.append((verb, received))
        reply = self.replies.get(verb, Raw(b"no such verb", 404))
        if callable(reply):
            reply = reply(received)
        if isinstance(reply, Drip):
            response = web.StreamResponse()
            await response.prepare(request)
            for _ in range(200):
                await response.write(b" ")
                await asyncio.sleep(reply.pause)
            return response
        if isinstance(reply, Raw):
            await asyncio.sleep(reply.delay)
            return web.Response(body=reply.body, status=reply.status)
        return web.json_response(reply)

    @property
    def url(self) -> str:
        """The prefix of all verbs."""
        return f"http://127.0.0.1:{self.port}"

    def verbs(self) -> list[str]:
        """The verbs of the requests, in order."""
        return [verb for verb, _ in self.received]

    def requests(self, verb: str) -> list[Any]:
        """The requests of a verb, in order."""
        return [request for received, request in self.received if received == verb]


#: Argument of a verb to the word that tests send it by.
VERBS = {
    "onSessionOpenVerb": "open",
    "onSessionCloseVerb": "close",
    "predicateVerb": "predicate",
    "predicateBatchVerb": "batch",
    "prioritizeVerb": "prioritize",
    "preemptableVerb": "preemptable",
    "reclaimableVerb": "reclaimable",
    "queueOverusedVerb": "overused",
    "jobEnqueueableVerb": "enqueueable",
    "jobEnqueuedVerb": "enqueued",
    "jobReadyVerb": "ready",
    "allocateFuncVerb": "allocate",
    "deallocateFuncVerb": "deallocate",
}


def conf(
    url: str, *verbs: str, actions: str = "allocate", others: str = "gang", switches: str = "", **more: Any
) -> str:
    """A scheduler-conf: `verbs` by the words of VERBS, `more` arguments without prefix; `others` plugins before it."""
    arguments = {"urlPrefix": url, "httpTimeout": "5s", "sessionTimeout": "60s", **more}
    arguments |= {argument: word for argument, word in VERBS.items() if word in verbs}
    written = json.dumps({f"extender.{key}": value for key, value in arguments.items()})
    plugins = ", ".join(f"{{name: {name}}}" for name in others.split())
    before = f"{{plugins: [{plugins}]}}, " if plugins else ""
    return f'actions: "{actions}"\ntiers: [{before}{{plugins: [{{name: extender, arguments: {written}{switches}}}]}}]\n'


def cluster(conf: str, nodes: int = 3, **pod: Any) -> Harness:
    """Nodes n0, n1, ... and a job of one pod, p, in queue q."""
    h = Harness(conf)
    for number in range(nodes):
        h.node(f"n{number}")
    h.queue("q")
    h.group("g")
    h.pod("p", **pod)
    return h


def metric(h: Harness, name: str, **labels: str) -> float:
    """The value of a metric of the extender."""
    for sample in h.plugin("extender").metrics():
        if sample.name == name and sample.labels == labels:
            return float(sample.value)
    raise KeyError(f"{name} {labels}")


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def call_webhook(client: WebhookClient, many: int = 1, question: Any = QUESTION) -> list[Any]:
    return client.call(question, many, lambda: [b"{}"] * many)


def failures(client: WebhookClient, verb: str = "predicate") -> dict[str, int]:
    return {str(kind): count for kind, count in client.counts[verb].failures.items()}


def state_of(client: WebhookClient) -> BreakerState:
    return client.breaker_state
