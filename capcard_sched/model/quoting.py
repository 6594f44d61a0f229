"""Values and numbers in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST: Final = 64


def shortened(text: str, most: int = _MOST) -> str:
    """Text of at most `most` characters; the rest is `...`."""
    return text if len(text) <= most else f"{text[:most]}..."


def quoted(text: str) -> str:
    """The same in single quotes."""
    return f"'{shortened(text)}'"


def plural(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def brief(names: Sequence[str], most: int = 4) -> str:
    """The first names of a list and the number of the others: `a, b and 3 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
