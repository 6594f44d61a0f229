"""A helper that binds pods as fast as the API server takes it, with no scheduling at all."""

from __future__ import annotations

import asyncio

import msgspec

from benchmarks.e2e.creations import send_all
from benchmarks.e2e.helper import Target, read_job, say
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes import requests
from capcard_sched.model.intents import Bind


class RawJob(msgspec.Struct, frozen=True):
    """Send these bindings on so many connections."""

    target: Target
    connections: int
    #: (namespace, pod, uid, node)
    pods: list[tuple[str, str, str, str]]
    annotations: dict[str, str]


class RawDone(msgspec.Struct, frozen=True):
    """All pods are bound: seconds from the first request to the last response, and CPU seconds of this process."""

    seconds: float
    cpu_seconds: float


async def flood(job: RawJob) -> None:
    """Bind all pods and report."""
    bindings = (
        (
            object_path("Pod", namespace, pod, "binding"),
            requests.binding(Bind(namespace, pod, uid, node, job.annotations), None),
        )
        for namespace, pod, uid, node in job.pods
    )
    say(RawDone(*await send_all(job.target, job.connections, bindings)))


if __name__ == "__main__":
    asyncio.run(flood(read_job(RawJob)))
