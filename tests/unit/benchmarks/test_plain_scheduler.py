"""The plain scheduler against worked examples: an oracle must itself be right."""

import json
from typing import Any

import pytest

from benchmarks.plain_objects import PlainNode, PlainPod, amounts
from benchmarks.plain_rules import balanced, binpack, least_requested
from benchmarks.plain_scheduler import Weights, schedule

H200, H100 = "NVIDIA-H200", "NVIDIA-H100"


def node(
    name: str, card: str = "", cpu: str = "16", memory: str = "64Gi", cards: int = 8, **spec: Any
) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": card, "nvidia.com/gpu.memory": "81920"} if card else {}
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110"} | ({"nvidia.com/gpu": str(cards)} if card else {})
    labels |= spec.pop("labels", {})
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": allocatable}}


def queue(name: str = "q", quota: dict[str, int] | None = None, **spec: Any) -> dict[str, Any]:
    notes = {"volcano.sh/card.quota": json.dumps(quota)} if quota is not None else {}
    return {"metadata": {"name": name, "annotations": notes}, "spec": spec}


def group(name: str, size: int = 1, phase: str = "Inqueue", in_queue: str = "q", **spec: Any) -> dict[str, Any]:
    notes = spec.pop("annotations", {})
    return {
        "metadata": {"name": name, "annotations": notes},
        "spec": {"queue": in_queue, "minMember": size, **spec},
        "status": {"phase": phase},
    }


def pods(of: str, count: int = 1, card: str = "", cards: int = 1, cpu: str = "1", **spec: Any) -> list[dict[str, Any]]:
    notes = {"scheduling.k8s.io/group-name": of} | ({"volcano.sh/card.name": card} if card else {})
    resources = {"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"nvidia.com/gpu": str(cards)} if card else {}}
    return [
        {
            "metadata": {"name": f"{of}-{i}", "uid": f"{of}-{i}", "annotations": notes},
            "spec": {"containers": [{"resources": resources}], **spec},
        }
        for i in range(count)
    ]


def names(decisions: dict[str, str]) -> dict[str, str]:
    return {pod.removeprefix("default/"): name for pod, name in decisions.items()}


# --- scores: worked examples ------------------------------------------------------------------------------------------


def pair(request: dict[str, str], used: dict[str, int], allocatable: dict[str, str]) -> tuple[PlainPod, PlainNode]:
    pod = PlainPod({"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"requests": request}}]}})
    place = PlainNode({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}})
    place.used = used
    place.nonzero = [used.get("cpu", 0), used.get("memory", 0)]
    return pod, place


GI = 1 << 30


@pytest.mark.parametrize(
    ("request_", "used", "expected"),
    [
        pytest.param({"cpu": "1", "memory": "2Gi"}, {"cpu": 2000, "memory": 2 * GI}, 50, id="8.1"),
        pytest.param({"cpu": "3", "memory": "2Gi"}, {"cpu": 2000, "memory": 2 * GI}, 37, id="8.2"),
        pytest.param({}, {}, 97, id="8.5"),
    ],
)
def test_least_requested(request_: dict[str, str], used: dict[str, int], expected: int) -> None:
    assert least_requested(*pair(request_, used, {"cpu": "4", "memory": "16Gi"})) == expected


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param({"cpu": "3", "memory": "4Gi"}, 75, id="8.4 apart"),
        pytest.param({"cpu": "2", "memory": "8Gi"}, 100, id="8.4 even"),
        pytest.param({"cpu": "3", "memory": "4Gi", "nvidia.com/gpu": "8"}, 68, id="8.4 three"),
        pytest.param({"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "2"}, 94, id="8.4 nearly even"),
        pytest.param({}, 0, id="requests nothing"),
    ],
)
def test_balanced(request_: dict[str, str], expected: int) -> None:
    assert balanced(*pair(request_, {}, {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "8"})) == expected


@pytest.mark.parametrize(
    ("request_", "used", "expected"),
    [
        pytest.param({"cpu": "1", "memory": "2Gi"}, {"cpu": 1000, "memory": 2 * GI}, 37.5, id="9.1"),
        pytest.param({"cpu": "4"}, {"cpu": 1000}, 0.0, id="9.4"),
        pytest.param({"nvidia.com/gpu": "1"}, {}, 0.0, id="9.5"),
    ],
)
def test_binpack(request_: dict[str, str], used: dict[str, int], expected: float) -> None:
    assert binpack(*pair(request_, used, {"cpu": "4", "memory": "16Gi"}), 1.0) == expected


def test_quantities_round_up_to_base_units() -> None:
    assert amounts({"cpu": "1.5m", "memory": "1.5Ki", "nvidia.com/gpu": 2, "pods": "110"}) == {
        "cpu": 2,
        "memory": 1536,
        "nvidia.com/gpu": 2000,
        "pods": 110,
    }


# --- placement --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "spec", "expected"),
    [
        pytest.param([node("b"), node("a")], {}, "a", id="lowest name among equals"),
        pytest.param([node("a", cpu="500m"), node("b")], {}, "b", id="room"),
        pytest.param([node("a", unschedulable=True), node("b")], {}, "b", id="cordoned"),
        pytest.param(
            [node("a", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]), node("b")], {}, "b", id="taint"
        ),
        pytest.param(
            [node("a", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]), node("b", cpu="500m")],
            {"tolerations": [{"key": "k", "operator": "Exists"}]},
            "a",
            id="toleration",
        ),
        pytest.param(
            [node("a"), node("b", labels={"disk": "ssd"})], {"nodeSelector": {"disk": "ssd"}}, "b", id="selector"
        ),
        pytest.param(
            [node("a", labels={"size": "3"}), node("b", labels={"size": "12"})],
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["7"]}]}
                            ]
                        }
                    }
                }
            },
            "b",
            id="affinity",
        ),
        pytest.param([node("a", cpu="500m")], {}, None, id="no room at all"),
    ],
)
def test_a_pod_goes_where_it_may(nodes: list[dict[str, Any]], spec: dict[str, Any], expected: str | None) -> None:
    decisions = schedule(nodes, [queue()], [group("g")], pods("g", **spec))
    assert decisions.get("default/g-0") == expected


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    nodes = [node("a", cpu="3"), node("b", cpu="1")]
    groups = [group("big", 5, priorityClassName="high"), group("small", 3)]
    classes = [{"metadata": {"name": "high"}, "value": 10}]
    decisions = schedule(nodes, [queue()], groups, pods("big", 5) + pods("small", 3), classes)
    assert {pod.rpartition("-")[0] for pod in names(decisions)} == {"small"}
    assert len(decisions) == 3


