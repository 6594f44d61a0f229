"""Card discovery: labels and resources of nodes, and invalid labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.card_labels import CardLabels
from capcard_sched.model.cards import (
    MAX_CARDS,
    NodeCards,
    card_kinds,
    discover_cards,
)

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
AMD = "amd.com/gpu"


def _labels(product: str, memory: object = 1, *, replicas: str = "", of: str = GPU, **more: str) -> dict[str, str]:
    """The labels of a card kind."""
    named = {f"{of}.product": product, f"{of}.memory": str(memory), f"{GPU}.replicas": replicas}
    return {**{key: text for key, text in named.items() if text or ".replicas" not in key}, **more}


MIG = "nvidia.com/mig-1g.5gb"
H200 = {GPU: 7000, "nvidia.com/mig-1g.18gb": 3000, "nvidia.com/mig-3g.71gb": 1000}
#: Name, labels, allocatable amounts, cards with their amounts and resources.
DISCOVERY: list[tuple[str, dict[str, str], dict[str, int], dict[str, tuple[int, str]]]] = [
    ("whole cards", _labels("X", 81920), {GPU: 8000}, {"X": (8000, GPU)}),
    ("MPS shares", _labels("A100", 81920, replicas="8"), {SHARED: 32000}, {"A100/mps-80g*1/8": (32000, SHARED)}),
    ("whole cards and MIG slices", _labels("H200", 143771, **{f"{GPU}.count": "8"}),
     {"cpu": 192000, "memory": 2 * 1024**4, **H200, "rdma/hca_shared": 63000},
     {"H200": (7000, GPU), "H200/mig-1g.18gb-mixed": (3000, "nvidia.com/mig-1g.18gb"),
      "H200/mig-3g.71gb-mixed": (1000, "nvidia.com/mig-3g.71gb")}),
    ("another vendor", _labels("910B", 65536, of="huawei.com/Ascend910"), {"huawei.com/Ascend910": 16000},
     {"910B": (16000, "huawei.com/Ascend910")}),
    ("another device of the vendor", _labels("H200", 143771), {"nvidia.com/hostdev": 4000, GPU: 8000},
     {"H200": (8000, GPU)}),
    ("no memory label", {f"{GPU}.product": "X"}, {GPU: 8000}, {GPU: (8000, GPU)}),
    ("no labels", {}, {GPU: 8000}, {GPU: (8000, GPU)}),
    ("empty product", _labels(""), {GPU: 8000}, {GPU: (8000, GPU)}),
    ("a slice is no kind", _labels("X", 5120, of=MIG), {MIG: 7000}, {MIG: (7000, MIG)}),
    ("every device unhealthy", _labels("X"), {GPU: 0}, {}),
    ("driver starting", _labels("X"), {}, {}),
    ("negative amount", _labels("X"), {GPU: -8000}, {}),
    ("a fraction counts as a whole card", _labels("X"), {GPU: 1500}, {"X": (2000, GPU)}),
    ("amounts stay inside 64 bits", _labels("X"), {GPU: 2**63 - 1}, {"X": (MAX_CARDS * 1000, GPU)}),
    ("a dash in the type", _labels("B", of="huawei.com/ascend-910"), {"huawei.com/ascend-910": 1000},
     {"B": (1000, "huawei.com/ascend-910")}),
    ("ASCII only", _labels("X", of="nvidia.com/gpü"), {"nvidia.com/gpü": 1000}, {}),
    ("whole string", {f"{GPU}.product.old": "X", f"{GPU}.product.memory": "1"}, {GPU: 1000}, {GPU: (1000, GPU)}),
    ("no prefix", _labels("X", of="gpu"), {"gpu": 1000}, {}),
    # the fallback, rule 4
    ("unique other", _labels("X"), {"nvidia.com/other": 4000}, {"X": (4000, "nvidia.com/other")}),
    ("two others", _labels("X"), {"nvidia.com/b": 4000, "nvidia.com/a": 4000}, {}),
    ("others do not replace unhealthy devices", _labels("X"), {GPU: 0, "nvidia.com/hostdev": 4000}, {}),
    ("another vendor's resource", _labels("X"), {"rdma/hca": 4000, "cpu": 1000}, {}),
    ("a prefix ends at its slash", _labels("X"), {"nvidia.community/x": 4000}, {}),
    # slices that no label names
    ("shares without replicas have the name of the resource", _labels("X"), {SHARED: 8000}, {SHARED: (8000, SHARED)}),
    ("slices without an nvidia kind have the name of the resource", _labels("B", of="huawei.com/npu", replicas="2"),
     {SHARED: 8000, MIG: 1000, "huawei.com/npu": 1000},
     {"B": (1000, "huawei.com/npu"), MIG: (1000, MIG), SHARED: (8000, SHARED)}),
    # labels of vendors
    ("AMD", {"amd.com/gpu.product-name": "MI300X", "beta.amd.com/gpu.product-name": "old"}, {AMD: 8000},
     {"MI300X": (8000, AMD)}),
    ("AMD before its labels were renamed", {"beta.amd.com/gpu.product-name": "MI250"}, {AMD: 8000},
     {"MI250": (8000, AMD)}),
    ("an empty label of a vendor", {"amd.com/gpu.product-name": " "}, {AMD: 8000}, {AMD: (8000, AMD)}),
    ("product and memory precede the labels of a vendor", {"amd.com/gpu.product-name": "Y", **_labels("X", of=AMD)},
     {AMD: 8000}, {"X": (8000, AMD)}),
    ("Ascend", {"node.kubernetes.io/npu.chip.name": "910B3"}, {"huawei.com/Ascend910": 8000},
     {"910B3": (8000, "huawei.com/Ascend910")}),
    ("Hygon", {"hygon.com/dcu.name": "K100_AI"}, {"hygon.com/dcu": 8000}, {"K100_AI": (8000, "hygon.com/dcu")}),
    ("MetaX without memory", {"metax-tech.com/gpu.product": "MXC500"}, {"metax-tech.com/gpu": 8000},
     {"MXC500": (8000, "metax-tech.com/gpu")}),
    ("a vendor without a label", {}, {"habana.ai/gaudi": 8000}, {"habana.ai/gaudi": (8000, "habana.ai/gaudi")}),
    ("several vendors on one node", {"amd.com/gpu.product-name": "MI300X", **_labels("H200")},
     {GPU: 4000, AMD: 2000, "habana.ai/gaudi": 1000, "rdma/hca": 9000},
     {"H200": (4000, GPU), "MI300X": (2000, AMD), "habana.ai/gaudi": (1000, "habana.ai/gaudi")}),
    # several kinds
    ("all kinds are kept, slices belong to type gpu",
     {**_labels("G", 40960, replicas="2"), **_labels("A", 1024, of="nvidia.com/aaa"), **_labels("M", of="amd.com/gpu")},
     {GPU: 1000, "nvidia.com/aaa": 2000, "amd.com/gpu": 3000, SHARED: 4000, MIG: 5000, "nvidia.com/zzz": 6000},
     {"A": (2000, "nvidia.com/aaa"), "G": (1000, GPU), "G/mig-1g.5gb-mixed": (5000, MIG),
      "G/mps-40g*1/2": (4000, SHARED), "M": (3000, "amd.com/gpu")}),
    ("without a type gpu the first kind names slices",
     {**_labels("B", of="nvidia.com/b"), **_labels("A", of="nvidia.com/a")}, {MIG: 1000},
     {"A/mig-1g.5gb-mixed": (1000, MIG)}),
    ("two resources of one card add up under the first", {**_labels("S", of="a.com/x"), **_labels("S", of="b.com/x")},
     {"b.com/x": 1000, "a.com/x": 2000}, {"S": (3000, "a.com/x")}),
]  # fmt: skip


@pytest.mark.parametrize(
    "labels, allocatable, cards", [row[1:] for row in DISCOVERY], ids=[row[0] for row in DISCOVERY]
)
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
    found = discover_cards(_labels("X", memory_mib, replicas="2"), {SHARED: 1000})
    assert list(found.cards) == [f"X/mps-{gibibytes}g*1/2"]


@pytest.mark.parametrize("label", ["replicas", "memory"])
@pytest.mark.parametrize(
    "value",
    ["two", "", "0", "-1", "1.5", "8x", " 8", "٨", "0x8", "9" * 16, "9" * 100_000],
    ids=lambda value: value[:16],
)
def test_a_bad_number_costs_only_the_shares_and_is_reported(value: str, label: str) -> None:
    labels = {**_labels("X", 81920, replicas="2"), f"{GPU}.{label}": value}
    found = discover_cards(labels, {GPU: 1000, SHARED: 8000, MIG: 2000})
    cards = {"X": (1000, GPU), "X/mig-1g.5gb-mixed": (2000, MIG), SHARED: (8000, SHARED)}
    assert found == NodeCards(cards, ((f"{GPU}.{label}", value),))


def test_problems_come_sorted_and_only_for_nodes_with_a_kind() -> None:
    bad = {f"{GPU}.replicas": "x", f"{GPU}.memory": "y"}
    assert discover_cards({**bad, f"{GPU}.product": "X"}, {}).problems == (
        (f"{GPU}.memory", "y"),
        (f"{GPU}.replicas", "x"),
    )
    assert discover_cards(bad, {GPU: 8000}).problems == ()


@given(st.permutations(sorted(_labels("X", 81920, replicas="2", **{"amd.com/gpu.product": "M"}).items())))
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


#: Name, the argument `cardLabels`, labels, allocatable amounts, cards with their amounts and resources.
GIVEN: list[
    tuple[str, dict[str, str | tuple[str, ...]], dict[str, str], dict[str, int], dict[str, tuple[int, str]]]
] = [
    ("one label", {"x.com/npu": "x.com/model"}, {"x.com/model": "N1"}, {"x.com/npu": 2000},
     {"N1": (2000, "x.com/npu")}),
    ("the first label with a value", {"x.com/npu": ("a", "b", "c")}, {"a": "", "b": "B", "c": "C"},
     {"x.com/npu": 2000}, {"B": (2000, "x.com/npu")}),
    ("no label has a value", {"x.com/npu": "x.com/model"}, {}, {"x.com/npu": 2000}, {"x.com/npu": (2000, "x.com/npu")}),
    ("before product and memory", {GPU: "team/model"}, {"team/model": "Mine", **_labels("H200", 81920, replicas="2")},
     {GPU: 1000, MIG: 2000, SHARED: 3000},
     {"Mine": (1000, GPU), "Mine/mig-1g.5gb-mixed": (2000, MIG), "Mine/mps-80g*1/2": (3000, SHARED)}),
    ("product and memory without the label", {GPU: "team/model"}, _labels("H200"), {GPU: 1000}, {"H200": (1000, GPU)}),
    ("a product label alone", {GPU: f"{GPU}.product"}, {f"{GPU}.product": "H200"}, {GPU: 1000}, {"H200": (1000, GPU)}),
    ("before the labels of a vendor", {AMD: "team/model"}, {"team/model": "Mine", "amd.com/gpu.product-name": "X"},
     {AMD: 1000}, {"Mine": (1000, AMD)}),
]  # fmt: skip


@pytest.mark.parametrize("given, labels, allocatable, cards", [row[1:] for row in GIVEN], ids=[row[0] for row in GIVEN])
def test_card_labels_name_the_models_of_a_resource(
    given: dict[str, str | tuple[str, ...]],
    labels: dict[str, str],
    allocatable: dict[str, int],
    cards: dict[str, tuple[int, str]],
) -> None:
    assert discover_cards(labels, allocatable, CardLabels(given)) == NodeCards(cards, ())


def test_shared_devices_without_a_label_are_no_cards() -> None:
    assert discover_cards({}, {GPU: 1000}, CardLabels(shares={GPU})).cards == {}


@given(
    st.dictionaries(st.sampled_from([GPU, AMD, SHARED, MIG, "x.com/npu", "rdma/hca"]), st.integers(1, 9000)),
    st.dictionaries(
        st.sampled_from([f"{GPU}.product", f"{GPU}.memory", f"{GPU}.replicas", "amd.com/gpu.product-name", "label"]),
        st.sampled_from(["", "A", "2", "81920"]),
    ),
)
def test_every_device_of_a_vendor_has_one_card(allocatable: dict[str, int], labels: dict[str, str]) -> None:
    rule = CardLabels({"x.com/npu": "label"})
    found = discover_cards(labels, allocatable, rule).cards
    devices = rule.devices(allocatable)
    assert sum(amount for amount, _ in found.values()) == sum(-(-allocatable[name] // 1000) * 1000 for name in devices)
