"""The phases of a Job: plain functions over counts (controllers reference §4.1, §4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.annotations import TASK_SPEC
from capcard_sched.simulation.kinds import POD, JsonObject, annotations_of, meta, spec, status
from capcard_sched.simulation.workloads.jobs.members import total_replicas

if TYPE_CHECKING:
    from capcard_sched.simulation.store import Store

PENDING, RUNNING, RESTARTING = "Pending", "Running", "Restarting"
ABORTING, ABORTED = "Aborting", "Aborted"
COMPLETING, COMPLETED = "Completing", "Completed"
TERMINATING, TERMINATED = "Terminating", "Terminated"
FAILED = "Failed"

FINISHED = frozenset({COMPLETED, FAILED, TERMINATED})
#: A phase that waits for pods to be gone, and the one that follows.
LEADS_TO = {ABORTING: ABORTED, COMPLETING: COMPLETED, TERMINATING: TERMINATED}
#: Actions that take the whole Job down softly, and the phase they begin.
TAKES_DOWN = {"AbortJob": ABORTING, "CompleteJob": COMPLETING, "TerminateJob": TERMINATING}


class Census(NamedTuple):
    """The pods of a Job by what they are."""

    pending: int
    running: int
    succeeded: int
    failed: int
    terminating: int
    unknown: int
    #: Task name to pod phase to number.
    by_task: dict[str, dict[str, int]]

    @property
    def alive(self) -> bool:
        """Whether any pod still holds or wants room."""
        return self.pending + self.running + self.terminating > 0


def census(store: Store, job: JsonObject) -> Census:
    """Count the pods a Job owns; leaving ones apart, ended ones always (C-05)."""
    counts = dict.fromkeys(("Pending", "Running", "Succeeded", "Failed", "Terminating", "Unknown"), 0)
    by_task: dict[str, dict[str, int]] = {}
    for pod in store.owned(meta(job)["uid"], POD):
        phase = status(pod).get("phase", "Unknown")
        if meta(pod).get("deletionTimestamp"):
            counts["Terminating"] += 1
            continue
        counts[phase] += 1
        of_task = by_task.setdefault(annotations_of(pod).get(TASK_SPEC, ""), {})
        of_task[phase] = of_task.get(phase, 0) + 1
    return Census(
        counts["Pending"],
        counts["Running"],
        counts["Succeeded"],
        counts["Failed"],
        counts["Terminating"],
        counts["Unknown"],
        by_task,
    )


def after_running(job: JsonObject, count: Census) -> str:
    """The phase that follows Running, by the first rule that applies."""
    total, least = total_replicas(job), int(spec(job)["minAvailable"])
    if total == 0:
        return RUNNING
    enough = spec(job).get("minSuccess")
    if enough is not None and count.succeeded >= enough:
        return COMPLETED
    if count.succeeded + count.failed == total:
        tasks = spec(job)["tasks"]
        if least >= sum(int(task["minAvailable"]) for task in tasks) and any(
            count.by_task.get(task["name"], {}).get("Succeeded", 0) < int(task["minAvailable"]) for task in tasks
        ):
            return FAILED
        if enough is not None:
            return FAILED
        return COMPLETED if count.succeeded >= least else FAILED
    return PENDING if count.pending > total - least else RUNNING


def after_restarting(job: JsonObject, count: Census) -> str:
    """The phase that follows Restarting: no retry left, room for the gang again, or still waiting."""
    if int(status(job).get("retryCount", 0)) >= int(spec(job)["maxRetry"]):
        return FAILED
    ready = total_replicas(job) - count.terminating >= int(spec(job)["minAvailable"])
    return PENDING if ready else RESTARTING
