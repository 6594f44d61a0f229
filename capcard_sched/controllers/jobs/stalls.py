"""Jobs that cannot continue: pods have failed, no policy replaces them, and without them no other pod starts or ends.

A scheduler binds a gang only if enough of its pods are pending, run or have succeeded. A task whose predecessors have
failed is never created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.controllers.jobs.events import ended_at
from capcard_sched.controllers.objects import is_terminating, meta, spec, status
from capcard_sched.controllers.view import CLOCK_SKEW
from capcard_sched.model.quoting import plural
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.controllers.jobs.job_spec import JobSpec, TaskSpec
    from capcard_sched.controllers.jobs.job_status import JobMember
    from capcard_sched.controllers.objects import JsonObject

#: Seconds for which a Job must be unable to continue before it ends: bindings may be on their way.
_STALL_SECONDS: Final = 30.0
#: Reason of the event and of the phase.
CANNOT_CONTINUE: Final = "CannotContinue"


class Stall(NamedTuple):
    """A Job cannot continue."""

    #: When the Job ends (unix seconds).
    due: float
    text: str

    def is_new(self, now: float) -> bool:
        """Whether it may still pass. A moment that lies too far ahead was recorded by a wrong clock."""
        return now < self.due <= now + _STALL_SECONDS + CLOCK_SKEW


def find_stall(job: JsonObject, desired: JobSpec, members: Sequence[JobMember], scheduler_name: str) -> Stall | None:
    """Why the Job cannot continue; None while a pod runs, terminates or may start.

    The rule about gangs holds for Jobs of `scheduler_name` only: others may bind pods one by one.
    """
    if not any(member.phase == "Failed" for member in members) or any(map(_is_active, members)):
        return None
    usable, started = _usable_pods(desired, members)
    pending = any(member.phase == "Pending" for member in members)
    present = {member.notes.name for member in members}
    missing = (
        task for task in desired.tasks for index in range(task.replicas) if desired.pod_name(task, index) not in present
    )
    if not pending and not any(task.name in started for task in missing):
        cause = "tasks wait for predecessors that have failed"
    elif desired.scheduler_name == scheduler_name and _is_gang_broken(desired, usable):
        cause = f"the gang needs {plural(desired.min_available, 'pod')}, and each task its minAvailable"
    else:
        return None
    changes = [parse_time(meta(member.pod).get("creationTimestamp")) for member in members]
    changes += [ended_at(member.pod) for member in members]
    changes.append(parse_time((status(job).get("state") or {}).get("lastTransitionTime")))
    text = f"{sum(usable.values())} of {plural(desired.replicas, 'pod')} succeeded or can still start: {cause}"
    return Stall(max(changes) + _STALL_SECONDS, text)


def _is_active(member: JobMember) -> bool:
    """Whether the pod changes without a scheduler: it runs, terminates, or has a node."""
    if is_terminating(member.pod) or member.to_delete or member.phase in ("Running", "Unknown"):
        return True
    return member.phase == "Pending" and bool(spec(member.pod).get("nodeName"))


def _usable_pods(desired: JobSpec, members: Sequence[JobMember]) -> tuple[dict[str, int], set[str]]:
    """Task to the number of its pods that have succeeded, are pending, or can be created; the tasks that can start."""
    usable = {task.name: 0 for task in desired.tasks}
    present = dict(usable)
    for member in members:
        if member.notes.task in usable:
            present[member.notes.task] += 1
            usable[member.notes.task] += member.phase != "Failed"
    dependents: dict[str, list[TaskSpec]] = {}
    for task in desired.tasks:
        for name in task.depends_on:
            dependents.setdefault(name, []).append(task)
    left = {task.name: 1 if task.depends_on_any else len(task.depends_on) for task in desired.tasks}
    met: set[str] = set()
    started: set[str] = set()
    candidates = list(desired.tasks)

    def satisfy(task: TaskSpec) -> None:
        """Let the dependents of a task start, once it has enough pods."""
        if task.name in met or usable[task.name] < task.min_available:
            return
        met.add(task.name)
        for other in dependents.get(task.name, ()):
            left[other.name] -= 1
            candidates.append(other)

    for task in desired.tasks:
        satisfy(task)
    while candidates:
        task = candidates.pop()
        if task.name in started or (task.depends_on and left[task.name] > 0):
            continue
        started.add(task.name)
        usable[task.name] += max(0, task.replicas - present[task.name])
        satisfy(task)
    return usable, started


def _is_gang_broken(desired: JobSpec, usable: dict[str, int]) -> bool:
    if sum(usable.values()) < desired.min_available:
        return True
    return desired.checks_tasks and any(usable[task.name] < task.min_available for task in desired.tasks)
