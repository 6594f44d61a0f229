"""A helper that watches the objects of a namespace and notes when each is bound, evicted or admitted.

Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Final, Literal

import aiohttp
import msgspec

from benchmarks.e2e.helper import Target, read_job, say

#: Events are read in lots: each costs this process less then, and the machine's cores are what is measured.
_GATHER_SECONDS = 0.02


#: What is noted: a pod has a node; a pod is deleted, or its deletion has begun; a PodGroup is Inqueue.
Mark = Literal["bound", "evicted", "admitted"]
_GROUPS: Final = "/apis/scheduling.volcano.sh/v1beta1"


class WatchJob(msgspec.Struct, frozen=True):
    """Watch `namespace` until as many objects as `bound` have the mark."""

    target: Target
    namespace: str
    bound: int
    mark: Mark = "bound"

    @property
    def path(self) -> str:
        root, plural = (_GROUPS, "podgroups") if self.mark == "admitted" else ("/api/v1", "pods")
        return f"{root}/namespaces/{self.namespace}/{plural}"


class Ready(msgspec.Struct, frozen=True):
    """The first result: the watch is open."""

    pods: int


class Seen(msgspec.Struct, frozen=True):
    """The second result: seconds at which each object was first seen (`created`) and first had the mark, by name."""

    bound: dict[str, float]
    created: dict[str, float]
    #: Pods whose node changed later.
    moved: list[str]


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Object


class _List(msgspec.Struct, frozen=True):
    metadata: _Meta
    items: list[_Object] | None = None


_EVENT = msgspec.json.Decoder(_Event)


def _marked(obj: _Object, type: str, mark: Mark) -> str:
    """The node, or what else an object has whose mark is set; else empty."""
    if mark == "bound":
        return obj.spec.node_name if type != "DELETED" else ""
    if mark == "evicted":
        return "evicted" if type == "DELETED" or obj.metadata.deletion_timestamp else ""
    return "admitted" if obj.status.phase in {"Inqueue", "Running"} else ""


async def watch(job: WatchJob) -> None:
    """Respond with `Ready`, then with `Seen`."""
    async with job.target.session() as session:
        async with session.get(job.path) as answer:
            found = msgspec.json.decode(await answer.read(), type=_List)
        items = found.items or []
        has = {obj.metadata.name: mark for obj in items if (mark := _marked(obj, "", job.mark))}
        created: dict[str, float] = {}
        reached: dict[str, float] = {}
        moved: list[str] = []
        arriving = lots(session, job.path, found.metadata.resource_version)
        await anext(arriving)
        say(Ready(len(items)))
        while len(reached) < job.bound:
            now, events = await anext(arriving)
            for event in events:
                name = event.object.metadata.name
                if event.type == "ADDED":
                    created[name] = now
                if mark := _marked(event.object, event.type, job.mark):
                    if name not in reached and name not in has:
                        reached[name] = now
                    elif has[name] != mark:
                        moved.append(name)
                    has[name] = mark
        await arriving.aclose()
        say(Seen(reached, created, moved))


async def lots(session: aiohttp.ClientSession, path: str, version: str) -> AsyncGenerator[tuple[float, list[_Event]]]:
    """An empty lot whenever the watch opens, and the events after a version as they arrive, with the time of each lot.

    The API server ends the watch of a client that reads too slowly; it is resumed. Raises RuntimeError if that fails,
    aiohttp.ClientError if the connection breaks.
    """
    while True:
        params = {"watch": "1", "resourceVersion": version}
        async with session.get(path, params=params, timeout=aiohttp.ClientTimeout(total=None)) as stream:
            if stream.status != HTTPStatus.OK:
                raise RuntimeError(f"the watch of {path} fails: {stream.status} {await stream.text()}")
            yield time.monotonic(), []
            rest = b""
            while not stream.content.at_eof():
                piece = rest + await stream.content.readany()
                now, end = time.monotonic(), piece.rfind(b"\n") + 1
                if b'"type":"ERROR"' in piece[:end]:
                    raise RuntimeError(f"the watch of {path} fails: {piece[:end].decode()}")
                events, rest = _EVENT.decode_lines(piece[:end]), piece[end:]
                if events:
                    version = events[-1].object.metadata.resource_version
                yield now, events
                await asyncio.sleep(_GATHER_SECONDS)


if __name__ == "__main__":
    asyncio.run(watch(read_job(WatchJob)))
