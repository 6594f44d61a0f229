"""The admission server: watches queues and namespaces, keeps its certificate valid, and answers reviews over HTTPS.

All replicas serve; there is no leader. A replica is ready once it has the queues and a certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import signal
import ssl
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from capcard_sched.admission.pods import AdmissionConfig, AdmissionConfigError, parse_admission_config
from capcard_sched.admission.review import ClusterView, ReviewError, decode_review, encode_review, finding_text
from capcard_sched.admission.webhooks import WEBHOOKS, WebhookContext
from capcard_sched.daemon.admission.certificates import ensure_certificate, publish_authorities
from capcard_sched.daemon.common_options import StartError
from capcard_sched.daemon.observability.health import HealthState
from capcard_sched.daemon.observability.logs import Logs
from capcard_sched.daemon.observability.server import (
    HttpServer,
    ServeError,
    ServerLimits,
    health_pages,
    metrics_pages,
)
from capcard_sched.daemon.wiring import cancel, run_until
from capcard_sched.gc import settle_memory
from capcard_sched.kube.client import Client, RequestError
from capcard_sched.kube.connection import ConnectionConfigError, load_connection
from capcard_sched.kube.informers import Informers
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.kinds import KINDS
from capcard_sched.kube.paths import object_path
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.objects import NamespaceObject, PriorityClassObject, QueueObject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.admission.webhooks import Webhook
    from capcard_sched.daemon.admission.options import AdmissionOptions
from capcard_sched.model.deltas import Delta

#: Bytes of a review: it holds the new and the old object, each of at most 1.5 MiB in etcd.
BODY_BYTES: Final = 8 * 2**20
#: The API server keeps idle connections for 90 s. A server that closes them first fails reviews: a POST on a connection
#: that closes is not repeated. Each review in progress has a connection of its own.
_LIMITS: Final = ServerLimits(connections=256, idle_seconds=120.0)
#: Seconds between two looks at the certificate, its files, the webhook configurations and the admission configuration.
_REFRESH_SECONDS: Final = 10.0
_QUEUE: Final = msgspec.json.Decoder(QueueObject)
#: PriorityClasses are optional: without the right to list them, none is reported as missing.
_WATCHED: Final = frozenset({"Queue", "Namespace", "PriorityClass"})
#: Unknown queues that are looked up per review, and per second: users may create a queue and its first job at once.
_LOOKUPS_PER_REVIEW: Final = 2
_LOOKUPS_PER_SECOND: Final = 20
#: Seconds of one look-up.
_LOOKUP_SECONDS: Final = 2.0
#: From this verbosity on, every rejected object is logged.
_REJECTIONS: Final = 3


def run(options: AdmissionOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartError."""
    with Logs(options.verbosity, options.log_format) as logs:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(AdmissionService(options, logs).run())
        except (AdmissionConfigError, ConnectionConfigError, ServeError) as error:
            raise StartError(str(error)) from error


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


class ServingContext:
    """The TLS context of the server. `load` replaces the certificate of later handshakes."""

    def __init__(self) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._loaded: tuple[bytes, bytes] | None = None

    @property
    def loaded(self) -> bool:
        """Whether there is a certificate."""
        return self._loaded is not None

    def context(self) -> ssl.SSLContext:
        """The context."""
        return self._context

    def load(self, certificate: bytes, key: bytes) -> bool:
        """Use another certificate; False when it is the one in use. Raises ServeError when the texts are not a pair."""
        if self._loaded == (certificate, key):
            return False
        with tempfile.TemporaryDirectory() as folder:  # the ssl module reads files only
            paths = Path(folder, "tls.crt"), Path(folder, "tls.key")
            for path, text in zip(paths, (certificate, key), strict=True):
                path.touch(mode=0o600)
                path.write_bytes(text)
            try:
                self._context.load_cert_chain(*paths)
            except (OSError, ssl.SSLError) as error:
                raise ServeError(f"TLS certificate: {error}") from None
        self._loaded = certificate, key
        return True


