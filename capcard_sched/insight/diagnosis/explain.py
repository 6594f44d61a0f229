"""The diagnosis of the object of a name: a job of the core, or an object that the core does not schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from capcard_sched.controllers.objects import BATCH_API
from capcard_sched.framework.explain.capacity import CapacityReader
from capcard_sched.framework.explain.diagnose import diagnose_job, find_workload
from capcard_sched.framework.explain.sentences import lower
from capcard_sched.framework.quota.limits import unenforced
from capcard_sched.insight.diagnosis.lists import wanted_pods
from capcard_sched.insight.diagnosis.overheads import overheads
from capcard_sched.insight.diagnosis.unscheduled import (
    diagnose_by_conditions,
    diagnose_unscheduled,
    foreign_members,
    gates_to_come,
    replicas_below_minimum,
    with_absent,
)
from capcard_sched.insight.sources.object_view import StoreObjects
from capcard_sched.insight.trials.attempt import JobAttempt, behind_head, may_never_start
from capcard_sched.insight.trials.preemption import begin_trial
from capcard_sched.model.annotations import CLOSED_BY_PARENT
from capcard_sched.model.diagnosis import ObjectProblem
from capcard_sched.model.kinds import BATCH_JOB
from capcard_sched.model.namespace_queues import queue_ref
from capcard_sched.model.queue import ROOT, ancestors
from capcard_sched.model.quoting import command, with_singulars
from capcard_sched.model.reasons import GROUP_EVICTED
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.model.workload import WORKLOAD_KINDS, display_name, is_of_vcjob, workload_of
from capcard_sched.validation.inventory import Inventory, as_map
from capcard_sched.validation.job_structure import check_dependencies, tasks_of
from capcard_sched.validation.late_members import LATE_KINDS, check_first_pods, first_pods
from capcard_sched.validation.object_checks import check_object
from capcard_sched.validation.unsupported_fields import fields_without_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from capcard_sched.framework.core import Core, CoreSnapshot
    from capcard_sched.framework.explain.limits import LimitReader
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.model.diagnosis import JobDiagnosis
    from capcard_sched.model.job import Job
    from capcard_sched.model.trials import FixSearch
    from capcard_sched.validation.checks import Finding

#: Stages in which evictions might help.
_MAY_PREEMPT: Final = frozenset({"OverQuota", "ClusterFull", "NoNodeFits", "GangWaiting"})
#: Events: the most recent evictions that are shown.
_SHOWN_EVENTS: Final = 5
#: A fact of a diagnosis without attempts.
UNTRIED: Final = "A start with evictions or without the other jobs was not tried: the cluster is large"


class Subject(NamedTuple):
    """The job of a name, or an object without one."""

    job: Job | None
    object: Json | None
    #: "" unless the name is that of a pod.
    pod: str = ""


def find(core: Core, objects: ObjectView, namespace: str, name: str) -> Subject | None:
    """The subject of `NAME`, `kind/NAME` or `namespace/kind/NAME`; None for an unknown name."""
    found = _find_in(core, objects, namespace, name)
    if found is None and "/" in name:
        first, _, rest = name.partition("/")
        found = _find_in(core, objects, first, rest)
    return found


def _find_in(core: Core, objects: ObjectView, namespace: str, name: str) -> Subject | None:
    kind, _, plain = name.rpartition("/")
    job = find_workload(core.snapshot(), namespace, name)
    if job is not None:
        pod = plain if kind in {"", "pod"} and any(task.name == plain for task in job.tasks.values()) else ""
        return Subject(job, _owner(objects, job), pod)
    for word, known in WORKLOAD_KINDS.items():
        if kind in {"", word}:
            obj = objects.get(known, namespace, plain)
            if obj is None and word == "job":
                obj = objects.get(BATCH_JOB, namespace, plain)
            if obj is not None:
                return Subject(None, obj)
    return None


def _owner(objects: ObjectView, job: Job) -> Json | None:
    """The object that the pods or the PodGroup of a job are made from; None when it is not readable."""
    kind, _, name = workload_of(job).partition("/")
    if not name:
        return objects.get("PodGroup", job.namespace, job.name)
    known = WORKLOAD_KINDS.get(kind)
    if known == "Job" and not is_of_vcjob(job):
        known = BATCH_JOB
    return objects.get(known, job.namespace, name) if known is not None else None


def explain(
    core: Core,
    objects: ObjectView,
    subject: Subject,
    now: float,
    *,
    unreadable: Sequence[str] = (),
    fix: bool = False,
    tries: bool = True,
    limits: LimitReader | None = None,
    meanwhile: Callable[[], object] = lambda: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> JobDiagnosis:
    """The diagnosis of a subject, with `fix` also the changes that start it. `now` in Unix seconds.

    `unreadable`: required resources that are not readable; the diagnosis then is what the scheduler wrote on objects.
    `tries`: also the results of attempts on copies of the cluster, which take the longer the larger it is.
    `limits`: the reader of the diagnoses of other jobs of this state, reused.
    `meanwhile` is called while a trial runs in a copy of the process, `progress` with the number of trials of fixes and
    the largest number.
    """
    other = diagnose_unscheduled(core.snapshot(), objects, subject.job, subject.object, now)
    if other is not None:
        problems = _without_summary(problems_of(core.snapshot(), objects, subject.job, subject.object), other.summary)
        fixes = _without_search(other, "sessions do not attempt the job") if fix else None
        return msgspec.structs.replace(other, problems=problems, fixes=fixes)
    assert subject.job is not None
    job = subject.job
    if unreadable:
        written = diagnose_by_conditions(objects, job, subject.pod, now, unreadable)
        fixes = _without_search(written, "trials need the nodes and queues") if fix else None
        return msgspec.structs.replace(written, fixes=fixes)
    # The trial begins before the stage is known: it takes as long as the diagnosis.
    is_tried = tries and job.pending and job.phase is not PodGroupPhase.PENDING
    trial = begin_trial(core, objects, job, now) if is_tried else None
    try:
        found = diagnose_job(core.snapshot(), job, pod=subject.pod, now=now, limits=limits)
        vcjob = subject.object if (subject.object or {}).get("apiVersion") == BATCH_API else None
        foreign = foreign_members(core.snapshot(), objects, job)
        absent = replicas_below_minimum(job, vcjob) or foreign
        if tries:
            found = JobAttempt(core, objects, job, now, pod=subject.pod, vcjob=vcjob).diagnose(found)
            found = _behind_head(core, objects, job, found, now)
        elif found.stage in _MAY_PREEMPT or may_never_start(found):
            found = msgspec.structs.replace(found, facts=(*found.facts, UNTRIED))
        if tries and trial is None and found.stage in _MAY_PREEMPT:
            trial = begin_trial(core, objects, job, now)
        closed = [*_closed_by(objects, found), *filter(None, [gates_to_come(job, vcjob)])]
        if absent and job.valid_tasks < job.min_available:
            found = with_absent(found, absent)
        elif absent:
            closed = [*closed, absent]
        found = msgspec.structs.replace(
            found,
            pods=wanted_pods(job, vcjob),
            problems=_without_summary(
                problems_of(core.snapshot(), objects, job, subject.object, limits), found.summary
            ),
            eviction_events=_eviction_events(objects, job) if not job.implicit else (),
        )
        meanwhile()
        tried = None
        if trial is not None and found.stage in _MAY_PREEMPT:
            running, trial = trial, None
            tried = running.finding()
    finally:
        if trial is not None:
            trial.stop()
    tried_facts = tried.facts if tried is not None else ()
    facts = (*overheads(objects, job, found), *found.facts, *tried_facts, *closed)
    found = msgspec.structs.replace(found, facts=facts, preemption=tried.result if tried is not None else None)
    if not fix:
        return found
    if foreign and not job.tasks:
        return msgspec.structs.replace(found, fixes=_without_search(found, "another scheduler has all members"))
    from capcard_sched.insight.fixes.search import suggest_fixes

    fixes = suggest_fixes(core, objects, job, found, now, pod=subject.pod, vcjob=vcjob, progress=progress)
    return msgspec.structs.replace(found, fixes=fixes)


def _behind_head(core: Core, objects: ObjectView, job: Job, found: JobDiagnosis, now: float) -> JobDiagnosis:
    """The diagnosis of a job, with that of the job that blocks it in its FIFO queue."""
    snapshot = core.snapshot()
    key = snapshot.session.results.blocked_by_head.get(job.key, "") if snapshot.session is not None else ""
    head = snapshot.state.jobs.get(key)
    if head is None or found.stage != "NotTried":
        return found
    owner = _owner(objects, head)
    vcjob = owner if (owner or {}).get("apiVersion") == BATCH_API else None
    first = diagnose_unscheduled(snapshot, objects, head, owner, now)
    if first is None:
        attempt = JobAttempt(core, objects, head, now, vcjob=vcjob)
        first = attempt.diagnose(diagnose_job(snapshot, head, now=now), tries_claims=False)
    summary = behind_head(found.summary, first.stage, first.summary)
    name = display_name(head)
    shown = [f"{name}: {lower(first.summary)}"] if summary == found.summary else []
    fixes = f"`{command('capcard-sched', 'explain', name, '--fix')}` lists changes with which it starts"
    return msgspec.structs.replace(found, summary=summary, facts=(*shown, *found.facts, fixes))


def _without_search(found: JobDiagnosis, reason: str) -> FixSearch | None:
    from capcard_sched.insight.fixes.search import without_search

    return without_search(found, reason)


def _closed_by(objects: ObjectView, found: JobDiagnosis) -> list[str]:
    """The origin of the state of a queue that is not open."""
    if found.queue is None or found.queue.state in {"Open", "missing", "Deleted"} or found.stage != "NotAdmitted":
        return []
    ref = queue_ref(found.queue.name)
    of_queue = ref.kind, ref.namespace, ref.name
    queue = objects.get(*of_queue) or {}
    annotations = (queue.get("metadata") or {}).get("annotations") or {}
    if annotations.get(CLOSED_BY_PARENT) == "true":
        return [
            f"Queue {found.queue.name} was closed with its parent {(queue.get('spec') or {}).get('parent', 'root')}"
        ]
    closed = [event for event in objects.events(*of_queue) if event.get("reason") == "CloseQueue"]
    at = f" at {closed[-1].get('lastTimestamp')}" if closed else ""
    how = "by a Command CloseQueue" if closed else "by its status; no event about it is left"
    opens = command("capcard-sched", "queue", "open", found.queue.name)
    return [f"Queue {found.queue.name} was closed {how}{at}; `{opens}` opens it"]


def _eviction_events(objects: ObjectView, job: Job) -> tuple[str, ...]:
    found = [
        event
        for event in objects.events("PodGroup", job.namespace, job.name)
        if event.get("reason") == GROUP_EVICTED.code
    ]
    return tuple(
        f"{with_singulars(str(event.get('message')))} ({event.get('lastTimestamp')})"
        for event in found[-_SHOWN_EVENTS:]
    )


def problems_of(
    snapshot: CoreSnapshot,
    objects: ObjectView,
    job: Job | None,
    workload: Json | None,
    limits: LimitReader | None = None,
) -> tuple[ObjectProblem, ...]:
    """The findings of `validate` about the queue of a job, its workload and, without it, one of its pods.

    Of the queues above the queue: the limits without effect. `limits`: of the same state.
    """
    # Without quotas and nodes: their limits are part of the diagnosis itself.
    inventory = Inventory((), snapshot.conf.quota_plugins)
    capacity = limits.capacity if limits is not None else CapacityReader(snapshot)
    inventory.resources.update(
        offer.resource for offers in capacity.cards.values() for offer in offers if offer.holders is None
    )
    classes = set(snapshot.state.priority_classes)
    # A live cluster has the classes of the system: without any, they were not readable.
    inventory.priority_classes = classes if classes or isinstance(objects, StoreObjects) else None
    checked = [objects.get("Queue", "", job.queue)] if job is not None and job.queue else []
    if workload is not None:
        checked.append(workload)
    elif job is not None and job.tasks:
        task = min(job.tasks.values(), key=lambda task: task.name)
        checked.append(objects.get("Pod", task.namespace, task.name))
    plugins, shares = snapshot.conf.quota_plugins, snapshot.state.shares
    found = [
        _problem(_name(obj), finding)
        for obj in checked
        if obj is not None
        for finding in (
            *check_object(obj, inventory, plugins, shares),
            *fields_without_plugin(obj, plugins.names),
            *_dependencies(obj),
        )
    ]
    if job is not None and not job.is_ready():
        found += _late_members(job, objects)
    if job is not None and job.queue in snapshot.state.queues:
        queues = snapshot.state.queues
        own, parents = queues[job.queue], {name: queue.parent for name, queue in queues.items()}
        above = {parent or ROOT for parent in parents.values()}
        found += [
            _problem(f"Queue {queue.name}", finding)
            for queue in (own, *ancestors(own, queues))
            for finding in unenforced(queue, parents, plugins, is_parent=queue.name in above, shares=shares)
        ]
    return tuple(dict.fromkeys(found))


def _without_summary(problems: Sequence[ObjectProblem], summary: str) -> tuple[ObjectProblem, ...]:
    """Problems without the part of their text that is the cause: `queue q has no card quota: its pods get no card`.

    A plugin of a Job that the controller does not know is the cause itself.
    """
    found = []
    for problem in problems:
        field, _, plugin = problem.field.rpartition(".")
        if field == "spec.plugins" and f"unknown plugin {plugin!r}" in summary:
            continue
        first, _, rest = problem.message.partition(": ")
        is_repeated = rest and " " in first and first in summary and not first.startswith("not ")
        found.append(msgspec.structs.replace(problem, message=rest) if is_repeated else problem)
    return tuple(found)


def _late_members(job: Job, objects: ObjectView) -> Iterator[ObjectProblem]:
    """The problem of a gang whose operator creates some pods only after others; its object has the name of the gang."""
    group = objects.get("PodGroup", job.namespace, job.name)
    for kind in LATE_KINDS if group is not None else ():
        owner = objects.get(kind, job.namespace, job.name)
        for namespace, name, first in first_pods(owner) if owner is not None else ():
            if group is not None and (namespace, name) == (job.namespace, job.name):
                yield from (_problem(f"PodGroup {name}", finding) for finding in check_first_pods(group, first))


def _dependencies(obj: Json) -> Iterator[Finding]:
    """Problems of `dependsOn` of a stored Job; admission rejects them in a new one."""
    if obj.get("kind") == "Job" and obj.get("apiVersion") == BATCH_API:
        yield from check_dependencies(tasks_of(as_map(obj.get("spec"))))


def _problem(name: str, finding: Finding) -> ObjectProblem:
    return ObjectProblem(
        object=name,
        field=finding.field,
        severity=finding.severity,
        message=finding.message,
        accepted=finding.accepted,
    )


def _name(obj: Json | None) -> str:
    meta = (obj or {}).get("metadata") or {}
    namespace = meta.get("namespace")
    return f"{(obj or {}).get('kind')} {namespace + '/' if namespace else ''}{meta.get('name')}"
