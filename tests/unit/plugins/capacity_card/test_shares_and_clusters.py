"""Vectors 71 to 81 of the capacity-card reference, and §13: clusters and quotas that change under running pods."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from capcard_sched.testing import Harness

GPU = "nvidia.com/gpu"


def scalar(card: str, requested: int, total: int, limit: int) -> tuple[str, str]:
    return (
        "InsufficientScalarQuota",
        f"Queue <q> has insufficient <{card}> quota: requested <{requested}>, total would be <{total}>, "
        f"but capability is <{limit}>",
    )


def running(
    h: Harness, count: int, *, card: str = "H200", node: str = "n1", queue: str = "q", group: str = "run"
) -> None:
    h.group(group, queue=queue, phase="Running", min_member=1)
    for i in range(count):
        h.pod(f"{group}-p-{i}", group=group, requests={}, card=card, cards=1, node=node)


def allocated(h: Harness, queue: str = "q") -> dict[str, int]:
    cards: dict[str, int] = h.plugin("capacity-card").ledger.queues[queue].allocated.cards
    return cards


def order(h: Harness) -> list[str]:
    session = h.session()
    return sorted(session.queues, key=lambda name: (h.plugin("capacity-card").queue_order(session.queues[name]), name))


def test_more_quota_than_cards_is_held_by_the_nodes(harness: Callable[..., Harness]) -> None:
    """Vector 71."""
    h = harness()
    h.gpu_node("n1", count=10)
    h.queue("q", cards={"NVIDIA-H200": 6})
    h.queue("r", cards={"NVIDIA-H200": 5})
    for queue, count in (("q", 6), ("r", 5)):
        h.group(f"g-{queue}", queue=queue)
        for i in range(count):
            h.pod(f"{queue}-p-{i}", group=f"g-{queue}", card="NVIDIA-H200", cards=1)
    h.settle()
    assert len(h.binds) == 10
    (left,) = ({f"q-p-{i}" for i in range(6)} | {f"r-p-{i}" for i in range(5)}) - h.binds.keys()
    assert h.pod_message(left) == "0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu."


def test_a_lost_node_leaves_running_pods_charged(harness: Callable[..., Harness]) -> None:
    """Vector 72."""
    h = harness()
    h.gpu_node("n1", card="H200", count=4)
    h.gpu_node("n2", card="H200", count=4)
    h.queue("q", cards={"H200": 8})
    running(h, 4, node="n1", group="one")
    running(h, 4, node="n2", group="two")
    h.step()
    h.delete_node("n2")
    h.group("g")
    h.pod("p", card="H200", cards=1)
    h.step()
    plugin = h.plugin("capacity-card")
    assert plugin.inventory.totals == {"H200": 4000}
    assert allocated(h) == {"H200": 8000}
    assert scalar("H200", 1000, 9000, 8000) in h.event_messages("Pod", "p")
    for i in range(4):
        h.delete_pod(f"two-p-{i}")
    h.step()
    assert allocated(h) == {"H200": 4000}
    assert h.pod_message("p") == "0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu."


def test_a_card_is_known_as_long_as_a_pod_holds_it(harness: Callable[..., Harness]) -> None:
    """Vector 73 (R12)."""
    h = harness()
    h.gpu_node("n1", card="H200")
    h.gpu_node("n2", card="other")
    h.queue("q", cards={"H200": 9})
    running(h, 8)
    h.step()
    h.delete_node("n1")
    h.group("g")
    h.pod("p", card="H200", cards=1)
    h.step()
    assert allocated(h) == {"H200": 8000}
    assert h.pod_message("p") == "0/1 nodes are unavailable: 1 node(s) didn't have card <H200>."
    for i in range(8):
        h.delete_pod(f"run-p-{i}")
    h.step()
    assert allocated(h) == {}
    h.node("wake")
    h.step()
    assert h.pod_message("p") == (
        "Get request resource failed, Queue <q>, error: <no resource name found for card <H200>>"
    )
    h.gpu_node("n3", card="H200")
    h.step()
    assert h.binds == {"p": "n3"}


def test_a_resliced_node_leaves_the_quota_alone(harness: Callable[..., Harness]) -> None:
    """Vector 74."""
    h = harness()
    slices = {"nvidia.com/mig-1g.18gb": 3, "nvidia.com/mig-3g.71gb": 1}
    h.gpu_node("n1", card="H200", count=7, resources=slices)
    h.queue("q", cards={"H200/mig-1g.18gb-mixed": 3, "H200": 1})
    h.step()
    h.gpu_node("n1", card="H200", count=7, resources={"nvidia.com/mig-3g.71gb": 2})
    h.group("g")
    h.pod("p", card="H200/mig-1g.18gb-mixed", requests={"nvidia.com/mig-1g.18gb": 1})
    h.group("h")
    h.pod("other", group="h", card="H200", cards=1)
    h.step()
    plugin = h.plugin("capacity-card")
    assert plugin.inventory.totals == {"H200": 7000, "H200/mig-3g.71gb-mixed": 2000}
    assert plugin.ledger.queues["q"].limit("H200/mig-1g.18gb-mixed") == 3000
    assert h.binds == {"other": "n1"}
    assert "no resource name found for card <H200/mig-1g.18gb-mixed>" in h.pod_message("p")


def test_a_lowered_quota_blocks_only_new_pods(harness: Callable[..., Harness]) -> None:
    """Vector 75."""
    h = harness()
    h.gpu_node("n1", card="H200", count=16)
    h.queue("q", cards={"H200": 8})
    running(h, 8)
    h.step()
    h.queue("q", cards={"H200": 4})
    h.group("g")
    h.pod("p", card="H200", cards=1)
    result = h.step()
    assert allocated(h) == {"H200": 8000}
    assert result.report.evicted == []
    assert scalar("H200", 1000, 9000, 4000) in h.event_messages("Pod", "p")


def test_priority_of_queues_comes_before_their_share(harness: Callable[..., Harness]) -> None:
    """Vector 76."""
    h = harness()
    h.gpu_node("n1", card="H200", count=64)
    h.queue("high", cards={"H200": 10}, priority=80000)
    h.queue("low", cards={"H200": 10}, priority=20000)
    h.queue("none", cards={"H200": 10})
    running(h, 9, queue="high", group="a")
    running(h, 1, queue="low", group="b")
    assert order(h) == ["high", "low", "none"]


def test_the_lower_share_is_served_first(harness: Callable[..., Harness]) -> None:
    """Vector 77."""
    h = harness()
    h.gpu_node("n1", card="H200", count=64)
    h.queue("a", cards={"H200": 4})
    h.queue("b", cards={"H200": 8})
    running(h, 3, queue="a", group="a")
    running(h, 2, queue="b", group="b")
    assert order(h) == ["b", "a"]
    ledger = h.plugin("capacity-card").ledger
    assert (ledger.queues["b"].share, ledger.queues["a"].share) == (0.25, 0.75)


def test_the_most_used_dimension_is_the_share(harness: Callable[..., Harness]) -> None:
    """Vector 78."""
    h = harness()
    h.gpu_node("n1", card="H200", cpu="200", count=8)
    h.gpu_node("n2", card="H100", cpu="200", count=8)
    h.queue("q", cards={"H200": 8, "H100": 2}, deserved={"cpu": "100"})
    running(h, 2)
    running(h, 2, card="H100", node="n2", group="other")
    h.group("cpu", phase="Running")
    h.pod("cpu", group="cpu", requests={"cpu": "50"}, node="n1")
    h.session()
    account = h.plugin("capacity-card").ledger.queues["q"]
    assert account.share == 1
    account.quota = account.quota._replace(cards={})
    account.reprice()
    assert account.share == 0.5


def test_nothing_deserved_means_no_share(harness: Callable[..., Harness]) -> None:
    """Vector 79."""
    h = harness()
    h.node("n1", cpu="10")
    h.queue("q")
    h.group("cpu", phase="Running")
    h.pod("cpu", group="cpu", requests={"cpu": "5"}, node="n1")
    h.session()
    assert h.plugin("capacity-card").ledger.queues["q"].share == 0


def test_guarantees_of_others_are_out_of_reach(harness: Callable[..., Harness]) -> None:
    """Vector 80."""
    h = harness()
    h.node("n1", cpu="10")
    h.queue("a", guarantee={"cpu": "2"})
    h.queue("b", guarantee={"cpu": "3"}, deserved={"cpu": "20"})
    h.session()
    queues = h.plugin("capacity-card").ledger.queues
    assert [(queues[name].quota.cpu.real_capability, queues[name].quota.cpu.limit) for name in "ab"] == [
        (7000, 7000),
        (8000, 8000),
    ]
    assert [queues[name].quota.cpu.deserved for name in "ab"] == [2000, 8000]
    h.queue("b", guarantee={"cpu": "20"}, capability={"cpu": "4"})
    h.session()
    assert queues["a"].quota.cpu.limit == 2000
    assert queues["b"].quota.cpu == (4000, 4000, 20000, 4000)


def test_cards_may_be_handed_out_twice(harness: Callable[..., Harness]) -> None:
    """Vector 81."""
    h = harness()
    h.gpu_node("n1", card="H200", count=8)
    h.queue("a", cards={"H200": 8})
    h.queue("b", cards={"H200": 8})
    h.session()
    samples = {(s.name, s.labels.get("queue_name")): s.value for s in h.plugin("capacity-card").metrics()}
    for queue in ("a", "b"):
        assert samples["queue_real_capacity_scalar_resources", queue] == 8000
        assert samples["queue_card_deserved", queue] == 8


@pytest.mark.parametrize(
    "text",
    ['{"H200":2.5,"A":4}', '{"H200":-1}', "not json", "[1]", '{"H200|A":2}', '{"H200":"2"}', '{"H200":true}',
     '{"":1}', '{"H200":1,"H200":1}', "7", '"x"', "{", '{"H200":1e2}', "\x00", "[" * 5000],
)  # fmt: skip
def test_a_malformed_quota_voids_all_cards_and_nothing_else(harness: Callable[..., Harness], text: str) -> None:
    """Vectors 2, 3 and §13.2."""
    h = harness()
    h.gpu_node("n1", card="A")
    h.queue("q", cards=text, capability={"cpu": "4"})
    running(h, 1, card="A")
    h.group("g")
    h.pod("p", card="A", requests={}, cards=1)
    h.group("c")
    h.pod("cpu", group="c", requests={"cpu": "4"})
    h.step()
    (event,) = h.event_messages("Queue", "q")
    assert event[0] == "InvalidCardQuota"
    assert event[1].startswith("Invalid annotation volcano.sh/card.quota: ")
    assert event[1].endswith("; all card quotas of Queue <q> are 0")
    assert scalar("A", 1000, 2000, 0) in h.event_messages("Pod", "p")
    assert h.binds == {"cpu": "n1"}
    assert allocated(h) == {"A": 1000}
    invalid = [s.value for s in h.plugin("capacity-card").metrics() if s.labels.get("reason") == "InvalidCardQuota"]
    assert invalid == [1]
    h.queue("q", cards={"A": 2}, capability={"cpu": "4"})
    h.step()
    assert h.binds["p"] == "n1"


@pytest.mark.parametrize("text", ["{}", "", "null", None])
def test_an_empty_quota_is_no_mistake(harness: Callable[..., Harness], text: str | None) -> None:
    """Vector 4."""
    h = harness()
    h.gpu_node("n1", card="A")
    h.queue("q", cards=text)
    h.step()
    assert h.event_messages("Queue", "q") == []


def test_quota_is_read_per_card(harness: Callable[..., Harness]) -> None:
    """Vector 1: quotas are limits, not an inventory; other cards have none."""
    h = harness()
    h.queue("q", cards={"NVIDIA-H200": 3, "NVIDIA-H800/mps-80g*1/2": 2})
    h.step()
    account = h.plugin("capacity-card").ledger.queues["q"]
    assert [account.limit(card) for card in ("NVIDIA-H200", "NVIDIA-H800/mps-80g*1/2", "X")] == [3000, 2000, 0]
    assert h.event_messages("Queue", "q") == []


def test_every_known_node_counts(harness: Callable[..., Harness]) -> None:
    """Vector 16: cordoned nodes too; a node without cards contributes nothing."""
    h = harness()
    h.gpu_node("n1", card="H200")
    h.gpu_node("n2", card="H200", unschedulable=True)
    h.gpu_node("n3", card="H200", count=0)
    h.session()
    inventory = h.plugin("capacity-card").inventory
    assert inventory.totals == {"H200": 16000}
    assert inventory.resources_of("H200") == {GPU}
    assert inventory.cards_of(GPU) == ["H200"]


def test_a_malformed_label_is_told_to_its_node(harness: Callable[..., Harness]) -> None:
    """Vector 10."""
    h = harness()
    h.gpu_node("n1", card="H200", labels={"nvidia.com/gpu.replicas": "two"}, resources={"nvidia.com/gpu.shared": 8})
    h.step()
    assert h.event_messages("Node", "n1") == [
        ("InvalidCardLabel", "Label nvidia.com/gpu.replicas=two is not a positive integer")
    ]
    plugin = h.plugin("capacity-card")
    assert plugin.inventory.totals == {"H200": 8000}
    assert [s.value for s in plugin.metrics() if s.labels.get("reason") == "InvalidCardLabel"] == [1]
    h.gpu_node("n1", card="H200")
    h.step()
    assert [s.value for s in plugin.metrics() if s.labels.get("reason") == "InvalidCardLabel"] == [0]


def test_a_card_known_by_two_resources_is_asked_for_by_either(harness: Callable[..., Harness]) -> None:
    """§3.3: one node renames its resources."""
    h = harness()
    h.gpu_node("n1", card="H200", count=2)
    labels = {"nvidia.com/gpu.product": "H200", "nvidia.com/gpu.memory": "1024"}
    h.node("n2", labels=labels, resources={"nvidia.com/h200": 2})
    h.queue("q", cards={"H200": 4})
    for i, resource in enumerate((GPU, "nvidia.com/h200")):
        h.group(f"g{i}")
        h.pod(f"p{i}", group=f"g{i}", card="H200", requests={resource: 2})
    h.step()
    assert h.plugin("capacity-card").inventory.totals == {"H200": 4000}
    assert h.binds == {"p0": "n1", "p1": "n2"}
    assert allocated(h) == {"H200": 4000}


def test_invalid_service_types_are_told_and_count_as_unknown(harness: Callable[..., Harness]) -> None:
    h = harness({"podOwnerReferenceToServiceType": {"ReplicaSet": "inference"}})
    h.gpu_node("n1", card="H200", count=16)
    h.queue("q", cards={"H200": 16})
    for group, service, owner in (
        ("odd", "batch", "ReplicaSet"), ("train", "training", "ReplicaSet"), ("web", "", "ReplicaSet"), ("bare", "", "")
    ):  # fmt: skip
        notes = {"volcano.sh/service.type": service} if service else {}
        h.group(group, phase="Running", annotations=notes)
        h.pod(group, group=group, card="H200", cards=1, node="n1", owner_kind=owner)
    h.step()
    h.delete_pod("train")
    h.pod("again", group="odd", requests={}, node="n1")
    h.step(now=h.now + 10000)
    assert (
        h.event_messages("PodGroup", "odd").count(
            (
                "InvalidServiceType",
                "Invalid annotation volcano.sh/service.type: <batch> is neither inference nor training; treated as unknown",
            )
        )
        == 1
    )
    found = {
        s.labels["service_type"]: s.value for s in h.plugin("capacity-card").metrics() if s.name == "card_allocated"
    }
    assert found == {"unknown": 2, "training": 0, "inference": 1}


def test_usage_is_published_on_queues_when_asked_for(harness: Callable[..., Harness]) -> None:
    """§9."""
    h = harness({"publishCardUsage": True})
    h.gpu_node("n1", card="H200", count=16)
    h.queue("q", cards={"H200": 16, "A": 1})
    h.queue("idle", cards={"H200": 16})
    running(h, 3)
    session = h.session()
    plugin = h.plugin("capacity-card")
    plugin.close(session)
    assert session.queue_annotations == {"q": {"volcano.sh/card.allocated": '{"H200":3}'}}
    h.queue("q", cards={"H200": 16}, annotations={"volcano.sh/card.allocated": '{"H200":3}'})
    session = h.session()
    plugin.close(session)
    assert session.queue_annotations == {}
    for i in range(3):
        h.delete_pod(f"run-p-{i}")
    session = h.session()
    plugin.close(session)
    assert session.queue_annotations == {"q": {"volcano.sh/card.allocated": None}}


def test_usage_is_not_published_otherwise(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.gpu_node("n1", card="H200", count=16)
    h.queue("q", cards={"H200": 16})
    running(h, 3)
    session = h.session()
    h.plugin("capacity-card").close(session)
    assert session.queue_annotations == {}


def test_series_follow_the_ledger_and_end_with_their_queue(harness: Callable[..., Harness]) -> None:
    """§8."""
    h = harness()
    h.gpu_node("n1", card="A", count=16, cpu="64", memory="64Gi")
    h.queue("q", cards={"A": 8}, capability={"cpu": "10"})
    h.queue("empty")
    running(h, 2, card="A")
    h.group("g", annotations={"volcano.sh/card.request": '{"A|B":3}'})
    h.group("refused", phase="Pending", annotations={"volcano.sh/card.request": '{"A":20}'})
    h.pod("p", group="run", card="A|B", requests={"cpu": 1, GPU: 9})
    h.step()

    def series(queue: str) -> dict[tuple[str, str], float]:
        return {
            (s.name, s.labels.get("card", s.labels.get("resource", ""))): s.value
            for s in h.plugin("capacity-card").metrics()
            if s.labels.get("queue_name") == queue and "hook" not in s.labels
        }

    found = series("q")
    assert found["queue_card_capacity", "A"] == found["queue_card_deserved", "A"] == 8
    assert found["queue_card_allocated", "A"] == 2
    assert found["queue_card_elastic", "A"] == 1
    assert found["queue_card_inqueue", "A|B"] == 3
    assert found["queue_allocated_scalar_resources", "A"] == 2000
    assert found["queue_share", ""] == 0.25
    assert found["queue_capacity_milli_cpu", ""] == 10000
    assert ("queue_capacity_memory_bytes", "") not in found
    assert found["queue_real_capacity_memory_bytes", ""] == 64 * 2**30
    empty = series("empty")
    assert empty["queue_allocated_milli_cpu", ""] == 0
    assert not any(name.startswith("queue_card") for name, _ in empty)
    refusals = {
        (s.labels["queue_name"], s.labels["hook"], s.labels["reason"]): s.value
        for s in h.plugin("capacity-card").metrics()
        if s.name == "capacity_card_refusals_total"
    }
    assert refusals["q", "job_enqueueable", "InsufficientScalarQuota"] == 1
    h.queue("q", cards={})
    for i in range(2):
        h.delete_pod(f"run-p-{i}")
    h.step()
    assert series("q")["queue_card_capacity", "A"] == series("q")["queue_card_allocated", "A"] == 0
    h.delete_queue("q")
    h.step()
    assert series("q") == {}
    held = [s.value for s in h.plugin("capacity-card").metrics() if s.name == "card_allocated"]
    assert held == [0]


def test_a_queue_that_comes_back_finds_its_jobs(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.gpu_node("n1", card="H200")
    h.queue("q", cards={"H200": 8})
    running(h, 3)
    h.step()
    h.delete_queue("q")
    h.step()
    assert "q" not in h.plugin("capacity-card").ledger.queues
    h.queue("q", cards={"H200": 8})
    h.step()
    assert allocated(h) == {"H200": 3000}


def test_hooks_before_the_first_session_refuse(harness: Callable[..., Harness]) -> None:
    """§6: not ready."""
    from capcard_sched.model.refusal import Refusal
    from capcard_sched.plugins.capacity_card import CapacityCard

    h = harness()
    h.gpu_node("n1", card="H200")
    h.queue("q", cards={"H200": 8})
    h.group("g", phase="Pending")
    h.pod("p", card="H200", cards=1)
    h.session()
    fresh = CapacityCard()
    assert isinstance(fresh.job_enqueueable(h.job("g")), Refusal)
    assert fresh.allocatable(h.state.queues["q"], h.task("p")) is not None


@pytest.mark.parametrize(
    "annotations",
    [
        {"volcano.sh/card.name": "|"}, {"volcano.sh/card.name": "x" * 100000}, {"volcano.sh/card.name": "||||"},
        {"volcano.sh/card.name": "\x00"}, {"volcano.sh/card.assigned": "|", "volcano.sh/card.name": "A|B"},
    ],
    ids=str,
)  # fmt: skip
def test_odd_pods_never_stop_the_session(harness: Callable[..., Harness], annotations: dict[str, str]) -> None:
    """§13.3, §13.4: a running and a waiting pod of every odd kind beside a good one."""
    h = harness()
    h.gpu_node("n1", card="A")
    h.queue("q", cards={"A": 4})
    h.group("odd", phase="Running", annotations={"volcano.sh/card.request": "{", "volcano.sh/service.type": "{"})
    h.pod("odd-1", group="odd", cards=1, annotations=annotations, node="n1")
    h.pod("odd-2", group="odd", cards=1, annotations=annotations)
    h.pod("odd-3", group="odd", containers=[], annotations=annotations, node="gone")
    h.group("lost", queue="nowhere")
    h.pod("lost", group="lost", card="A", cards=1)
    h.pod("free", group=None, card="A", cards=1)
    h.group("none")
    h.group("good")
    h.pod("good", group="good", card="A", cards=1)
    result = h.step()
    assert result.report.errors == []
    assert h.binds.get("good") == "n1"


@pytest.mark.parametrize("amounts", [{GPU: "-3"}, {GPU: "0"}, {GPU: "99999999999999999999"}, {GPU: "x"}, {}], ids=str)
def test_odd_nodes_never_stop_the_session(harness: Callable[..., Harness], amounts: dict[str, Any]) -> None:
    """§13.1."""
    h = harness()
    h.gpu_node("n1", card="A")
    labels = {"nvidia.com/gpu.product": "A", "nvidia.com/gpu.memory": "9" * 400, "nvidia.com/gpu.replicas": "-"}
    h.node("odd", labels=labels, resources=amounts)
    h.queue("q", cards={"A": 4})
    h.group("g")
    h.pod("p", card="A", cards=1)
    result = h.step()
    assert result.report.errors == []
    assert set(h.binds) == {"p"}


def test_pods_that_run_on_unknown_cards_are_charged_cpu_and_told(harness: Callable[..., Harness]) -> None:
    """§4.5: never failing, always reported; charged in full once the card is known."""
    h = harness()
    h.node("n1", cpu="64")
    h.queue("q", cards={"A": 4})
    h.group("g", phase="Running")
    h.pod("p", card="A", requests={"cpu": "2", GPU: 1}, node="n2")
    h.step()
    account = h.plugin("capacity-card").ledger.queues["q"]
    assert (account.allocated.cpu, account.allocated.cards) == (2000, {})
    expected = "Get request resource failed, Queue <q>, error: <no resource name found for card <A>>"
    assert h.event_messages("Pod", "p") == [("GetTaskRequestResourceFailed", expected)]
    h.gpu_node("n2", card="A")
    h.step()
    assert (account.allocated.cpu, account.allocated.cards) == (2000, {"A": 1000})


def test_unknown_releases_are_counted_and_change_nothing(harness: Callable[..., Harness]) -> None:
    """§13.5."""
    from capcard_sched.framework.plugin import Placement

    h = harness()
    h.gpu_node("n1", card="A")
    h.queue("q", cards={"A": 4})
    running(h, 1, card="A")
    h.group("g")
    h.pod("p", card="A", cards=1)
    session = h.session()
    plugin, node = h.plugin("capacity-card"), session.nodes.nodes[0]
    waiting, placed = h.task("p"), h.task("run-p-0")
    plugin.on_deallocate(Placement(h.job("g"), waiting.cls, [waiting], [node]))
    plugin.on_allocate(Placement(h.job("run"), placed.cls, [placed], [node]))
    assert allocated(h) == {"A": 1000}
    plugin.on_deallocate(Placement(h.job("run"), placed.cls, [placed], [node]))
    plugin.on_deallocate(Placement(h.job("run"), placed.cls, [placed], [node]))
    assert allocated(h) == {}
    assert plugin.ledger.internal_errors == 3
    assert json.dumps([s.value for s in plugin.metrics() if "internal" in s.name]) == "[3]"
