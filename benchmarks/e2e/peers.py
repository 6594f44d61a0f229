"""`make bench-peers`: the scenes of other schedulers on a real API server, in one table. Figures, never a verdict.

Every scene has a kube-apiserver and etcd of its own. The raw rate is that of a bare client that binds pods of the same
scene on the same server; kube-scheduler of the same release, built from its module, runs the scenes that it can.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from benchmarks import measure
from benchmarks.e2e import objects, peer_scenes
from benchmarks.e2e.claim_writes import claim_of, delete_claims, raw_claim_rate
from benchmarks.e2e.explaining import ListDone, list_job
from benchmarks.e2e.helper import Helper
from benchmarks.e2e.server import Server, cpu_seconds, peak_mib
from benchmarks.e2e.throughput import raw_rate
from benchmarks.e2e.watcher import Ready, Seen, WatchJob
from tests.controlplane.build import COMPARED, PROGRAMS, build, module, pinned
from tests.controlplane.processes import tail
from tests.e2e.daemons import Daemon

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.e2e.peer_scenes import PeerScene, SceneLoad

app = App(name="bench-peers", help="Measure the scenes of other schedulers on a real API server.")

#: Seconds: everything takes less, or something is wrong.
_LIMIT: Final = 1_200.0
_OURS: Final = "capcard-sched"
_KUBE: Final = "kube-scheduler"
#: Gang scheduling of kube-scheduler, and the API that it reads.
_FLAGS: Final = (
    "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true",
    "--runtime-config=scheduling.k8s.io/v1beta1=true",
)
_PODS: Final = f"/api/v1/namespaces/{objects.NAMESPACE}/pods"
#: Pods of the raw run, at most.
_RAW_PODS: Final = 4_000


class PeerRun(msgspec.Struct, frozen=True):
    """One scheduler in one scene. Seconds, unless a field states another unit."""

    scene: str
    scheduler: str
    count: int
    #: From the first creation to the last mark; after a restart and with a backlog, from the start of the process.
    elapsed: float
    #: From the last creation to the last mark.
    after_creation: float
    #: As `elapsed`, to the end of the session that decided on the last eviction; 0: none did.
    decided: float
    #: Marks per second, from the first to the last.
    rate: float
    #: From the creation of an object, or as `elapsed` where it existed before, to its mark: p50, p90, p99.
    waits: tuple[float, float, float]
    #: CPU seconds and peak MiB of the scheduler, CPU seconds of etcd and kube-apiserver.
    cpu: float
    peak: float
    server_cpu: float
    #: Bindings per second without scheduling, in the same run; 0: not measured.
    raw: float
    #: After a restart: until a bare client has received all lists of the scheduler, without decoding; else 0.
    listed: float
    load: float


@app.default
def bench(
    *,
    scenes: Annotated[str, Parameter(help=f"Comma-separated: {', '.join(peer_scenes.SCENES)}.")] = ",".join(
        peer_scenes.SCENES
    ),
    scale: Annotated[float, Parameter(help="Factor of the size of all scenes.")] = 1.0,
    connections: Annotated[int, Parameter(help="Bindings at a time, of the daemon and of the raw client.")] = 32,
    peers: Annotated[bool, Parameter(help="Build and measure kube-scheduler, too.")] = True,
    backlog: Annotated[
        bool, Parameter(help="Create the objects before the scheduler starts; time counts from its start.")
    ] = False,
    program: Annotated[Path | None, Parameter(help="The program to run instead of this checkout's.")] = None,
    json: Annotated[Path | None, Parameter(help="Write the figures to this file too.")] = None,
) -> int:
    """Measure scenes one after the other; prints one table."""
    console = Console()
    if not console.is_terminal:
        console.width = 200
    chosen = [name.strip() for name in scenes.split(",")]
    unknown = [name for name in chosen if name not in peer_scenes.SCENES]
    if unknown or not 0 < scale <= 1:
        wrong = f"unknown scenes: {', '.join(unknown)}" if unknown else "--scale must be above 0 and at most 1"
        console.print(f"{wrong}; scenes: {', '.join(peer_scenes.SCENES)}")
        return 2
    if peers:
        build(PROGRAMS | COMPARED)
    found: list[PeerRun] = []
    for name in chosen:
        scene = peer_scenes.SCENES[name]
        load = scene.load(scale)
        if backlog and not load.rate:
            load = load._replace(from_start=True)
        found += asyncio.run(_scene(scene, load, scale, connections, program, peers, console))
        if json is not None:
            json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    console.print(", ".join(f"{key} {value}" for key, value in measure.machine().items()))
    release, busiest = pinned("k8s.io/kubernetes", module()), max(run.load for run in found)
    console.print(f"Kubernetes {release}, load {busiest:.1f} at most")
    console.print(_table(found))
    return 0


async def _scene(
    scene: PeerScene,
    load: SceneLoad,
    scale: float,
    connections: int,
    program: Path | None,
    peers: bool,
    console: Console,
) -> list[PeerRun]:
    nodes = max(1, round(scene.nodes * scale))
    found = []
    async with Server(*_FLAGS) as server:
        console.print(f"[dim]{scene.name}: {nodes:,} nodes[/dim]")
        spaces = (objects.NAMESPACE, objects.RAW_NAMESPACE)
        await server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in spaces)
        await server.create(peer_scenes.scene_nodes(nodes))
        await server.create(peer_scenes.hyper_nodes(nodes))
        await server.create(load.devices)
        raw = 0.0
        if load.mark == "bound" and load.reached > 8:
            console.print(f"[dim]{scene.name}: the raw rate[/dim]")
            if load.devices:
                pods = [pod for gang in load.gangs for pod in gang.pods]
                raw = await raw_claim_rate(server, pods[:_RAW_PODS], nodes, connections)
            else:
                raw = (await raw_rate(server, nodes, min(load.reached, _RAW_PODS), connections)).rate
        runs = [(_OURS, load)]
        if peers and scene.with_kube_scheduler:
            runs.append((_KUBE, load._replace(before=[], gangs=[peer_scenes.native(gang) for gang in load.gangs])))
        for name, own in runs:
            console.print(f"[dim]{scene.name}: {name}[/dim]")
            with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
                found.append(await _run(server, scene, own, name, raw, connections, program, Path(folder)))
            if name != runs[-1][0]:  # PodGroups of Kubernetes have finalizers, so its scheduler comes last
                await server.delete_all(_PODS)
                await delete_claims(server, objects.NAMESPACE)
    return found


async def _run(
    server: Server,
    scene: PeerScene,
    load: SceneLoad,
    scheduler: str,
    raw: float,
    connections: int,
    program: Path | None,
    folder: Path,
) -> PeerRun:
    await server.create(load.before)
    if load.devices:
        await server.create(claim_of(pod) for gang in load.gangs for pod in gang.pods)
    runs: objects.Document = {"status": {"phase": "Running", "conditions": list(objects.READY)}}
    await server.merge_all((f"{_PODS}/{name}/status", runs) for name in load.running)
    gangs = [document for gang in load.gangs for document in (*([gang.group] if gang.group else []), *gang.pods)]
    if load.is_restart:
        former = folder / "former"
        former.mkdir()
        async with _daemon(server, connections, program, former, writes_first=True):
            pass
    if load.from_start:
        await server.create(gangs)
    listed = 0.0
    if load.from_start and not raw:
        async with Helper("benchmarks.e2e.explaining", list_job(server.target)) as helper:
            listed = (await helper.answer(ListDone, _LIMIT)).seconds
    watch = WatchJob(server.target, objects.NAMESPACE, load.reached, load.mark)
    machine_load = os.getloadavg()[0]
    async with Helper("benchmarks.e2e.watcher", watch) as watcher:
        await watcher.answer(Ready, _LIMIT)
        began = time.monotonic()
        ours = _daemon(server, connections, program, folder, writes_first=bool(load.rate))
        process = ours if scheduler == _OURS else _kube_scheduler(server)
        cpu, server_cpu = 0.0, server.cpu_seconds()
        async with process as pid:
            if not load.from_start:
                await asyncio.sleep(3)  # the first session, or cycle
                began, cpu, server_cpu = time.monotonic(), cpu_seconds(pid), server.cpu_seconds()
                await _create(server, load, gangs)
            created = time.monotonic()
            seen = await watcher.answer(Seen, _LIMIT)
            used, server_used, peak = cpu_seconds(pid) - cpu, server.cpu_seconds() - server_cpu, peak_mib(pid)
    first, last = min(seen.bound.values()), max(seen.bound.values())
    waits = sorted(at - seen.created.get(name, began) for name, at in seen.bound.items())
    p50, p90, p99 = (waits[len(waits) * percent // 100] for percent in (50, 90, 99))
    return PeerRun(
        scene.name,
        scheduler,
        load.reached,
        last - began,
        last - created,
        _decided(folder, time.time() - time.monotonic() + began) if load.mark == "evicted" else 0.0,
        len(seen.bound) / max(last - first, 1e-3),
        (p50, p90, p99),
        used,
        peak,
        server_used,
        raw,
        listed,
        machine_load,
    )


def _decided(folder: Path, began: float) -> float:
    """Seconds from `began`, Unix seconds, to the last session of the daemon's log that evicts."""
    sessions = map(msgspec.json.decode, (folder / "daemon.log").read_bytes().splitlines())
    times = [line["time"] for line in sessions if line["msg"] == "session" and line.get("evicted")]
    return datetime.fromisoformat(times[-1]).timestamp() - began


