"""Consistent lists of one kind, page by page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec

from capcard_sched.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.decode import KindDecoder, ListPage

T = TypeVar("T")

#: Number of objects per page.
PAGE = 500
#: Bytes of the largest page: more than 500 objects of the largest size.
_PAGE_BYTES = 2**30


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
