"""Prints the report of `what-if`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from capcard_sched.model.quantity import shown_amount
from capcard_sched.model.quoting import plural
from capcard_sched.model.timestamps import span
from capcard_sched.reports.terminal import console_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.trials import JobChange, WhatIfReport


def print_what_if(report: WhatIfReport) -> None:
    """Print a report on standard output."""
    console = console_for()
    console.print(Text(_summary(report), "bold"))
    rows = [*_rows("starts", report.starts), *_rows("no longer starts", report.blocked), *_rows("moves", report.moved)]
    if rows:
        console.print(_table(("JOB", "CHANGE", "WAIT BEFORE", "WAIT AFTER"), rows))
    for header, found in (("JOB", report.pods), ("EVICTED JOB", report.evictions)):
        if found:
            counts = [(count.job, str(count.before), str(count.after)) for count in found]
            console.print(_table((header, "PODS BEFORE", "PODS AFTER"), counts))
    if report.usage:
        usage = [
            (row.queue, row.resource, shown_amount(row.resource, row.before), shown_amount(row.resource, row.after))
            for row in report.usage
        ]
        console.print(_table(("QUEUE", "CARD OR RESOURCE", "USED BEFORE", "USED AFTER"), usage))


def _summary(report: WhatIfReport) -> str:
    counts = [
        (len(report.starts), "starts", "start"),
        (len(report.blocked), "no longer starts", "no longer start"),
        (sum(job.added_wait > 0 for job in report.moved), "waits longer", "wait longer"),
        (sum(job.added_wait < 0 for job in report.moved), "starts earlier", "start earlier"),
        (sum(count.after > count.before for count in report.pods), "has more pods", "have more pods"),
        (sum(count.after < count.before for count in report.pods), "has fewer pods", "have fewer pods"),
    ]
    found = [
        f"{count} {'job' if count == 1 else 'jobs'} {one if count == 1 else many}"
        for count, one, many in counts
        if count
    ]
    evicted = sum(count.after - count.before for count in report.evictions)
    if evicted:
        found.append(plural(abs(evicted), f"{'more' if evicted > 0 else 'fewer'} eviction"))
    return f"{'; '.join(found) or 'no job changes'}."


def _rows(change: str, jobs: Iterable[JobChange]) -> list[tuple[str, ...]]:
    return [(job.job, change, _wait(job.wait_before), _wait(job.wait_after)) for job in jobs]


def _wait(seconds: float | None) -> str:
    return "never" if seconds is None else span(seconds)


def _table(headers: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(*headers, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    return table