async def _create(server: Server, load: SceneLoad, documents: list[objects.Document]) -> None:
    if not load.rate:
        await server.create(documents)
        return
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, gang in enumerate(load.gangs):
            await asyncio.sleep(max(0.0, began + number / load.rate - time.monotonic()))
            group.create_task(server.create_gangs([gang]))


@asynccontextmanager
async def _daemon(
    server: Server, connections: int, program: Path | None, folder: Path, *, writes_first: bool
) -> AsyncIterator[int]:
    """`writes_first`: only once it has written what the objects of its first sessions need."""
    config = server.plane.kubeconfig_for("scheduler-a")
    flags = (f"--bind-workers={connections}", "--schedule-period=1s")
    daemon = Daemon(config, folder, *flags, conf=peer_scenes.CONF)
    if program is not None:
        daemon.command[0] = program
    async with daemon:
        await daemon.logged("caches synced", within=_LIMIT)
        if writes_first:
            await daemon.settled()
            for lane in ("status", "event"):
                await daemon.until_metric("volcano_api_queue_depth", 0, lane=lane, within=_LIMIT)
        yield daemon.process.pid


@asynccontextmanager
async def _kube_scheduler(server: Server) -> AsyncIterator[int]:
    await asyncio.to_thread(server.plane.start_scheduler, _FLAGS[0])
    try:
        yield server.plane.pid(_KUBE)
    except (TimeoutError, RuntimeError) as error:
        error.add_note(tail(server.plane.log(_KUBE)))
        raise
    finally:
        await asyncio.to_thread(server.plane.stop_scheduler)


