"""Values and numbers in messages."""

from __future__ import annotations

from typing import Final

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
