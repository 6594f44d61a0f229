"""Every write checks leadership at send time; work of an earlier term is dropped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypedDict, Unpack

from capcard_sched.kube.errors import RequestWithheld

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.kube.client import Client

#: Seconds between checks of a writer that waits for leadership.
_POLL_SECONDS = 0.05


class LeadershipLost(Exception):  # noqa: N818 -- ends work, signals no error
    """The write belongs to an earlier term of leadership."""


class RequestParts(TypedDict, total=False):
    """What a write passes on to `Client.request`."""

    params: Mapping[str, str] | None
    body: bytes | None
    content_type: str


class LeadershipGate:
    """Decides when a write may be sent.

    `time_left` returns the seconds until the Lease can change hands, 0.0 for a standby. While it is 0.0, writers wait:
    a late renewal drops no decision. A request ends before the Lease can change hands, so no write of a former leader
    meets one of its successor. `revoke` reports a loss of leadership and invalidates all earlier work, even if
    leadership returns at once: each piece of work carries the `term` of its submission.
    """

    def __init__(self, time_left: Callable[[], float]) -> None:
        self.time_left = time_left
        self.term = 0

    def revoke(self) -> None:
        """Invalidate everything submitted so far."""
        self.term += 1

    def is_open(self, term: int) -> bool:
        """Whether a write of this term may be sent now."""
        return term == self.term and self.time_left() > 0.0

    async def wait(self, term: int) -> None:
        """Return when a write of this term may be sent. Raises LeadershipLost after the end of the term."""
        while term == self.term:
            if self.time_left() > 0.0:
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise LeadershipLost

    async def send(self, client: Client, term: int, method: str, path: str, **parts: Unpack[RequestParts]) -> bytes:
        """As `Client.request`, for a write of this term; the only path of writes. Raises LeadershipLost, too.

        The check is repeated right before the request is sent, after its waits for the throttle and a connection.
        """

        def left() -> float:
            return self.time_left() if term == self.term else 0.0

        while True:
            if not self.is_open(term):
                await self.wait(term)
            try:
                return await client.request(method, path, time_left=left, **parts)
            except RequestWithheld:
                continue


class GatedClient:
    """Requests of PreBind, each sent only during its term.

    Writes wait for the gate; reads end with the term, too.
    """

    def __init__(self, client: Client, gate: LeadershipGate, term: int) -> None:
        self._client = client
        self._gate = gate
        self._term = term

    async def request(self, method: str, path: str, **parts: Unpack[RequestParts]) -> bytes:
        """As `Client.request`. Raises LeadershipLost, too."""
        if method == "GET":
            if self._term != self._gate.term:
                raise LeadershipLost
            return await self._client.request(method, path, **parts)
        return await self._gate.send(self._client, self._term, method, path, **parts)
