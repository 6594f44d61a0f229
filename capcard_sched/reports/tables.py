"""Tables as plain text, in one style for all verbs.

Numbers are right-aligned, texts left-aligned. No cell is cut: a line that is longer than the terminal wraps there.
Lines have no blanks at their ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len

from capcard_sched.model.quoting import escaped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_GAP: Final = "  "


class TextTable:
    """Rows of equal columns; rows that follow keep the widths of those before."""

    def __init__(self, headers: Sequence[str], right: Collection[int] = ()) -> None:
        """`right`: indexes of the right-aligned columns."""
        self._headers, self._right = headers, right
        self._widths: list[int] = []

    def lines(self, rows: Iterable[Sequence[str]]) -> list[str]:
        """The rows as lines; the headers come before the first ones."""
        cells = [[escaped(cell) for cell in row] for row in rows]
        if not self._widths:
            cells.insert(0, list(self._headers))
            self._widths = [0] * len(self._headers)
        for row in cells:
            self._widths = [max(width, cell_len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        return [self._line(row) for row in cells]

    def _line(self, row: Sequence[str]) -> str:
        found = []
        for index, (cell, width) in enumerate(zip(row, self._widths, strict=True)):
            blanks = " " * (width - cell_len(cell))
            found.append(blanks + cell if index in self._right else cell + blanks)
        return _GAP.join(found).rstrip()


def titled(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str] = ()) -> list[str]:
    """A table below its title. `left`: the headers of the columns of texts; others are right-aligned."""
    right = [index for index, header in enumerate(headers) if header not in left]
    return [title, *TextTable(headers, right).lines(rows)]
