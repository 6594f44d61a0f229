"""A helper that sends requests as fast as the API server takes them, from a bare client: creations mostly."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterable

import msgspec

from benchmarks.e2e.helper import Target, read_job, say
from capcard_sched.kube.writes.requests import STRATEGIC


class CreateJob(msgspec.Struct, frozen=True):
    """POST, or strategic-merge-patch, these bodies (path, JSON) on this number of connections."""

    target: Target
    connections: int
    bodies: list[tuple[str, str]]
    patch: bool = False


class CreateDone(msgspec.Struct, frozen=True):
    """All responses arrived: seconds from the first request to the last response, and CPU seconds of this process."""

    seconds: float
    cpu_seconds: float


async def create(job: CreateJob) -> None:
    say(CreateDone(*await send_all(job.target, job.connections, job.bodies, patch=job.patch)))


async def send_all(
    target: Target, connections: int, bodies: Iterable[tuple[str, str | bytes]], *, patch: bool = False
) -> tuple[float, float]:
    """POST or patch bodies (path, JSON) in order on this number of connections. Returns seconds and CPU seconds."""
    method, content_type = ("PATCH", STRATEGIC) if patch else ("POST", "application/json")
    waiting = list(bodies)[::-1]
    before, began = _cpu(), time.monotonic()
    async with target.session(connections) as session:

        async def work() -> None:
            while waiting:
                path, body = waiting.pop()
                async with session.request(method, path, data=body, headers={"Content-Type": content_type}) as answer:
                    content = await answer.read()
                    if answer.status not in {200, 201}:
                        raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")

        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(work())
    return time.monotonic() - began, _cpu() - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    asyncio.run(create(read_job(CreateJob)))
