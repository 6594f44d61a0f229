"""`capcard-sched trace`: converts cluster traces to scenarios for `simulate`."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.cli.output import put_error
from capcard_sched.model.quoting import plural
from capcard_sched_trace.openb import DEFAULT_QUOTA_SHARE, TraceScenario, make_scenario
from capcard_sched_trace.openb_rows import TraceError, TracePod, read_nodes, read_pods

app = App(name="trace", help="Convert cluster traces to scenarios for `simulate`.")


@app.command
def openb(
    *,
    nodes: Path,
    pods: Path,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    sharing: Literal["whole", "vgpu"] = "whole",
    quota_share: float = DEFAULT_QUOTA_SHARE,
    report: Annotated[Path | None, Parameter(show_default=False, metavar="FILE")] = None,
    scheduler_conf: Annotated[Path | None, Parameter(show_default=False)] = None,
) -> int:
    """Convert an openb trace (two CSV files) to one scenario file.

    Each machine becomes a Node, each class of service a Queue with card quotas, each pod a Pod with the creation time
    and duration of the trace. Run it with `capcard-sched simulate -f FILE`.

    Args:
        nodes: Node list, CSV with the columns sn, cpu_milli, memory_mib, gpu, model.
        pods: Pod list, CSV with the columns name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, qos,
            pod_phase, creation_time, deletion_time, scheduled_time.
        output: Scenario file to write: JSON if the name ends in .json, else YAML.
        sharing: Cards of a pod that requests a fraction of one; `whole`: one card; `vgpu`: its part of a card as vGPU
            cores and memory percentage, on nodes that register their cards. Needs a scheduler-conf with `deviceshare`.
        quota_share: Quota of a class per card model: the size of its largest pod plus this share of the rest of its
            unconstrained peak. Below 1, bursts are queued.
        report: Also simulate the scenario, and write the page of the end, with cards in use over time, to this HTML
            file, as `simulate --report` does.
        scheduler_conf: Scheduler-conf file of the simulation of --report. Default: the built-in one.
    """
    if scheduler_conf is not None and report is None:
        return usage_error("--scheduler-conf: needs --report, which simulates the scenario")
    try:
        trace_pods = read_pods(pods)
        scenario = make_scenario(read_nodes(nodes), trace_pods, quota_share, sharing)
    except TraceError as error:
        return usage_error(str(error))
    except ValueError as error:
        return usage_error(f"--quota-share: {error}")
    try:
        with output.open("wb") as file:
            (scenario.write_json if output.suffix == ".json" else scenario.write_yaml)(file)
    except OSError as error:
        return usage_error(f"{output}: {error.strerror}")
    for line in _summary(scenario, trace_pods, output, sharing).splitlines():
        put_error(line)
    if report is None:
        return 0
    from capcard_sched.cli.simulate import simulate

    return simulate(file=(str(output),), scheduler_conf=scheduler_conf, report=report)


def _summary(scenario: TraceScenario, pods: list[TracePod], output: Path, sharing: str) -> str:
    kinds = Counter(str(manifest["kind"]) for manifest in scenario.manifests)
    shared = sum(1 for pod in pods if pod.cards and pod.share_milli < 1000)
    return (
        f"{output}: {plural(kinds['Node'], 'node')}, {plural(kinds['Queue'], 'queue')}, "
        f"{plural(len(scenario.operations), 'pod')} "
        f"({sum(1 for pod in pods if pod.cards)} with cards; {shared} request part of a card: --sharing {sharing})"
    )
