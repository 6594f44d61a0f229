"""Reactions of a Job to events on its pods, by its policies: every event with every action.

The Job has two pods of a task `a`, to which it happens after 10 s, and one of a task `b`, which runs for ever.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.scenarios.test_scenarios import run

Manifest = dict[str, Any]
CARD = "NVIDIA-H200"
NODE: Manifest = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "n1",
        "labels": {
            "nvidia.com/gpu.product": CARD,
            "nvidia.com/gpu.count": "8",
            "nvidia.com/gpu.memory": "143771",
        },
    },
    "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}},
}
PLAIN = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""
TIDE = """
actions: "enqueue, allocate, backfill, reclaim"
tiers:
- plugins: [{name: priority}, {name: gang, enableReclaimable: false}, {name: conformance, enableReclaimable: false}]
- plugins:
  - name: predicates
  - name: capacity-card
    arguments: {podOwnerReferenceToServiceType: {ReplicaSet: inference, Job: training}%s}
  - name: nodeorder
"""


def _template(cards: int = 0, **spec: Any) -> Manifest:
    resources: Manifest = {"requests": {"cpu": "1"}}
    if cards:
        resources["limits"] = {"nvidia.com/gpu": cards}
    return {
        "metadata": {"annotations": {"volcano.sh/card.name": CARD} if cards else {}},
        "spec": {"terminationGracePeriodSeconds": 3, "containers": [{"name": "main", "resources": resources}], **spec},
    }


def _job(
    policies: list[Manifest], *, task_policies: list[Manifest] | None = None, task: Manifest | None = None
) -> Manifest:
    """A Job of two tasks; `task_policies` and `task` (more fields) are those of task `a`."""
    a: Manifest = {"name": "a", "replicas": 2, "template": _template(), "policies": task_policies or [], **(task or {})}
    tasks = [a, {"name": "b", "replicas": 1, "template": _template()}]
    metadata = {"name": "j"}
    spec = {"policies": policies, "tasks": tasks}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": metadata, "spec": spec}


def _pod(name: str, **more: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **more}


def _restarted(times: int) -> Manifest:
    return {"status": {"containerStatuses": [{"name": "main", "restartCount": times}]}}


#: Changes at 10 s, as operations of a Scenario.
HAPPENINGS: dict[str, list[Manifest]] = {
    "PodEvicted": [{"delete": _pod("j-a-0")}],
    "PodFailed": [{"patch": _pod("j-a-0", status={"phase": "Failed"})}],
    "TaskCompleted": [{"patch": _pod(f"j-a-{index}", status={"phase": "Succeeded"})} for index in range(2)],
    "TaskFailed": [{"patch": _pod("j-a-0", **_restarted(3))}],
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


def _happen(job: Manifest, operations: list[Manifest], until: str) -> Seen:
    scenario: Manifest = {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "spec": {"operations": [{"at": "10s", **each} for each in operations]},
    }
    items = run([NODE, job, scenario], {"conf": PLAIN}, until)
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
    job = _job(policies) if level == "job" else _job([], task_policies=policies)
    phase, running = OUTCOMES[action]
    restarts = action.startswith("Restart")
    seen = _happen(job, HAPPENINGS[event], "60s")
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
    assert _happen(_job(policies), HAPPENINGS["PodEvicted"], "60s").phase == phase


def test_a_task_policy_overrides_the_job_policy() -> None:
    job = _job([{"event": "PodEvicted", "action": "AbortJob"}], task_policies=[{"event": "*", "action": "RestartTask"}])
    assert _happen(job, HAPPENINGS["PodEvicted"], "60s").running == {**ALL_NEW, "j-b-0": False}
    assert _happen(job, [{"delete": _pod("j-b-0")}], "60s").phase == "Aborted"


def test_one_pod_of_two_that_ended_well_completes_no_task() -> None:
    job = _job([{"event": "TaskCompleted", "action": "CompleteJob"}])
    seen = _happen(job, HAPPENINGS["TaskCompleted"][:1], "60s")
    assert (seen.phase, seen.ended) == ("Running", ["j-a-0"])


@pytest.mark.parametrize(
    ("most", "restarts", "phase"),
    [(None, 2, "Running"), (0, 3, "Aborted"), (5, 4, "Running"), (5, 5, "Aborted"), (-1, 99, "Running")],
)
def test_a_task_fails_when_its_containers_were_restarted_too_often(most: int | None, restarts: int, phase: str) -> None:
    job = _job([{"event": "TaskFailed", "action": "AbortJob"}], task={} if most is None else {"maxRetry": most})
    assert _happen(job, [{"patch": _pod("j-a-0", **_restarted(restarts))}], "60s").phase == phase
    parts = [{"patch": _pod(f"j-a-{index}", **_restarted(part))} for index, part in enumerate((restarts - 1, 1))]
    assert _happen(job, parts, "60s").phase == phase, "all pods of the task count"


def test_a_delayed_action_is_cancelled_when_the_pod_runs_again() -> None:
    job = _job([{"event": "PodEvicted", "action": "AbortJob", "timeout": "20s"}])
    cordon = {
        "patch": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {"unschedulable": True}}
    }
    assert _happen(job, HAPPENINGS["PodEvicted"], "60s").phase == "Running"
    assert _happen(job, [cordon, *HAPPENINGS["PodEvicted"]], "29s").phase != "Aborted"
    assert _happen(job, [cordon, *HAPPENINGS["PodEvicted"]], "60s").phase == "Aborted"


@pytest.mark.parametrize(
    ("policies", "emitted"),
    [
        ([{"event": "PodEvicted", "action": "AbortJob"}], ["Start to execute action AbortJob "]),
        ([{"event": "*", "action": "RestartTask"}], ["Start to execute action RestartTask "]),
        ([{"event": "PodFailed", "action": "RestartJob"}], []),
        (
            [{"event": "PodEvicted", "action": "TerminateJob", "timeout": "20s"}],
            ["Execute action TerminateJob after 20s"],  # the pod runs again before that
        ),
    ],
    ids=["at once", "on a task", "no policy for it", "put off"],
)
def test_an_event_on_the_job_names_the_action_that_a_policy_executes(
    policies: list[Manifest], emitted: list[str]
) -> None:
    deletion = {"at": "10s", **HAPPENINGS["PodEvicted"][0]}
    scenario: Manifest = {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "spec": {"operations": [deletion]},
    }
    items = run([NODE, _job(policies), scenario], {"conf": PLAIN}, "60s")
    events = [item for item in items if item["kind"] == "Event" and item["involvedObject"]["kind"] == "Job"]
    assert [(each["type"], each["reason"], each["message"]) for each in events] == [
        ("Normal", "ExecuteAction", message) for message in emitted
    ]
    assert {each["source"]["component"] for each in events} <= {"vc-controller-manager"}


# --- deltas of the scheduler ----------------------------------------------------------------------------------------


def _tide(policies: list[Manifest], *, argument: str = "", **job: Any) -> tuple[Manifest, list[str]]:
    """Inference takes 2 cards of 8 that four pods of training hold, of which two are enough.

    Returns the annotations of their PodGroup before, and which pods the scheduler evicted.
    """
    queues = [
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": name, "annotations": {"volcano.sh/card.quota": f'{{"{CARD}": 8}}'}},
            "spec": {"priority": priority, "reclaimable": reclaimable},
        }
        for name, priority, reclaimable in (("qi", 80000, False), ("qt", 20000, True))
    ]
    training: Manifest = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "t", **job},
        "spec": {
            "queue": "qt",
            "minAvailable": 2,
            "policies": policies,
            "tasks": [{"name": "w", "replicas": 4, "minAvailable": 2, "template": _template(2)}],
        },
    }
    template = _template(2, schedulerName="capcard-sched")
    template["metadata"]["labels"] = {"app": "i"}
    template["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] = "qi"
    service: Manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "i"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "i"}}, "template": template},
    }
    scale = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "i"}, "spec": {"replicas": 1}}
    scenario = {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "spec": {"operations": [{"at": "10s", "patch": scale}]},
    }
    given = [NODE, *queues, training, service, scenario]
    before = run(given, {"conf": TIDE % argument}, "9s")
    after = run(given, {"conf": TIDE % argument}, "30s")
    assert [item["status"]["phase"] for item in before if item["kind"] == "Pod"] == ["Running"] * 4
    served = [item for item in after if item["kind"] == "Pod" and item["metadata"]["name"].startswith("i-")]
    assert [item["status"]["phase"] for item in served] == ["Running"]
    group = next(item for item in before if item["kind"] == "PodGroup" and item["metadata"]["name"].startswith("t-"))
    evicted = [item for item in after if item["kind"] == "Event" and item["reason"] == "Evict"]
    of_group = [item for item in evicted if item["involvedObject"]["kind"] == "PodGroup"]
    pods = sorted(item["involvedObject"]["name"] for item in evicted if item["involvedObject"]["kind"] == "Pod")
    emitted = f"reclaim: {len(pods)} pods evicted for default/{served[0]['metadata']['name']} of queue qi"
    assert [item["message"] for item in of_group] == [emitted], "once for all of them"
    return group["metadata"].get("annotations", {}), pods


ALL = ["t-w-0", "t-w-1", "t-w-2", "t-w-3"]
SCOPE = "volcano.sh/evict-scope"


@pytest.mark.parametrize("event", ["PodEvicted", "*"])
@pytest.mark.parametrize("action", ["AbortJob", "RestartJob", "TerminateJob", "CompleteJob"])
def test_a_job_that_ends_by_losing_one_pod_is_one_victim(event: str, action: str) -> None:
    annotations, evicted = _tide([{"event": event, "action": action}])
    assert annotations[SCOPE] == "job"
    assert evicted == ALL


@pytest.mark.parametrize(
    "policies",
    [
        [],
        [{"event": "PodEvicted", "action": "RestartTask"}],
        [{"event": "PodEvicted", "action": "RestartPod"}],
        # A terminating pod fails no more: nothing happens to the others.
        [{"event": "PodFailed", "action": "RestartJob"}],
    ],
    ids=["no policy", "RestartTask", "RestartPod", "another event"],
)
def test_a_job_that_outlives_the_loss_of_a_pod_loses_no_more_than_is_needed(policies: list[Manifest]) -> None:
    annotations, evicted = _tide(policies)
    assert SCOPE not in annotations
    assert evicted == ["t-w-3"]


def test_the_scope_annotation_of_the_user_is_kept() -> None:
    annotations, evicted = _tide([{"event": "PodEvicted", "action": "RestartJob"}], annotations={SCOPE: "elastic"})
    assert annotations[SCOPE] == "elastic"
    assert evicted == ["t-w-3"], "its policy does the rest"


def test_under_gang_eviction_policy_one_pod_is_evicted_and_the_job_policy_decides_on_the_rest() -> None:
    _, evicted = _tide([{"event": "PodEvicted", "action": "RestartJob"}], argument=", gangEviction: policy")
    assert evicted == ["t-w-3"]
