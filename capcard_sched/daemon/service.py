"""The daemon: runs core, backend, leader election, metrics and health from startup to shutdown.

The event loop of the main thread watches, writes, runs the election and serves HTTP; the core runs in the scheduler
thread. Deltas enter it through its inbox, intents return by `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from contextlib import AsyncExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvloop

from capcard_sched import __version__
from capcard_sched.daemon.common_options import ServeError, StartError
from capcard_sched.daemon.conf_file import ConfFile
from capcard_sched.daemon.observability.health import Health
from capcard_sched.daemon.observability.logs import Logs, SessionLog
from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.daemon.observability.observer import LoggingObserver
from capcard_sched.daemon.scheduler_thread import SchedulerThread
from capcard_sched.daemon.usage_source import UsageSource
from capcard_sched.daemon.wiring import Backend, cancel, open_backend, open_servers, run_until
from capcard_sched.framework.conf.registry import Registry, RegistryError
from capcard_sched.framework.conf.scheduler_conf import ConfError
from capcard_sched.framework.core import Core
from capcard_sched.gc import collect_seldom, return_free_memory, settle_memory, use_one_arena
from capcard_sched.kube.connection import ConnectionConfigError, load_connection
from capcard_sched.kube.kinds import config_map_kinds
from capcard_sched.kube.queues import ensure_queues
from capcard_sched.model import reasons
from capcard_sched.model.intents import EmitEvent, ObjectRef
from capcard_sched.model.term_limits import TermLimits
from capcard_sched.model.timestamps import format_duration

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path

    from capcard_sched.daemon.diagnosis.dump import CacheDebugger
    from capcard_sched.daemon.diagnosis.recording import Recording
    from capcard_sched.daemon.options import Options
    from capcard_sched.framework.api.problems import ConfProblem
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.core import StepResult
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent

#: Seconds: budgets of a shutdown, for the current session, the queued writes and the release of the Lease.
_SESSION_SECONDS: Final = 1.0
_DRAIN_SECONDS: Final = 2.5
_RELEASE_SECONDS: Final = 1.0
#: Seconds: from SIGTERM to an exit in any case, such as with a blocked file system.
_EXIT_SECONDS: Final = 4.95
#: Seconds: interval between updates of the backend's gauges.
_GAUGE_SECONDS: Final = 1.0


def run(options: Options) -> None:
    """Run until SIGTERM or SIGINT. Raises StartError."""
    with Logs(options.verbosity, options.log_format) as logs:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(Service(options, logs).run())
        except ConfError as error:
            lines = [f"--scheduler-conf {options.scheduler_conf}: {line}" for line in str(error).splitlines()]
            raise StartError("\n".join(lines)) from error
        except (ConnectionConfigError, RegistryError, ServeError) as error:
            raise StartError(str(error)) from error


class Service:
    """One daemon. Call `run` once.

    Implements `scheduler_thread.Listener` (in the scheduler thread) and `leadership.LeadershipHandler`.
    """

    def __init__(self, options: Options, logs: Logs) -> None:
        """Read plugins, kubeconfig and scheduler-conf.

        Raises RegistryError, ConnectionConfigError, ConfError, StartError.
        """
        self._options = options
        self._logs = logs
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        self._sessions = SessionLog(logs, time.monotonic)
        self._metrics = Metrics(default_queue=options.default_queue)
        self._health = Health(options.schedule_period)
        self._observer = LoggingObserver(self._metrics, self._bind_failed)
        self._registry = Registry.load(options.plugins_dir)
        self._connection = load_connection(options.kubeconfig, options.master or None, options.context or None)
        self._usage = UsageSource(
            self._registry,
            self._metrics,
            self._deliver,
            lambda: self._thread.query(_node_names),
        )
        self._conf_file = ConfFile(
            options.scheduler_conf,
            self._registry,
            strict=options.strict_conf or options.disable_default_scheduler_config,
            on_accepted=self._use_conf,
            on_rejected=self._reject_conf,
            on_unchanged=lambda: self._metrics.conf_reload("unchanged"),
        )
        self._started = False
        self._recording: Recording | None = None
        conf = self._conf_file.load()
        self._metrics.card_seconds.card_labels = conf.quota_plugins.card_labels
        if self._conf_file.rejected:
            self._metrics.conf_in_use(self._conf_file.digest)
        limits = TermLimits(options.max_affinity_terms, options.max_spread_constraints)
        core = Core(
            conf,
            self._registry,
            options.scheduler_name,
            options.default_queue,
            timer=time.perf_counter,
            term_limits=limits,
            calls_webhooks=True,
            session_deadline=options.session_deadline,
            half_gang_timeout=options.half_gang_timeout,
            autoscaling=options.autoscaling,
            waits_for_groups=options.wait_for_podgroups,
        )
        if options.record is not None:
            self._recording = self._open_recording(options.record, conf, limits)
        self._thread = SchedulerThread(
            core, handover=self._hand_over, listener=self, period=options.schedule_period, clock=time.time
        )
        self._backend: Backend
        self._stop = asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()

    def _open_recording(self, path: Path, conf: Conf, limits: TermLimits) -> Recording:
        """Raises StartError."""
        from capcard_sched.daemon.diagnosis.recording import Recording, RecordingError

        options = self._options
        try:
            return Recording(
                path,
                conf,
                scheduler_names=options.scheduler_name,
                default_queue=options.default_queue,
                term_limits=limits,
                half_gang_timeout=options.half_gang_timeout,
                autoscaling=options.autoscaling,
                waits_for_groups=options.wait_for_podgroups,
                on_end=self._recording_ended,
            )
        except RecordingError as error:
            raise StartError(f"--record: {error}") from error

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises ServeError if a port is not available."""
        options = self._options
        self._loop = asyncio.get_running_loop()
        collect_seldom()
        use_one_arena()
        self._log.info("starting", version=__version__, server=self._connection.server, **options.summary())
        for flag, reason in options.ignored.given().items():
            self._log.warning("flag without effect", flag=flag, reason=reason)
        async with AsyncExitStack() as stack:
            backend = self._backend = await open_backend(
                stack, options, self._connection, self._thread, self._observer, self
            )
            self._health.steps = lambda: self._observer.steps(backend.informers, backend.leadership.fence)
            await open_servers(stack, options, self._logs, self._metrics, self._health, self._sample)
            self._handle_signals()
            self._thread.start()
            self._health.alive = self._thread.is_alive
            self._started = True
            parts: list[asyncio.Task[None]] = []
            try:
                await self._run_parts(parts)
            finally:
                await self._shut_down(parts)

    async def _run_parts(self, parts: list[asyncio.Task[None]]) -> None:
        """Run all parts until shutdown, adding their tasks to `parts`. A failing part ends the daemon."""
        backend = self._backend
        work: list[Coroutine[Any, Any, None]] = [
            backend.informers.run(),
            backend.writer.run(),
            self._conf_file.run(),
            self._wait_for_sync(),
            self._refresh_gauges(),
            self._usage.run(),
            *backend.leadership.parts(),
        ]
        parts += [asyncio.create_task(part) for part in work]
        await run_until(self._stop, parts)

    async def _shut_down(self, parts: Sequence[asyncio.Task[None]]) -> None:
        """Finish the current session and queued writes, release the Lease, close."""
        backend = self._backend
        self._log.info("shutting down")
        backend.leadership.stop()
        self._thread.stand_by()
        self._thread.stop()
        if not await asyncio.to_thread(self._thread.join, _SESSION_SECONDS):
            self._log.warning("session still running at shutdown, decisions discarded")
        await asyncio.sleep(0)  # intents handed over last are submitted
        unsent = {lane: count for lane, count in (await backend.writer.drain(_DRAIN_SECONDS)).items() if count}
        if unsent:
            self._log.warning("unsent writes at shutdown", queues=unsent)
        await backend.leadership.release(_RELEASE_SECONDS, binds_in_flight=backend.writer.unresolved_binds)
        await cancel([*parts, *self._background])
        if self._recording is not None:
            await asyncio.to_thread(self._recording.close)
        self._log.info("stopped")

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._begin_shutdown)
        if self._options.cache_dumper:
            self._loop.add_signal_handler(signal.SIGUSR1, lambda: self.spawn(self._debugger.dump()))
            self._loop.add_signal_handler(signal.SIGUSR2, lambda: self.spawn(self._debugger.compare()))

    @cached_property
    def _debugger(self) -> CacheDebugger:
        """Imported by the first signal: a start does not need it."""
        from capcard_sched.daemon.diagnosis.dump import CacheDebugger

        kinds = self._backend.informers.kinds
        return CacheDebugger(self._thread, self._backend.client, kinds, self._observer, self._options.cache_dump_dir)

    def _begin_shutdown(self) -> None:
        """Stop, and exit in any case after `_EXIT_SECONDS`."""
        self._stop.set()
        timer = threading.Timer(_EXIT_SECONDS, os._exit, [1])
        timer.daemon = True
        timer.start()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a background task; its exception is logged."""
        task = asyncio.create_task(work)
        self._background.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            self._background.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._metrics.increment("internal_errors_total", "", "background")
                self._log.error("internal error", error=f"{type(error).__name__}: {error}", exc_info=error)

        task.add_done_callback(done)
        return task

    def leads(self, leading: bool) -> None:
        """Record the change in metrics, health and recording."""
        self._metrics.leader(leading)
        self._health.leads(leading)
        if self._recording is not None:
            self._recording.leading(leading)

    async def take_over(self) -> None:
        """Prepare the first session: default queues, a fresh list, the fencing probe."""
        backend, fresh = self._backend, not self._backend.informers.synced
        _ = self.spawn(self._create_queues())
        if await backend.leadership.wait_for_former_leader():
            fresh = False  # lists that began before the end of the wait are stale
        if not fresh:
            self._health.lists_outdated()
            await backend.informers.relist()
        await backend.informers.wait_synced()
        if backend.leadership.fence is not None:
            await backend.leadership.fence.probe()
        await self._thread.query(lambda _: return_free_memory())
        self._health.lists_applied()
        if backend.leadership.is_leader():
            self._thread.lead()

    def stand_by(self) -> None:
        self._backend.writer.reset()
        self._thread.stand_by()

    async def _create_queues(self) -> None:
        """Create `root` and the default queue; report an invalid scheduler-conf on the latter."""
        await ensure_queues(
            self._backend.client, self._options.default_queue, self._queue_failed, self._backend.leadership.is_leader
        )
        self._report_rejected(self._conf_file.problems)

    def _queue_failed(self, name: str, error: str) -> None:
        self._log.warning("failed to create queue, will retry", queue=name, err=error)

    async def _wait_for_sync(self) -> None:
        """Report when the initial lists are applied, and tune the garbage collector for long-lived objects."""
        began = time.monotonic()
        await self._first_lists()
        counts = await self._thread.query(self._lists_applied)  # on a standby, too; before the first session
        self._health.lists_applied()
        self._log.info("caches synced", seconds=round(time.monotonic() - began, 3), **counts)
        await self._thread.query(lambda _: settle_memory())

    def _lists_applied(self, core: Core) -> dict[str, int]:
        """The initial lists are applied, in the scheduler thread. Returns the numbers of objects by kind."""
        core.lists_applied()
        self._metrics.card_seconds.lists_applied()
        state = core.snapshot().state
        nodes, pods = len(state.nodes), len(state.tasks)
        return {"nodes": nodes, "pods": pods, "jobs": len(state.jobs), "queues": len(state.queues)}

    async def _first_lists(self) -> None:
        """Wait for the first lists. Raises StartError after --resource-sync-timeout."""
        limit = self._options.resource_sync_timeout
        try:
            async with asyncio.timeout(limit or None):
                await self._backend.informers.wait_synced()
        except TimeoutError:
            missing = ", ".join(sorted(kind for kind, is_late in self._backend.informers.pending().items() if is_late))
            text = f"--resource-sync-timeout: no list of {missing} within {format_duration(limit)}"
            raise StartError(text) from None

    def _hand_over(self, intents: Sequence[Intent]) -> None:
        """Submit intents, from the scheduler thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed at shutdown
            self._loop.call_soon_threadsafe(self._backend.writer.submit, intents)

    def _deliver(self, deltas: Sequence[Delta]) -> None:
        self._thread.deliver(deltas)

    def _bind_failed(self, message: str) -> None:
        if self._backend.leadership.fence is not None:
            self._backend.leadership.fence.bind_failed(message)

    def applied(self, deltas: Sequence[Delta]) -> None:
        """Deltas were applied outside of a step."""
        self._metrics.card_seconds.apply(deltas)
        if self._recording is not None:
            self._recording.applied(deltas)

    def stepped(
        self, core: Core, result: StepResult, deltas: Sequence[Delta], now: float, *, intake: float, seconds: float
    ) -> None:
        """A step is complete."""
        self._metrics.card_seconds.apply(deltas, now)
        if self._recording is not None:
            self._recording.stepped(result, deltas, now)
        session = core.snapshot().session
        unplaced = session.results.unplaced if session is not None and not result.idle else 0
        self._metrics.session(result.report, seconds, intake=intake, idle=result.idle, unplaced=unplaced)
        self._health.cycle_done()
        self._sessions.step(result, seconds)

    def failed(self, what: str, error: Exception) -> None:
        """An unexpected exception in the scheduler thread."""
        if self._recording is not None:
            self._recording.failed(what, error)
        self._metrics.increment("internal_errors_total", "", what.partition(" ")[0])
        self._log.error("internal error", part=what, error=f"{type(error).__name__}: {error}", exc_info=error)

    def _recording_ended(self, reason: str) -> None:
        """The recording ended early, from its writer thread."""
        self._log.warning("recording ended", file=str(self._options.record), reason=reason)

    async def _sample(self) -> None:
        if self._metrics.wants_sample:
            self._metrics.plugin_samples(await self._thread.query(self._metrics.sample))

    async def _refresh_gauges(self) -> None:
        slow = False
        while True:
            for lane, waiting in self._backend.writer.backlog().items():
                self._metrics.set_gauge("api_queue_depth", waiting, lane)
            self._metrics.set_gauge("cache_age_seconds", self._backend.informers.stale_for())
            self._metrics.set_gauge("node_usage_age_seconds", self._usage.age() or 0.0)
            self._metrics.set_gauge("cycle_age_seconds", self._health.cycle_age())
            self._metrics.log_lines_dropped(self._logs.dropped)
            if (report := self._health.slow_cycle()) and not slow:
                self._log.warning("slow scheduling cycle", detail=report)
            slow = bool(report)
            await asyncio.sleep(_GAUGE_SECONDS)

    def _use_conf(self, conf: Conf, digest: str) -> None:
        self._metrics.conf_reload("loaded", digest)
        self._usage.use(conf)
        if not self._started:
            return  # the core is built with it

        def use(core: Core) -> frozenset[tuple[str, str]]:
            core.reconfigure(conf)
            if self._recording is not None:
                self._recording.conf(conf)
            return core.config_maps

        async def take_over() -> None:
            self._backend.informers.add(config_map_kinds(await self._thread.query(use)))

        _ = self.spawn(take_over())

    def _reject_conf(self, problems: tuple[ConfProblem, ...]) -> None:
        self._metrics.conf_reload("rejected")
        if self._started:
            self._report_rejected(problems)

    def _report_rejected(self, problems: tuple[ConfProblem, ...]) -> None:
        """Emit an event on the default queue if there are errors and this replica leads."""
        errors = [problem.render() for problem in problems if problem.severity == "error"]
        if not errors or not self._backend.leadership.is_leader():
            return
        row, where = reasons.CONF_REJECTED, ObjectRef("Queue", "", self._options.default_queue)
        self._backend.writer.submit([EmitEvent(where, row.type, row.code, row.render(detail="; ".join(errors)))])


def _node_names(core: Core) -> frozenset[str]:
    return frozenset(core.snapshot().state.nodes.by_name)
