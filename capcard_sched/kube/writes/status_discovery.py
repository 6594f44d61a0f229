"""Which of our kinds have a status subresource on this cluster: PodGroup may or may not (controllers reference §1.2).

Where there is one, a status sent to the object itself is silently ignored; where there is none, `/status` is not found.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import SCHEDULING
from capcard_sched.kube.writes.retry_class import RetryClass, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

#: Discovery is asked again this long after it was last asked and something did not fit, in seconds.
_DOUBT_SECONDS = 30.0
#: What holds where discovery may not be read: the manifests of the reference.
_USUAL: Final = frozenset({"podgroups", "queues", "queues/status"})


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _ResourceList(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...] = ()


class StatusDiscovery:
    """Answers from discovery, asked once, and again when a write casts doubt on it."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: frozenset[str] | None = None
        self._asked = 0.0
        self._lock = asyncio.Lock()

    async def has_status(self, plural: str) -> bool:
        """Whether `<plural>/status` exists. Raises ApiError or Unreachable when discovery cannot be asked now."""
        known = self._known
        if known is None:
            async with self._lock:
                known = self._known if self._known is not None else await self._ask()
        if plural not in known:
            # The kind is new, and discovery has not heard of it: that is no answer.
            self._known = None
            known = _USUAL
        return f"{plural}/status" in known

    async def _ask(self) -> frozenset[str]:
        self._asked = self._clock()
        try:
            found = msgspec.json.decode(await self._client.request("GET", SCHEDULING), type=_ResourceList)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the answer of {SCHEDULING} is no list of resources: {error}", sent=True) from error
        except ApiError as error:
            if verdict(error) is not RetryClass.REFUSED:
                raise
            self._known = _USUAL
            return self._known
        self._known = frozenset(resource.name for resource in found.resources)
        return self._known

    def doubt(self) -> bool:
        """A write did not do what it should have: ask afresh next time. False when that was done a moment ago."""
        if self._known is None or self._clock() - self._asked < _DOUBT_SECONDS:
            return False
        self._known = None
        return True
