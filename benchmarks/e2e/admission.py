"""Latency of the admission webhooks: reviews of vcjobs at a fixed rate, over kept-alive TLS connections."""

from __future__ import annotations

import asyncio
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.e2e.server import Server, cpu_seconds, peak_mib
from tests.controlplane.processes import end, free_port, spawn, tail

_NAMESPACE = "capcard-system"
#: Connections of the client; an API server keeps a few.
_CONNECTIONS = 8
_START_SECONDS = 30.0
#: Requests before the measurement.
_WARM_UP = 50


class AdmissionLatency(msgspec.Struct, frozen=True):
    """Reviews at a fixed rate. Milliseconds from the moment a request is due to its decoded response."""

    rate: int
    reviews: int
    p50: float
    p99: float
    worst: float
    cpu_percent: float
    peak_mib: float


async def admission(
    server: Server, rate: int, seconds: float, *, program: Path | None, say: Callable[[str], None]
) -> AdmissionLatency:
    """Start `capcard-sched admission` and send it `rate` reviews a second, by the clock and not by the responses."""
    await server.create(
        [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}},
            *({**_QUEUE, "metadata": {"name": name}} for name in ("root", "default", "research")),
        ]
    )
    port, health = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
        log = Path(folder, "admission.log")
        flags = [
            f"--kubeconfig={server.plane.kubeconfig_for('scheduler-a')}",
            f"--port={port}",
            f"--healthz-address=127.0.0.1:{health}",
            "--webhook-host=127.0.0.1",
        ]
        process = spawn([program or Path(sys.executable).with_name("capcard-sched"), "admission", *flags], log=log)
        try:
            await _wait_ready(health, log)
            say(f"{rate} admission reviews a second for {seconds:g} s")
            before = cpu_seconds(process.pid)
            latencies = await _send(f"https://127.0.0.1:{port}/jobs/validate", rate, round(rate * seconds))
            cpu = cpu_seconds(process.pid) - before
            peak = peak_mib(process.pid)
        finally:
            end(process, gently=5)
    latencies.sort()
    return AdmissionLatency(
        rate,
        len(latencies),
        1e3 * latencies[len(latencies) // 2],
        1e3 * latencies[len(latencies) * 99 // 100],
        1e3 * latencies[-1],
        100 * cpu / seconds,
        peak,
    )


async def _send(url: str, rate: int, count: int) -> list[float]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    body = msgspec.json.encode(_REVIEW)
    latencies: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=context)) as session:

        async def review(due: float) -> None:
            async with session.post(url, data=body) as response:
                allowed = msgspec.json.decode(await response.read())["response"]["allowed"]
            if not allowed:
                raise RuntimeError("the review of a valid job was rejected")
            latencies.append(time.perf_counter() - due)

        for _ in range(_WARM_UP):
            await review(time.perf_counter())
        latencies.clear()
        start = time.perf_counter() + 0.1
        async with asyncio.TaskGroup() as group:
            for index in range(count):
                due = start + index / rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(review(due))
    return latencies


async def _wait_ready(port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError(f"the admission server is not ready:\n{tail(log)}")
            await asyncio.sleep(0.1)


_QUEUE = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "spec": {"weight": 1}}
_CONTAINER = {
    "name": "main",
    "image": "registry/train:1",
    "resources": {"limits": {"nvidia.com/gpu": 8, "cpu": 64}},
    "env": [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(20)],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}
_REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "11111111-2222-3333-4444-555555555555",
        "kind": {"group": "batch.volcano.sh", "version": "v1alpha1", "kind": "Job"},
        "operation": "CREATE",
        "namespace": "team",
        "object": {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": "train", "namespace": "team"},
            "spec": {
                "queue": "research",
                "schedulerName": "capcard-sched",
                "minAvailable": 16,
                "tasks": [
                    {
                        "name": name,
                        "replicas": 8,
                        "minAvailable": 8,
                        "template": {
                            "metadata": {"annotations": {"volcano.sh/card.name": "NVIDIA-H200"}},
                            "spec": {"containers": [_CONTAINER], "volumes": [{"name": "data", "emptyDir": {}}]},
                        },
                    }
                    for name in ("master", "worker")
                ],
            },
        },
    },
}
