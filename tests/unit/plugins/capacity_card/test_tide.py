"""Reclaimers and victims of tidal reclaim, by service type, card, quota and priority."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capcard_sched.framework.api.plugin import VictimDecision
from capcard_sched.model.refusal import Refusal
from capcard_sched.testing import Harness

H200 = "NVIDIA-H200"
SERVICE = "volcano.sh/service.type"
OWNERS = {"ReplicaSet": "inference", "Deployment": "inference", "Job": "training"}
SLICE = "nvidia.com/mig-1g.18gb"


def noted(service: str | None) -> dict[str, str]:
    return {} if service is None else {SERVICE: service}


def world(h: Harness) -> None:
    """Two nodes of 8, a queue that serves and one that trains, each with a quota as large as the cluster."""
    h.gpu_node("n1", count=8, resources={SLICE: 7})
    h.gpu_node("n2", card="H100", count=8)
    quota = {H200: 16, "H100": 16, f"{H200}/mig-1g.18gb-mixed": 7}
    h.queue("serve", cards=quota, priority=80000, reclaimable=False)
    h.queue("train", cards=quota, priority=20000, reclaimable=True)


def candidate(h: Harness, name: str, service: str | None = "training", *, on: str = "n1", **pod: Any) -> None:
    h.group(name, queue="train", phase="Running", annotations=noted(service))
    h.pod(name, group=name, node=on, **{"card": H200, "cards": 4, "priority": 20000, **pod})


def reclaimer(h: Harness, service: str | None = "inference", **pod: Any) -> None:
    h.group("r", queue="serve", annotations=noted(service))
    h.pod("r-0", group="r", **{"card": H200, "cards": 4, "priority": 80000, **pod})


def judged(h: Harness, *names: str) -> tuple[list[str], dict[str, str]]:
    """(names of victims in order, cause by name of those that are kept)."""
    h.session()
    tasks = [h.task(name) for name in names]
    answer = h.plugin("capacity-card").reclaimable(h.task("r-0"), tasks)
    assert isinstance(answer, VictimDecision)
    assert answer.protected is not None
    assert answer.victims is not None
    by_uid = {task.uid: task.name for task in tasks}
    return [task.name for task in answer.victims], {by_uid[uid]: cause for uid, cause in answer.protected.items()}


# --- types ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "taker", "owner", "victim", "victim_owner", "taken"),
    [
        pytest.param({}, "inference", "", "training", "", True, id="inference takes training"),
        pytest.param({}, "training", "", "training", "", False, id="training takes no training"),
        pytest.param({}, "training", "", "inference", "", False, id="training takes no inference"),
        pytest.param({}, "inference", "", "inference", "", False, id="inference takes no inference"),
        pytest.param({}, "inference", "", "batch", "", False, id="another text is unknown"),
        pytest.param({}, "inference", "", "", "", False, id="no type at all is unknown"),
        pytest.param({}, "inference", "", None, "DaemonSet", False, id="a kind that is not mapped is unknown"),
        pytest.param({}, "inference", "", " training", "", False, id="blanks are not trimmed"),
        pytest.param({}, "inference", "", "Training", "", False, id="case counts"),
        pytest.param({}, "inference", "", "infer", "Job", False, id="a wrong annotation does not fall through"),
        pytest.param({}, "inference", "", None, "Job", True, id="the kind of the owner, without an annotation"),
        pytest.param({}, "inference", "", "training", "ReplicaSet", True, id="the annotation wins over the owner"),
        pytest.param({}, None, "ReplicaSet", "training", "", True, id="a ReplicaSet's pod is inference"),
        pytest.param({}, None, "StatefulSet", "training", "", True, id="unknown may take"),
        pytest.param({"strictServiceType": True}, None, "StatefulSet", "training", "", False, id="unless strict"),
        pytest.param({"strictServiceType": True}, "inference", "", "training", "", True, id="strict lets inference"),
        pytest.param({}, None, "StatefulSet", "", "", False, id="unknown takes no unknown"),
        pytest.param({}, None, "StatefulSet", "inference", "", False, id="unknown takes no inference"),
    ],
)  # fmt: skip
def test_service_types_decide_reclaimers_and_victims(
    harness: Callable[..., Harness],
    arguments: dict[str, Any],
    taker: str | None,
    owner: str,
    victim: str | None,
    victim_owner: str,
    taken: bool,
) -> None:
    h = harness({"podOwnerReferenceToServiceType": OWNERS, **arguments})
    world(h)
    candidate(h, "v", victim, owner_kind=victim_owner)
    reclaimer(h, taker, owner_kind=owner)
    assert judged(h, "v") == ((["v"], {}) if taken else ([], {"v": "service-type"}))


@pytest.mark.parametrize(
    ("arguments", "service", "expected"),
    [
        pytest.param({}, "inference", True, id="inference, for every replica"),
        pytest.param({"reclaimElastic": False}, "inference", None, id="like Volcano's capacity-card: while starving"),
        pytest.param({}, "training", False, id="training never"),
        pytest.param({}, "", None, id="unknown, while starving"),
        pytest.param({"strictServiceType": True}, "", False, id="unknown, not when strict"),
    ],
)
def test_a_type_decides_whether_a_job_looks_for_victims_at_all(
    harness: Callable[..., Harness], arguments: dict[str, Any], service: str, expected: bool | None
) -> None:
    h = harness(arguments)
    world(h)
    reclaimer(h, service)
    h.session()
    assert h.plugin("capacity-card").may_reclaim(h.job("r")) is expected


def test_a_group_of_several_owners_looks_for_victims_if_any_of_its_pods_may(harness: Callable[..., Harness]) -> None:
    h = harness({"podOwnerReferenceToServiceType": OWNERS})
    world(h)
    reclaimer(h, None, owner_kind="Job")
    h.pod("r-1", group="r", card=H200, cards=1, owner_kind="ReplicaSet")
    candidate(h, "v")
    h.session()
    assert h.plugin("capacity-card").may_reclaim(h.job("r")) is True
    assert judged(h, "v") == ([], {"v": "service-type"}), "its training pod may not"


def test_the_type_of_a_running_job_may_change_between_sessions(harness: Callable[..., Harness]) -> None:
    h = harness()
    world(h)
    candidate(h, "v", "training")
    reclaimer(h)
    assert judged(h, "v")[0] == ["v"]
    h.group("v", queue="train", phase="Running", annotations=noted("inference"))
    assert judged(h, "v")[0] == []


# --- use --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wants", "holds", "taken"),
    [
        pytest.param({}, {}, True, id="the same card"),
        pytest.param({}, {"card": None, "cards": 0}, False, id="a pod without cards frees none"),
        pytest.param({}, {"card": "H100", "on": "n2"}, False, id="another card is of no use"),
        pytest.param({"card": f"{H200}|H100"}, {"card": "H100", "on": "n2"}, True, id="any alternative"),
        pytest.param(
            {"card": f"{H200}/mig-1g.18gb-mixed", "cards": 0, "requests": {SLICE: 1}}, {}, False,
            id="whole cards are no slices",
        ),
        pytest.param(
            {"card": f"{H200}/mig-1g.18gb-mixed", "cards": 0, "requests": {SLICE: 1}},
            {"card": f"{H200}/mig-1g.18gb-mixed", "cards": 0, "requests": {SLICE: 2}}, True, id="slices are slices",
        ),
        pytest.param({"card": None}, {"card": None, "cards": 2}, False, id="unnamed cards are not reclaimed"),
        pytest.param({}, {"card": None, "cards": 2}, False, id="a pod charged to no card is no victim"),
        pytest.param({"card": None, "cards": 0}, {}, False, id="cpu takes no cards"),
        pytest.param({"card": None, "cards": 0}, {"card": None, "cards": 2}, False, id="nor unnamed ones"),
        pytest.param({"card": None, "cards": 0}, {"card": None, "cards": 0}, True, id="cpu takes cpu"),
        pytest.param(
            {"card": None, "cards": 0, "requests": {"memory": "1Gi"}}, {"card": None, "cards": 0}, False,
            id="memory is no cpu",
        ),
        pytest.param(
            {"card": None, "cards": 0, "requests": {}}, {"card": None, "cards": 0}, False, id="no request",
        ),
        pytest.param({"card": "nonsense||"}, {}, False, id="what it wants cannot be worked out"),
        pytest.param({}, {"card": "nonsense||"}, True, id="a malformed card name still holds the card of the node"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("exempt", [False, True])
def test_a_victim_holds_something_the_reclaimer_can_use(
    harness: Callable[..., Harness], exempt: bool, wants: dict[str, Any], holds: dict[str, Any], taken: bool
) -> None:
    h = harness({"cardUnlimitedCpuMemory": exempt})
    world(h)
    candidate(h, "v", **holds)
    reclaimer(h, **wants)
    assert judged(h, "v") == ((["v"], {}) if taken else ([], {"v": "no-use"}))


# --- priorities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "mine", "theirs", "taken"),
    [
        pytest.param({}, 20000, 80000, True, id="priority orders, it does not filter"),
        pytest.param({}, 20000, 20000, True, id="equal priorities"),
        pytest.param({"reclaimRequiresHigherPriority": True}, 20000, 20000, False, id="equal is not higher"),
        pytest.param({"reclaimRequiresHigherPriority": True}, 20000, 40000, False, id="lower"),
        pytest.param({"reclaimRequiresHigherPriority": True}, 40000, 20000, True, id="higher"),
    ],
)
def test_priorities_filter_only_when_configured(
    harness: Callable[..., Harness], arguments: dict[str, Any], mine: int, theirs: int, taken: bool
) -> None:
    h = harness(arguments)
    world(h)
    candidate(h, "v", priority=theirs)
    reclaimer(h, priority=mine)
    assert judged(h, "v") == ((["v"], {}) if taken else ([], {"v": "priority"}))


def test_the_plugin_protects_in_any_tier() -> None:
    """Gang in an earlier tier would offer the inference pod; the types hold all the same."""
    h = Harness(
        """
