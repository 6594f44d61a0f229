"""The API server under measurement: objects, requests, and CPU time of the processes."""

from __future__ import annotations

import asyncio
import os
import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from benchmarks.e2e.helper import Target
from benchmarks.e2e.objects import Document, Gang
from capcard_sched.kube.writes.requests import MERGE
from tests.controlplane.build import build
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.preparation import install_crds

_TICKS = os.sysconf("SC_CLK_TCK")
_CREATE_CONNECTIONS = 16
#: Collection by API version and kind.
_COLLECTIONS = {
    ("v1", "Node"): "/api/v1/nodes",
    ("v1", "Namespace"): "/api/v1/namespaces",
    ("v1", "Pod"): "/api/v1/namespaces/{}/pods",
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups",
    ("scheduling.volcano.sh/v1beta1", "Queue"): "/apis/scheduling.volcano.sh/v1beta1/queues",
    ("scheduling.k8s.io/v1beta1", "PodGroup"): "/apis/scheduling.k8s.io/v1beta1/namespaces/{}/podgroups",
    ("resource.k8s.io/v1", "DeviceClass"): "/apis/resource.k8s.io/v1/deviceclasses",
    ("resource.k8s.io/v1", "ResourceSlice"): "/apis/resource.k8s.io/v1/resourceslices",
    ("resource.k8s.io/v1", "ResourceClaim"): "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
    ("topology.volcano.sh/v1alpha1", "HyperNode"): "/apis/topology.volcano.sh/v1alpha1/hypernodes",
}


#: Seconds between samples of the CPU time of processes.
_SAMPLE_SECONDS = 0.25
_REQUESTS = re.compile(
    r'^apiserver_request_total\{.*resource="([^"]*)".*subresource="([^"]*)",verb="(\w+)".*\} (\S+)$', re.MULTILINE
)


class TimedOutError(RuntimeError):
    """The server ended a request; what it did until then stays done."""


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    remaining_item_count: int = 0


class _Object(msgspec.Struct, frozen=True):
    metadata: _Meta
    items: list[msgspec.Raw] | None = None


class Server:
    """A new API server with our CRDs, on etcd without fsync, with nothing else on it. An async context manager.

    Args:
        flags: Added to those of kube-apiserver.
    """

    def __init__(self, *flags: str) -> None:
        self.plane = ControlPlane(build(), apiserver_flags=flags, audit=False)
        self.target = Target(self.plane.server, str(self.plane.ca), self.plane.token("admin"))
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.plane.__enter__)
        self.target = Target(self.plane.server, str(self.plane.ca), self.plane.token("admin"))
        self._session = self.target.session()
        async with Cluster(self.plane) as cluster:
            await install_crds(cluster)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
        await asyncio.to_thread(self.plane.stop)

    # --- requests ---------------------------------------------------------------------------------------------------

    async def request(
        self, method: str, path: str, body: object = None, *, kind: str = "application/json", **params: str
    ) -> bytes:
        """The body of a 2xx response to a body of the type `kind`. Raises RuntimeError for any other."""
        assert self._session is not None
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": kind}
        async with self._session.request(method, path, data=content, params=params, headers=headers) as answer:
            text = await answer.read()
            if answer.status >= 300:
                error = TimedOutError if answer.status == HTTPStatus.GATEWAY_TIMEOUT else RuntimeError
                raise error(f"{method} {path}: {answer.status} {text[:500].decode(errors='replace')}")
            return text

    async def merge(self, path: str, patch: Document) -> None:
        await self.request("PATCH", path, patch, kind=MERGE)

    async def create(self, documents: Iterable[Document]) -> list[str]:
        """Create objects, several at a time, begun in order; their uids in order."""
        work = enumerate(documents)
        uids: dict[int, str] = {}

        async def create_some() -> None:
            for index, document in work:
                collection = _COLLECTIONS[document["apiVersion"], document["kind"]]
                path = collection.format(document["metadata"].get("namespace", ""))
                uids[index] = msgspec.json.decode(await self.request("POST", path, document), type=_Object).metadata.uid

        async with asyncio.TaskGroup() as group:
            for _ in range(_CREATE_CONNECTIONS):
                group.create_task(create_some())
        return [uids[index] for index in range(len(uids))]

    async def merge_all(self, patches: Iterable[tuple[str, Document]]) -> None:
        """Merge-patch objects (path, patch), several at a time."""
        work = iter(patches)

        async def merge_some() -> None:
            for path, patch in work:
                await self.merge(path, patch)

        async with asyncio.TaskGroup() as group:
            for _ in range(_CREATE_CONNECTIONS):
                group.create_task(merge_some())

    async def create_gangs(self, gangs: Sequence[Gang]) -> None:
        """Groups and their pods, gang by gang."""
        await self.create(document for gang in gangs for document in (gang.group, *gang.pods))

    async def count(self, path: str, **params: str) -> int:
        page = msgspec.json.decode(await self.request("GET", path, limit="1", **params), type=_Object)
        return len(page.items or ()) + page.metadata.remaining_item_count

    async def list(self, path: str) -> list[Any]:
        items: list[Any] = msgspec.json.decode(await self.request("GET", path))["items"]
        return items

    async def delete_all(self, path: str) -> None:
        """Delete a collection at once."""
        while await self.count(path):
            with suppress(TimedOutError):  # the server ends a request after a minute, and has deleted a part by then
                await self.request("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})

    # --- what is computed -------------------------------------------------------------------------------------------

    def cpu_seconds(self) -> float:
        """Of etcd and kube-apiserver together, so far."""
        return sum(cpu_seconds(self.plane.pid(name)) for name in ("etcd", "kube-apiserver"))

    async def requests(self) -> Counter[str]:
        """Requests by verb and resource so far, of all clients."""
        found: Counter[str] = Counter()
        for resource, sub, verb, count in _REQUESTS.findall((await self.request("GET", "/metrics")).decode()):
            found[f"{verb} {resource}/{sub}".rstrip("/")] += round(float(count))
        return found


class CpuSampler:
    """CPU seconds of processes, sampled every quarter of a second. An async context manager."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._times: list[float] = []
        self._used: list[dict[str, float]] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _sample(self) -> None:
        while True:
            self._used.append({name: cpu_seconds(pid) for name, pid in self._pids.items()})
            self._times.append(time.monotonic())
            await asyncio.sleep(_SAMPLE_SECONDS)

    def between(self, began: float, ended: float) -> dict[str, float]:
        """CPU seconds by process between the looks next to two moments of the monotonic clock."""
        last = len(self._times) - 1
        first, final = (self._used[min(last, bisect_left(self._times, moment))] for moment in (began, ended))
        return {name: final[name] - first[name] for name in self._pids}


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def peak_mib(pid: int) -> float:
    """The largest resident set a process ever had (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no memory")
