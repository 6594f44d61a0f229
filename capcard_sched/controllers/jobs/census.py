"""The pods of a Job by phase, and which of them its controller is to delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.controllers.jobs.phases import ACTIVE, RESTARTING, Census
from capcard_sched.controllers.objects import JsonObject, annotations_of, has_ended, is_terminating, status
from capcard_sched.model.annotations import CONTROLLER_OUT_OF_SYNC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.controllers.jobs.job_spec import JobSpec
    from capcard_sched.controllers.jobs.records import MemberAnnotations, Records

_KEEPS_MEMBERS = ACTIVE | {RESTARTING}
_PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")


class JobMember(NamedTuple):
    """A pod of a Job."""

    pod: JsonObject
    notes: MemberAnnotations
    #: `Unknown` for a phase that is none.
    phase: str
    #: To be deleted, whether or not its deletion has begun.
    doomed: bool
    #: Belongs to the present version and to a replica that the Job asks for: what happens to it is an event.
    current: bool
    #: Of the present version, but beyond the replicas of its task.
    surplus: bool

    @property
    def ready(self) -> bool:
        """Succeeded, or running with all containers ready."""
        if self.doomed or is_terminating(self.pod):
            return False
        rows = status(self.pod).get("containerStatuses") or ()
        return self.phase == "Succeeded" or (self.phase == "Running" and all(row.get("ready", True) for row in rows))


def members(
    job: JobSpec, pods: Iterable[tuple[JsonObject, MemberAnnotations]], phase: str, version: int, records: Records
) -> list[JobMember]:
    """The pods with what is to become of each while the Job is in `phase`."""
    last = {task.name: task.replicas for task in job.tasks}
    found = []
    for pod, notes in pods:
        wanted = 0 <= notes.ordinal < last.get(notes.task, 0)
        outdated = records.outdated(notes)
        if has_ended(pod):
            doomed = (outdated and phase in _KEEPS_MEMBERS) or (phase in ACTIVE and not wanted)
        elif phase in ACTIVE:
            doomed = outdated or not wanted or notes.version < version
        else:
            doomed = phase != RESTARTING or outdated or notes.version < version
        present = not outdated and notes.version >= version
        current = wanted and present and CONTROLLER_OUT_OF_SYNC not in annotations_of(pod)
        pod_phase = status(pod).get("phase") or "Pending"
        known = pod_phase if pod_phase in _PHASES else "Unknown"
        found.append(JobMember(pod, notes, known, doomed, current, surplus=present and not wanted))
    return found


def census(pods: Iterable[JobMember]) -> Census:
    """Count the pods: those that are to go apart, those that ended always."""
    counts = dict.fromkeys((*_PHASES, "Terminating"), 0)
    by_task: dict[str, dict[str, int]] = {}
    for member in pods:
        if is_terminating(member.pod) or member.doomed:
            counts["Terminating"] += 1
            continue
        counts[member.phase] += 1
        of_task = by_task.setdefault(member.notes.task, {})
        of_task[member.phase] = of_task.get(member.phase, 0) + 1
    return Census(
        counts["Pending"],
        counts["Running"],
        counts["Succeeded"],
        counts["Failed"],
        counts["Terminating"],
        counts["Unknown"],
        by_task,
    )
