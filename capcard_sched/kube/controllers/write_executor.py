"""Writes of controllers as calls: creations, merge patches and deletions with preconditions, never a full update."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.controllers.objects import Key, key_of
from capcard_sched.controllers.view import COMPONENT, Create, Delete, Increment, Observe, Patch, Write, is_as_good
from capcard_sched.kube.client import ApiError, get
from capcard_sched.kube.controllers.records import BUILT_IN, WatchedRecords
from capcard_sched.kube.errors import RequestError
from capcard_sched.kube.writes.leadership_gate import RequestParts
from capcard_sched.kube.writes.requests import MERGE
from capcard_sched.kube.writes.write_backoff import WriteBackoff
from capcard_sched.kube.writes.write_call import DONE, CallWriter, WriteCall, WriteOutcome, WriteResult
from capcard_sched.model.intents import EmitEvent
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.kube.controllers.object_cache import ObjectCache
    from capcard_sched.kube.controllers.records import RecordChanged
    from capcard_sched.kube.writes.api_writer import ApiWriter

#: Creations and deletions of one object that are on their way at a time.
_PARALLEL: Final = 16
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode


class ObjectCall(WriteCall):
    """A write to one object."""

    __slots__ = ("object_key", "write")

    def __init__(self, writer: WriteExecutor, write: Create | Patch | Delete, term: int) -> None:
        super().__init__(writer, term)
        self.write = write
        #: Of the object, also of one that is to be created.
        self.object_key = Key(write.object["kind"], *key_of(write.object)) if isinstance(write, Create) else write.key


class WriteFailedError(Exception):
    """A write that is neither committed nor superfluous."""

    def __init__(self, write: Write, outcome: WriteOutcome) -> None:
        super().__init__(outcome.message)
        self.write = write
        self.outcome = outcome


class WriteExecutor(CallWriter[ObjectCall]):
    """Sends the writes of passes through the dispatcher of calls, and applies the responses to the cache.

    A pass that failed is repeated, not its write: the next pass decides from what is true then.
    """

    #: Between passes over an object that failed.
    backoff = WriteBackoff(first=0.005, longest=180.0)

    def __init__(
        self,
        writer: ApiWriter,
        cache: ObjectCache,
        *,
        count: Callable[[Increment | Observe], None],
        clock: Callable[[], float],
        records: WatchedRecords = BUILT_IN,
    ) -> None:
        """`clock` in unix seconds."""
        super().__init__(writer.context)
        self._perform = writer.perform
        self._records = records
        self._cache = cache
        self._count = count
        self._unix = clock

    async def execute(self, writes: Sequence[Write], term: int) -> None:
        """Make the writes in order; creations, or deletions, that follow each other go together.

        Raises WriteFailedError for the first that failed, and LeadershipLost.
        """
        batch: list[Create | Patch | Delete] = []
        for write in writes:
            if batch and (type(write) is not type(batch[0]) or isinstance(write, Patch) or len(batch) == _PARALLEL):
                await self._together(batch, term)
                batch = []
            if isinstance(write, Create | Patch | Delete):
                batch.append(write)
            elif isinstance(write, EmitEvent):
                self.context.submit([write])
            else:
                self._count(write)
        await self._together(batch, term)

    async def _together(self, batch: Sequence[Create | Patch | Delete], term: int) -> None:
        calls = [self._perform(ObjectCall(self, write, term)) for write in batch]
        outcomes = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls, return_exceptions=True)
        for write, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome.result not in (WriteResult.DONE, WriteResult.GONE):
                raise WriteFailedError(write, outcome)

    async def attempt(self, call: ObjectCall) -> WriteOutcome:
        """Send a write. Raises LeadershipLost, ApiError and Unreachable."""
        write, key, parts = call.write, call.object_key, RequestParts()
        body: JsonObject
        if isinstance(write, Create):
            method, path, body = "POST", self._records.resources[key.kind].collection(key.namespace), write.object
        elif isinstance(write, Patch):
            method, path, body = "PATCH", self._records.path_of(key, write.subresource), dict(write.patch)
            if given := _preconditions(write):
                body["metadata"] = {**(body.get("metadata") or {}), **given}
            parts = RequestParts(params={"fieldManager": COMPONENT}, content_type=MERGE)
        else:
            method, path, body = "DELETE", self._records.path_of(key), {"apiVersion": "v1", "kind": "DeleteOptions"}
            if given := _preconditions(write):
                body["preconditions"] = given
            body["propagationPolicy"] = "Foreground" if write.foreground else "Background"
        parts["body"] = _encode(body)
        response = await self.gate.send(self.client, call.term, method, path, **parts)
        if isinstance(write, Delete):
            self._deleted(write)
        else:
            self._apply(key.kind, response)
        return DONE

    async def classify(self, call: ObjectCall, error: RequestError) -> WriteOutcome:
        """GONE leaves nothing to bring in line; a creation needs a free name and the namespace."""
        outcome, write = await super().classify(call, error), call.write
        if error.is_uid_mismatch or (isinstance(write, Delete) and not write.version and error.status == 409):
            return outcome._replace(result=WriteResult.GONE)  # another object has the name
        if outcome.result is WriteResult.GONE and not isinstance(write, Patch):
            if isinstance(write, Create):
                return outcome._replace(result=WriteResult.AGAIN)
            self._deleted(write)
        elif outcome.result is WriteResult.CONFLICT:
            # The watch may be behind what the conflict is about.
            found = await self._read_again(call.object_key)
            if isinstance(write, Create) and found is None:
                return outcome._replace(result=WriteResult.AGAIN)
            if isinstance(write, Create) and found is not None:
                # Ours, by a response that was lost, or one that may be adopted.
                will_do = is_as_good(found, write) and not found["metadata"].get("deletionTimestamp")
                return DONE if will_do else outcome._replace(result=WriteResult.REFUSED)
        return outcome

    def observe(self, call: ObjectCall, outcome: WriteOutcome) -> None:
        """The loop reports the passes that failed."""

    async def fetch(self, key: Key) -> JsonObject | None:
        """Read an object that is not watched. Raises ApiError and Unreachable."""
        try:
            found = await self._get(key)
        except ApiError as error:
            if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN}:
                raise
            return None
        metadata = found.get("metadata") or {}
        fields = ("name", "namespace", "uid", "annotations", "labels", "ownerReferences")
        kind = self._records.resources[key.kind]
        kept = {field: metadata[field] for field in fields if field in metadata}
        whole = {"spec": found["spec"]} if key.kind in self._records.owners and "spec" in found else {}
        return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": kept, **whole}

    async def read(self, key: Key) -> RecordChanged | None:
        """Read an object that is watched; None when it does not exist. Raises ApiError and Unreachable."""
        return await get(self.client, self._records.path_of(key), partial(self._records.decode_change, key.kind))

    async def _read_again(self, key: Key) -> JsonObject | None:
        """The present object, which the cache gets, too; None when it cannot be read."""
        try:
            found = await self._get(key)
        except RequestError:
            return None
        self._apply(key.kind, _encode(found))
        return found

    def _deleted(self, write: Delete) -> None:
        self._cache.deleted(write.key, write.uid, format_timestamp(self._unix()))

    async def _get(self, key: Key) -> JsonObject:
        found: JsonObject = dict(_decode(await self.client.request("GET", self._records.path_of(key))))
        return found

    def _apply(self, kind: str, body: bytes) -> None:
        change = self._records.decode_change(kind, body)
        if change is not None:
            self._cache.apply(change, confirmed=False)


def _preconditions(write: Patch | Delete) -> dict[str, str]:
    given = {"uid": write.uid, "resourceVersion": write.version}
    return {field: value for field, value in given.items() if value}
