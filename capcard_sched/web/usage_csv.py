"""Groups of card-hours as CSV: of `usage -o csv` and of the page of usage."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Final

from capcard_sched.model.quoting import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from capcard_sched.web.views import UsageGroup

_AMOUNTS: Final = ("used", "evicted", "quota", "idle", "lent")
#: First characters of a formula; spreadsheets skip space, and read the wide forms as the others.
_FORMULAS: Final = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")
_LATER_FORMULA: Final = re.compile(f'(;[\\s"]*)(?=[{re.escape("".join(sorted(_FORMULAS)))}])')


def usage_csv(by: Sequence[str], groups: Iterable[UsageGroup], more: Mapping[str, Sequence[str]] | None = None) -> str:
    """One row per group: its names, card-hours with two decimals, jobs, waits in seconds; "" for what it has not.

    `more`: names and cells of further columns.
    """
    more = more or {}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*by, *_AMOUNTS, "jobs", "wait_p50", "wait_p90", *more])
    for index, group in enumerate(groups):
        amounts = [getattr(group, name) for name in _AMOUNTS]
        waits = [group.wait_p50, group.wait_p90]
        writer.writerow(
            [
                *map(plain_cell, group.group),
                *("" if amount is None else f"{amount:.2f}" for amount in amounts),
                group.jobs,
                *("" if wait is None else f"{wait:.3f}" for wait in waits),
                *(cells[index] for cells in more.values()),
            ]
        )
    return text.getvalue()


def plain_cell(value: str) -> str:
    """A text that no spreadsheet takes for a formula: one that begins as one, or with space, gets an apostrophe.

    So does a part behind a semicolon, which begins a cell where the comma is the decimal separator. Control characters
    are escaped: a line break is a row to many readers.
    """
    first, text = value[:1], _LATER_FORMULA.sub(r"\1'", escaped(value))
    return f"'{text}" if first in _FORMULAS or first.isspace() else text
