"""`capcard-sched queue create`, `get`, `open`, `close`, `update` and `delete`, on a live cluster."""

from typing import Annotated, Any

from cyclopts import Parameter

from capcard_sched.cli.exit_codes import usage_error
from capcard_sched.cli.lists import Column, Listing
from capcard_sched.cli.live_objects import Live, LiveObjects, change_object, object_change, object_show

_PHASES = ("Inqueue", "Pending", "Running", "Unknown", "Completed")
_OBJECT = Listing(
    "Queue",
    (
        Column("NAME", lambda queue: queue["metadata"]["name"]),
        Column("WEIGHT", lambda queue: queue["spec"].get("weight", 1)),
        Column("STATE", lambda queue: (queue.get("status") or {}).get("state", "")),
        Column("PARENT", lambda queue: queue["spec"].get("parent", "")),
        *(
            Column(phase.upper(), lambda queue, phase=phase: queue["phases"][phase])  # type: ignore[misc]
            for phase in _PHASES
        ),
    ),
    lambda queue: f"queue.scheduling.volcano.sh/{queue['metadata']['name']}",
)


async def _with_phases(objects: LiveObjects, queue: dict[str, Any]) -> dict[str, Any]:
    name = queue["metadata"]["name"]
    own = [group for group in await objects.list("PodGroup") if group["spec"].get("queue", "default") == name]
    phases = [(group.get("status") or {}).get("phase") or "Pending" for group in own]
    return {**queue, "phases": {phase: phases.count(phase) for phase in _PHASES}}


get_queue = object_show(_OBJECT, "Show one queue and its PodGroups by phase.", _with_phases)


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


_CLOSE = "Close a queue: no further job is admitted; pods that run are not affected."
open_queue = object_change("Queue", "open", "Open a queue.", "OpenQueue")
close_queue = object_change("Queue", "close", _CLOSE, "CloseQueue")
delete_queue = object_change("Queue", "delete", "Delete a queue.")


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
