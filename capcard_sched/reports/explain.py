"""Renders an `Explanation` as text: the reason, the plugin that rejects the job, numbers per card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from capcard_sched.model.timestamps import span
from capcard_sched.reports.queues import CARD_COLUMNS, card_row
from capcard_sched.reports.terminal import format_base_amount

if TYPE_CHECKING:
    from rich.console import RenderableType

    from capcard_sched.model.explanation import (
        CardUse,
        EvictedPod,
        Explanation,
        NodeDetail,
        TaskExplanation,
        VictimsConsidered,
    )
    from capcard_sched.model.refusal import Figures, Refusal

#: Outcome of the last attempt to its text; `gang` is scheduled and minimum count.
_OUTCOMES = {
    "refused": "rejected",
    "unfit": "no node fits",
    "schedulable": "fits{on}; waiting for gang ({gang})",
    "pipelined": "nominated{to}; waiting for victims to terminate",
    "untried": "not tried in the last session",
}
#: Names: pods or jobs listed before "and N more".
_SHOWN_NAMES = 4


def _figures(refusal: Refusal) -> Table | None:
    rows: list[Figures] = list(refusal.alternatives)
    if refusal.figures is not None and refusal.figures not in rows:
        rows.insert(0, refusal.figures)
    if not rows:
        return None
    table = Table("RESOURCE OR CARD", "REQUESTED", "TOTAL", "LIMIT", "OVER BY", box=None, pad_edge=False)
    for row in rows:
        over = row.total - row.limit
        table.add_row(
            row.resource,
            format_base_amount(row.resource, row.requested),
            format_base_amount(row.resource, row.total),
            format_base_amount(row.resource, row.limit),
            format_base_amount(row.resource, over) if over > 0 else "-",
        )
    return table


def _refusal(refusal: Refusal) -> list[RenderableType]:
    parts: list[RenderableType] = [
        Text.assemble(("  rejected by ", "dim"), f"{_source(refusal.plugin, refusal.hook)}: {refusal.reason}")
    ]
    table = _figures(refusal)
    if table is not None:
        parts.append(_indented(table))
    return parts


def _source(plugin: str, hook: str) -> str:
    return f"{plugin or 'scheduler'} ({hook})"


def _indented(table: Table) -> RenderableType:
    from rich.padding import Padding

    return Padding(table, (0, 0, 0, 2))


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES])
    more = len(names) - _SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _task(item: TaskExplanation, of_job: tuple[Refusal, ...], gang: str) -> list[RenderableType]:
    """The reasons of pods with one template. `of_job`: refusals of the job, not repeated for its pods."""
    if item.refusal is not None and item.refusal in of_job:
        return [Text.assemble((f"{_names(item.names)}: ", "bold"), "PodGroup not admitted")]
    on, to = (f" on {item.node}", f" to {item.node}") if item.node else ("", "")
    outcome = _OUTCOMES[item.outcome].format(on=on, to=to, gang=gang)
    parts: list[RenderableType] = [Text.assemble((f"{_names(item.names)}: ", "bold"), outcome)]
    if item.message and item.outcome in ("refused", "unfit"):
        parts.append(Text(f"  {item.message}"))
    if item.refusal is not None:
        parts.extend(_refusal(item.refusal))
    if item.nodes:
        table = Table("NODES", "REASON", "PLUGIN (HOOK)", box=None, pad_edge=False)
        for reason in item.nodes:
            table.add_row(str(reason.nodes), reason.reason, _source(reason.plugin, reason.hook))
        parts.append(_indented(table))
        parts.extend(_details(item.details))
        if item.evictable_nodes:
            on = f"{item.evictable_nodes} node{'' if item.evictable_nodes == 1 else 's'}"
            parts.append(Text(f"  preemption might help on {on}", style="dim"))
    return parts


def _details(details: tuple[NodeDetail, ...]) -> list[RenderableType]:
    """Figures per device of the nodes that come nearest to fitting."""
    if not details:
        return []
    table = Table("NEAREST NODE", "DEVICE", box=None, pad_edge=False)
    for detail in details:
        for index, text in enumerate(detail.texts):
            table.add_row("" if index else detail.node, Text(text))
    return [_indented(table)]


def _victims(considered: tuple[VictimsConsidered, ...]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for item in considered:
        parts.append(Text(""))
        nodes = f"{item.nodes} node{'' if item.nodes == 1 else 's'}"
        parts.append(Text.assemble((f"{item.action}: ", "bold"), f"no preemption victims for {item.pod} on {nodes}"))
        if item.kept or item.not_enough:
            table = Table("PODS", "PROTECTED BY", box=None, pad_edge=False)
            for cause, count in item.kept:
                table.add_row(str(count), cause)
            parts.append(_indented(table))
        if item.not_enough:
            on = f"{item.not_enough} node{'' if item.not_enough == 1 else 's'}"
            parts.append(Text(f"  on {on} evicting every possible victim frees too little"))
    return parts


def _evicted(pods: tuple[EvictedPod, ...]) -> list[RenderableType]:
    if not pods:
        return []
    table = Table("EVICTED", "ACTION", "NODE", "PREEMPTOR", "QUEUE", box=None, pad_edge=False)
    for pod in pods:
        table.add_row(pod.pod, pod.action, pod.node, pod.by or "-", pod.queue or "-")
    return [Text(""), table]


def _cards(cards: tuple[CardUse, ...], queue: str) -> Table:
    """The cards of the queue; with rows of its ancestors each row names its queue."""
    tree = any(use.queue != queue for use in cards)
    title = f"Cards of queue {queue}" + (" and its ancestors" if tree else "")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in (*(("QUEUE",) if tree else ()), *CARD_COLUMNS):
        table.add_column(column, justify="left" if column in {"QUEUE", "CARD"} else "right")
    for use in cards:
        table.add_row(*((use.queue,) if tree else ()), *card_row(use))
    return table


def render(explanation: Explanation) -> RenderableType:
    """The whole explanation; the third line is the most important reason."""
    e = explanation
    queue = f"queue {e.queue} ({e.queue_state})" if e.queue else "no queue"
    counts = f"scheduled {e.placed}/{e.tasks}, minAvailable {e.minimum}"
    if e.pending or e.refusals or e.placed < e.minimum:
        counts += f", pending for {span(e.waiting_seconds)}"
    fitting = sum(len(item.names) for item in e.pending if item.outcome in ("schedulable", "pipelined"))
    gang = f"{e.placed + fitting} of {e.minimum}"
    parts: list[RenderableType] = [
        Text.assemble((f"{e.namespace}/{e.name}", "bold"), f"  {queue}  phase {e.phase}"),
        Text(counts),
        Text.assemble(("Reason: ", "bold"), e.summary),
    ]
    for refusal in e.refusals:
        parts.append(Text(""))
        parts.append(Text.assemble(("PodGroup: ", "bold"), refusal.message))
        parts.extend(_refusal(refusal))
    for item in e.pending:
        parts.append(Text(""))
        parts.extend(_task(item, e.refusals, gang))
    parts.extend(_victims(e.victims))
    parts.extend(_evicted(e.evicted))
    if e.eviction_events:
        parts.append(Text(""))
        parts.extend(Text(f"Evicted earlier: {text}") for text in e.eviction_events)
    if e.ahead and (e.pending or e.refusals):
        parts.append(Text(""))
        parts.append(Text(f"Ahead in the queue: {_names(e.ahead)}"))
    if e.cards:
        parts.append(Text(""))
        parts.append(_cards(e.cards, e.queue))
    return Group(*parts)
