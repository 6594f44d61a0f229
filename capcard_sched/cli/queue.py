"""`capcard-sched queue`: quotas and usage of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import cyclopts
import msgspec

from capcard_sched.cli.lists import Column, Listing, add_list
from capcard_sched.model.quantity import in_units, shown_amount
from capcard_sched.model.queue import ROOT

if TYPE_CHECKING:
    from capcard_sched.cli.sources.inputs import LoadedCluster

app = cyclopts.App(name="queue", help="Show and change queues.", result_action="return_value")
for _verb in ("get", "create", "open", "close", "update", "delete"):
    app.command(f"capcard_sched.cli.queue_commands:{_verb}_queue", name=_verb)

#: Characters.
_BAR_CELLS: Final = 10
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
    """One line per card, then per resource, without those of which the queue has and uses nothing.

    Cards count in cards, cpu in cores, memory in bytes.
    """
    lines: list[dict[str, Any]] = []
    for use in queue["cards"]:
        # without a quota of several cards: reserved for pods that accept either card
        several = "|" in use["card"] and not use["quota"]
        if use["quota"] or use["allocated"] or use["inqueue"]:
            more = {"quota": None, "free": None, "total": None} if several else {"total": use["total"] or "none"}
            lines.append({**use, **more, "used": use["allocated"], "reserved": use["inqueue"]})
    for resource, (limit, allocated) in queue["resources"].items():
        used, quota = in_units(resource, allocated), None if limit is None else in_units(resource, limit)
        if used or quota:
            free = None if quota is None else queue["usable"].get(resource)
            lines.append({"card": resource, "quota": quota, "used": used, "free": free})
    name = "  " * queue.get("depth", 0) + queue["name"]
    lines = lines or [{}]
    return [{**line, **(_BLANK if position else {**queue, "name": name})} for position, line in enumerate(lines)]


def _column(header: str, name: str) -> Column:
    """Amounts as in other reports; blank cells for what a line does not have."""
    return Column(header, lambda line: line.get(name), lambda line: _amount(line, name))


def _amount(line: dict[str, Any], name: str) -> str:
    value = line.get(name)
    return shown_amount(line["card"], value) if isinstance(value, float) else "" if value is None else str(value)


def _use(line: dict[str, Any]) -> str:
    """Used amount and quota: `4/8`, `4/-` without a limit."""
    return f"{_amount(line, 'used')}/{_amount(line, 'quota') or '-'}" if "used" in line else ""


def _share(line: dict[str, Any]) -> float | None:
    """The used part of the quota; None without a limit."""
    if not line.get("quota"):
        return 1.0 if line.get("used") and line.get("quota") is not None else None
    return float(line["used"] / line["quota"])


def _bar(line: dict[str, Any]) -> str:
    """The same as a bar: `████████░░  75%`."""
    share = _share(line)
    if share is None:
        return "no limit" if "used" in line and "|" not in line["card"] else ""
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    return f"{'█' * filled}{'░' * (_BAR_CELLS - filled)} {share:4.0%}"


LISTING: Final = Listing(
    "Queue",
    (
        _column("QUEUE", "name"),
        _column("STATE", "state"),
        _column("PENDING", "waiting"),
        _column("JOBS", "jobs"),
        _column("CARD OR RESOURCE", "card"),
        Column("USED/QUOTA", lambda line: line.get("used"), _use),
        Column("SHARE", _share, _bar),
        _column("RESERVED", "reserved"),
        _column("FREE", "free"),
        Column("STRANDED", lambda line: line.get("stranded") or None, lambda one: _amount(one, "stranded"), "present"),
        _column("CLUSTER TOTAL", "total"),
        Column("PARENT", lambda queue: queue.get("parent"), shown="wide"),
    ),
    lambda queue: f"queue.scheduling.volcano.sh/{queue['name']}",
    _lines,
    _tree,
    lambda queue: [f"warning: queue {queue['name']}: {warning}" for warning in queue["warnings"]],
    needs=("queues",),
)


def read_queues(found: LoadedCluster) -> list[dict[str, Any]]:
    """The items of `queue list`."""
    from capcard_sched.framework.explain.capacity import CapacityReader
    from capcard_sched.framework.explain.limits import LimitReader
    from capcard_sched.framework.explain.queue_uses import queue_uses

    snapshot = found.core.snapshot()
    limits = LimitReader(snapshot, CapacityReader(snapshot))
    labels = {name: dict(queue.labels) for name, queue in snapshot.state.queues.items()}
    items: list[dict[str, Any]] = []
    for use in queue_uses(snapshot):
        named = [resource for resource, (limit, _) in use.resources.items() if limit is not None]
        free = {resource: limits.usable(use.name, resource) for resource in named}
        items.append({**msgspec.to_builtins(use), "usable": free, "labels": labels.get(use.name, {})})
    return items


_HELP: Final = """List queues with jobs, and per card and resource used amount, quota, reserved and free amounts.

PENDING jobs are not admitted, or have pending pods. RESERVED is admitted and has no node yet. FREE is what the queue \
and its ancestors leave; stranded are free cards of the cluster that no pod can use where they are. """
add_list(app, LISTING, _HELP, read_queues)
