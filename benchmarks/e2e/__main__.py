"""`python -m benchmarks.e2e`: the daemon on a real API server. Figures, never a verdict.

Every measurement starts `capcard-sched run` as users do, on a kube-apiserver and etcd of its own. An independent
watcher records when pods are bound. The raw rate is what the same server takes in the same run, from a bare client on
as many connections, once before and once after.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from benchmarks import measure
from benchmarks.e2e.admission import AdmissionLatency, admission
from benchmarks.e2e.controllers import JobsRun, Resync, jobs_run, resync
from benchmarks.e2e.explaining import Explaining, explaining, explaining_file
from benchmarks.e2e.server import Server
from benchmarks.e2e.standby import Handover, Idle, handover, idle
from benchmarks.e2e.throughput import Throughput, prepare, throughput

app = App(name="bench-e2e", help="Measure the daemon on a real API server.")

#: Columns when the output is not a terminal.
_FILE_WIDTH = 160
#: Name to (nodes, pods).
_SIZES = {"small": (50, 200), "S1": (1_000, 5_000), "S5": (5_000, 10_000)}
_PARTS = ("before", "arriving", "handover", "idle", "admission")
#: Parts that no size applies to: `make bench-controllers`.
_CONTROLLER_PARTS = ("jobs", "resync")
#: Part with a cluster of its own: nodes and pods.
_EXPLAIN, _EXPLAINED = "explain", (5_000, 50_000)
#: The same from a file, without an API server.
_EXPLAIN_FILE = "explain-file"
_ALL_PARTS = (*_PARTS, *_CONTROLLER_PARTS, _EXPLAIN, _EXPLAIN_FILE)
#: Nodes and Jobs of eight pods; Jobs and their pods at the restart.
_JOB_RUN, _RESYNC = (1_600, 1_000), (10_000, 5)


class Report(msgspec.Struct):
    """Everything one run found, as written by `--json`."""

    machine: dict[str, str]
    #: Load average over the last minute, at the start.
    load: float
    throughput: list[Throughput] = []
    handover: list[Handover] = []
    idle: list[Idle] = []
    admission: list[AdmissionLatency] = []
    jobs: list[JobsRun] = []
    resync: list[Resync] = []
    explaining: list[Explaining] = []


@app.default
def bench(
    *,
    sizes: Annotated[str, Parameter(help=f"Comma-separated: {', '.join(_SIZES)}.")] = "S1,S5",
    parts: Annotated[str, Parameter(help=f"Comma-separated: {', '.join(_ALL_PARTS)}.")] = ",".join(_PARTS),
    connections: Annotated[int, Parameter(help="Bindings at a time, of the daemon and of the raw client.")] = 32,
    repeats: Annotated[int, Parameter(help="Measurements of throughput and handovers of each kind.")] = 1,
    raw: Annotated[bool, Parameter(help="Measure the raw rate, too.")] = True,
    idle_seconds: Annotated[float, Parameter(help="How long the idle daemon is watched.")] = 60.0,
    scale: Annotated[float, Parameter(help="Factor of the size of the parts jobs, resync and explain.")] = 1.0,
    keep: Annotated[Path | None, Parameter(help="Keep the file of the part explain-file here.")] = None,
    program: Annotated[Path | None, Parameter(help="The program to run instead of this checkout's.")] = None,
    json: Annotated[Path | None, Parameter(help="Write the figures to this file too.")] = None,
) -> int:
    """Throughput with gangs created before and while the daemon runs, handover (S1), and an idle daemon (S5)."""
    console = Console()
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    chosen, wanted = [name.strip() for name in sizes.split(",")], [part.strip() for part in parts.split(",")]
    unknown = [name for name in chosen if name not in _SIZES]
    unknown += [part for part in wanted if part not in _ALL_PARTS]
    if unknown:
        console.print(f"unknown: {', '.join(unknown)}; sizes: {', '.join(_SIZES)}, parts: {', '.join(_ALL_PARTS)}")
        return 2
    report = Report(measure.machine(), os.getloadavg()[0])

    async def run() -> None:
        await _on_own_servers(report, wanted, connections, repeats, scale, program, keep, console)
        for size in chosen if set(wanted) & set(_PARTS) else ():
            nodes, pods = _SIZES[size]

            def say(text: str, size: str = size) -> None:
                console.print(f"[dim]{size}: {text}[/dim]")

            async with Server() as server:
                await prepare(server, nodes)
                for part in ("before", "arriving") * repeats:
                    if part in wanted:
                        found = await throughput(
                            server,
                            nodes,
                            pods,
                            created_before=part == "before",
                            connections=connections,
                            with_raw=raw and part == "before",
                            program=program,
                            say=say,
                        )
                        report.throughput.append(found)
                if "handover" in wanted and size != "S5":
                    report.handover.append(await handover(server, nodes, repeats, program=program, say=say))
                if "idle" in wanted and size != "S1":
                    report.idle.append(await idle(server, nodes, idle_seconds, program=program, say=say))
                if "admission" in wanted and size != "S5":
                    measured = await admission(server, 200, 20.0, program=program, say=say)
                    report.admission.append(measured)

    asyncio.run(run())
    show(console, report)
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 0


async def _on_own_servers(
    report: Report,
    wanted: list[str],
    connections: int,
    repeats: int,
    scale: float,
    program: Path | None,
    keep: Path | None,
    console: Console,
) -> None:
    """The parts with controllers, and `explain`, each on a server of its own or without one."""
    nodes, jobs = _JOB_RUN
    if "jobs" in wanted:
        async with Server() as server:
            await prepare(server, nodes)

            def say(text: str) -> None:
                console.print(f"[dim]jobs: {text}[/dim]")

            made = await jobs_run(
                server, round(jobs * scale), nodes=nodes, connections=connections, program=program, say=say
            )
            report.jobs.append(made)
    if "resync" in wanted:
        async with Server() as server:
            await prepare(server, 1)

            def tell(text: str) -> None:
                console.print(f"[dim]resync: {text}[/dim]")

            report.resync.append(await resync(server, round(_RESYNC[0] * scale), _RESYNC[1], program=program, say=tell))
    nodes, pods = (round(count * scale) for count in _EXPLAINED)

    def note(text: str) -> None:
        console.print(f"[dim]explain: {text}[/dim]")

    if _EXPLAIN in wanted:
        async with Server() as server:
            report.explaining.append(await explaining(server, nodes, pods, repeats, program=program, say=note))
    if _EXPLAIN_FILE in wanted:
        report.explaining.append(await explaining_file(nodes, pods, repeats, program=program, file=keep, say=note))


def show(console: Console, report: Report) -> None:
    """Print every figure."""
    console.print(", ".join(f"{key} {value}" for key, value in report.machine.items()) + f", load {report.load:.1f}")
    if report.throughput:
        console.print(_throughput_table(report.throughput))
        console.print(_cost_table(report.throughput))
    for run in report.throughput:
        for problem in run.problems:
            console.print(f"[red]{_name(run)}: {problem}[/red]")
    for change in report.handover:
        for name, times in (("kill -9", change.killed), ("graceful", change.graceful)):
            shown = ", ".join(f"{seconds:.1f}" for seconds in times)
            console.print(f"Handover at {change.nodes:,} nodes, {name}: first bind after {shown} s")
    for calm in report.idle:
        console.print(
            f"Idle at {calm.nodes:,} nodes, {calm.heartbeats_per_second:.0f} heartbeats/s: {calm.percent:.1f} % of a "
            f"core over {calm.seconds:.0f} s, peak {calm.peak_mib:.0f} MiB"
        )

    for served in report.admission:
        console.print(
            f"Admission at {served.rate} reviews/s: p50 {served.p50:.1f} ms, p99 {served.p99:.1f} ms, longest "
            f"{served.worst:.1f} ms of {served.reviews:,}; {served.cpu_percent:.0f} % of a core, "
            f"{10 * served.cpu_percent / served.rate:.2f} ms of CPU per review, peak {served.peak_mib:.0f} MiB"
        )
    for made in report.jobs:
        _show_jobs(console, made)
    for explained in report.explaining:
        _show_explaining(console, explained)
    for restart in report.resync:
        console.print(
            f"Restart before {restart.jobs:,} Jobs and {restart.pods:,} pods: listed after {restart.listed:.1f} s, "
            f"reconciled after {restart.reconciled:.1f} s, {restart.cpu_seconds:.1f} CPU s (API server and etcd: "
            f"{restart.server_seconds:.1f}), peak {restart.peak_mib:.0f} MiB, writes {restart.writes or 'none'}"
        )


def _show_jobs(console: Console, run: JobsRun) -> None:
    console.print(
        f"{run.jobs:,} Jobs, {run.pods:,} pods: {run.created_rate:,.0f} pods created/s, raw "
        f"{', '.join(f'{raw.rate:,.0f}' for raw in run.raw)}/s, ratio {run.ratio:.2f}, "
        f"bound {run.bound:.2f}"
    )
    for raw in run.raw:
        costs = ", ".join(f"{name} {us / 1e3:.2f}" for name, us in raw.us.items())
        console.print(f"Raw requests, ms of CPU of client and server: {costs}")
    spent = ", ".join(f"{name} {ms:.2f}" for name, ms in run.creation_ms.items())
    console.print(f"ms of CPU per created pod meanwhile: {spent}; together {sum(run.creation_ms.values()):.2f}")
    console.print(f"Requests per pod: {', '.join(f'{name} {count:.2f}' for name, count in run.requests.items())}")
    console.print(
        f"Jobs created after {run.jobs_created:.1f} s, pods from {run.first_created:.1f} to {run.last_created:.1f} s, "
        f"last bound {run.last_bound:.1f} s, last Running {run.last_running:.1f} s, Completed {run.completed:.1f} s"
    )
    console.print(
        f"Writes of the controllers per pod: {run.writes_running:.3f} until the last pod runs, "
        f"{run.writes_completed:.3f} to the end: {', '.join(f'{name} {count:g}' for name, count in run.writes.items())}"
    )
    used = (f"{name} {each.cpu_seconds:.1f} s, {each.peak_mib:.0f} MiB" for name, each in run.used.items())
    console.print(f"CPU and peak memory: {'; '.join(used)}")
    for problem in run.problems:
        console.print(f"[red]{problem}[/red]")


def _show_explaining(console: Console, found: Explaining) -> None:
    lists, size = found.lists, f"{found.snapshot_bytes / 2**20:,.0f} MiB"
    live = (
        f"lists of {lists.size / 2**20:,.0f} MiB: received without decoding in {lists.seconds:.1f} s, "
        f"{lists.cpu_seconds:.2f} CPU s, server {found.lists_server_seconds:.2f}; "
        f"snapshot of {size} in {found.snapshot_cpu_seconds:.2f} CPU s"
    )
    console.print(f"{found.nodes:,} nodes, {found.pods:,} pods, {live if lists.size else f'a file of {size}'}")
    for answer in found.answers:
        console.print(
            f"explain {answer.scene} {'--fix ' if answer.fix else ''}{answer.source}: {answer.cpu_seconds:.2f} CPU s, "
            f"server {answer.server_seconds:.2f} CPU s, {answer.seconds:.1f} s, peak {answer.peak_mib:.0f} MiB"
        )


def _name(run: Throughput) -> str:
    return f"{run.nodes:,} x {run.pods:,}, {'before' if run.created_before else 'arriving'}"


def _throughput_table(runs: list[Throughput]) -> Table:
    table = Table(title="Pods bound, by the API server's own watch")
    table.add_column("nodes x pods")
    for header in (
        "bound/s", "raw/s", "ratio", "by CPU", "first bind", "arrived/s", "wait p50, p99", "written in", "CPU", "peak",
    ):  # fmt: skip
        table.add_column(header, justify="right")
    for run in runs:
        table.add_row(
            _name(run),
            f"{run.rate:,.0f}",
            ", ".join(f"{raw.rate:,.0f}" for raw in run.raw),
            f"{run.ratio:.2f}" if run.raw else "",
            f"{run.cpu_ratio:.2f}" if run.raw else "",
            f"{run.first_bind:.1f} s" if run.created_before else "",
            f"{run.arrival_rate:,.0f}" if run.arrival_rate else "",
            f"{run.latency[0]:.2f}, {run.latency[1]:.2f} s" if run.arrival_rate else "",
            f"{run.written_after:.1f} s",
            f"{run.cpu_seconds:.1f} s",
            f"{run.peak_mib:.0f} MiB",
        )
    return table


def _cost_table(runs: list[Throughput]) -> Table:
    table = Table(title="CPU per pod in microseconds, and API writes per pod")
    table.add_column("nodes x pods")
    for header in ("daemon", "to first bind", "binding", "after", "server", "raw server", "raw client"):
        table.add_column(header, justify="right")
    table.add_column("writes")
    for run in runs:
        per = 1e6 / run.pods
        table.add_row(
            _name(run),
            f"{run.cpu_seconds * per:,.0f}",
            f"{run.cpu_at_first * per:,.0f}",
            f"{(run.cpu_at_last - run.cpu_at_first) * per:,.0f}",
            f"{(run.cpu_seconds - run.cpu_at_last) * per:,.0f}",
            f"{run.server_us:,.0f}",
            ", ".join(f"{raw.server_us:,.0f}" for raw in run.raw),
            ", ".join(f"{raw.client_us:,.0f}" for raw in run.raw),
            ", ".join(f"{name} {count:g}" for name, count in run.writes_per_pod.items()),
        )
    return table


if __name__ == "__main__":
    app()
