"""`capcard-sched explain`: reasons why a job or pod is pending."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from cyclopts import Parameter

from capcard_sched.cli.exit_codes import BadInputError, usage_error
from capcard_sched.cli.expected_start import HistoryFlag, LedgerFlag, check_history, explain_start
from capcard_sched.cli.lists import print_document
from capcard_sched.cli.sources.load import load_cluster
from capcard_sched.cli.sources.source import Source
from capcard_sched.reports.progress import shown_progress

if TYPE_CHECKING:
    from capcard_sched.framework.core import Core

#: Names suggested for an unknown one.
_SUGGESTED: Final = 8


def explain(
    name: str,
    /,
    *,
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"], show_default=False, metavar="NAME")] = "",
    expected_start: Annotated[bool | None, Parameter(show_default=False)] = None,
    history: HistoryFlag = (),
    ledger: LedgerFlag = "",
    fix: Annotated[bool, Parameter(negative=())] = False,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """Explain why a job or pod is pending: its stage, the limits of its queue, and free cards per node.

    With -f, runs the manifests through the simulator and explains the final state; with --recording, explains the last
    state of a recording. Without either, reads a live cluster and runs one session over it in memory; writes nothing.

    Exit status: 0 when NAME exists; 2 on bad input or an unknown name; 1 on an internal error.

    Args:
        name: A PodGroup, Job, Deployment or Pod; also `deployment/chat`, `ml/chat` or `ml/deployment/chat`.
        namespace: Namespace of NAME. Default: that of the kubeconfig's context, else `default`.
        expected_start: Estimate when a waiting job starts (docs/expected-start.md). Default: in clusters of up to
            200 pods and nodes.
        history: Recording of `run --record` with durations of like jobs. Repeatable.
        ledger: Database with durations of like jobs: a file, or postgresql://USER@HOST:PORT/NAME (docs/ledger.md).
        fix: Also search the smallest changes that start it, each proven on a copy; changes nothing.
        output: Output format; JSON follows docs/diagnosis.schema.json.
        source: Flags that select the cluster.
    """
    from capcard_sched.framework.explain.diagnose import namesakes
    from capcard_sched.insight.diagnosis.explain import explain as diagnose
    from capcard_sched.insight.diagnosis.explain import find

    try:
        check_history(history, ledger, source.recording)
        cluster = load_cluster(source, namespace=namespace)
        namespace = namespace or cluster.given.namespace
        subject = find(cluster.core, cluster.objects, namespace, name)
        if subject is None:
            text = f"{namespace}/{name}: no such job or pod {cluster.given.when}"
            return usage_error(f"{text}; {_suggestions(cluster.core, namespace, name)}")
        others = [] if "/" in name else namesakes(cluster.core.snapshot(), namespace, name)
        if len(others) > 1:
            return usage_error(f"{namespace}/{name} is the name of {len(others)} jobs; accepted: {', '.join(others)}")
        with shown_progress("searching fixes") as progress:
            found = diagnose(
                cluster.core,
                cluster.objects,
                subject,
                cluster.now,
                unreadable=cluster.unreadable,
                fix=fix,
                meanwhile=_import_report if output == "text" else lambda: None,
                progress=partial(progress.counted, noun="trials"),
            )
        start = explain_start(cluster, found, history, ledger, wanted=expected_start)
        found = msgspec.structs.replace(found, expected_start=start)
    except BadInputError as error:
        return usage_error(str(error))
    if output == "json":
        print_document(found, "json")
    else:
        from capcard_sched.reports.explain import print_diagnosis

        print_diagnosis(found)
    return cluster.watched.report()


def _import_report() -> None:
    """Import what renders a diagnosis, while a trial runs in a copy of the process."""
    import capcard_sched.reports.explain  # noqa: F401


def _suggestions(core: Core, namespace: str, name: str) -> str:
    """Existing names of the namespace, the most similar first."""
    from difflib import get_close_matches

    from capcard_sched.model.workload import own_name

    jobs = core.snapshot().state.jobs.values()
    here = sorted({own_name(job).removeprefix("podgroup/") for job in jobs if job.namespace == namespace})
    if not here:
        others = sorted({job.namespace for job in jobs})
        return f"namespace {namespace} has no jobs; namespaces with jobs: {', '.join(others) or 'none'}"
    similar = get_close_matches(name, here, n=_SUGGESTED)
    shown = [*similar, *(each for each in here if each not in similar)][:_SUGGESTED]
    more = f" and {len(here) - len(shown)} more" if len(here) > len(shown) else ""
    return f"namespace {namespace} has {', '.join(shown)}{more}"
