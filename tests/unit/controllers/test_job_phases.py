"""Every cell of the job controller's table of phases and actions, and the rules by which phases follow from counts."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.controllers.jobs.job_spec import JobSpec, job_spec
from capcard_sched.controllers.jobs.phases import Census, Kill, Transition, following, transition

ACTIONS = (
    "AbortJob",
    "RestartJob",
    "RestartTask",
    "RestartPartition",
    "RestartPod",
    "TerminateJob",
    "CompleteJob",
    "ResumeJob",
    "SyncJob",
    "NoSuchAction",
)
_TAKEN_DOWN = {
    "AbortJob": Transition("Aborting", Kill.SOFT),
    "TerminateJob": Transition("Terminating", Kill.SOFT),
    "CompleteJob": Transition("Completing", Kill.SOFT),
}
_ACTIVE = {
    **_TAKEN_DOWN,
    "RestartJob": Transition("Restarting", Kill.ALL, retry=True),
    "RestartTask": Transition("Restarting", Kill.TARGET, retry=True),
    "RestartPartition": Transition("Restarting", Kill.TARGET, retry=True),
    "RestartPod": Transition("Restarting", Kill.TARGET, retry=True),
}
_RESUMED = {"ResumeJob": Transition("Restarting", Kill.SOFT, retry=True)}
#: Phase to the actions that change it; every other action only syncs the Job.
CELLS: dict[str, dict[str, Transition]] = {
    "Pending": _ACTIVE,
    "Running": _ACTIVE,
    "Restarting": {
        **_TAKEN_DOWN,
        "RestartJob": Transition("Restarting", Kill.ALL),
        "ResumeJob": Transition("Restarting", Kill.ALL),
        "RestartTask": Transition("Restarting", Kill.TARGET),
        "RestartPartition": Transition("Restarting", Kill.TARGET),
        "RestartPod": Transition("Restarting", Kill.TARGET),
    },
    "Aborting": _RESUMED,
    "Aborted": _RESUMED,
    "Completing": {},
    "Completed": {},
    "Terminating": {},
    "Terminated": {},
    "Failed": {},
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("phase", CELLS)
def test_an_action_has_the_effect_of_its_cell(phase: str, action: str) -> None:
    assert transition(phase, action) == CELLS[phase].get(action)


def _job(tasks: dict[str, tuple[int, int]] | None = None, **spec: Any) -> JobSpec:
    """A Job; task name to replicas and minAvailable."""
    tasks = {"w": (4, 4)} if tasks is None else tasks
    body = [{"name": name, "replicas": size, "minAvailable": least} for name, (size, least) in tasks.items()]
    metadata = {"namespace": "default", "name": "j", "uid": "u"}
    return job_spec({"metadata": metadata, "spec": {"tasks": body, **spec}}, "ours")


def _count(by_task: dict[str, dict[str, int]] | None = None, *, terminating: int = 0) -> Census:
    by_task = by_task or {}
    sums = {
        phase: sum(counts.get(phase, 0) for counts in by_task.values())
        for phase in ("Pending", "Running", "Succeeded", "Failed", "Unknown")
    }
    return Census(
        sums["Pending"], sums["Running"], sums["Succeeded"], sums["Failed"], terminating, sums["Unknown"], by_task
    )


FOLLOWING = [
    ("no pod yet", "Pending", _job(), _count(), "Pending"),
    ("some pods", "Pending", _job(), _count({"w": {"Running": 3, "Pending": 1}}), "Pending"),
    ("enough pods", "Pending", _job(minAvailable=3), _count({"w": {"Running": 3, "Pending": 1}}), "Running"),
    ("ended pods count", "Pending", _job(), _count({"w": {"Running": 2, "Succeeded": 1, "Failed": 1}}), "Running"),
    ("no replicas", "Running", _job({"w": (0, 0)}), _count(), "Running"),
    ("minSuccess reached", "Running", _job(minSuccess=2), _count({"w": {"Running": 2, "Succeeded": 2}}), "Completed"),
    ("all succeeded", "Running", _job(), _count({"w": {"Succeeded": 4}}), "Completed"),
    ("a task short of its minimum", "Running", _job(), _count({"w": {"Succeeded": 3, "Failed": 1}}), "Failed"),
    (
        "the gang is smaller than its tasks",
        "Running",
        _job({"a": (2, 2), "b": (2, 2)}, minAvailable=2),
        _count({"a": {"Succeeded": 2}, "b": {"Failed": 2}}),
        "Completed",
    ),
    (
        "too few of a small gang",
        "Running",
        _job({"a": (2, 2), "b": (2, 2)}, minAvailable=2),
        _count({"a": {"Succeeded": 1, "Failed": 1}, "b": {"Failed": 2}}),
        "Failed",
    ),
    (
        "minSuccess missed",
        "Running",
        _job({"w": (4, 1)}, minAvailable=1, minSuccess=3),
        _count({"w": {"Succeeded": 2, "Failed": 2}}),
        "Failed",
    ),
    ("too many pending", "Running", _job(minAvailable=3), _count({"w": {"Running": 2, "Pending": 2}}), "Pending"),
    ("one pending", "Running", _job(minAvailable=3), _count({"w": {"Running": 3, "Pending": 1}}), "Running"),
    ("waits for terminating pods", "Restarting", _job(), _count(terminating=1), "Restarting"),
    ("enough pods are gone", "Restarting", _job(minAvailable=3), _count(terminating=1), "Pending"),
    ("pods are terminating", "Aborting", _job(), _count(terminating=1), "Aborting"),
    ("pods are gone", "Aborting", _job(), _count({"w": {"Succeeded": 1}}), "Aborted"),
    ("pods are gone", "Completing", _job(), _count(), "Completed"),
    ("a pod runs", "Completing", _job(), _count({"w": {"Running": 1}}), "Completing"),
    ("pods are gone", "Terminating", _job(), _count(), "Terminated"),
    ("a pod is pending", "Terminating", _job(), _count({"w": {"Pending": 1}}), "Terminating"),
    ("stays", "Aborted", _job(), _count(), "Aborted"),
    ("stays", "Completed", _job(), _count(), "Completed"),
    ("stays", "Failed", _job(), _count(), "Failed"),
    ("stays", "Terminated", _job(), _count(), "Terminated"),
]


@pytest.mark.parametrize(
    "phase, job, count, expected", [row[1:] for row in FOLLOWING], ids=[f"{row[1]}: {row[0]}" for row in FOLLOWING]
)
def test_a_phase_follows_from_the_counts(phase: str, job: JobSpec, count: Census, expected: str) -> None:
    assert following(phase, job, count, 0) == expected


@pytest.mark.parametrize("retries, expected", [(2, "Pending"), (3, "Failed"), (4, "Failed")])
def test_a_restarting_job_fails_when_its_retries_are_used_up(retries: int, expected: str) -> None:
    assert following("Restarting", _job(maxRetry=3), _count(), retries) == expected
