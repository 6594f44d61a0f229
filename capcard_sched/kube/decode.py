"""Reads lists by page, and decodes lists and watches into typed objects; a malformed object affects only itself."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeAlias, TypeVar

import msgspec

from capcard_sched.kube.errors import ApiError, RequestError, Status, decode_status
from capcard_sched.model.decode_errors import field_problem, json_problem
from capcard_sched.model.objects import ObjectMeta

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence
    from types import TracebackType

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.kinds import WatchedKind

T = TypeVar("T")

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"
BOOKMARK = "BOOKMARK"
ERROR = "ERROR"

#: Bytes of the longest line kept: no object is larger.
_LONGEST_LINE = 64 * 2**20


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One event of a watch; a BOOKMARK has metadata only."""

    type: str
    object: T


class UndecodableObject(msgspec.Struct, frozen=True):
    """An object with a field of a wrong type: its identity and the problem. `type` is "" for an item of a list."""

    type: str
    metadata: ObjectMeta
    problem: str
    #: Node of a bound and unfinished pod, else "".
    node: str = ""


class DecodeFailure(msgspec.Struct, frozen=True):
    """An ERROR event, or a line that is not an event (`code` 0); it ends the stream."""

    status: Status


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list: objects in order, `version` of the whole list, `following` "" on the last page."""

    items: list[T | UndecodableObject]
    version: str
    following: str
    #: The number of objects on later pages, as far as the API server counts them.
    remaining: int = 0


AnyEvent: TypeAlias = "WatchEvent[T] | WatchEvent[_Metadata] | UndecodableObject | DecodeFailure"


class _Identity(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""


class _Anonymous(msgspec.Struct, frozen=True):
    metadata: _Identity = _Identity()
    spec: Any = None
    status: Any = None

    @property
    def node(self) -> str:
        """`spec.nodeName` of an unfinished pod, "" when unset or undecodable."""
        spec, status = (part if isinstance(part, dict) else {} for part in (self.spec, self.status))
        name = "" if status.get("phase") in ("Succeeded", "Failed") else spec.get("nodeName")
        return name if isinstance(name, str) else ""


class _Metadata(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    following: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class _List(msgspec.Struct, Generic[T], frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[T] | None = None


_LINE = msgspec.json.Decoder(WatchEvent[msgspec.Raw])
_RAW_LIST = msgspec.json.Decoder(_List[msgspec.Raw])
_METADATA = msgspec.json.Decoder(_Metadata)
#: A list of objects of any kind.
METADATA_LIST = msgspec.json.Decoder(_List[_Metadata])
_ANONYMOUS = msgspec.json.Decoder(_Anonymous)


class LineBuffer:
    """Splits a stream into lines, independent of its chunks. Every byte is copied at most twice."""

    def __init__(self, longest: int = _LONGEST_LINE) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._longest = longest

    def feed(self, piece: bytes) -> bytes:
        """Return all lines that `piece` completes, with their ends; b"" when it completes none.

        Raises ValueError when an incomplete line exceeds the limit.
        """
        end = piece.rfind(b"\n") + 1
        if not end:
            self._keep(piece)
            return b""
        if end == len(piece):
            lines, rest = piece, b""
        else:
            lines, rest = piece[:end], piece[end:]
        if self._parts:
            self._parts.append(lines)
            lines = b"".join(self._parts)
            self._parts.clear()
        self._size = 0
        if rest:
            self._keep(rest)
        return lines

    def _keep(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._longest:
            raise ValueError(f"a line of more than {self._longest} bytes")

    @property
    def pending(self) -> int:
        """Number of bytes of an incomplete line."""
        return self._size


class KindDecoder(Generic[T]):
    """Decodes lists and watches of one kind."""

    def __init__(self, kind: WatchedKind[T]) -> None:  # type: ignore[type-var]
        self._event = msgspec.json.Decoder(WatchEvent[kind.type])  # type: ignore[name-defined]
        self._list = msgspec.json.Decoder(_List[kind.type])  # type: ignore[name-defined]
        self._object: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind.type)

    def events(self, lines: bytes) -> Sequence[AnyEvent[T]]:
        """Decode the events of complete lines, in order. A DecodeFailure is the last one."""
        try:
            events: list[WatchEvent[T]] = self._event.decode_lines(lines)
        except msgspec.DecodeError:
            pass  # a bookmark, whose lists are null, or a malformed object, or an error
        else:
            # An error, always last, decodes as an object of a kind that shares no field name with Status.
            if not events or events[-1].type != ERROR:
                return events
        return list(self._one_by_one(lines))

    def _one_by_one(self, lines: bytes) -> Iterator[AnyEvent[T]]:
        for line in lines.split(b"\n"):
            if not line:
                continue
            try:
                event = _LINE.decode(line)
                if event.type == ERROR:
                    yield DecodeFailure(decode_status(bytes(event.object)))
                    return
                if event.type == BOOKMARK:
                    yield WatchEvent(BOOKMARK, _METADATA.decode(event.object))
                    continue
                item = self._read(bytes(event.object), event.type)
            except msgspec.DecodeError as error:
                shown = line[:80].decode("utf-8", "replace")
                yield DecodeFailure(Status(message=f"{field_problem(error)} in {shown!r}"))
                return
            yield item if isinstance(item, UndecodableObject) else WatchEvent(event.type, item)

    def page(self, body: bytes) -> ListPage[T]:
        """Decode a list, or a page of one. Raises msgspec.DecodeError when the body is not a list."""
        try:
            found = self._list.decode(body)
        except msgspec.ValidationError:
            raw = _RAW_LIST.decode(body)
            items = [self._read(bytes(item), "") for item in raw.items or ()]
            meta = raw.metadata
            return ListPage(items, meta.resource_version, meta.following, meta.remaining_item_count or 0)
        meta = found.metadata
        return ListPage(found.items or [], meta.resource_version, meta.following, meta.remaining_item_count or 0)

    def _read(self, data: bytes, kind: str) -> T | UndecodableObject:
        try:
            return self._object.decode(data)
        except msgspec.ValidationError as error:
            anonymous = _ANONYMOUS.decode(data)
            found = anonymous.metadata
            metadata = ObjectMeta(
                name=found.name, namespace=found.namespace, uid=found.uid, resource_version=found.resource_version
            )
            problem = str(json_problem(error, data))
            return UndecodableObject(kind, metadata, problem, anonymous.node)


#: Number of objects of the first page of a list.
PAGE = 500
#: Later pages have up to this number of times as many objects, while these are small. The API server takes 10 CPU s
#: for 140,000 pods in pages of 500, and 3 to 6.5 in pages of 2,000.
_GROWTH: Final = 4
#: Bytes up to which a page grows, and of the largest one: more than 2,000 objects of the largest size.
_PAGE_TARGET, _PAGE_BYTES = 2**23, 2**32
#: Lists that `ReadAhead` requests at a time.
_AT_ONCE: Final = 3


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of lists and watches; times in seconds."""

    #: Objects of the first page of a list; 0: all at once.
    page: int = PAGE
    #: Seconds without a byte after which a watch counts as dead; bookmarks arrive about every minute.
    silence: float = 90.0
    #: Range of random watch lifetimes, so that clients spread over API servers again.
    lifetime: tuple[int, int] = (300, 600)
    first_delay: float = 0.2
    longest_delay: float = 30.0
    #: Timeout of one page of a list, and of opening a watch.
    timeout: float = 60.0


