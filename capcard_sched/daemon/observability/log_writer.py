"""A logging handler that never blocks its callers: a bounded queue and a writer thread."""

from __future__ import annotations

import io
import logging
import os
import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TextIO

#: Number and characters of the queued lines; beyond either, new lines are dropped.
QUEUE_LINES: Final = 10_000
QUEUE_CHARACTERS: Final = 4 * 2**20
#: Number of lines per write.
_BATCH: Final = 100


class LogWriter(logging.Handler):
    """Formats records in the calling thread and writes them to a stream in a thread of its own.

    A stream with a file descriptor is written by `os.write`, because a blocked write of a buffered stream would hold a
    lock that the interpreter needs at exit.
    """

    def __init__(self, stream: TextIO, *, lines: int = QUEUE_LINES, characters: int = QUEUE_CHARACTERS) -> None:
        """`lines`, `characters`: limits of the queue."""
        super().__init__()
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._lines, self._characters = lines, characters
        self._queue: deque[str] = deque()
        #: Characters in the queue.
        self._queued = 0
        self._changed = threading.Condition()
        self._stopping = self._writing = False
        self._dropped = self._reported = 0
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of lines that did not fit into the queue or could not be written."""
        return self._dropped

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, or drop it when the queue is full."""
        try:
            line = self.format(record) + "\n"
        except Exception:  # noqa: BLE001 -- a record that cannot be rendered must not end its caller
            line = f"log record of {record.name} cannot be rendered\n"
        with self._changed:
            if len(self._queue) >= self._lines or self._queued + len(line) > self._characters:
                self._dropped += 1
                return
            self._queue.append(line)
            self._queued += len(line)
            self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Wait until all queued lines are written, for at most `seconds`; whether they are."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._queue or self._writing:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return False
        return True

    def stop(self, seconds: float) -> None:
        """Drain for at most `seconds` and end the thread; a blocked thread is abandoned."""
        self.drain(seconds)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                while not self._queue and not self._stopping:
                    self._changed.wait()
                if not self._queue:
                    return
                batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
                self._queued -= sum(map(len, batch))
                self._writing = True
                lost = self._dropped - self._reported
            try:
                self._write("".join(batch))
                if lost:
                    self._write(self._report(lost))
                    self._reported += lost
            except (OSError, ValueError):  # a closed pipe or stream
                with self._changed:
                    self._dropped += len(batch)

    def _report(self, lost: int) -> str:
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, "log lines dropped", None, None)
        record.__dict__["count"] = lost
        return self.format(record) + "\n"

    def _write(self, text: str) -> None:
        if self._descriptor is None:
            self._stream.write(text)
            self._stream.flush()
            return
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # another process made the pipe non-blocking
                select.select([], [self._descriptor], [])


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, io.UnsupportedOperation, ValueError):
        return None
