"""Reactions of a Job to events on its pods, by its policies: every event with every action.

The Job has two pods of a task `a`, to which it happens after 10 s, and one of a task `b`, which runs for ever.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.scenarios.notation import objects_of
from tests.scenarios.test_scenarios import run

Manifest = dict[str, Any]
NODE = "node n1 8*NVIDIA-H200 cpu=64 memory=256Gi\n"
PLAIN = ["enqueue, allocate", ["priority", "gang"], ["predicates", "nodeorder"]]
TEMPLATE = "cpu=1 terminationGracePeriodSeconds=3"
#: Changes at 10 s.
HAPPENINGS = {
    "PodEvicted": ["10s delete Pod j-a-0"],
    "PodFailed": ["10s patch Pod j-a-0 {status: {phase: Failed}}"],
    "TaskCompleted": [f"10s patch Pod j-a-{index} {{status: {{phase: Succeeded}}}}" for index in range(2)],
    "TaskFailed": ["10s patch Pod j-a-0 {status: {containerStatuses: [{name: main, restartCount: 3}]}}"],
}


class Seen(NamedTuple):
    """A Job some time after it happened."""

    phase: str
    retries: int
    #: Pods that run: name to whether it is a new one.
    running: dict[str, bool]
    #: Pods that have ended and are kept.
    ended: list[str]
    groups: int


def _objects(policies: Any, operations: list[str], until: str, task: str = "") -> list[Any]:
    """All objects some time after it happened; `policies` are those of the Job, `task` has more fields of task `a`."""
    job = f"job j policies={json.dumps(policies)} + a*2 {TEMPLATE} {task} + b {TEMPLATE}"
    return run(objects_of({"cluster": NODE + job, "operations": operations}), {"conf": PLAIN}, until)


def _happen(policies: Any, operations: list[str], until: str = "60s", task: str = "") -> Seen:
    items = _objects(policies, operations, until, task)
    found = next(item for item in items if item["kind"] == "Job")
    pods = {item["metadata"]["name"]: item for item in items if item["kind"] == "Pod"}
    phases = {name: item["status"].get("phase") for name, item in pods.items()}
    return Seen(
        found["status"]["state"]["phase"],
        found["status"].get("retryCount", 0),
        {
            name: pods[name]["metadata"]["creationTimestamp"] >= "2026-01-01T00:00:10Z"
            for name, phase in sorted(phases.items())
            if phase == "Running"
        },
        sorted(name for name, phase in phases.items() if phase in ("Succeeded", "Failed")),
        sum(item["kind"] == "PodGroup" for item in items),
    )


#: Pods of the Job that have ended by what happened and are kept when it is taken down.
KEPT = {"PodEvicted": [], "PodFailed": ["j-a-0"], "TaskCompleted": ["j-a-0", "j-a-1"], "TaskFailed": []}
ALL_NEW = {"j-a-0": True, "j-a-1": True, "j-b-0": True}
#: Action to the phase that follows, and what runs then (name to whether it is new).
OUTCOMES: dict[str, tuple[str, dict[str, bool]]] = {
    "AbortJob": ("Aborted", {}),
    "RestartJob": ("Running", ALL_NEW),
    "RestartTask": ("Running", {**ALL_NEW, "j-b-0": False}),
    "CompleteJob": ("Completed", {}),
    "TerminateJob": ("Terminated", {}),
}


@pytest.mark.parametrize("level", ["job", "task"])
@pytest.mark.parametrize("action", OUTCOMES)
@pytest.mark.parametrize("event", HAPPENINGS)
def test_an_event_has_the_outcome_of_its_policy(event: str, action: str, level: str) -> None:
    policies = [{"event": event, "action": action}]
    task = f"policies={json.dumps(policies)}" if level == "task" else ""
    seen = _happen([] if task else policies, HAPPENINGS[event], task=task)
    phase, running = OUTCOMES[action]
    restarts = action.startswith("Restart")
    assert seen == Seen(phase, int(restarts), running, [] if restarts else KEPT[event], int(restarts))


@pytest.mark.parametrize(
    ("policies", "phase"),
    [
        ([{"event": "*", "action": "AbortJob"}], "Aborted"),
        ([{"events": ["PodFailed", "PodEvicted"], "action": "TerminateJob"}], "Terminated"),
        ([{"event": "PodFailed", "action": "AbortJob"}], "Running"),
    ],
    ids=["any event", "one of several", "another one"],
)
def test_a_policy_is_found_by_its_event(policies: list[Manifest], phase: str) -> None:
    assert _happen(policies, HAPPENINGS["PodEvicted"]).phase == phase


ABORT = [{"event": "PodEvicted", "action": "AbortJob"}]


def test_a_task_policy_overrides_the_job_policy() -> None:
    task = 'policies=[{event: "*", action: RestartTask}]'
    assert _happen(ABORT, HAPPENINGS["PodEvicted"], task=task).running == {**ALL_NEW, "j-b-0": False}
    assert _happen(ABORT, ["10s delete Pod j-b-0"], task=task).phase == "Aborted"


def test_one_pod_of_two_that_ended_well_completes_no_task() -> None:
    seen = _happen([{"event": "TaskCompleted", "action": "CompleteJob"}], HAPPENINGS["TaskCompleted"][:1])
    assert (seen.phase, seen.ended) == ("Running", ["j-a-0"])


@pytest.mark.parametrize(
    ("most", "restarts", "phase"),
    [(None, 2, "Running"), (0, 3, "Aborted"), (5, 4, "Running"), (5, 5, "Aborted"), (-1, 99, "Running")],
)
def test_a_task_fails_when_its_containers_were_restarted_too_often(most: int | None, restarts: int, phase: str) -> None:
    def seen(*counts: int) -> str:
        status = "{status: {containerStatuses: [{name: main, restartCount: %s}]}}"
        operations = [f"10s patch Pod j-a-{index} {status % count}" for index, count in enumerate(counts)]
        task = "" if most is None else f"maxRetry={most}"
        return _happen([{"event": "TaskFailed", "action": "AbortJob"}], operations, task=task).phase

    assert seen(restarts) == phase
    assert seen(restarts - 1, 1) == phase, "all pods of the task count"


def test_a_delayed_action_is_cancelled_when_the_pod_runs_again() -> None:
    policies = [{"event": "PodEvicted", "action": "AbortJob", "timeout": "20s"}]
    cordoned = ["10s patch Node n1 {spec: {unschedulable: true}}", *HAPPENINGS["PodEvicted"]]
    assert _happen(policies, HAPPENINGS["PodEvicted"]).phase == "Running"
    assert _happen(policies, cordoned, "29s").phase != "Aborted"
    assert _happen(policies, cordoned).phase == "Aborted"


@pytest.mark.parametrize(
    ("policy", "emitted"),
    [
        (ABORT[0], ["Start to execute action AbortJob "]),
        ({"event": "*", "action": "RestartTask"}, ["Start to execute action RestartTask "]),
        ({"event": "PodFailed", "action": "RestartJob"}, []),
        # The pod runs again before that.
        (
            {"event": "PodEvicted", "action": "TerminateJob", "timeout": "20s"},
            ["Execute action TerminateJob after 20s"],
        ),
    ],
    ids=["at once", "on a task", "no policy for it", "put off"],
)
def test_an_event_on_the_job_names_the_action_that_a_policy_executes(policy: Manifest, emitted: list[str]) -> None:
    items = _objects([policy], HAPPENINGS["PodEvicted"], "60s")
    events = [item for item in items if item["kind"] == "Event" and item["involvedObject"]["kind"] == "Job"]
    assert [(each["type"], each["reason"], each["message"]) for each in events] == [
        ("Normal", "ExecuteAction", message) for message in emitted
    ]
    assert {each["source"]["component"] for each in events} <= {"vc-controller-manager"}
