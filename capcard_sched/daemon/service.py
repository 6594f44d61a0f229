"""The daemon: core, backend, election, metrics and health wired together, from the first flag to the last signal.

The event loop of the main thread watches, writes, elects and answers HTTP; the core runs in the scheduler thread
(`loop`). Facts go there through its inbox, decisions come back by `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog
import uvloop

from capcard_sched import __version__
from capcard_sched.daemon.conf_file import ConfFile
from capcard_sched.daemon.diagnosis import cache_comparer, dump
from capcard_sched.daemon.diagnosis.log_level import LevelServer
from capcard_sched.daemon.diagnosis.recording import Recording, RecordingError
from capcard_sched.daemon.observability.health import Health
from capcard_sched.daemon.observability.logs import Logs, SessionLog
from capcard_sched.daemon.observability.metrics import Metrics
from capcard_sched.daemon.observability.observer import LoggingObserver
from capcard_sched.daemon.observability.readiness import steps
from capcard_sched.daemon.observability.server import HttpServer, ServeError, Tls, health_pages, metrics_pages
from capcard_sched.daemon.scheduler_thread import SchedulerThread
from capcard_sched.daemon.usage_source import UsageSource
from capcard_sched.framework.conf.registry import Registry, RegistryError
from capcard_sched.framework.conf.scheduler_conf import ConfError
from capcard_sched.framework.core import Core
from capcard_sched.gc import settle_memory
from capcard_sched.kube import volumes
from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.connection import ConnectionConfigError, load_connection
from capcard_sched.kube.election import RELEASED, Election, ElectionEvent
from capcard_sched.kube.fence import Fence, FenceState, may_be_fenced
from capcard_sched.kube.informers import Informers, list_all
from capcard_sched.kube.kinds import chosen_kinds
from capcard_sched.kube.lease import process_identity
from capcard_sched.kube.queues import ensure_queues
from capcard_sched.kube.writes.api_writer import LOW_WORKERS, ApiWriter
from capcard_sched.model import reasons
from capcard_sched.model.intents import EmitEvent, ObjectRef

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from capcard_sched.daemon.options import Options
    from capcard_sched.framework.api.problems import ConfProblem
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.core import StepResult
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.intents import Intent

_T = TypeVar("_T")

#: SIGTERM to the end, in seconds: the session that goes on, then what was decided, then the Lease.
_SESSION_SECONDS: Final = 1.0
_DRAIN_SECONDS: Final = 2.5
_RELEASE_SECONDS: Final = 1.0
#: Seconds from SIGTERM to an exit in any case, such as with a blocked file system.
_EXIT_SECONDS: Final = 4.95
#: How often gauges of the backend are refreshed, in seconds.
_GAUGE_SECONDS: Final = 1.0
#: How often a fence that does not act is probed again, in seconds.
_PROBE_SECONDS: Final = 60.0
#: Between the two comparisons of SIGUSR2: what the watch brings meanwhile is no difference.
_COMPARE_SECONDS: Final = 2.0
#: Connections for reads, beside those of the writers.
_READERS: Final = 8
_MOST_DIFFERENCES: Final = 100


class StartError(Exception):
    """The daemon cannot start with what it was given: flags, files, plugins, ports. The text has a line per problem."""


def run(options: Options) -> None:
    """Run until a signal ends it. Raises StartError."""
    with Logs(options.verbosity, options.log_format) as logs:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(Service(options, logs).run())
        except ConfError as error:
            lines = [f"--scheduler-conf {options.scheduler_conf}: {line}" for line in str(error).splitlines()]
            raise StartError("\n".join(lines)) from error
        except RecordingError as error:
            raise StartError(f"--record: {error}") from error
        except (ConnectionConfigError, RegistryError, ServeError) as error:
            raise StartError(str(error)) from error


class Service:
    """One daemon. `run` once."""

    def __init__(self, options: Options, logs: Logs) -> None:
        """Reads plugins, kubeconfig and scheduler-conf.

        Raises RegistryError, ConnectionConfigError, ConfError, RecordingError.
        """
        self._options = options
        self._logs = logs
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        self._sessions = SessionLog(logs, time.monotonic)
        self._metrics = Metrics()
        self._health = Health(options.schedule_period)
        self._telling = LoggingObserver(self._metrics, self._binding_refused)
        #: Set when a refused binding makes the fence doubtful.
        self._fence_doubt = asyncio.Event()
        self._registry = Registry.load(options.plugins_dir)
        self._connection = load_connection(
            str(options.kubeconfig) if options.kubeconfig is not None else None,
            options.master or None,
            options.context or None,
        )
        self._usage = UsageSource(
            self._registry,
            self._metrics,
            lambda facts: self._scheduler.deliver(facts),  # noqa: PLW0108 - made further down
            lambda: self._ask(_node_names),
        )
        self._conf_file = ConfFile(
            options.scheduler_conf,
            self._registry,
            strict=options.strict_conf,
            on_accepted=self._use_conf,
            on_rejected=self._reject_conf,
            on_unchanged=lambda: self._metrics.conf_reload("unchanged"),
        )
        self._thread: SchedulerThread | None = None
        self._recording: Recording | None = None
        conf = self._conf_file.load()
        if self._conf_file.rejected:
            self._metrics.conf_in_use(self._conf_file.digest)
        core = Core(conf, self._registry, options.scheduler_name, options.default_queue, timer=time.perf_counter)
        if options.record is not None:
            self._recording = Recording(
                options.record, conf, scheduler_names=options.scheduler_name, default_queue=options.default_queue
            )
        self._thread = SchedulerThread(
            core, handover=self._hand_over, listener=self, period=options.schedule_period, clock=time.time
        )
        self._kinds = chosen_kinds(
            node_selector=[(match.label, match.value) for match in options.node_selector],
            priority_classes=options.priority_class,
        )
        self._ended = asyncio.Event()
        self._takeover: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()

    # --- start and end ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises ServeError when a port cannot be had."""
        options, thread = self._options, self._scheduler
        self._loop = asyncio.get_running_loop()
        self._log.info("starting", version=__version__, server=self._connection.server, **options.summary())
        for flag, why in options.without_effect().items():
            self._log.warning("flag without effect", flag=flag, why=why)
        async with AsyncExitStack() as stack:
            self._client = await stack.enter_async_context(
                Client(
                    self._connection,
                    connections=options.bind_workers + LOW_WORKERS + _READERS,
                    qps=options.kube_api_qps,
                    burst=options.kube_api_burst,
                    observer=self._telling,
                )
            )
            # Renewals of the Lease must not wait for a free connection.
            lease_client = await stack.enter_async_context(Client(self._connection, connections=4))
            self._election = self._make_election(lease_client) if options.leader_elect else None
            self._fence = (
                Fence(self._client, namespace=self._lease_namespace, on_change=self._fence_changed)
                if options.fence
                else None
            )
            self._effects = ApiWriter(
                self._client,
                thread.deliver,
                self._telling,
                may_write=self._may_write,
                binders=options.bind_workers,
                scheduler_name=options.component,
                use_eviction_api=options.use_eviction_api,
                fence=self._fence_token,
                pre_bind=volumes.bind_volumes,
            )
            self._feed = Informers(self._client, thread.deliver, self._telling, self._kinds)
            self._health.steps = lambda: steps(self._feed, self._telling, self._fence)
            await self._serve(stack)
            self._handle_signals()
            thread.start()
            self._health.alive = thread.is_alive
            try:
                await self._work()
            finally:
                await self._wind_up()

    @property
    def _scheduler(self) -> SchedulerThread:
        assert self._thread is not None
        return self._thread

    @property
    def _lease_namespace(self) -> str:
        return self._options.lease_namespace or self._connection.namespace or "default"

    def _make_election(self, client: Client) -> Election:
        options = self._options
        return Election(
            client,
            namespace=self._lease_namespace,
            name=options.lease_name,
            identity=process_identity(),
            lease_duration=options.leader_elect_lease_duration,
            renew_deadline=options.leader_elect_renew_deadline,
            retry_period=options.leader_elect_retry_period,
            on_change=self._leadership,
            on_report=self._election_report,
        )

    async def _serve(self, stack: AsyncExitStack) -> None:
        """Open the ports that were asked for; one server where both have the same address."""
        options = self._options
        pages: dict[Any, dict[str, Any]] = {}
        if options.enable_metrics:
            pages[options.listen_address] = metrics_pages(self._metrics, self._sample)
        if options.enable_healthz:
            pages.setdefault(options.healthz_address, {}).update(health_pages(self._health))
        for address, content in pages.items():
            tls = None
            if options.tls_cert_file is not None and options.tls_private_key_file is not None and "/healthz" in content:
                tls = Tls(options.tls_cert_file, options.tls_private_key_file, options.ca_cert_file)
            server = HttpServer(address, content, tls=tls)
            await server.start()
            stack.push_async_callback(server.stop)
            self._log.info("serving", address=f"{address.host}:{server.port}", pages=sorted(content))
        if options.debug_socket_dir is not None:
            level = LevelServer(self._logs, options.debug_socket_dir)
            await level.start()
            stack.push_async_callback(level.stop)

    async def _work(self) -> None:
        """Everything that goes on until the end. A part that fails ends the daemon."""
        parts: list[Coroutine[Any, Any, None]] = [
            self._feed.run(),
            self._effects.run(),
            self._conf_file.run(),
            self._watch_over_sync(),
            self._refresh_gauges(),
            self._watch_over_fence(),
            self._usage.run(),
        ]
        if self._election is not None:
            parts.append(self._election.run())
        tasks = [asyncio.create_task(part) for part in parts]
        self._parts = tasks
        ended = asyncio.create_task(self._ended.wait())
        if self._election is None:
            self._leadership(True)
        # ConfFile.run returns when there is no file, Election.run when it was released.
        waiting = {ended, *tasks}
        while waiting and not ended.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        ended.cancel()

    async def _wind_up(self) -> None:
        """Finish what was begun, give the Lease back, and close."""
        thread = self._scheduler
        self._log.info("ending")
        if self._takeover is not None:
            self._takeover.cancel()
        thread.stand_by()
        thread.stop()
        if not await asyncio.to_thread(thread.join, _SESSION_SECONDS):
            self._log.warning("the session goes on: its decisions are dropped")
        await asyncio.sleep(0)  # what it handed over last is submitted
        left = {lane: count for lane, count in (await self._effects.drain(_DRAIN_SECONDS)).items() if count}
        if left:
            self._log.warning("not written", lanes=left)
        if self._election is not None:
            await self._election.release(_RELEASE_SECONDS)
        for task in [*self._parts, *self._background]:
            task.cancel()
        await asyncio.gather(*self._parts, *self._background, return_exceptions=True)
        if self._recording is not None:
            await asyncio.to_thread(self._recording.close)
        self._log.info("ended")

    # --- leadership -------------------------------------------------------------------------------------------------

    def _may_write(self) -> bool:
        return self._election is None or self._election.is_leader()

    def _fence_token(self) -> str | None:
        if self._fence is None or self._election is None:
            return None
        return self._fence.token(self._election)

    def _leadership(self, leading: bool) -> None:
        self._metrics.leader(leading)
        self._health.leads(leading)
        if self._recording is not None:
            self._recording.leading(leading)
        if self._takeover is not None:
            self._takeover.cancel()
            self._takeover = None
        if leading:
            self._log.info("leading", identity=self._election.identity if self._election is not None else "")
            self._takeover = self._spawn(self._take_over(fresh=not self._feed.synced))
        else:
            self._effects.reset()
            self._scheduler.stand_by()
            (self._log.info if self._ended.is_set() else self._log.warning)("standing by")

    async def _take_over(self, *, fresh: bool) -> None:
        """What comes before the first session. `fresh`: the initial lists were not over when leading began."""
        _ = self._spawn(self._make_queues())
        if not fresh:
            self._health.lists_outdated()
            await self._feed.relist()
        await self._feed.wait_synced()
        if self._fence is not None and self._election is not None:
            await self._fence.probe(self._election)
        await self._ask(lambda _: None)
        self._health.lists_applied()
        if self._may_write():
            self._scheduler.lead()

    async def _make_queues(self) -> None:
        """`root` and the default queue; the latter is then told what was wrong with the file before we led."""
        await ensure_queues(self._client, self._options.default_queue, self._queue_missing, self._may_write)
        self._tell_rejected(self._conf_file.problems)

    async def _watch_over_sync(self) -> None:
        """The initial lists: tell when they are applied, and set the memory up for what stays."""
        began = time.monotonic()
        await self._feed.wait_synced()
        counts = await self._ask(_sizes)
        self._health.lists_applied()
        self._log.info("synced", seconds=round(time.monotonic() - began, 3), **counts)
        await self._ask(lambda _: settle_memory())

    def _queue_missing(self, name: str, why: str) -> None:
        self._log.warning("queue cannot be created yet", queue=name, why=why)

    def _election_report(self, happening: ElectionEvent, detail: str) -> None:
        quiet = happening in {
            ElectionEvent.HOLDER,
            ElectionEvent.LEADING,
            ElectionEvent.RELEASED,
            ElectionEvent.RECOVERED,
        }
        quiet = quiet or detail == RELEASED
        (self._log.info if quiet else self._log.warning)("election", happening=happening.value, detail=detail)

    def _binding_refused(self, message: str) -> None:
        if may_be_fenced(message):
            self._fence_doubt.set()

    async def _watch_over_fence(self) -> None:
        """Probe again in doubt, and now and then while it does not act: an API server may have lost sight of it."""
        while self._fence is not None and self._election is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_SECONDS):
                    await self._fence_doubt.wait()
            doubtful = self._fence_doubt.is_set() or self._fence.state is not FenceState.ACTIVE
            self._fence_doubt.clear()
            if doubtful and self._election.is_leader():
                await self._fence.probe(self._election)
                await asyncio.sleep(_GAUGE_SECONDS)  # a burst of refusals is one doubt

    def _fence_changed(self, state: FenceState, sentence: str) -> None:
        (self._log.info if state is FenceState.ACTIVE else self._log.error)("fence", state=state.value, detail=sentence)

    # --- the scheduler thread ---------------------------------------------------------------------------------------

    def _hand_over(self, intents: Sequence[Intent]) -> None:
        """Decisions, in the scheduler thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are ending
            self._loop.call_soon_threadsafe(self._effects.submit, intents)

    def applied(self, deltas: Sequence[Delta]) -> None:
        """Facts were taken in outside of a step: `loop.Listener`."""
        if self._recording is not None:
            self._recording.applied(deltas)

    def stepped(
        self, core: Core, result: StepResult, deltas: Sequence[Delta], now: float, *, intake: float, seconds: float
    ) -> None:
        """A step is over: `loop.Listener`."""
        if self._recording is not None:
            self._recording.stepped(result, deltas, now)
        unplaced = len(core.last_session.outcomes) if core.last_session is not None and not result.idle else 0
        self._metrics.session(result.report, seconds, intake=intake, idle=result.idle, unplaced=unplaced)
        self._health.cycle_done()
        self._sessions.step(result, seconds)

    def failed(self, what: str, error: Exception) -> None:
        """Something raised that never should: `loop.Listener`."""
        if self._recording is not None:
            self._recording.failed(what, error)
        self._metrics.internal_error(what.partition(" ")[0])
        self._log.error("internal error", part=what, error=f"{type(error).__name__}: {error}", exc_info=error)

    async def _ask(self, question: Callable[[Core], _T]) -> _T:
        """Ask the core between two steps."""
        answer: Future[_T] = Future()
        self._scheduler.call(question, answer)
        return await asyncio.wrap_future(answer)

    async def _sample(self) -> None:
        if self._metrics.wants_sample:
            self._metrics.plugin_samples(await self._ask(self._metrics.sample))

    async def _refresh_gauges(self) -> None:
        slow = False
        while True:
            for lane, waiting in self._effects.backlog().items():
                self._metrics.backlog(lane, waiting)
            self._metrics.cache_age(self._feed.stale_for())
            self._metrics.usage_age(self._usage.age())
            self._metrics.cycle_age(self._health.cycle_age())
            self._metrics.log_lines_dropped(self._logs.dropped)
            if (report := self._health.slow_cycle()) and not slow:
                self._log.warning("slow scheduling cycle", detail=report)
            slow = bool(report)
            await asyncio.sleep(_GAUGE_SECONDS)

    # --- the scheduler-conf -----------------------------------------------------------------------------------------

    def _use_conf(self, conf: Conf, digest: str) -> None:
        self._metrics.conf_reload("loaded", digest)
        self._usage.use(conf)
        if self._thread is None:
            return  # the one to start with

        def use(core: Core) -> None:
            core.reconfigure(conf)
            if self._recording is not None:
                self._recording.conf(conf)

        _ = self._spawn(self._ask(use))

    def _reject_conf(self, problems: tuple[ConfProblem, ...]) -> None:
        self._metrics.conf_reload("rejected")
        if self._thread is not None:
            self._tell_rejected(problems)

    def _tell_rejected(self, problems: tuple[ConfProblem, ...]) -> None:
        """An event on the default queue, if there are errors and we may write."""
        errors = [problem.render() for problem in problems if problem.severity == "error"]
        if not errors or not self._may_write():
            return
        row, detail = reasons.CONF_REJECTED, "; ".join(errors)
        where = ObjectRef("Queue", "", self._options.default_queue)
        self._effects.submit([EmitEvent(where, row.type, row.code, row.render(detail=detail))])

    # --- signals ----------------------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._end)
        if self._options.cache_dumper:
            self._loop.add_signal_handler(signal.SIGUSR1, lambda: self._spawn(self._dump()))
            self._loop.add_signal_handler(signal.SIGUSR2, lambda: self._spawn(self._compare()))

    def _end(self) -> None:
        """Begin the shutdown, and exit in any case when it takes too long."""
        self._ended.set()
        timer = threading.Timer(_EXIT_SECONDS, os._exit, [1])
        timer.daemon = True
        timer.start()

    async def _dump(self) -> None:
        now = time.time()
        content = await self._ask(lambda core: dump.snapshot(core, now))
        try:
            path = await asyncio.to_thread(dump.write_snapshot, self._options.cache_dump_dir, content, now)
        except OSError as error:
            self._log.error("snapshot not written", folder=str(self._options.cache_dump_dir), why=str(error))
        else:
            self._log.info("snapshot", file=str(path), bytes=len(content))

    async def _compare(self) -> None:
        try:
            before = await self._differences()
            if before:
                await asyncio.sleep(_COMPARE_SECONDS)
                before = cache_comparer.lasting(before, await self._differences())
        except (ApiError, Unreachable) as error:
            self._log.error("cache not compared", why=str(error))
            return
        for difference in before[:_MOST_DIFFERENCES]:
            self._log.warning("cache differs", difference=difference.render())
        self._log.info("cache compared with the API server", differences=len(before))

    async def _differences(self) -> list[cache_comparer.CacheDifference]:
        facts = await list_all(self._client, self._kinds, self._telling)
        state = await self._ask(lambda core: core.state)
        fresh = await asyncio.to_thread(cache_comparer.rebuild, state, facts)  # reads none of what changes
        return await self._ask(lambda core: cache_comparer.differences(core.state, fresh))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside the parts; what it raises is logged."""
        task = asyncio.create_task(work)
        self._background.add(task)

        def over(task: asyncio.Task[Any]) -> None:
            self._background.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._metrics.internal_error("background")
                self._log.error("internal error", error=f"{type(error).__name__}: {error}", exc_info=error)

        task.add_done_callback(over)
        return task


def _node_names(core: Core) -> frozenset[str]:
    return frozenset(core.state.nodes.by_name)


def _sizes(core: Core) -> dict[str, int]:
    state = core.state
    return {"nodes": len(state.nodes), "pods": len(state.tasks), "jobs": len(state.jobs), "queues": len(state.queues)}
