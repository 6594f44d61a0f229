"""`capcard-sched explain`: why a job or pod waits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from cyclopts import Parameter

from capcard_sched.cli.cluster_source import Source, scene
from capcard_sched.cli.exit_codes import refuse
from capcard_sched.cli.simulate import BadInputError

if TYPE_CHECKING:
    from capcard_sched.framework.core import Core
    from capcard_sched.model.job import Job

#: How many names are offered in place of one that is not there.
_OFFERED: Final = 8


def explain(
    name: str,
    /,
    *,
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"], metavar="NAME")] = "default",
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """Say why a job or pod waits: which hook of which plugin refused it, with figures, per card.

    With -f the manifests are simulated first, as `simulate` does, and the answer is for the cluster as it stands at the
    end. Without, a live cluster is read and one session is held over it here; nothing is written to it.

    Exit status: 0 with an answer, whatever it says; 2 on bad input or an unknown name; 1 on an internal error.

    Args:
        name: A PodGroup, Job, Deployment or Pod; `deployment/chat`, `ml/chat` and `ml/deployment/chat` are understood
            too.
        namespace: Namespace of the name.
        output: What to print: text for people, or the record behind it.
        source: The cluster, and how to look at it.
    """
    try:
        found = scene(source)
    except BadInputError as error:
        return refuse(str(error))
    from capcard_sched.framework.explain import explain_job
    from capcard_sched.model.workload import workload_of

    job = _find(found.core, namespace, name)
    if job is None and "/" in name:  # as everything is named where we tell of it
        first, _, rest = name.partition("/")
        job = _find(found.core, first, rest)
    if job is None:
        when = "at the end of the simulation" if source.file else f"at {found.where}"
        return refuse(f"{namespace}/{name}: no such job or pod {when}; {_offer(found.core, namespace, name)}")
    plain = name.rpartition("/")[2]
    pod = plain if any(task.name == plain for task in job.tasks.values()) else ""
    session = found.core.last_session
    if not source.file and session is not None:
        bound = len({bind.uid for bind in session.binds} & job.tasks.keys())
        if bound:
            print(f"note: a session held here would bind {bound} of its pods now", file=sys.stderr)
    explanation = msgspec.structs.replace(
        explain_job(found.core, job, pod=pod, now=found.now), told=() if job.implicit else found.told(job)
    )
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode() + "\n")
    else:
        from rich.console import Console

        from capcard_sched.reports.explain import render

        workload = workload_of(job)
        if workload:
            explanation = msgspec.structs.replace(explanation, name=f"{workload} ({job.name})")
        Console(soft_wrap=not sys.stdout.isatty()).print(render(explanation))
    return found.report()


def _find(core: Core, namespace: str, name: str) -> Job | None:
    """The job of that name; of several of one workload the one that waits, else the newest."""
    from capcard_sched.framework.explain import find_job
    from capcard_sched.model.workload import workload_of

    kind, _, plain = name.rpartition("/")
    exact = core.state.jobs.get(f"{namespace}/{plain}")
    if exact is not None and not kind:
        return exact
    named = []
    for job in core.state.jobs.values():
        own_kind, _, own_name = workload_of(job).partition("/")
        if job.namespace == namespace and own_name == plain and kind in ("", own_kind):
            named.append(job)
    if named:
        return max(named, key=lambda job: (bool(job.pending), job.created, job.key))
    return find_job(core, namespace, plain)


def _offer(core: Core, namespace: str, name: str) -> str:
    """What there is instead, the most similar names first."""
    from difflib import get_close_matches

    from capcard_sched.model.workload import workload_of

    jobs = core.state.jobs.values()
    here = sorted({workload_of(job) or job.name for job in jobs if job.namespace == namespace})
    if not here:
        others = sorted({job.namespace for job in jobs})
        return f"there are none in namespace {namespace}; namespaces with some: {', '.join(others) or 'none'}"
    similar = get_close_matches(name, here, n=_OFFERED)
    shown = [*similar, *(each for each in here if each not in similar)][:_OFFERED]
    more = f" and {len(here) - len(shown)} more" if len(here) > len(shown) else ""
    return f"in namespace {namespace} there are {', '.join(shown)}{more}"
