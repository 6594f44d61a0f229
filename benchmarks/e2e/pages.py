"""Latency and memory of the pages of `web` on a full cluster, from a file and live: `python -m benchmarks.e2e.pages`.

The cluster is that of `explaining`. Each address is requested with parameters that no other request has: its view
is made for it. The live server is measured while the cluster is unchanged, and while pods change; it records a ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Final, NamedTuple
from urllib.request import urlopen

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from benchmarks.e2e import objects
from benchmarks.e2e.explaining import fill, saved
from benchmarks.e2e.processes import cpu_seconds, memory_of
from benchmarks.e2e.server import Server
from capcard_sched.kube.paths import object_path

#: Seconds until a server is ready.
_LIMIT: Final = 600.0
#: Page to its address; `{}` is a number that differs between requests.
ADDRESSES: Final = {
    "/": "/",
    "/queues": "/queues",
    "/queues/NAME": "/queues/team-{queue}",
    "/jobs": "/jobs",
    "/jobs, filtered": "/jobs?text={}",
    "/jobs/NAMESPACE/NAME, waiting": "/jobs/bench/n1-{number:05}?kind=podgroup",
    "/jobs/NAMESPACE/NAME, running": "/jobs/bench/train-{number:05}?kind=podgroup",
    "/nodes": "/nodes",
    "/nodes, filtered": "/nodes?text=node-{number:03}",
    "/usage": "/usage?since={hours}h",
    "/what-if": "/what-if",
}
#: Changes of pods in a second, and the seconds between two samples of memory.
_CHANGES: Final = 5
_SAMPLE: Final = 0.5


class Latency(NamedTuple):
    """Requests of one page: seconds, and CPU seconds of the server with its copies."""

    page: str
    seconds: list[float]
    cpu: float


@asynccontextmanager
async def _serving(*arguments: str, ready: str) -> AsyncIterator[tuple[int, str]]:
    """The process id and the address of a server. `ready`: the begin of its last line before it is measured."""
    program = str(Path(sys.executable).with_name("capcard-sched"))
    command = [program, "web", "--listen-address", "127.0.0.1:0", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        url, is_ready = "", False
        async with asyncio.timeout(_LIMIT):
            while not (url and is_ready):
                line = (await process.stdout.readline()).decode()
                if not line:
                    raise RuntimeError("the server ended")
                is_ready |= line.startswith(ready)
                if line.startswith("serving on "):
                    url = line.removeprefix("serving on ").strip().rstrip("/")
        yield process.pid, url
    finally:
        process.terminate()
        await process.wait()


def _get(url: str) -> bytes:
    with urlopen(url, timeout=_LIMIT) as response:  # noqa: S310 - of our server
        body: bytes = response.read()
        return body


def _addresses(form: str, first: int, count: int, *, is_document: bool) -> Iterator[str]:
    """Addresses of a page, or of its document."""
    for number in range(first, first + count):
        address = form.format(number, number=number, hours=number + 1, queue=number % len(objects.QUEUES))
        yield ("/api/v1/overview" if address == "/" else f"/api/v1{address}") if is_document else address


async def _measure(pid: int, url: str, first: int, count: int, *, has_usage: bool) -> list[Latency]:
    """Request every page and every document."""
    found = []
    for page, form in ADDRESSES.items():
        if page == "/usage" and not has_usage:
            continue
        for is_document in (False, True):
            begun, seconds = cpu_seconds(pid), []
            for address in _addresses(form, first + is_document * count, count, is_document=is_document):
                at = time.perf_counter()
                await asyncio.to_thread(_get, url + address)
                seconds.append(time.perf_counter() - at)
            found.append(
                Latency(f"{page}{' as JSON' if is_document else ''}", seconds, (cpu_seconds(pid) - begun) / count)
            )
    return found


async def _peak(pid: int, peak: list[float]) -> None:
    while True:
        peak[0] = max(peak[0], await asyncio.to_thread(memory_of, pid))
        await asyncio.sleep(_SAMPLE)


async def _change(server: Server) -> None:
    """Change annotations of pods."""
    number = 0
    while True:
        number += 1
        path = object_path("Pod", objects.NAMESPACE, f"train-{number % 100:05d}-0")
        await server.merge(path, {"metadata": {"annotations": {"changed": str(number)}}})
        await asyncio.sleep(1 / _CHANGES)


def _show(console: Console, title: str, found: list[Latency]) -> None:
    table = Table("Page", "median, ms", "slowest, ms", "CPU, ms", title=f"{title}, load {os.getloadavg()[0]:.1f}")
    for one in found:
        figures = (median(one.seconds), max(one.seconds), one.cpu)
        table.add_row(one.page, *(f"{1000 * each:.0f}" for each in figures))
    console.print(table)


async def _file(console: Console, nodes: int, pods: int, count: int, folder: Path) -> None:
    file = folder / "cluster.json"
    await asyncio.to_thread(file.write_bytes, saved(nodes, pods))
    begun = time.perf_counter()
    async with _serving("-f", str(file), ready="serving on ") as (pid, url):
        await asyncio.to_thread(_get, url + "/")
        console.print(f"file: first page after {time.perf_counter() - begun:.1f} s, {cpu_seconds(pid):.1f} CPU s")
        peak = [0.0]
        sampling = asyncio.create_task(_peak(pid, peak))
        _show(console, "file", await _measure(pid, url, 0, count, has_usage=False))
        sampling.cancel()
        console.print(f"file: {memory_of(pid):.0f} MiB, at most {peak[0]:.0f} MiB")


async def _live(console: Console, nodes: int, pods: int, count: int, folder: Path) -> None:
    async with Server() as server:
        await fill(server, nodes, pods)
        config = server.plane.kubeconfig_for("scheduler-a", namespace=objects.NAMESPACE)
        begun = time.perf_counter()
        flags = ("--kubeconfig", str(config), "--ledger", str(folder / "ledger.db"))
        async with _serving(*flags, ready="in sync") as (pid, url):
            await asyncio.to_thread(_get, url + "/")
            console.print(f"live: first page after {time.perf_counter() - begun:.1f} s, {cpu_seconds(pid):.1f} CPU s")
            peak = [0.0]
            sampling = asyncio.create_task(_peak(pid, peak))
            await asyncio.to_thread(_get, url + "/usage")
            _show(console, "live, unchanged", await _measure(pid, url, 0, count, has_usage=True))
            console.print(f"live: {memory_of(pid):.0f} MiB, at most {peak[0]:.0f} MiB")
            changing = asyncio.create_task(_change(server))
            watching, behind = asyncio.create_task(_watch(url)), cpu_seconds(pid)
            begun = time.perf_counter()
            _show(console, f"live, {_CHANGES} changes/s", await _measure(pid, url, 2 * count, count, has_usage=True))
            took = time.perf_counter() - begun
            used = (cpu_seconds(pid) - behind) / took
            watching.cancel()
            changing.cancel()
            states, most = await watching
            console.print(
                f"live, changing: {states} states in {took:.0f} s, at most {most:.0f} s behind, {used:.2f} cores; "
                f"at most {peak[0]:.0f} MiB"
            )
            sampling.cancel()


async def _watch(url: str) -> tuple[int, float]:
    """Read the overview every second until cancelled: the number of its states, and the largest delay in seconds."""
    states, most = set[str](), 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            moment = msgspec.json.decode(await asyncio.to_thread(_get, f"{url}/api/v1/overview"))["moment"]
            states.add(moment["now"])
            most = max(most, moment["behind"])
            await asyncio.sleep(1.0)
    return len(states), most


app = App(name="pages", help=__doc__)


@app.default
def main(
    *,
    nodes: int = 5000,
    pods: int = 50_000,
    count: Annotated[int, Parameter(help="Requests of each page.")] = 10,
    live: bool = True,
) -> None:
    """Measure, and print tables."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
        asyncio.run(_file(console, nodes, pods, count, Path(folder)))
        if live:
            asyncio.run(_live(console, nodes, pods, count, Path(folder)))


if __name__ == "__main__":
    app()
