from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.model import annotations as keys
from capcard_sched.model.deltas import BindFailed
from capcard_sched.model.intents import AnnotateNode, Bind
from capcard_sched.testing import EPOCH, registry
from tests.unit.plugins.deviceshare.cluster import MEMORY, NUMBER, PERCENTAGE, VgpuHarness, conf

BINPACK = conf(SchedulePolicy="binpack", ScheduleWeight=10)
SPREAD = conf(SchedulePolicy="spread", ScheduleWeight=10)


# --- gangs and the ledger ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase, held", [("Running", True), ("Pending", True), ("Succeeded", False), ("Failed", False)])
def test_pods_hold_their_cards_until_they_end(phase: str, held: bool) -> None:
    h = VgpuHarness()
    h.cards("n1", "A:10000")
    h.pod("p", node="n1", phase=phase, annotations={keys.VGPU_IDS: "A,NVIDIA,1000,10:"})

    h.step()

    assert h.uses("n1") == ([(1, 1000, 10)] if held else [(0, 0, 0)])


@pytest.mark.parametrize("edited", ["", "A,NVIDIA,1,0:", "B,NVIDIA,9000,0:"])
def test_the_devices_of_a_bound_pod_cannot_be_edited(edited: str) -> None:
    h = VgpuHarness(run=True)
    h.cards("n1", "A:10000", "B:10000")
    h.group("g")
    h.share("p", 9000, cores=10)
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
    h.cards("n1", "A:10000")
    h.group("g")
    h.share("p", 7000)
    h.core.step(h._deltas, h.now)  # the bindings are under way
    h._deltas = []
    h.reconfigure(BINPACK)
    h.group("g2")
    h.share("q", 7000, group="g2")

    h.step()

    assert h.uses("n1") == [(1, 7000, 0)]
    assert "q" not in h.binds


def test_a_binding_that_fails_gives_the_card_back() -> None:
    h = VgpuHarness()
    h.cards("n1", "A:10000")
    h.group("g")
    h.share("p", 7000)
    result = h.core.step(h._deltas, h.now)
    h._deltas = []
    (bind,) = (intent for intent in result.intents if isinstance(intent, Bind))
    h.apply(BindFailed(bind.namespace, bind.name, bind.uid, "refused"))
    h.group("g2")
    h.share("q", 9000, group="g2")

    h.step()

    assert [h.uses("n1")[0][1], len(h.binds)] in ([7000, 1], [9000, 1])


# --- choosing nodes ---------------------------------------------------------------------------------------------------


def _one_of_two(text: str, used: str) -> str:
    h = VgpuHarness(text)
    h.cards("n1", "A:10000")
    h.cards("n2", "B:10000")
    holder = {"A": "n1", "B": "n2"}[used]
    h.pod("old", node=holder, annotations={keys.VGPU_IDS: f"{used},NVIDIA,3000,0:"})
    h.group("g")
    h.share("p", 1000)
    h.step()
    return h.binds["p"]


@pytest.mark.parametrize(
    "text, used, node", [(BINPACK, "A", "n1"), (BINPACK, "B", "n2"), (SPREAD, "A", "n2"), (SPREAD, "B", "n1")]
)
def test_the_policy_ranks_nodes_when_it_has_a_weight(text: str, used: str, node: str) -> None:
    assert _one_of_two(text, used) == node


@pytest.mark.parametrize(
    "handshake, alive",
    [
        ("Requesting_2026.01.01 00:00:00", True),
        ("Requesting_2025.12.31 23:59:00", False),
        ("Requesting_2025.12.31 23:59:01", True),
        ("Reported 2026-01-01", True),
        ("Deleted_2026.01.01 00:00:00", False),
        ("Requesting_", True),
        (None, True),
    ],
)
def test_a_node_whose_device_plugin_is_gone_takes_no_share(handshake: str | None, alive: bool) -> None:
    h = VgpuHarness()
    h.cards("n1", "A:10000", annotations={} if handshake is None else {keys.NODE_VGPU_HANDSHAKE: handshake})
    h.group("g")
    h.share("p", 1000)

    h.step()

    assert ("p" in h.binds) is alive
    if not alive:
        assert "1 node not initialized with devicehamivgpu" in h.pod_message("p")


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "register, words",
    [
        ("nothing", "no card in"),
        ("G,10,100,NVIDIA,true:", "card 0 .* has 5 fields"),
        ("A,10,100,NVIDIA,true,x:G,ten,100,NVIDIA,true,x:", 'card 1 .* count is "ten"'),
        ("G,10,100,NVIDIA L40S,true,mig:", "no MIG geometry for NVIDIA L40S"),
        ("G,10,100,NVIDIA,false,x:", "health is ignored"),
    ],
)
def test_a_registration_that_does_not_count_as_written_is_an_event_on_the_node_once(register: str, words: str) -> None:
    import re

    h = VgpuHarness()
    h.cards("n1", register=register, offered=10)
    h.cards("n2", "B:10000")
    h.group("g")
    h.share("p", 1000)

    h.settle()
    h.cards("n1", register=register, offered=11)
    h.settle()

    events = h.event_messages("Node", "n1")
    assert len(events) == 1
    assert events[0][0] == "InvalidDeviceRegistration"
    assert re.search(words, events[0][1])
    assert h.binds == {"p": "n2"}


