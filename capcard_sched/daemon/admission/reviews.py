"""The pages of the webhooks: reads a review, runs its rule in the thread of the rules, and responds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from capcard_sched.admission.review import (
    AdmissionResult,
    ReviewError,
    decode_head,
    decode_review,
    encode_refusal,
    encode_review,
    finding_text,
)
from capcard_sched.admission.webhooks import decide
from capcard_sched.daemon.admission.rule_worker import (
    SECONDS_PER_MIB,
    SMALL_BYTES,
    RuleWorker,
    TooManyReviewsError,
    cpu_budget,
)
from capcard_sched.kube.client import Client, RequestError
from capcard_sched.kube.paths import object_path
from capcard_sched.model.deltas import Delta, ObjectChanged, ObjectGone
from capcard_sched.model.namespace_queues import NamespaceQueueObject
from capcard_sched.model.objects import NamespaceObject, PriorityClassObject, QueueObject
from capcard_sched.validation.budget import BudgetError
from capcard_sched.validation.checks import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capcard_sched.admission.webhooks import Webhook, WebhookContext
    from capcard_sched.daemon.observability.logs import Logs

#: Bytes of a review: it holds the new and the old object, each of at most 3 MiB in a request to the API server.
BODY_BYTES: Final = 8 * 2**20
#: Bodies of more than `SMALL_BYTES` that are read at a time: bounds the memory of slow clients.
_LARGE_AT_ONCE: Final = 16
#: Large bodies that wait to be read: the other connections are those of small ones.
_LARGE_WAITING: Final = 128
#: Seconds for a large body; an API server sends it at once.
_LARGE_SECONDS: Final = 2.0
#: Seconds of CPU time of the rules of one object, and further ones per MiB: rules are linear in the size of the object.
BUDGET_SECONDS: Final = 0.1
_QUEUE: Final = msgspec.json.Decoder(QueueObject)
#: Unknown queues that are looked up per review, and per second: users may create a queue and its first job at once.
_LOOKUPS_PER_REVIEW: Final = 2
_LOOKUPS_PER_SECOND: Final = 20
#: Seconds of one look-up.
_LOOKUP_SECONDS: Final = 2.0
#: From this verbosity on, every rejected object is logged.
_REJECTIONS: Final = 3


class AdmissionMetrics:
    """Counts and latencies of reviews."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.reviews = Counter(
            "capcard_sched_admission_reviews_total",
            "Admission reviews by webhook path and verdict: allowed, rejected or error.",
            ("path", "verdict"),
            registry=self._registry,
        )
        self.seconds = Histogram(
            "capcard_sched_admission_review_seconds",
            "Seconds from the complete request to the encoded response.",
            ("path",),
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5),
            registry=self._registry,
        )

    def exposition(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self._registry)


class _Decision(NamedTuple):
    errors: list[Finding]
    response: bytes
    #: Queues that a rejected object names and that are unknown.
    missing: list[str]


