"""One kind, kept in step: list, watch, resume, list again and tell the difference.

Lists come through the watch itself where the server can do that (`sendInitialEvents`), else in pages; both are
consistent reads. A watch is resumed from the last version it has shown; when the server no longer remembers that far
(410, as an answer or inside the stream) everything is listed afresh.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from capcard_sched.kube.backoff import RetryBackoff
from capcard_sched.kube.decode import (
    ADDED,
    BOOKMARK,
    DELETED,
    MODIFIED,
    DecodeFailure,
    KindDecoder,
    LineBuffer,
    UndecodableObject,
)
from capcard_sched.kube.delta_store import DeltaStore
from capcard_sched.kube.errors import ApiError, Unreachable
from capcard_sched.kube.kinds import WatchSpec
from capcard_sched.kube.listing import PAGE, pages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capcard_sched.kube.client import Client, Stream
    from capcard_sched.kube.decode import AnyEvent
    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.objects import ObjectMeta

T = TypeVar("T", bound=WatchSpec)

#: On the bookmark that ends the initial events of a watch.
_END_OF_LIST = "k8s.io/initial-events-end"
#: What servers answer that cannot send initial events.
_CANNOT_STREAM = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, HTTPStatus.UNPROCESSABLE_ENTITY})
#: Why a server refuses a version it has not reached: its storage was set back.
_FROM_THE_FUTURE = "ResourceVersionTooLarge"
#: After so many watches in a row without a byte the version itself is doubted.
_SILENT_WATCHES = 2
#: A watch that ended properly after less, in seconds, and without an event is not opened again at once.
_SHORT_LIFE = 1.0


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to list and watch; times in seconds."""

    #: Whether to list through the watch where the server can.
    streaming: bool = True
    #: Objects per page of an ordinary list; 0: all at once.
    page: int = PAGE
    #: A watch this long without a byte is taken for dead: bookmarks come about every minute.
    silence: float = 90.0
    #: The server is asked to end a watch after a time drawn from here, so that clients spread over API servers again.
    lifetime: tuple[int, int] = (300, 600)
    first_delay: float = 0.2
    longest_delay: float = 30.0
    #: For one page of a list, and for a watch to open.
    timeout: float = 60.0


DEFAULT_SETTINGS: Final = WatchSettings()


class _Interrupted(Exception):  # noqa: N818 -- a turn of events, told to the observer
    """A watch ended otherwise than by its time being up."""

    def __init__(self, event: str, detail: str) -> None:
        super().__init__(detail)
        self.event = event


