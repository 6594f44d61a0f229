"""Pages of long lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")
#: Digits of the number of a page: int() takes quadratic time and refuses long texts in its own words.
_MOST_DIGITS: Final = 9


def page_of(items: Sequence[T], query: Mapping[str, str], rows: int) -> tuple[Sequence[T], int, int]:
    """The items of the page of a query, its number from 1, and the number of pages. Raises ValueError."""
    pages, text = max(1, -(-len(items) // rows)), query.get("page") or "1"
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    if not is_number or not 1 <= int(text) <= pages:
        raise ValueError(f"page: {text!r}: expected a number from 1 to {pages}")
    page = int(text)
    return items[(page - 1) * rows : page * rows], page, pages
