"""Evictions for cards: victims are selected until amounts and cards fit, and no more of them."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.framework.eviction.scope import WithinQueue
from capcard_sched.framework.eviction.search import VictimSearch
from capcard_sched.model import annotations as keys
from capcard_sched.model.intents import Evict
from tests.unit.plugins.deviceshare.cluster import VgpuHarness, conf
from tests.unit.plugins.deviceshare.worlds import A100_40

_CONF = """
actions: "enqueue, allocate, {action}"
tiers:
- plugins:
  - {{name: priority}}
  - {{name: gang, enablePreemptable: false, enableReclaimable: false, enableJobStarving: false}}
  - {{name: conformance}}
- plugins:
  - {{name: predicates}}
  - name: deviceshare
    arguments: {{deviceshare.VGPUEnable: true}}
  {more}
"""


def _harness(action: str = "preempt", more: str = "") -> VgpuHarness:
    h = VgpuHarness(_CONF.format(action=action, more=more))
    h.priority_class("high", 100)
    h.priority_class("low", 1)
    return h


def _running(h: VgpuHarness, name: str, devices: str, *, queue: str = "q", node: str = "n1", cores: int = 0) -> None:
    notes = {keys.VGPU_IDS: devices, keys.PREEMPTABLE: "true"}
    group = {keys.PREEMPTABLE: "true"}
    h.group(name, queue=queue, priority_class="low", phase="Running", annotations=group)
    memory = sum(int(each.split(",")[2]) for each in devices.split(":") if each)
    h.share(name, memory, cores=cores, group=name, node=node, priority=1, annotations=notes)


def _evicted(h: VgpuHarness, *, queue: str = "q", **request: Any) -> list[str]:
    h.group("urgent", queue=queue, priority_class="high")
    h.share("urgent", group="urgent", priority=100, **request)
    result = h.step()
    assert result.report.errors == []
    victims = sorted(intent.name for intent in result.intents if isinstance(intent, Evict))
    for name in victims:
        h.delete_pod(name)
    h.settle()
    assert h.binds.get("urgent") == ("n1" if victims else None)
    return victims


def test_a_pod_leaves_for_the_memory_of_its_card() -> None:
    h = _harness()
    h.cards("n1", "A:10000")
    _running(h, "low", "A,NVIDIA,9000,0:")

    assert _evicted(h, memory=5000) == ["low"]
    assert h.bind_annotations["urgent"][keys.VGPU_IDS] == "A,NVIDIA,5000,0:"


def test_no_more_pods_are_evicted_than_the_card_needs() -> None:
    h = _harness()
    h.cards("n1", "A:10000")
    for index in range(3):
        _running(h, f"low{index}", "A,NVIDIA,3000,0:")

    assert len(_evicted(h, memory=5000)) == 2


def test_only_pods_of_the_card_that_helps_are_evicted() -> None:
    h = _harness()
    h.cards("n1", "A:10000", "B:4000")
    _running(h, "large", "A,NVIDIA,9000,0:")
    _running(h, "small", "B,NVIDIA,3000,0:")

    assert _evicted(h, memory=9500) == ["large"]


def test_a_card_is_emptied_for_a_pod_that_wants_it_alone() -> None:
    h = _harness()
    h.cards("n1", "A:10000")
    for index in range(2):
        _running(h, f"low{index}", "A,NVIDIA,100,10:", cores=10)

    assert _evicted(h, memory=100, cores=100) == ["low0", "low1"]


def test_a_slice_is_freed() -> None:
    h = _harness()
    h.cards("n1", register=f"M,10,40536,{A100_40},true,mig:", offered=10)
    _running(h, "whole", "M[group4-0],NVIDIA,40536,0:")

    assert _evicted(h, memory=8000) == ["whole"]
    assert h.bind_annotations["urgent"][keys.VGPU_IDS] == "M[group2-0],NVIDIA,8000,0:"


@pytest.mark.parametrize("request_", [{"memory": 20000}, {"memory": 100, "number": 2}])
def test_no_pod_is_evicted_for_a_request_that_no_card_can_meet(request_: dict[str, Any]) -> None:
    h = _harness()
    h.cards("n1", "A:10000")
    _running(h, "low", "A,NVIDIA,9000,0:")

    assert _evicted(h, **request_) == []


def test_cards_are_reclaimed_for_another_queue() -> None:
    h = _harness("reclaim", "- {name: proportion}")
    h.queue("q", weight=1)
    h.queue("other", weight=1)
    h.cards("n1", "A:10000", offered=4)
    for index in range(3):
        _running(h, f"low{index}", "A,NVIDIA,3000,0:")

    assert len(_evicted(h, queue="other", memory=3000)) == 1


@pytest.mark.parametrize(("policy", "node"), [("spread", "n2"), ("binpack", "n1")])
def test_a_node_is_scored_without_the_pods_whose_leave_makes_it_fit(policy: str, node: str) -> None:
    h = VgpuHarness(conf(actions="enqueue, preempt", SchedulePolicy=policy, ScheduleWeight=10))
    h.cards("n1", "A:10000")
    h.cards("n2", "B:10000")
    _running(h, "staying", "A,NVIDIA,2000,0:")
    _running(h, "leaving", "B,NVIDIA,9000,0:", node="n2")
    h.terminate("leaving")
    h.group("urgent", queue="q", phase="Inqueue")
    h.share("urgent", 5000, group="urgent")
    session = h.session()
    queue, task = session.queues["q"], h.task("urgent")

    search = VictimSearch(session, WithinQueue("preempt"), session.engine.signature(queue, task), queue, task)

    assert session.nodes.nodes[search.free_row()].name == node


_TIDE = """
actions: "enqueue, allocate, backfill, reclaim"
tiers:
- plugins:
  - name: priority
  - {name: gang, enableReclaimable: false}
  - {name: conformance, enableReclaimable: false}
- plugins:
  - name: predicates
  - {name: capacity-card, arguments: {cardUnlimitedCpuMemory: true}}
  - name: deviceshare
    arguments: {deviceshare.VGPUEnable: true}
"""


@pytest.mark.parametrize("memory, victims", [(9500, ["large"]), (3500, ["small"]), (12000, [])])
def test_a_tide_evicts_the_pods_of_the_card_that_helps(memory: int, victims: list[str]) -> None:
    h = VgpuHarness(_TIDE)
    h.priority_class("high", 80000)
    h.queue("serve", priority=80000, reclaimable=False)
    h.queue("train", priority=20000, reclaimable=True)
    h.cards("n1", "A:10000", "B:4000")
    for name, devices in (("large", "A,NVIDIA,9900,0:"), ("small", "B,NVIDIA,3000,0:")):
        training = {keys.SERVICE_TYPE: "training"}
        h.group(name, queue="train", phase="Running", annotations=training)
        notes = {**training, keys.PREEMPTABLE: "true", keys.VGPU_IDS: devices}
        h.share(name, int(devices.split(",")[2]), group=name, node="n1", priority=20000, annotations=notes)
    inference = {keys.SERVICE_TYPE: "inference"}
    h.group("chat", queue="serve", priority_class="high", annotations=inference)
    h.share("chat", memory, group="chat", priority=80000, annotations=inference)

    result = h.step()

    assert result.report.errors == []
    assert [intent.name for intent in result.intents if isinstance(intent, Evict)] == victims
