"""`queue list` on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from capcard_sched.reports.terminal import console_for, format_amount, format_base_amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from capcard_sched.model.explanation import CardUse, QueueUse


#: Headers of `card_row`.
CARD_COLUMNS = ("CARD", "QUOTA", "ALLOCATED", "RESERVED", "QUOTA FREE", "CLUSTER TOTAL")


def print_queues(queues: Sequence[QueueUse], console: Console | None = None) -> None:
    """One row per queue and card, then per resource, queues indented below their parent. Cards count in cards."""
    console = console or console_for()
    table = Table(title_justify="left", header_style="bold", show_edge=False, box=None)
    for name in ("QUEUE", "STATE", "JOBS PENDING", "JOBS TOTAL", "CARD OR RESOURCE", *CARD_COLUMNS[1:]):
        table.add_column(name, justify="left" if name in {"QUEUE", "STATE", "CARD OR RESOURCE"} else "right")
    for depth, queue in _in_tree(queues):
        head = ["  " * depth + queue.name, queue.state, str(queue.waiting), str(queue.jobs)]
        rows = [card_row(use) for use in queue.cards]
        for resource, (limit, allocated) in queue.resources.items():
            shown = format_base_amount(resource, allocated)
            if limit is None:
                rows.append([resource, "no quota", shown, "", "", ""])
            else:
                free = format_base_amount(resource, max(0, limit - allocated))
                rows.append([resource, format_base_amount(resource, limit), shown, "", free, ""])
        for position, row in enumerate(rows or [[""] * 6]):
            table.add_row(*(head if not position else [""] * 4), *row)
    console.print(table)
    for queue in queues:
        for warning in queue.warnings:
            console.print(Text.assemble(("warning: ", "yellow"), f"queue {queue.name}: {warning}"), soft_wrap=True)


def _in_tree(queues: Sequence[QueueUse]) -> list[tuple[int, QueueUse]]:
    """The queues in order of name, each followed by those below it, with their depth. `root` is no level of its own."""
    names = {queue.name for queue in queues} - {"root"}
    below: dict[str, list[QueueUse]] = {}
    for queue in queues:
        below.setdefault(queue.parent if queue.parent in names else "", []).append(queue)
    found: list[tuple[int, QueueUse]] = []
    pending = [(0, queue) for queue in reversed(below.pop("", []))]
    while pending or below:
        if not pending:  # a cycle of parents has no top
            pending = [(0, queue) for queue in below.pop(min(below))[::-1]]
        depth, queue = pending.pop()
        found.append((depth, queue))
        pending += [(depth + 1, one) for one in reversed(below.pop(queue.name, []))]
    return found


def card_row(use: CardUse) -> list[str]:
    """The cells under `CARD_COLUMNS`."""
    shown = format_amount(use.card, use.allocated), format_amount(use.card, use.inqueue)
    if "|" in use.card:  # reserved for pods that accept either card: quotas are per single card
        return [use.card, "-", *shown, "-", "-"]
    total = format_amount(use.card, use.total) if use.total else "none"
    quota = "no quota" if use.quota is None else format_amount(use.card, use.quota)
    free = "" if use.free is None else format_amount(use.card, use.free)
    return [use.card, quota, *shown, free, total]
