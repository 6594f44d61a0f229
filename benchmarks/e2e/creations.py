"""A helper that creates objects as fast as the API server takes them, from a bare client."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterable

import msgspec

from benchmarks.e2e.helper import Target, read_job, say


class CreateJob(msgspec.Struct, frozen=True):
    """POST these bodies (path, JSON) on this number of connections."""

    target: Target
    connections: int
    bodies: list[tuple[str, str]]


class CreateDone(msgspec.Struct, frozen=True):
    """All objects exist: seconds from the first request to the last response, and CPU seconds of this process."""

    seconds: float
    cpu_seconds: float


async def create(job: CreateJob) -> None:
    """Create all objects and report."""
    say(CreateDone(*await post_all(job.target, job.connections, job.bodies)))


async def post_all(target: Target, connections: int, bodies: Iterable[tuple[str, str | bytes]]) -> tuple[float, float]:
    """POST bodies (path, JSON) in order on this number of connections. Returns seconds and CPU seconds."""
    waiting = list(bodies)[::-1]
    before, began = _cpu(), time.monotonic()
    async with target.session(connections) as session:

        async def work() -> None:
            while waiting:
                path, body = waiting.pop()
                async with session.post(path, data=body, headers={"Content-Type": "application/json"}) as answer:
                    content = await answer.read()
                    if answer.status != 201:
                        raise RuntimeError(f"POST {path}: {answer.status} {content[:500]!r}")

        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(work())
    return time.monotonic() - began, _cpu() - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    asyncio.run(create(read_job(CreateJob)))
