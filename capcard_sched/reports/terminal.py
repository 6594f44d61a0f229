"""Terminal width, tables, and formatting of names and resource amounts, shared by all reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from capcard_sched.model.quantity import in_units, shown_amount

if TYPE_CHECKING:
    from rich.table import Table

#: Columns: the width when the output is not a terminal; long reasons stay on few lines.
_PLAIN_WIDTH = 160


def console_for(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal, or of a fixed width without a terminal."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_PLAIN_WIDTH)


def titled_table(title: str, *, footer: bool = False) -> Table:
    """An empty table without lines, below its title."""
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        footer_style="bold",
        caption_justify="left",
        show_edge=False,
        show_footer=footer,
        box=None,
    )


def format_base_amount(resource: str, amount: int) -> str:
    """A base-unit amount of a resource or card: cores, cards and pods as plain numbers, bytes in Gi or Mi."""
    return shown_amount(resource, in_units(resource, amount))
