"""A helper that is the kubelets of many nodes: each writes its conditions, with the time, every ten seconds."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import msgspec

from benchmarks.e2e.helper import Target, read_job, say
from benchmarks.e2e.objects import conditions
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes.requests import STRATEGIC

_CONNECTIONS = 16


class HeartbeatJob(msgspec.Struct, frozen=True):
    """Beat for the nodes 0 to `nodes` - 1, each every `period` seconds, evenly spread."""

    target: Target
    nodes: int
    period: float


class Beaten(msgspec.Struct, frozen=True):
    """Once a second: heartbeats written so far."""

    count: int


async def beat(job: HeartbeatJob) -> None:
    """Until killed."""
    due, step = time.monotonic(), job.period / job.nodes
    number = written = 0
    async with job.target.session(_CONNECTIONS) as session:

        async def work() -> None:
            nonlocal due, number, written
            while True:
                node, at = number % job.nodes, due
                number, due = number + 1, due + step
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                body = {"status": {"conditions": conditions(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))}}
                path, headers = object_path("Node", "", f"node-{node:05d}", "status"), {"Content-Type": STRATEGIC}
                async with session.patch(path, data=msgspec.json.encode(body), headers=headers) as answer:
                    content = await answer.read()
                    if answer.status != 200:
                        raise RuntimeError(f"PATCH {path}: {answer.status} {content[:500]!r}")
                written += 1

        async def report() -> None:
            while True:
                await asyncio.sleep(1)
                say(Beaten(written))

        async with asyncio.TaskGroup() as group:
            group.create_task(report())
            for _ in range(_CONNECTIONS):
                group.create_task(work())


if __name__ == "__main__":
    asyncio.run(beat(read_job(HeartbeatJob)))
