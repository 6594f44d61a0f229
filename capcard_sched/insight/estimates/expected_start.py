"""Expected starts: a copy of the cluster runs forward in the simulator, with the ends of jobs drawn from estimates.

The state is loaded once; each run is a forked copy (`forked_copy`) with its own ends. No further jobs arrive.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.controllers.objects import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    EVENT,
    JOB,
    POD,
    POD_GROUP,
    REPLICA_SET,
    STATEFUL_SET,
    annotations_of,
    controller_key,
    has_ended,
    identity,
    meta,
    spec,
    status,
)
from capcard_sched.framework.explain.never import AWAITS_NODES, without_never
from capcard_sched.framework.explain.sentences import lower
from capcard_sched.insight.estimates.admission_times import progress_of
from capcard_sched.insight.estimates.durations import DurationTable
from capcard_sched.insight.estimates.estimates import RUNS, EndEstimator, UnfinishedJob, unfinished_jobs
from capcard_sched.insight.estimates.job_runs import group_key, job_key, pod_runs, runs_of_state, vcjob_key
from capcard_sched.insight.estimates.start_watch import StartWatch
from capcard_sched.insight.sources.changes import free_quota
from capcard_sched.insight.trials.attempt import NEVER_WITH_NODES
from capcard_sched.insight.trials.forked_copy import ForkedCopyError, in_copy
from capcard_sched.model.annotations import SIMULATION_DURATION
from capcard_sched.model.diagnosis import NEEDS_CHANGE, STAGES, AwaitedEnd, ExpectedStart, no_start
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.kube_groups import job_name
from capcard_sched.model.namespace_queues import queue_id, queue_ref
from capcard_sched.model.quoting import brief
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.model.workload import KUBE_KIND, display_name
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.kinds import RESOURCE_QUOTA
from capcard_sched.simulation.kubelet import annotated_end
from capcard_sched.simulation.run import SimulationOptions, SimulationRun
from capcard_sched.simulation.scenario import Entry, Origin, Scenario, in_creation_order
from capcard_sched.simulation.workloads.claims import without_consumers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.core import Core, StepResult
    from capcard_sched.framework.session.action import SessionProgress
    from capcard_sched.insight.estimates.durations import JobRun
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.diagnosis import JobDiagnosis, Stage
    from capcard_sched.model.ownership import Owner

_PERCENTILES: Final = (0.1, 0.5, 0.9)
_MOST_AWAITED: Final = 4
_RETRIES_PER_TURN: Final = 3
_MOST_NAMES: Final = 3
#: Kinds that a forward run leaves out: events are no input, and a CronJob would add jobs.
_LEFT_OUT: Final = frozenset({EVENT, CRON_JOB})
_WORKLOADS: Final = frozenset({POD, POD_GROUP, JOB, DEPLOYMENT, REPLICA_SET, STATEFUL_SET, DAEMON_SET})
_ORIGIN: Final = Origin("state", 1)
_NOT_ALONE: Final = "never: with every other job ended it does not start"
_NOT_BY_ENDS: Final = "the end of other jobs does not start it"
#: State of a queue in which no job of it starts, to the expected start.
_WITHOUT_STARTS: Final = {
    "Closed": "never, unless the queue is opened",
    "Closing": "never, unless the queue is opened",
    "missing": "unknown until the queue exists",
}


def never_starts(summary: str) -> str:
    """The reason of a job that no end of other jobs starts, with the first sentence of its diagnosis."""
    return f"never: {lower(without_never(summary).removesuffix(NEVER_WITH_NODES))}"


def reason_of_stage(stage: Stage, summary: str) -> str:
    """Why no end of other jobs starts a job of a stage, with the first sentence of its diagnosis; "" if one may."""
    if stage == "CannotStart" or summary.endswith(NEVER_WITH_NODES):
        return never_starts(summary)
    return STAGES[stage] if stage in NEEDS_CHANGE or summary.startswith(AWAITS_NODES) else ""


class KnownState(NamedTuple):
    """A state, and what is known about ends of jobs."""

    objects: Sequence[JsonObject]
    #: Unix seconds.
    now: float
    conf: Conf
    #: Uids of running pods to the ends that a simulation has for them, microseconds since `EPOCH`.
    ends: Mapping[str, int] = MappingProxyType({})
    #: Recordings that the state comes from.
    recorded: tuple[Path, ...] = ()
    #: What the sessions of the scheduler kept; None if it is not known.
    progress: SessionProgress | None = None


class DrawnRun(msgspec.Struct, frozen=True):
    """The result of one run."""

    #: Job to the Unix seconds of its start.
    starts: dict[str, float]
    #: Job to the jobs that ended directly before it started, and whether deleted pods ended alone.
    awaited: dict[str, tuple[tuple[str, bool], ...]]
    #: Jobs that still run when nothing more happens.
    holding: tuple[str, ...] = ()
    #: Job behind the head of its FIFO queue at the end, to that head.
    heads: dict[str, str] = {}
    #: Errors of plugins.
    errors: tuple[str, ...] = ()


class _Trial(msgspec.Struct, frozen=True):
    """The result of a run without other jobs."""

    starts: bool


class Forecast:
    """Expected starts of the waiting jobs of one state."""

    def __init__(self, core: Core, state: KnownState, history: Iterable[JobRun] = ()) -> None:
        """`core` gives the parameters and stays as it is. `history`: runs of jobs besides those of the state.

        Cost: that of loading the state into a simulator.
        """
        self._state = state
        self._scheduler = _WatchedCore(
            core.sibling(state.conf, state.progress or progress_of(state.objects, state.now))
        )
        self._run = self._loaded(state.objects)
        runs = {(run.key, run.start): run for run in (*history, *runs_of_state(state.objects, state.now))}
        self._estimator = EndEstimator(DurationTable(runs.values()), state.now)
        self._jobs = {job.key: job for job in unfinished_jobs(self._run.cluster.store)}
        self._calls_webhook = state.conf.option("extender") is not None

    def _heads(self) -> dict[str, str]:
        """The jobs behind the head of their FIFO queue, to that head."""
        snapshot = self._scheduler.core.snapshot()
        blocked = snapshot.session.results.blocked_by_head if snapshot.session is not None else {}
        jobs = (snapshot.state.jobs.get(key) for key in {*blocked, *blocked.values()})
        known = {job.key: display_name(job) for job in jobs if job is not None}
        known = {key: name if name in self._jobs else key for key, name in known.items()}
        return {known[key]: known[head] for key, head in blocked.items() if key in known and head in known}

    def _loaded(self, objects: Sequence[JsonObject]) -> SimulationRun:
        """A simulation of the objects with the scheduler, before its first session. No pod ends."""
        now = round((self._state.now - EPOCH) * SECOND)
        state = self._scheduler.core.snapshot().state
        names, begin = tuple(sorted(state.scheduler_names)), now + SECOND
        options = SimulationOptions(names, state.default_queue, begin=begin, started=self._state.now)
        options = options._replace(retries=_turns(objects), card_labels=state.card_labels)
        run = SimulationRun(_scenario(objects), self._scheduler, options)
        run.cluster.kubelet.use_ends(lambda _pod, _started: None)
        run.load()
        self._scheduler.core.apply_all(run.drain())
        return run

    def waiting(self) -> list[str]:
        """Keys of the jobs that have not started: of PodGroups, or `namespace/job/name` of vcjobs. Sorted."""
        return sorted(key for key, job in self._jobs.items() if job.running < job.minimum)

    def key_of(self, namespace: str, workload: str, pod_group: str) -> str:
        """The key of a job, named as in a diagnosis."""
        key = f"{namespace}/{workload}"
        if key in self._jobs:
            return key
        kind, _, name = workload.partition("/")
        if kind == KUBE_KIND:
            return f"{namespace}/{job_name(name)}"
        pod = self._run.cluster.store.get(POD, namespace, name) if kind == "pod" else None
        return f"{namespace}/{pod_group}" if pod is None else job_key(pod)

    def expected_starts(self, keys: Collection[str]) -> dict[str, ExpectedStart]:
        """The expected start of each waiting job among `keys`."""
        wanted = {key for key in self.waiting() if key in keys}
        if not wanted:
            return {}
        if self._calls_webhook:
            return {key: self._unknown("the extender decides: a run would call its webhook") for key in wanted}
        drawn = any(self._estimator.estimate(job).source == "LikeJobs" for job in self._jobs.values())
        try:
            runs = [in_copy(partial(self._forward, number, wanted), DrawnRun) for number in range(RUNS if drawn else 1)]
        except ForkedCopyError as error:
            return {key: self._unknown(f"the simulation failed: {error}") for key in wanted}
        errors = sorted({error for run in runs for error in run.errors})
        if errors:
            return {key: self._unknown(f"the simulation failed: {errors[0]}") for key in wanted}
        return {key: self._summary(self._jobs[key], runs) for key in sorted(wanted)}

    def _forward(self, number: int, wanted: set[str]) -> DrawnRun:
        """One run, in a copy of the process."""
        cluster = self._run.cluster
        drawn = {key: self._estimator.draw(job, number) for key, job in self._jobs.items()}
        cluster.kubelet.use_ends(partial(self._end_of, drawn))
        watch = StartWatch({key: self._jobs[key] for key in wanted}, self._run)
        cluster.store.observe(watch.observe)
        cluster.settle()
        self._run.finish(lambda: not watch.waiting)
        starts = {key: EPOCH + moment / SECOND for key, moment in watch.starts.items()}
        pods = cluster.store.list(POD) if watch.waiting else ()
        holding = tuple(sorted({job_key(pod) for pod in pods if pod_runs(pod)}))
        heads = self._heads() if watch.waiting else {}
        return DrawnRun(starts, watch.awaited, holding, heads, tuple(self._scheduler.errors))

    def _end_of(self, drawn: Mapping[str, float | None], pod: JsonObject, started: int) -> int | None:
        """Microseconds: with the job for pods of a job that runs already, else its duration after `started`."""
        if SIMULATION_DURATION in annotations_of(pod):
            known = self._state.ends.get(meta(pod)["uid"])
            return annotated_end(pod, started) if known is None else known
        key = job_key(pod)
        duration = drawn.get(key)
        if duration is None:
            return None
        start = self._jobs[key].start
        return started + round(duration * SECOND) if start is None else round((start + duration - EPOCH) * SECOND)

    def explain(self, found: JobDiagnosis) -> ExpectedStart | None:
        """The expected start of the job of a diagnosis, which waits; None when a pod of it started meanwhile."""
        if found.stage == "CannotStart":
            return self._unknown(never_starts(found.summary))
        if found.queue is not None and found.queue.state in _WITHOUT_STARTS and found.stage not in NEEDS_CHANGE:
            return self._unknown(_WITHOUT_STARTS[found.queue.state])
        if not found.starts_alone:
            return self._unknown(never_starts(found.summary))
        if reason := reason_of_stage(found.stage, found.summary):
            return self._unknown(reason)
        key = self.key_of(found.namespace, found.workload, found.pod_group)
        if key not in self._jobs:
            return self._unknown("its pods do not exist yet, and the Job that they are made from is not known")
        expected = self.expected_starts({key}).get(key)
        if found.awaits_objects and expected is not None and expected.p50 is None:
            return self._unknown(lower(found.summary))
        return expected

    def _summary(self, job: UnfinishedJob, runs: Sequence[DrawnRun]) -> ExpectedStart:
        starts = sorted(run.starts.get(job.key, float("inf")) for run in runs)
        p10, p50, p90 = (
            _known(starts[round(share * (len(runs) + 1)) - 1 if len(runs) > 1 else 0] - self._state.now // 1)
            for share in _PERCENTILES
        )
        if starts[0] == float("inf") and (reason := self._without_ends(job, runs[0].heads.get(job.key, ""))):
            return self._unknown(reason)
        awaited = Counter(end for run in runs for end in run.awaited.get(job.key, ()))
        reason = ""
        if p90 is None:
            never = sum(start == float("inf") for start in starts)
            reason = "" if never == len(runs) else f"no start in {never} of {len(runs)} runs: "
            reason += self._reason(job, {key for run in runs if job.key not in run.starts for key in run.holding})
        return ExpectedStart(
            computed_at=format_timestamp(self._state.now),
            p10=p10,
            p50=p50,
            p90=p90,
            runs=len(runs),
            awaited=tuple(self._awaited(*end, count) for end, count in awaited.most_common(_MOST_AWAITED)),
            reason=reason,
        )

    def _without_ends(self, job: UnfinishedJob, first: str) -> str:
        """Why no end of other jobs starts a job behind `first`, or ""; "" for one that such ends may start."""
        ref = queue_ref(queue_id(job.shape.queue, job.shape.namespace))
        queue = self._run.cluster.store.get(ref.kind, ref.namespace, ref.name)
        state = "missing" if queue is None else str(status(queue).get("state") or "Open")
        if state in _WITHOUT_STARTS:
            return _WITHOUT_STARTS[state]
        if not self._starts_alone(job):
            return STAGES["Incomplete"] if self._lacks_members(job) else _NOT_ALONE
        head = self._jobs.get(first)
        if head is not None and not self._starts_alone(head):
            return f"never, unless {self._name(head.key)}, the first job of its FIFO queue, changes or is deleted"
        return ""

    def _lacks_members(self, job: UnfinishedJob) -> bool:
        """Whether pods of the gang are missing: those that its controller creates may start it."""
        found = self._scheduler.core.snapshot().state.jobs.get(job.key)
        if found is None or not found.tasks:
            return False
        return found.valid_tasks < found.min_available or not found.roles_valid()

    def _starts_alone(self, job: UnfinishedJob) -> bool:
        """Whether the job starts with every other job ended. In a copy of the process."""
        try:
            return in_copy(partial(self._alone, _others(self._state.objects, job.key), job), _Trial).starts
        except ForkedCopyError:
            return True  # not known: no claim is made

    def _alone(self, others: set[str], job: UnfinishedJob) -> _Trial:
        objects = [_without(obj, others) for obj in self._state.objects if meta(obj).get("uid") not in others]
        self._scheduler = _WatchedCore(self._scheduler.core.sibling(self._state.conf))
        run = self._loaded(objects)
        watch = StartWatch({job.key: job}, run)
        run.cluster.store.observe(watch.observe)
        run.cluster.settle()
        run.finish(lambda: not watch.waiting)
        return _Trial(not watch.waiting)

    def _awaited(self, key: str, deleted: bool, count: int) -> AwaitedEnd:
        found = self._estimator.estimate(self._jobs[key])
        source = "Termination" if deleted and found.source == "Unknown" else found.source
        return AwaitedEnd(
            workload=self._name(key), source=source, like_jobs=found.like_jobs, alike=found.alike, runs=count
        )

    def _reason(self, job: UnfinishedJob, holding: set[str]) -> str:
        """Why no start is known: the jobs that do not end, of its queue or with its card; without any, all others."""
        others = [other for key in holding if (other := self._jobs.get(key)) is not None]
        in_the_way = [other for other in others if other.shape.queue == job.shape.queue or _share_card(other, job)]
        open_end = sorted(other.key for other in in_the_way or others)
        if not open_end:
            return _NOT_BY_ENDS
        return f"no estimate of the end of {brief([self._name(key) for key in open_end], _MOST_NAMES)}"

    def _unknown(self, reason: str) -> ExpectedStart:
        return no_start(self._state.now, reason)

    def _name(self, key: str) -> str:
        job = self._scheduler.core.snapshot().state.jobs.get(key)
        return (display_name(job) if job is not None else "") or key


def _known(seconds: float) -> float | None:
    return None if seconds == float("inf") else max(round(seconds, 3), 0.0)


def _share_card(one: UnfinishedJob, other: UnfinishedJob) -> bool:
    return bool(one.shape.card) and bool(set(one.shape.card.split("|")) & set(other.shape.card.split("|")))


def _others(objects: Sequence[JsonObject], key: str) -> set[str]:
    """Uids of the objects of other jobs: pods of all schedulers, PodGroups and workloads that own none of its pods."""
    own = {meta(obj).get("uid") for obj in objects if _key_of(obj) == key}
    owners = {obj["metadata"].get("uid"): controller_key(obj) for obj in objects}
    by_key = {identity(obj): meta(obj).get("uid") for obj in objects}
    for uid in list(own):
        while (owner := owners.get(uid)) is not None and (uid := by_key.get(owner)) is not None and uid not in own:
            own.add(uid)
    return {meta(obj).get("uid") or "" for obj in objects if kind_of(obj) in _WORKLOADS} - own


def _without(obj: JsonObject, others: Collection[str]) -> JsonObject:
    """An object without the use by other jobs: of a ResourceClaim, or of a ResourceQuota."""
    if kind_of(obj) == RESOURCE_QUOTA:
        return free_quota(obj)
    return without_consumers(obj, others)


def _key_of(obj: JsonObject) -> str:
    if (kind := kind_of(obj)) == POD:
        return job_key(obj)
    return group_key(obj) if kind == POD_GROUP else vcjob_key(obj) if kind == JOB else ""


def _turns(objects: Sequence[JsonObject]) -> int:
    """Retries in which each job of each queue has its turn: two sessions per turn, beside those of other queues."""
    queues = [spec(obj).get("queue") for obj in objects if kind_of(obj) in {POD_GROUP, JOB}]
    return _RETRIES_PER_TURN * (len(queues) + 1) * len({*queues, None})


def _scenario(objects: Iterable[JsonObject]) -> Scenario:
    """The objects that matter to what follows: neither ended pods without an owner nor their PodGroups."""
    gone: set[Owner] = set()
    entries = []
    for obj in sorted(objects, key=lambda obj: kind_of(obj) != POD):
        kind, owner = kind_of(obj), controller_key(obj)
        if kind == POD and owner is None and has_ended(obj):
            gone.add(identity(obj))
        elif kind not in _LEFT_OUT and owner not in gone:
            entries.append(Entry(kind, obj, _ORIGIN))
    uids = frozenset(str(meta(entry.object).get("uid") or "") for entry in entries)
    return Scenario(in_creation_order(entries), (), uids=uids)


class _WatchedCore:
    """Steps the core and keeps the errors of plugins."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.errors: dict[str, None] = {}

    def step(self, deltas: Sequence[Delta], now: float) -> StepResult:
        result = self.core.step(deltas, now)
        for found in result.report.errors:
            self.errors[f"plugin {found.plugin}, {found.hook}: {found.error}" if found.plugin else found.error] = None
        return result
