"""A helper that watches the pods of a namespace and notes when each is bound: the API server's own word.

Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import time

import aiohttp
import msgspec

from benchmarks.e2e.helper import Target, read_job, say

#: Events are read in lots: each costs this process less then, and the machine's cores are what is measured.
_GATHER_SECONDS = 0.02


class WatchJob(msgspec.Struct, frozen=True):
    """Watch `namespace` until so many pods are bound."""

    target: Target
    namespace: str
    bound: int


class Ready(msgspec.Struct, frozen=True):
    """The first result: the watch is open."""

    pods: int


class Seen(msgspec.Struct, frozen=True):
    """The second result: seconds at which each pod was first seen (`created`) and first seen bound, by name."""

    bound: dict[str, float]
    created: dict[str, float]
    #: Pods whose node changed later.
    moved: list[str]


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Pod


class _List(msgspec.Struct, frozen=True):
    metadata: _Meta
    items: list[_Pod] | None = None


_EVENT = msgspec.json.Decoder(_Event)


async def watch(job: WatchJob) -> None:
    """Answer `Ready`, then `Seen`."""
    path = f"/api/v1/namespaces/{job.namespace}/pods"
    async with job.target.session() as session:
        async with session.get(path) as answer:
            found = msgspec.json.decode(await answer.read(), type=_List)
        pods = found.items or []
        node_of = {pod.metadata.name: pod.spec.node_name for pod in pods if pod.spec.node_name}
        params = {"watch": "1", "resourceVersion": found.metadata.resource_version}
        created: dict[str, float] = {}
        bound: dict[str, float] = {}
        moved: list[str] = []
        async with session.get(path, params=params, timeout=aiohttp.ClientTimeout(total=None)) as stream:
            say(Ready(len(pods)))
            rest = b""
            while len(bound) < job.bound:
                piece = rest + await stream.content.readany()
                now = time.monotonic()
                end = piece.rfind(b"\n") + 1
                rest = piece[end:]
                for event in _EVENT.decode_lines(piece[:end]):
                    name, node = event.object.metadata.name, event.object.spec.node_name
                    if event.type == "ADDED":
                        created[name] = now
                    if node and event.type != "DELETED":
                        if name not in bound:
                            bound[name] = now
                        elif node_of[name] != node:
                            moved.append(name)
                        node_of[name] = node
                await asyncio.sleep(_GATHER_SECONDS)
        say(Seen(bound, created, moved))


if __name__ == "__main__":
    asyncio.run(watch(read_job(WatchJob)))
