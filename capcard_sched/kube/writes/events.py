"""Event objects on the API server: created once, then patched with their count."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import events_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.retry_class import RetryClass, code_of, retry_after_of, retry_class, text_of
from capcard_sched.kube.writes.write_outcome import WriteOutcome
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.kube.writes.event_correlator import EventCorrelator, Series
    from capcard_sched.kube.writes.leadership_gate import LeadershipGate
    from capcard_sched.kube.writes.uid_cache import UidCache

#: Number of failed attempts after which an event is dropped.
_MAX_ATTEMPTS = 12
#: Characters of the longest name of an object.
_MAX_NAME = 253


class EventWrite(NamedTuple):
    """A queued event: the series in its state at the time of the write."""

    series: Series
    term: int
    attempts: int = 0


def merge(old: EventWrite, new: EventWrite) -> EventWrite:
    """Keep the newer one; both refer to the same series."""
    return EventWrite(new.series, new.term, max(old.attempts, new.attempts))


class EventNames:
    """Names of Event objects: the object's name and a unique number."""

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._last = 0

    def __call__(self, object_name: str) -> str:
        """Such as `worker-0.17c5f2a3b4d5e6f7`."""
        self._last = max(self._last + 1, self._now_ns())
        suffix = f".{self._last:016x}"
        return object_name[: _MAX_NAME - len(suffix)].rstrip("-.") + suffix


class EventWriter:
    """Creates and patches Event objects. An event that cannot be written soon is dropped."""

    def __init__(self, client: Client, gate: LeadershipGate, uids: UidCache, correlator: EventCorrelator) -> None:
        self._client = client
        self._gate = gate
        self._uids = uids
        self._correlator = correlator

    async def write(self, write: EventWrite) -> WriteOutcome:
        """Create or patch the Event object of the series. Raises LeadershipLost."""
        series = write.series
        try:
            if series.created and await self._repeat(write):
                return WriteOutcome(written=True)
            uid = await self._uids.uid(series.object)
            if uid is None:
                return WriteOutcome(
                    written=False, code=404, message=f"{series.object.kind} {series.object.name} not found"
                )
            await self._create(write, uid)
        except (ApiError, Unreachable) as error:
            found = retry_class(error)
            retry = found in (RetryClass.LATER, RetryClass.UNKNOWN) and write.attempts + 1 < _MAX_ATTEMPTS
            return WriteOutcome(
                written=False,
                retry=retry,
                code=code_of(error),
                message=text_of(error),
                wait=retry_after_of(error),
                throttled=found is RetryClass.LATER or not code_of(error),
            )
        return WriteOutcome(written=True)

    async def _create(self, write: EventWrite, uid: str) -> None:
        series = write.series
        body = requests.event(series, uid, format_timestamp(series.first), format_timestamp(series.last))
        path = events_path(requests.event_namespace(series))
        try:
            await self._gate.send(self._client, write.term, "POST", path, body=body)
        except ApiError as error:
            # An earlier attempt succeeded and its response was lost.
            if not (retry_class(error) is RetryClass.CONFLICT and write.attempts):
                raise
        series.created = True

    async def _repeat(self, write: EventWrite) -> bool:
        """Patch the count; False when the Event object has expired."""
        series = write.series
        try:
            await self._gate.send(
                self._client,
                write.term,
                "PATCH",
                events_path(requests.event_namespace(series), series.name),
                body=requests.repeat(series, format_timestamp(series.last)),
                content_type=requests.MERGE,
            )
        except ApiError as error:
            if retry_class(error) is not RetryClass.ABSENT:
                raise
            self._correlator.renew(series)
            return False
        return True