class Reviews:
    """All reviews of one server. `context` may be replaced; its view is read and changed by the worker alone."""

    def __init__(
        self, context: WebhookContext, worker: RuleWorker, metrics: AdmissionMetrics, logs: Logs, client: Client
    ) -> None:
        self.context = context
        self._worker = worker
        self._metrics = metrics
        self._logs = logs
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        self._client = client
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._large_waiting = 0
        #: Start of the present second and look-ups in it.
        self._lookups = (0.0, 0)

    def page(self, hook: Webhook, is_ready: Callable[[], bool]):  # type: ignore[no-untyped-def]
        """The handler of one webhook path."""

        async def page(request: web.Request) -> web.Response:
            length = request.content_length
            if length is not None and length > BODY_BYTES:
                raise web.HTTPRequestEntityTooLarge(BODY_BYTES, length)
            is_large = length is None or length > SMALL_BYTES
            if is_large:
                if self._large_waiting >= _LARGE_WAITING:
                    raise web.HTTPTooManyRequests
                self._large_waiting += 1
                try:
                    await self._large.acquire()
                finally:
                    self._large_waiting -= 1
                try:
                    async with asyncio.timeout(_LARGE_SECONDS):
                        body = await request.read()
                except TimeoutError:
                    raise web.HTTPRequestTimeout from None
                finally:
                    self._large.release()
            else:
                body = await request.read()
            if not is_ready():
                return web.Response(status=503, text="queues and namespaces are not listed yet\n")
            return await self._answer(hook, body)

        return page

    async def _answer(self, hook: Webhook, body: bytes) -> web.Response:
        began = time.perf_counter()
        verdict = "error"
        try:
            head = decode_head(body)
            try:
                done = await self._decide(hook, body, head.tenant)
            except (TooManyReviewsError, BudgetError) as error:
                if hook.is_advisory:  # the API server applies the failure policy
                    return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{error}\n")
                response = encode_refusal(head, str(error), HTTPStatus.TOO_MANY_REQUESTS)
            else:
                verdict, response = "rejected" if done.errors else "allowed", done.response
                if done.errors and self._logs.verbosity >= _REJECTIONS:
                    causes = [finding_text(finding) for finding in done.errors]
                    self._log.info("rejected", path=hook.path, namespace=head.namespace, name=head.name, causes=causes)
        except ReviewError as error:
            return web.Response(status=400, text=f"{error}\n")
        except Exception:  # noqa: BLE001 - one review must not end the server
            self._log.exception("review failed", path=hook.path)
            return web.Response(status=500, text="internal error; see the log of the admission server\n")
        finally:
            self._metrics.seconds.labels(hook.path).observe(time.perf_counter() - began)
            self._metrics.reviews.labels(hook.path, verdict).inc()
        return web.Response(body=response, content_type="application/json")

    async def _decide(self, hook: Webhook, body: bytes, tenant: str) -> _Decision:
        """The decision on a review; with a second run after a look-up of unknown queues."""
        context, view, worker = self.context, self.context.view, self._worker
        queues: list[QueueObject] = []

        def job() -> _Decision:
            review = decode_review(body)
            seconds = BUDGET_SECONDS + SECONDS_PER_MIB * len(body) / 2**20
            with view.including(queues), view.recording() as missing:
                try:
                    with cpu_budget(seconds, worker.interrupt):
                        result = decide(hook, review, context)
                except BudgetError as error:
                    if hook.is_advisory:
                        raise
                    result = AdmissionResult((Finding("error", "", str(error), "a smaller object"),))
            return _Decision(result.errors, encode_review(review, result), sorted(missing) if result.errors else [])

        done = await worker.run(tenant, job, len(body))
        if done.missing and (found := await self._look_up(done.missing)):
            queues += found
            done = await worker.run(tenant, job, len(body))
        return done

    async def _look_up(self, names: Sequence[str]) -> list[QueueObject]:
        """Queues that exist although the watch has not delivered them."""
        found = []
        for name in names[:_LOOKUPS_PER_REVIEW]:
            now = time.monotonic()
            began, count = self._lookups if now - self._lookups[0] < 1.0 else (now, 0)
            self._lookups = began, count + 1
            if count >= _LOOKUPS_PER_SECOND:
                break
            with contextlib.suppress(RequestError, ValueError, msgspec.DecodeError):
                path = object_path("Queue", "", name)
                found.append(_QUEUE.decode(await self._client.request("GET", path, timeout=_LOOKUP_SECONDS)))
        return found

    def deliver(self, deltas: Sequence[Delta]) -> None:
        """Apply changes of queues and namespaces before the next review."""
        self._worker.update(lambda: self._apply(deltas))

    def _apply(self, deltas: Sequence[Delta]) -> None:
        view = self.context.view
        for delta in deltas:
            match delta:
                case ObjectChanged(QueueObject() as queue):
                    view.set_queue(queue)
                case ObjectChanged(NamespaceObject() as namespace):
                    view.set_namespace(namespace.metadata.name, namespace.default_queue)
                case ObjectChanged(PriorityClassObject() as found):
                    view.set_priority_class(found.metadata.name)
                case ObjectGone("PriorityClass", _, name):
                    view.drop_priority_class(name)
                case ObjectGone("Queue", _, name):
                    view.drop_queue(name)
                case ObjectChanged(NamespaceQueueObject() as local):
                    view.set_namespace_queue(local)
                case ObjectGone("NamespaceQueue", namespace, name):
                    view.drop_namespace_queue(f"{namespace}/{name}")
                case ObjectGone("Namespace", _, name):
                    view.set_namespace(name, "")
                case _:
                    pass
