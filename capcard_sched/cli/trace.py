"""`capcard-sched trace`: recorded clusters as scenarios for `simulate`."""

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from capcard_sched.cli.exit_codes import BAD_INPUT
from capcard_sched.simulation.openb import DEFAULT_QUOTA_SHARE, TraceScenario, make_scenario
from capcard_sched.simulation.openb_rows import TraceError, TracePod, read_nodes, read_pods

app = App(name="trace", help="Turn recorded cluster traces into scenarios for `simulate`.")


@app.command
def openb(
    *,
    nodes: Path,
    pods: Path,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    sharing: Literal["whole"] = "whole",
    quota_share: float = DEFAULT_QUOTA_SHARE,
) -> int:
    """Turn an openb trace (two CSV files) into one scenario file.

    Every machine becomes a Node, every class of service a Queue with card quotas, every pod a Pod created at its time
    and running as long as it ran in the trace. Run it with `capcard-sched simulate -f FILE`.

    Args:
        nodes: Node list, CSV with the columns sn, cpu_milli, memory_mib, gpu, model.
        pods: Pod list, CSV with the columns name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, qos,
            pod_phase, creation_time, deletion_time, scheduled_time.
        output: Scenario to write: JSON when the name ends in .json, else YAML.
        sharing: What a pod gets that asked for a part of a card; `whole`: a card of its own.
        quota_share: Quota of a class per card model: its largest pod, and this share of what its peak would be above
            that if nobody ever waited. Below 1 bursts wait.
    """
    try:
        trace_pods = read_pods(pods)
        scenario = make_scenario(read_nodes(nodes), trace_pods, quota_share)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except ValueError as error:
        print(f"error: --quota-share: {error}", file=sys.stderr)
        return BAD_INPUT
    try:
        _write(scenario, output)
    except OSError as error:
        print(f"error: {output}: {error.strerror}", file=sys.stderr)
        return BAD_INPUT
    print(_summary(scenario, trace_pods, output, sharing), file=sys.stderr)
    return 0


def _write(scenario: TraceScenario, output: Path) -> None:
    with output.open("wb") as file:
        if output.suffix == ".json":
            scenario.write_json(file)
        else:
            scenario.write_yaml(file)


def _summary(scenario: TraceScenario, pods: list[TracePod], output: Path, sharing: str) -> str:
    kinds = Counter(str(manifest["kind"]) for manifest in scenario.manifests)
    shared = sum(1 for pod in pods if pod.cards and pod.share_milli < 1000)
    return (
        f"{output}: {kinds['Node']} nodes, {kinds['Queue']} queues, {len(scenario.operations)} pods "
        f"({sum(1 for pod in pods if pod.cards)} with cards; {shared} asked for a part of a card: --sharing {sharing})"
    )
