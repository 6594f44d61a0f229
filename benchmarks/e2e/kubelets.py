"""A helper that is the kubelets of a namespace: bound pods run, and end after some time. It notes when.

Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import UTC, datetime

import aiohttp
import msgspec

from benchmarks.e2e.helper import Target, read_job, say
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes.requests import STRATEGIC

_CONNECTIONS = 16
#: Seconds: events are read in lots, because the machine's cores are measured.
_GATHER_SECONDS = 0.02


class KubeletJob(msgspec.Struct, frozen=True):
    """Run this number of pods of `namespace`, each for `seconds` from the moment all of them run."""

    target: Target
    namespace: str
    pods: int
    seconds: float


class Watching(msgspec.Struct, frozen=True):
    """The first result: the watch is open."""


class AllRun(msgspec.Struct, frozen=True):
    """The second result: seconds at which each pod was first seen, seen bound and seen running, in order."""

    created: list[float]
    bound: list[float]
    running: list[float]


class AllEnded(msgspec.Struct, frozen=True):
    """The third result: every pod has ended."""


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Pod


class _List(msgspec.Struct, frozen=True):
    metadata: _Meta
    items: list[_Pod] = []


_EVENT = msgspec.json.Decoder(_Event)


class Kubelets:
    """`run` once."""

    def __init__(self, job: KubeletJob) -> None:
        self._job = job
        self._starts: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._created: dict[str, float] = {}
        self._bound: dict[str, float] = {}
        self._running: dict[str, float] = {}
        self._all_run = asyncio.Event()

    async def run(self) -> None:
        """Until every pod has ended."""
        async with self._job.target.session() as session:
            workers = [asyncio.create_task(self._work(session)) for _ in range(_CONNECTIONS)]
            watching = asyncio.create_task(self._watch(session))
            all_run = asyncio.create_task(self._all_run.wait())
            await asyncio.wait({all_run, watching, *workers}, return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, *workers):
                if task.done():
                    task.result()
            say(AllRun(*(sorted(times.values()) for times in (self._created, self._bound, self._running))))
            await asyncio.sleep(self._job.seconds)
            for name in self._running:
                self._starts.put_nowait((name, "Succeeded"))
            await self._starts.join()
            say(AllEnded())
            for task in (*workers, watching):
                task.cancel()

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        """List and watch, again when the server ends a watch that is behind."""
        path = f"/api/v1/namespaces/{self._job.namespace}/pods"
        first = True
        while True:
            async with session.get(path) as answer:
                found = msgspec.json.decode(await answer.read(), type=_List)
            self._see(found.items)
            params = {"watch": "1", "resourceVersion": found.metadata.resource_version}
            async with session.get(path, params=params, timeout=aiohttp.ClientTimeout(total=None)) as stream:
                if first:
                    say(Watching())
                first = False
                rest = b""
                while not stream.content.at_eof():
                    piece = rest + await stream.content.readany()
                    end = piece.rfind(b"\n") + 1
                    rest = piece[end:]
                    self._see(event.object for event in _EVENT.decode_lines(piece[:end]) if event.type != "ERROR")
                    await asyncio.sleep(_GATHER_SECONDS)

    def _see(self, pods: Iterable[_Pod]) -> None:
        now = time.monotonic()
        for pod in pods:
            name = pod.metadata.name
            self._created.setdefault(name, now)
            if pod.spec.node_name and name not in self._bound:
                self._bound[name] = now
                self._starts.put_nowait((name, "Running"))
            if pod.status.phase == "Running":
                self._running.setdefault(name, now)
        if len(self._running) == self._job.pods:
            self._all_run.set()

    async def _work(self, session: aiohttp.ClientSession) -> None:
        while True:
            name, phase = await self._starts.get()
            ready = "True" if phase == "Running" else "False"
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            status = {"phase": phase, "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": now}]}
            path, headers = object_path("Pod", self._job.namespace, name, "status"), {"Content-Type": STRATEGIC}
            async with session.patch(path, data=msgspec.json.encode({"status": status}), headers=headers) as answer:
                content = await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"PATCH {path}: {answer.status} {content[:500]!r}")
            self._starts.task_done()


if __name__ == "__main__":
    asyncio.run(Kubelets(read_job(KubeletJob)).run())