@pytest.mark.parametrize(
    "limits, words",
    [
        ({NUMBER: "1500m"}, "container main: volcano.sh/vgpu-number is 1.5: expected an integer of 0 or more"),
        ({NUMBER: 1, "volcano.sh/vgpu-cores": 101}, "volcano.sh/vgpu-cores is 101: expected an integer from 0 to 100"),
        ({NUMBER: 1, PERCENTAGE: 200}, "volcano.sh/vgpu-memory-percentage is 200"),
        ({NUMBER: 1, MEMORY: "0.5"}, "volcano.sh/vgpu-memory is 0.5"),
    ],
)
def test_a_request_without_meaning_fits_nowhere_and_names_the_reason(limits: dict[str, Any], words: str) -> None:
    h = VgpuHarness()
    h.cards("n1", "A:10000", offered=1000)
    h.group("g")
    h.pod("p", limits=limits)
    h.group("g2")
    h.share("q", 1000, group="g2")

    h.settle()

    assert h.binds == {"q": "n1"}
    assert "hami-vgpuDeviceSharing error (request)" in h.pod_message("p")
    texts = [message for reason, message in h.event_messages("Pod", "p") if reason == "InvalidDeviceRequest"]
    assert [words in text for text in texts] == [True]


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
    h.cards("n1", "G:4914")
    h.group("g", min_member=5)
    for index in range(5):
        h.share(f"w-{index}", 128, cores=10)
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


@pytest.mark.parametrize("plugin", ["proportion", "capacity"])
@pytest.mark.parametrize("offered", [0, 39312])
def test_queues_that_do_not_name_shares_do_not_limit_them(plugin: str, offered: int) -> None:
    h = VgpuHarness(conf(plugins=f"  - name: {plugin}\n"))
    h.cards("n1", "A:10000", resources={MEMORY: offered, "volcano.sh/vgpu-cores": 0})
    h.group("g", phase="Pending")
    h.share("p", 1000, cores=10)

    h.settle()

    assert h.binds == {"p": "n1"}


def test_without_the_plugin_amounts_are_charged_as_they_are_written() -> None:
    h = VgpuHarness()
    h.cards("n1", "A:10000", "B:10000")
    h.group("g")
    h.share("p", 3000, number=2)
    h.settle()
    h.reconfigure(conf(VGPUEnable=False))
    h.settle()

    assert _charged(h)[MEMORY] == 3000


