"""The events of a Job, and the actions of lifecycle policies for them.

An event lasts as long as its cause. The action that follows outdates the cause (see `records`), so it happens once.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.controllers.jobs.phases import SYNC, WHOLE_JOB
from capcard_sched.controllers.objects import JsonObject, is_terminating, meta, status
from capcard_sched.model.timestamps import DurationError, parse_duration, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from capcard_sched.controllers.jobs.job_spec import JobSpec, TaskSpec
    from capcard_sched.controllers.jobs.job_status import JobMember

POD_PENDING: Final = "PodPending"
POD_FAILED: Final = "PodFailed"
POD_EVICTED: Final = "PodEvicted"
TASK_COMPLETED: Final = "TaskCompleted"
TASK_FAILED: Final = "TaskFailed"
GROUP_UNKNOWN: Final = "Unknown"
_LIVE = ("Pending", "Running", "Unknown")
_ENDED = ("Succeeded", "Failed")


class JobEvent(NamedTuple):
    """Something happened to a Job."""

    name: str
    #: Unix seconds; 0.0 when the objects do not record it.
    since: float
    #: Task and pod it happened to, "" for an event of the whole Job.
    task: str = ""
    pod: str = ""
    exit_codes: frozenset[int] = frozenset()
    #: For PodEvicted: whether the scheduler evicted the pod; None while the pod does not show it.
    by_scheduler: bool | None = False


def job_events(
    job: JobSpec, members: Sequence[JobMember], group: JsonObject | None, recorded: JsonObject
) -> list[JobEvent]:
    """The events to which policies apply. `recorded` is `status.taskStatusCount`, as last written."""
    events = list(_pod_events(member for member in members if member.current))
    by_task: dict[str, list[JobMember]] = {task.name: [] for task in job.tasks}
    for member in members:
        by_task.setdefault(member.notes.task, []).append(member)
    for task in job.tasks:
        own = by_task[task.name]
        events += _task_events(task, own)
        events += _lost_pods(job, task, own, ((recorded.get(task.name) or {}).get("phase")) or {})
    if group is not None and status(group).get("phase") == GROUP_UNKNOWN:
        events.append(JobEvent(GROUP_UNKNOWN, 0.0))
    return events


def _pod_events(current: Iterable[JobMember]) -> Iterator[JobEvent]:
    for member in current:
        pod, notes = member.pod, member.notes
        if is_terminating(pod):
            # A pod that ends during its grace period was evicted, whatever its exit code.
            grace = float(meta(pod).get("deletionGracePeriodSeconds") or 0)
            since = parse_time(meta(pod)["deletionTimestamp"]) - grace
            yield JobEvent(POD_EVICTED, since, notes.task, notes.name, by_scheduler=_is_preempted(pod) or None)
        elif member.phase == "Failed":
            yield JobEvent(POD_FAILED, ended_at(pod), notes.task, notes.name, exit_codes(pod))
        elif member.phase == "Pending":
            yield JobEvent(POD_PENDING, parse_time(meta(pod).get("creationTimestamp")), notes.task, notes.name)


def _is_preempted(pod: JsonObject) -> bool:
    """Whether the pod has the condition of an eviction by a scheduler."""
    return any(
        condition.get("type") == "DisruptionTarget"
        and condition.get("status") == "True"
        and condition.get("reason") == "PreemptionByScheduler"
        for condition in status(pod).get("conditions") or ()
    )


def _task_events(task: TaskSpec, own: Sequence[JobMember]) -> Iterator[JobEvent]:
    # Pods that succeeded before a resume count, but are no event of their own.
    done = [member for member in own if member.phase == "Succeeded" and not (member.to_delete or member.surplus)]
    if len(done) >= task.replicas and any(member.current for member in done):
        last = max(done, key=lambda member: (ended_at(member.pod), member.notes.ordinal))
        yield JobEvent(TASK_COMPLETED, ended_at(last.pod), task.name, last.notes.name)
    live = [
        member
        for member in own
        if member.current and member.phase in ("Pending", "Running") and not is_terminating(member.pod)
    ]
    counts = [restarts(member.pod) for member in live]
    if task.max_retry >= 0 and sum(counts) >= max(task.max_retry, 1):
        worst = live[counts.index(max(counts))]
        yield JobEvent(TASK_FAILED, ended_at(worst.pod), task.name, worst.notes.name)


def _lost_pods(job: JobSpec, task: TaskSpec, present: Sequence[JobMember], recorded: JsonObject) -> Iterator[JobEvent]:
    """Pods that were alive when the status was written and are gone: deleted at once, or while no controller ran."""
    ended = sum(member.phase in _ENDED for member in present)
    live = len(present) - ended
    was_live = sum(int(recorded.get(phase) or 0) for phase in _LIVE)
    was_ended = sum(int(recorded.get(phase) or 0) for phase in _ENDED)
    lost = was_live - live - max(0, ended - was_ended)
    if lost <= 0:
        return
    names = {member.notes.name for member in present}
    absent = (name for index in range(task.replicas) if (name := job.pod_name(task, index)) not in names)
    for name in islice(absent, lost):
        yield JobEvent(POD_EVICTED, 0.0, task.name, name)


def _container_rows(pod: JsonObject) -> list[JsonObject]:
    """Statuses of all containers but sidecars."""
    init = (pod.get("spec") or {}).get("initContainers") or ()
    sidecars = {row.get("name") for row in init if row.get("restartPolicy") == "Always"}
    rows = (*(status(pod).get("containerStatuses") or ()), *(status(pod).get("initContainerStatuses") or ()))
    return [row for row in rows if row.get("name") not in sidecars]


def _terminations(pod: JsonObject) -> Iterator[JsonObject]:
    for row in _container_rows(pod):
        for state in ("state", "lastState"):
            found = (row.get(state) or {}).get("terminated")
            if found:
                yield found
                break


def restarts(pod: JsonObject) -> int:
    """How often containers of a pod, init containers included, were restarted."""
    rows = (*(status(pod).get("containerStatuses") or ()), *(status(pod).get("initContainerStatuses") or ()))
    return sum(int(row.get("restartCount") or 0) for row in rows)


def exit_codes(pod: JsonObject) -> frozenset[int]:
    """The exit codes other than 0 of a pod's containers; those of sidecars do not count."""
    codes = (
        int(((row.get("state") or {}).get("terminated") or {}).get("exitCode") or 0) for row in _container_rows(pod)
    )
    return frozenset(code for code in codes if code)


