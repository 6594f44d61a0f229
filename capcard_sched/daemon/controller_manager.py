"""`capcard-sched controllers`: informers, cache, election and the controllers' loops, from the first flag to SIGTERM.

Everything runs in one event loop. A standby keeps its cache in step and runs no controller; a new leader lists afresh,
makes new controllers and replays the cache to them.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvloop
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from capcard_sched import __version__
from capcard_sched.controllers.cronjobs import CronJobController
from capcard_sched.controllers.hyper_nodes import HyperNodeController
from capcard_sched.controllers.jobs.job_controller import JobController
from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair
from capcard_sched.controllers.namespace_queues import NamespaceQueueController, blocked_reason
from capcard_sched.controllers.objects import JOB, POD_GROUP, QUEUE, meta
from capcard_sched.controllers.podgroups import PodGroupController
from capcard_sched.controllers.queues import QueueController
from capcard_sched.controllers.ttl import TtlController
from capcard_sched.controllers.view import COMPONENT
from capcard_sched.daemon.controller_metrics import ControllerMetrics
from capcard_sched.daemon.leadership import Leadership
from capcard_sched.daemon.observability.health import HealthState
from capcard_sched.daemon.observability.logs import Logs
from capcard_sched.daemon.observability.observer import LoggingObserver
from capcard_sched.daemon.observability.server import open_pages
from capcard_sched.daemon.wiring import cancel, run_until
from capcard_sched.gc import collect_seldom
from capcard_sched.kube.client import Client, RequestError
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.controllers.controller_loop import ControllerLoop, NotReadyError
from capcard_sched.kube.controllers.object_cache import ObjectCache
from capcard_sched.kube.controllers.records import WatchedRecords
from capcard_sched.kube.controllers.write_executor import WriteExecutor
from capcard_sched.kube.informers import Informers
from capcard_sched.kube.writes.api_writer import LOW_WORKERS, ApiWriter
from capcard_sched.model.deltas import ObjectGone
from capcard_sched.model.namespace_queues import NAMESPACE_QUEUE

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from capcard_sched.controllers.objects import JsonObject, Key
    from capcard_sched.controllers.view import Controller
    from capcard_sched.daemon.controller_options import ControllerOptions
    from capcard_sched.kube.controllers.records import RecordChanged

#: Seconds: between checks of objects that the watch did not confirm; for events at the end; for the Lease.
_CONFIRM_SECONDS: Final = 5.0
_DRAIN_SECONDS: Final = 1.0
_RELEASE_SECONDS: Final = 1.0
_READERS: Final = 8


def run(options: ControllerOptions) -> None:
    """Run until a signal ends it. Raises ConnectionConfigError and ServeError."""
    with (
        Logs(options.verbosity, options.log_format),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(ControllerManager(options).run())


class ControllerManager(HealthState):
    """One process. `run` once. Implements `leadership.LeadershipHandler`."""

    def __init__(self, options: ControllerOptions) -> None:
        """Reads the kubeconfig. Raises ConnectionConfigError."""
        self._options = options
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        self._metrics = ControllerMetrics()
        self._connection = load_connection(options.kubeconfig, options.master or None, options.context or None)
        self._rules = options.owner_rules()
        self._discovery = options.discovery()
        self._records = WatchedRecords(self._rules)
        self._cache = ObjectCache(time.monotonic, self._changed, self._records)
        self._cache.observed = False
        self._loops: list[ControllerLoop] = []
        self._ended = asyncio.Event()
        self._term: asyncio.Task[Any] | None = None
        self._synced = False
        self._keys = KeyPool()
        #: An error in the loops themselves; it ends the process.
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises ServeError when a port is taken."""
        options = self._options
        loop = asyncio.get_running_loop()
        collect_seldom()
        self._log.info("starting", version=__version__, server=self._connection.server, **options.summary())
        for flag, reason in options.given().items():
            self._log.warning("flag without effect", flag=flag, reason=reason)
        for note in self._discovery.notes:
            self._log.warning("configuration without effect", flag="--network-topology-discovery", reason=note)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        observer = LoggingObserver(self._metrics)
        workers = options.worker_threads + options.worker_threads_for_podgroup + options.worker_threads_for_queue
        async with AsyncExitStack() as stack:
            self._client = await stack.enter_async_context(
                Client(
                    self._connection,
                    connections=2 * workers + LOW_WORKERS + _READERS,
                    qps=options.kube_api_qps,
                    burst=options.kube_api_burst,
                    user_agent="capcard-sched-controllers",
                    observer=observer,
                )
            )
            self._leadership = Leadership(
                options,
                await stack.enter_async_context(Client(self._connection, connections=4)),
                options.leader_elect_resource_namespace or self._connection.namespace or "default",
                options.leader_elect_resource_name,
                self,
            )
            self._writer = ApiWriter(
                self._client,
                lambda _: None,
                observer,
                time_left=self._leadership.time_left,
                binders=workers,
                scheduler_name=COMPONENT,
            )
            self._executor = WriteExecutor(
                self._writer,
                self._cache,
                count=self._metrics.count,
                clock=time.time,
                records=self._records,
            )
            kinds = {kind for _, controller, _ in self._controllers() for kind in controller.watches}
            # The controllers that run read these as well.
            kinds |= {"PriorityClass"} if JOB in kinds else set()
            kinds |= {POD_GROUP}
            self._informers = Informers(self._client, self._deliver, observer, self._records.watched_kinds(kinds))
            await open_pages(stack, self._log, options, self._metrics, self, self._sample)
            await self._work()

    def _controllers(self) -> list[tuple[str, Controller, int]]:
        """New controllers: name, controller, workers."""
        options = self._options
        found: list[tuple[str, Controller, int]] = [
            (
                "pg-controller",
                PodGroupController(
                    options.scheduler_name,
                    inherit_owner_annotations=options.inherit_owner_annotations,
                    rules=self._rules,
                ),
                options.worker_threads_for_podgroup,
            ),
            (
                "queue-controller",
                QueueController(write_counts=options.queue_status_counts),
                options.worker_threads_for_queue,
            ),
            ("namespacequeue-controller", NamespaceQueueController(), options.worker_threads_for_queue),
            (
                "job-controller",
                JobController(options.scheduler_name[0], self._keys.take, count_preemptions=options.count_preemptions),
                options.worker_threads,
            ),
            ("gc-controller", TtlController(), options.worker_threads_for_gc),
            ("cronjob-controller", CronJobController(), options.worker_threads_for_gc),
        ]
        if self._discovery.types:
            found.append(("hypernode-controller", HyperNodeController(self._discovery.types), 1))
        return [row for row in found if row[0] in options.enabled]

    async def _work(self) -> None:
        parts = [
            self._informers.run(),
            self._writer.run(),
            self._confirm(),
            self._report_sync(),
            *self._leadership.parts(),
        ]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await run_until(self._ended, tasks)
        finally:
            self._log.info("shutting down")
            self._leadership.stop()
            self._loops = []
            if self._term is not None:
                await asyncio.wait({self._term})
            await self._writer.drain(_DRAIN_SECONDS)
            await self._leadership.release(_RELEASE_SECONDS, binds_in_flight=0)
            await cancel(tasks)
            self._log.info("stopped")
        if self._failure is not None:
            raise self._failure

    def leads(self, leading: bool) -> None:
        """Record the change in the metrics; the loops of the last term are over."""
        self._metrics.set_gauge("controller_leader", leading)
        self._loops = []
        self._cache.observed = False

    def stand_by(self) -> None:
        """Drop queued writes."""
        self._writer.reset()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a term of leadership."""
        self._term = asyncio.create_task(work)
        self._term.add_done_callback(self._term_ended)
        return self._term

    async def take_over(self) -> None:
        """One term: list, replay the cache, reconcile. A failure of a loop itself ends the process."""
        if self._informers.synced:
            await self._informers.relist()
        await self._informers.wait_synced()
        loops = [
            ControllerLoop(
                name,
                controller,
                self._cache,
                self._executor,
                term=self._executor.gate.term,
                workers=workers,
                max_requeue=self._options.max_requeue_num,
                clock=time.time,
                steady=time.monotonic,
                report=self._pass_failed,
            )
            for name, controller, workers in self._controllers()
        ]
        for kind in self._cache.kinds():
            replaying = [each for each in loops if each.replays(kind)]
            for obj in self._cache.all(kind) if replaying else ():
                for each in replaying:
                    each.observe(kind, None, obj)
        self._loops = loops
        self._cache.observed = True
        self._log.info("controllers started", controllers=[each.name for each in loops], objects=len(self._cache))
        async with asyncio.TaskGroup() as group:
            for each in loops:
                group.create_task(each.run())

    def _term_ended(self, term: asyncio.Task[Any]) -> None:
        if not term.cancelled() and term.exception() is not None:
            self._failure = term.exception()
            self._ended.set()

    def _deliver(self, changes: Sequence[Any]) -> None:
        for change in changes:
            applied: RecordChanged | ObjectGone = change
            self._cache.apply(applied)
            if isinstance(applied, ObjectGone) and applied.kind == JOB:
                self._metrics.forget_job(f"{applied.namespace}/{applied.name}")

    def _changed(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> None:
        for each in self._loops:
            each.observe(kind, old, new)

    def _pass_failed(self, controller: str, key: Key, error: str) -> None:
        self._metrics.increment("controller_reconcile_errors_total", controller)
        self._log.warning("reconcile failed", controller=controller, object=str(key), err=error)

    async def _confirm(self) -> None:
        """Read again what only a response showed: the watch may have missed that it is gone."""
        while True:
            await asyncio.sleep(_CONFIRM_SECONDS)
            for key in self._cache.unconfirmed():
                try:
                    self._cache.confirm(key, await self._executor.read(key))
                except RequestError as error:
                    self._log.debug("not confirmed", object=str(key), err=str(error))
                    break

    async def _report_sync(self) -> None:
        await self._informers.wait_synced()
        self._synced = True
        self._log.info("caches synced", objects=len(self._cache))

    def readiness(self) -> Mapping[str, str]:
        waiting = [resource for resource, pending in self._informers.pending().items() if pending]
        return {"informers-synced": f"not listed yet: {', '.join(waiting)}" if waiting and not self._synced else ""}

    async def _sample(self) -> None:
        local = {
            f"{meta(queue)['namespace']}/{meta(queue)['name']}": blocked_reason(queue)
            for queue in self._cache.all(NAMESPACE_QUEUE)
        }
        queues = [*(meta(queue)["name"] for queue in self._cache.all(QUEUE)), *local]
        self._metrics.sample(queues, {name: self._cache.group_phases(name) for name in queues}, len(self._cache))
        self._metrics.sample_namespace_queues(local)
        for each in self._loops:
            self._metrics.set_gauge("controller_queue_length", len(each), each.name)


_BITS: Final = 2048
_EXPONENT: Final = 65537


def new_key_pair() -> KeyPair:
    """A fresh pair: the private key as PEM, the public one as a line of `authorized_keys`. Takes about 0.1 s."""
    key = rsa.generate_private_key(_EXPONENT, _BITS)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private.decode(), f"{public.decode()}\n")


class KeyPool:
    """Key pairs that are made in a thread: the event loop, which renews the Lease, does not wait for them."""

    def __init__(self) -> None:
        self._ready: list[KeyPair] = []

    def take(self) -> KeyPair:
        """A pair that is used once. Raises NotReadyError."""
        if not self._ready:
            raise NotReadyError(self._make)
        return self._ready.pop()

    async def _make(self) -> None:
        self._ready.append(await asyncio.to_thread(new_key_pair))
