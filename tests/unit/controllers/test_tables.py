"""Tables of the controllers: phases of Jobs, states of queues, times of schedules."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from capcard_sched.controllers.cronjobs import Schedule, ScheduleError
from capcard_sched.controllers.jobs.job_spec import JobSpec, job_spec
from capcard_sched.controllers.jobs.phases import Census, Kill, Transition, following, transition
from capcard_sched.controllers.queues import next_state
from capcard_sched.model.timestamps import parse_timestamp

ACTIONS = "AbortJob TerminateJob CompleteJob RestartJob RestartTask RestartPartition RestartPod ResumeJob SyncJob Other"
_DOWN = [Transition(phase, Kill.SOFT) for phase in ("Aborting", "Terminating", "Completing")]
_COUNTED = [Transition("Restarting", kill, retry=True) for kill in (Kill.ALL, Kill.TARGET, Kill.TARGET, Kill.TARGET)]
_AGAIN = [Transition("Restarting", kill) for kill in (Kill.ALL, Kill.TARGET, Kill.TARGET, Kill.TARGET, Kill.ALL)]
_RESUMED = [*[None] * 7, Transition("Restarting", Kill.UNSUCCESSFUL, retry=True, counts=False)]
#: Phase to its transitions by the first actions; None and the actions behind them: the Job is synced only.
CELLS: dict[str, list[Any]] = {
    "Pending": [*_DOWN, *_COUNTED],
    "Running": [*_DOWN, *_COUNTED],
    "Restarting": [*_DOWN, *_AGAIN],
    "Aborting": _RESUMED,
    "Aborted": _RESUMED,
    **{phase: [] for phase in ("Completing", "Completed", "Terminating", "Terminated", "Failed")},
}


@pytest.mark.parametrize("phase", CELLS)
def test_an_action_has_the_effect_of_its_cell(phase: str) -> None:
    actions = ACTIONS.split()
    assert [transition(phase, action) for action in actions] == (CELLS[phase] + [None] * 10)[: len(actions)]


def _job(text: str) -> JobSpec:
    """A Job: fields of its spec, and under the names of tasks their replicas and minAvailable."""
    spec = yaml.safe_load(f"{{{text}}}")
    tasks = {name: spec.pop(name) for name in ("w", "a", "b") if name in spec} or {"w": [4, 4]}
    body = [{"name": name, "replicas": size, "minAvailable": least} for name, (size, least) in tasks.items()]
    return job_spec(
        {"metadata": {"namespace": "default", "name": "j", "uid": "u"}, "spec": {"tasks": body, **spec}}, ""
    )


def _count(text: str) -> Census:
    """Pods: under the names of tasks their number by phase (P, R, S, F), and those that terminate."""
    given = yaml.safe_load(f"{{{text}}}")
    terminating = given.pop("terminating", 0)
    names = {"P": "Pending", "R": "Running", "S": "Succeeded", "F": "Failed"}
    by_task = {task: {names[key]: count for key, count in counts.items()} for task, counts in given.items()}
    pending, running, succeeded, failed = (
        sum(counts.get(phase, 0) for counts in by_task.values()) for phase in names.values()
    )
    return Census(pending, running, succeeded, failed, terminating, 0, by_task)


#: Case, phase, Job (4 pods of task w with minAvailable 4), pods, the phase that follows.
FOLLOWING = [
    ("no pod yet", "Pending", "", "", "Pending"),
    ("some pods", "Pending", "", "w: {R: 3, P: 1}", "Pending"),
    ("enough pods", "Pending", "minAvailable: 3", "w: {R: 3, P: 1}", "Running"),
    ("ended pods count", "Pending", "", "w: {R: 2, S: 1, F: 1}", "Running"),
    ("no replicas", "Running", "w: [0, 0]", "", "Running"),
    ("minSuccess reached", "Running", "minSuccess: 2", "w: {R: 2, S: 2}", "Completed"),
    ("all succeeded", "Running", "", "w: {S: 4}", "Completed"),
    ("a task short of its minimum", "Running", "", "w: {S: 3, F: 1}", "Failed"),
    ("a gang smaller than its tasks", "Running", "a: [2, 2], b: [2, 2], minAvailable: 2", "a: {S: 2}, b: {F: 2}",
     "Completed"),
    ("too few of a small gang", "Running", "a: [2, 2], b: [2, 2], minAvailable: 2", "a: {S: 1, F: 1}, b: {F: 2}",
     "Failed"),
    ("minSuccess missed", "Running", "w: [4, 1], minAvailable: 1, minSuccess: 3", "w: {S: 2, F: 2}", "Failed"),
    ("too many pending", "Running", "minAvailable: 3", "w: {R: 2, P: 2}", "Pending"),
    ("one pending", "Running", "minAvailable: 3", "w: {R: 3, P: 1}", "Running"),
    ("terminating pods", "Restarting", "", "terminating: 1", "Restarting"),
    ("enough pods are gone", "Restarting", "minAvailable: 3", "terminating: 1", "Pending"),
    ("terminating pods", "Aborting", "", "terminating: 1", "Aborting"),
    ("pods are gone", "Aborting", "", "w: {S: 1}", "Aborted"),
    ("pods are gone", "Completing", "", "", "Completed"),
    ("a pod runs", "Completing", "", "w: {R: 1}", "Completing"),
    ("pods are gone", "Terminating", "", "", "Terminated"),
    ("a pod is pending", "Terminating", "", "w: {P: 1}", "Terminating"),
    *(("stays", phase, "", "", phase) for phase in ("Aborted", "Completed", "Failed", "Terminated")),
]  # fmt: skip


@pytest.mark.parametrize(
    "phase, job, count, expected", [row[1:] for row in FOLLOWING], ids=[f"{row[1]}: {row[0]}" for row in FOLLOWING]
)
def test_a_phase_follows_from_the_counts(phase: str, job: str, count: str, expected: str) -> None:
    assert following(phase, _job(job), _count(count), 0) == expected


@pytest.mark.parametrize("retries, expected", [(2, "Pending"), (3, "Failed"), (4, "Failed")])
def test_a_restarting_job_fails_when_its_retries_are_used_up(retries: int, expected: str) -> None:
    assert following("Restarting", _job("maxRetry: 3"), _count(""), retries) == expected


#: State ("": never synced) to those that follow from OpenQueue, CloseQueue and SyncQueue, each in an empty queue and in
#: one with a PodGroup.
QUEUES = {
    "": "Open Open Closed Closing Open Open",
    "Open": "Open Open Closed Closing Open Open",
    "Closing": "Open Open Closed Closing Closed Closing",
    "Closed": "Open Open Closed Closed Closed Closed",
    "Unknown": "Open Open Closed Closing Unknown Unknown",
}


@pytest.mark.parametrize("state", QUEUES)
def test_a_state_follows_from_an_action_and_the_podgroups(state: str) -> None:
    actions = ("OpenQueue", "CloseQueue", "SyncQueue")
    assert [next_state(state, action, groups) for action in actions for groups in (0, 1)] == QUEUES[state].split()


#: Schedule, time zone, span of times, and the last and next time; in January 2026, `day hour:minute`.
SCHEDULES = [
    ("*/15 * * * *", "", ("01 00:00", "01 00:40"), ("01 00:30", "01 00:45")),
    ("0 2 * * *", "", ("01 00:00", "01 01:59"), (None, "01 02:00")),
    ("0 2 * * *", "Europe/Berlin", ("01 00:00", "01 01:00"), ("01 01:00", "02 01:00")),
    ("@daily", "", ("01 00:00", "04 12:00"), ("04 00:00", "05 00:00")),
    ("* * * * *", "", ("01 00:00", "31 12:00"), ("31 12:00", "31 12:01")),
]


@pytest.mark.parametrize("text, zone, span, expected", SCHEDULES)
def test_the_latest_and_the_next_time_of_a_schedule(
    text: str, zone: str, span: tuple[str, str], expected: tuple[str | None, str]
) -> None:
    first, last, *times = [
        None if moment is None else parse_timestamp(f"2026-01-{moment.replace(' ', 'T')}:00Z")
        for moment in (*span, *expected)
    ]
    assert first is not None
    assert last is not None
    assert Schedule(text, zone).latest(first, last) == tuple(times)


@pytest.mark.parametrize(
    "text, zone", [("", ""), ("x", ""), ("* * * *", ""), ("61 * * * *", ""), ("@daily", "Mars/Base")]
)
def test_a_wrong_schedule_names_its_field(text: str, zone: str) -> None:
    with pytest.raises(ScheduleError, match="spec.timeZone" if zone else "spec.schedule"):
        Schedule(text, zone)
