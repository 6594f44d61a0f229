"""Measures the time without a leader after a failure or shutdown, and the cost of an idle daemon."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.e2e import objects
from benchmarks.e2e.heartbeats import Beaten, HeartbeatJob
from benchmarks.e2e.helper import Helper
from benchmarks.e2e.server import Server, cpu_seconds, peak_mib
from benchmarks.e2e.watcher import Ready, Seen, WatchJob
from tests.e2e.daemons import Daemon

_LIMIT = 300.0
_PODS = f"/api/v1/namespaces/{objects.NAMESPACE}/pods"
_GROUPS = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{objects.NAMESPACE}/podgroups"
#: Defaults of the election; the flags enable it.
_ELECTS = "--leader-elect-lease-duration=15s"


class Handover(msgspec.Struct):
    """Two replicas with the default lease.

    Times are in seconds, from the signal that ends the leader to the first bind of a gang created at that moment.
    """

    nodes: int
    killed: list[float] = []
    graceful: list[float] = []


class Idle(msgspec.Struct, frozen=True):
    """A leader without work while every node's status is written again and again."""

    nodes: int
    seconds: float
    heartbeats_per_second: float
    #: CPU of the daemon in per cent of one core.
    percent: float
    peak_mib: float


async def handover(
    server: Server, nodes: int, times: int, *, program: Path | None, say: Callable[[str], None]
) -> Handover:
    """Kill the leader, then end one gracefully, so many times each; on a server that has the nodes."""
    result = Handover(nodes)
    made = objects.gangs(objects.GANG * (4 * times + 8))
    await server.create(objects.queues(objects.quotas(made)))
    gangs = iter(made)
    with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
        config = server.plane.kubeconfig_for("scheduler-a")
        number = 0

        async def start() -> Daemon:
            nonlocal number
            number += 1
            daemon = Daemon(config, Path(folder), _ELECTS, conf=objects.CONF, name=f"daemon-{number}")
            if program is not None:
                daemon.command[0] = program
            await daemon.start()
            await daemon.logged("caches synced", within=_LIMIT)
            return daemon

        leader = await start()
        await _first_bind(server, next(gangs), None)
        for turn in range(2 * times):
            kill = turn < times
            say(f"{'kill -9' if kill else 'graceful handover'}, {turn % times + 1} of {times}")
            standby = await start()
            await asyncio.sleep(5)  # renewals at any phase
            took = await _first_bind(server, next(gangs), leader, kill=kill)
            (result.killed if kill else result.graceful).append(took)
            leader = standby
        await leader.stop()
    for path in (_PODS, _GROUPS, "/apis/scheduling.volcano.sh/v1beta1/queues"):
        await server.delete_all(path)
    return result


async def _first_bind(server: Server, gang: objects.Gang, leader: Daemon | None, *, kill: bool = False) -> float:
    """End the leader, create the gang at once, and wait for its first pod to be bound; seconds."""
    async with Helper("benchmarks.e2e.watcher", WatchJob(server.target, objects.NAMESPACE, 1)) as watcher:
        await watcher.answer(Ready, _LIMIT)
        began = time.monotonic()
        ending = None
        if leader is not None:
            ending = asyncio.create_task(leader.kill()) if kill else asyncio.create_task(_stop(leader))
            await asyncio.sleep(0 if kill else 0.02)  # the signal is there before the gang is
        await server.create_gangs([gang])
        seen = await watcher.answer(Seen, _LIMIT)
        if ending is not None:
            await ending
    return min(seen.bound.values()) - began


async def _stop(daemon: Daemon) -> None:
    await daemon.stop()


async def idle(server: Server, nodes: int, seconds: float, *, program: Path | None, say: Callable[[str], None]) -> Idle:
    """A daemon with nothing to do on a server that has the nodes, while each beats every ten seconds."""
    say("idle, with heartbeats")
    with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
        config = server.plane.kubeconfig_for("scheduler-a")
        daemon = Daemon(config, Path(folder), _ELECTS, conf=objects.CONF)
        if program is not None:
            daemon.command[0] = program
        async with (
            daemon,
            Helper("benchmarks.e2e.heartbeats", HeartbeatJob(server.target, nodes, 10.0)) as helper,
        ):
            await daemon.logged("caches synced", within=_LIMIT)
            pid = daemon.process.pid
            for _ in range(10):
                first = await helper.answer(Beaten, _LIMIT)
            before, began = cpu_seconds(pid), time.monotonic()
            last = first
            while time.monotonic() - began < seconds:
                last = await helper.answer(Beaten, _LIMIT)
            took = time.monotonic() - began
            used = cpu_seconds(pid) - before
            memory = peak_mib(pid)
            await daemon.stop()
    return Idle(nodes, took, (last.count - first.count) / took, used / took * 100, memory)
