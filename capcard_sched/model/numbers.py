"""Numbers in texts that users write: labels, annotations, percentages."""

from __future__ import annotations

from typing import Final

#: The largest number of an int32 field, the default bound.
MAX_INT32: Final = 2**31 - 1


def whole_number(text: str | None, most: int = MAX_INT32) -> int | None:
    """The number from 0 to `most` that a text of ASCII digits spells, None for any other text. Never raises.

    Leading zeros are accepted. `int` alone raises for thousands of digits, and takes quadratic time for fewer.
    """
    if not text or not text.isascii() or not text.isdigit():
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(most)):
        return None
    value = int(digits)
    return value if value <= most else None


def percentage(text: str) -> int:
    """The number of a percentage such as `25%`: larger ones than an int32 count as the largest."""
    number = whole_number(text.removesuffix("%"))
    return MAX_INT32 if number is None else number
