"""Terminal width, escapes, and the format of resource amounts, shared by all reports."""

from __future__ import annotations

import re
import sys
from typing import IO, TYPE_CHECKING, Final, cast

from rich.console import Console
from rich.segment import Segment

from capcard_sched.model.quantity import in_units, shown_amount
from capcard_sched.model.quoting import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType

#: Columns: the width when the output is not a terminal; long reasons stay on few lines.
_PLAIN_WIDTH = 160
_PADDING: Final = re.compile(r"[ \t]+$", re.MULTILINE)


class _Unpadded:
    """A text stream without blanks at the ends of lines. Consoles write whole lines."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_PADDING.sub("", text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


class EscapingConsole(Console):
    """A console that shows control and direction characters of texts as escapes; its own styles work.

    Brackets and colons of texts are no markup: `[capacity-card, allocatable]` and the names of users stay.
    """

    def __init__(
        self, *, file: IO[str] | None = None, width: int | None = None, stderr: bool = False, soft_wrap: bool = False
    ) -> None:
        super().__init__(
            file=file, width=width, stderr=stderr, soft_wrap=soft_wrap, highlight=False, markup=False, emoji=False
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable, escaped."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else escaped(segment.text, lines=True)
            yield segment if text == segment.text else Segment(text, segment.style, segment.control)


def console_for(*, stderr: bool = False, plain_width: int = _PLAIN_WIDTH) -> Console:
    """A console as wide as the terminal. Without a terminal it has a fixed width in columns and pads no line."""
    console = EscapingConsole(stderr=stderr)
    if console.is_terminal:
        return console
    stream = _Unpadded(sys.stderr if stderr else sys.stdout)
    return EscapingConsole(file=cast("IO[str]", stream), width=plain_width)


def format_base_amount(resource: str, amount: int) -> str:
    """A base-unit amount of a resource or card: cores, cards and pods as plain numbers, bytes in Gi or Mi."""
    return shown_amount(resource, in_units(resource, amount))
