"""Gangs of equal pods that no set of nodes holds: the limit agrees with a start in the cluster without other jobs."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.status import PodGroupPhase
from tests.vectors.notation import VectorHarness

CONF = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: overcommit, arguments: {overcommit-factor: 1000}}, {name: nodeorder}]
"""


class Machine(NamedTuple):
    """A node: `zone` and `disk` are labels, none for 0; `leaf` is its HyperNode, 0 for none."""

    cpu: int
    zone: int
    disk: int
    leaf: int
    is_cordoned: bool
    #: Cpu of a pod of another job, with what it has in common with the gang: its port or its label.
    used: int
    has_port: bool
    has_label: bool


class Gang(NamedTuple):
    """A PodGroup of equal pods."""

    pods: int
    minimum: int
    cpu: int
    disk: int
    has_port: bool
    apart: str
    #: The highest tier of a hard network topology; 0 for none.
    tier: int


machines = st.builds(
    Machine,
    cpu=st.integers(1, 4),
    zone=st.integers(0, 2),
    disk=st.integers(0, 2),
    leaf=st.integers(0, 3),
    is_cordoned=st.booleans(),
    used=st.integers(0, 2),
    has_port=st.booleans(),
    has_label=st.booleans(),
)
gangs = st.builds(
    Gang,
    pods=st.integers(1, 5),
    minimum=st.integers(1, 5),
    cpu=st.integers(1, 3),
    disk=st.integers(0, 2),
    has_port=st.booleans(),
    apart=st.sampled_from(["", "", "zone", "name"]),
    tier=st.integers(0, 2),
)


def cluster(nodes: list[Machine], gang: Gang, *, is_free: bool) -> VectorHarness:
    """A harness after its sessions. `is_free`: without the other jobs and cordons."""
    h = VectorHarness(CONF)
    h.do("queue q")
    for number, node in enumerate(nodes):
        labels = [f"name:n{number}", *([f"zone:z{node.zone}"] if node.zone else [])]
        labels += [f"disk:d{node.disk}"] if node.disk else []
        cordon = " unschedulable=true" if node.is_cordoned and not is_free else ""
        h.do(f"node n{number} cpu={node.cpu} labels={','.join(labels)}{cordon}")
        if node.used and not is_free:
            port, label = " port=80" * node.has_port, " labels=app:g" * node.has_label
            h.do(f"pod -/other{number} @n{number} Running cpu={node.used}{port}{label}")
    leaves = {leaf: [f"n{at}" for at, one in enumerate(nodes) if one.leaf == leaf] for leaf in (1, 2, 3)}
    for leaf, members in leaves.items():
        h.do(f"hyper_node leaf{leaf} 1 nodes=[{', '.join(members)}]")
    h.do("hyper_node spine 2 hyper_nodes=[leaf1, leaf2]")
    topology = f" topology=mode:hard,highestTierAllowed:{gang.tier}" if gang.tier else ""
    term = f"{{required: [{{per: {gang.apart}, of: {{app: g}}}}]}}"
    rules = f" nodeSelector={{disk: d{gang.disk}}}" if gang.disk else ""
    rules += " port=80" if gang.has_port else f" cpu={gang.cpu}"
    rules += f" affinity={{podAntiAffinity: {term}}}" if gang.apart else ""
    h.do(f"group g Inqueue min={min(gang.minimum, gang.pods)}{topology}")
    h.do(f"pod p0..{gang.pods - 1} labels=app:g{rules}")
    h.settle()
    return h


@given(st.lists(machines, min_size=1, max_size=5), gangs)
def test_a_gang_has_a_limit_of_nodes_only_if_it_does_not_start_on_empty_nodes(nodes: list[Machine], gang: Gang) -> None:
    starts = cluster(nodes, gang, is_free=True).job("g").phase is PodGroupPhase.RUNNING
    job = cluster(nodes, gang, is_free=False).job("g")
    assert job.node_limit is None or not starts, job.node_limit
    # A port and an anti-affinity together may leave fewer places than the scarcer of them.
    if not (gang.has_port and gang.apart) and job.phase is not PodGroupPhase.RUNNING:
        assert starts is (job.node_limit is None)
