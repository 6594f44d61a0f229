"""Items of `job list` and `pod list`: the jobs and pods of one state, as JSON data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.framework.explain.capacity import CapacityReader
from capcard_sched.framework.explain.diagnose import created_at
from capcard_sched.framework.quota.limits import lacks_card_quota
from capcard_sched.model.annotations import JOB_NAME
from capcard_sched.model.cards import no_card_quota
from capcard_sched.model.losses import losses_of
from capcard_sched.model.obstacles import obstacles_text
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.timestamps import format_timestamp, parse_time
from capcard_sched.model.workload import workload_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.core import Core, CoreSnapshot
    from capcard_sched.insight.object_view import Json, ObjectView
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


def job_items(core: Core, objects: ObjectView, now: float) -> list[Json]:
    """Every job of the core, and every Job without a PodGroup, by namespace, name and kind. `now` in Unix seconds.

    `pods` counts the pods that are wanted.
    """
    snapshot = core.snapshot()
    state = snapshot.state
    vcjobs = {_key(job): job for job in objects.all_of("Job") if "tasks" in (job.get("spec") or {})}
    found = []
    for job in state.jobs.values():
        kind, _, name = (workload_of(job) or f"podgroup/{job.name}").partition("/")
        own = kind == "job" and (job.owner_job or any(JOB_NAME in task.labels for task in job.tasks.values()))
        vcjob = vcjobs.pop((job.namespace, name), None) if own else None
        status = _counts(job)
        item = {
            "name": name,
            "namespace": job.namespace,
            "kind": kind,
            "resource": _RESOURCES.get(kind, kind) if kind != "job" else _JOB if own else _BATCH_JOB,
            "queue": job.queue,
            "phase": job.phase.value,
            "scheduled": sum(task.bound and not task.deleting for task in job.tasks.values()),
            "pods": wanted_pods(job, vcjob),
            "minAvailable": job.min_available,
            **_ages(created_at(job), now),
            "podGroup": "" if job.implicit else job.name,
            "scheduler": "",
            "running": status.get(TaskStatus.RUNNING, 0),
            "succeeded": status.get(TaskStatus.SUCCEEDED, 0),
            "failed": status.get(TaskStatus.FAILED, 0),
            "retries": 0,
            "labels": dict(job.labels),
            "reason": _reason(job, snapshot),
        }
        found.append(item if vcjob is None else item | _of_vcjob(vcjob, job.queue or state.default_queue))
    for (namespace, name), vcjob in vcjobs.items():
        item = {
            "name": name,
            "namespace": namespace,
            "kind": "job",
            "resource": _JOB,
            "scheduled": 0,
            "minAvailable": vcjob["spec"].get("minAvailable") or 0,
            **_ages(parse_time(vcjob["metadata"].get("creationTimestamp")), now),
            "podGroup": "",
        }
        found.append(item | _of_vcjob(vcjob, state.default_queue))
    return sorted(found, key=lambda item: (item["namespace"], item["name"], item["kind"]))


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
        "job": workload_of(job) or f"podgroup/{job.name}",
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


def _key(obj: Json) -> tuple[str, str]:
    return obj["metadata"].get("namespace") or "default", obj["metadata"]["name"]


def _ages(created: float, now: float) -> Json:
    return {"created": format_timestamp(created) if created else "", "ageSeconds": int(max(0.0, now - created))}


def _counts(job: Job) -> dict[TaskStatus, int]:
    return {TaskStatus(status): count for status, count in enumerate(job.counts) if count}


def _reason(job: Job, snapshot: CoreSnapshot) -> str:
    """Why a job is pending: the message that the scheduler wrote last on its PodGroup, else what the job lost; or "".

    For a job that can never start because its queue has no card quota: that.
    """
    if job.gated and (job.needs_gated() or not job.pending):
        return obstacles_text(job.gated.values())
    if not job.pending:
        return "; ".join(losses_of(job.tasks.values()))
    exceeded = snapshot.session.exceeded_limit(job) if snapshot.session is not None else None
    if exceeded is not None and lacks_card_quota(exceeded, snapshot.state.queues, snapshot.conf.quota_plugins):
        return no_card_quota(exceeded.queue)
    conditions = [one for one in job.conditions if one.type == "Unschedulable" and one.status == "True"]
    return conditions[-1].message if conditions else ""


def _of_vcjob(vcjob: Json, queue: str) -> Json:
    spec, status = vcjob["spec"], vcjob.get("status") or {}
    state = status.get("state") or {}
    counts = {name: status.get(name) or 0 for name in ("running", "succeeded", "failed")}
    found = {
        "queue": spec.get("queue") or queue,
        "phase": state.get("phase") or "",
        "pods": _replicas(vcjob),
        **counts,
        "retries": status.get("retryCount") or 0,
        "scheduler": spec.get("schedulerName") or "",
        "labels": vcjob["metadata"].get("labels") or {},
    }
    return found | ({"reason": state["reason"]} if state.get("reason") else {})
