"""The end of each unfinished job, estimated: declared on the job, from like jobs, or by its deadline."""

from __future__ import annotations

import math
from random import Random
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.controllers.jobs.phases import FINISHED
from capcard_sched.controllers.objects import (
    JOB,
    POD,
    POD_GROUP,
    annotations_of,
    has_ended,
    is_terminating,
    job_phase,
    key_of,
    meta,
    spec,
)
from capcard_sched.insight.estimates.job_runs import (
    RunCollector,
    group_key,
    is_service,
    job_key,
    pod_runs,
    shape_of,
    start_of,
    vcjob_key,
    workload_name,
)
from capcard_sched.model.annotations import RUNNING_ESTIMATE, SIMULATION_DURATION
from capcard_sched.validation.hint_checks import running_estimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.insight.estimates.durations import DurationTable, JobFeatures
    from capcard_sched.model.diagnosis import EstimateSource
    from capcard_sched.simulation.store import Store


#: Runs with drawn ends: the 2nd, 10th and 18th start are the percentiles 10, 50 and 90, without interpolation.
RUNS: Final = 19
#: Correlation of the durations of two jobs: jobs of one time are alike, and share the error of their estimates.
_COMMON: Final = 0.2
#: Normal scores of the quantiles, ascending.
_SCORES: Final = tuple(NormalDist().inv_cdf(rank / (RUNS + 1)) for rank in range(1, RUNS + 1))


class UnfinishedJob(NamedTuple):
    """A job of a state whose pods run, wait, or do not exist yet."""

    #: As by `job_key`.
    key: str
    shape: JobFeatures
    #: Pods that run before the job counts as started.
    minimum: int
    #: Unix seconds at which its first pod started; None before.
    start: float | None
    #: Running pods.
    running: int
    #: Seconds that the job runs in all, as declared, and where; None without a declaration.
    declared: float | None
    source: EstimateSource
    #: Seconds after which the kubelets end its pods; None without a deadline.
    deadline: float | None
    is_service: bool


class EndEstimate(NamedTuple):
    """The basis of an estimate. `like_jobs` and `alike`: of source `LikeJobs`."""

    source: EstimateSource
    like_jobs: int = 0
    alike: str = ""


class EndEstimator:
    """Estimates ends of the jobs of one state, at one moment."""

    def __init__(self, table: DurationTable, now: float) -> None:
        self._table = table
        self._now = now

    def estimate(self, job: UnfinishedJob) -> EndEstimate:
        """The basis of `draw`."""
        age = self._age(job)
        if job.source == "Simulation" or (job.declared is not None and job.declared > age):
            return EndEstimate(job.source)
        found = None if job.is_service else self._table.like_jobs(job.shape, age)
        if found is not None:
            return EndEstimate("LikeJobs", found.jobs, found.alike)
        return EndEstimate("ActiveDeadline" if job.deadline is not None and job.deadline > age else "Unknown")

    def draw(self, job: UnfinishedJob, run: int) -> float | None:
        """Seconds that a job runs in all, more than it has run already; None: no end is known.

        Over the runs 0 to `RUNS - 1` a job takes each of the quantiles 1/20 to 19/20 of its durations once, in the
        order of `quantile_ranks`: a Latin hypercube sample of the durations of all jobs.
        """
        age = self._age(job)
        if job.declared is not None and job.declared > age:
            return job.declared
        found = None
        if not job.is_service:
            found = self._table.quantile(job.shape, age, quantile_ranks(job.key)[run] / (RUNS + 1))
        if job.deadline is not None and job.deadline > age:
            return job.deadline if found is None else min(found, job.deadline)
        return found

    def _age(self, job: UnfinishedJob) -> float:
        return 0.0 if job.start is None else max(self._now - job.start, 0.0)


