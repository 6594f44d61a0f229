"""The daemon's log on standard error: structlog, as JSON lines or as text for terminals.

Verbosity `-v`, with Volcano's levels:

| -v | shown |
|---|---|
| 0 to 2 | events of the daemon, and one line per session with decisions or errors |
| 3 | one line per session |
| 4 | every binding, eviction and refusal |
| 5 and more | the libraries' own lines too |

Modules use `log = structlog.get_logger(__name__)`. Records of the `logging` module have the same output.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Final, Literal, Self, TextIO

import structlog
from aiohttp import web

from capcard_sched.daemon.observability.log_writer import LogWriter
from capcard_sched.model.intents import Bind, Evict
from capcard_sched.model.quoting import escaped, escaped_json
from capcard_sched.model.timestamps import DurationError, format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from capcard_sched.framework.core import StepResult
    from capcard_sched.framework.session.report import HookError, SessionReport

#: Verbosity from which sessions without decisions are logged, too.
SESSIONS: Final = 3
DECISIONS: Final = 4
LIBRARIES: Final = 5

_OURS: Final = "capcard_sched"
#: Loggers whose debug lines contain whole responses with tokens: never below INFO.
_NEVER_IN_DETAIL: Final = ("kubernetes",)
#: Seconds for which the end of the process waits for unwritten lines.
_DRAIN_SECONDS: Final = 0.3
#: Seconds between two lines about the same repeated error, with its count.
_REPEAT_SECONDS: Final = 60.0
_MAX_REMEMBERED: Final = 256

Format = Literal["auto", "json", "console"]


class Logs:
    """The log of this process, from `start` to `stop`; a context manager. At most one exists at a time."""

    def __init__(self, verbosity: int = 0, form: Format = "auto", stream: TextIO | None = None) -> None:
        """`form` auto: text when `stream` (standard error when None) is a terminal, else JSON."""
        self._stream = sys.stderr if stream is None else stream
        self._json = form == "json" or (form == "auto" and not self._stream.isatty())
        self._verbosity = verbosity
        self._handler: LogWriter | None = None
        self._before: tuple[list[logging.Handler], int] = ([], logging.WARNING)

    @property
    def verbosity(self) -> int:
        """Verbosity as in `-v`. Thread-safe."""
        return self._verbosity

    @verbosity.setter
    def verbosity(self, value: int) -> None:
        self._verbosity = value
        if self._handler is not None:
            self._set_levels()

    @property
    def dropped(self) -> int:
        """Number of lines that were dropped, because the stream is blocked or closed."""
        return self._handler.dropped if self._handler is not None else 0

    def drain(self, seconds: float = 5.0) -> bool:
        """Wait until all lines are written, for at most `seconds`; whether they are."""
        return self._handler is None or self._handler.drain(seconds)

    def start(self) -> None:
        """Configure structlog and `logging`."""
        shared: list[structlog.typing.Processor] = [
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        ]
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                *shared,
                structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
            cache_logger_on_first_use=False,
        )
        handler = LogWriter(self._stream)
        handler.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=shared,
                processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *self._renderers()],
            )
        )
        root = logging.getLogger()
        self._before = (root.handlers[:], root.level)
        root.handlers[:] = [handler]
        self._handler = handler
        logging.captureWarnings(capture=True)
        self._set_levels()

    def stop(self) -> None:
        """Restore both."""
        root = logging.getLogger()
        root.handlers[:], level = self._before
        root.setLevel(level)
        logging.getLogger(_OURS).setLevel(logging.NOTSET)
        for name in _NEVER_IN_DETAIL:
            logging.getLogger(name).setLevel(logging.NOTSET)
        logging.captureWarnings(capture=False)
        structlog.reset_defaults()
        if self._handler is not None:
            self._handler.stop(_DRAIN_SECONDS)
        self._handler = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _renderers(self) -> list[structlog.typing.Processor]:
        # Tracebacks are plain text in both: richer ones print local variables, which may contain tokens.
        if self._json:
            return [
                structlog.processors.format_exc_info,
                structlog.processors.EventRenamer("msg"),
                _order,
                structlog.processors.JSONRenderer(ensure_ascii=False),
                lambda _, __, text: escaped_json(str(text)),
            ]
        return [
            _escape,
            structlog.dev.ConsoleRenderer(
                colors=self._stream.isatty(),
                exception_formatter=structlog.dev.plain_traceback,
                timestamp_key="time",
                pad_event_to=24,
            ),
        ]

    def _set_levels(self) -> None:
        ours = logging.DEBUG if self._verbosity >= DECISIONS else logging.INFO
        theirs = logging.DEBUG if self._verbosity >= LIBRARIES else logging.WARNING
        logging.getLogger(_OURS).setLevel(ours)
        logging.getLogger().setLevel(theirs)
        for name in _NEVER_IN_DETAIL:
            logging.getLogger(name).setLevel(max(theirs, logging.INFO))


def _escape(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Values from objects as one line without control characters; a list or mapping is rendered by `repr`."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = escaped(value)
    return event


def _order(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Put time, level, logger and message first, for readability."""
    first = {key: event.pop(key) for key in ("time", "level", "logger", "msg") if key in event}
    return {**first, **event}