def _table(runs: list[PeerRun]) -> Table:
    table = Table(title="Scenes of other schedulers: from creation to binding, eviction or admission")
    for header in ("scene", "scheduler", "published", "goal"):
        table.add_column(header)
    for header in (
        "all after", "after the last creation", "per s", "raw/s", "wait p50, p90, p99", "CPU", "server CPU", "peak",
    ):  # fmt: skip
        table.add_column(header, justify="right")
    for run in runs:
        scene = peer_scenes.SCENES[run.scene]
        ours = run.scheduler == _OURS
        table.add_row(
            f"{scene.name}: {scene.title}" if ours else "",
            run.scheduler,
            scene.published if ours else "",
            scene.goal if ours else "",
            f"{run.elapsed:.1f} s" + (f", decided {run.decided:.1f} s" if run.decided else ""),
            f"{run.after_creation:.1f} s",
            f"{run.rate:,.0f}",
            f"lists in {run.listed:.1f} s" if run.listed else f"{run.raw:,.0f}" if run.raw else "",
            ", ".join(f"{wait:.2f}" for wait in run.waits) + " s",
            f"{run.cpu:.1f} s",
            f"{run.server_cpu:.1f} s",
            f"{run.peak:.0f} MiB",
        )
    return table


if __name__ == "__main__":
    app()
