"""`capcard-sched explain`: reasons why a job or pod is pending."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from cyclopts import Parameter

from capcard_sched.cli.cluster_source import Source, load_cluster
from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.cli.simulate import BadInputError

if TYPE_CHECKING:
    from capcard_sched.framework.core import Core
    from capcard_sched.model.job import Job

#: Names suggested for an unknown one.
_SUGGESTED: Final = 8


def explain(
    name: str,
    /,
    *,
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"], metavar="NAME")] = "default",
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """Explain why a job or pod is pending: the plugin and hook that rejected it, with numbers per card and resource.

    With -f, runs the manifests through the simulator and explains the final state. Without -f, reads a live cluster and
    runs one session over it in memory; writes nothing.

    Exit status: 0 when NAME exists; 2 on bad input or an unknown name; 1 on an internal error.

    Args:
        name: A PodGroup, Job, Deployment or Pod; also `deployment/chat`, `ml/chat` or `ml/deployment/chat`.
        namespace: Namespace of NAME.
        output: Output format.
        source: Flags that select the cluster.
    """
    try:
        found = load_cluster(source)
    except BadInputError as error:
        return usage_error(str(error))
    from capcard_sched.framework.explain import explain_job
    from capcard_sched.model.workload import workload_of

    job = _find(found.core, namespace, name)
    if job is None and "/" in name:  # NAMESPACE/NAME, as in our output
        first, _, rest = name.partition("/")
        job = _find(found.core, first, rest)
    if job is None:
        when = "at the end of the simulation" if source.file else f"at {found.where}"
        return usage_error(
            f"{namespace}/{name}: no such job or pod {when}; {_suggestions(found.core, namespace, name)}"
        )
    plain = name.rpartition("/")[2]
    pod = plain if any(task.name == plain for task in job.tasks.values()) else ""
    session = found.core.last_session
    if not source.file and session is not None:
        bound = len({bind.uid for bind in session.binds} & job.tasks.keys())
        if bound:
            print(f"note: a session over this state would bind {bound} of its pods", file=sys.stderr)
    explanation = msgspec.structs.replace(
        explain_job(found.core, job, pod=pod, now=found.now),
        eviction_events=() if job.implicit else found.eviction_events(job),
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
    """The job of that name; if a workload has several, a pending one, else the newest."""
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


def _suggestions(core: Core, namespace: str, name: str) -> str:
    """Existing names of the namespace, the most similar first."""
    from difflib import get_close_matches

    from capcard_sched.model.workload import workload_of

    jobs = core.state.jobs.values()
    here = sorted({workload_of(job) or job.name for job in jobs if job.namespace == namespace})
    if not here:
        others = sorted({job.namespace for job in jobs})
        return f"namespace {namespace} has no jobs; namespaces with jobs: {', '.join(others) or 'none'}"
    similar = get_close_matches(name, here, n=_SUGGESTED)
    shown = [*similar, *(each for each in here if each not in similar)][:_SUGGESTED]
    more = f" and {len(here) - len(shown)} more" if len(here) > len(shown) else ""
    return f"namespace {namespace} has {', '.join(shown)}{more}"