class RepeatedErrors:
    """Errors that repeat: each gets a line when it begins, and then one a minute with the number of the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` in seconds, from any start."""
        self._clock = clock
        #: Time of the last line, and the number of occurrences since.
        self._last: dict[tuple[object, ...], tuple[float, int]] = {}

    def count(self, key: tuple[object, ...]) -> int | None:
        """The number of occurrences without a line since the last line; None when this one gets none either."""
        now = self._clock()
        reported_at, suppressed = self._last.get(key, (-_REPEAT_SECONDS, 0))
        if now - reported_at < _REPEAT_SECONDS:
            self._last[key] = (reported_at, suppressed + 1)
            return None
        if len(self._last) >= _MAX_REMEMBERED:
            self._last.clear()
        self._last[key] = (now, 0)
        return suppressed


class SessionLog:
    """Logs sessions, one line each, in the detail of the verbosity."""

    def __init__(self, logs: Logs, clock: Callable[[], float]) -> None:
        """`clock` in seconds, from any start."""
        self._logs = logs
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("capcard_sched.daemon.session")
        self._repeated = RepeatedErrors(clock)

    def step(self, result: StepResult, seconds: float, **more: object) -> None:
        """Log one step of the core that took `seconds`. `more`: further fields of the line."""
        report = result.report
        verbosity = self._logs.verbosity
        if verbosity >= DECISIONS:
            self._details(result)
        if not result.idle and (verbosity >= SESSIONS or report.decided or report.errors):
            self._log.info("session", **_figures(report, seconds), **more)
        for error in report.errors:
            self._hook_error(error)
        for queue in report.cuts:
            self._report_repeated(
                ("session deadline", queue), "queue used its share of the session deadline", queue=queue
            )
        for ref, message in report.warnings:
            self._log.warning("object warning", object=f"{ref.kind} {ref.name}", detail=message)

    def _details(self, result: StepResult) -> None:
        session = result.report.uid
        for intent in result.intents:
            if isinstance(intent, Bind):
                pod = f"{intent.namespace}/{intent.name}"
                self._log.debug("bind", session=session, pod=pod, node=intent.node, annotations=intent.annotations)
            elif isinstance(intent, Evict):
                pod = f"{intent.namespace}/{intent.name}"
                self._log.debug("evict", session=session, pod=pod, reason=intent.reason, why=intent.message)
        for ref, refusal in result.report.refusals:
            self._log.debug(
                "refused",
                session=session,
                object=f"{ref.kind} {ref.namespace}/{ref.name}" if ref.namespace else f"{ref.kind} {ref.name}",
                plugin=refusal.plugin or "framework",
                hook=refusal.hook,
                reason=refusal.reason,
                why=refusal.message,
            )

    def _hook_error(self, error: HookError) -> None:
        fields = {"plugin": error.plugin or "framework", "hook": error.hook, "object": error.object}
        key = (error.plugin, error.hook, error.error)
        level = "warning" if error.outside else "error"
        self._report_repeated(key, "plugin error (recovered)", level=level, error=error.error, **fields)

    def _report_repeated(self, key: tuple[str, ...], line: str, *, level: str = "warning", **fields: str) -> None:
        """Logs a line, at intervals while it repeats."""
        repeated = self._repeated.count(key)
        if repeated is not None:
            log = self._log.error if level == "error" else self._log.warning
            log(line, repeated=repeated, **fields)


