"""`capcard-sched queue`: quotas and usage of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import cyclopts
import msgspec

from capcard_sched.cli.lists import Column, Listing, add_list
from capcard_sched.model.quantity import shown_amount
from capcard_sched.model.queue import ROOT
from capcard_sched.reports.terminal import format_base_amount

if TYPE_CHECKING:
    from capcard_sched.cli.cluster_source import ClusterSource

app = cyclopts.App(name="queue", help="Show and change queues.", result_action="return_value")
for _verb in ("get", "create", "open", "close", "update", "delete"):
    app.command(f"capcard_sched.cli.queue_commands:{_verb}_queue", name=_verb)

#: Cells of a line after the first of a queue, which has its name, state and jobs.
_BLANK: Final = {"name": "", "state": "", "waiting": "", "jobs": ""}


def _tree(queues: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The queues, each followed by those below it, with their `depth`. `root` is no level of its own."""
    names = {queue["name"] for queue in queues} - {ROOT}
    below: dict[str, list[dict[str, Any]]] = {}
    for queue in queues:
        below.setdefault(queue["parent"] if queue["parent"] in names else "", []).append(queue)
    found: list[dict[str, Any]] = []
    pending = [(0, queue) for queue in reversed(below.pop("", []))]
    while pending or below:
        if not pending:  # a cycle of parents has no top
            pending = [(0, queue) for queue in below.pop(min(below))[::-1]]
        depth, queue = pending.pop()
        found.append({**queue, "depth": depth})
        pending += [(depth + 1, one) for one in reversed(below.pop(queue["name"], []))]
    return found


def _lines(queue: dict[str, Any]) -> list[dict[str, Any]]:
    """One line per card, then per resource. Cards count in cards."""
    lines: list[dict[str, Any]] = []
    for use in queue["cards"]:
        if "|" in use["card"]:  # reserved for pods that accept either card: quotas are per single card
            lines.append({**use, "quota": "-", "free": "-", "total": "-"})
        else:
            quota = "no limit" if use["quota"] is None else use["quota"]
            lines.append({**use, "quota": quota, "total": use["total"] or "none"})
    for resource, (limit, allocated) in queue["resources"].items():
        shown = "no limit" if limit is None else format_base_amount(resource, limit)
        free = None if limit is None else format_base_amount(resource, max(0, limit - allocated))
        used = format_base_amount(resource, allocated)
        lines.append({"card": resource, "quota": shown, "allocated": used, "free": free})
    name = "  " * queue.get("depth", 0) + queue["name"]
    lines = lines or [{}]
    return [{**line, **(_BLANK if position else {**queue, "name": name})} for position, line in enumerate(lines)]


def _column(header: str, name: str) -> Column:
    """Amounts of cards and shares as in other reports; blank cells for what a line does not have."""

    def text(line: dict[str, Any]) -> str:
        value = line.get(name)
        return shown_amount(line["card"], value) if isinstance(value, float) else "" if value is None else str(value)

    return Column(header, lambda line: line.get(name), text)


LISTING: Final = Listing(
    "Queue",
    (
        _column("QUEUE", "name"),
        _column("STATE", "state"),
        _column("JOBS PENDING", "waiting"),
        _column("JOBS TOTAL", "jobs"),
        _column("CARD OR RESOURCE", "card"),
        _column("QUOTA", "quota"),
        _column("ALLOCATED", "allocated"),
        _column("RESERVED", "inqueue"),
        _column("QUOTA FREE", "free"),
        _column("CLUSTER TOTAL", "total"),
        Column("PARENT", lambda queue: queue.get("parent"), shown="wide"),
    ),
    lambda queue: f"queue.scheduling.volcano.sh/{queue['name']}",
    _lines,
    _tree,
    lambda queue: [f"warning: queue {queue['name']}: {warning}" for warning in queue["warnings"]],
    needs=("queues",),
)


def _read(found: ClusterSource) -> list[dict[str, Any]]:
    from capcard_sched.framework.explain.limits import queue_uses

    labels = {name: dict(queue.labels) for name, queue in found.core.snapshot().state.queues.items()}
    return [
        {**msgspec.to_builtins(use), "labels": labels.get(use.name, {})} for use in queue_uses(found.core.snapshot())
    ]


add_list(app, LISTING, "List queues with quota, allocated, reserved and free amounts per card and resource.\n\n", _read)
