"""Changes of the relevant objects, as the API server's own watch delivers them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

import aiohttp

from tests.clock import until
from tests.controlplane.cluster import ALL, Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest

#: Plurals of the watched kinds.
KINDS: Final = ("nodes", "queues", "podgroups", "pods")


class Change(NamedTuple):
    """One object before and after; None where it was not, or is no more."""

    kind: str
    before: Manifest | None
    after: Manifest | None

    @property
    def item(self) -> Manifest:
        """The object as it was last seen."""
        found = self.after or self.before
        assert found is not None
        return found


class Moment(NamedTuple):
    """Changes that are seen together: one, except after a gap, when only their outcome is known.

    Revisions are those of the store: of all kinds together they are one order.
    """

    revision: int
    #: Seconds of the monotonic clock at arrival.
    received_at: float
    changes: tuple[Change, ...]


class History:
    """Lists every kind, then watches from there on, resuming where a watch ended. An async context manager.

    Changes that a killed server has lost are listed afresh: the difference is one moment then.
    """

    def __init__(self, control_plane: ControlPlane, kinds: Sequence[str] = KINDS) -> None:
        self._kinds = kinds
        self.control_plane = control_plane
        self._cluster = Cluster(control_plane)
        #: By kind and uid, the objects as they were last seen.
        self.live: dict[str, dict[str, Manifest]] = {kind: {} for kind in kinds}
        #: Number of relists of a kind.
        self.gaps = 0
        self._moments: list[Moment] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        for kind in self._kinds:
            version = await self._list(kind)
            self._tasks.append(asyncio.create_task(self._follow(kind, version)))
        return self

    async def __aexit__(self, _type: type[BaseException] | None, _value: object, _trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.__aexit__(None, None, None)
        await asyncio.sleep(0.1)  # TLS connections take leave of each other after they are closed
        for result in results:
            if isinstance(result, Exception):
                raise result

    @property
    def moments(self) -> list[Moment]:
        """All moments so far, oldest first."""
        return sorted(self._moments, key=lambda moment: moment.revision)

    def take(self, before: float) -> list[Moment]:
        """Remove and return the moments that arrived before this time, in order of revision."""
        taken = [moment for moment in self._moments if moment.received_at < before]
        self._moments = [moment for moment in self._moments if moment.received_at >= before]
        return sorted(taken, key=lambda moment: moment.revision)

    async def caught_up(self, *, within: float = 60.0) -> None:
        """Return once the received objects equal those of the API server; that shows that nothing was missed.

        Raises AssertionError when the two do not come to agree.
        """

        async def agrees() -> bool:
            for kind in self._kinds:
                now = {_uid(item): _version(item) for item in await self._cluster.list(kind, namespace=ALL)}
                if now != {uid: _version(item) for uid, item in self.live[kind].items()}:
                    return False
            return True

        await until(agrees, "the history to end where the API server stands", within=within)

    # --- list and watch ---------------------------------------------------------------------------------------------

    async def _list(self, kind: str) -> str:
        """Take in everything there is now as one moment; returns the version to watch from."""
        path = await self._cluster.path(kind, namespace=ALL)
        answer = await self._cluster.request("GET", path)
        live, now = self.live[kind], {_uid(item): item for item in answer["items"]}
        changes = [Change(kind, live.get(uid), now.get(uid)) for uid in {**live, **now}]
        changes = [change for change in changes if change.before is None or change.before != change.after]
        self.live[kind] = now
        version = str(answer["metadata"]["resourceVersion"])
        if changes:
            self._moments.append(Moment(int(version), time.monotonic(), tuple(changes)))
        return version

    async def _follow(self, kind: str, version: str) -> None:
        while True:
            version = await self._watch(kind, version)
            if not version:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, RequestError):
                    version = await self._list(kind)
                    self.gaps += 1
            await asyncio.sleep(0.05)

    async def _watch(self, kind: str, version: str) -> str:
        """Until the watch ends; returns the version to resume from, "" when the server does not remember that far."""
        last = [version]
        try:
            await self._take_in(kind, last)
        except RequestError as answer:
            # Other refusals pass: a server that is starting is busy with itself.
            return "" if answer.status == 410 else last[0]
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        return last[0]

    async def _take_in(self, kind: str, last: list[str]) -> None:
        live = self.live[kind]
        params = {"resourceVersion": last[0], "allowWatchBookmarks": "true"}
        async for event in self._cluster.watch(kind, **params):
            item: Manifest = event["object"]
            if event["type"] == "ERROR":
                raise RequestError("WATCH", kind, item.get("code", 0), item.get("reason", ""), item.get("message", ""))
            last[0] = _version(item)
            if event["type"] == "BOOKMARK":
                continue
            gone = event["type"] == "DELETED"
            before = live.pop(_uid(item), None) if gone else live.get(_uid(item))
            if not gone:
                live[_uid(item)] = item
            change = Change(kind, before, None if gone else item)
            self._moments.append(Moment(int(last[0]), time.monotonic(), (change,)))


def _uid(item: Manifest) -> str:
    return str(item["metadata"]["uid"])


def _version(item: Manifest) -> str:
    return str(item["metadata"]["resourceVersion"])
