"""Event objects on the API server: created once, then patched with their count."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.decode import METADATA_LIST
from capcard_sched.kube.paths import collection_path, object_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.lru import Lru
from capcard_sched.kube.writes.write_backoff import WriteBackoff
from capcard_sched.kube.writes.write_call import (
    DONE,
    CallWriter,
    RetryClass,
    WriteCall,
    WriteOutcome,
    WriteResult,
    code_of,
    outcome_of,
    retry_class,
)
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
        uid = await self._fetch(ref)
        if uid is None:
            return None
        self._known.put(ref, (uid, self._clock()))
        return uid

    async def _fetch(self, ref: ObjectRef) -> str | None:
        path = collection_path(ref.kind, ref.namespace)
        try:
            response = await self._client.request("GET", path, params={"fieldSelector": f"metadata.name={ref.name}"})
            items = METADATA_LIST.decode(response).items or ()
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        except msgspec.DecodeError as error:
            raise Unreachable(f"the response of {path} is not a list: {error}", sent=True) from error
        return items[0].metadata.uid if items else None


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
    def key(self) -> SeriesKey:
        """The series."""
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

    async def send(self, call: EventCall) -> WriteOutcome:
        """Create or patch the Event object of the series. Raises LeadershipLost."""
        return self.observe("Event", call, await self._attempt(call))

    async def _attempt(self, call: EventCall) -> WriteOutcome:
        series = call.series
        try:
            if series.created and await self._repeat(call):
                return DONE
            uid = await self._uids.uid(series.object)
            if uid is None:
                message = f"{series.object.kind} {series.object.name} not found"
                return WriteOutcome(WriteResult.GONE, 404, message)
            await self._create(call, uid)
        except (ApiError, Unreachable) as error:
            found = retry_class(error)
            again = found in (RetryClass.LATER, RetryClass.UNKNOWN) and call.attempts < _MAX_ATTEMPTS
            throttled = found is RetryClass.LATER or not code_of(error)
            return outcome_of(WriteResult.AGAIN if again else WriteResult.REFUSED, error, throttled=throttled)
        return DONE

    async def _create(self, call: EventCall, uid: str) -> None:
        series = call.series
        body = requests.event(series, uid, format_timestamp(series.first), format_timestamp(series.last))
        path = collection_path("Event", requests.event_namespace(series))
        try:
            await self.gate.send(self.client, call.term, "POST", path, body=body)
        except ApiError as error:
            # An earlier attempt succeeded and its response was lost.
            if not (retry_class(error) is RetryClass.CONFLICT and call.attempts > 1):
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
            if retry_class(error) is not RetryClass.ABSENT:
                raise
            self._correlator.renew(series)
            return False
        return True
