"""Event objects on the API server: created once, then patched with their count."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from capcard_sched.kube.client import ApiError, Client, get
from capcard_sched.kube.decode import METADATA_LIST
from capcard_sched.kube.errors import RequestError, RetryClass
from capcard_sched.kube.paths import collection_path, object_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.lru import Lru
from capcard_sched.kube.writes.write_backoff import WriteBackoff
from capcard_sched.kube.writes.write_call import DONE, CallWriter, WriteCall, WriteOutcome, WriteResult
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.kube.writes.event_correlator import EventCorrelator, Series, SeriesKey
    from capcard_sched.kube.writes.write_call import WriterContext
    from capcard_sched.model.intents import ObjectRef

#: Seconds for which a uid is cached: an object may be deleted and created again under its name.
_FRESH_SECONDS = 60.0
_CAPACITY = 4096


class UidCache:
    """Uids of involved objects, for events whose intent has none: without it `kubectl describe` shows no event.

    A uid is read by a list with a field selector, because the scheduler has the permission to list.
    """

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: Lru[ObjectRef, tuple[str, float]] = Lru(_CAPACITY)

    async def uid(self, ref: ObjectRef) -> str | None:
        """The uid; None when the object does not exist. Raises ApiError or Unreachable.

        Events about nodes carry the node's name, as those of the kubelet.
        """
        if ref.uid:
            return ref.uid
        if ref.kind == "Node":
            return ref.name
        known = self._known.get(ref)
        if known is not None and self._clock() - known[1] < _FRESH_SECONDS:
            return known[0]
        path, selector = collection_path(ref.kind, ref.namespace), {"fieldSelector": f"metadata.name={ref.name}"}
        found = await get(self._client, path, METADATA_LIST.decode, params=selector)
        if found is None or not found.items:
            return None
        uid = found.items[0].metadata.uid
        self._known.put(ref, (uid, self._clock()))
        return uid


#: Number of failed attempts after which an event is dropped.
_MAX_ATTEMPTS = 12
#: Characters of the longest name of an object.
_MAX_NAME = 253


class EventCall(WriteCall):
    """A queued event: the series in its state at the time of the write."""

    __slots__ = ("series",)

    def __init__(self, writer: CallWriter[EventCall], series: Series, term: int) -> None:
        super().__init__(writer, term)
        self.series = series

    @property
    def kind(self) -> str:
        return "Event"

    @property
    def key(self) -> SeriesKey:
        return self.series.key


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


class EventWriter(CallWriter[EventCall]):
    """Creates and patches Event objects. An event that cannot be written soon is dropped."""

    backoff = WriteBackoff(first=1.0, longest=60.0)

    def __init__(
        self,
        context: WriterContext,
        correlator: EventCorrelator,
    ) -> None:
        super().__init__(context)
        self._uids = UidCache(self.client, self.clock)
        self._correlator = correlator

    async def attempt(self, call: EventCall) -> WriteOutcome:
        """Create or patch the Event object of the series. Raises LeadershipLost, ApiError and Unreachable."""
        series = call.series
        if series.created and await self._repeat(call):
            return DONE
        uid = await self._uids.uid(series.object)
        if uid is None:
            return WriteOutcome(WriteResult.GONE, 404, f"{series.object.kind} {series.object.name} not found")
        await self._create(call, uid)
        return DONE

    async def classify(self, call: EventCall, error: RequestError) -> WriteOutcome:
        """An event is dropped after a number of attempts."""
        again = error.is_temporary and call.attempts < _MAX_ATTEMPTS
        return WriteOutcome.of(WriteResult.AGAIN if again else WriteResult.REFUSED, error)

    async def _create(self, call: EventCall, uid: str) -> None:
        series = call.series
        body = requests.event(series, uid, format_timestamp(series.first), format_timestamp(series.last))
        path = collection_path("Event", requests.event_namespace(series))
        try:
            await self.gate.send(self.client, call.term, "POST", path, body=body)
        except ApiError as error:
            # An earlier attempt succeeded and its response was lost.
            if not (error.retry_class is RetryClass.CONFLICT and call.attempts > 1):
                raise
        series.created = True

    async def _repeat(self, call: EventCall) -> bool:
        """Patch the count; False when the Event object has expired."""
        series = call.series
        try:
            await self.gate.send(
                self.client,
                call.term,
                "PATCH",
                object_path("Event", requests.event_namespace(series), series.name),
                body=requests.repeat(series, format_timestamp(series.last)),
                content_type=requests.MERGE,
            )
        except ApiError as error:
            if error.retry_class is not RetryClass.ABSENT:
                raise
            self._correlator.renew(series)
            return False
        return True
