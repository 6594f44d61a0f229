"""`explain` as text: why a job waits, who says so, with figures per card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from capcard_sched.model.timestamps import span
from capcard_sched.reports.queues import card_row
from capcard_sched.reports.terminal import amount_for_people

if TYPE_CHECKING:
    from rich.console import RenderableType

    from capcard_sched.model.explanation import CardUse, EvictedPod, Explanation, TaskExplanation, VictimsConsidered
    from capcard_sched.model.refusal import Figures, Refusal

_WORDS = {
    "refused": "refused",
    "unfit": "no node can take it",
    "schedulable": "has room, waits for the rest of its gang",
    "pipelined": "is promised room that is being released",
    "untried": "not tried in the last session",
}
_SHOWN_NAMES = 4


def _figures(refusal: Refusal) -> Table | None:
    rows: list[Figures] = list(refusal.alternatives)
    if refusal.figures is not None and refusal.figures not in rows:
        rows.insert(0, refusal.figures)
    if not rows:
        return None
    table = Table("resource or card", "requested", "total would be", "limit", "over by", box=None, pad_edge=False)
    for row in rows:
        over = row.total - row.limit
        table.add_row(
            row.resource,
            amount_for_people(row.resource, row.requested),
            amount_for_people(row.resource, row.total),
            amount_for_people(row.resource, row.limit),
            amount_for_people(row.resource, over) if over > 0 else "-",
        )
    return table


def _refusal(refusal: Refusal) -> list[RenderableType]:
    who = f"{refusal.plugin or 'scheduler'} / {refusal.hook}"
    parts: list[RenderableType] = [Text.assemble(("  said by ", "dim"), who, ("  reason ", "dim"), refusal.reason)]
    table = _figures(refusal)
    if table is not None:
        parts.append(_indented(table))
    return parts


def _indented(table: Table) -> RenderableType:
    from rich.padding import Padding

    return Padding(table, (0, 0, 0, 2))


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES])
    more = len(names) - _SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _task(item: TaskExplanation, told: tuple[Refusal, ...]) -> list[RenderableType]:
    """`told`: what the job was refused for, which is not said again of its pods."""
    if item.refusal is not None and item.refusal in told:
        return [Text.assemble((f"{_names(item.names)}: ", "bold"), "refused with their job")]
    where = f" ({item.node})" if item.node else ""
    parts: list[RenderableType] = [Text.assemble((f"{_names(item.names)}: ", "bold"), f"{_WORDS[item.outcome]}{where}")]
    if item.message and item.outcome in ("refused", "unfit"):
        parts.append(Text(f"  {item.message}"))
    if item.refusal is not None:
        parts.extend(_refusal(item.refusal))
    if item.nodes:
        table = Table("nodes", "reason", "plugin / hook", box=None, pad_edge=False)
        for reason in item.nodes:
            table.add_row(str(reason.nodes), reason.reason, f"{reason.plugin or 'scheduler'} / {reason.hook}")
        parts.append(_indented(table))
        parts.append(Text(f"  on {item.evictable_nodes} of these nodes evicting something could help", style="dim"))
    return parts


def _victims(considered: tuple[VictimsConsidered, ...]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for item in considered:
        parts.append(Text(""))
        found = f"no room can be taken for {item.pod} on any of {item.nodes} nodes"
        parts.append(Text.assemble((f"{item.action}: ", "bold"), found))
        if item.kept or item.not_enough:
            table = Table("pods", "protected by", box=None, pad_edge=False)
            for cause, count in item.kept:
                table.add_row(str(count), cause)
            parts.append(_indented(table))
        if item.not_enough:
            parts.append(Text(f"  on {item.not_enough} nodes all that may go is not enough"))
    return parts


def _evicted(pods: tuple[EvictedPod, ...]) -> list[RenderableType]:
    if not pods:
        return []
    table = Table("evicted", "by", "from node", "for", "of queue", box=None, pad_edge=False)
    for pod in pods:
        table.add_row(pod.pod, pod.action, pod.node, pod.by or "-", pod.queue or "-")
    return [Text(""), table]


def _cards(cards: tuple[CardUse, ...], queue: str) -> Table:
    table = Table(title=f"Cards of queue {queue}", title_justify="left", box=None, pad_edge=False)
    for column in ("card", "quota", "allocated", "in queue", "free", "in cluster"):
        table.add_column(column, justify="left" if column == "card" else "right")
    for use in cards:
        table.add_row(*card_row(use, absent="not in cluster"))
    return table


def render(explanation: Explanation) -> RenderableType:
    """The whole answer, the one line that matters first."""
    e = explanation
    queue = f"queue {e.queue} ({e.queue_state})" if e.queue else "no queue"
    counts = f"{e.placed} placed, minimum {e.minimum}, {e.tasks} pod{'' if e.tasks == 1 else 's'}"
    if e.pending or e.refusals or e.placed < e.minimum:
        counts += f", waiting {span(e.waiting_seconds)}"
    parts: list[RenderableType] = [
        Text.assemble((f"{e.namespace}/{e.name}", "bold"), f"  {queue}  phase {e.phase}"),
        Text(counts),
        Text.assemble(("Why: ", "bold"), e.summary),
    ]
    for refusal in e.refusals:
        parts.append(Text(""))
        parts.append(Text.assemble(("PodGroup: ", "bold"), refusal.message))
        parts.extend(_refusal(refusal))
    for item in e.pending:
        parts.append(Text(""))
        parts.extend(_task(item, e.refusals))
    parts.extend(_victims(e.victims))
    parts.extend(_evicted(e.evicted))
    if e.told:
        parts.append(Text(""))
        parts.extend(Text(f"Evicted before, says an event: {text}") for text in e.told)
    if e.ahead and (e.pending or e.refusals):
        parts.append(Text(""))
        parts.append(Text(f"Ahead in the queue: {_names(e.ahead)}"))
    if e.cards:
        parts.append(Text(""))
        parts.append(_cards(e.cards, e.queue))
    return Group(*parts)
