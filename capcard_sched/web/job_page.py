"""The page of one job: its life as stages, its diagnosis with proven fixes, its pods."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from capcard_sched.insight.diagnosis.explain import explain, find
from capcard_sched.insight.trials.forked_copy import ForkedCopyError, in_copy
from capcard_sched.ledger.database import LedgerError
from capcard_sched.model.diagnosis import JobDiagnosis
from capcard_sched.model.timestamps import format_timestamp, parse_time
from capcard_sched.model.workload import own_name
from capcard_sched.web.card_sums import capacity_of
from capcard_sched.web.cluster import DiagnosisRequest
from capcard_sched.web.job_rows import all_jobs, job_rows
from capcard_sched.web.ledger_documents import former_lives
from capcard_sched.web.moments import moment_of, past_evictions
from capcard_sched.web.redaction import redactor_of
from capcard_sched.web.views import JobRow, JobView, PodRow, StagePeriod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.explain.limits import LimitReader
    from capcard_sched.insight.diagnosis.explain import Subject
    from capcard_sched.web.cluster import Cluster
    from capcard_sched.web.history import History
    from capcard_sched.web.views import FormerLife

#: Pods and nodes up to which fixes are searched without a request: a search has hundreds of trials.
_SMALL: Final = 200
#: Pods and nodes up to which a diagnosis tries evictions, and a start without the other jobs, without a request: each
#: trial takes a tenth of a second at this size.
_TRIED: Final = 10_000


def job_view(cluster: Cluster, query: Mapping[str, str]) -> JobView:
    """The page of the job `namespace`/`name`, of the `kind` where it is given; with `fix` fixes are searched.

    Raises LookupError for an unknown job, and for one that the viewer may not see.
    """
    namespace, name, kind = query["namespace"], query["name"], query.get("kind", "").removeprefix("vc")
    unknown = LookupError(f"job {namespace}/{name} does not exist")
    if not cluster.may_see(namespace):
        raise unknown
    subject = find(cluster.core, cluster.objects, namespace, f"{kind}/{name}" if kind else name)
    row = None if subject is None else _row(cluster, subject, namespace, name, kind)
    if subject is None or row is None:
        raise unknown
    full_name = f"{kind}/{name}" if kind else name
    fix = query.get("fix", "") == "1" or _size(cluster) <= _SMALL
    wanted = DiagnosisRequest(namespace, full_name, fix and bool(row.stage), fix, tries_jobs(cluster, query))
    diagnose = cluster.attempted or partial(_in_copy, cluster)
    fixes_error = ""
    try:
        diagnosis = diagnose(wanted)
    except ForkedCopyError as error:
        if not fix:
            raise
        fixes_error, diagnosis = str(error), diagnose(wanted._replace(fix=False, start=False))
    diagnosis = redactor_of(cluster).diagnosis(diagnosis)
    pods = _pods(cluster, subject)
    names = {f"{namespace}/{pod.name}" for pod in pods}
    former: tuple[FormerLife, ...] = ()
    ledger_error = ""
    try:
        former = former_lives(cluster, namespace, row.kind, row.name)
    except LedgerError as error:
        ledger_error = str(error)
    key = subject.job.key if subject.job is not None else ""
    return JobView(
        moment=moment_of(cluster),
        job=row,
        life=_life(cluster, key, row),
        diagnosis=diagnosis,
        pods=pods,
        fixes_searched=fix,
        fixes_error=fixes_error,
        former=former,
        ledger_error=ledger_error,
        evictions=tuple(
            one
            for one in past_evictions(cluster)
            if one.pod in names or (cluster.history is not None and cluster.history.jobs.get(one.pod) == key != "")
        ),
    )


def tries_jobs(cluster: Cluster, query: Mapping[str, str]) -> bool:
    """Whether the page of a job has results of trials: on request, or with at most `_TRIED` pods and nodes."""
    return query.get("fix", "") == "1" or _size(cluster) <= _TRIED


def _size(cluster: Cluster) -> int:
    state = cluster.core.snapshot().state
    return len(state.tasks) + len(state.nodes)


def _in_copy(cluster: Cluster, wanted: DiagnosisRequest) -> JobDiagnosis:
    def answer() -> JobDiagnosis:
        cluster.session()  # attempts every job; of a copy
        return diagnose_attempted(cluster, wanted)

    return in_copy(answer, JobDiagnosis)


def diagnose_attempted(cluster: Cluster, wanted: DiagnosisRequest, limits: LimitReader | None = None) -> JobDiagnosis:
    """The diagnosis of a job, after a session that attempted every job. Changes the core. Raises LookupError.

    `limits`: the reader of the diagnoses of other jobs of this session, reused.
    """
    subject = find(cluster.core, cluster.objects, wanted.namespace, wanted.name)
    if subject is None:
        raise LookupError(f"job {wanted.namespace}/{wanted.name} does not exist")
    found = explain(
        cluster.core,
        cluster.objects,
        subject,
        cluster.now,
        unreadable=cluster.unreadable,
        fix=wanted.fix,
        tries=wanted.tries,
        limits=limits,
    )
    return replace(found, expected_start=cluster.expected_start(found, wanted.start))


def _row(cluster: Cluster, subject: Subject, namespace: str, name: str, kind: str) -> JobRow | None:
    job = subject.job
    if job is not None:
        found_kind, _, found_name = own_name(job).partition("/")
    else:
        found_kind, found_name = kind or "job", name
    for item in all_jobs(cluster):
        is_same = item["name"] == found_name and item["kind"].removeprefix("vc") == found_kind
        if item["namespace"] == namespace and is_same:
            return job_rows(cluster, [item])[0]
    return None


def _pods(cluster: Cluster, subject: Subject) -> tuple[PodRow, ...]:
    """The pods of a job, by name."""
    if subject.job is None:
        return ()
    reader, found = capacity_of(cluster), []
    for task in sorted(subject.job.tasks.values(), key=lambda task: task.name):
        status = (cluster.objects.get("Pod", task.namespace, task.name) or {}).get("status") or {}
        found.append(
            PodRow(
                name=task.name,
                status="Terminating" if task.deleting else status.get("phase") or task.status.title,
                node=task.node.name if task.node is not None else "",
                card=reader.card_on(task.node, task.cls) if task.node is not None else "",
                created=format_timestamp(task.created) if task.created else "",
                restarts=sum(row.get("restartCount") or 0 for row in status.get("containerStatuses") or ()),
            )
        )
    return tuple(found)


def _life(cluster: Cluster, key: str, row: JobRow) -> tuple[StagePeriod, ...]:
    """The stages of a job since its creation; with a history those of its former lives, too."""
    created, age = parse_time(row.created), float(row.age_seconds or 0)
    if not age:
        return ()
    history = cluster.history
    lives = () if history is None else history.lives.get(key, ())
    if history is not None and lives:
        created = min(created, history.begin + lives[0][0])  # the PodGroup of a restarted job is younger
        return _recorded_life(history, lives, created, cluster.now, row)
    waited = min(age, float(age if row.wait_seconds is None and row.stage else row.wait_seconds or 0))
    rest = age - waited
    ended = row.phase == "Completed"
    found = [StagePeriod(stage="waiting", begin=0.0, seconds=waited)]
    if rest > 0:
        found.append(StagePeriod(stage="ended" if ended else "running", begin=waited, seconds=rest))
    return tuple(one for one in found if one.seconds)


def _recorded_life(
    history: History, lives: tuple[tuple[float, float], ...], created: float, now: float, row: JobRow
) -> tuple[StagePeriod, ...]:
    """`lives`: spans since the beginning in which the job had cards; an open one ends with infinity."""
    found: list[StagePeriod] = []
    position, end = 0.0, now - created
    for begun, ended in lives:
        left, right = history.begin + begun - created, min(end, history.begin + ended - created)
        if left >= end or right <= left:
            continue
        if left > position:
            found.append(StagePeriod(stage="waiting", begin=position, seconds=left - position))
        found.append(StagePeriod(stage="running", begin=max(0.0, left), seconds=right - max(0.0, left)))
        position = right
    if position < end:
        has_ended = row.phase == "Completed" and not row.stage
        found.append(StagePeriod(stage="ended" if has_ended else "waiting", begin=position, seconds=end - position))
    return tuple(found)