@pytest.mark.parametrize("phase", ["Pending", "Inqueue"])  # checked at enqueue, and at allocate
@pytest.mark.parametrize("plugin", ["proportion", "capacity", "capacity-card"])
def test_a_queue_that_names_shares_limits_them(plugin: str, phase: str) -> None:
    h = VgpuHarness(conf(plugins=f"  - name: {plugin}\n"))
    h.queue("q", capability={"cpu": "64", "memory": "256Gi", NUMBER: 10, MEMORY: 5000, "volcano.sh/vgpu-cores": 100})
    h.cards("n1", "A:10000", "B:10000", "C:10000")
    for index in range(3):
        h.group(f"g{index}", phase=phase, min_resources={NUMBER: 1, MEMORY: 2000, "volcano.sh/vgpu-cores": 20})
        h.share(f"p{index}", 2000, cores=20, group=f"g{index}")

    h.settle()

    assert len(h.binds) == 2
    phases = [h.state.jobs[f"default/g{index}"].phase.value for index in range(3)]
    assert phases.count("Pending") == (1 if phase == "Pending" else 0)
    assert _charged(h)[MEMORY] == 4000
    written = h.state.queues["q"].status_allocated
    assert written is not None
    assert [written[name] // 1000 for name in (NUMBER, MEMORY, "volcano.sh/vgpu-cores")] == [2, 4000, 40]
    waiting = next(f"p{index}" for index in range(3) if f"p{index}" not in h.binds)
    assert "vgpu-memory" in h.pod_message(waiting)


@pytest.mark.parametrize("plugin", ["proportion", "capacity", "capacity-card"])
def test_percentages_count_nowhere(plugin: str) -> None:
    h = VgpuHarness(conf(plugins=f"  - name: {plugin}\n"))
    h.queue("q", capability={"cpu": "64", "memory": "256Gi"})
    h.cards("n1", "A:10000")
    h.group("g", min_resources={"cpu": 1, NUMBER: 1, PERCENTAGE: 50}, phase="Pending")
    h.share("p", limits={PERCENTAGE: 50})

    h.settle()

    assert h.binds == {"p": "n1"}


# --- handshakes and locks ---------------------------------------------------------------------------------------------


def _handshakes(h: VgpuHarness, text: str, now: float) -> list[str]:
    h.cards("n1", "A:10000", annotations={keys.NODE_VGPU_HANDSHAKE: text}, labels={"changed": str(int(now))})
    intents = h.step(now).intents
    return [str(each.annotations[keys.NODE_VGPU_HANDSHAKE]) for each in intents if isinstance(each, AnnotateNode)]


def test_a_report_is_requested_once_in_thirty_seconds() -> None:
    h = VgpuHarness()

    assert _handshakes(h, "Reported 1", EPOCH) == ["Requesting_2026.01.01 00:00:00"]
    assert _handshakes(h, "Reported 2", EPOCH + 29) == []
    assert _handshakes(h, "Reported 3", EPOCH + 30) == ["Requesting_2026.01.01 00:00:30"]


def test_a_device_plugin_that_is_gone_is_written_once_in_thirty_seconds() -> None:
    h, overdue = VgpuHarness(), "Requesting_2025.12.31 23:58:59"

    assert _handshakes(h, overdue, EPOCH) == ["Deleted_2026.01.01 00:00:00"]
    assert _handshakes(h, overdue, EPOCH + 10) == []
    assert _handshakes(h, overdue, EPOCH + 31) == ["Deleted_2026.01.01 00:00:31"]
    assert _handshakes(h, "Reported 1", EPOCH + 40) == []
    assert _handshakes(h, "Reported 2", EPOCH + 61) == ["Requesting_2026.01.01 00:01:01"]
    assert _handshakes(h, overdue, EPOCH + 62) == ["Deleted_2026.01.01 00:01:02"]


@pytest.mark.parametrize(
    "text, written",
    [
        ("Requesting_2026.01.01 00:00:00", []),
        ("Requesting_2025.12.31 23:58:59", ["Deleted_2026.01.01 00:00:00"]),
        ("Requesting_never", ["Requesting_2026.01.01 00:00:00"]),
        ("Deleted_2025.12.31 23:58:59", []),
    ],
)
def test_a_handshake_gets_the_response_of_its_state(text: str, written: list[str]) -> None:
    assert _handshakes(VgpuHarness(), text, EPOCH) == written


def test_a_node_without_a_handshake_gets_none() -> None:
    h = VgpuHarness()
    h.cards("n1", "A:10000")

    assert not [each for each in h.step().intents if isinstance(each, AnnotateNode)]


@pytest.mark.parametrize("enabled, lock", [(True, "hamivgpu"), (False, "")])
def test_bindings_of_shares_take_the_lock_of_their_node_when_it_is_on(enabled: bool, lock: str) -> None:
    h = VgpuHarness(conf(NodeLockEnable=enabled))
    h.cards("n1", "A:10000")
    for name, limits in (("p", {NUMBER: 1}), ("plain", {})):
        h.group(name)
        h.pod(name, group=name, limits=limits)

    binds = {each.name: each.node_lock for each in h.step().intents if isinstance(each, Bind)}

    assert binds == {"p": lock, "plain": ""}


def test_a_part_of_a_card_is_charged_without_its_percentage() -> None:
    h = VgpuHarness()
    h.cards("n1", "A:10000")
    h.group("g")
    h.share("p", limits={PERCENTAGE: 50})

    h.settle()

    assert _charged(h)[MEMORY] == 5000
    assert PERCENTAGE not in _charged(h)


def test_a_queue_is_charged_for_all_shares_of_a_pod() -> None:
    h = VgpuHarness()
    h.cards("n1", "A:10000", "B:10000")
    h.group("g")
    h.share("p", 3000, number=2, cores=30)

    h.settle()

    charged = _charged(h)
    assert (charged[NUMBER], charged[MEMORY], charged["volcano.sh/vgpu-cores"]) == (2, 6000, 60)
