"""Diagnoses without a session: of objects without pods in the core, and for users without rights on nodes.

The former are of other schedulers, suspended Jobs, and Jobs without a PodGroup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.controllers.objects import annotations_of, controller_of, is_owned, job_phase, spec
from capcard_sched.framework.explain.limit_causes import INCOMPLETE
from capcard_sched.framework.explain.sentences import capital, plain
from capcard_sched.insight.sources.object_view import CONTROLLER_FAILURES
from capcard_sched.model.diagnosis import JobDiagnosis, PendingPods
from capcard_sched.model.kinds import BATCH_JOB, kind_of
from capcard_sched.model.pod_facts import group_of
from capcard_sched.model.quoting import brief, command, escaped, plural
from capcard_sched.model.reasons import AUTOMATIC_GROUP_MISSING, POD_GANG_PENDING
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.timestamps import parse_time
from capcard_sched.model.unsupported import gates_text
from capcard_sched.model.workload import display_name
from capcard_sched.validation.features import template_text
from capcard_sched.validation.templates import templates_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.model.diagnosis import Stage
    from capcard_sched.model.job import Job

_SUSPENDED: Final = frozenset({"Aborted", "Aborting"})
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def diagnose_unscheduled(
    snapshot: CoreSnapshot, objects: ObjectView, job: Job | None, obj: Json | None, now: float
) -> JobDiagnosis | None:
    """The diagnosis of an object without pods in the snapshot, and of a suspended Job; None: the core schedules it.

    `now` in Unix seconds.
    """
    found = _diagnose(snapshot, objects, job, obj) if obj is not None else None
    if found is None or obj is None:
        return None
    return msgspec.structs.replace(
        found, waiting_seconds=max(0.0, now - (parse_time(obj["metadata"].get("creationTimestamp")) or now))
    )


def _diagnose(snapshot: CoreSnapshot, objects: ObjectView, job: Job | None, obj: Json) -> JobDiagnosis | None:
    kind, meta, is_vcjob = str(obj.get("kind")), obj["metadata"], kind_of(obj) == "Job"
    phase = job_phase(obj) if is_vcjob else ""
    if phase in _SUSPENDED:
        resumes = command("capcard-sched", "job", "resume", meta["name"], "-n", meta["namespace"])
        headline = f"Job {meta['name']} is suspended (phase {phase})"
        return _diagnosis(obj, job, "Suspended", headline, f"`{resumes}` resumes it")
    if kind_of(obj) == BATCH_JOB and spec(obj).get("suspend"):
        resumed = command(
            "kubectl", "-n", meta["namespace"], "patch", "job", meta["name"], "--type", "merge", "-p", _RESUMED
        )
        return _diagnosis(obj, job, "Suspended", f"Job {meta['name']} is suspended", f"`{resumed}` resumes it")
    foreign = sorted(
        {template.scheduler or "default-scheduler" for template in templates_of(obj)} - snapshot.state.scheduler_names
    )
    templates = list(templates_of(obj))
    if templates and len(foreign) == len({template.scheduler or "default-scheduler" for template in templates}):
        pods = _pods_of(objects, obj)
        ours = " and ".join(sorted(snapshot.state.scheduler_names))
        what = f"{kind} {meta['name']} is scheduled by {' and '.join(map(escaped, foreign))}"
        facts = f"This scheduler serves pods with schedulerName {ours}"
        found = _diagnosis(obj, job, "NotProcessed", what, facts, pods=pods)
        return msgspec.structs.replace(found, schedulers=tuple(map(escaped, foreign)))
    if job is None or not job.tasks:
        possible = sum(template.replicas for template in templates if not template_text(template.body))
        reasons = list(dict.fromkeys(filter(None, (template_text(template.body) for template in templates))))
        least = (obj.get("spec") or {}).get("minAvailable") if is_vcjob else None
        if reasons and possible < (least or sum(template.replicas for template in templates)):
            summary = f"The pods of {kind} {meta['name']} are never bound: {reasons[0]}"
            return _diagnosis(obj, job, "Unsupported", summary, *reasons[1:])
    if job is not None:
        return _awaiting_group(objects, job, obj)
    if is_vcjob:
        failures = [
            event
            for event in objects.events("Job", str(meta.get("namespace") or "default"), meta["name"])
            if event.get("reason") in CONTROLLER_FAILURES
        ]
        if failures:
            cause = f"{failures[-1]['reason']}: {failures[-1].get('message')}"
            summary = f"Job {meta['name']} has no PodGroup: the controller reports {cause}"
            return _diagnosis(obj, None, "NotProcessed", summary)
        return _diagnosis(
            obj,
            None,
            "NotProcessed",
            f"Job {meta['name']} has no PodGroup: no controller has processed it",
            _CONTROLLER,
        )
    if kind == "Pod":
        return _diagnosis(obj, None, "NotProcessed", f"Pod {meta['name']} is not in the cache of the scheduler")
    replicas = (obj.get("spec") or {}).get("replicas", 1)
    if replicas == 0:
        return _diagnosis(obj, None, "NoPods", f"{kind} {meta['name']} has 0 replicas")
    if kind == "Job" and (obj.get("spec") or {}).get("parallelism") == 0:
        return _diagnosis(obj, None, "NoPods", f"Job {meta['name']} has parallelism 0")
    return _diagnosis(obj, None, "NoPods", f"{kind} {meta['name']} has no pods: its controller has not created any")


def _awaiting_group(objects: ObjectView, job: Job, obj: Json) -> JobDiagnosis | None:
    """The diagnosis of pods without a PodGroup, for which the scheduler waits (--wait-for-podgroups); None for others.

    The condition of a pod is the only trace of the flag in the cluster.
    """
    if not (job.implicit and job.tasks):
        return None
    tasks = sorted(job.tasks.values(), key=lambda task: task.name)  # the session of a diagnosis may have placed them
    pod = objects.get("Pod", tasks[0].namespace, tasks[0].name) or {}
    reason, text = ("", "") if spec(pod).get("nodeName") else _last(pod, {"PodScheduled"})
    if reason != POD_GANG_PENDING.code or not text.startswith(AUTOMATIC_GROUP_MISSING.text.partition("{")[0]):
        return None
    found = _diagnosis(obj, job, "NotProcessed", capital(plain(text)), _CONTROLLER)
    pending = (PendingPods(names=tuple(task.name for task in tasks), outcome="untried", message=text),)
    return msgspec.structs.replace(found, pods=len(job.tasks), pending=pending)


def replicas_below_minimum(job: Job, owner: Json | None) -> str:
    """That the tasks of a Job without pods have fewer replicas than its minimum; "" where they suffice."""
    if job.tasks or owner is None or kind_of(owner) != "Job":
        return ""
    least, pods = spec(owner).get("minAvailable"), sum(template.replicas for template in templates_of(owner))
    if not isinstance(least, int) or least <= pods:
        return ""
    return f"the tasks of the Job have {plural(pods, 'pod')}, and minAvailable is {least}"


def gates_to_come(job: Job, owner: Json | None) -> str:
    """The scheduling gates that the pods of a Job without pods get; "" for none."""
    templates = templates_of(owner) if owner is not None and not job.tasks else ()
    gates = [str(gate.get("name")) for one in templates for gate in spec(one.body).get("schedulingGates") or ()]
    text = gates_text(list(dict.fromkeys(gates)))
    return f"The pods of the Job get {text}" if text else ""


def foreign_members(snapshot: CoreSnapshot, objects: ObjectView, job: Job) -> str:
    """That members of a gang are of other schedulers, and their gates; "" for none."""
    found: dict[str, list[str]] = {}
    for pod in objects.pods(job.namespace, besides=snapshot.state.scheduler_names) if not job.implicit else ():
        scheduler = spec(pod).get("schedulerName") or "default-scheduler"
        if group_of(annotations_of(pod)) == job.name and scheduler not in snapshot.state.scheduler_names:
            gates = "".join(
                f" (scheduling gate {escaped(str(gate.get('name')))})"
                for gate in spec(pod).get("schedulingGates") or ()
            )
            state = " (failed)" if (pod.get("status") or {}).get("phase") == "Failed" else ""
            found.setdefault(scheduler, []).append(f"{escaped(pod['metadata']['name'])}{gates}{state}")
    return "; ".join(
        f"{plural(len(names), 'member')} of the gang {'is' if len(names) == 1 else 'are'} scheduled by "
        f"{escaped(scheduler)}: {brief(sorted(names))}"
        for scheduler, names in sorted(found.items())
    )


def with_absent(found: JobDiagnosis, absent: str) -> JobDiagnosis:
    """The diagnosis of a gang that lacks members, as of `replicas_below_minimum` and `foreign_members`."""
    # The scheduler counts its own pods alone: "2 of 3 pods exist" is false.
    facts = [fact for fact in dict.fromkeys((found.summary, *found.facts)) if not fact.startswith(INCOMPLETE)]
    return msgspec.structs.replace(found, stage="Incomplete", summary=f"{INCOMPLETE} {absent}", facts=tuple(facts))


#: The patch of a Job of Kubernetes that is suspended.
_RESUMED: Final = '{"spec": {"suspend": false}}'
_CONTROLLER: Final = (
    "The controllers of capcard-sched or of Volcano create PodGroups; `capcard-sched controllers` runs ours"
)


def _diagnosis(
    obj: Json, job: Job | None, stage: str, summary: str, *facts: str, pods: list[Json] | None = None
) -> JobDiagnosis:
    meta = obj["metadata"]
    scheduled = [pod for pod in pods or () if (pod.get("spec") or {}).get("nodeName")]
    if pods:
        verb = "is" if 1 in {len(scheduled), len(pods)} else "are"
        summary += f"; {len(scheduled)} of {plural(len(pods), 'pod')} {verb} scheduled"
        waiting = [pod["metadata"]["name"] for pod in pods if pod not in scheduled]
        facts = (*facts, f"Pending: {brief(waiting)}") if waiting else facts
    return JobDiagnosis(
        namespace=meta.get("namespace") or "default",
        workload=f"{str(obj.get('kind')).lower()}/{meta['name']}",
        pod_group=job.name if job is not None and not job.implicit else "",
        phase=job.phase.value if job is not None else "",
        stage=stage,  # type: ignore[arg-type]
        summary=summary,
        facts=facts,
        scheduled=len(scheduled),
        pods=len(pods or ()),
        min_available=job.min_available if job is not None else 0,
    )


def _pods_of(objects: ObjectView, obj: Json) -> list[Json]:
    """The unfinished pods of a workload: owned by it, or named after it."""
    meta = obj["metadata"]
    if obj.get("kind") == "Pod":
        return [obj]
    found = []
    for pod in objects.pods(meta.get("namespace") or "default"):
        owner = controller_of(pod)
        named = owner is not None and kind_of(owner) == "ReplicaSet" and _is_of(owner, f"{meta['name']}-")
        if (named or is_owned(pod, obj)) and (pod.get("status") or {}).get("phase") not in _ENDED:
            found.append(pod)
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def _is_of(owner: Json, prefix: str) -> bool:
    """Whether a ReplicaSet is named after a Deployment: its name and the hash of its template."""
    name = str(owner.get("name"))
    return name.startswith(prefix) and "-" not in name[len(prefix) :]


#: Reason of a condition to the stage it means; others are those of pods that no node fits.
_STAGES: dict[str, Stage] = {
    "CanNeverStart": "CannotStart",
    "NotEnoughResources": "GangWaiting",
    "Schedulable": "GangWaiting",
}


def diagnose_by_conditions(
    objects: ObjectView, job: Job, pod: str, now: float, unreadable: Sequence[str]
) -> JobDiagnosis:
    """The texts that the scheduler wrote last, without figures of its own. `now` in Unix seconds."""
    tasks = [task for task in job.tasks.values() if not pod or task.name == pod]
    pending: dict[str, list[str]] = {}
    for task in sorted(tasks, key=lambda task: task.name):
        if task.status is TaskStatus.PENDING:
            found = objects.get("Pod", task.namespace, task.name)
            pending.setdefault(_last(found, {"PodScheduled"})[1], []).append(task.name)
    group = objects.get("PodGroup", job.namespace, job.name)
    reason, text = _last(group, {"CanNeverStart", "Unschedulable"})
    text = next((message for message in pending if message), "") or text
    stage: Stage = _STAGES.get(reason, "NoNodeFits")
    summary = (
        f"Pending, as the scheduler wrote last: {plain(text)}" if text else "Pending; the scheduler wrote no reason"
    )
    if not pending and tasks:
        stage, summary = "Scheduled", "Not pending: all pods are scheduled"
    elif not tasks and job.phase.value == "Pending":
        stage = "CannotStart" if reason == "CanNeverStart" else "NotAdmitted"
    return JobDiagnosis(
        namespace=job.namespace,
        workload=display_name(job).partition("/")[2],
        pod_group=job.name if job.uid and not job.implicit else "",
        phase=job.phase.value,
        stage=stage,
        summary=summary,
        facts=(f"Not readable: {', '.join(unreadable)}; figures of quotas and nodes are missing",),
        scheduled=job.ready_tasks,
        pods=len(job.tasks),
        min_available=job.min_available,
        waiting_seconds=max(0.0, now - (job.created or now)),
        pending=tuple(
            PendingPods(names=tuple(names), outcome="untried" if not message else "unfit", message=message)
            for message, names in pending.items()
        ),
    )


def _last(obj: Json | None, types: set[str]) -> tuple[str, str]:
    """Reason and message of the condition of these types that is most specific: the first in alphabetic order."""
    conditions = ((obj or {}).get("status") or {}).get("conditions") or ()
    found = sorted(
        (str(one.get("type")), str(one.get("reason") or ""), str(one.get("message") or ""))
        for one in conditions
        if one.get("type") in types and one.get("message")
    )
    return (found[0][1], found[0][2]) if found else ("", "")
