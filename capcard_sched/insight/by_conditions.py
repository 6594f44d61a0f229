"""The diagnosis of a job from the conditions of its pods and its PodGroup: for users without rights on nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.explain.sentences import plain
from capcard_sched.model.diagnosis import JobDiagnosis, PendingPods
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.workload import display_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.insight.object_view import Json, ObjectView
    from capcard_sched.model.diagnosis import Stage
    from capcard_sched.model.job import Job

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
            pending.setdefault(_message(found, {"PodScheduled"}), []).append(task.name)
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


def _message(obj: Json | None, types: set[str]) -> str:
    return _last(obj, types)[1]


def _last(obj: Json | None, types: set[str]) -> tuple[str, str]:
    """Reason and message of the condition of these types that is most specific: the first in alphabetic order."""
    conditions = ((obj or {}).get("status") or {}).get("conditions") or ()
    found = sorted(
        (str(one.get("type")), str(one.get("reason") or ""), str(one.get("message") or ""))
        for one in conditions
        if one.get("type") in types and one.get("message")
    )
    return (found[0][1], found[0][2]) if found else ("", "")