class AdmissionService(HealthState):
    """One admission server. `run` once."""

    def __init__(self, options: AdmissionOptions, logs: Logs) -> None:
        """Reads the kubeconfig and the admission configuration. Raises ConnectionConfigError, AdmissionConfigError."""
        self._options = options
        self._logs = logs
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        self._connection = load_connection(options.kubeconfig, options.master or None)
        self._view = ClusterView()
        self._context = WebhookContext(self._view, self._read_config(), options.scheduler_name, options.queue_rules)
        self._tls = ServingContext()
        self._metrics = AdmissionMetrics()
        self._informers: Informers | None = None
        self._client: Client | None = None
        #: Start of the present second and look-ups in it.
        self._lookups = (0.0, 0)
        self._problem = ""

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        options = self._options
        for name, reason in options.given().items():
            self._log.warning("flag without effect", flag=name, reason=reason)
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        async with AsyncExitStack() as stack:
            pages = {**health_pages(self), **metrics_pages(self._metrics)}
            health = HttpServer(options.healthz_address, pages)
            await health.start()
            stack.push_async_callback(health.stop)
            client = await stack.enter_async_context(
                Client(
                    self._connection,
                    connections=4,
                    qps=options.kube_api_qps,
                    burst=options.kube_api_burst,
                    user_agent="capcard-sched",
                )
            )
            self._client = client
            kinds = [kind for kind in KINDS if kind.name in _WATCHED]
            self._informers = Informers(client, self._deliver, Observer(), kinds)
            tasks = [asyncio.create_task(self._informers.run()), asyncio.create_task(self._refresh(client))]
            settling = asyncio.create_task(self._settle(self._informers))
            stack.push_async_callback(cancel, [*tasks, settling])
            server = HttpServer(
                options.server_address,
                {},
                posts={path: self._page(WEBHOOKS[path]) for path in options.paths},
                body_bytes=BODY_BYTES,
                tls=self._tls,
                limits=_LIMITS,
                shutdown_seconds=options.graceful_shutdown_time,
            )
            await server.start()
            stack.push_async_callback(server.stop)
            self._log.info("serving admission webhooks", port=server.port, health_port=health.port)
            await run_until(stopped, tasks)
            self._log.info("shutting down")

    @staticmethod
    async def _settle(informers: Informers) -> None:
        """Keep collections of garbage from looking at everything there is while a review waits."""
        await informers.wait_synced()
        settle_memory()

    def readiness(self) -> Mapping[str, str]:
        """Condition to the reason why it does not hold, or ""."""
        synced = self._informers is not None and self._informers.synced
        return {
            "caches": "" if synced else "queues and namespaces are not listed yet",
            "certificate": "" if self._tls.loaded else self._problem or "no certificate yet",
        }

    def _page(self, hook: Webhook):  # type: ignore[no-untyped-def]
        async def page(request: web.Request) -> web.Response:
            body = await request.read()
            began = time.perf_counter()
            try:
                if self._informers is None or not self._informers.synced:
                    return web.Response(status=503, text="queues and namespaces are not listed yet\n")
                review = decode_review(body)
                self._view.missing.clear()
                result = hook.rule(review, self._context)
                if result.errors and self._view.missing:
                    with self._view.including(await self._look_up(sorted(self._view.missing))):
                        result = hook.rule(review, self._context)
                response = encode_review(review, result)
            except ReviewError as error:
                self._metrics.reviews.labels(hook.path, "error").inc()
                return web.Response(status=400, text=f"{error}\n")
            except Exception:  # noqa: BLE001 - one review must not end the server
                self._metrics.reviews.labels(hook.path, "error").inc()
                self._log.exception("review failed", path=hook.path)
                return web.Response(status=500, text="internal error; see the log of the admission server\n")
            finally:
                self._metrics.seconds.labels(hook.path).observe(time.perf_counter() - began)
            errors = result.errors
            self._metrics.reviews.labels(hook.path, "rejected" if errors else "allowed").inc()
            if errors and self._logs.verbosity >= _REJECTIONS:
                causes = [finding_text(finding) for finding in errors]
                self._log.info("rejected", path=hook.path, namespace=review.namespace, name=review.name, causes=causes)
            return web.Response(body=response, content_type="application/json")

        return page

    async def _look_up(self, names: Sequence[str]) -> list[QueueObject]:
        """Queues that exist although the watch has not delivered them."""
        found = []
        for name in names[:_LOOKUPS_PER_REVIEW]:
            now = time.monotonic()
            began, count = self._lookups if now - self._lookups[0] < 1.0 else (now, 0)
            self._lookups = began, count + 1
            if self._client is None or count >= _LOOKUPS_PER_SECOND:
                break
            with contextlib.suppress(RequestError, ValueError, msgspec.DecodeError):
                found.append(
                    _QUEUE.decode(
                        await self._client.request("GET", object_path("Queue", "", name), timeout=_LOOKUP_SECONDS)
                    )
                )
        return found

    def _deliver(self, deltas: Sequence[Delta]) -> None:
        view = self._view
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
                case ObjectGone("Namespace", _, name):
                    view.set_namespace(name, "")
                case _:
                    pass

    def _read_config(self) -> AdmissionConfig:
        path = self._options.admission_conf
        if path is None:
            return AdmissionConfig()
        try:
            return parse_admission_config(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise AdmissionConfigError(f"--admission-conf {path}: {error}") from None

    async def _refresh(self, client: Client) -> None:
        """Keep the certificate, the caBundle and the admission configuration current. Failures are retried."""
        while True:
            problem = ""
            try:
                await self._refresh_certificate(client)
            except (RequestError, ServeError, OSError) as error:
                problem = f"certificate: {error}"
            try:
                self._context = self._context._replace(config=self._read_config())
            except AdmissionConfigError as error:  # the last valid one stays in force
                problem = problem or str(error)
            if problem != self._problem:
                self._problem = problem
                if problem:
                    self._log.warning("refresh failed, will retry", err=problem)
            await asyncio.sleep(_REFRESH_SECONDS if self._tls.loaded else 1.0)

    async def _refresh_certificate(self, client: Client) -> None:
        options = self._options
        if options.tls_cert_file is not None and options.tls_private_key_file is not None:
            pair = options.tls_cert_file.read_bytes(), options.tls_private_key_file.read_bytes()
            changed = self._tls.load(*pair)
        else:
            now = dt.datetime.now(dt.UTC)
            known = await ensure_certificate(client, options.webhook_namespace, options.secret_name, options.hosts, now)
            for name in options.configurations:
                await publish_authorities(client, name, known.authorities)
            changed = self._tls.load(known.certificate.encode(), known.key.encode())
        if changed:
            self._log.info("serving certificate loaded")
