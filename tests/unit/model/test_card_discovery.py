"""Card discovery: labels and resources of nodes, and invalid labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.cards import (
    MAX_CARDS,
    NodeCards,
    card_kinds,
    discover_cards,
)

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"


def _labels(product: str, memory: object, **more: str) -> dict[str, str]:
    return {f"{GPU}.product": product, f"{GPU}.memory": str(memory), **more}


DISCOVERY = [
    pytest.param(
        _labels("NVIDIA-A100-80GB", 81920, **{f"{GPU}.replicas": "8"}),
        {SHARED: 32000},
        {"NVIDIA-A100-80GB/mps-80g*1/8": (32000, SHARED)},
        id="whole cards",
    ),
    pytest.param(
        _labels("NVIDIA-H800", 81559, **{f"{GPU}.replicas": "2"}),
        {SHARED: 16000},
        {"NVIDIA-H800/mps-80g*1/2": (16000, SHARED)},
        id="MPS shares",
    ),
    pytest.param(
        _labels("X", 82432, **{f"{GPU}.replicas": "4"}),
        {SHARED: 4000},
        {"X/mps-81g*1/4": (4000, SHARED)},
        id="MPS memory rounds half up",
    ),
    pytest.param(
        _labels("NVIDIA-H20", 97871, **{f"{GPU}.replicas": "2"}),
        {SHARED: 2000},
        {"NVIDIA-H20/mps-96g*1/2": (2000, SHARED)},
        id="MIG slices",
    ),
    pytest.param(
        _labels("NVIDIA-H200", 143771, **{f"{GPU}.count": "8"}),
        {
            "cpu": 192000,
            "memory": 2 * 1024**4,
            GPU: 7000,
            "nvidia.com/mig-1g.18gb": 3000,
            "nvidia.com/mig-3g.71gb": 1000,
            "rdma/hca_shared": 63000,
        },
        {
            "NVIDIA-H200": (7000, GPU),
            "NVIDIA-H200/mig-1g.18gb-mixed": (3000, "nvidia.com/mig-1g.18gb"),
            "NVIDIA-H200/mig-3g.71gb-mixed": (1000, "nvidia.com/mig-3g.71gb"),
        },
        id="several kinds",
    ),
    pytest.param({f"{GPU}.product": "X"}, {GPU: 8000}, {}, id="no memory label"),
    pytest.param(_labels("X", 81920), {GPU: 8000}, {"X": (8000, GPU)}, id="no count label"),
    pytest.param(
        {"huawei.com/Ascend910.product": "Ascend-910B", "huawei.com/Ascend910.memory": "65536"},
        {"huawei.com/Ascend910": 16000},
        {"Ascend-910B": (16000, "huawei.com/Ascend910")},
        id="two resources",
    ),
    pytest.param(
        _labels("NVIDIA-H200", 143771),
        {"nvidia.com/hostdev": 4000, GPU: 8000},
        {"NVIDIA-H200": (8000, GPU)},
        id="two products",
    ),
    pytest.param(
        {"nvidia.com/mig-1g.5gb.product": "X", "nvidia.com/mig-1g.5gb.memory": "5120"},
        {"nvidia.com/mig-1g.5gb": 7000},
        {},
        id="another vendor",
    ),
    pytest.param(_labels("X", 81920), {GPU: 0}, {}, id="every device unhealthy"),
    pytest.param(_labels("X", 81920), {}, {}, id="driver starting"),
    pytest.param({}, {GPU: 8000}, {}, id="no labels"),
    pytest.param(_labels("X", 81920), {GPU: -8000}, {}, id="negative amount"),
    pytest.param(_labels("X", 81920), {GPU: 1500}, {"X": (2000, GPU)}, id="a fraction counts as a whole card"),
    pytest.param(
        _labels("X", 81920), {GPU: 2**63 - 1}, {"X": (MAX_CARDS * 1000, GPU)}, id="amounts stay inside 64 bits"
    ),
    pytest.param(_labels("", 81920), {GPU: 8000}, {}, id="empty product"),
    pytest.param(
        {"huawei.com/ascend-910.product": "B", "huawei.com/ascend-910.memory": "1"},
        {"huawei.com/ascend-910": 1000},
        {"B": (1000, "huawei.com/ascend-910")},
        id="a dash in the type",
    ),
    pytest.param(
        {"nvidia.com/gpü.product": "X", "nvidia.com/gpü.memory": "1"}, {"nvidia.com/gpü": 1000}, {}, id="ASCII only"
    ),
    pytest.param(
        {"nvidia.com/gpu.product.old": "X", "nvidia.com/gpu.product.memory": "1"}, {GPU: 1000}, {}, id="whole string"
    ),
    pytest.param({"gpu.product": "X", "gpu.memory": "1"}, {"gpu": 1000}, {}, id="no prefix"),
    # the fallback, rule 4
    pytest.param(_labels("X", 1), {"nvidia.com/other": 4000}, {"X": (4000, "nvidia.com/other")}, id="unique other"),
    pytest.param(_labels("X", 1), {"nvidia.com/b": 4000, "nvidia.com/a": 4000}, {}, id="two others"),
    pytest.param(
        _labels("X", 1), {GPU: 0, "nvidia.com/hostdev": 4000}, {}, id="others do not replace unhealthy devices"
    ),
    pytest.param(_labels("X", 1), {"rdma/hca": 4000, "cpu": 1000}, {}, id="another vendor's resource"),
    pytest.param(_labels("X", 1), {"nvidia.community/x": 4000}, {}, id="a prefix ends at its slash"),
    # slices that cannot be named
    pytest.param(_labels("X", 1), {SHARED: 8000}, {}, id="shares without replicas are skipped"),
    pytest.param(
        {"huawei.com/npu.product": "B", "huawei.com/npu.memory": "1", f"{GPU}.replicas": "2"},
        {SHARED: 8000, "nvidia.com/mig-1g.5gb": 1000, "huawei.com/npu": 1000},
        {"B": (1000, "huawei.com/npu")},
        id="slices without an nvidia kind are skipped",
    ),
    # several kinds
    pytest.param(
        {
            **_labels("G", 40960, **{f"{GPU}.replicas": "2"}),
            "nvidia.com/aaa.product": "A",
            "nvidia.com/aaa.memory": "1024",
            "amd.com/gpu.product": "M",
            "amd.com/gpu.memory": "1024",
        },
        {
            GPU: 1000,
            "nvidia.com/aaa": 2000,
            "amd.com/gpu": 3000,
            SHARED: 4000,
            "nvidia.com/mig-1g.5gb": 5000,
            "nvidia.com/zzz": 6000,
        },
        {
            "A": (2000, "nvidia.com/aaa"),
            "G": (1000, GPU),
            "G/mig-1g.5gb-mixed": (5000, "nvidia.com/mig-1g.5gb"),
            "G/mps-40g*1/2": (4000, SHARED),
            "M": (3000, "amd.com/gpu"),
        },
        id="all kinds are kept, slices belong to type gpu",
    ),
    pytest.param(
        {
            "nvidia.com/b.product": "B",
            "nvidia.com/b.memory": "1",
            "nvidia.com/a.product": "A",
            "nvidia.com/a.memory": "1",
        },
        {"nvidia.com/mig-1g.5gb": 1000},
        {"A/mig-1g.5gb-mixed": (1000, "nvidia.com/mig-1g.5gb")},
        id="without a type gpu the first kind names slices",
    ),
    pytest.param(
        {"a.com/x.product": "S", "a.com/x.memory": "1", "b.com/x.product": "S", "b.com/x.memory": "1"},
        {"b.com/x": 1000, "a.com/x": 2000},
        {"S": (3000, "a.com/x")},
        id="two resources of one card add up under the first",
    ),
]


@pytest.mark.parametrize("labels, allocatable, cards", DISCOVERY)
def test_nodes_offer_the_cards_their_labels_name(
    labels: dict[str, str], allocatable: dict[str, int], cards: dict[str, tuple[int, str]]
) -> None:
    found = discover_cards(labels, allocatable)
    assert found == NodeCards(cards, ())
    assert list(found.cards) == sorted(cards)


@pytest.mark.parametrize(
    "memory_mib, gibibytes",
    [(81920, 80), (81559, 80), (97871, 96), (81408, 80), (82432, 81), (32768, 32), (40960, 40), (24564, 24), (511, 0)],
)
def test_memory_in_share_names_rounds_half_up(memory_mib: int, gibibytes: int) -> None:
    found = discover_cards(_labels("X", memory_mib, **{f"{GPU}.replicas": "2"}), {SHARED: 1000})
    assert list(found.cards) == [f"X/mps-{gibibytes}g*1/2"]


BAD_NUMBERS = ["two", "", "0", "-1", "1.5", "8x", " 8", "٨", "0x8", "9" * 16, "9" * 100_000]


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=lambda value: value[:16])
def test_bad_replicas_cost_only_the_shares_and_are_reported(value: str) -> None:
    labels = _labels("X", 81920, **{f"{GPU}.replicas": value})
    found = discover_cards(labels, {GPU: 1000, SHARED: 8000, "nvidia.com/mig-1g.5gb": 2000})
    assert found.cards == {"X": (1000, GPU), "X/mig-1g.5gb-mixed": (2000, "nvidia.com/mig-1g.5gb")}
    assert found.problems == ((f"{GPU}.replicas", value),)


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=lambda value: value[:16])
def test_bad_memory_costs_only_the_shares_and_is_reported(value: str) -> None:
    labels = _labels("X", value, **{f"{GPU}.replicas": "2"})
    found = discover_cards(labels, {GPU: 1000, SHARED: 8000, "nvidia.com/mig-1g.5gb": 2000})
    assert found.cards == {"X": (1000, GPU), "X/mig-1g.5gb-mixed": (2000, "nvidia.com/mig-1g.5gb")}
    assert found.problems == ((f"{GPU}.memory", value),)


def test_problems_come_sorted_and_only_for_nodes_with_a_kind() -> None:
    bad = {f"{GPU}.replicas": "x", f"{GPU}.memory": "y"}
    assert discover_cards({**bad, f"{GPU}.product": "X"}, {}).problems == (
        (f"{GPU}.memory", "y"),
        (f"{GPU}.replicas", "x"),
    )
    assert discover_cards(bad, {GPU: 8000}).problems == ()


@given(st.permutations(sorted(_labels("X", 81920, **{f"{GPU}.replicas": "2", "amd.com/gpu.product": "M"}).items())))
def test_the_order_of_labels_and_resources_does_not_matter(items: list[tuple[str, str]]) -> None:
    labels = dict(items)
    allocatable = {"nvidia.com/mig-1g.5gb": 1000, SHARED: 2000, GPU: 3000}
    forward, backward = discover_cards(labels, allocatable), discover_cards(labels, dict(reversed(allocatable.items())))
    assert list(forward.cards.items()) == list(backward.cards.items())
    assert list(forward.cards) == ["X", "X/mig-1g.5gb-mixed", "X/mps-80g*1/2"]


@given(
    st.dictionaries(st.text(max_size=30), st.text(max_size=10)), st.dictionaries(st.text(max_size=30), st.integers())
)
def test_no_node_makes_discovery_raise(labels: dict[str, str], allocatable: dict[str, int]) -> None:
    found = discover_cards({**labels, **_labels("X", 1)}, {**allocatable, GPU: 1000})
    assert found.cards["X"] == (1000, GPU)


def test_kinds_come_in_order_of_their_labels() -> None:
    labels = {"b.com/x.product": "B", "b.com/x.memory": "1", "a.com/x.product": "A", "a.com/x.memory": "bad"}
    assert [(kind.name, kind.resource, kind.memory_mib) for kind in card_kinds(labels)] == [
        ("A", "a.com/x", None),
        ("B", "b.com/x", 1),
    ]
