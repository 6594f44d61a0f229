"""Discovery of status subresources: the CRD of PodGroup may or may not have one.

With a subresource, the API server silently ignores a status sent to the object itself; without one, `/status` is 404.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import SCHEDULING
from capcard_sched.kube.writes.retry_class import RetryClass, retry_class

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds between two discovery requests after writes that contradict the result.
_REFRESH_SECONDS = 30.0
#: Resources assumed where discovery is forbidden: those of Volcano's CRDs.
_DEFAULT: Final = frozenset({"podgroups", "queues", "queues/status"})


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _ResourceList(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...] = ()


class StatusDiscovery:
    """The resources of the API group; fetched once, and again when a write contradicts them."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: frozenset[str] | None = None
        self._fetched_at = 0.0
        self._lock = asyncio.Lock()

    async def has_status(self, plural: str) -> bool:
        """Whether `<plural>/status` exists. Raises ApiError or Unreachable when discovery fails."""
        known = self._known
        if known is None:
            async with self._lock:
                known = self._known if self._known is not None else await self._fetch()
        if plural not in known:
            # The kind was created after the discovery request.
            self._known = None
            known = _DEFAULT
        return f"{plural}/status" in known

    async def _fetch(self) -> frozenset[str]:
        self._fetched_at = self._clock()
        try:
            found = msgspec.json.decode(await self._client.request("GET", SCHEDULING), type=_ResourceList)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the response of {SCHEDULING} is not a list of resources: {error}", sent=True) from error
        except ApiError as error:
            if retry_class(error) is not RetryClass.REFUSED:
                raise
            self._known = _DEFAULT
            return self._known
        self._known = frozenset(resource.name for resource in found.resources)
        return self._known

    def invalidate(self) -> bool:
        """Fetch again at the next call, after a write without effect. False when the last fetch was recent."""
        if self._known is None or self._clock() - self._fetched_at < _REFRESH_SECONDS:
            return False
        self._known = None
        return True
