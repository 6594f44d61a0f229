"""Reads files that users name: bounded in size, and in the time that a pipe is silent."""

from __future__ import annotations

import errno
import os
import select
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

#: Bytes of the longest file, and of the longest content of a pipe or device.
MOST_BYTES: Final = 1 << 30
_MOST_PIPED: Final = 1 << 28
#: Seconds for which a pipe may be silent.
_SILENCE: Final = 120.0
_PART: Final = 1 << 20


def open_input(path: Path) -> int:
    """The descriptor of a file, pipe or device. Raises OSError."""
    # Non-blocking: opening a pipe would otherwise block until it has a writer.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def read_input(path: Path, *, silence: float = _SILENCE) -> bytes:
    """The content of a file, pipe or device. Raises OSError; its `strerror` names the limit that was passed."""
    descriptor = open_input(path)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _read(descriptor, MOST_BYTES, path)
        return _read(descriptor, _MOST_PIPED, path, silence)
    finally:
        os.close(descriptor)


def check_length(count: int, most: int, path: Path | str) -> None:
    """Raises OSError for more than `most` bytes."""
    if count > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB", str(path))


def _read(descriptor: int, most: int, path: Path, silence: float | None = None) -> bytes:
    """`silence`: seconds until the next part of a pipe must be there."""
    check_length(os.fstat(descriptor).st_size, most, path)
    found = bytearray()
    while True:
        if silence is not None:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(silence * 1000):
                raise OSError(errno.ETIMEDOUT, f"no data within {silence:g} s: no process writes to it", str(path))
        part = os.read(descriptor, _PART)
        if not part:
            return bytes(found)
        found += part
        check_length(len(found), most, path)
