"""The table of jobs: rows, filter and order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.insight.diagnosis.lists import job_items
from capcard_sched.web.moments import moment_of
from capcard_sched.web.paging import page_of
from capcard_sched.web.redaction import redactor_of
from capcard_sched.web.views import JobList, JobRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from capcard_sched.web.cluster import Cluster
    from capcard_sched.web.views import Moment

#: Rows of a page.
_ROWS: Final = 100
#: Name of an order to its key; jobs that wait come first by default, the longest wait first.
ORDERS: Final[dict[str, Callable[[JobRow], Any]]] = {
    "wait": lambda row: (not row.stage, -(row.wait_seconds or 0), row.namespace, row.name),
    "name": lambda row: (row.name, row.namespace),
    "queue": lambda row: (row.queue, row.name),
    "age": lambda row: (-(row.age_seconds or 0), row.name),
    "pods": lambda row: (-row.pods, row.name),
    "phase": lambda row: (row.phase, row.name),
}


def job_rows(cluster: Cluster, items: Iterable[dict[str, Any]]) -> list[JobRow]:
    """Those items of `job list` that the viewer may see, as rows."""
    redactor = redactor_of(cluster)
    return [
        JobRow(
            namespace=item["namespace"],
            name=item["name"],
            kind=item["kind"],
            queue=item["queue"],
            phase=item["phase"],
            stage=item["stage"],
            scheduled=item["scheduled"],
            pods=item["pods"],
            min_available=item["minAvailable"],
            running=item["running"],
            succeeded=item["succeeded"],
            failed=item["failed"],
            created=item["created"],
            age_seconds=item["ageSeconds"],
            wait_seconds=item["waitSeconds"],
            reason=redactor.text(item["reason"]),
        )
        for item in items
        if cluster.may_see(item["namespace"])
    ]


def all_jobs(cluster: Cluster) -> list[dict[str, Any]]:
    """The items of `job list`, of all namespaces."""
    return cluster.part("jobs", lambda: job_items(cluster.core, cluster.objects, cluster.now, cluster.headlines()))


def visible_jobs(cluster: Cluster) -> list[JobRow]:
    return job_rows(cluster, all_jobs(cluster))


def job_list(cluster: Cluster, query: Mapping[str, str]) -> JobList:
    """The page of jobs: those of the filters queue, namespace, stage and text, in the order of `sort`.

    Raises ValueError for an unknown order.
    """
    return job_page(moment_of(cluster), visible_jobs(cluster), query)


def job_page(moment: Moment, rows: Sequence[JobRow], query: Mapping[str, str]) -> JobList:
    """The page of some jobs. Raises ValueError for an unknown order."""
    sort = query.get("sort") or "wait"
    if sort not in ORDERS:
        raise ValueError(f"sort: {sort!r}: accepted: {', '.join(ORDERS)}")
    queue, namespace, stage, text = (query.get(name, "") for name in ("queue", "namespace", "stage", "text"))
    wanted = text.lower()
    found = [
        row
        for row in rows
        if (not queue or row.queue == queue)
        and (not namespace or row.namespace == namespace)
        and (not stage or row.stage == stage)
        and (not wanted or wanted in f"{row.namespace}/{row.name} {row.reason}".lower())
    ]
    shown, page, pages = page_of(sorted(found, key=ORDERS[sort]), query, _ROWS)
    return JobList(
        moment=moment,
        queue=queue,
        namespace=namespace,
        stage=stage,
        text=text,
        sort=sort,
        matching=len(found),
        total=len(rows),
        page=page,
        pages=pages,
        items=tuple(shown),
        queues=tuple(sorted({row.queue for row in rows})),
        namespaces=tuple(sorted({row.namespace for row in rows})),
        stages=tuple(sorted({row.stage for row in rows} - {""})),
    )
