"""`capcard-sched pod`: the pods of jobs and queues."""

from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from capcard_sched.cli.lists import Column, Listing, NamespacedListFlags, field, show_list
from capcard_sched.cli.sources.inputs import LoadedCluster
from capcard_sched.cli.sources.source import Source
from capcard_sched.model.timestamps import span

app = cyclopts.App(name="pod", help="List the pods of jobs.", result_action="return_value")

_LISTING = Listing(
    "Pod",
    (
        Column("NAMESPACE", lambda pod: pod["namespace"], shown="all namespaces"),
        field("NAME", "name"),
        Column("READY", lambda pod: pod["ready"], lambda pod: f"{pod['ready']}/{pod['containers']}"),
        field("STATUS", "status"),
        field("RESTARTS", "restarts"),
        field("AGE", "ageSeconds", text=span),
        field("JOB", "job", wide=True),
        field("QUEUE", "queue", wide=True),
        field("CARD", "card", wide=True),
        field("NODE", "node", wide=True),
    ),
    lambda pod: f"pod/{pod['name']}",
    needs=("pods",),
)


@app.command(name="list", usage="capcard-sched pod list [OPTIONS] [NAMES...]")
def list_pods(
    *names: str,
    job: Annotated[str, Parameter(name=["--job", "-j"], show_default=False, metavar="NAME")] = "",
    flags: NamespacedListFlags = NamespacedListFlags(),  # noqa: B008 - frozen
    source: Source = Source(),  # noqa: B008 - frozen
) -> int:
    """List the pods of jobs; with -o wide their job, queue, card and node.

    With -f, runs the manifests through the simulator first. Without -f, reads a live cluster; writes nothing.

    Exit status: 0; 2 on bad input or an unknown pod; 1 on an internal error.

    Args:
        names: Pods to list. Default: all.
        job: Pods of this job only: `train` or `deployment/chat`.
        flags: Flags of every list.
        source: Flags that select the cluster.
    """

    def read(found: LoadedCluster) -> list[dict[str, Any]]:
        from capcard_sched.insight.diagnosis.lists import pod_items

        items = pod_items(found.core, found.objects, found.now)
        return [item for item in items if not job or job in {item["job"], item["job"].partition("/")[2]}]

    return show_list(_LISTING, read, flags, source, names)
