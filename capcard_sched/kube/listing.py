"""One kind, listed once: consistent, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from capcard_sched.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.decode import KindDecoder, ListPage

T = TypeVar("T")

#: Objects per page.
PAGE = 500
#: The largest page: more than 500 of the largest objects there can be.
_PAGE_BYTES = 2**30


async def pages(
    client: Client,
    path: str,
    decoder: KindDecoder[T],
    *,
    size: int = PAGE,
    timeout: float = 60.0,  # noqa: ASYNC109 -- handed on to the client
) -> AsyncGenerator[ListPage[T]]:
    """The pages of one list, all of the same version; `size` 0 asks for everything at once.

    No `resourceVersion=0` is asked for: it would be answered from a cache that may be behind what was written last.
    Raises ApiError (410 when the pages were taken too slowly for the server to remember the rest; status 200 when the
    answer is no list) and Unreachable.
    """
    following = ""
    while True:
        params = {"limit": str(size)} if size else {}
        if following:
            params["continue"] = following
        body = await client.request("GET", path, params=params, timeout=timeout, limit=_PAGE_BYTES)
        try:
            page = decoder.page(body)
        except msgspec.DecodeError as error:
            raise ApiError(200, "Undecodable", f"the answer is no list: {error}") from error
        del body  # as large as the page itself
        yield page
        following = page.following
        if not following:
            return