class Reflector(Generic[T]):
    """Lists and watches one kind and delivers what changes. Everything happens in one event loop."""

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
        #: Since when no watch is open, by `clock`; None while one is.
        self.lost_since: float | None = clock()
        self._client = client
        self._deliver = deliver
        self._observer = observer
        self._settings = settings
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 -- jitter, not a secret
        self._backoff = RetryBackoff(settings.first_delay, settings.longest_delay, self._rng)
        self._decoder = KindDecoder(kind)
        self._known = DeltaStore(kind, observer)
        self._streaming = settings.streaming
        self._page_size = settings.page
        #: Version to watch from; "" when there must be a list first.
        self._version = ""
        self._silent_watches = 0
        self._settled = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._work: asyncio.Task[None] | None = None

    @property
    def settled(self) -> bool:
        """Whether the first list was delivered, or a kind that is not required was found missing or forbidden."""
        return self._settled.is_set()

    @property
    def pending(self) -> bool:
        """Whether the first list, or one that was asked for by `relist`, is still to come."""
        return not self.settled or bool(self._waiting)

    async def wait_settled(self) -> None:
        """Return once `settled`."""
        await self._settled.wait()

    async def run(self) -> None:
        """Keep in step until cancelled."""
        try:
            while True:
                self._work = asyncio.create_task(self._follow(), name=f"watch {self.kind.resource}")
                await asyncio.wait({self._work})
                if not self._work.cancelled():  # by `relist`; else it has failed by a mistake of ours: not to be hidden
                    self._work.result()
        finally:
            if self._work is not None:
                self._work.cancel()
                await asyncio.wait({self._work})

    async def relist(self) -> None:
        """List afresh and deliver the differences, or all of a kind that we write; return when that is done.

        Whatever list or watch is under way is given up: this list begins after the call. Needs `run` to be running.
        A kind that is not required and turns out missing or forbidden is done too.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._version = ""
        if self.kind.written:
            self._known.doubt()
        if self._work is not None:
            self._work.cancel()
        await done

    # --- list and watch, for ever -----------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            delay = 0.0
            try:
                listed = False
                if not self._version and not self._streaming:
                    await self._list()
                    listed = True
                await self._watch(resumed=bool(self._version) and not listed)
            except ApiError as error:
                delay = self._refused(error)
            except Unreachable as error:
                event = "cut" if self.lost_since is None else "unreachable"
                self._observer.watch(self.kind.resource, event, str(error))
                delay = self._backoff.next()
            except _Interrupted as interruption:
                self._observer.watch(self.kind.resource, interruption.event, str(interruption))
                delay = self._backoff.next()
            finally:
                self._known.abort_list()
                if self.lost_since is None:
                    self.lost_since = self._clock()
            if delay > 0:
                await asyncio.sleep(delay)

    def _refused(self, error: ApiError) -> float:
        """What follows from an error answer; seconds to wait before the next attempt."""
        resource = self.kind.resource
        if error.status == HTTPStatus.GONE:
            self._version = ""
            self._observer.watch(resource, "expired", error.message)
        elif not self._version and self._streaming and error.status in _CANNOT_STREAM:
            self._streaming = False
            return 0.0
        elif error.status in {HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN}:
            event = "missing" if error.status == HTTPStatus.NOT_FOUND else "forbidden"
            self._observer.watch(resource, event, error.message)
            if not self.kind.required:
                self._settle()
        else:
            self._observer.watch(resource, "refused", str(error))
            if any(cause.reason == _FROM_THE_FUTURE for cause in error.details.causes or ()):
                self._version = ""
        return max(self._backoff.next(), error.retry_after or 0.0)

    async def _list(self) -> None:
        """A page is delivered before the next is asked for."""
        self._known.begin_list()
        version = ""
        found = pages(self._client, self.kind.path, self._decoder, size=self._page_size, timeout=self._settings.timeout)
        try:
            async with aclosing(found):
                async for page in found:
                    out: list[Delta] = []
                    self._known.items(page.items, out)
                    self._send(out)
                    version = page.version
        except ApiError as error:
            if error.status == HTTPStatus.GONE:
                self._page_size = 0  # we were too slow for pages: all at once then
            raise
        self._listed(version)

    def _listed(self, version: str) -> None:
        """A list is complete."""
        out: list[Delta] = []
        self._known.end_list(out)
        self._send(out)
        self._version = version
        self._page_size = self._settings.page
        self._observer.watch(self.kind.resource, "listed", f"{len(self._known)} objects")
        self._settle()

    def _settle(self) -> None:
        self._settled.set()
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            if not done.done():
                done.set_result(None)

    # --- one watch --------------------------------------------------------------------------------------------------

    async def _watch(self, *, resumed: bool) -> None:
        """Until it ends or fails. Without a version it lists first, by the initial events."""
        settings = self._settings
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._rng.randint(*settings.lifetime)),
        }
        if self._version:
            params["resourceVersion"] = self._version
        else:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            self._known.begin_list()
        opened = self._clock()
        path = self.kind.path
        async with self._client.stream(path, params, silence=settings.silence, timeout=settings.timeout) as stream:
            if self._version:
                self.lost_since = None
                if resumed:
                    self._observer.watch(self.kind.resource, "restarted", f"after version {self._version}")
            progress = await self._read(stream)
        if self._known.listing:
            self._streaming = False
            raise _Interrupted("cut", "the server ended the watch before the end of the initial list")
        if not progress and self._clock() - opened < _SHORT_LIFE:
            raise _Interrupted("cut", "the server ended the watch at once")

    async def _read(self, stream: Stream) -> bool:
        """Take in events until the stream ends; whether there were any."""
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
                self._take(self._decoder.events(lines))
                progress = True
                self._silent_watches = 0
                if not self._known.listing:
                    self._backoff.reset()
                    if self.kind.gather > 0:
                        await stream.rest(self.kind.gather)
            elif not piece:
                if buffer.pending:
                    raise _Interrupted("cut", "the stream ended in the middle of an object")
                return progress

    def _stalled(self, *, progress: bool) -> _Interrupted:
        """Silence. A server set back to a backup says nothing until it has caught up with the version asked for."""
        self._silent_watches += not progress
        if self._silent_watches >= _SILENT_WATCHES:
            self._silent_watches = 0
            self._version = ""
        return _Interrupted("stalled", f"nothing came for {self._settings.silence:g} s")

    def _take(self, events: Sequence[AnyEvent[T]]) -> None:
        """What arrived together is delivered together."""
        known = self._known
        out: list[Delta] = []
        version = ""
        try:
            for event in events:
                if isinstance(event, DecodeFailure):
                    status = event.status
                    if not status.code:
                        raise _Interrupted("undecodable", status.message)
                    raise ApiError(status.code, status.reason, status.message, None, status.details)
                if isinstance(event, UndecodableObject):
                    meta = event.metadata
                    if event.type == DELETED:
                        known.gone(meta, out)
                    else:
                        known.unreadable(event, out)
                else:
                    item = event.object
                    meta = item.metadata
                    if event.type in {ADDED, MODIFIED}:
                        known.changed(item, out)  # type: ignore[arg-type] # only bookmarks are bare metadata
                    elif event.type == DELETED:
                        known.gone(meta, out)
                    elif event.type != BOOKMARK:
                        self._observer.watch(self.kind.resource, "unexpected", f"an event of type {event.type!r}")
                    elif known.listing:
                        self._end_of_list(meta, out)
                version = meta.resource_version or version
        finally:
            self._send(out)
            if version and not known.listing:  # initial events come in no order of versions
                self._version = version

    def _end_of_list(self, bookmark: ObjectMeta, out: list[Delta]) -> None:
        if (bookmark.annotations or {}).get(_END_OF_LIST) != "true":
            # The server took no notice of our asking for initial events: nothing tells where the list ends.
            self._streaming = False
            raise _Interrupted("cut", "the server does not mark the end of the initial list")
        self._send(out)
        out.clear()
        self.lost_since = None
        self._listed(bookmark.resource_version)

    def _send(self, out: list[Delta]) -> None:
        if out:
            self._deliver(tuple(out))
