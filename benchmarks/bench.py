"""`python -m benchmarks.bench`: measures the core on synthetic workloads. Prints figures only.

Everything runs in this process, without a cluster: the state is filled from JSON as by a watch, then one session places
all pods (W1 to W3), preempts and reclaims (P1, R1, T1), places pods whose node scores depend on other nodes or on
more than amounts (A1, Z1, N1, U1), pods that share GPUs (V1, V2, V3), pods with ResourceClaims (D1, D2, D3),
or one pod beside a backlog (B1, B2). With the openb trace, pods arrive until they request 130 % of its GPUs (F1 to F4).
Times are medians over fresh cores, wall-clock
by default; `CPU` is the CPU time of this process, independent of other work on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from benchmarks import measure
from benchmarks.backlog import BACKLOGS, Backlog, measure_backlog
from benchmarks.claim_objects import CLAIMED
from benchmarks.claims import PLAIN_PODS as PLAIN_CLAIMS
from benchmarks.claims import ClaimRun, measure_claims
from benchmarks.eviction_scenes import SCENES
from benchmarks.evictions import Taking, measure_taking
from benchmarks.neighbours import NEIGHBOURS, Placing, measure_placing
from benchmarks.saturation import SCENES as SATURATED
from benchmarks.saturation import Saturation, SaturationConf, measure_all, saturation_table, traces_in
from benchmarks.shared_cards import PLAIN_PODS, SHARED, Sharing, measure_sharing
from benchmarks.workloads import SIZES, WORKLOADS

app = App(name="bench", help="Measure the scheduler core on synthetic workloads.")

_Scene = TypeVar("_Scene", bound=Taking | Placing | Sharing | ClaimRun)

#: Columns when the output is not a terminal.
_FILE_WIDTH = 150
#: Nodes and pods of the plain loop, whose time per pod grows with the nodes: a small size, and few pods on S5's nodes.
_PLAIN, _PLAIN_QUICK = ((500, 2_000), (5_000, 400)), ((100, 500),)
#: Workload, fixed size and series of the growth runs.
_GROWTH = ("W3", (2_000, (2_500, 5_000, 10_000, 20_000)), (5_000, (500, 1_000, 2_000, 4_000)))
_GROWTH_QUICK = ("W3", (400, (500, 1_000, 2_000, 4_000)), (1_000, (100, 200, 400, 800)))

#: Workloads on free nodes, scenes of preemption, scenes with dependent scores, shared GPUs, claims, and a backlog.
_ALL = (*WORKLOADS, *SCENES, *NEIGHBOURS, *SHARED, *CLAIMED, *BACKLOGS, *SATURATED)


class Report(msgspec.Struct):
    """Everything one run of the benchmark found, as written by `--json`."""

    machine: dict[str, str]
    runs: list[measure.Run] = []
    growth: list[measure.Growth] = []
    #: Workload to bytes of resident memory per 10,000 pods.
    memory: dict[str, float] = {}
    #: The same once they run.
    running_memory: dict[str, float] = {}
    comparisons: list[measure.Comparison] = []
    takings: list[Taking] = []
    placings: list[Placing] = []
    sharings: list[Sharing] = []
    claims: list[ClaimRun] = []
    backlogs: list[Backlog] = []
    saturations: list[Saturation] = []


@app.default
def bench(
    *,
    sizes: Annotated[str, Parameter(help=f"Comma-separated: {', '.join(SIZES)}.")] = "S1,S5",
    workloads: Annotated[str, Parameter(help=f"Comma-separated: {', '.join(_ALL)}.")] = ",".join(_ALL),
    json: Annotated[Path | None, Parameter(help="Write the figures to this file too.")] = None,
    baseline: Annotated[Path | None, Parameter(help="Compare with an earlier file of --json.")] = None,
    repeats: Annotated[int, Parameter(help="Fresh cores per figure.")] = 3,
    openb: Annotated[Path | None, Parameter(help="Folder of the openb trace, for F1 to F4.")] = None,
    quick: Annotated[bool, Parameter(help="Small sizes, one repeat: does it run at all?")] = False,
) -> int:
    """Measure sessions, growth, memory, the ratio to a plain loop over pods and nodes, preemption and reclaim.

    Growth, memory and the plain loop are measured for W1 to W3 only.
    """
    console = Console()
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    chosen = [name.strip() for name in workloads.split(",")]
    size_names = [name.strip() for name in sizes.split(",")]
    unknown = [name for name in chosen if name not in _ALL] + [name for name in size_names if name not in SIZES]
    if unknown or repeats < 1:
        wrong = f"unknown: {', '.join(unknown)}" if unknown else "--repeats must be at least 1"
        console.print(f"{wrong}; sizes are {', '.join(SIZES)}, workloads {', '.join(_ALL)}")
        return 2
    saturated = [name for name in chosen if name in SATURATED and openb is not None]
    chosen = [name for name in chosen if name not in SATURATED]
    try:
        _ = None if openb is None else traces_in(openb)
    except FileNotFoundError as error:
        console.print(f"--openb: {error}")
        return 2
    points = {"quick": (100, 1_000)} if quick else {name: SIZES[name] for name in size_names}
    repeats = 1 if quick else repeats
    report = Report(measure.machine())
    with console.status("measuring") as status:
        for size, (nodes, pods) in points.items():
            for name in chosen:
                status.update(f"{name} at {nodes:,} nodes, {pods:,} pods")
                _measure(report, name, size, nodes, pods, repeats)
        placing = [name for name in chosen if name in WORKLOADS]
        if placing:
            status.update("the plain loop")
            for nodes, pods in _PLAIN_QUICK if quick else _PLAIN:
                report.comparisons += [measure.compare(name, nodes, pods) for name in placing]
            status.update("growth")
            name, (fixed_nodes, pods_series), (fixed_pods, nodes_series) = _GROWTH_QUICK if quick else _GROWTH
            report.growth = [
                measure.growth_in_pods(name, fixed_nodes, pods_series, repeats),
                measure.growth_in_nodes(name, fixed_pods, nodes_series, repeats),
            ]
            status.update("memory")
            nodes, pods = next(iter(points.values()))
            residents = {name: measure.memory_per_10k_pods(name, nodes, pods) for name in placing}
            report.memory = {name: each.bytes for name, each in residents.items()}
            report.running_memory = {name: each.running for name, each in residents.items()}
        if openb is not None and saturated:
            status.update("a saturated cluster")
            report.saturations = measure_all(openb, saturated, [SaturationConf("shipped")], repeats)
    old = msgspec.json.decode(baseline.read_bytes(), type=Report) if baseline is not None else None
    show(console, report, old)
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 0


def _measure(report: Report, name: str, size: str, nodes: int, pods: int, repeats: int) -> None:
    """Adds the figures of one workload or scene to a report. The scenes decide on their pods themselves."""
    if name in SCENES:
        report.takings.append(measure_taking(name, size, nodes, pods, repeats))
    elif name in BACKLOGS:
        report.backlogs.append(measure_backlog(name, size, nodes, repeats))
    elif name in NEIGHBOURS:
        report.placings.append(measure_placing(name, size, nodes, repeats))
    elif name in SHARED:
        report.sharings.append(measure_sharing(name, size, nodes, repeats))
    elif name in CLAIMED:
        report.claims.append(measure_claims(name, size, nodes, repeats))
    else:
        report.runs.append(measure.measure(name, size, nodes, pods, repeats))


# --- tables ---------------------------------------------------------------------------------------------------------


def show(console: Console, report: Report, old: Report | None) -> None:
    """Print every figure, with the ratio to an earlier report where there is one."""
    console.print(", ".join(f"{key} {value}" for key, value in report.machine.items()))
    if report.runs:
        console.print(_runs_table(report, old))
        console.print(_comparison_table(report))
    if report.takings:
        console.print(_taking_times(report, old))
        console.print(_taking_victims(report))
    if report.placings:
        console.print(_placing_table(report, old))
    if report.sharings:
        console.print(_sharing_table(report, old))
    if report.claims:
        console.print(_claims_table(report, old))
    if report.backlogs:
        console.print(_backlog_table(report, old))
    if report.saturations:
        console.print(saturation_table(report.saturations))
    else:
        console.print("F1 to F4: not measured; --openb names the folder of the openb trace")
    for growth in report.growth:
        series = ", ".join(f"{size:,}: {_time(seconds)}" for size, seconds in growth.points)
        console.print(f"Growth in {growth.axis} at {growth.fixed} (W3): exponent {growth.exponent:.2f} (CPU {series})")
    for name, amount in report.memory.items():
        console.print(
            f"Memory, {name}: {amount / 2**20:.1f} MiB per 10,000 pods and their PodGroups "
            f"(growth of the resident set of a fresh process while it takes them in), "
            f"{report.running_memory[name] / 2**20:.1f} MiB once they run"
        )


def _runs_table(report: Report, old: Report | None) -> Table:
    table = Table(title="One session places everything (median, fastest to slowest)")
    for header in ("workload", "size", "placed", "session", "spread", "tasks/s", "tasks/CPU s"):
        table.add_column(header, justify="left" if header == "workload" else "right")
    if old is not None:
        table.add_column("vs. before", justify="right")
    for header in ("deltas/s", "all running", "no news", "one pod"):
        table.add_column(header, justify="right")
    before: dict[tuple[str, str], Any] = {(run.workload, run.size): run for run in old.runs} if old is not None else {}
    for run in report.runs:
        cells = [
            run.workload,
            f"{run.size} ({run.nodes:,} x {run.pods:,})",
            f"{run.placed:,}",
            _time(run.session_seconds),
            f"{_time(run.session_spread[0])} to {_time(run.session_spread[1])}",
            f"{run.tasks_per_second:,.0f}",
            f"{run.tasks_per_cpu_second:,.0f}",
        ]
        if old is not None:
            known = before.get((run.workload, run.size))
            cells.append(f"{run.tasks_per_cpu_second / known.tasks_per_cpu_second:.2f}x" if known is not None else "")
        cells += [
            f"{run.deltas_per_second:,.0f}",
            _time(run.feedback_seconds),
            _time(run.steady_seconds),
            _time(run.change_seconds),
        ]
        table.add_row(*cells)
    return table


def _comparison_table(report: Report) -> Table:
    table = Table(title="Engine and plain object-per-pair loop")
    table.add_column("workload")
    for header in ("size", "plain tasks/CPU s", "engine tasks/CPU s", "ratio", "ratio to S5", "same node"):
        table.add_column(header, justify="right")
    large = {run.workload: run for run in report.runs if run.size == "S5"}
    for item in report.comparisons:
        run = large.get(item.workload)
        table.add_row(
            item.workload,
            f"{item.nodes:,} x {item.pods:,}",
            f"{item.plain_tasks_per_second:,.0f}",
            f"{item.engine_tasks_per_second:,.0f}",
            f"{item.ratio:,.0f}x",
            f"{run.tasks_per_cpu_second / item.plain_tasks_per_second:,.0f}x" if run is not None else "not run",
            f"{item.agreed:,} of {item.engine_placed:,}",
        )
    return table


def _placing_table(report: Report, old: Report | None) -> Table:
    table = Table(title="Nodes that differ by their neighbours: one session places everything")
    _fill(
        table,
        ("placed", "session", "CPU", "tasks/CPU s", "CPU per task"),
        report.placings,
        None if old is None else old.placings,
        lambda run: (
            f"{run.placed:,}",
            _time(run.session_seconds),
            _time(run.session_cpu_seconds),
            f"{run.tasks_per_cpu_second:,.0f}",
            _time(run.session_cpu_seconds / run.placed),
        ),
    )
    return table


def _sharing_table(report: Report, old: Report | None) -> Table:
    table = Table(title="Pods that share GPUs: one session places everything; cards before any pod")
    _fill(
        table,
        (
            "placed",
            "session",
            "CPU",
            "tasks/CPU s",
            "one pod more",
            "MiB of cards",
            "plain loop per pod",
            "ratio",
            "same node",
        ),
        report.sharings,
        None if old is None else old.sharings,
        lambda run: (
            f"{run.placed:,}",
            _time(run.session_seconds),
            _time(run.session_cpu_seconds),
            f"{run.tasks_per_cpu_second:,.0f}",
            _time(run.change_cpu_seconds),
            f"{run.card_bytes / 2**20:.1f}",
            _time(run.plain_seconds_per_pod),
            f"{run.ratio:,.0f}x",
            f"{run.agreed} of {PLAIN_PODS}",
        ),
    )
    return table


def _claims_table(report: Report, old: Report | None) -> Table:
    table = Table(
        title="Pods with ResourceClaims: one session allocates all devices",
        caption="MiB: resident memory of 10,000 allocated claims; devices: pods to which the plain loop gives the same",
    )
    _fill(
        table,
        ("placed", "session", "CPU", "tasks/CPU s", "one pod more", "MiB", "plain loop per pod", "ratio", "devices"),
        report.claims,
        None if old is None else old.claims,
        lambda run: (
            f"{run.placed:,}",
            _time(run.session_seconds),
            _time(run.session_cpu_seconds),
            f"{run.tasks_per_cpu_second:,.0f}",
            _time(run.change_cpu_seconds),
            f"{run.claim_bytes / 2**20:.1f}",
            _time(run.plain_seconds_per_pod),
            f"{run.ratio:,.0f}x",
            f"{run.agreed} of {PLAIN_CLAIMS}",
        ),
    )
    return table


def _backlog_table(report: Report, old: Report | None) -> Table:
    table = Table(
        title="Small changes beside gangs that wait without hope",
        caption="CPU time; at S5 one new pod is to be 5 ms or less, one that ends, also when it starts a job, 20 ms, "
        "explain 2 s, with --fix 10 s",
    )
    for header in (
        "scene",
        "size",
        "gangs",
        "first session",
        "one new pod",
        "one that ends",
        "starts a job",
        "explain",
        "--fix",
    ):
        table.add_column(header, justify="left" if header == "scene" else "right")
    if old is not None:
        table.add_column("vs. before", justify="right")
    before = {(run.scene, run.size): run.new_pod_seconds for run in old.backlogs} if old is not None else {}
    for run in report.backlogs:
        small = (run.first_seconds, run.new_pod_seconds, run.ended_pod_seconds, run.started_job_seconds)
        times = (*small, run.explain_seconds, run.fix_seconds)
        row = [run.scene, f"{run.size} ({run.nodes:,})", f"{run.gangs:,}", *map(_time, times)]
        if old is not None:
            known = before.get((run.scene, run.size))
            row.append(f"{known / run.new_pod_seconds:.2f}x" if known is not None else "")
        table.add_row(*row)
    return table


def _taking_times(report: Report, old: Report | None) -> Table:
    table = Table(
        title="Preemption and reclaim on a full cluster: one session selects victims for all preemptors",
        caption="s/1,000: CPU seconds of the session per 1,000 preemptors, target 1; longest later: of the sessions "
        "after it",
    )
    _fill(
        table,
        ("preemptors", "session", "CPU", "action CPU", "s/1,000", "longest later CPU"),
        report.takings,
        None if old is None else old.takings,
        lambda run: (
            f"{run.takers:,}",
            _time(run.session_seconds),
            _time(run.session_cpu_seconds),
            _time(run.action_cpu_seconds),
            f"{run.seconds_per_thousand:.2f}",
            _time(run.later_cpu_seconds),
        ),
    )
    return table


def _fill(
    table: Table,
    headers: Sequence[str],
    runs: Sequence[_Scene],
    old: Sequence[_Scene] | None,
    cells: Callable[[_Scene], Sequence[str]],
) -> None:
    """A row per scene and size, at the end how many times less its session computed than in an earlier report."""
    table.add_column("scene")
    for header in ("size", *headers, *(("vs. before",) if old is not None else ())):
        table.add_column(header, justify="right")
    before = {(run.scene, run.size): run.session_cpu_seconds for run in old or ()}
    for run in runs:
        row = [run.scene, f"{run.size} ({run.nodes:,} x {run.pods:,})", *cells(run)]
        if old is not None:
            known = before.get((run.scene, run.size))
            row.append(f"{known / run.session_cpu_seconds:.2f}x" if known is not None else "")
        table.add_row(*row)


def _taking_victims(report: Report) -> Table:
    table = Table(
        title="Victims",
        caption="victims: of that session, evictions: until nothing changes; freed/card: cards of victims per "
        "reassigned card; wasted: evictions for a pod that was not bound afterwards, target 0",
    )
    table.add_column("scene")
    for header in (
        "size", "preemptors", "requested", "bound", "cards", "victims", "of groups", "evictions", "evictions/card",
        "freed/card", "wasted",
    ):  # fmt: skip
        table.add_column(header, justify="right")
    for run in report.takings:
        table.add_row(
            run.scene,
            run.size,
            f"{run.takers:,}",
            f"{run.asked:,.0f} cards",
            f"{run.bound:,}",
            f"{run.cards:,.0f}",
            f"{run.victims:,}",
            f"{run.groups_hit:,}",
            f"{run.evictions:,}",
            f"{run.evictions_per_card:.2f}",
            f"{run.freed_per_card:.2f}",
            f"{run.in_vain:,}",
        )
    return table


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


if __name__ == "__main__":
    app()
