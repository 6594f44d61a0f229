"""A helper that sends small requests of another tenant by the clock: some are reviewed by webhooks, some are not."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import msgspec

from benchmarks.e2e.helper import Target, read_job, say


class ProbeJob(msgspec.Struct, frozen=True):
    """Send one request of each name every `interval` seconds, as trials; a client of the API server that never ends."""

    target: Target
    #: Name to path and body.
    requests: dict[str, tuple[str, str]]
    interval: float


class Probe(msgspec.Struct, frozen=True):
    """One response. Seconds of the monotonic clock, and from the moment at which the request was due."""

    name: str
    due: float
    seconds: float
    status: int


async def probe(job: ProbeJob) -> None:
    """Send requests until the process is ended."""
    async with job.target.session() as session, asyncio.TaskGroup() as group:
        due = time.monotonic()
        while True:
            for name, (path, body) in job.requests.items():
                group.create_task(_send(session, name, path, body, due))
            due += job.interval
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _send(session: aiohttp.ClientSession, name: str, path: str, body: str, due: float) -> None:
    headers, params = {"Content-Type": "application/json"}, {"dryRun": "All"}
    try:
        async with session.post(path, data=body, headers=headers, params=params) as response:
            await response.read()
            status = response.status
    except (aiohttp.ClientError, TimeoutError):
        status = 0
    say(Probe(name, due, time.monotonic() - due, status))


if __name__ == "__main__":
    asyncio.run(probe(read_job(ProbeJob)))
