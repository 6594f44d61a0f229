"""Malformed objects: reported, contained, never a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from capcard_sched.plugins.capacity_card.charge import CPU_KEY
from capcard_sched.testing import Harness
from tests.unit.plugins.capacity_card.admission import allocated, running, scalar

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    "text",
    ['{"H200":2.5,"A":4}', '{"H200":-1}', "not json", "[1]", '{"H200|A":2}', '{"H200":"2"}', '{"H200":true}',
     '{"":1}', '{"H200":1,"H200":1}', "7", '"x"', "{", '{"H200":1e2}', "\x00", "[" * 5000],
)  # fmt: skip
def test_a_malformed_quota_voids_all_cards_and_nothing_else(harness: Callable[..., Harness], text: str) -> None:
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
    h = harness()
    h.gpu_node("n1", card="A")
    h.queue("q", cards=text)
    h.step()
    assert h.event_messages("Queue", "q") == []


def test_a_malformed_label_emits_an_event_on_its_node(harness: Callable[..., Harness]) -> None:
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


def test_invalid_service_types_are_reported_and_count_as_unknown(harness: Callable[..., Harness]) -> None:
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
                (
                    "Invalid annotation volcano.sh/service.type: <batch> is neither inference nor training; "
                    "treated as unknown"
                ),
            )
        )
        == 1
    )
    found = {
        s.labels["service_type"]: s.value for s in h.plugin("capacity-card").metrics() if s.name == "card_allocated"
    }
    assert found == {"unknown": 2, "training": 0, "inference": 1}


def test_hooks_before_the_first_session_refuse(harness: Callable[..., Harness]) -> None:
    """Not ready."""
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
    """A running and a waiting pod of every odd kind beside a good one."""
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


def test_pods_that_run_on_unknown_cards_are_charged_cpu_and_reported(harness: Callable[..., Harness]) -> None:
    """Never failing, always reported; charged in full once the card is known."""
    h = harness()
    h.node("n1", cpu="64")
    h.queue("q", cards={"A": 4})
    h.group("g", phase="Running")
    h.pod("p", card="A", requests={"cpu": "2", GPU: 1}, node="n2")
    h.step()
    account = h.plugin("capacity-card").ledger.queues["q"]
    assert account.own.allocated == {CPU_KEY: 2000}
    expected = "Get request resource failed, Queue <q>, error: <no resource name found for card <A>>"
    assert h.event_messages("Pod", "p") == [("GetTaskRequestResourceFailed", expected)]
    h.gpu_node("n2", card="A")
    h.step()
    assert account.own.allocated == {CPU_KEY: 2000, "A": 1000}


def test_unknown_releases_are_counted_and_change_nothing(harness: Callable[..., Harness]) -> None:
    from capcard_sched.framework.api.plugin import Placement

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
    assert plugin.ledger.queues["q"].own.releasing.cards == {"A": 1000}
    assert plugin.ledger.internal_errors == 3
    assert json.dumps([s.value for s in plugin.metrics() if "internal" in s.name]) == "[3]"
