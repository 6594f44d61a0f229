"""Which action answers which event of a Job (controllers reference §4.3)."""

from __future__ import annotations

from typing import NamedTuple

from capcard_sched.model.annotations import JOB_VERSION, TASK_SPEC
from capcard_sched.simulation.duration import parse_duration
from capcard_sched.simulation.kinds import JsonObject, annotations_of, meta, spec, status

SYNC = "SyncJob"
#: Actions that no pod of the Job outlives.
WHOLE_JOB = frozenset({"AbortJob", "RestartJob", "CompleteJob", "TerminateJob"})
#: Raised for the controller itself; no policy answers them.
_INTERNAL = frozenset({"PodRunning", "OutOfSync", "CommandIssued"})


class Request(NamedTuple):
    """Something happened to a Job."""

    event: str
    #: The uid of the Job it happened to, "" when that does not matter.
    job_uid: str = ""
    #: The pod it is about, as it was then.
    pod: JsonObject | None = None
    exit_code: int = 0
    #: Set when the action is decided already (commands, delayed actions).
    action: str = ""

    @property
    def task(self) -> str:
        """Task of the pod, "" without one."""
        return annotations_of(self.pod).get(TASK_SPEC, "") if self.pod is not None else ""

    @property
    def pod_uid(self) -> str:
        """Uid of the pod, "" without one."""
        return str(meta(self.pod)["uid"]) if self.pod is not None else ""


class Answer(NamedTuple):
    """An action, and how long it is put off (microseconds)."""

    action: str
    delay: int = 0


def answer(job: JsonObject, request: Request) -> Answer:
    """The action for a request: explicit, by policy of its task, by policy of the Job, or a plain sync."""
    if request.action:
        return Answer(request.action)
    if request.event in _INTERNAL or (request.job_uid and request.job_uid != meta(job)["uid"]):
        return Answer(SYNC)
    if request.pod is not None:
        version = annotations_of(request.pod).get(JOB_VERSION, "0")
        if version.isdigit() and int(version) < int(status(job).get("version", 0)):
            return Answer(SYNC)
    task: JsonObject = next((task for task in spec(job)["tasks"] if task["name"] == request.task), {})
    return _by_policy(job, task, request)


def ends_by_eviction(job: JsonObject) -> bool:
    """Whether the whole Job ends, or starts anew, when one pod of some task is evicted (tidal reference §8)."""
    evicted = Request("PodEvicted")
    return any(_by_policy(job, task, evicted).action in WHOLE_JOB for task in spec(job)["tasks"])


def _by_policy(job: JsonObject, task: JsonObject, request: Request) -> Answer:
    """What the first policy that matches says, those of the task before those of the Job."""
    for policy in (*(task.get("policies") or ()), *(spec(job).get("policies") or ())):
        if not _matches(policy, request):
            continue
        delay = parse_duration(policy["timeout"]) if policy.get("timeout") is not None else 0
        if request.event == "PodPending" and not delay:
            continue
        return Answer(policy["action"], delay)
    return Answer(SYNC)


def _matches(policy: JsonObject, request: Request) -> bool:
    events = [policy.get("event"), *(policy.get("events") or ())]
    if request.event in events or "*" in events:
        return True
    return bool(request.exit_code) and policy.get("exitCode") == request.exit_code


def restarts(pod: JsonObject) -> int:
    """How often containers of a pod, init containers too, were started anew."""
    rows = (*(status(pod).get("containerStatuses") or ()), *(status(pod).get("initContainerStatuses") or ()))
    return sum(int(row.get("restartCount") or 0) for row in rows)


def exit_code(pod: JsonObject) -> int:
    """The first exit code that is not 0 (C-18)."""
    for container in status(pod).get("containerStatuses") or ():
        code = ((container.get("state") or {}).get("terminated") or {}).get("exitCode", 0)
        if code:
            return int(code)
    return 0
