"""`queue list` on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from capcard_sched.reports.terminal import amount_for_people, console_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from capcard_sched.model.explanation import CardUse, QueueUse


def print_queues(queues: Sequence[QueueUse], console: Console | None = None) -> None:
    """A row per queue and card, then per resource; figures of cards are cards."""
    console = console or console_for()
    table = Table(title_justify="left", header_style="bold", show_edge=False, box=None)
    for name in ("Queue", "State", "Jobs", "Card or resource", "Quota", "Allocated", "In queue", "Free", "In cluster"):
        table.add_column(name, justify="left" if name in {"Queue", "State", "Card or resource"} else "right")
    for queue in queues:
        head = [queue.name, queue.state, f"{queue.waiting}/{queue.jobs}"]
        rows = [card_row(use) for use in queue.cards]
        for resource, (limit, allocated) in queue.resources.items():
            shown = amount_for_people(resource, allocated)
            if limit is None:
                rows.append([resource, "no quota", shown, "", "", ""])
            else:
                free = amount_for_people(resource, max(0, limit - allocated))
                rows.append([resource, amount_for_people(resource, limit), shown, "", free, ""])
        for position, row in enumerate(rows or [[""] * 6]):
            table.add_row(*(head if not position else [""] * 3), *row)
    console.print(table)
    console.print("Jobs: those that wait / all.", style="dim", highlight=False)


def card_row(use: CardUse, *, absent: str = "none") -> list[str]:
    """Card, quota, allocated, in queue, free and how many are in the cluster; `absent` when that is none."""
    if "|" in use.card:  # pods that accept either and have neither yet: quotas are of single cards
        return [use.card, "-", f"{use.allocated:g}", f"{use.inqueue:g}", "-", "-"]
    total = f"{use.total:g}" if use.total else absent
    return [use.card, f"{use.quota:g}", f"{use.allocated:g}", f"{use.inqueue:g}", f"{use.free:g}", total]
