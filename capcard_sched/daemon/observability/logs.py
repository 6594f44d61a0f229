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

import logging
import sys
from typing import TYPE_CHECKING, Final, Literal, Self, TextIO

import structlog

from capcard_sched.daemon.observability.log_writer import LogWriter
from capcard_sched.model.intents import Bind, Evict
from capcard_sched.model.quoting import escaped, escaped_json

if TYPE_CHECKING:
    from collections.abc import Callable
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
