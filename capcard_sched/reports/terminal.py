"""Terminal width, tables, and formatting of names and resource amounts, shared by all reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

from capcard_sched.model.quantity import in_units, shown_amount
from capcard_sched.model.quoting import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType
    from rich.table import Table

#: Columns: the width when the output is not a terminal; long reasons stay on few lines.
_PLAIN_WIDTH = 160


class EscapingConsole(Console):
    """A console that shows control and direction characters of texts as escapes; its own styles work."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable, escaped."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else escaped(segment.text, lines=True)
            yield segment if text == segment.text else Segment(text, segment.style, segment.control)


def console_for(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal, or of a fixed width without a terminal."""
    console = EscapingConsole(stderr=stderr)
    return console if console.is_terminal else EscapingConsole(stderr=stderr, width=_PLAIN_WIDTH)


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
