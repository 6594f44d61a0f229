"""The plugin fragmentation: its scores beside plain arithmetic, and placements that it must not prevent."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.model.annotations import VGPU_IDS
from capcard_sched.model.card_registration import RegisteredCard
from capcard_sched.model.pod_devices import decode_devices
from capcard_sched.plugins.fragmentation import Fragmentation
from capcard_sched.testing import Harness
from tests.unit.plugins.deviceshare.cluster import VgpuHarness, conf
from tests.unit.plugins.deviceshare.worlds import L40S

CONF = """
actions: allocate
tiers:
- plugins: [{name: gang}, {name: predicates}, {name: fragmentation, arguments: {weight: 1}}]
"""
NODES = st.lists(st.tuples(st.sampled_from(["A", "B"]), st.integers(1, 8), st.integers(1, 64)), min_size=1, max_size=4)
PODS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(1, 16), st.sampled_from(["", "A", "B", "A|B"])), min_size=1, max_size=8
)


def _harness(nodes: list[tuple[str, int, int]], pods: list[tuple[int, int, str]]) -> Harness:
    harness = Harness(CONF)
    harness.queue("q")
    for number, (model, cards, cpu) in enumerate(nodes):
        harness.gpu_node(f"n{number}", model, cards, cpu=str(cpu), memory="1Ti")
    for number, (cards, cpu, name) in enumerate(pods):
        harness.group(f"g{number}", queue="q", min_member=1, phase="Inqueue")
        notes = {"volcano.sh/card.name": name} if name else {}
        harness.pod(f"p{number}", group=f"g{number}", annotations=notes, requests={"cpu": str(cpu)}, cards=cards)
    return harness


def _loss(nodes: list[tuple[str, int, int]], pods: list[tuple[int, int, str]], place: int, pod: int) -> Fraction | None:
    """Points that a pod costs on an idle node by the definition, in exact fractions; None when it does not fit."""
    model, cards, cpu = nodes[place]
    wanted, own_cpu, _ = pods[pod]
    if wanted > cards or own_cpu > cpu:
        return None
    mix = [each for each in pods if each[0]]
    total = sum(each[0] for each in mix)
    if not total:
        return Fraction(0)

    def accepts(names: str, node: str) -> bool:
        return not names or node in names.split("|")

    demand = Fraction(0)
    everything = sum(count for _, count, _ in nodes)
    for count, _, names in mix:
        capacity = sum(each for node, each, _ in nodes if accepts(names, node))
        if accepts(names, model):
            demand += Fraction(count * everything, capacity * total)
    demand = min(max(demand, Fraction(1, 8)), Fraction(8))
    ratio = Fraction(total, sum(each[1] for each in mix))

    def value(free: int, left: int) -> Fraction:
        usable = sum(
            Fraction(count, total) * free
            for count, needed, names in mix
            if count <= free and needed <= left and accepts(names, model)
        )
        return (usable + min(Fraction(free), left * ratio)) * demand

    return 100 * (value(cards - wanted, cpu - own_cpu) - value(cards, cpu))


@given(NODES, PODS)
def test_scores_equal_the_definition(nodes: list[tuple[str, int, int]], pods: list[tuple[int, int, str]]) -> None:
    harness = _harness(nodes, pods)
    session = harness.session()
    plugin = harness.plugin("fragmentation")
    assert isinstance(plugin, Fragmentation)
    for number in range(len(pods)):
        task = harness.task(f"p{number}")
        signature = session.engine.signature(session.queues["q"], task)
        scores = plugin.score_usable_devices(signature, session.all_rows())
        found = np.zeros(len(nodes)) if scores is None else scores
        for place in range(len(nodes)):
            expected = _loss(nodes, pods, place, number)
            if expected is not None:  # weights, ratios and demands are rounded to integers
                assert abs(found[place] - float(expected)) <= 0.03 * abs(float(expected)) + 8, (place, number)


@given(NODES, PODS)
def test_every_pod_that_some_node_fits_is_placed(
    nodes: list[tuple[str, int, int]], pods: list[tuple[int, int, str]]
) -> None:
    harness = _harness(nodes, pods)
    for _ in range(3):
        harness.step()
    free = {f"n{number}": [cards, cpu] for number, (_, cards, cpu) in enumerate(nodes)}
    for number, (cards, cpu, _) in enumerate(pods):
        bound = harness.binds.get(f"p{number}")
        if bound is not None:
            free[bound][0] -= cards
            free[bound][1] -= cpu
    for number, (cards, cpu, _) in enumerate(pods):
        if f"p{number}" not in harness.binds:
            assert not any(cards <= left and cpu <= rest for left, rest in free.values())


SHARED_NODES = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=3), min_size=1, max_size=3)
SHARES = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 2)), min_size=1, max_size=8)


@settings(max_examples=settings().max_examples // 2)
@given(SHARED_NODES, SHARES)
def test_every_share_that_some_node_fits_is_placed(nodes: list[list[int]], shares: list[tuple[int, int]]) -> None:
    harness = VgpuHarness(conf(plugins="  - name: fragmentation", SchedulePolicy="binpack", ScheduleWeight=1), run=True)
    for number, cards in enumerate(nodes):
        registered = [RegisteredCard("", 9, 1000 * size, L40S, healthy=True, mode="hami-core") for size in cards]
        names = [card._replace(uuid=f"n{number}-{place}") for place, card in enumerate(registered)]
        harness.cards(f"n{number}", *names)
    for number, (size, count) in enumerate(shares):
        harness.group(f"g{number}", min_member=1)
        harness.share(f"p{number}", 1000 * size, number=count, group=f"g{number}")
    for _ in range(3):
        harness.step()
    free = {f"n{number}-{place}": size for number, cards in enumerate(nodes) for place, size in enumerate(cards)}
    for number, (size, _) in enumerate(shares):
        notes = harness._pods[f"default/p{number}"]["metadata"].get("annotations") or {}
        for devices in decode_devices(notes.get(VGPU_IDS, "")).containers:
            for device in devices:
                free[device.uuid] -= size
    assert min(free.values()) >= 0
    for number, (size, count) in enumerate(shares):
        if f"p{number}" not in harness.binds:
            for node, cards in enumerate(nodes):
                assert sum(free[f"n{node}-{place}"] >= size for place in range(len(cards))) < count