DEFAULT_SETTINGS: Final = WatchSettings()


async def pages(
    client: Client,
    path: str,
    decoder: KindDecoder[T],
    *,
    size: int = PAGE,
    timeout: float = 60.0,  # noqa: ASYNC109 -- passed to the client
    field_selector: str = "",
) -> AsyncGenerator[ListPage[T]]:
    """Yield the pages of one list, all of the same version; `size` 0 lists everything at once.

    `size`: objects of the first page. Those of the later ones follow from the bytes of the page before.

    The next page is requested before a page is yielded: the API server makes it while the caller takes that one in.
    Requests carry no `resourceVersion=0`: the API server would respond from a cache that may be stale.
    Raises ApiError (410 when the continue token expired; status 200 when the response is not a list) and Unreachable.
    """

    async def fetch(following: str, count: int) -> bytes:
        params = {"limit": str(count)} if count else {}
        if field_selector:
            params["fieldSelector"] = field_selector
        if following:
            params["continue"] = following
        try:
            return await client.request("GET", path, params=params, timeout=timeout, limit=_PAGE_BYTES)
        except RequestError as error:
            if count == size or (isinstance(error, ApiError) and error.status == HTTPStatus.GONE):
                raise
        return await fetch(following, size)  # its objects may be larger than those of the page before

    response = asyncio.create_task(fetch("", size))
    try:
        while True:
            try:
                page = decoder.page(body := await response)
            except msgspec.DecodeError as error:
                problem = field_problem(error)
                raise ApiError(200, "Undecodable", f"the response is not a list: {problem}") from error
            if not page.following:
                yield page
                return
            alike = _PAGE_TARGET * len(page.items) // len(body)
            response = asyncio.create_task(fetch(page.following, min(max(size, alike), _GROWTH * size)))
            await asyncio.sleep(0)  # a caller that does not wait would hold the request back
            yield page
    finally:
        response.cancel()
        await asyncio.gather(response, return_exceptions=True)


class ReadAhead:
    """The lists of several kinds, read while the caller takes in the pages of earlier ones. A context manager.

    The last kind is requested first: with the pods, which are last in `KINDS`, it has the most pages.
    """

    def __init__(self, client: Client, kinds: Sequence[WatchedKind[Any]], *, probe: bool = False) -> None:
        """`probe`: read one object of each kind at most, as a test of rights."""
        self._client, self._probe = client, probe
        self._lists: list[tuple[WatchedKind[Any], asyncio.Queue[ListPage[Any] | Exception | None]]] = [
            (kind, asyncio.Queue()) for kind in kinds
        ]
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        waiting = list(self._lists)
        self._readers = [asyncio.create_task(self._read(waiting)) for _ in range(_AT_ONCE)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def pages(self, number: int) -> AsyncGenerator[ListPage[Any]]:
        """The pages of the kind of this number. Raises as `pages`."""
        _, queue = self._lists[number]
        while (page := await queue.get()) is not None:
            if isinstance(page, Exception):
                raise page
            await asyncio.sleep(0)  # a caller that does not wait would hold the requests back
            yield page

    async def _read(
        self, waiting: list[tuple[WatchedKind[Any], asyncio.Queue[ListPage[Any] | Exception | None]]]
    ) -> None:
        while waiting:
            kind, queue = waiting.pop()
            size = 1 if self._probe else PAGE
            found = pages(self._client, kind.path, KindDecoder(kind), size=size, field_selector=kind.field_selector)
            try:
                async with aclosing(found):
                    async for page in found:
                        queue.put_nowait(page)
                        if self._probe:
                            break
                queue.put_nowait(None)
            except ApiError as error:
                queue.put_nowait(error)
            except Exception as error:  # noqa: BLE001 - the API server is not reachable: no list will be complete
                for _, each in self._lists:
                    each.put_nowait(error)
                return