def test_members_beyond_the_minimum_take_the_remaining_capacity() -> None:
    decisions = schedule([node("a", cpu="3")], [queue()], [group("g", 2)], pods("g", 5))
    assert len(decisions) == 3


def test_quota_holds_pods_of_one_card_only() -> None:
    nodes = [node("a", H200), node("b", H100)]
    groups = [group("x"), group("y"), group("z")]
    members = pods("x", card=H200, cards=2) + pods("y", card=H200, cards=2) + pods("z", card=H100)
    assert names(schedule(nodes, [queue(quota={H200: 3, H100: 1})], groups, members)) == {"x-0": "a", "z-0": "b"}


def test_a_card_that_is_not_listed_has_quota_zero() -> None:
    assert schedule([node("a", H200)], [queue()], [group("x")], pods("x", card=H200)) == {}


def test_alternatives_are_tried_in_order_while_quota_lasts() -> None:
    nodes = [node("a", H100), node("b", H200)]
    groups = [group(name) for name in ("x", "y", "z")]
    members = [pod for name in ("x", "y", "z") for pod in pods(name, card=f"{H200}|{H100}")]
    decisions = schedule(nodes, [queue(quota={H200: 1, H100: 1})], groups, members)
    assert names(decisions) == {"x-0": "b", "y-0": "a"}


def test_queues_take_turns_by_share() -> None:
    nodes = [node("a", H200, cards=3)]
    queues = [queue("p", {H200: 2}), queue("q", {H200: 4})]
    groups = [group(f"{q}{i}", in_queue=q) for q in "pq" for i in range(3)]
    members = [pod for g in groups for pod in pods(g["metadata"]["name"], card=H200)]
    assert sorted(names(schedule(nodes, queues, groups, members))) == ["p0-0", "q0-0", "q1-0"]


