"""The lifecycle policies of a Job: which action answers an event, and after which delay."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.controllers.jobs.events import POD_EVICTED, POD_FAILED, POD_PENDING, JobEvent
from capcard_sched.controllers.jobs.phases import SYNC, WHOLE_JOB
from capcard_sched.model.timestamps import DurationError, parse_duration

if TYPE_CHECKING:
    from capcard_sched.controllers.jobs.job_spec import JobSpec
    from capcard_sched.controllers.objects import JsonObject


class Answer(NamedTuple):
    """An action and its delay after the event (seconds)."""

    action: str
    delay: float = 0.0


def answer(job: JobSpec, event: JobEvent) -> Answer:
    """The action of the first policy that matches: those of the task, then those of the Job, then a plain sync."""
    task = job.task(event.task)
    for policy in (*(task.policies if task is not None else ()), *job.policies):
        if not _matches(policy, event):
            continue
        delay = policy_delay(policy)
        if delay is None or (event.name == POD_PENDING and not delay):
            continue
        return Answer(policy.get("action") or SYNC, delay)
    return Answer(SYNC)


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
    return any(answer(job, JobEvent(POD_EVICTED, 0.0, task.name)).action in WHOLE_JOB for task in job.tasks)


def _matches(policy: JsonObject, event: JobEvent) -> bool:
    names = (policy.get("event"), *(policy.get("events") or ()))
    if event.name in names or "*" in names:
        return True
    return event.name == POD_FAILED and policy.get("exitCode") in event.exit_codes
