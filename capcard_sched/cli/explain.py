"""`capcard-sched explain`: why a job or pod waits."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from capcard_sched.cli.scene import Source, scene
from capcard_sched.cli.simulate import BadInputError
from capcard_sched.cli.status import refuse


def explain(
    name: str,
    /,
    *,
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "default",
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """Say why a job or pod waits: which hook of which plugin refused it, with figures, per card.

    With -f the manifests are simulated first, as `simulate` does, and the answer is for the cluster as it stands at the
    end. Without, a live cluster is read and one session is held over it here; nothing is written to it.

    Exit status: 0 with an answer, whatever it says; 2 on bad input or an unknown name; 1 on an internal error.

    Args:
        name: A PodGroup, Job, Deployment or Pod.
        namespace: Namespace of the name.
        output: What to print: text for people, or the record behind it.
        source: The cluster, and how to look at it.
    """
    try:
        found = scene(source)
    except BadInputError as error:
        return refuse(str(error))
    from capcard_sched.framework.explain import explain_job, find_job

    job = find_job(found.core, namespace, name)
    if job is None:
        known = ", ".join(sorted(found.core.state.jobs)) or "none"
        when = " at the end of the simulation" if source.file else f" at {found.where}"
        return refuse(f"{namespace}/{name}: no such job or pod{when}; PodGroups there: {known}")
    pod = name if any(task.name == name for task in job.tasks.values()) else ""
    session = found.core.last_session
    if not source.file and session is not None:
        bound = len({bind.uid for bind in session.binds} & job.tasks.keys())
        if bound:
            print(f"note: a session held here would bind {bound} of its pods now", file=sys.stderr)
    explanation = explain_job(found.core, job, pod=pod, now=found.now)
    if output == "json":
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode() + "\n")
    else:
        from rich.console import Console

        from capcard_sched.reports.explain import render

        Console(soft_wrap=not sys.stdout.isatty()).print(render(explanation))
    return found.report()
