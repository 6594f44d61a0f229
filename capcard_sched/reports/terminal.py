"""Terminal width, tables, and formatting of names and resource amounts, shared by all reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from capcard_sched.model.quantity import is_in_bytes
from capcard_sched.model.resources import PODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

#: Columns: the width when the output is not a terminal; long reasons stay on few lines.
_PLAIN_WIDTH = 160
_MEBI, _GIBI = 2**20, 2**30
#: Names listed before "and N more".
_SHOWN_NAMES = 4


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


def listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def format_base_amount(resource: str, amount: int) -> str:
    """A base-unit amount of a resource or card: cores, cards and pods as plain numbers, bytes in Gi or Mi."""
    if is_in_bytes(resource):
        size, unit = (_GIBI, "Gi") if not amount % _GIBI else (_MEBI, "Mi")
        return _plain(amount / size) + unit
    return str(amount) if resource == PODS else _plain(amount / 1000)


def format_amount(resource: str, amount: float) -> str:
    """An amount in cores, cards, devices or bytes; bytes in Gi or Mi."""
    return format_base_amount(resource, round(amount if is_in_bytes(resource) or resource == PODS else amount * 1000))


def _plain(number: float) -> str:
    """At most three decimals, never an exponent."""
    return f"{number:.3f}".rstrip("0").rstrip(".")
