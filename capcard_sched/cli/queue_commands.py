"""`capcard-sched queue create`, `get`, `open`, `close`, `update` and `delete`, on a live cluster."""

from typing import Annotated, Any

from cyclopts import Parameter

from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.cli.lists import Column, Listing
from capcard_sched.cli.live_objects import (
    Live,
    LiveObjects,
    RequestFailedError,
    change_object,
    object_change,
    object_show,
)
from capcard_sched.model.namespace_queues import NAMESPACE_QUEUE
from capcard_sched.model.quantity import base_amount
from capcard_sched.model.queue import ROOT
from capcard_sched.model.quoting import plural
from capcard_sched.model.resources import PODS

_PHASES = ("Inqueue", "Pending", "Running", "Unknown", "Completed")


def _id_of(queue: dict[str, Any]) -> str:
    """The name of a Queue, `namespace/name` of a NamespaceQueue."""
    namespace, name = queue["metadata"].get("namespace", ""), queue["metadata"]["name"]
    return f"{namespace}/{name}" if namespace else name


_OBJECT = Listing(
    "Queue",
    (
        Column("NAME", _id_of),
        Column("WEIGHT", lambda queue: "-" if "namespace" in queue["metadata"] else queue["spec"].get("weight", 1)),
        Column("STATE", lambda queue: (queue.get("status") or {}).get("state", "")),
        Column("PARENT", lambda queue: queue["spec"].get("parent", "")),
        *(
            Column(phase.upper(), lambda queue, phase=phase: queue["phases"][phase])  # type: ignore[misc]
            for phase in _PHASES
        ),
    ),
    lambda queue: f"{queue['kind'].lower()}.scheduling.volcano.sh/{queue['metadata']['name']}",
)


def _reference(name: str, namespace: str) -> tuple[str, str, str]:
    """The object of `NAME`, a Queue, or of a NamespaceQueue: `namespace/NAME` of this one, or its id."""
    of, slash, own = name.partition("/")
    if not slash:
        return "Queue", namespace, name
    return NAMESPACE_QUEUE, namespace if of == "namespace" else of, own


async def _with_phases(objects: LiveObjects, queue: dict[str, Any]) -> dict[str, Any]:
    namespace, name = queue["metadata"].get("namespace", ""), queue["metadata"]["name"]
    own = [
        group
        for group in await objects.list("PodGroup")
        if group["spec"].get("queue", "default") == (f"namespace/{name}" if namespace else name)
        and namespace in ("", group["metadata"]["namespace"])
    ]
    phases = [(group.get("status") or {}).get("phase") or "Pending" for group in own]
    return {**queue, "phases": {phase: phases.count(phase) for phase in _PHASES}}


get_queue = object_show(
    _OBJECT,
    "Show one queue and its PodGroups by phase; namespace/NAME, or NAMESPACE/NAME, is a NamespaceQueue.",
    _with_phases,
    _reference,
)


def create_queue(
    name: str,
    *,
    weight: Annotated[int, Parameter(name=["--weight", "-w"])] = 1,
    parent: str = "root",
    live: Live = Live(),  # noqa: B008 - frozen
) -> int:
    """Create a queue.

    Args:
        name: The queue.
        weight: Weight, 1 to 65535.
        parent: Parent queue.
        live: Flags that select the cluster.
    """
    from capcard_sched.controllers.objects import SCHEDULING_API

    if not 1 <= weight <= 65535:
        return usage_error(f"--weight: {weight}: accepted is 1 to 65535")
    spec = {"weight": weight, "parent": parent, "reclaimable": True}
    queue = {"apiVersion": SCHEDULING_API, "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    return change_object(live, "create", "Queue", name, lambda objects: objects.create(queue))


open_queue = object_change("Queue", "open", "Open a queue.", "OpenQueue")


def close_queue(
    name: str,
    *,
    live: Live = Live(),  # noqa: B008 - frozen
) -> int:
    """Close a queue: no further job is admitted; pods that run are not affected.

    Args:
        name: The queue. `root` cannot be closed.
        live: Flags that select the cluster.
    """
    if name == ROOT:
        return usage_error("queue root cannot be closed; close its child queues")
    return change_object(live, "close", "Queue", name, lambda objects: objects.command("CloseQueue", "Queue", name))


def delete_queue(
    name: str,
    *,
    force: Annotated[bool, Parameter(negative=())] = False,
    live: Live = Live(),  # noqa: B008 - frozen
) -> int:
    """Delete a queue without pods.

    Args:
        name: The queue.
        force: Also delete a queue with pods. They continue, and its waiting jobs are not admitted.
        live: Flags that select the cluster.
    """
    if name == ROOT:
        return usage_error("queue root cannot be deleted")

    async def delete(objects: LiveObjects) -> None:
        if not force:
            queue = await objects.get("Queue", name)
            used = _use_of(queue)
            if used:
                raise RequestFailedError(f"queue {name} has {used}: delete them first, or pass --force")
        await objects.delete("Queue", name)

    return change_object(live, "delete", "Queue", name, delete)


def _use_of(queue: dict[str, Any]) -> str:
    """`9 pods on nodes`, or `2 running jobs` where the scheduler has not counted pods yet; "" for none."""
    status = queue.get("status") or {}
    pods = base_amount(PODS, (status.get("allocated") or {}).get(PODS) or 0) or 0
    if pods:
        return f"{plural(pods, 'pod')} on nodes"
    running = status.get("running") or 0
    return plural(running, "running job") if running else ""


def update_queue(
    name: str,
    *,
    weight: Annotated[int, Parameter(name=["--weight", "-w"])],
    live: Live = Live(),  # noqa: B008 - frozen
) -> int:
    """Change the weight of a queue.

    Args:
        name: The queue.
        weight: Weight, 1 to 65535.
        live: Flags that select the cluster.
    """
    if not 1 <= weight <= 65535:
        return usage_error(f"--weight: {weight}: accepted is 1 to 65535")
    patch = {"spec": {"weight": weight}}
    return change_object(live, "update", "Queue", name, lambda objects: objects.patch("Queue", name, patch))
