"""Quota of a releasing pod is free when the pod is gone, not when its eviction or deletion is decided."""

from __future__ import annotations

import pytest

from capcard_sched.model import deltas
from capcard_sched.testing import Harness
from tests.evictions import evicted

GPU = "nvidia.com/gpu"
CONF = """
actions: "enqueue, allocate, preempt, backfill"
tiers:
- plugins:
  - name: priority
  - {name: gang, enablePreemptable: false}
- plugins:
  - name: predicates
  - {name: PLUGIN, enableHierarchy: TREE}
  - name: nodeorder
"""
PLUGINS = pytest.mark.parametrize(
    ("plugin", "tree"), [("capacity-card", False), ("capacity", False), ("capacity", True), ("proportion", False)]
)


def world(plugin: str, *, tree: bool) -> Harness:
    """16 cards on two nodes; a queue of 8 holds 8 on n1."""
    h = Harness(CONF.replace("PLUGIN", plugin).replace("TREE", str(tree).lower()), run=True)
    h.priority_class("low", 10)
    h.priority_class("high", 20)
    for name in ("n1", "n2"):
        h.gpu_node(name, card="H200")
    h.queue("root")
    capability = None if plugin == "capacity-card" else {GPU: 8, "cpu": 1000, "memory": "1Ti"}
    h.queue("q", cards={"H200": 8}, capability=capability)
    for i in range(8):
        h.group(f"low-{i}", phase="Running", priority_class="low")
        h.pod(f"low-{i}", group=f"low-{i}", card="H200", cards=1, node="n1", priority=10)
    h.step()
    return h


def add(h: Harness, name: str, priority: str = "low") -> None:
    h.group(name, min_member=4, priority_class=priority)
    for i in range(4):
        h.pod(f"{name}-p-{i}", group=name, card="H200", cards=1, priority=20 if priority == "high" else 10)


@PLUGINS
def test_terminating_pods_hold_their_quota_until_they_are_gone(plugin: str, tree: bool) -> None:
    h = world(plugin, tree=tree)
    add(h, "more")
    for i in range(4):
        h.terminate(f"low-{i}")
        h.delete_group(f"low-{i}")
    h.settle()
    assert h.binds == {}
    for i in range(3):
        h.delete_pod(f"low-{i}")
    h.settle()
    assert h.binds == {}
    h.delete_pod("low-3")
    h.settle()
    assert sorted(h.binds) == [f"more-p-{i}" for i in range(4)]


@PLUGINS
def test_a_nominated_gang_binds_when_its_victims_are_gone(plugin: str, tree: bool) -> None:
    h = world(plugin, tree=tree)
    add(h, "hi", "high")
    add(h, "other")
    victims = evicted(h.step())
    assert len(victims) == 4
    for _ in range(3):
        h.node("wake")
        h.step()
    assert h.binds == {}
    for name in victims:
        h.delete_pod(name)
    h.settle()
    assert sorted(h.binds) == [f"hi-p-{i}" for i in range(4)]


@PLUGINS
def test_a_failed_eviction_returns_the_nomination(plugin: str, tree: bool) -> None:
    h = world(plugin, tree=tree)
    add(h, "hi", "high")
    victims = evicted(h.step())
    for name in victims[:3]:
        h.delete_pod(name)
    h.apply(deltas.EvictFailed("default", victims[3], h.task(victims[3]).uid, "a disruption budget"))
    h.pod("later", group="hi", card="H200", cards=1, priority=20)
    h.delete_pod("later")
    result = h.step()
    assert not result.report.errors
    retried = evicted(result)
    assert victims[3] not in retried  # the refused one is no candidate for a while
    assert len(retried) == 1
    assert h.binds == {}
    h.delete_pod(retried[0])
    h.settle()
    assert sorted(h.binds) == [f"hi-p-{i}" for i in range(4)]
    held = sum(task.node is not None for task in h.state.tasks.values())
    assert held == 8


@PLUGINS
def test_quota_freed_by_an_eviction_of_this_session_is_not_given_away(plugin: str, tree: bool) -> None:
    h = world(plugin, tree=tree)
    h.group("hi", priority_class="high")
    h.pod("hi-0", group="hi", card="H200", cards=1, priority=20)
    for i in range(8):
        h.group(f"bare-{i}", priority_class="low")
        h.pod(f"bare-{i}", group=f"bare-{i}", card="H200", cards=1, priority=10)
    assert len(evicted(h.step())) == 1
    h.settle()
    assert h.binds == {}
