"""Consistent lists of one kind, page by page, and the settings of lists and watches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from capcard_sched.kube.decode import KindDecoder
from capcard_sched.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.decode import ListPage
    from capcard_sched.kube.kinds import WatchedKind

T = TypeVar("T")

#: Number of objects per page.
PAGE = 500
#: Bytes of the largest page: more than 500 objects of the largest size.
_PAGE_BYTES = 2**30
#: Lists that `ReadAhead` requests at a time.
_AT_ONCE: Final = 3


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of lists and watches; times in seconds."""

    #: Objects per page of a list; 0: all at once.
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

    The next page is requested before a page is yielded: the API server makes it while the caller takes that one in.
    Requests carry no `resourceVersion=0`: the API server would respond from a cache that may be stale.
    Raises ApiError (410 when the continue token expired; status 200 when the response is not a list) and Unreachable.
    """

    def request(following: str) -> asyncio.Task[bytes]:
        params = {"limit": str(size)} if size else {}
        if field_selector:
            params["fieldSelector"] = field_selector
        if following:
            params["continue"] = following
        return asyncio.create_task(client.request("GET", path, params=params, timeout=timeout, limit=_PAGE_BYTES))

    response = request("")
    try:
        while True:
            try:
                page = decoder.page(await response)
            except msgspec.DecodeError as error:
                raise ApiError(200, "Undecodable", f"the response is not a list: {error}") from error
            if not page.following:
                yield page
                return
            response = request(page.following)
            await asyncio.sleep(0)  # a caller that does not wait would hold the request back
            yield page
    finally:
        response.cancel()
        await asyncio.gather(response, return_exceptions=True)


class ReadAhead:
    """The lists of several kinds, read while the caller takes in the pages of earlier ones. A context manager.

    The last kind is requested first: with the pods, which are last in `KINDS`, it has the most pages.
    """

    def __init__(self, client: Client, kinds: Sequence[WatchedKind[Any]]) -> None:
        self._client = client
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
            found = pages(self._client, kind.path, KindDecoder(kind), field_selector=kind.field_selector)
            try:
                async for page in found:
                    queue.put_nowait(page)
                queue.put_nowait(None)
            except ApiError as error:
                queue.put_nowait(error)
            except Exception as error:  # noqa: BLE001 - the API server is not reachable: no list will be complete
                for _, each in self._lists:
                    each.put_nowait(error)
                return
