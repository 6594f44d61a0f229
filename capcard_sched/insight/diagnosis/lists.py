"""Items of `job list` and `pod list`: the jobs and pods of one state, as JSON data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from capcard_sched.controllers.objects import job_phase
from capcard_sched.framework.explain.capacity import CapacityReader
from capcard_sched.framework.explain.diagnose import created_at, phase_of, scheduled_pods, waiting_since
from capcard_sched.insight.sources.object_view import vcjob_key, vcjobs_of
from capcard_sched.model.namespace_queues import queue_id
from capcard_sched.model.status import PodGroupPhase, TaskStatus
from capcard_sched.model.timestamps import format_timestamp, parse_time
from capcard_sched.model.workload import is_of_vcjob, own_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.core import Core
    from capcard_sched.framework.session.session import Session
    from capcard_sched.insight.diagnosis.headlines import Headline
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.model.groups import SubGroups
    from capcard_sched.model.job import Job, Task

#: Kind of a workload to its resource, as kubectl takes it.
_RESOURCES: Final = {
    "deployment": "deployment.apps",
    "statefulset": "statefulset.apps",
    "replicaset": "replicaset.apps",
    "daemonset": "daemonset.apps",
    "podgroup": "podgroup.scheduling.volcano.sh",
}
#: The resource of a Job of this scheduler, and of one of Kubernetes.
_JOB, _BATCH_JOB = "job.batch.volcano.sh", "job.batch"


def job_items(
    core: Core, objects: ObjectView, now: float, headlines: Mapping[str, Headline] | None = None
) -> list[Json]:
    """Every job of the core, and every Job without a PodGroup, by namespace, name and kind. `now` in Unix seconds.

    `pods` counts the pods that are wanted, `waitSeconds` the time until the minimum was scheduled, or until now. A Job
    without a PodGroup has ended or is not processed: its figures are those of the Job.
    """
    snapshot = core.snapshot()
    state, session, found = snapshot.state, snapshot.session, []
    if session is None:
        raise ValueError("no session has run yet")
    causes = headlines or {}
    vcjobs = vcjobs_of(objects)
    for job in state.jobs.values():
        kind, _, name = own_name(job).partition("/")
        own = kind == "job" and is_of_vcjob(job)
        vcjob = vcjobs.pop((job.namespace, name), None) if own else None
        status, cause = _counts(job), causes.get(job.key)
        item = {
            "name": name,
            "namespace": job.namespace,
            "kind": "vcjob" if own else kind,
            "resource": _RESOURCES.get(kind, kind) if kind != "job" else _JOB if own else _BATCH_JOB,
            "queue": job.queue,
            "phase": phase_of(job, session),
            "stage": "" if cause is None else cause.stage,
            "scheduled": scheduled_pods(job, session),
            "pods": wanted_pods(job, vcjob),
            "minAvailable": job.min_available,
            **({} if job.groups is None else {"subGroups": _subgroups(job.groups)}),
            **_ages(created_at(job), now),
            "waitSeconds": _waited(job, session, objects, now),
            "podGroup": job.name if job.uid and not job.implicit else "",
            "scheduler": "",
            "running": status.get(TaskStatus.RUNNING, 0),
            "succeeded": status.get(TaskStatus.SUCCEEDED, 0),
            "failed": status.get(TaskStatus.FAILED, 0),
            "retries": 0,
            "labels": dict(job.labels),
            "reason": "" if cause is None else cause.summary,
            "jobPhase": "",
        }
        if vcjob is not None:
            item |= _of_vcjob(vcjob, job.queue or state.default_queue)
        if vcjob is not None and not job.uid:  # the PodGroup is gone: the Job has ended or restarts
            item |= _without_group(vcjob, now)
        found.append(item)
    for (namespace, name), vcjob in vcjobs.items():
        cause = causes.get(vcjob_key(namespace, name))
        item = {
            "name": name,
            "namespace": namespace,
            "kind": "vcjob",
            "resource": _JOB,
            "stage": "" if cause is None else cause.stage,
            "scheduled": 0,
            "waitSeconds": None,
            "podGroup": "",
            "reason": "" if cause is None else cause.summary,
        }
        found.append(item | _of_vcjob(vcjob, state.default_queue) | _without_group(vcjob, now))
    return sorted(found, key=lambda item: (item["namespace"], item["name"], item["kind"]))


def _subgroups(groups: SubGroups) -> list[Json]:
    """By policy its ready subgroups, those that have pods, and its minimum."""
    total = Counter(group.policy for group in groups.counts)
    return [
        {"policy": policy.name, "ready": ready, "total": total[number], "minSubGroups": policy.minimum}
        for number, (policy, ready) in enumerate(zip(groups.policies, groups.ready(), strict=True))
    ]


def _waited(job: Job, session: Session, objects: ObjectView, now: float) -> int | None:
    """Seconds until the minimum of a job was scheduled, or until now for one that waits; None when unknown."""
    least = job.min_available
    if job.tasks and job.counts[TaskStatus.RELEASING] == len(job.tasks):
        return None
    if scheduled_pods(job, session) < least or job.pending or job.gated or not job.tasks:
        return None if job.phase is PodGroupPhase.COMPLETED else int(max(0.0, now - waiting_since(job, session)))
    moments = sorted(filter(None, (objects.scheduled_at(task.namespace, task.name) for task in job.tasks.values())))
    at = moments[max(least, 1) - 1] if len(moments) >= max(least, 1) else None
    return None if at is None else int(max(0.0, at - created_at(job)))


def wanted_pods(job: Job, vcjob: Json | None) -> int:
    """The replicas of a Job, else the pods that exist, at least the minimum."""
    return _replicas(vcjob) if vcjob is not None else max(len(job.tasks), job.min_available)


def _replicas(vcjob: Json) -> int:
    return sum(task.get("replicas", 1) for task in vcjob["spec"].get("tasks") or ())


def pod_items(core: Core, objects: ObjectView, now: float) -> list[Json]:
    """Every pod of a job of the core, by namespace and name. `now` in Unix seconds."""
    reader = CapacityReader(core.snapshot())
    found = [
        _pod(task, job, objects.get("Pod", task.namespace, task.name) or {}, reader, now)
        for job in core.snapshot().state.jobs.values()
        for task in job.tasks.values()
    ]
    return sorted(found, key=lambda item: (item["namespace"], item["name"]))


def _pod(task: Task, job: Job, pod: Mapping[str, Any], reader: CapacityReader, now: float) -> Json:
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    return {
        "name": task.name,
        "namespace": task.namespace,
        "job": own_name(job),
        "queue": job.queue,
        "status": "Terminating" if task.deleting else status.get("phase") or task.status.title,
        "ready": sum(bool(row.get("ready")) for row in containers),
        "containers": len((pod.get("spec") or {}).get("containers") or ()),
        "restarts": sum(row.get("restartCount") or 0 for row in containers),
        **_ages(task.created, now),
        "node": task.node.name if task.node is not None else "",
        "card": reader.card_on(task.node, task.cls) if task.node is not None else "",
        "labels": dict(task.labels),
    }


def _ages(created: float, now: float) -> Json:
    if not created:
        return {"created": "", "ageSeconds": None}
    return {"created": format_timestamp(created), "ageSeconds": int(max(0.0, now - created))}


def _counts(job: Job) -> dict[TaskStatus, int]:
    return {TaskStatus(status): count for status, count in enumerate(job.counts) if count}


def _of_vcjob(vcjob: Json, queue: str) -> Json:
    spec, status = vcjob["spec"], vcjob.get("status") or {}
    return {
        "queue": queue_id(spec.get("queue") or queue, vcjob["metadata"].get("namespace") or "default"),
        "pods": _replicas(vcjob),
        **{name: status.get(name) or 0 for name in ("running", "succeeded", "failed")},
        "retries": status.get("retryCount") or 0,
        "scheduler": spec.get("schedulerName") or "",
        "labels": vcjob["metadata"].get("labels") or {},
        "jobPhase": job_phase(vcjob),
    }


def _without_group(vcjob: Json, now: float) -> Json:
    """The figures of a Job that a PodGroup would have."""
    state = (vcjob.get("status") or {}).get("state") or {}
    found = {
        "phase": state.get("phase") or PodGroupPhase.PENDING.value,
        "minAvailable": vcjob["spec"].get("minAvailable") or 0,
        **_ages(parse_time(vcjob["metadata"].get("creationTimestamp")), now),
    }
    return found | ({"reason": state["reason"]} if state.get("reason") else {})
