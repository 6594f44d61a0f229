"""The admission server: watches queues and namespaces, keeps its certificate valid, and reviews requests over HTTPS.

All replicas serve; there is no leader. A replica is ready once it has the queues and a certificate.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import structlog
import uvloop

from capcard_sched.admission.pods import AdmissionConfig, AdmissionConfigError, parse_admission_config
from capcard_sched.admission.review import ClusterView
from capcard_sched.admission.webhooks import WEBHOOKS, WebhookContext
from capcard_sched.daemon.admission.certificates import ensure_certificate, publish_authorities
from capcard_sched.daemon.admission.reviews import BODY_BYTES, AdmissionMetrics, Reviews
from capcard_sched.daemon.admission.rule_worker import RuleWorker
from capcard_sched.daemon.admission.serving_context import ServingContext
from capcard_sched.daemon.common_options import ServeError, StartError
from capcard_sched.daemon.compat_flags import QUEUE_GATE
from capcard_sched.daemon.observability.health import HealthState
from capcard_sched.daemon.observability.logs import Logs
from capcard_sched.daemon.observability.server import (
    HttpServer,
    ServerLimits,
    health_pages,
    metrics_pages,
)
from capcard_sched.daemon.observability.server_thread import ServerThread
from capcard_sched.daemon.wiring import cancel, run_until
from capcard_sched.gc import collect_seldom, settle_memory
from capcard_sched.kube.client import Client, RequestError
from capcard_sched.kube.connection import ConnectionConfigError, load_connection
from capcard_sched.kube.informers import Informers
from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.daemon.admission.options import AdmissionOptions

#: The API server keeps idle connections for 90 s. A server that closes them first fails reviews: a POST on a connection
#: that closes is not repeated. Each review in progress has a connection of its own: an API server has 600 requests at a
#: time by default. A connection with a review in progress is not aborted for a new one.
LIMITS: Final = ServerLimits(connections=1024, idle_seconds=120.0, busy_seconds=math.inf)
#: Seconds between two checks of the certificate, its files, the webhook configurations and the admission configuration.
_REFRESH_SECONDS: Final = 10.0
#: NamespaceQueues and PriorityClasses are optional: without the right to list these, none is reported as missing.
_WATCHED: Final = frozenset({"Queue", "NamespaceQueue", "Namespace", "PriorityClass"})
#: Seconds without a turn of the event loop after which the process counts as dead.
_STALLED_SECONDS: Final = 60.0


def run(options: AdmissionOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartError."""
    with Logs(options.verbosity, options.log_format) as logs:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(AdmissionService(options, logs).run())
        except (AdmissionConfigError, ConnectionConfigError, ServeError) as error:
            raise StartError(str(error)) from error


class AdmissionService(HealthState):
    """One admission server. `run` once."""

    def __init__(self, options: AdmissionOptions, logs: Logs) -> None:
        """Reads the kubeconfig and the admission configuration. Raises ConnectionConfigError, AdmissionConfigError."""
        self._options = options
        self._logs = logs
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        self._connection = load_connection(options.kubeconfig, options.master or None)
        self._context = WebhookContext(
            ClusterView(),
            self._read_config(),
            options.scheduler_name,
            options.queue_rules,
            adds_queue_gate=options.ignored.is_on(QUEUE_GATE),
        )
        self._tls = ServingContext(options.client_ca_file)
        self._informers: Informers | None = None
        self._worker: RuleWorker | None = None
        #: Time of the last turn of the event loop.
        self._turn = time.monotonic()
        self._problem = ""

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        options = self._options
        collect_seldom()
        for name, reason in options.given().items():
            self._log.warning("flag without effect", flag=name, reason=reason)
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        async with AsyncExitStack() as stack:
            metrics = AdmissionMetrics()
            health = ServerThread(options.healthz_address, {**health_pages(self), **metrics_pages(metrics)})
            await health.start()
            stack.push_async_callback(health.stop)
            worker = self._worker = RuleWorker()
            stack.callback(worker.close)
            client = await stack.enter_async_context(
                Client(
                    self._connection,
                    connections=4,
                    qps=options.kube_api_qps,
                    burst=options.kube_api_burst,
                    user_agent="capcard-sched",
                )
            )
            reviews = Reviews(self._context, worker, metrics, self._logs, client)
            kinds = [kind for kind in KINDS if kind.name in _WATCHED]
            informers = self._informers = Informers(client, reviews.deliver, Observer(), kinds)
            tasks = [
                asyncio.create_task(informers.run()),
                asyncio.create_task(self._refresh(client, reviews)),
                asyncio.create_task(self._beat()),
            ]
            settling = asyncio.create_task(self._settle(informers))
            stack.push_async_callback(cancel, [*tasks, settling])
            server = HttpServer(
                options.server_address,
                {},
                posts={path: reviews.page(WEBHOOKS[path], lambda: informers.synced) for path in options.paths},
                body_bytes=BODY_BYTES,
                tls=self._tls,
                limits=LIMITS,
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

    async def _beat(self) -> None:
        while True:
            self._turn = time.monotonic()
            await asyncio.sleep(1.0)

    def liveness_error(self) -> str:
        """Reason for a restart, or ""; the health server has a thread of its own."""
        if self._worker is not None and not self._worker.is_alive:
            return "the thread of the rules is dead"
        stalled = time.monotonic() - self._turn
        return f"the event loop has not run for {stalled:.0f} s" if stalled > _STALLED_SECONDS else ""

    def readiness(self) -> Mapping[str, str]:
        """Condition to the reason why it does not hold, or ""."""
        synced = self._informers is not None and self._informers.synced
        return {
            "caches": "" if synced else "queues and namespaces are not listed yet",
            "certificate": self._tls.problem() if self._tls.loaded else self._problem or "no certificate yet",
        }

    def _read_config(self) -> AdmissionConfig:
        path = self._options.admission_conf
        if path is None:
            return AdmissionConfig()
        try:
            return parse_admission_config(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise AdmissionConfigError(f"--admission-conf {path}: {error}") from None

    async def _refresh(self, client: Client, reviews: Reviews) -> None:
        """Keep the certificate, the caBundle and the admission configuration current. Failures are retried."""
        while True:
            problem = ""
            try:
                await self._refresh_certificate(client)
            except (RequestError, ServeError, OSError) as error:
                problem = f"certificate: {error}"
            try:
                reviews.context = reviews.context._replace(config=self._read_config())
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
            authorities = known.authorities
            changed = self._tls.load(known.certificate.encode(), known.key.encode(), authorities, options.hosts[0])
        if changed:
            self._log.info("serving certificate loaded")
