"""Evictions that a reprieve undoes: the pods that the other evictions name, and the nodes to which pods move."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import pytest

from capcard_sched.model.annotations import CARD_NAME
from capcard_sched.model.intents import Evict
from capcard_sched.testing import Harness

_CONF: Final = """
actions: "allocate, preempt"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: predicates}]
"""
#: Job to its priority, and the nodes and cpus of its pods.
_Victims: TypeAlias = dict[str, tuple[int, list[str], list[int]]]


def _moved() -> Harness:
    """`g-1` moves: `x` stays, so that `g-0` takes what the gang `a` frees on n1, and `g-1` what `c` leaves on n2."""
    h = Harness(_CONF)
    h.queue("q")
    for name, amount in (("n1", "3"), ("n2", "5"), ("n3", "3")):
        h.node(name, cpu=amount)
    victims: _Victims = {
        "x": (0, ["n1"], [1]),
        "a": (1, ["n1", "n3"], [2, 3]),
        "c": (2, ["n2"], [5]),
    }
    for job, (priority, nodes, cpus) in victims.items():
        h.priority_class(f"p{priority}", priority)
        h.group(job, queue="q", phase="Running", min_member=len(nodes), priority_class=f"p{priority}")
        for index, (node, cpu) in enumerate(zip(nodes, cpus, strict=True)):
            h.pod(f"{job}-{index}", group=job, requests={"cpu": cpu}, node=node, phase="Running", priority=priority)
    h.priority_class("urgent", 1000)
    h.group("g", queue="q", min_member=4, priority_class="urgent")
    for index, cpu in enumerate((1, 2, 3, 3)):
        h.pod(f"g-{index}", group="g", requests={"cpu": cpu}, priority=1000)
    return h


def test_evictions_name_the_pods_that_get_what_they_free() -> None:
    h = _moved()
    result = h.step()
    evicted = {one.name: one for one in result.intents if isinstance(one, Evict)}
    assert sorted(evicted) == ["a-0", "a-1", "c-0"]
    assert {name: node for name, (_, node) in h.reasons.items()} == {"g-0": "n1", "g-1": "n2", "g-2": "n3", "g-3": "n2"}
    for name, by, node in (("a-0", "g-0", "n1"), ("a-1", "g-0", "n1"), ("c-0", "g-3", "n2")):
        assert evicted[name].by == f"default/{by}"
        assert evicted[name].message.endswith(f" on node {node} for default/{by} of queue q")
    texts = [one.message for one in h.events if one.reason == "Preempting"]
    assert "2 pods of 1 jobs evicted on node n1: default/a; waiting for cpu: 1" in texts
    assert "3 pods of 2 jobs evicted on node n1, n2: default/a, default/c; waiting for cpu: 4" in texts


def test_pods_of_a_subgroup_move_within_its_own_hyper_node() -> None:
    """`g-2` moves to what `y` leaves on n4: the pods that were placed first are confined to other nodes."""
    h = Harness(_CONF)
    h.queue("q")
    for name, amount in (("n1", "2"), ("n2", "2"), ("n3", "2"), ("n4", "4")):
        h.node(name, cpu=amount)
    h.hyper_node("s1", 1, nodes=["n1", "n2"])
    h.hyper_node("s2", 1, nodes=["n3", "n4"])
    for job, priority, node, cpu in (("x", 0, "n3", 2), ("y", 1, "n4", 4)):
        h.priority_class(f"p{priority}", priority)
        h.group(job, queue="q", phase="Running", priority_class=f"p{priority}")
        h.pod(job, group=job, requests={"cpu": cpu}, node=node, phase="Running", priority=priority)
    h.priority_class("urgent", 1000)
    topology = {"mode": "hard", "highestTierAllowed": 1}
    policy = {"name": "s", "subGroupSize": 2, "matchLabelKeys": ["part"], "networkTopology": topology}
    h.group("g", queue="q", min_member=4, priority_class="urgent", policies=[policy])
    for index in range(4):
        h.pod(f"g-{index}", group="g", requests={"cpu": 2}, priority=1000, labels={"part": str(index // 2)})
    result = h.step()
    assert [one.name for one in result.intents if isinstance(one, Evict)] == ["y"]
    assert {name: node for name, (_, node) in h.reasons.items()} == {"g-0": "n1", "g-1": "n2", "g-2": "n4", "g-3": "n4"}


_APART: Final[dict[str, Any]] = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
        ]
    }
}


@pytest.mark.parametrize(("affinity", "evicted"), [(None, ["y-0", "y-1"]), (_APART, ["x", "y-0", "y-1"])])
def test_a_pod_stays_evicted_that_keeps_its_zone_from_a_pod_on_another_node(
    affinity: dict[str, Any] | None, evicted: list[str]
) -> None:
    """`g-0` moves to what `y` leaves on n3; `g-1` stays on n2, in the zone of `x`."""
    h = Harness(_CONF)
    h.queue("q")
    for name, zone in (("n1", "a"), ("n2", "a"), ("n3", "b")):
        h.node(name, cpu="2", labels={"zone": zone})
    for job, nodes, own in (("x", ["n1"], affinity), ("y", ["n2", "n3"], None)):
        h.priority_class(f"of-{job}", len(nodes))
        h.group(job, queue="q", phase="Running", min_member=len(nodes), priority_class=f"of-{job}")
        for index, node in enumerate(nodes):
            name = job if len(nodes) == 1 else f"{job}-{index}"
            h.pod(name, group=job, requests={"cpu": 2}, node=node, phase="Running", priority=len(nodes), affinity=own)
    h.priority_class("urgent", 1000)
    h.group("g", queue="q", min_member=2, priority_class="urgent")
    for index in range(2):
        h.pod(f"g-{index}", group="g", requests={"cpu": 2}, priority=1000, labels={"app": "web"})
    result = h.step()
    assert sorted(one.name for one in result.intents if isinstance(one, Evict)) == evicted


def test_the_quota_of_the_queue_limits_the_pods_that_stay() -> None:
    """`g-0` moves to what `y` leaves on n2: one pod of `x` uses the rest of the quota, though both fit n1."""
    conf = _CONF.replace("{name: predicates}", "{name: predicates}, {name: capacity-card}")
    h, card = Harness(conf), {CARD_NAME: "A"}
    h.queue("q", cards={"A": 5})
    h.gpu_node("n1", "A", 2, cpu="2")
    h.gpu_node("n2", "A", 8, cpu="6")
    for job, priority, node, cpu, cards in (("x1", 1, "n1", 1, 1), ("x2", 1, "n1", 1, 1), ("y", 2, "n2", 6, 2)):
        h.priority_class(f"p{priority}", priority)
        h.group(job, queue="q", phase="Running", priority_class=f"p{priority}")
        requests = {"cpu": cpu, "nvidia.com/gpu": cards}
        h.pod(job, group=job, annotations=card, requests=requests, node=node, phase="Running", priority=priority)
    h.priority_class("urgent", 1000)
    h.group("g", queue="q", min_member=2, priority_class="urgent")
    for index in range(2):
        h.pod(f"g-{index}", group="g", annotations=card, requests={"cpu": 2, "nvidia.com/gpu": 2}, priority=1000)
    result = h.step()
    evicted = {one.name for one in result.intents if isinstance(one, Evict)}
    assert "y" in evicted
    assert len(evicted & {"x1", "x2"}) == 1
    assert {name: node for name, (_, node) in h.reasons.items()} == {"g-0": "n2", "g-1": "n2"}
