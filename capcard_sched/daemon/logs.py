"""The daemon's log: structlog, one JSON object per line or lines for people, on standard error.

What the verbosity `-v` shows (the reference's levels; W-32 keeps the normal ones short):

| -v | shown |
|---|---|
| 0 to 2 | what happens to the daemon, and one line per session that decided something or failed |
| 3 | one line per session |
| 4 | every binding, eviction and refusal |
| 5 and more | the libraries' own lines too |

Modules say `log = structlog.get_logger(__name__)`. What libraries write to `logging` takes the same way out.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final, Literal, Self, TextIO

import structlog

from capcard_sched.model.intents import Bind, Evict

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from capcard_sched.framework.core import StepResult
    from capcard_sched.framework.session.report import HookError, SessionReport

#: From here on a session is told even if it decided nothing.
SESSIONS: Final = 3
DECISIONS: Final = 4
LIBRARIES: Final = 5

_OURS: Final = "capcard_sched"
#: Its debug lines hold whole answers, tokens included: never below INFO.
_NEVER_IN_DETAIL: Final = ("kubernetes",)
#: A failure that repeats is told once in so many seconds, with how often it occurred.
_REPEAT_SECONDS: Final = 60.0
_MOST_REMEMBERED: Final = 256

Format = Literal["auto", "json", "console"]


class Logs:
    """The log of this process, from `start` to `stop`; a context manager. At most one at a time."""

    def __init__(self, verbosity: int = 0, form: Format = "auto", stream: TextIO | None = None) -> None:
        """`form` auto: for people when `stream` (standard error when None) is a terminal, else JSON."""
        self._stream = sys.stderr if stream is None else stream
        self._json = form == "json" or (form == "auto" and not self._stream.isatty())
        self._verbosity = verbosity
        self._handler: logging.Handler | None = None
        self._before: tuple[list[logging.Handler], int] = ([], logging.WARNING)

    @property
    def verbosity(self) -> int:
        """As `-v` has it. May be set at any time, from any thread."""
        return self._verbosity

    @verbosity.setter
    def verbosity(self, value: int) -> None:
        self._verbosity = value
        if self._handler is not None:
            self._set_levels()

    def start(self) -> None:
        """Take over structlog and `logging`."""
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
        handler = logging.StreamHandler(self._stream)
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
        """Give both back."""
        root = logging.getLogger()
        root.handlers[:], level = self._before
        root.setLevel(level)
        logging.getLogger(_OURS).setLevel(logging.NOTSET)
        for name in _NEVER_IN_DETAIL:
            logging.getLogger(name).setLevel(logging.NOTSET)
        logging.captureWarnings(capture=False)
        structlog.reset_defaults()
        self._handler = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _renderers(self) -> list[structlog.typing.Processor]:
        # Traces are plain text in both: the richer forms print local variables, and those may hold tokens.
        if self._json:
            return [
                structlog.processors.format_exc_info,
                structlog.processors.EventRenamer("msg"),
                _order,
                structlog.processors.JSONRenderer(ensure_ascii=False),
            ]
        return [
            structlog.dev.ConsoleRenderer(
                colors=self._stream.isatty(),
                exception_formatter=structlog.dev.plain_traceback,
                timestamp_key="time",
                pad_event_to=24,
            )
        ]

    def _set_levels(self) -> None:
        ours = logging.DEBUG if self._verbosity >= DECISIONS else logging.INFO
        theirs = logging.DEBUG if self._verbosity >= LIBRARIES else logging.WARNING
        logging.getLogger(_OURS).setLevel(ours)
        logging.getLogger().setLevel(theirs)
        for name in _NEVER_IN_DETAIL:
            logging.getLogger(name).setLevel(max(theirs, logging.INFO))


def _order(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Time, level and message first: the line is read by people too, now and then."""
    first = {key: event.pop(key) for key in ("time", "level", "logger", "msg") if key in event}
    return {**first, **event}


class SessionLog:
    """What sessions did, one line each, in as much detail as the verbosity asks for."""

    def __init__(self, logs: Logs, clock: Callable[[], float]) -> None:
        """`clock` in seconds, from any start."""
        self._logs = logs
        self._clock = clock
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("capcard_sched.daemon.session")
        #: Contained failures: when each was last told, and how often it occurred since.
        self._told: dict[tuple[str, str, str], tuple[float, int]] = {}

    def step(self, result: StepResult, seconds: float, **more: object) -> None:
        """Tell of one step of the core that took `seconds`. `more`: further fields of the line."""
        report = result.report
        verbosity = self._logs.verbosity
        if verbosity >= DECISIONS:
            self._details(result)
        if not result.idle and (verbosity >= SESSIONS or report.decided or report.errors):
            self._log.info("session", **_figures(report, seconds), **more)
        for error in report.errors:
            self._failure(error)

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

    def _failure(self, error: HookError) -> None:
        key = (error.plugin, error.hook, error.error)
        now = self._clock()
        told, since = self._told.get(key, (-_REPEAT_SECONDS, 0))
        if now - told < _REPEAT_SECONDS:
            self._told[key] = (told, since + 1)
            return
        if len(self._told) >= _MOST_REMEMBERED:
            self._told.clear()
        self._told[key] = (now, 0)
        fields = {"plugin": error.plugin or "framework", "hook": error.hook, "object": error.object}
        tell = self._log.warning if error.outside else self._log.error
        tell("contained failure", error=error.error, repeated=since, **fields)


def _figures(report: SessionReport, seconds: float) -> dict[str, object]:
    """The fields of a session's line; counts of nothing are left out, but for `bound`."""
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
