"""The pods of a vcjob, as its controller creates them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.controllers.jobs.job_spec import job_pod, job_spec
from capcard_sched.controllers.objects import JOB, PRIORITY_CLASS, spec
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.objects import PodObject
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.model.workload import is_of_vcjob, workload_of

if TYPE_CHECKING:
    from capcard_sched.framework.core import Core
    from capcard_sched.insight.sources.changes import Edits
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.model.deltas import Delta

#: Other vcjobs whose pods a trial creates, and their pods. A live cluster takes a request for each vcjob.
_MOST_JOBS: Final = 32
_MOST_PODS: Final = 500


def vcjobs_without_pods(core: Core, view: ObjectView, besides: str) -> dict[str, Json]:
    """The vcjobs that wait for admission and have no pods yet, by the key of their PodGroup, the oldest first.

    `besides`: the key of a job that is left out. Their controller creates the pods after the admission: without them a
    trial would leave other jobs the nodes and the place in the queue that these take.
    """
    waiting = [
        job
        for job in core.snapshot().state.jobs.values()
        if job.phase is PodGroupPhase.PENDING and not job.tasks and job.key != besides and is_of_vcjob(job)
    ]
    found: dict[str, Json] = {}
    pods, scheduler = 0, min(core.snapshot().state.scheduler_names)
    for job in sorted(waiting, key=lambda job: (job.created, job.key))[:_MOST_JOBS]:
        vcjob = view.get(JOB, job.namespace, workload_of(job).partition("/")[2])
        if vcjob is not None:
            more = sum(task.replicas for task in job_spec(vcjob, scheduler).tasks)
            if pods + more <= _MOST_PODS:
                pods += more
                found[job.key] = vcjob
    return found


def pods_of_job(core: Core, edits: Edits, vcjob: Json, group: str) -> list[Delta]:
    """The pods that the controller creates for a vcjob with a PodGroup; they are added to `edits`."""
    found: list[Delta] = []
    desired = job_spec(vcjob, min(core.snapshot().state.scheduler_names))
    for task in desired.tasks:
        for index in range(task.replicas):
            pod = job_pod(vcjob, desired, task, index, group)
            # Of equal pods, sessions place the one with the first uid: in the order of the creation.
            pod["metadata"]["uid"] = f"trial-{len(found):06}-{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            chosen = edits.get(PRIORITY_CLASS, "", spec(pod).get("priorityClassName") or "")
            if chosen is not None:
                policy = chosen.get("preemptionPolicy")
                pod["spec"] = {**spec(pod), "priority": chosen["value"], "preemptionPolicy": policy}
            edits.put(pod)
            found.append(ObjectChanged(msgspec.convert(pod, PodObject)))
    return found
