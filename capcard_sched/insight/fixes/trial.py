"""One trial of a fix: the changes are applied to a copy of the core, and sessions run until nothing happens."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from capcard_sched.controllers.objects import POD, annotations_of, spec
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.insight.fixes.candidates import candidates
from capcard_sched.insight.fixes.commands import render
from capcard_sched.insight.fixes.execution import Execution
from capcard_sched.insight.fixes.kinds import KINDS
from capcard_sched.insight.fixes.scene import Scene
from capcard_sched.insight.sources.changes import count_in_quotas
from capcard_sched.insight.sources.job_pods import pods_of_job
from capcard_sched.insight.trials.change import ProposedChange
from capcard_sched.insight.trials.preemption import EVICTING_ACTIONS
from capcard_sched.insight.trials.trial import PERIOD, advance
from capcard_sched.insight.trials.victims import may_end
from capcard_sched.model.deltas import Delta, ObjectChanged, ObjectGone
from capcard_sched.model.intents import Bind
from capcard_sched.model.limits import ResourceQuotaObject
from capcard_sched.model.objects import PodObject
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.model.trials import StateDifference
from capcard_sched.simulation.kinds import RESOURCE_QUOTA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from capcard_sched.admission.review import ClusterView
    from capcard_sched.framework.core import Core
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.model.intents import Intent
    from capcard_sched.model.job import Job


class FixTrial(msgspec.Struct, frozen=True):
    """The result of one trial."""

    starts: bool
    difference: StateDifference
    #: Pods of the job on nodes at the end.
    placed: int = 0
    #: Running pods of the job that end and are created anew.
    restarted: tuple[str, ...] = ()
    #: Where the job does not start: the diagnosis of the state at the end, and its candidates.
    summary: str = ""
    further: tuple[tuple[ProposedChange, ...], ...] = ()


class FixSubject(NamedTuple):
    """The job to start: its key, the pod of it that the search is about, and its workload, if it is known."""

    key: str
    pod: str
    owner: Json | None
    #: Pods that are to be scheduled of a job that has its minimum; 0 for one that has not.
    pods: int
    #: Its minimum, and its pods.
    minimum: int
    members: int

    @property
    def goal(self) -> str:
        """What a fix achieves."""
        if self.pod:
            return f"pod {self.pod} is scheduled"
        if self.pods:
            return "the pending pod is scheduled" if self.pods == 1 else f"the {self.pods} pending pods are scheduled"
        return f"the job starts with {self.minimum} of its {self.members} pods" if self.is_elastic else "the job starts"

    @property
    def is_elastic(self) -> bool:
        """Whether the job starts with a part of its pods."""
        return 0 < self.minimum < self.members


class FixTrialRun:
    """One set of changes, as printed, executed for the core of a copy."""

    def __init__(
        self,
        core: Core,
        view: ObjectView,
        subject: FixSubject,
        changes: Sequence[ProposedChange],
        now: float,
        cluster: ClusterView,
        *,
        absent: bool = False,
        others_end: bool = False,
        is_last: bool = False,
        late: Sequence[ProposedChange] = (),
        vcjobs: Mapping[str, Json] = MappingProxyType({}),
    ) -> None:
        """`absent`: without the job itself. `others_end`: without all others. `is_last`: no changes are added to these.

        `vcjobs`: others whose pods do not exist yet (`vcjobs_without_pods`).

        `late`: ends of pods, which terminate after `changes` until nothing happens any more.

        Raises RefusedError, UnknownObjectError, msgspec.ValidationError.
        """
        self._core, self._view, self._subject, self._now, self._is_last = core, view, subject, now, is_last
        self._vcjobs = dict(vcjobs)
        job = core.snapshot().state.jobs[subject.key]
        self._execution = Execution(Scene(core, view, job, subject.owner), cluster, now)
        self._execution.run(fix_lines(core, view, job, subject.owner, changes))
        self._edits = self._execution.edits
        if absent:
            self._execution.end_jobs([job])
        if others_end:
            jobs = core.snapshot().state.jobs.values()
            others = [other for other in jobs if other is not job and all(map(may_end, other.tasks.values()))]
            self._execution.end_jobs(others)
        self._deltas, self._late = self._execution.deltas(), list[Delta]()
        self._deltas += self._counted(_ended(self._deltas), -1)
        if late:
            ends = Execution(Scene(core, view, job, subject.owner), cluster, now)
            ends.run(fix_lines(core, view, job, subject.owner, late))
            self._late = ends.deltas()
            self._deltas += self._terminating()
        self.conf = self._execution.conf

    def result(self, only: str = "") -> FixTrial:
        """Run sessions until nothing happens. In a copy of the core."""
        core, key = self._core, self._subject.key
        core.keep_silent(searches=True)
        difference = advance(core, self._now, self._deltas, conf=self.conf, only=only, react=self._react)
        if self._late:
            ended = [*self._late, *self._counted(_ended(self._late), -1)]
            difference = advance(core, self._now + difference.sessions * PERIOD, ended, react=self._react)
        job = core.snapshot().state.jobs.get(key)
        if job is None:
            return FixTrial(False, difference)
        restarted = tuple(self._execution.restarted)
        reached = _reached(self._subject, job)
        if reached or self._is_last:
            return FixTrial(reached, difference, job.ready_tasks, restarted)
        found = diagnose_job(core.snapshot(), job)
        further = candidates(core, self._view, job, self._subject.owner, found)
        return FixTrial(False, difference, job.ready_tasks, restarted, found.summary, further)

    def _terminating(self) -> Iterator[Delta]:
        """The pods on nodes that end late: they hold their node, and count no more for their job."""
        ending = [delta for delta in self._late if isinstance(delta, ObjectGone) and delta.kind == POD]
        for delta in ending:
            pod = self._view.get(POD, delta.namespace, delta.name)
            if pod is not None and spec(pod).get("nodeName"):
                metadata = {**pod["metadata"], "deletionTimestamp": format_timestamp(self._now)}
                yield ObjectChanged(msgspec.convert({**pod, "metadata": metadata}, PodObject))

    def _react(self, core: Core, intents: Sequence[Intent]) -> list[Delta]:
        """Pods run after their binding, and can be evicted for others; the controller of a vcjob creates its pods."""
        created = self._create_pods(core)
        if not any(name in core.snapshot().conf.actions for name in EVICTING_ACTIONS):
            return created
        return [*created, *(delta for intent in intents if isinstance(intent, Bind) for delta in self._running(intent))]

    def _running(self, bind: Bind) -> Iterable[Delta]:
        pod = self._edits.get(POD, bind.namespace, bind.name)
        if pod is not None:
            notes = {**annotations_of(pod), **bind.pod_annotations()}
            bound = {
                **pod,
                "metadata": {**pod["metadata"], "annotations": notes},
                "spec": {**spec(pod), "nodeName": bind.node},
                "status": {"phase": "Running"},
            }
            yield ObjectChanged(msgspec.convert(bound, PodObject))

    def _create_pods(self, core: Core) -> list[Delta]:
        """The pods of admitted vcjobs, which their controller creates after the admission."""
        scene = self._execution.scene
        if scene.creates_pods and scene.workload is not None and (own := self._edits.get(*scene.workload)) is not None:
            self._vcjobs[self._subject.key] = own
        jobs, created = core.snapshot().state.jobs, list[Delta]()
        for key, vcjob in self._vcjobs.items():
            job = jobs.get(key)
            if job is not None and not job.tasks and job.phase is not PodGroupPhase.PENDING:
                pods = pods_of_job(core, self._edits, vcjob, job.name)
                created += [*pods, *self._counted(_created(pods), 1)]
        return created

    def _counted(self, names: Iterable[tuple[str, str]], sign: int) -> list[Delta]:
        """The ResourceQuotas, which count pods that are created (1) or have ended (-1), by namespace and name."""
        if not any(True for _ in self._edits.all_of(RESOURCE_QUOTA)):
            return []
        pods: dict[str, list[Json]] = {}
        for namespace, name in names:
            if (pod := self._edits.get(POD, namespace, name)) is not None:
                pods.setdefault(namespace, []).append(pod)
        changed = [quota for found in pods.values() for quota in count_in_quotas(self._edits, found, sign)]
        return [ObjectChanged(msgspec.convert(quota, ResourceQuotaObject)) for quota in changed]


def _ended(deltas: Sequence[Delta]) -> list[tuple[str, str]]:
    """The pods that end and are not created anew, by namespace and name."""
    created = _created(deltas)
    gone = [(one.namespace, one.name) for one in deltas if isinstance(one, ObjectGone) and one.kind == POD]
    return [name for name in gone if name not in created]


def _created(deltas: Sequence[Delta]) -> set[tuple[str, str]]:
    pods = [one.object for one in deltas if isinstance(one, ObjectChanged) and isinstance(one.object, PodObject)]
    return {(pod.metadata.namespace or "", pod.metadata.name) for pod in pods}


def _reached(subject: FixSubject, job: Job) -> bool:
    """Whether the goal is reached: pods that wait for victims do not count."""
    if subject.pod:
        return any(task.name == subject.pod and task.node is not None for task in job.tasks.values())
    if subject.pods:
        return not job.pending and not job.waiting_tasks and job.is_ready()
    if not job.tasks:  # its controller is not this project's: admission is what a session decides
        return subject.owner is None and not subject.members and job.phase is not PodGroupPhase.PENDING
    return job.is_ready() and job.roles_ready()


def fix_lines(
    core: Core, view: ObjectView, job: Job, owner: Json | None, changes: Sequence[ProposedChange]
) -> tuple[str, ...]:
    """The changes as they are printed. Raises UnknownObjectError."""
    scene = Scene(core, view, job, owner)
    for change in changes:
        KINDS[change.kind].edit(change, scene)
    return tuple(dict.fromkeys(line for lines in render(scene).values() for line in lines))
