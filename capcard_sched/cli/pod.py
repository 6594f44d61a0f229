"""`capcard-sched pod`: the pods of Jobs and queues of a live cluster."""

from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from capcard_sched.cli.live_objects import (
    Live,
    LiveObjects,
    OutputFlag,
    WatchFlag,
    print_objects,
    show_objects,
    with_objects,
)
from capcard_sched.model.annotations import JOB_NAME, QUEUE_NAME
from capcard_sched.model.timestamps import parse_time, span

app = cyclopts.App(name="pod", help="List the pods of Jobs.", result_action="return_value")


def _rows(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return (pod.get("status") or {}).get("containerStatuses") or []


def _phase(pod: dict[str, Any]) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(pod["status"].get("phase", ""))


def _age(pod: dict[str, Any]) -> str:
    import time

    return span(max(0.0, time.time() - parse_time(pod["metadata"].get("creationTimestamp"))))


_COLUMNS = (
    ("Name", lambda pod: pod["metadata"]["name"]),
    ("Ready", lambda pod: f"{sum(bool(row.get('ready')) for row in _rows(pod))}/{len(pod['spec']['containers'])}"),
    ("Status", _phase),
    ("Restart", lambda pod: sum(row.get("restartCount", 0) for row in _rows(pod))),
    ("Age", _age),
)
_NAMESPACE = (("Namespace", lambda pod: pod["metadata"]["namespace"]),)
_WIDE = (("Node", lambda pod: pod["spec"].get("nodeName", "")),)


@app.command(name="list")
def list_pods(
    *,
    all_namespaces: Annotated[bool, Parameter(name=["--all-namespaces", "-A"], negative=())] = False,
    selector: Annotated[str, Parameter(name=["--selector", "-l"])] = "",
    queue: Annotated[str, Parameter(name=["--queue", "-q"])] = "",
    job: Annotated[str, Parameter(name=["--job", "-j"])] = "",
    watch: WatchFlag = False,
    output: OutputFlag = "table",
    live: Live = Live(),  # noqa: B008 - frozen
) -> int:
    """List the pods of Jobs.

    Args:
        all_namespaces: List the pods of all namespaces.
        selector: Label selector.
        queue: Pods of this queue only.
        job: Pods of this Job only.
        watch: After the list, print each pod that changes.
        output: Output format.
        live: Flags that select the cluster and the namespace.
    """
    terms = [f"{JOB_NAME}={job}" if job else JOB_NAME, f"{QUEUE_NAME}={queue}" if queue else "", selector]
    labels = ",".join(filter(None, terms))
    columns = (*_NAMESPACE, *_COLUMNS) if all_namespaces else _COLUMNS

    async def work(objects: LiveObjects) -> int:
        namespace = None if all_namespaces else objects.namespace
        if watch:
            batches = objects.list_and_watch("Pod", namespace=namespace, labels=labels)
            return await show_objects(batches, columns, _WIDE, output)
        print_objects(await objects.list("Pod", namespace=namespace, labels=labels), columns, _WIDE, output)
        return 0

    return with_objects(live, work)
