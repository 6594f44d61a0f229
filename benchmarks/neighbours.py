"""Cost of pods whose node scores depend on more than the amounts of the node.

| Scene | Pods | Scores depend on |
|---|---|---|
| A1 | gangs of 8 with required anti-affinity between members | pods on the node |
| Z1 | gangs of 8, each spread over four zones | pods on other nodes (topology spread, `DoNotSchedule`) |
| N1 | gangs of 8 without constraints | usage of the surrounding HyperNodes (`network-topology-aware`) |
| U1 | the same | measured usage and estimates of new pods (`usage`) |
"""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

from benchmarks.measure import PlacedScene, core_with, run_session, session_medians
from benchmarks.workloads import START, make_nodes, make_queue, timestamp
from capcard_sched.framework.core import Core
from capcard_sched.gc import settle_memory
from capcard_sched.model.deltas import Delta, NodeUsageChanged, ObjectChanged
from capcard_sched.model.hyper_nodes import HyperNodeObject
from capcard_sched.model.objects import PodGroupObject, PodObject
from capcard_sched.model.usage import NodeUsage

#: Name of the scene to the plugin that it is about; the others need no plugin of their own.
NEIGHBOURS: Final = {"A1": "", "Z1": "", "N1": "network-topology-aware", "U1": "usage"}
_CONF: Final = """
actions: allocate
tiers:
  - plugins: [{{name: priority}}, {{name: gang}}, {{name: drf}}]
  - plugins: [{{name: predicates}}, {{name: capacity-card}}, {{name: nodeorder}}, {{name: binpack}}{more}]
"""
_GANG: Final = 8
#: Nodes under one HyperNode of the lowest tier, and HyperNodes under one of the next.
_LEAF, _SPINE = 20, 10


class Placing(PlacedScene, frozen=True, kw_only=True):
    """Figures of one scene at one size."""

    repeats: int


def measure_placing(name: str, size: str, nodes: int, repeats: int) -> Placing:
    """Place four pods for every five nodes, `repeats` times from scratch. Raises RuntimeError when a hook fails."""
    groups = nodes * 4 // 5 // _GANG
    sessions = []
    for _ in range(repeats):
        core = scene_core(name, nodes)
        for delta in coming(name, groups):
            core.apply(delta)
        settle_memory()
        sessions.append(run_session(core))
    return Placing(
        scene=name,
        size=size,
        nodes=nodes,
        pods=groups * _GANG,
        repeats=repeats,
        **session_medians(sessions),
    )


def scene_core(scene: str, nodes: int) -> Core:
    """A core that has run a session over the nodes of a scene."""
    plugin = NEIGHBOURS[scene]
    conf = _CONF.format(more=f", {{name: {plugin}}}" if plugin else "")
    core = core_with(conf, f"scheduler-conf of {scene}")
    core.step(_standing(scene, nodes), START + 100)
    return core


def _standing(scene: str, count: int) -> list[Delta]:
    """Nodes, the queue, and HyperNodes or usage of the scene."""
    nodes = make_nodes(count)
    names = [node.metadata.name for node in nodes]
    facts: list[Delta] = [*map(ObjectChanged, nodes), ObjectChanged(make_queue("q", {}))]
    if scene == "N1":
        leaves = [_hyper_node(f"leaf-{at:05d}", 1, "Node", names[at : at + _LEAF]) for at in range(0, count, _LEAF)]
        below = [leaf.metadata.name for leaf in leaves]
        spines = [
            _hyper_node(f"spine-{at:05d}", 2, "HyperNode", below[at : at + _SPINE])
            for at in range(0, len(below), _SPINE)
        ]
        facts += map(ObjectChanged, [*leaves, *spines])
    if scene == "U1":
        chance = random.Random(count)
        load = {name: NodeUsage(chance.uniform(5, 60), chance.uniform(5, 60)) for name in names}
        facts.append(NodeUsageChanged(load))
    return facts


def _hyper_node(name: str, tier: int, of: str, members: list[str]) -> HyperNodeObject:
    named = [{"type": of, "selector": {"exactMatch": {"name": member}}} for member in members]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"tier": tier, "members": named}}, HyperNodeObject)


def coming(scene: str, groups: int) -> list[Delta]:
    """A number of gangs of a scene, all admitted."""
    facts: list[Delta] = []
    for number in range(groups):
        name = f"job-{number:05d}"
        meta = {"namespace": "default", "creationTimestamp": timestamp(number // 50)}
        group = {
            "metadata": {**meta, "name": name, "uid": f"group-uid-{number}"},
            "spec": {"minMember": _GANG, "queue": "q"},
            "status": {"phase": "Inqueue"},
        }
        facts.append(ObjectChanged(msgspec.convert(group, PodGroupObject)))
        spec = {
            "schedulerName": "capcard-sched",
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "16", "memory": "64Gi"}}}],
            **_wish(scene, name),
        }
        for member in range(_GANG):
            named = {
                "name": f"{name}-{member}",
                "uid": f"pod-uid-{number}-{member}",
                "labels": {"job": name},
                "annotations": {"scheduling.k8s.io/group-name": name},
            }
            pod = {"metadata": {**meta, **named}, "spec": spec, "status": {"phase": "Pending"}}
            facts.append(ObjectChanged(msgspec.convert(pod, PodObject)))
    return facts


def _wish(scene: str, job: str) -> dict[str, Any]:
    """Affinity and spread constraints of the pods of a job."""
    selector = {"matchLabels": {"job": job}}
    if scene == "A1":
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
        return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    if scene == "Z1":
        zones = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        return {"topologySpreadConstraints": [{**zones, "labelSelector": selector}]}
    return {}
