"""Makes the writes of controllers: creations, merge patches and deletions with preconditions, never a full update."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.controllers.objects import Key, key_of
from capcard_sched.controllers.view import COMPONENT, Create, Delete, Increment, Observe, Patch, Write, is_as_good
from capcard_sched.kube.client import ApiError, get
from capcard_sched.kube.controllers.records import BUILT_IN, WatchedRecords
from capcard_sched.kube.errors import RequestError, RetryClass
from capcard_sched.kube.writes.requests import MERGE
from capcard_sched.model.intents import EmitEvent
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.kube.client import Client
    from capcard_sched.kube.controllers.object_cache import ObjectCache
    from capcard_sched.kube.controllers.records import RecordChanged
    from capcard_sched.kube.writes.leadership_gate import LeadershipGate

#: Creations and deletions of one object that are on their way at a time.
_PARALLEL: Final = 16
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode


class WriteFailedError(Exception):
    """A write that the API server refused, or to which it did not respond."""

    def __init__(self, write: Write, error: RequestError) -> None:
        super().__init__(str(error))
        self.write = write
        self.error = error

    @property
    def text(self) -> str:
        """The response of the API server."""
        return self.error.text

    @property
    def is_refusal(self) -> bool:
        """Whether the same write would be refused again."""
        return self.is_conflict or self.error.retry_class is RetryClass.REFUSED

    @property
    def is_conflict(self) -> bool:
        """Whether the object was changed meanwhile: the next pass reads it anew."""
        return self.error.retry_class is RetryClass.CONFLICT


class WriteExecutor:
    """Sends writes while this process leads, and applies the responses to the cache."""

    def __init__(
        self,
        client: Client,
        gate: LeadershipGate,
        cache: ObjectCache,
        *,
        emit: Callable[[EmitEvent], None],
        count: Callable[[Increment | Observe], None],
        clock: Callable[[], float],
        records: WatchedRecords = BUILT_IN,
    ) -> None:
        """`clock` in unix seconds."""
        self._records = records
        self._client = client
        self._gate = gate
        self._cache = cache
        self._emit = emit
        self._count = count
        self._clock = clock

    async def execute(self, writes: Sequence[Write], term: int) -> None:
        """Make the writes in order; creations, or deletions, that follow each other go together.

        Raises WriteFailedError for the first that failed, and LeadershipLost.
        """
        batch: list[Create | Delete] = []
        for write in writes:
            if batch and (type(write) is not type(batch[0]) or len(batch) == _PARALLEL):
                await self._together(batch, term)
                batch = []
            if isinstance(write, Create | Delete):
                batch.append(write)
            elif isinstance(write, Patch):
                await self._patch(write, term)
            elif isinstance(write, EmitEvent):
                self._emit(write)
            else:
                self._count(write)
        await self._together(batch, term)

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
        """Read an object that is watched. Raises ApiError and Unreachable."""
        return await get(self._client, self._records.path_of(key), partial(self._records.decode_change, key.kind))

    async def _together(self, batch: Sequence[Create | Delete], term: int) -> None:
        if len(batch) == 1:
            await self._one(batch[0], term)
        elif batch:
            outcomes = await asyncio.gather(*(self._one(write, term) for write in batch), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _one(self, write: Create | Delete, term: int) -> None:
        try:
            if isinstance(write, Create):
                await self._create(write, term)
            else:
                await self._delete(write, term)
        except RequestError as error:
            raise WriteFailedError(write, error) from error

    async def _create(self, write: Create, term: int) -> None:
        namespace, name = key_of(write.object)
        key = Key(write.object["kind"], namespace, name)
        path = self._records.resources[key.kind].collection(namespace)
        try:
            body = await self._gate.send(self._client, term, "POST", path, body=_encode(write.object))
        except ApiError as error:
            if error.status == HTTPStatus.CONFLICT and await self._exists_for(write, key):
                return
            raise
        self._apply(key.kind, body)

    async def _exists_for(self, write: Create, key: Key) -> bool:
        """Whether what exists under the name will do: ours by a response that was lost, or one that may be adopted."""
        found = await self._get(key)
        metadata = found.get("metadata") or {}
        self._apply(key.kind, _encode(found))
        if metadata.get("deletionTimestamp"):
            return False
        return is_as_good(found, write)

    async def _patch(self, write: Patch, term: int) -> None:
        body = dict(write.patch)
        given = _preconditions(write)
        if given:
            body["metadata"] = {**(body.get("metadata") or {}), **given}
        path = self._records.path_of(write.key, write.subresource)
        params = {"fieldManager": COMPONENT}
        try:
            response = await self._gate.send(
                self._client, term, "PATCH", path, params=params, body=_encode(body), content_type=MERGE
            )
        except RequestError as error:
            if error.retry_class is RetryClass.ABSENT or error.is_uid_mismatch:
                return  # it is gone: nothing is left to bring in line
            if error.retry_class is RetryClass.CONFLICT:
                await self._refresh(write.key)
            raise WriteFailedError(write, error) from error
        self._apply(write.key.kind, response)

    async def _refresh(self, key: Key) -> None:
        """The watch may be behind what a conflict was about."""
        with contextlib.suppress(RequestError):
            found = await self.read(key)
            if found is not None:
                self._cache.apply(found, confirmed=False)

    async def _delete(self, write: Delete, term: int) -> None:
        options: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        given = _preconditions(write)
        if given:
            options["preconditions"] = given
        options["propagationPolicy"] = "Foreground" if write.foreground else "Background"
        try:
            await self._gate.send(self._client, term, "DELETE", self._records.path_of(write.key), body=_encode(options))
        except ApiError as error:
            if error.status == HTTPStatus.CONFLICT and not write.version:
                return  # another object has the name
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        self._cache.deleted(write.key, write.uid, format_timestamp(self._clock()))

    async def _get(self, key: Key) -> JsonObject:
        found: JsonObject = dict(_decode(await self._client.request("GET", self._records.path_of(key))))
        return found

    def _apply(self, kind: str, body: bytes) -> None:
        change = self._records.decode_change(kind, body)
        if change is not None:
            self._cache.apply(change, confirmed=False)


def _preconditions(write: Patch | Delete) -> dict[str, str]:
    given = {"uid": write.uid, "resourceVersion": write.version}
    return {field: value for field, value in given.items() if value}
