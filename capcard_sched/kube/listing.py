"""Consistent lists of one kind, page by page."""

from __future__ import annotations

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

    Requests carry no `resourceVersion=0`: the API server would respond from a cache that may be stale.
    Raises ApiError (410 when the continue token expired; status 200 when the response is not a list) and Unreachable.
    """
    following = ""
    while True:
        params = {"limit": str(size)} if size else {}
        if field_selector:
            params["fieldSelector"] = field_selector
        if following:
            params["continue"] = following
        body = await client.request("GET", path, params=params, timeout=timeout, limit=_PAGE_BYTES)
        try:
            page = decoder.page(body)
        except msgspec.DecodeError as error:
            raise ApiError(200, "Undecodable", f"the response is not a list: {error}") from error
        del body  # as large as the page itself
        yield page
        following = page.following
        if not following:
            return
