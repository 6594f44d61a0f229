"""The pods of a vcjob, as its controller creates them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.controllers.jobs.job_spec import job_pod, job_spec
from capcard_sched.controllers.objects import PRIORITY_CLASS, spec
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.objects import PodObject

if TYPE_CHECKING:
    from capcard_sched.framework.core import Core
    from capcard_sched.insight.sources.changes import Edits
    from capcard_sched.insight.sources.object_view import Json
    from capcard_sched.model.deltas import Delta


def pods_of_job(core: Core, edits: Edits, vcjob: Json, group: str) -> list[Delta]:
    """The pods that the controller creates for a vcjob with a PodGroup; they are added to `edits`."""
    found: list[Delta] = []
    desired = job_spec(vcjob, min(core.snapshot().state.scheduler_names))
    for task in desired.tasks:
        for index in range(task.replicas):
            pod = job_pod(vcjob, desired, task, index, group)
            # Of equal pods, sessions place the one with the first uid: in the order of the creation.
            pod["metadata"]["uid"] = f"trial-{len(found):06}-{pod['metadata']['name']}"
            chosen = edits.get(PRIORITY_CLASS, "", spec(pod).get("priorityClassName") or "")
            if chosen is not None:
                policy = chosen.get("preemptionPolicy")
                pod["spec"] = {**spec(pod), "priority": chosen["value"], "preemptionPolicy": policy}
            edits.put(pod)
            found.append(ObjectChanged(msgspec.convert(pod, PodObject)))
    return found