def ended_at(pod: JsonObject) -> float:
    """When the last container of a pod ended (unix seconds); 0.0 when the status does not record it."""
    return max((parse_time(found.get("finishedAt")) for found in _terminations(pod)), default=0.0)


class PolicyAction(NamedTuple):
    """An action and its delay after the event (seconds)."""

    action: str
    delay: float = 0.0


class JobPolicies:
    """The lifecycle policies of a Job. Pods with the same event share one search: the list of policies may be long."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        #: Task, "" for those of the Job, and the part of an event that policies read, to the first policy that matches.
        self._found: dict[tuple[str, str, frozenset[int]], PolicyAction | None] = {}

    def action_for(self, event: JobEvent) -> PolicyAction:
        """The action of the first policy that matches: those of the task, then those of the Job, then a plain sync."""
        task = self._job.task(event.task)
        found = self._first(task.name, task.policies, event) if task is not None and task.policies else None
        return found or self._first("", self._job.policies, event) or PolicyAction(SYNC)

    def _first(self, task: str, policies: Sequence[JsonObject], event: JobEvent) -> PolicyAction | None:
        key = task, event.name, event.exit_codes
        if key not in self._found:
            self._found[key] = next(filter(None, (_action(policy, event) for policy in policies)), None)
        return self._found[key]


def _action(policy: JsonObject, event: JobEvent) -> PolicyAction | None:
    """The action of a policy for an event, None when it does not apply."""
    if not _matches(policy, event):
        return None
    delay = policy_delay(policy)
    if delay is None or (event.name == POD_PENDING and not delay):
        return None
    return PolicyAction(policy.get("action") or SYNC, delay)


def policy_delay(policy: JsonObject) -> float | None:
    """`timeout` in seconds, 0.0 when absent, None when it is no duration: such a policy has no effect."""
    timeout = policy.get("timeout")
    if timeout is None:
        return 0.0
    try:
        return max(0.0, parse_duration(str(timeout)))
    except DurationError:
        return None


def ends_by_eviction(job: JobSpec) -> bool:
    """Whether the eviction of one pod of some task takes down or restarts the whole Job."""
    policies = JobPolicies(job)
    return any(policies.action_for(JobEvent(POD_EVICTED, 0.0, task.name)).action in WHOLE_JOB for task in job.tasks)


def _matches(policy: JsonObject, event: JobEvent) -> bool:
    names = (policy.get("event"), *(policy.get("events") or ()))
    if event.name in names or "*" in names:
        return True
    return event.name == POD_FAILED and policy.get("exitCode") in event.exit_codes
