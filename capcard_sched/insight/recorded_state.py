"""The last state of a recording, as deltas for a core."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from capcard_sched.daemon.diagnosis.recording import Applied, ConfUsed, RecordingError, Stepped

if TYPE_CHECKING:
    from capcard_sched.daemon.diagnosis.recording import Header, RecordingReader
    from capcard_sched.model.deltas import Delta


class RecordedState(NamedTuple):
    """All deltas of a recording, in order. `now` is the time of its last step, in Unix seconds."""

    header: Header
    #: JSON text of the scheduler-conf in use at the end.
    conf: bytes
    deltas: list[Delta]
    now: float


def read_state(reader: RecordingReader) -> RecordedState:
    """Read to the end, or to the last complete line. Raises RecordingError."""
    conf, now = b"", reader.header.at
    found: list[Delta] = []
    for record in reader:
        if isinstance(record, ConfUsed):
            conf = msgspec.json.encode(record.document)
        elif isinstance(record, Applied):
            found += record.deltas
        elif isinstance(record, Stepped):
            found += record.deltas
            now = record.now
    if not conf:
        raise RecordingError("the recording has no scheduler-conf: it was not written by this program")
    return RecordedState(reader.header, conf, found, now)