actions: "allocate"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: capacity-card}]
"""
    )
    world(h)
    h.group("elastic", queue="train", phase="Running", annotations=noted("inference"))
    for i in range(2):
        h.pod(f"elastic-{i}", group="elastic", node="n1", card=H200, cards=4)
    reclaimer(h)
    session = h.session()
    tasks = [h.task("elastic-0"), h.task("elastic-1")]
    assert session.dispatch.judge("reclaimable", h.task("r-0"), tasks).victims == []
    assert h.plugin("gang").reclaimable(h.task("r-0"), tasks), "it would have given one away"


# --- the queue of the reclaimer ---------------------------------------------------------------------------------------


def preemptive(h: Harness) -> Refusal | None:
    h.session()
    answer: Refusal | None = h.plugin("capacity-card").preemptive(h.state.queues["serve"], h.task("r-0"))
    return answer


@pytest.mark.parametrize(
    ("quota", "used", "wants", "expected"),
    [
        pytest.param({H200: 8}, 4, {}, None, id="filled exactly"),
        pytest.param(
            {H200: 8}, 6, {}, f"insufficient <{H200}> quota: requested <4000>, total would be <10000>, "
            "but capability is <8000>", id="more than the quota",
        ),
        pytest.param(
            {"NVIDIA-H20": 8}, 0, {}, f"insufficient <{H200}> quota: requested <4000>, total would be <4000>, "
            "but capability is <0>", id="a card without quota",
        ),
        pytest.param({H200: 4, "H100": 4}, 4, {"card": f"{H200}|H100"}, None, id="one alternative has room"),
        pytest.param(
            {H200: 4, "H100": 3}, 4, {"card": f"{H200}|H100"}, f"insufficient <{H200}|H100> quota: requested <4000>, "
            "total would be <4000>, but capability is <3000>", id="none has: the last is reported",
        ),
    ],
)  # fmt: skip
def test_a_queue_may_not_take_beyond_its_own_quota(
    harness: Callable[..., Harness], quota: dict[str, int], used: int, wants: dict[str, Any], expected: str | None
) -> None:
    h = harness({"overCommitFactor": 2})  # applies at enqueue only
    world(h)
    h.queue("serve", cards=quota, priority=80000, reclaimable=False)
    if used:
        h.group("held", queue="serve", phase="Running", annotations=noted("inference"))
        h.pod("held-0", group="held", node="n1", card=H200, cards=used)
    reclaimer(h, **wants)
    refusal = preemptive(h)
    if expected is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert (refusal.hook, refusal.component) == ("preemptive", "volcano.capacity-card")
        assert refusal.reason == "InsufficientScalarQuota"
        assert refusal.message == f"Queue <serve> has {expected}"
        assert refusal.event


def test_a_queue_that_is_not_open_reclaims_nothing_and_its_pod_has_the_reason(harness: Callable[..., Harness]) -> None:
    h = harness()
    world(h)
    h.queue("serve", cards={H200: 8}, priority=80000, reclaimable=False, state="Closing")
    reclaimer(h)
    refusal = preemptive(h)
    assert refusal is not None
    assert refusal.event
    assert (refusal.reason, refusal.message) == (
        "QueueNotOpen",
        "Queue <serve> current state: <Closing>, is not open state, can not reclaim for <r-0>.",
    )


def test_a_queue_without_any_capability_adds_a_reason(harness: Callable[..., Harness]) -> None:
    h = harness()
    world(h)
    h.queue("serve", priority=80000, reclaimable=False)
    reclaimer(h)
    refusal = preemptive(h)
    assert refusal is not None
    assert refusal.also == (
        (
            "EmptyQueueCapability",
            "Queue <serve> capability <cpu 0.00, memory 0.00> is empty, deny it to preempt",
        ),
    )


# --- gangs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "service", "expected"),
    [
        pytest.param({}, "training", None, id="whole is the default of all"),
        pytest.param({"gangEviction": "whole"}, "training", None, id="whole"),
        pytest.param({"gangEviction": "policy"}, "training", "member", id="the job's policy ends the rest"),
        pytest.param({"gangEviction": "policy"}, "inference", None, id="of training only"),
    ],
)
def test_evict_scope_of_a_gang(
    harness: Callable[..., Harness], arguments: dict[str, Any], service: str, expected: str | None
) -> None:
    h = harness(arguments)
    world(h)
    candidate(h, "v", service)
    h.session()
    assert h.plugin("capacity-card").evict_scope(h.job("v")) == expected
