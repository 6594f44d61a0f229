"""Prints an overview on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from capcard_sched.model.quoting import plural
from capcard_sched.model.timestamps import span
from capcard_sched.reports.terminal import console_for, titled_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from capcard_sched.reports.overview import CardRow, EvictionRow, JobRow, Overview, QueueRow, Use
    from capcard_sched.reports.shared_cards import CardTenant, SharedCardRow

_BAR_CELLS = 10
#: Columns: on a narrower terminal, reasons are a table of their own instead of a column of ten characters.
_WIDE = 140
#: Jobs: the maximum listed; with more, the longest pending ones come first.
_MOST_JOBS = 100
#: Shared cards: the maximum listed; with more, the fullest ones come first.
_MOST_CARDS = 64
_CARD_CELLS = 20
_SHADES, _TENANTS = "█▓▒", ("green", "cyan", "blue", "magenta", "yellow")
_GOOD, _BUSY, _OVER = "green", "yellow", "red"


def print_overview(overview: Overview, console: Console | None = None) -> None:
    """Print jobs, queues, cards and evictions; empty tables are omitted."""
    console = console or console_for()
    if overview.jobs:
        shown = _most_urgent(overview.jobs)
        wide = console.width >= _WIDE
        console.print(_jobs(shown, reasons=wide))
        if len(shown) < len(overview.jobs):
            console.print(f"... and {len(overview.jobs) - len(shown)} more jobs")
        if not wide and any(row.reason for row in shown):
            console.print(_reasons(shown))
    if overview.queues:
        console.print(_queues(overview.queues))
    if overview.cards:
        console.print(_cards(overview.cards))
    if overview.shared_cards:
        console.print(_shared_cards(overview.shared_cards))
        hidden = len(overview.shared_cards) - _MOST_CARDS
        if hidden > 0:
            console.print(f"... and {hidden} more shared cards")
    if overview.evictions:
        console.print(_evictions(overview.evictions))
    ready = sum(1 for job in overview.jobs if job.scheduled >= job.minimum)
    console.print(
        f"After {span(overview.elapsed)}: {ready}/{len(overview.jobs)} jobs reached minAvailable; "
        f"{plural(overview.pending, 'pod')} pending."
    )


def _most_urgent(rows: tuple[JobRow, ...]) -> tuple[JobRow, ...]:
    """At most `_MOST_JOBS` rows; with more, pending jobs before scheduled ones, the longest wait first."""
    if len(rows) <= _MOST_JOBS:
        return rows
    return tuple(sorted(rows, key=lambda row: (row.scheduled >= row.minimum, -(row.waited or 0.0)))[:_MOST_JOBS])


def _jobs(rows: tuple[JobRow, ...], *, reasons: bool) -> Table:
    table = titled_table("Jobs")
    for name in ("NAMESPACE", "JOB", "QUEUE"):
        table.add_column(name, overflow="fold")
    table.add_column("PHASE", no_wrap=True)
    for name in ("SCHEDULED", "MIN", "WAIT"):
        table.add_column(name, justify="right", no_wrap=True)
    if reasons:
        table.add_column("REASON", ratio=1, overflow="fold")
    for row in rows:
        style = _GOOD if row.scheduled >= row.minimum else _BUSY
        table.add_row(
            Text(row.namespace),
            Text(_title(row)),
            Text(row.queue),
            Text(row.phase),
            Text(f"{row.scheduled}/{row.pods}", style=style),
            str(row.minimum),
            "-" if row.waited is None else span(row.waited),
            *([Text(row.reason)] if reasons else []),
        )
    return table


def _reasons(rows: tuple[JobRow, ...]) -> Table:
    """The reasons in a table of their own, for narrow terminals."""
    table = titled_table("Pending jobs")
    table.add_column("JOB", overflow="fold", max_width=24)
    table.add_column("REASON", ratio=1, overflow="fold")
    several = len({row.namespace for row in rows}) > 1
    for row in rows:
        if row.reason:
            table.add_row(Text(f"{row.namespace}/{_title(row)}" if several else _title(row)), Text(row.reason))
    return table


def _title(row: JobRow) -> str:
    return f"{row.kind.lower()}/{row.name}"


def _queues(rows: tuple[QueueRow, ...]) -> Table:
    table = titled_table("Queues")
    for name in ("QUEUE", "STATE"):
        table.add_column(name, overflow="fold")
    table.add_column("JOBS", justify="right")
    table.add_column("CARD OR RESOURCE", overflow="fold")
    table.add_column("USED/QUOTA", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        uses = [(Text(use.name), f"{use.used}/{use.limit}", _bar(use)) for use in row.uses] or [(Text(), "", Text())]
        for position, use in enumerate(uses):
            head = ("", "", "") if position else (Text(row.name), Text(row.state), str(row.jobs))
            table.add_row(*head, *use)
    return table


def _bar(use: Use) -> Text:
    if use.share is None:
        return Text("no limit")
    filled = min(_BAR_CELLS, round(use.share * _BAR_CELLS))
    style = _OVER if use.share > 1 else _BUSY if use.share == 1 else _GOOD
    return Text("█" * filled, style=style) + Text("░" * (_BAR_CELLS - filled)) + Text(f" {use.share:.0%}")


def _cards(rows: tuple[CardRow, ...]) -> Table:
    table = titled_table("Cards")
    table.add_column("CARD", overflow="fold")
    for name in ("NODES", "TOTAL", "USED", "FREE"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Text(row.card), str(row.nodes), f"{row.total:g}", f"{row.used:g}", f"{row.free:g}")
    return table


def _shared_cards(rows: tuple[SharedCardRow, ...]) -> Table:
    """One line per card: a bar of its memory with one shade per tenant, and the tenants."""
    table = titled_table("Shared cards")
    for name in ("NODE", "GPU"):
        table.add_column(name, overflow="fold")
    for name in ("SHARES", "MEMORY", "CORES"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("PODS", ratio=1, overflow="fold")
    if len(rows) > _MOST_CARDS:
        rows = tuple(sorted(rows, key=lambda row: -row.memory / row.card.memory)[:_MOST_CARDS])
    last = ""
    for row in rows:
        card = row.card
        table.add_row(
            Text(row.node if row.node != last else ""),
            Text(str(row.gpu)),
            f"{row.shares}/{card.slots}",
            f"{row.memory}/{card.memory}",
            f"{row.cores}%",
            _tenancy(row),
            Text(", ".join([*map(_tenant, row.tenants), *["unavailable"] * (not row.is_available)])),
        )
        last = row.node
    return table


def _tenancy(row: SharedCardRow) -> Text:
    bar, used = Text(), 0
    for number, tenant in enumerate(row.tenants):
        before, used = used, used + tenant.memory
        cells = round(used / row.card.memory * _CARD_CELLS) - round(before / row.card.memory * _CARD_CELLS)
        bar.append(_SHADES[number % len(_SHADES)] * max(0, cells), style=_TENANTS[number % len(_TENANTS)])
    return bar.append("░" * max(0, _CARD_CELLS - len(bar)))


def _tenant(tenant: CardTenant) -> str:
    slices = f" [{' '.join(tenant.slices)}]" if tenant.slices else ""
    return f"{tenant.pod.partition('/')[2]} {tenant.memory}{slices}"


def _evictions(rows: tuple[EvictionRow, ...]) -> Table:
    table = titled_table("Evictions")
    table.add_column("AT", justify="right", no_wrap=True)
    for name in ("POD", "NODE", "PREEMPTOR"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(span(row.at), Text(row.pod), Text(row.node), Text(row.reason))
    return table
