"""The right to write: asked when a request leaves, lost with the leadership."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from capcard_sched.kube.errors import RequestWithheld

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.kube.client import Client

#: How often somebody who may not write at the moment asks again, in seconds.
_ASK_AGAIN = 0.05


class LeadershipLost(Exception):  # noqa: N818 -- no error: a piece of work ends
    """What was to be written belongs to a time of leadership that is over."""


class LeadershipGate:
    """Says when a write may leave.

    `may_write` is the lease's own answer. While it is no, writers wait: a renewal that came late is no reason to forget
    what was decided. A real loss is told by `revoke`, and everything of before is then void, also when the leadership
    returns at once: each piece of work carries the `term` it was submitted in.
    """

    def __init__(self, may_write: Callable[[], bool]) -> None:
        self.may_write = may_write
        self.term = 0

    def revoke(self) -> None:
        """Everything submitted so far is void."""
        self.term += 1

    async def wait(self, term: int) -> None:
        """Return when a write of this term may leave now. Raises Revoked when it never may."""
        while term == self.term:
            if self.may_write():
                return
            await asyncio.sleep(_ASK_AGAIN)
        raise LeadershipLost

    async def send(
        self,
        client: Client,
        term: int,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """As `Client.request`, for a write of this term: every write goes through here. Raises Revoked, too.

        A request waits for its turn and its connection, so it is asked again at the moment it leaves.
        """
        while True:
            await self.wait(term)
            try:
                return await client.request(
                    method,
                    path,
                    params=params,
                    body=body,
                    content_type=content_type,
                    clear=lambda: term == self.term and self.may_write(),
                )
            except RequestWithheld:
                continue


class GatedClient:
    """The requests of somebody else's longer piece of work: each is made only while its term lasts.

    What changes something waits for the permit; reading ends with the term, too.
    """

    def __init__(self, client: Client, permit: LeadershipGate, term: int) -> None:
        self._client = client
        self._permit = permit
        self._term = term

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """As `Client.request`. Raises Revoked, too."""
        if method == "GET":
            if self._term != self._permit.term:
                raise LeadershipLost
            return await self._client.request(method, path, params=params, body=body, content_type=content_type)
        return await self._permit.send(
            self._client, self._term, method, path, params=params, body=body, content_type=content_type
        )