def quantile_ranks(key: str) -> tuple[int, ...]:
    """The quantile of a job in each run: each of 1 to `RUNS` once.

    A factor that all jobs have in common makes durations long in late runs and short in early ones; the rest is an
    order of the job's own. So a sum of durations varies as sums of correlated ones do.
    """
    own = Random(key).sample(_SCORES, RUNS)  # noqa: S311 - no secret
    scores = [
        math.sqrt(_COMMON) * common + math.sqrt(1 - _COMMON) * score for common, score in zip(_SCORES, own, strict=True)
    ]
    ranks = [0] * RUNS
    for rank, run in enumerate(sorted(range(RUNS), key=scores.__getitem__), start=1):
        ranks[run] = rank
    return tuple(ranks)


def unfinished_jobs(store: Store) -> Iterator[UnfinishedJob]:
    """The unfinished jobs of a state: those with pods or a PodGroup, and vcjobs."""
    collector = RunCollector(0.0)
    pods: dict[str, list[JsonObject]] = {}
    groups: dict[str, JsonObject] = {}
    vcjobs = {vcjob_key(job): job for job in store.list(JOB)}
    for group in store.list(POD_GROUP):
        collector.add_group(group)
        groups[group_key(group)] = group
    for pod in store.list(POD):
        if not has_ended(pod):
            pods.setdefault(job_key(pod), []).append(pod)
    for key in {**pods, **groups, **vcjobs}:
        of, vcjob = pods.get(key, []), vcjobs.get(key)
        if (vcjob is None or job_phase(vcjob) not in FINISHED) and (of or vcjob is not None):
            yield _job(key, of, groups.get(key), vcjob, collector)


def _job(
    key: str, pods: Sequence[JsonObject], group: JsonObject | None, vcjob: JsonObject | None, collector: RunCollector
) -> UnfinishedJob:
    holder = pods[0] if pods else vcjob
    assert holder is not None
    namespace = key_of(holder)[0]
    templates = [(pod, 1) for pod in pods] or [
        (task.get("template") or {}, int(task.get("replicas", 1))) for task in spec(vcjob or {}).get("tasks") or ()
    ]
    queue = str(spec(vcjob).get("queue") or "default") if vcjob is not None else collector.queue_of(holder)
    name = str(meta(vcjob)["name"]) if vcjob is not None else workload_name(holder)
    minimum = spec(vcjob or {}).get("minAvailable") or spec(group or {}).get("minMember") or 1
    starts = [start for pod in pods if not is_terminating(pod) and (start := start_of(pod)) is not None]
    declared, source = _declared([template for template, _ in templates], group, vcjob)
    deadlines = [spec(template).get("activeDeadlineSeconds") for template, _ in templates]
    limits = [float(deadline) for deadline in deadlines if deadline]
    return UnfinishedJob(
        key=key,
        shape=shape_of(templates, queue, namespace, name),
        minimum=max(int(minimum), 1),
        start=min(starts, default=None),
        running=sum(not is_terminating(pod) and (start_of(pod) is not None or pod_runs(pod)) for pod in pods),
        declared=declared,
        source=source,
        deadline=max(limits) if limits and len(limits) == len(deadlines) else None,
        is_service=bool(pods) and is_service(pods[0]),
    )


def _declared(
    templates: Sequence[JsonObject], group: JsonObject | None, vcjob: JsonObject | None
) -> tuple[float | None, EstimateSource]:
    """The declared duration, and where it is declared. An invalid one counts as absent: `problems` names it."""
    notes = [(template.get("metadata") or {}).get("annotations") or {} for template in templates]
    if notes and all(SIMULATION_DURATION in each for each in notes):
        return None, "Simulation"
    notes += [annotations_of(holder) for holder in (group, vcjob) if holder is not None]
    found = [seconds for each in notes if (seconds := running_estimate(each.get(RUNNING_ESTIMATE))) is not None]
    if found:
        return max(found), "Annotation"
    seconds = running_estimate(spec(vcjob or {}).get("runningEstimate"))
    return seconds, "RunningEstimate" if seconds is not None else "Unknown"
