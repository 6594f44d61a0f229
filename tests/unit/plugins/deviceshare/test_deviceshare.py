from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.framework.eviction.scope import WithinQueue
from capcard_sched.framework.eviction.search import VictimSearch
from capcard_sched.model import annotations as keys
from capcard_sched.model.deltas import BindFailed
from capcard_sched.model.intents import Bind
from capcard_sched.testing import registry
from tests.unit.plugins.deviceshare.cluster import MEMORY, NUMBER, PERCENTAGE, VgpuHarness, conf

BINPACK = conf(SchedulePolicy="binpack", ScheduleWeight=10)


# --- gangs and the ledger ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edited", ["", "A,NVIDIA,1,0:", "B,NVIDIA,9000,0:"])
def test_the_devices_of_a_bound_pod_cannot_be_edited(edited: str) -> None:
    h = VgpuHarness(run=True)
    h.do("cards n1 A:10000 B:10000; group g; share p 9000 cores=10")
    h.settle()
    before, charged = h.uses("n1"), _charged(h)
    h._pods["default/p"]["metadata"]["annotations"] |= {keys.VGPU_IDS: edited, keys.BIND_PHASE: "success"}
    h.apply(h.pod_changed("default/p"))

    h.settle()

    assert h.uses("n1") == before
    assert _charged(h) == charged
    assert h.task("p").device_notes[keys.BIND_PHASE] == "success"
    assert [reason for reason, _ in h.event_messages("Pod", "p")].count("QuotaEvasionIgnored") == 1


def test_another_conf_finds_pods_that_are_being_bound() -> None:
    h = VgpuHarness()
    h.do("cards n1 A:10000; group g; share p 7000")
    h.core.step(h._deltas, h.now)  # the bindings are under way
    h._deltas = []
    h.reconfigure(BINPACK)
    h.do("group g2; share g2/q 7000")

    h.step()

    assert h.uses("n1") == [(1, 7000, 0)]
    assert "q" not in h.binds


def test_a_binding_that_fails_gives_the_card_back() -> None:
    h = VgpuHarness()
    h.do("cards n1 A:10000; group g; share p 7000")
    result = h.core.step(h._deltas, h.now)
    h._deltas = []
    (bind,) = (intent for intent in result.intents if isinstance(intent, Bind))
    h.apply(BindFailed(bind.namespace, bind.name, bind.uid, "refused"))
    h.do("group g2; share g2/q 9000")

    h.step()

    assert [h.uses("n1")[0][1], len(h.binds)] in ([7000, 1], [9000, 1])


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, text",
    [
        (
            {"VGPUEnable": False, "GPUSharingEnable": True, "GPUNumberEnable": True},
            "can not define true in both gpu sharing and gpu number",
        ),
        ({"GPUSharingEnable": True}, "gpu-share and vgpu can't be used together"),
        ({"GPUNumberEnable": True}, "gpu-share and vgpu can't be used together"),
    ],
)
def test_switches_that_exclude_each_other_reject_the_conf(arguments: dict[str, Any], text: str) -> None:
    result = parse_conf(conf(**arguments), registry=registry())

    assert result.conf is None
    assert text in [problem.message for problem in result.problems]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"SchedulePolicy": "binpak"}, '"binpak" is no policy'),
        ({"SchedulePolicy": "binpack"}, "orders the cards of a node only"),
        ({"ScheduleWeight": 10.5}, "integer"),
        ({"VGPUEnable": '"true"'}, "true or false"),
        ({"KnownGeometriesCMName": "''"}, "non-empty string"),
        ({"Unknown": 1}, "has no argument"),
    ],
)
def test_arguments_that_do_less_than_they_seem_to_are_warned_of(arguments: dict[str, Any], words: str) -> None:
    result = parse_conf(conf(**arguments), registry=registry())

    assert result.conf is not None
    texts = [f"{problem.message} {problem.accepted}" for problem in result.problems]
    assert any(words in text for text in texts), texts


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_series_follow_the_ledger() -> None:
    h = VgpuHarness(BINPACK)
    h.do("cards n1 G:4914; group g min=5; share w-0..4 128 cores=10")
    h.settle()

    found = {
        (sample.name, sample.labels.get("podName", "")): sample.value for sample in h.plugin("deviceshare").metrics()
    }

    assert found["vgpu_device_shared_number", ""] == 5
    assert found["vgpu_device_allocated_memory", ""] == 640
    assert found["vgpu_device_allocated_cores", ""] == 50
    assert found["vgpu_device_memory_limit", ""] == 4914
    assert found["vgpu_device_memory_allocation_for_a_certain_pod", "w-3"] == 128
    assert found["vgpu_device_core_allocation_for_a_certain_pod", "w-3"] == 10
    assert found["vgpu_device_config_invalid", ""] == 0
    assert len(found) == 15


# --- quotas -----------------------------------------------------------------------------------------------------------


def _charged(h: VgpuHarness) -> dict[str, int]:
    return {name: amount // 1000 for name, amount in h.state.columns.amounts(h.state.queues["q"].allocated).items()}


def test_a_placed_part_is_charged_as_that_of_its_card() -> None:
    h = VgpuHarness(run=True)
    h.cards("n1", "A:4000")
    h.cards("n2", "B:10000")
    h.group("g", min_member=2)
    for name, node in (("p", "n1"), ("q", "n2")):
        h.share(name, limits={PERCENTAGE: 50}, nodeSelector={"kubernetes.io/hostname": node})

    h.step()
    assert _charged(h)[MEMORY] == 2000 + 2000  # before the bindings are confirmed
    h.settle()
    assert _charged(h)[MEMORY] == 2000 + 5000

    h.cards("n3", "C:2000")
    h.settle()
    assert _charged(h)[MEMORY] == 2000 + 5000
    h.reconfigure(conf(VGPUEnable=False))
    h.settle()
    assert _charged(h).get(MEMORY, 0) == 0
    h.reconfigure(conf())
    h.settle()
    assert _charged(h)[MEMORY] == 2000 + 5000
    h.delete_pod("q")
    h.settle()
    assert _charged(h)[MEMORY] == 2000


# --- evictions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "node"), [("spread", "n2"), ("binpack", "n1")])
def test_a_node_is_scored_without_the_pods_whose_leave_makes_it_fit(policy: str, node: str) -> None:
    h = VgpuHarness(conf(actions="enqueue, preempt", SchedulePolicy=policy, ScheduleWeight=10))
    h.do("cards n1 A:10000; cards n2 B:10000; group low Running; group urgent; share urgent/urgent 5000")
    for name, devices, place in ("staying", "A,NVIDIA,2000,0:", "n1"), ("leaving", "B,NVIDIA,9000,0:", "n2"):
        h.pod(name, group="low", limits={NUMBER: 1}, node=place, annotations={keys.VGPU_IDS: devices})
    h.terminate("leaving")
    session = h.session()
    queue, task = session.queues["q"], h.task("urgent")

    search = VictimSearch(session, WithinQueue("preempt"), session.engine.signature(queue, task), queue, task)

    assert session.nodes.nodes[search.free_row()].name == node
