"""The first page: cards in use, queues by cards, waiting jobs, alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from capcard_sched.model.annotations import CARD_QUOTA
from capcard_sched.model.diagnosis import STAGES
from capcard_sched.model.node_conditions import lost_word
from capcard_sched.model.status import TaskStatus
from capcard_sched.validation.checks import check_card_quota
from capcard_sched.web.card_sums import card_sums
from capcard_sched.web.job_rows import ORDERS, visible_jobs
from capcard_sched.web.moments import moment_of, past_evictions
from capcard_sched.web.nodes import first_nodes
from capcard_sched.web.quotas import quota_rows
from capcard_sched.web.views import Alert, JobRow, Overview, QuotaRow, StageCount

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from capcard_sched.web.cluster import Cluster

#: Jobs listed.
MOST_WAITING: Final = 12
#: Nodes listed.
_MOST_NODES: Final = 10
#: Alerts listed, by severity.
_MOST_ALERTS: Final = 50
_SEVERITIES: Final = ("error", "warning", "note")
_CANNOT_START: Final = "CannotStart"


def overview(cluster: Cluster, _: Mapping[str, str]) -> Overview:
    """The page of a moment."""
    jobs, rows = visible_jobs(cluster), quota_rows(cluster)
    waiting = sorted((job for job in jobs if job.stage), key=ORDERS["wait"])
    tasks = cluster.core.snapshot().state.tasks.values()
    alerts = sorted(_alerts(cluster, rows, jobs), key=lambda one: (_SEVERITIES.index(one.severity), one.object))
    return Overview(
        moment=moment_of(cluster),
        jobs=len(jobs),
        running_pods=sum(task.status is TaskStatus.RUNNING for task in tasks),
        pending_pods=sum(task.status is TaskStatus.PENDING for task in tasks),
        cards=card_sums(cluster),
        queues=rows,
        stages=stage_counts(waiting),
        waiting=tuple(waiting[:MOST_WAITING]),
        waiting_jobs=len(waiting),
        alerts=tuple(alerts[:_MOST_ALERTS]),
        series=() if cluster.history is None else cluster.history.cards,
        evictions=past_evictions(cluster),
        nodes=first_nodes(cluster, _MOST_NODES),
        all_nodes=len(cluster.core.snapshot().state.nodes),
    )


def stage_counts(waiting: Sequence[JobRow]) -> tuple[StageCount, ...]:
    """Waiting jobs by stage, the most frequent first."""
    found: dict[str, list[JobRow]] = {}
    for job in waiting:
        found.setdefault(job.stage, []).append(job)
    rows = [
        StageCount(
            stage=stage,
            text=STAGES.get(stage, stage),  # type: ignore[call-overload]
            jobs=len(jobs),
            pods=sum(max(0, job.pods - job.scheduled) for job in jobs),
        )
        for stage, jobs in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.jobs, row.stage)))


def _alerts(cluster: Cluster, rows: Sequence[QuotaRow], jobs: Sequence[JobRow]) -> Iterator[Alert]:
    """Malformed objects, limits without effect, nodes that take no pods, jobs that can never start."""
    snapshot = cluster.core.snapshot()
    for resource in cluster.unreadable:
        yield Alert(severity="error", object=resource, message="access denied: figures are incomplete")
    for text in cluster.warnings if cluster.namespaces is None else ():  # they name objects of all namespaces
        object, _, message = text.partition(": ")
        yield Alert(severity="warning", object=object, message=message or text)
    for row in rows:
        queue = snapshot.state.queues.get(row.queue)
        malformed = queue is not None and any(
            finding.severity == "error" for finding in check_card_quota(queue.annotations.get(CARD_QUOTA, ""))
        )
        for warning in row.warnings:
            is_error = malformed and CARD_QUOTA in warning
            link = f"queues/{quote(row.queue, safe='')}"
            yield Alert(
                severity="error" if is_error else "warning", object=f"Queue {row.queue}", message=warning, link=link
            )
    for name, node in sorted(snapshot.state.nodes.by_name.items()):
        link = f"nodes?text={quote(name, safe='')}"
        if word := lost_word(node):
            yield Alert(severity="error", object=f"Node {name}", message=word, link=link)
        elif node.unschedulable:
            yield Alert(severity="note", object=f"Node {name}", message="cordoned", link=link)
    for job in jobs:
        if job.stage == _CANNOT_START:
            link = f"jobs/{quote(job.namespace, safe='')}/{quote(job.name, safe='')}"
            text = job.reason or STAGES["CannotStart"]
            yield Alert(severity="error", object=f"{job.kind} {job.namespace}/{job.name}", message=text, link=link)
