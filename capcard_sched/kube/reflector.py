"""Reflector of one kind: list, watch, resume, relist; delivers differences only.

Lists are consistent reads in pages (docs/decisions/0053). A watch resumes from its last resourceVersion. When that has
expired (410, as a response or inside the stream), the kind is listed again. `DeltaStore` drops updates that change
nothing the scheduler reads; the others go to the inbox of the scheduler thread (`SchedulerThread.deliver`).
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from capcard_sched.kube.decode import (
    ADDED,
    BOOKMARK,
    DEFAULT_SETTINGS,
    DELETED,
    MODIFIED,
    DecodeFailure,
    KindDecoder,
    LineBuffer,
    UndecodableObject,
    pages,
)
from capcard_sched.kube.errors import ApiError, Unreachable
from capcard_sched.kube.instrumentation import UNAVAILABLE
from capcard_sched.kube.kinds import WatchSpec
from capcard_sched.kube.writes.write_backoff import RetryBackoff
from capcard_sched.model.objects import ObjectMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from capcard_sched.kube.client import Client, Stream
    from capcard_sched.kube.decode import AnyEvent, WatchSettings
    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta

T = TypeVar("T", bound=WatchSpec)

#: Reason for the rejection of a version that the server has not reached: its storage was restored from a backup.
_VERSION_TOO_LARGE = "ResourceVersionTooLarge"
_ENCODER = msgspec.msgpack.Encoder()
#: Fingerprint of no object: `hash` never returns it.
_INVALID = -1
#: Number of consecutive watches without a byte after which the kind is listed again.
_SILENT_WATCHES = 2
#: Seconds; a watch that ends sooner, without an event, is reopened with a backoff.
_SHORT_LIFE = 1.0


class DeltaStore(Generic[T]):
    """Fingerprints of the objects of one kind. Costs about 130 bytes an object and 3 microseconds an update.

    Methods append deltas to `out`. Objects that do not occur between `begin_list` and `end_list` are gone.
    """

    def __init__(self, kind: WatchedKind[T], observer: Observer) -> None:
        self._kind = kind
        self._observer = observer
        self._read_fields = kind.read_fields()
        #: Namespace to name to fingerprint of the last delivered version. 64 bits: a collision of two versions of an
        #: object occurs once in 10^19 updates.
        self._fingerprints: dict[str, dict[str, int]] = {}
        self._listed: dict[str, set[str]] | None = None
        #: Namespace and name of an object that cannot be decoded, to its problem.
        self.problems: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return sum(map(len, self._fingerprints.values()))

    def begin_list(self) -> None:
        """Begin a list; abort the one in progress."""
        self._listed = {}

    def abort_list(self) -> None:
        """Abort the list in progress, if any: objects missing from it are not gone."""
        self._listed = None

    def end_list(self, out: list[Delta]) -> None:
        """Complete the list: objects missing from it are gone."""
        listed, self._listed = self._listed or {}, None
        for namespace, names in list(self._fingerprints.items()):
            here = listed.get(namespace, ())
            for name in [name for name in names if name not in here]:
                self.gone(ObjectMeta(name=name, namespace=namespace or None), out)

    def invalidate(self) -> None:
        """Deliver every object again at its next occurrence, since the receiver may have changed its copy."""
        for names in self._fingerprints.values():
            names.update(dict.fromkeys(names, _INVALID))

    def items(self, items: Iterable[T | UndecodableObject], out: list[Delta]) -> None:
        for item in items:
            self.changed(item, out)

    def changed(self, item: T | UndecodableObject, out: list[Delta]) -> None:
        """Process an added or modified object."""
        meta = item.metadata
        kind = self._kind
        if isinstance(item, UndecodableObject):
            self.undecodable(item, out)
        elif kind.selects is not None and not kind.selects(item):
            self.gone(meta, out)
        elif self._differs(meta, hash(_ENCODER.encode(self._read_fields(item)))):
            out.append(kind.changed(item))

    def undecodable(self, item: UndecodableObject, out: list[Delta]) -> None:
        """Process an object that cannot be decoded; reported again only when its problem changes."""
        meta, kind = item.metadata, self._kind
        if self._differs(meta, hash((meta.uid, item.problem, item.node))):
            shown = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
            problem = f"{kind.name} {shown}: {item.problem}"
            self.problems[meta.namespace or "", meta.name] = problem
            self._observer.watch(kind.resource, "undecodable", problem)
            delta = kind.undecodable(meta, item.problem, item.node)
            if delta is not None:
                out.append(delta)

    def gone(self, meta: ObjectMeta, out: list[Delta]) -> None:
        """Process an object that was deleted or is no longer selected."""
        namespace = meta.namespace or ""
        names = self._fingerprints.get(namespace)
        if names is None or names.pop(meta.name, None) is None:
            return
        if not names:
            del self._fingerprints[namespace]
        self.problems.pop((namespace, meta.name), None)
        out.append(self._kind.gone(meta))

    def _differs(self, meta: ObjectMeta, fingerprint: int) -> bool:
        """Record the object and its fingerprint; whether the fingerprint changed."""
        namespace, name = meta.namespace or "", meta.name
        if self._listed is not None:
            self._listed.setdefault(namespace, set()).add(name)
        names = self._fingerprints.get(namespace)
        if names is None:
            names = self._fingerprints[namespace] = {}
        if names.get(name) == fingerprint:
            return False
        names[name] = fingerprint
        self.problems.pop((namespace, name), None)
        return True


class _Interrupted(Exception):  # noqa: N818 -- part of normal operation, reported to the observer
    """A watch ended before its lifetime."""

    def __init__(self, event: str, detail: str) -> None:
        super().__init__(detail)
        self.event = event


class Reflector(Generic[T]):
    """Lists and watches one kind and delivers changes, in one event loop."""

    def __init__(
        self,
        client: Client,
        kind: WatchedKind[T],
        deliver: Callable[[Sequence[Delta]], None],
        observer: Observer,
        *,
        settings: WatchSettings = DEFAULT_SETTINGS,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.kind = kind
        #: Time by `clock` since when no watch is open; None while one is.
        self.disconnected_since: float | None = clock()
        self._client = client
        self._deliver = deliver
        self._observer = observer
        self._settings = settings
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 -- jitter, not a secret
        self._backoff = RetryBackoff(settings.first_delay, settings.longest_delay, self._rng)
        self._decoder = KindDecoder(kind)
        self._store = DeltaStore(kind, observer)
        self.problems = self._store.problems
        self._page_size = settings.page
        #: Version to watch from; "" when a list must come first.
        self._version = ""
        self._silent_watches = 0
        self._synced = asyncio.Event()
        self._relists: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def synced(self) -> bool:
        """Whether the first list was delivered and is watched, or an optional kind is missing or forbidden."""
        return self._synced.is_set()

    @property
    def pending(self) -> bool:
        """Whether the first list, or one requested by `relist`, is pending."""
        return not self.synced or bool(self._relists)

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def run(self) -> None:
        """List and watch until cancelled."""
        try:
            while True:
                self._task = asyncio.create_task(self._list_and_watch(), name=f"watch {self.kind.resource}")
                await asyncio.wait({self._task})
                if not self._task.cancelled():  # `relist` cancels it; an exception is a bug and must surface
                    self._task.result()
        finally:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait({self._task})

    async def relist(self) -> None:
        """List again and deliver the differences, or all objects of a kind that the scheduler writes.

        Cancels the list or watch in progress: the new list begins after the call. Requires a running `run`. Returns for
        an optional kind that is missing or forbidden, too.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._relists.append(done)
        self._version = ""
        if self.kind.written:
            self._store.invalidate()
        if self._task is not None:
            self._task.cancel()
        await done

    async def _list_and_watch(self) -> None:
        while True:
            delay = 0.0
            try:
                resumed = bool(self._version)
                if not resumed:
                    await self._list()
                await self._watch(resumed=resumed)
            except ApiError as error:
                delay = self._on_error(error)
            except Unreachable as error:
                event = "cut" if self.disconnected_since is None else "unreachable"
                self._observer.watch(self.kind.resource, event, str(error))
                delay = self._backoff.next()
            except _Interrupted as interruption:
                self._observer.watch(self.kind.resource, interruption.event, str(interruption))
                delay = self._backoff.next()
            finally:
                self._store.abort_list()
                if self.disconnected_since is None:
                    self.disconnected_since = self._clock()
            if delay > 0:
                await asyncio.sleep(delay)

    def _on_error(self, error: ApiError) -> float:
        """Process an error response; returns seconds to wait before the next attempt."""
        resource = self.kind.resource
        if error.status == HTTPStatus.GONE:
            self._version = ""
            self._observer.watch(resource, "expired", error.message)
        elif error.status in UNAVAILABLE:
            self._observer.watch(resource, self.kind.unavailable(error.status), error.message)
            if not self.kind.required:
                self._mark_synced()
        else:
            self._observer.watch(resource, "refused", str(error))
            if any(cause.reason == _VERSION_TOO_LARGE for cause in error.causes):
                self._version = ""
        return max(self._backoff.next(), error.retry_after or 0.0)

    async def _list(self) -> None:
        """List in pages; each page is delivered as it arrives."""
        self._store.begin_list()
        version = ""
        found = pages(
            self._client,
            self.kind.path,
            self._decoder,
            size=self._page_size,
            timeout=self._settings.timeout,
            field_selector=self.kind.field_selector,
        )
        try:
            async with aclosing(found):
                async for page in found:
                    out: list[Delta] = []
                    self._store.items(page.items, out)
                    self._send(out)
                    version = page.version
        except ApiError as error:
            if error.status == HTTPStatus.GONE:
                self._page_size = 0  # the continue token expired: list everything at once
            raise
        deltas: list[Delta] = []
        self._store.end_list(deltas)
        self._send(deltas)
        self._version = version
        self._page_size = self._settings.page
        self._observer.watch(self.kind.resource, "listed", f"{len(self._store)} objects")
        if self.synced:
            self._mark_synced()

    def _mark_synced(self) -> None:
        self._synced.set()
        relists, self._relists = self._relists, []
        for done in relists:
            if not done.done():
                done.set_result(None)

    async def _watch(self, *, resumed: bool) -> None:
        """Watch until the stream ends or fails."""
        settings = self._settings
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._rng.randint(*settings.lifetime)),
            "resourceVersion": self._version,
        }
        if self.kind.field_selector:
            params["fieldSelector"] = self.kind.field_selector
        opened = self._clock()
        path = self.kind.path
        async with self._client.stream(path, params, silence=settings.silence, timeout=settings.timeout) as stream:
            self.disconnected_since = None
            if not self.synced:  # without the right to watch, a list is soon outdated
                self._mark_synced()
            if resumed:
                self._observer.watch(self.kind.resource, "restarted", f"after version {self._version}")
            progress = await self._read(stream)
        if not progress and self._clock() - opened < _SHORT_LIFE:
            raise _Interrupted("cut", "the server ended the watch at once")

    async def _read(self, stream: Stream) -> bool:
        """Read events until the stream ends; whether there were any."""
        buffer = LineBuffer()
        progress = False
        while True:
            try:
                piece = await stream.read()
                lines = buffer.feed(piece)
            except TimeoutError:
                raise self._stalled(progress=progress) from None
            except ValueError as error:
                raise _Interrupted("undecodable", str(error)) from error
            if lines:
                self._apply(self._decoder.events(lines))
                progress = True
                self._silent_watches = 0
                self._backoff.reset()
                if self.kind.gather > 0:
                    await stream.pause(self.kind.gather)
            elif not piece:
                if buffer.pending:
                    raise _Interrupted("cut", "the stream ended in the middle of an object")
                return progress

    def _stalled(self, *, progress: bool) -> _Interrupted:
        """The error for a silent watch. A server restored from a backup stays silent until it reaches the version."""
        self._silent_watches += not progress
        if self._silent_watches >= _SILENT_WATCHES:
            self._silent_watches = 0
            self._version = ""
        return _Interrupted("stalled", f"no data for {self._settings.silence:g} s")

    def _apply(self, events: Sequence[AnyEvent[T]]) -> None:
        """Process events and deliver their deltas as one batch."""
        store = self._store
        out: list[Delta] = []
        version = ""
        try:
            for event in events:
                if isinstance(event, DecodeFailure):
                    status = event.status
                    if not status.code:
                        raise _Interrupted("undecodable", status.message)
                    raise ApiError(status.code, status.reason, status.message, None, status.details)
                item = event if isinstance(event, UndecodableObject) else event.object
                meta = item.metadata
                if event.type in {ADDED, MODIFIED}:
                    store.changed(item, out)  # type: ignore[arg-type] # only bookmarks are bare metadata
                elif event.type == DELETED:
                    store.gone(meta, out)
                elif event.type != BOOKMARK:
                    self._observer.watch(self.kind.resource, "unexpected", f"an event of type {event.type!r}")
                version = meta.resource_version or version
        finally:
            self._send(out)
            self._version = version or self._version

    def _send(self, out: list[Delta]) -> None:
        if out:
            self._deliver(tuple(out))