def _figures(report: SessionReport, seconds: float) -> dict[str, object]:
    """Fields of a session's line; zero counts are omitted, except `bound`."""
    counts = {
        "enqueued": len(report.enqueued),
        "evicted": len(report.evicted),
        "requeued": len(report.requeued),
        "refused": len(report.refusals),
        "failures": len(report.errors),
    }
    return {
        "session": report.uid,
        "milliseconds": round(seconds * 1000, 1),
        "jobs": report.visited_jobs,
        "bound": len(report.bound),
        **{name: count for name, count in counts.items() if count},
    }


_MAX_LEVEL: Final = 10
#: Seconds of the longest duration: a forgotten level fills disks.
_LONGEST_SECONDS: Final = 24 * 3600.0
_STOP_SECONDS: Final = 0.5


class LevelServer:
    """The socket `capcard-sched-<process id>.sock` in a folder, from `start` to `stop`."""

    def __init__(self, logs: Logs, folder: Path) -> None:
        self._logs = logs
        self.path: Final = folder / f"capcard-sched-{os.getpid()}.sock"
        self._configured = logs.verbosity
        self._restore: asyncio.TimerHandle | None = None
        self._runner: web.AppRunner | None = None
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

    async def start(self) -> None:
        """Listen; only the user of this process may connect. A folder that is not writable is logged."""
        app = web.Application()
        app.router.add_get("/getlevel", self._get)
        app.router.add_get("/setlevel", self._set)
        app.router.add_post("/setlevel", self._set)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_SECONDS)
        await runner.setup()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            await web.UnixSite(runner, str(self.path)).start()
            self.path.chmod(0o600)
        except OSError as error:
            await runner.cleanup()
            self._log.warning("failed to open debug socket", path=str(self.path), why=str(error))
        else:
            self._runner = runner

    async def stop(self) -> None:
        """Close and remove the socket, and restore the configured verbosity."""
        self._restore_level()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    async def _get(self, _: web.Request) -> web.Response:
        return web.Response(text=f"{self._logs.verbosity}\n")

    async def _set(self, request: web.Request) -> web.Response:
        level, duration = request.query.get("level", ""), request.query.get("duration", "")
        if not (level.isascii() and level.isdigit() and len(level) < 3 and 0 < int(level) <= _MAX_LEVEL):
            return _bad(f"level: {level!r} is not accepted; accepted: a whole number from 1 to {_MAX_LEVEL}")
        try:
            seconds = parse_duration(duration)
        except DurationError as error:
            return _bad(f"duration: {error}")
        if not 0 < seconds <= _LONGEST_SECONDS:
            return _bad(f"duration: {duration!r} is not accepted; accepted: more than 0s, at most 24h")
        self._restore_level()
        self._configured = self._logs.verbosity
        self._logs.verbosity = int(level)
        self._restore = asyncio.get_running_loop().call_later(seconds, self._restore_level)
        self._log.info("verbosity", now=int(level), usual=self._configured, lasts=format_duration(seconds))
        return web.Response(text=f"{level} for {format_duration(seconds)}, then {self._configured}\n")

    def _restore_level(self) -> None:
        if self._restore is not None:
            self._restore.cancel()
            self._restore = None
            self._logs.verbosity = self._configured
            self._log.info("verbosity", now=self._configured)


def _bad(text: str) -> web.Response:
    return web.Response(status=400, text=f"{text}\n")
