"""`queue list` on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from capcard_sched.reports.terminal import console_for, format_base_amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from capcard_sched.model.explanation import CardUse, QueueUse


#: Headers of `card_row`.
CARD_COLUMNS = ("CARD", "QUOTA", "ALLOCATED", "RESERVED", "QUOTA FREE", "CLUSTER TOTAL")


def print_queues(queues: Sequence[QueueUse], console: Console | None = None) -> None:
    """One row per queue and card, then per resource. Cards are counted in cards."""
    console = console or console_for()
    table = Table(title_justify="left", header_style="bold", show_edge=False, box=None)
    for name in ("QUEUE", "STATE", "JOBS PENDING", "JOBS TOTAL", "CARD OR RESOURCE", *CARD_COLUMNS[1:]):
        table.add_column(name, justify="left" if name in {"QUEUE", "STATE", "CARD OR RESOURCE"} else "right")
    for queue in queues:
        head = [queue.name, queue.state, str(queue.waiting), str(queue.jobs)]
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


def card_row(use: CardUse) -> list[str]:
    """The cells under `CARD_COLUMNS`."""
    if "|" in use.card:  # reserved for pods that accept either card: quotas are per single card
        return [use.card, "-", f"{use.allocated:g}", f"{use.inqueue:g}", "-", "-"]
    total = f"{use.total:g}" if use.total else "none"
    return [use.card, f"{use.quota:g}", f"{use.allocated:g}", f"{use.inqueue:g}", f"{use.free:g}", total]
