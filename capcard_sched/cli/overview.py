"""The tables of `simulate`: those of the lists of jobs and queues, cards by model, shared cards and evictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from capcard_sched.cli.capacity import read_shared_cards
from capcard_sched.cli.job import LISTING as JOBS
from capcard_sched.cli.job import read_jobs
from capcard_sched.cli.lists import Listing, Printer, field
from capcard_sched.cli.output import put
from capcard_sched.cli.queue import LISTING as QUEUES
from capcard_sched.cli.queue import read_queues
from capcard_sched.model.quoting import plural
from capcard_sched.model.timestamps import span
from capcard_sched.model.workload import workload_of
from capcard_sched.reports.evictions import preemptor_text
from capcard_sched.reports.shared_cards import is_pending, shared_cards_table
from capcard_sched.reports.tables import titled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.cli.sources.inputs import LoadedCluster

#: Jobs: the maximum listed; with more, the longest pending ones come first.
_MOST_JOBS: Final = 100
_CARDS: Final = Listing(
    "Card",
    (field("CARD", "name"), field("NODES", "nodes"), field("TOTAL", "total"), field("USED", "used"),
     field("FREE", "free")),
    lambda card: f"card/{card['name']}",
)  # fmt: skip


class EvictionRow(NamedTuple):
    """One evicted pod."""

    #: Seconds since the start.
    at: float
    pod: str
    node: str
    reason: str


def print_overview(found: LoadedCluster, elapsed: float, evictions: Sequence[EvictionRow]) -> None:
    """Print jobs, queues, cards and evictions; empty tables are omitted. `elapsed` in seconds."""
    jobs = read_jobs(found)
    shown = _most_urgent(jobs)
    _print("Jobs", JOBS, shown)
    if len(shown) < len(jobs):
        put(f"... and {plural(len(jobs) - len(shown), 'more job')}")
    assert QUEUES.arrange is not None
    _print("Queues", QUEUES._replace(remarks=lambda _: ()), QUEUES.arrange(read_queues(found)))
    _print("Cards", _CARDS, card_totals(found))
    for line in shared_cards_table(read_shared_cards(found)):
        put(line)
    if evictions:
        names = _workloads(found)
        rows = [(span(row.at), row.pod, row.node, preemptor_text(row.reason, names)) for row in evictions]
        for line in titled("Evictions", ("AT", "POD", "NODE", "PREEMPTOR"), rows, {"POD", "NODE", "PREEMPTOR"}):
            put(line)
    ready = sum(map(_has_started, jobs))
    pending = sum(map(is_pending, found.objects.all_of("Pod")))
    put(f"After {span(elapsed)}: {ready}/{len(jobs)} jobs reached minAvailable; {plural(pending, 'pod')} pending.")


def _has_started(job: dict[str, Any]) -> bool:
    """Whether the minimum of a job is scheduled. The minimum of pods whose PodGroup is missing is not known."""
    has_minimum = bool(job["podGroup"] or job["minAvailable"] or not job["pods"])
    return has_minimum and bool(job["scheduled"] >= job["minAvailable"])


def _workloads(found: LoadedCluster) -> dict[str, str]:
    """Pods, as namespace/name, to the names of their workloads."""
    tasks = found.core.snapshot().state.tasks.values()
    return {task.key: workload_of(task.job).partition("/")[2] or task.name for task in tasks if task.job}


def _print(title: str, listing: Listing, items: list[dict[str, Any]]) -> None:
    if items:
        put(title)
        Printer(listing, "table", all_namespaces=True).print_list(items)


def _most_urgent(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `_MOST_JOBS` jobs; with more, pending jobs before scheduled ones, the longest wait first."""
    if len(jobs) <= _MOST_JOBS:
        return jobs
    urgent = sorted(jobs, key=lambda job: (job["scheduled"] >= job["minAvailable"], -(job["waitSeconds"] or 0)))
    return urgent[:_MOST_JOBS]


def card_totals(found: LoadedCluster) -> list[dict[str, Any]]:
    """Every whole card over all nodes, in order of name: the sums of `card list`."""
    from capcard_sched.framework.explain.capacity import CapacityReader

    sums: dict[str, dict[str, Any]] = {}
    for card, use in CapacityReader(found.core.snapshot()).list_cards():
        row = sums.setdefault(card, {"name": card, "nodes": 0, "total": 0.0, "used": 0.0, "free": 0.0})
        row["nodes"] += 1
        for name, amount in (("total", use.total), ("used", use.used), ("free", use.free)):
            row[name] += amount
    return [row for _, row in sorted(sums.items())]