def test_a_queue_of_higher_priority_goes_first() -> None:
    queues = [queue("p"), queue("q", priority=5)]
    groups = [group("a", in_queue="p"), group("b", in_queue="q")]
    assert list(schedule([node("n", cpu="1")], queues, groups, pods("a") + pods("b"))) == ["default/b-0"]


def test_cpu_capability_binds_unless_cards_lift_it() -> None:
    arguments = (
        [node("a", H200)],
        [queue(quota={H200: 8}, capability={"cpu": "1"})],
        [group("g", 2)],
        pods("g", 2, card=H200),
    )
    assert schedule(*arguments) == {}
    assert len(schedule(*arguments, weights=Weights(card_unlimited_cpu_memory=True))) == 2


def test_running_pods_use_capacity_and_quota() -> None:
    running = pods("old", card=H200, cards=2, nodeName="a")
    running[0]["status"] = {"phase": "Running"}
    groups = [group("old", phase="Running"), group("x"), group("y")]
    members = running + pods("x", card=H200, cards=2) + pods("y", card=H200)
    decisions = schedule([node("a", H200)], [queue(quota={H200: 3})], groups, members)
    assert names(decisions) == {"y-0": "a"}


# --- admission --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "groups", "admitted"),
    [
        pytest.param({H200: 4}, [("x", 3, H200), ("y", 2, H200)], {"x"}, id="promises add up"),
        pytest.param({H200: 4}, [("x", 2, H200), ("y", 2, H200)], {"x", "y"}, id="equality passes"),
        pytest.param({H200: 2, H100: 1}, [("x", 3, f"{H200}|{H100}")], {"x"}, id="alternatives are summed"),
        pytest.param({H200: 1, H100: 1}, [("x", 3, f"{H200}|{H100}")], set(), id="sum too small"),
        pytest.param(
            {H200: 1, H100: 1},
            [("x", 2, f"{H200}|{H100}"), ("y", 1, H100)],
            {"x"},
            id="a later single card respects an earlier choice",
        ),
    ],
)
def test_pending_groups_are_admitted_within_quota(
    quota: dict[str, int], groups: list[tuple[str, int, str]], admitted: set[str]
) -> None:
    members = [pod for name, size, card in groups for pod in pods(name, size, card)]
    decisions = schedule(
        [node("a", H200), node("b", H100)],
        [queue(quota=quota)],
        [group(name, size, "Pending") for name, size, _ in groups],
        members,
    )
    assert {pod.rpartition("-")[0] for pod in names(decisions)} == admitted


def test_a_job_without_pods_reserves_its_request() -> None:
    ahead = group("ahead", 2, "Pending", annotations={"volcano.sh/card.request": json.dumps({H200: 3})})
    decisions = schedule(
        [node("a", H200)], [queue(quota={H200: 4})], [ahead, group("x", 2, "Pending")], pods("x", 2, H200)
    )
    assert decisions == {}


def test_shares_and_slices_are_cards_of_their_own() -> None:
    mixed = node("a", H200)
    mixed["metadata"]["labels"]["nvidia.com/gpu.replicas"] = "4"
    mixed["status"]["allocatable"] |= {"nvidia.com/gpu.shared": "16", "nvidia.com/mig-1g.18gb": "7"}
    assert PlainNode(mixed).cards == {
        H200: (8000, "nvidia.com/gpu"),
        f"{H200}/mps-80g*1/4": (16000, "nvidia.com/gpu.shared"),
        f"{H200}/mig-1g.18gb-mixed": (7000, "nvidia.com/mig-1g.18gb"),
    }


def test_a_degraded_gang_goes_before_a_new_one_and_a_ready_one() -> None:
    running = pods("old", 1, nodeName="a")
    running[0]["status"] = {"phase": "Running"}
    lost = [pod | {"metadata": pod["metadata"] | {"name": "old-1", "uid": "old-1"}} for pod in pods("old")]
    groups = [group("early"), group("old", 2, phase="Running")]
    decisions = schedule([node("a", cpu="2")], [queue()], groups, running + lost + pods("early"))
    assert names(decisions) == {"old-1": "a"}
