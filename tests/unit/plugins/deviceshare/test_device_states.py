"""What is kept of states and results: numbers keep their meaning, and the memory follows the nodes and the pods."""

from __future__ import annotations

import random
from collections import deque

import pytest

from capcard_sched.framework.eviction.scope import WithinQueue
from capcard_sched.framework.eviction.search import VictimSearch
from capcard_sched.model import annotations as keys
from tests.unit.plugins.deviceshare.cluster import MEMORY, NUMBER, VgpuHarness, conf


def _harness() -> VgpuHarness:
    h = VgpuHarness(conf(SchedulePolicy="binpack", ScheduleWeight=10), run=True)
    for node in ("n1", "n2"):
        h.cards(node, f"{node}-A:100000", f"{node}-B:100000")
    return h


def _run(h: VgpuHarness, sessions: int, sizes: int) -> None:
    """In every session three pods come, each of one of a number of sizes, and the oldest pods go: all that come fit."""
    source, alive = random.Random(1), deque[str]()
    for number in range(sessions):
        while len(alive) > 9:
            h.delete_pod(alive[0])
            h.delete_group(alive.popleft())
        for index in range(3):
            alive.append(f"p{number}-{index}")
            h.group(alive[-1])
            h.share(alive[-1], 20000 + source.randrange(sizes), group=alive[-1])
        assert h.step().report.errors == []
        assert alive[-1] in h.binds


def test_pods_are_placed_across_a_renumbering_of_the_states() -> None:
    h, renumbered = _harness(), _harness()
    renumbered.plugin("deviceshare").rows.most_empty = 0

    for each in (h, renumbered):
        _run(each, sessions=30, sizes=8)

    assert renumbered.plugin("deviceshare").rows.states.first > 0
    assert renumbered.binds == h.binds
    assert renumbered.bind_annotations == h.bind_annotations


def test_the_memory_does_not_grow_with_the_number_of_different_pods() -> None:
    h = _harness()
    plugin = h.plugin("deviceshare")
    plugin.cache.least, plugin.rows.most_empty = 200, 50

    _run(h, sessions=100, sizes=5000)

    assert len(h.binds) == 300
    assert len(plugin.cache) < 400
    assert len(plugin.rows.states) < 100
    assert len(plugin._cards) < 100


@pytest.mark.parametrize(("policy", "node"), [("spread", "n2"), ("binpack", "n1")])
def test_a_node_is_scored_without_the_pods_whose_leave_makes_it_fit(policy: str, node: str) -> None:
    h = VgpuHarness(conf(actions="enqueue, preempt", SchedulePolicy=policy, ScheduleWeight=10))
    h.do("cards n1 A:10000; cards n2 B:10000; group low Running; group urgent; share urgent/urgent 5000")
    for name, card, memory, place in ("staying", "A", 2000, "n1"), ("leaving", "B", 9000, "n2"):
        notes = {keys.VGPU_IDS: f"{card},NVIDIA,{memory},0:"}
        h.pod(name, group="low", limits={NUMBER: 1, MEMORY: memory}, node=place, annotations=notes)
    h.terminate("leaving")
    session = h.session()
    queue, task = session.queues["q"], h.task("urgent")

    search = VictimSearch(session, WithinQueue("preempt"), session.engine.signature(queue, task), queue, task)

    assert session.nodes.nodes[search.free_row()].name == node
