"""gpushare and Ascend 310P: the other kinds behind the seam."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.model import annotations as keys
from tests.unit.plugins.deviceshare.cluster import VgpuHarness, conf

GPU_MEMORY, GPU_NUMBER, NPU = "volcano.sh/gpu-memory", "volcano.sh/gpu-number", "huawei.com/npu-core"
BY_MEMORY = conf(VGPUEnable=False, GPUSharingEnable=True)
BY_NUMBER = conf(VGPUEnable=False, GPUNumberEnable=True)
ASCEND = conf(VGPUEnable=False, ASCEND310PVNPUEnable=True, ScheduleWeight=1)


def _gpus(h: VgpuHarness, name: str, cards: int, memory: int, **annotations: str) -> None:
    h.node(name, resources={GPU_NUMBER: cards, GPU_MEMORY: cards * memory}, annotations=annotations)


def _pods(h: VgpuHarness, limits: dict[str, Any], count: int, **more: Any) -> list[str]:
    """The notes of pods with these limits, each in a group of its own."""
    for index in range(count):
        h.group(f"g{index}")
        h.pod(f"p{index}", group=f"g{index}", limits=limits, **more)
    h.settle()
    found = [h.bind_annotations.get(f"p{index}", {}) for index in range(count)]
    return [notes.get(keys.GPU_INDEX) or notes.get(keys.NPU_CORE) or "" for notes in found]


def test_memory_left_over_on_a_card_is_used() -> None:
    h = VgpuHarness(BY_MEMORY)
    _gpus(h, "n1", 2, 1000)

    assert sorted(_pods(h, {GPU_MEMORY: 400}, 5)) == ["", "0", "0", "1", "1"]


@pytest.mark.parametrize("memory, taken", [(2, "0"), (1, ""), (0, "")])  # of two cards
def test_cards_without_a_unit_of_memory_share_none(memory: int, taken: str) -> None:
    h = VgpuHarness(BY_MEMORY)
    h.node("n1", resources={GPU_NUMBER: 2, GPU_MEMORY: memory})

    assert _pods(h, {GPU_MEMORY: 1}, 1) == [taken]


def test_init_containers_count_when_they_want_more() -> None:
    h = VgpuHarness(BY_MEMORY)
    _gpus(h, "n1", 1, 1000)
    init = [{"name": "setup", "resources": {"limits": {GPU_MEMORY: 900}}}]

    _pods(h, {GPU_MEMORY: 100}, 1, initContainers=init)

    ledger = h.plugin("deviceshare").rows.by_node["n1"].ledgers[0]
    assert ledger.cards[0].use.memory == 900


def _nearest(h: VgpuHarness, pod: str) -> list[tuple[str, tuple[str, ...]]]:
    session = h.last_session
    return list(h.plugin("deviceshare").rejection_details(h.task(pod), session.engine.all_rows()))


def test_refusals_by_memory_list_the_free_memory_of_each_card() -> None:
    h = VgpuHarness(BY_MEMORY)
    for node, used in (("far", 900), ("near", 700)):
        _gpus(h, node, 2, 1000, **{keys.GPU_UNHEALTHY_IDS: "1"} if node == "far" else {})
        h.pod(f"on-{node}", node=node, limits={GPU_MEMORY: used}, annotations={keys.GPU_INDEX: "0"})
    h.pod("more", node="near", limits={GPU_MEMORY: 800}, annotations={keys.GPU_INDEX: "1"})

    _pods(h, {GPU_MEMORY: 400}, 1)

    assert _nearest(h, "p0") == [
        ("near", ("card 0: 300 of 1,000 free, 400 requested", "card 1: 200 of 1,000 free, 400 requested")),
        ("far", ("card 0: 100 of 1,000 free, 400 requested",)),
    ]


def test_refusals_by_number_list_the_cards_with_pods() -> None:
    h = VgpuHarness(BY_NUMBER)
    _gpus(h, "n1", 2, 1000)
    _gpus(h, "n2", 1, 1000)
    h.pod("old", node="n1", limits={GPU_NUMBER: 1}, annotations={keys.GPU_INDEX: "1"})

    _pods(h, {GPU_NUMBER: 2}, 1)

    assert _nearest(h, "p0") == [
        ("n1", ("card 0: fits", "card 1: 1 pod, 2 cards without pods requested")),
        ("n2", ("2 cards requested, 1 usable",)),
    ]


def test_refusals_of_chips_list_their_cores() -> None:
    h = VgpuHarness(ASCEND)
    h.node("n1", resources={NPU: 16})
    for name, note in (("old", "0-vir04"), ("full", "1")):
        h.pod(name, node="n1", limits={NPU: 4}, annotations={keys.NPU_CORE: note})

    _pods(h, {NPU: 8}, 1)
    h.group("odd")
    h.pod("odd", group="odd", limits={NPU: 3})
    h.settle()

    chips = ("chip 0: 4 of 8 AI cores and 3 of 7 AI CPUs free", "chip 1: 0 of 8 AI cores and 0 of 7 AI CPUs free")
    assert _nearest(h, "p0") == [("n1", tuple(f"{chip}, 8 AI cores and 7 AI CPUs requested" for chip in chips))]
    assert _nearest(h, "odd") == [("n1", (f"{NPU} is 3: expected 1, 2, 4 or a multiple of 8",))]


# --- Ascend 310P ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cores, count, labels, notes",
    [
        (1, 1, {}, ["0-vir01"]),
        (2, 1, {}, ["0-vir02"]),
        (4, 2, {}, ["0-vir04", "0-vir04_3c"]),
        (4, 2, {"vnpu-level": "high"}, ["0-vir04", ""]),
        (4, 1, {"vnpu-dvpp": "yes"}, ["0-vir04_4c_dvpp"]),
        (4, 1, {"vnpu-dvpp": "no"}, ["0-vir04_3c_ndvpp"]),
        (2, 4, {}, ["0-vir02", "0-vir02", "0-vir02", "0-vir02_1c"]),
        (8, 2, {}, ["0", ""]),
    ],
)
def test_a_chip_is_cut_by_templates(cores: int, count: int, labels: dict[str, str], notes: list[str]) -> None:
    h = VgpuHarness(ASCEND)
    h.node("n1", resources={NPU: 8})

    assert _pods(h, {NPU: cores}, count, labels=labels) == notes


@pytest.mark.parametrize("cores", [3, 5, 12])
def test_cores_that_no_template_has_fit_nowhere(cores: int) -> None:
    h = VgpuHarness(ASCEND)
    h.node("n1", resources={NPU: 80})

    assert _pods(h, {NPU: cores}, 1) == [""]
    assert "ascend310p-vNPU no enough npu (request)" in h.pod_message("p0")
    texts = [text for reason, text in h.event_messages("Pod", "p0") if reason == "InvalidDeviceRequest"]
    assert texts == [f"{NPU} is {cores}: expected 1, 2, 4 or a multiple of 8"]
