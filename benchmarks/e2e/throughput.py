"""Pods bound per second, what it costs, and, in the same run, what the API server takes with no scheduling."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.e2e import objects
from benchmarks.e2e.helper import Helper
from benchmarks.e2e.raw import RawDone, RawJob
from benchmarks.e2e.server import Server, cpu_seconds, peak_mib
from benchmarks.e2e.watcher import Ready, Seen, WatchJob
from capcard_sched.model import annotations as keys
from tests.e2e.daemons import Daemon

#: Everything takes less than so many seconds, or something is wrong.
_LIMIT = 600.0
_PODS = f"/api/v1/namespaces/{objects.NAMESPACE}/pods"
_EVENTS = f"/api/v1/namespaces/{objects.NAMESPACE}/events"
_RAW_PODS = f"/api/v1/namespaces/{objects.RAW_NAMESPACE}/pods"
_GROUPS = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{objects.NAMESPACE}/podgroups"
_WRITES = {"POST", "PUT", "PATCH", "DELETE", "create", "update", "patch", "delete"}
_REQUESTS = re.compile(
    r'^rest_client_requests_total\{code="(\d+)",method="(\w+)",resource="([^"]+)"\} (\S+)$', re.MULTILINE
)


class Raw(msgspec.Struct, frozen=True):
    """Bindings without scheduling."""

    #: Pods bound per second, from the first to the last, by the independent watcher.
    rate: float
    #: Microseconds of CPU per binding: of etcd and kube-apiserver, and of the client.
    server_us: float
    client_us: float


class Throughput(msgspec.Struct):
    """Results of one run. Times in seconds."""

    nodes: int
    pods: int
    #: The gangs were there before the daemon; else they arrived while it ran.
    created_before: bool
    connections: int
    raw: list[Raw] = []
    #: Pods bound per second from the first to the last, by the independent watcher.
    rate: float = 0.0
    #: From the daemon's start to the first bind.
    first_bind: float = 0.0
    #: From a pod's creation to its binding as the watcher saw them: the median and the slowest of a hundred.
    latency: tuple[float, float] = (0.0, 0.0)
    #: Pods per second at which the gangs arrived.
    arrival_rate: float = 0.0
    #: From the last bind until all events and statuses were written.
    written_after: float = 0.0
    #: Of the daemon, from its start until all was written.
    cpu_seconds: float = 0.0
    #: The same up to the first and to the last bind.
    cpu_at_first: float = 0.0
    cpu_at_last: float = 0.0
    peak_mib: float = 0.0
    #: Microseconds of CPU per binding between the first bind and the last, of etcd and kube-apiserver.
    server_us: float = 0.0
    #: Verb and resource to requests per pod.
    writes_per_pod: dict[str, float] = {}
    #: Pods bound in each second since the first bind.
    by_second: list[int] = []
    problems: list[str] = []

    @property
    def raw_rate(self) -> float:
        """Mean of the raw runs before and after."""
        return sum(raw.rate for raw in self.raw) / len(self.raw) if self.raw else 0.0

    @property
    def cpu_ratio(self) -> float:
        """The ratio by CPU of server and client per binding, which other work on the machine changes less."""
        raw = sum(raw.server_us + raw.client_us for raw in self.raw) / max(1, len(self.raw))
        return raw / (self.server_us + (self.cpu_at_last - self.cpu_at_first) / self.pods * 1e6)

    @property
    def ratio(self) -> float:
        """Rate with scheduling to raw rate."""
        return self.rate / self.raw_rate if self.raw else 0.0


async def prepare(server: Server, nodes: int) -> None:
    """Nodes and namespaces."""
    spaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in (objects.NAMESPACE, objects.RAW_NAMESPACE)
    ]
    await server.create([*spaces, *objects.nodes(nodes)])


async def raw_rate(server: Server, nodes: int, pods: int, connections: int) -> Raw:
    """Create pods that name no running scheduler, bind them, and delete them."""
    gangs = objects.gangs(pods, prefix="raw", namespace=objects.RAW_NAMESPACE, scheduler="none")
    documents = [pod for gang in gangs for pod in gang.pods]
    uids = await server.create(documents)
    bindings = [
        (objects.RAW_NAMESPACE, document["metadata"]["name"], uid, f"node-{index % nodes:05d}")
        for index, (document, uid) in enumerate(zip(documents, uids, strict=True))
    ]
    job = RawJob(server.target, connections, bindings, {keys.CARD_NAME: next(iter(objects.MODELS))})
    async with Helper("benchmarks.e2e.watcher", WatchJob(server.target, objects.RAW_NAMESPACE, pods)) as watcher:
        await watcher.answer(Ready, _LIMIT)
        before = server.cpu_seconds()
        async with Helper("benchmarks.e2e.raw", job) as client:
            done = await client.answer(RawDone, _LIMIT)
            seen = await watcher.answer(Seen, _LIMIT)
        used = server.cpu_seconds() - before
    await server.delete_all(_RAW_PODS)
    return Raw(_rate(seen), used / pods * 1e6, done.cpu_seconds / pods * 1e6)


async def throughput(
    server: Server,
    nodes: int,
    pods: int,
    *,
    created_before: bool,
    connections: int,
    with_raw: bool,
    program: Path | None,
    say: Callable[[str], None],
) -> Throughput:
    """One measurement on a server that has the nodes already; leaves it as it was."""
    result = Throughput(nodes, pods, created_before, connections)
    gangs = objects.gangs(pods)
    quota = objects.quotas(gangs)
    await server.create(objects.queues(quota))
    if with_raw:
        say("the raw rate")
        result.raw.append(await raw_rate(server, nodes, pods, connections))
    if created_before:
        say("creating gangs")
        await server.create_gangs(gangs)
    say("the daemon")
    with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
        config = server.plane.kubeconfig_for("scheduler-a")
        flags = (f"--bind-workers={connections}", "--schedule-period=1s")
        daemon = Daemon(config, Path(folder), *flags, conf=objects.CONF)
        if program is not None:
            daemon.command[0] = program
        await _measure(server, daemon, gangs, result)
    result.problems += objects.violations(await server.list(_PODS), gangs, quota)[:20]
    if with_raw:
        say("the raw rate again")
        result.raw.append(await raw_rate(server, nodes, pods, connections))
    for path in (_PODS, _GROUPS, _EVENTS, "/apis/scheduling.volcano.sh/v1beta1/queues"):
        await server.delete_all(path)
    return result


async def _measure(server: Server, daemon: Daemon, gangs: list[objects.Gang], result: Throughput) -> None:
    pods = result.pods
    async with Helper("benchmarks.e2e.watcher", WatchJob(server.target, objects.NAMESPACE, pods)) as watcher:
        await watcher.answer(Ready, _LIMIT)
        began = time.monotonic()
        async with daemon:
            pid = daemon.process.pid
            samples: list[_Sample] = []
            sampling = asyncio.create_task(_sample(server, pid, samples))
            if not result.created_before:
                await daemon.logged("caches synced", within=_LIMIT)
                await asyncio.sleep(1)
                started = time.monotonic()
                await server.create_gangs(gangs)
                result.arrival_rate = pods / (time.monotonic() - started)
            seen = await watcher.answer(Seen, _LIMIT)
            first, last = min(seen.bound.values()), max(seen.bound.values())
            written = await _all_written(server, gangs)
            sampling.cancel()
            result.cpu_seconds, result.peak_mib = cpu_seconds(pid), peak_mib(pid)
            at_first, at_last = _at(samples, first), _at(samples, last)
            result.cpu_at_first, result.cpu_at_last = at_first.daemon, at_last.daemon
            result.server_us = (at_last.server - at_first.server) / pods * 1e6
            result.written_after = written - last
            _, text = await daemon.get("/metrics")
            result.writes_per_pod = _writes(text, pods)
            result.problems += await _unfinished(server, gangs)
            if status := await daemon.stop():
                result.problems.append(f"the daemon ended with status {status}")
        result.problems += [str(line) for line in daemon.lines() if line["level"] in {"error", "critical"}][:10]
    result.rate = _rate(seen)
    seconds = Counter(int(at - first) for at in seen.bound.values())
    result.by_second = [seconds[second] for second in range(int(last - first) + 1)]
    result.first_bind = first - began
    result.problems += [f"{pod} was moved" for pod in seen.moved]
    if seen.created:
        waits = sorted(seen.bound[name] - at for name, at in seen.created.items())
        result.latency = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]


def _rate(seen: Seen) -> float:
    first, last = min(seen.bound.values()), max(seen.bound.values())
    return len(seen.bound) / max(last - first, 1e-3)


class _Sample(NamedTuple):
    """CPU seconds so far, at a time."""

    at: float
    daemon: float
    server: float


async def _sample(server: Server, pid: int, into: list[_Sample]) -> None:
    while True:
        into.append(_Sample(time.monotonic(), cpu_seconds(pid), server.cpu_seconds()))
        await asyncio.sleep(0.05)


def _at(samples: list[_Sample], when: float) -> _Sample:
    return max((sample for sample in samples if sample.at <= when), default=samples[0])


async def _all_written(server: Server, gangs: list[objects.Gang]) -> float:
    """When every pod has its event and every group runs; gives up after twenty seconds without progress."""
    pods = sum(len(gang.pods) for gang in gangs)
    progress, since = -1, time.monotonic()
    while time.monotonic() - since < 20:
        count = await server.count(_EVENTS)
        if count >= pods and not await _unfinished(server, gangs):
            break
        if count > progress:
            progress, since = count, time.monotonic()
        await asyncio.sleep(0.2)
    return time.monotonic()


async def _unfinished(server: Server, gangs: list[objects.Gang]) -> list[str]:
    phases = Counter(group.get("status", {}).get("phase", "none") for group in await server.list(_GROUPS))
    found = [f"{count} groups are {phase}" for phase, count in phases.items() if phase != "Running"]
    scheduled = sum(event["reason"] == "Scheduled" for event in await server.list(_EVENTS))
    pods = sum(len(gang.pods) for gang in gangs)
    return found if scheduled >= pods else [*found, f"{scheduled} of {pods} pods have their event"]


def _writes(exposition: str, pods: int) -> dict[str, float]:
    counts: dict[str, float] = defaultdict(float)
    for code, verb, resource, count in _REQUESTS.findall(exposition):
        if verb in _WRITES:
            counts[f"{verb} {resource}" + ("" if code.startswith("2") else f" ({code})")] += float(count)
    return {
        name: round(requests / pods, 4) for name, requests in sorted(counts.items(), key=itemgetter(1), reverse=True)
    }
