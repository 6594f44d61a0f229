"""Records the deltas and decisions of a daemon to a file, step by step, for `capcard-sched replay`.

One JSON object per line (`Record`), gzip if the file name ends in `.gz`: a `Header`, the scheduler-conf in use, then
the deltas and intents of the scheduler thread in order. The core is deterministic: this is sufficient for a replay.

The scheduler thread only hands over references; a thread of the recording encodes and writes. A recording never blocks
or fails the scheduler: at its size limit, on a full disk or on a slow disk it ends, with the reason in its last line.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import math
import os
import stat
import threading
import time
import zlib
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from capcard_sched import __version__
from capcard_sched.framework.conf.metrics_section import without_password
from capcard_sched.framework.session.half_gangs import HALF_GANG_SECONDS
from capcard_sched.framework.session.session_deadline import QueueCut
from capcard_sched.input_files import open_input
from capcard_sched.model.autoscaling import DEFAULT_AUTOSCALING, AutoscalingOptions
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.deltas import Delta
from capcard_sched.model.intents import Intent
from capcard_sched.model.term_limits import DEFAULT_TERM_LIMITS, TermLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.core import StepResult

#: Version of the file format; other versions are rejected.
FORMAT: Final = 2
DEFAULT_MAX_BYTES: Final = 1 << 30
#: Deltas and intents: maximum waiting for the disk.
_MOST_WAITING: Final = 1_000_000
#: Bytes: reserved for the last line.
_RESERVE: Final = 4096
_GZIP_BITS: Final = 31
#: Bytes of the longest line: a step with all deltas that may wait has less.
_LONGEST_LINE: Final = 1 << 29


class RecordingError(Exception):
    """A file that cannot be written, or is not a recording; the text names it."""


class _Record(msgspec.Struct, frozen=True, tag=True, tag_field="record"):
    """Base: one line."""


class Header(_Record, frozen=True):
    """The first line: parameters of the core."""

    format: int
    program: str
    #: Unix seconds.
    at: float
    scheduler_names: tuple[str, ...]
    default_queue: str
    term_limits: TermLimits = DEFAULT_TERM_LIMITS
    #: Seconds; 0 evicts nothing, as before the field existed.
    half_gang_timeout: float = 0.0
    #: The reasons of Volcano, as before the field existed.
    autoscaling: AutoscalingOptions = AutoscalingOptions(precise_reasons=False)
    waits_for_groups: bool = False


class ConfUsed(_Record, frozen=True):
    """The scheduler-conf in use from here on. `document` is the file as a mapping."""

    hash: str
    document: dict[str, Any]


class Applied(_Record, frozen=True):
    """Deltas applied without a session: as a standby, or at a takeover."""

    deltas: tuple[Delta, ...]


class Stepped(_Record, frozen=True):
    """One step of the core. `session` is its uid, "" for an idle step; `now` in Unix seconds.

    `cuts`: the queues whose attempts the session deadline ended, and where.
    """

    now: float
    deltas: tuple[Delta, ...]
    intents: tuple[Intent, ...]
    session: str = ""
    cuts: dict[str, QueueCut] = {}


class Leading(_Record, frozen=True):
    """This replica became or stopped being leader, at Unix seconds. Informational."""

    leading: bool
    at: float


class Failed(_Record, frozen=True):
    """An unexpected exception outside the core. Later steps may not be reproducible."""

    what: str
    error: str


class End(_Record, frozen=True):
    """The last line of a complete recording."""

    reason: str


Record: TypeAlias = Header | ConfUsed | Applied | Stepped | Leading | Failed | End

_decoder: Final[msgspec.json.Decoder[Record]] = msgspec.json.Decoder(Record)


def conf_document(conf: Conf) -> dict[str, Any]:
    """A document that parses to this conf (except its hash), as JSON for `parse_conf`."""
    return {
        "actions": ", ".join(conf.actions),
        "tiers": [
            {
                "plugins": [
                    {"name": option.name, **option.switches, "arguments": option.raw_arguments} for option in tier
                ]
            }
            for tier in conf.tiers
        ],
        "configurations": [
            {"name": name, "arguments": msgspec.to_builtins(arguments)}
            for name, arguments in conf.action_arguments.items()
        ],
        "metrics": {key: without_password(text) for key, text in conf.metrics.items()},
    }


class Recording:
    """Writes one file. Methods other than `close` do not block and are thread-safe.

    The order of calls is the order of lines: `conf`, `applied`, `stepped` and `failed` belong in the scheduler thread.
    """

    def __init__(
        self,
        path: Path,
        conf: Conf,
        *,
        scheduler_names: Iterable[str],
        default_queue: str,
        term_limits: TermLimits = DEFAULT_TERM_LIMITS,
        half_gang_timeout: float = HALF_GANG_SECONDS,
        autoscaling: AutoscalingOptions = DEFAULT_AUTOSCALING,
        waits_for_groups: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
        on_end: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the file; an existing one is renamed to `previous-NAME`. Raises RecordingError.

        `on_end(reason)` is called in the writer thread if the recording ends before `close`.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._on_end = on_end
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Record] = SimpleQueue()
        self._waiting = 0
        self._ended = False
        self._file = _create(path)
        self._written = 0
        self._packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP_BITS) if path.suffix == ".gz" else None
        names = tuple(scheduler_names)
        parameters = names, default_queue, term_limits, half_gang_timeout, autoscaling, waits_for_groups
        header = Header(FORMAT, __version__, clock(), *parameters)
        self._put(header)
        self.conf(conf)
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def conf(self, conf: Conf) -> None:
        """Record the conf in use from here on."""
        self._put(ConfUsed(conf.hash, conf_document(conf)))

    def applied(self, deltas: Sequence[Delta]) -> None:
        """Record deltas applied without a session."""
        self._put(Applied(tuple(deltas)), len(deltas))

    def stepped(self, result: StepResult, deltas: Sequence[Delta], now: float) -> None:
        """Record a step over `deltas` at `now` (Unix seconds), except an idle one without deltas and intents."""
        if not result.idle or deltas or result.intents:
            record = Stepped(now, tuple(deltas), tuple(result.intents), result.report.uid, dict(result.report.cuts))
            self._put(record, len(deltas) + len(result.intents))

    def leading(self, leading: bool) -> None:
        self._put(Leading(leading, self._clock()))

    def failed(self, what: str, error: Exception) -> None:
        """Record an exception outside the core."""
        self._put(Failed(what, f"{type(error).__name__}: {error}"))

    def close(self, timeout: float = 1.0) -> None:
        """Write the backlog and the last line, within `timeout` seconds."""
        self._put(End("closed"))
        self._thread.join(timeout)

    @property
    def ended(self) -> bool:
        return self._ended

    def _put(self, record: Record, size: int = 0) -> None:
        with self._lock:
            if self._ended:
                return
            self._waiting += size
            if self._waiting > _MOST_WAITING:
                record = End(f"the disk is too slow: {_MOST_WAITING} deltas and intents are waiting")
            self._ended = isinstance(record, End)
            self._queue.put(record)

    def _run(self) -> None:
        try:
            reason = self._write_all()
        except Exception as error:  # noqa: BLE001 - a disk may fail in any way; the scheduler continues without it
            text = (error.strerror or str(error)) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            reason = f"{self._path}: {text}"
        with self._lock:
            self._ended = True
        with contextlib.suppress(OSError):
            self._file.close()
        if reason != "closed" and self._on_end is not None:
            self._on_end(reason)

    def _write_all(self) -> str:
        """Write until the end. Returns the reason of the end."""
        while True:
            record = self._queue.get()
            if isinstance(record, End):
                self._write(record)
                return record.reason
            if not self._write(record):
                end = End(f"the file has reached its limit of {self._max_bytes} bytes")
                self._write(end)
                return end.reason
            if isinstance(record, (Applied, Stepped)):
                with self._lock:
                    self._waiting -= len(record.deltas) + (len(record.intents) if isinstance(record, Stepped) else 0)
            if self._queue.empty():
                self._file.flush()

    def _write(self, record: Record) -> bool:
        """Write a line unless it exceeds the limit. Lines are flushed: a killed daemon loses at most one."""
        line = msgspec.json.encode(record, enc_hook=repr) + b"\n"
        packer = self._packer
        last = isinstance(record, End)
        if packer is not None:
            packer = packer.copy()  # a line that does not fit must not change the compressor
            line = packer.compress(line) + packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
        if not last and self._written + len(line) + _RESERVE > self._max_bytes:
            return False
        self._file.write(line)
        self._packer = packer
        self._written += len(line)
        return True


def _create(path: Path) -> IO[bytes]:
    try:
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            # A restarted daemon must not overwrite the record of its predecessor.
            if stat.S_ISREG(found.st_mode) and found.st_size:
                path.replace(path.with_name(f"previous-{path.name}"))
        # The file has annotations and labels of pods: readable by the owner only.
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from None


# --- reading ----------------------------------------------------------------------------------------------------------


class RecordingReader:
    """Reads one file, once. Iterating raises RecordingError if it is not a recording."""

    def __init__(self, path: Path) -> None:
        """Raises RecordingError if the file cannot be opened or does not begin with a header."""
        self._path = path
        self._lines = self._read_lines()
        self._number = 0
        #: Reason of the end, known after the last record; "" if the recording is truncated.
        self.end = ""
        first = self._next()
        if not isinstance(first, Header):
            raise RecordingError(f"{path}: not a recording file: expected a file written by `run --record`")
        if first.format != FORMAT:
            raise RecordingError(f"{path}: unsupported recording format {first.format}; accepted: {FORMAT}")
        self.header = first

    def __iter__(self) -> Iterator[Record]:
        """All records after the header, without a truncated last line."""
        while (record := self._next()) is not None:
            if isinstance(record, End):
                self.end = record.reason
                return
            yield record

    def _next(self) -> Record | None:
        line = next(self._lines, b"")
        if not line.endswith(b"\n"):
            return None
        self._number += 1
        try:
            return _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if self._number == 1:
                return None
            raise RecordingError(f"{self._path}: line {self._number}: {field_problem(error)}") from None

    def _read_lines(self) -> Iterator[bytes]:
        try:
            with os.fdopen(_open_regular(self._path), "rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                with gzip.open(file) if packed else file as lines:
                    while line := lines.readline(_LONGEST_LINE + 1):
                        if len(line) > _LONGEST_LINE:
                            text = f"larger than {_LONGEST_LINE >> 20} MiB"
                            raise RecordingError(f"{self._path}: line {self._number + 1}: {text}")
                        yield line
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return  # truncated
        except OSError as error:
            raise RecordingError(f"{self._path}: {error.strerror or error}") from None


def _open_regular(path: Path) -> int:
    """Open a file that is no pipe or device. Raises OSError."""
    descriptor = open_input(path)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


class RecordedState(NamedTuple):
    """All deltas of a recording, in order. `now` is the time of its last step, in Unix seconds."""

    header: Header
    #: JSON text of the scheduler-conf in use at the end.
    conf: bytes
    deltas: list[Delta]
    now: float


def read_state(reader: RecordingReader, until: float = math.inf) -> RecordedState:
    """Read to the last step at `until`, in Unix seconds, or to the last complete line. Raises RecordingError."""
    conf, now = b"", reader.header.at
    found: list[Delta] = []
    for record in reader:
        if isinstance(record, ConfUsed):
            conf = msgspec.json.encode(record.document)
        elif isinstance(record, Applied):
            found += record.deltas
        elif isinstance(record, Stepped):
            if record.now > until:
                break
            found += record.deltas
            now = record.now
    if not conf:
        raise RecordingError("the recording has no scheduler-conf: it was not written by this program")
    return RecordedState(reader.header, conf, found, now)
