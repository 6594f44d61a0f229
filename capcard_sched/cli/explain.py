"""`capcard-sched explain`: why a job or pod of a simulated cluster waits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from capcard_sched.cli.failures import Watched
from capcard_sched.cli.simulate import BadInputError, build_core, options_of
from capcard_sched.cli.status import Files, refuse
from capcard_sched.simulation.admission import ROOT_QUEUE
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.scenario import InputError, load_scenario


def explain(
    name: str,
    /,
    *,
    file: Files = (),
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "default",
    scheduler_conf: Path | None = None,
    until: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    schedule_period: Annotated[str, Parameter(allow_leading_hyphen=True)] = "1s",
    scheduler_name: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    default_queue: str = "default",
    plugins_dir: Path | None = None,
) -> int:
    """Say why a job or pod waits: which hook of which plugin refused it, with figures, per card.

    The manifests are simulated first, as `simulate` does; the answer is for the cluster as it stands at the end.

    Exit status: 0 with an answer, whatever it says; 2 on bad input or an unknown name; 1 on an internal error.

    Args:
        name: A PodGroup, Job, Deployment or Pod.
        file: File, folder or `-` for standard input, YAML or JSON. Repeatable.
        namespace: Namespace of the name.
        scheduler_conf: The scheduler-conf to use; the built-in default when absent.
        until: Explain the cluster at this virtual time, such as 10m; when absent, when nothing can change any more.
        output: What to print: text for people, or the record behind it.
        schedule_period: Virtual time between sessions.
        scheduler_name: Pods of this `schedulerName` are ours. Repeatable; capcard-sched and volcano when absent.
        default_queue: Queue of PodGroups that name none; created if it does not exist.
        plugins_dir: Folder with further plugins and actions.
    """
    try:
        options = options_of(until, schedule_period, scheduler_name, default_queue)
        if not file:
            raise BadInputError("-f is required: a file, a folder or - for standard input")
        scenario = load_scenario(file, existing_queues=(ROOT_QUEUE, default_queue))
        core = build_core(scheduler_conf, plugins_dir, options)
    except (BadInputError, InputError) as error:
        return refuse(str(error))
    from capcard_sched.framework.explain import explain_job, find_job
    from capcard_sched.simulation.run import simulate as run

    watched = Watched(core)
    try:
        outcome = run(scenario, watched, options)
    except InputError as error:
        return refuse(str(error))
    for warning in outcome.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    job = find_job(core, namespace, name)
    if job is None:
        known = ", ".join(sorted(core.state.jobs)) or "none"
        return refuse(f"{namespace}/{name}: no such job or pod at the end of the simulation; PodGroups there: {known}")
    pod = name if any(task.name == name for task in job.tasks.values()) else ""
    explanation = explain_job(core, job, pod=pod, now=EPOCH + outcome.end / SECOND)
    if output == "json":
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode() + "\n")
    else:
        from rich.console import Console

        from capcard_sched.reports.explain import render

        Console(soft_wrap=not sys.stdout.isatty()).print(render(explanation))
    return watched.report()
