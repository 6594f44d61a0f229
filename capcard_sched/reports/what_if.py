"""Prints the report of `what-if`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from capcard_sched.model.quantity import shown_amount
from capcard_sched.model.quoting import brief, plural
from capcard_sched.model.timestamps import span
from capcard_sched.reports.terminal import console_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.trials import JobChange, PodCounts, RestartedPods, WhatIfReport


def print_what_if(report: WhatIfReport) -> None:
    """Print a report on standard output."""
    console = console_for()
    console.print(Text(_summary(report), "bold"))
    changes = (*report.starts, *report.blocked, *report.moved)
    tables: list[tuple[tuple[str, ...], list[tuple[str, ...]]]] = [
        (
            ("JOB", "CHANGE", "WAIT BEFORE", "WAIT AFTER"),
            [(job.job, _change(job), _wait(job.wait_before), _wait(job.wait_after)) for job in changes],
        ),
        (("JOB", "PODS THAT RESTART", "RUN AGAIN"), [(one.job, str(one.pods), _again(one)) for one in report.restarts]),
        (("JOB", "PODS BEFORE", "PODS AFTER"), _counts(report.pods)),
        (("EVICTED JOB", "PODS BEFORE", "PODS AFTER"), _counts(report.evictions)),
        (
            ("QUEUE", "CARD OR RESOURCE", "USED BEFORE", "USED AFTER"),
            [
                (row.queue, row.resource, shown_amount(row.resource, row.before), shown_amount(row.resource, row.after))
                for row in report.usage
            ],
        ),
        (
            ("CARD", "STRANDED BEFORE", "STRANDED AFTER"),
            [(row.card, f"{row.before:g}", f"{row.after:g}") for row in report.stranded],
        ),
    ]
    for headers, rows in tables:
        if rows:
            console.print("")
            console.print(_table(headers, rows))


def _counts(found: Iterable[PodCounts]) -> list[tuple[str, ...]]:
    return [(count.job, str(count.before), str(count.after)) for count in found]


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
    if not found:
        found.append("no job waits longer")
    if report.restarts:
        pods = sum(one.pods for one in report.restarts)
        of = brief([f"{one.job} ({one.pods})" for one in report.restarts])
        found.append(f"{plural(pods, 'pod')} {'restarts' if pods == 1 else 'restart'}: {of}")
    return f"{'; '.join(found)}."


def _change(job: JobChange) -> str:
    """`starts`, `no longer starts`, `starts 5m29s later`."""
    if job.wait_before is None or job.wait_after is None:
        return "starts" if job.wait_before is None else "no longer starts"
    return f"starts {span(abs(job.added_wait))} {'later' if job.added_wait > 0 else 'earlier'}"


def _again(restart: RestartedPods) -> str:
    return "" if restart.wait is None else f"after {span(restart.wait)}"


def _wait(seconds: float | None) -> str:
    return "never" if seconds is None else span(seconds)


def _table(headers: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(*headers, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table
