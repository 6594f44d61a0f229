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
    #: Devices of its ResourceSlice, and how many of them a claim of another job has.
    devices: int
    held: int


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
    #: The topology key of a required affinity to its own pods; "" for none.
    together: str = ""
    #: maxSkew of a constraint by zone, 0 for none, and its minDomains, 0 for none.
    skew: int = 0
    domains: int = 0
    #: Devices that a claim of each pod requests.
    devices: int = 0
    #: The zone of a volume that its pods share, 0 for none; whether only one pod may use it.
    volume: int = 0
    is_exclusive: bool = False


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
    devices=st.integers(0, 3),
    held=st.integers(0, 3),
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
    together=st.just(""),
    skew=st.just(0),
    domains=st.just(0),
    devices=st.just(0),
    volume=st.just(0),
    is_exclusive=st.just(value=False),
)
#: With rules that depend on other pods and on objects.
further = st.builds(
    Gang,
    pods=st.integers(1, 4),
    minimum=st.integers(1, 4),
    cpu=st.integers(1, 2),
    disk=st.sampled_from([0, 0, 1]),
    has_port=st.just(False),
    apart=st.sampled_from(["", "", "name"]),
    tier=st.sampled_from([0, 0, 1]),
    together=st.sampled_from(["", "", "zone", "name"]),
    skew=st.integers(0, 2),
    domains=st.integers(0, 3),
    devices=st.integers(0, 2),
    volume=st.sampled_from([0, 0, 1, 2, 3]),
    is_exclusive=st.booleans(),
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
    rules = f" nodeSelector={{disk: d{gang.disk}}}" if gang.disk else ""
    rules += " port=80" if gang.has_port else f" cpu={gang.cpu}"
    sides = [("podAntiAffinity", gang.apart), ("podAffinity", gang.together)]
    terms = [f"{side}: {{required: [{{per: {key}, of: {{app: g}}}}]}}" for side, key in sides if key]
    rules += f" affinity={{{', '.join(terms)}}}" if terms else ""
    if gang.skew:
        least = f", minDomains: {gang.domains}" if gang.domains else ""
        constraint = f"maxSkew: {gang.skew}{least}, per: zone, whenUnsatisfiable: DoNotSchedule, of: {{app: g}}"
        rules += f" topologySpreadConstraints=[{{{constraint}}}]"
    if gang.volume:
        term = f"{{matchExpressions: [{{key: zone, operator: In, values: [z{gang.volume}]}}]}}"
        h.do(f"volume pv claim=c affinity={{nodeSelectorTerms: [{term}]}}")
        h.do(f"claim c volume=pv modes=[{'ReadWriteOncePod' if gang.is_exclusive else 'ReadWriteMany'}]")
        rules += " claims=c"
    if gang.devices:
        h.do("object gpu kind=DeviceClass spec={}")
        for number, node in enumerate(nodes):
            add_devices(h, f"n{number}", node, is_free=is_free)
        rules += " resourceClaims=[{name: r, resourceClaimTemplateName: t}]"
    h.do(f"group g Inqueue min={min(gang.minimum, gang.pods)}{topology}")
    for number in range(gang.pods):
        h.do(f"pod p{number} labels=app:g{rules}")
        if gang.devices:
            add_claim(h, number, gang.devices)
    h.settle()
    return h


def add_claim(h: VectorHarness, number: int, devices: int) -> None:
    """The claim that its controller generates for a pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": f"p{number}", "uid": f"default-p{number}-uid"}
    meta = {"namespace": "default", "uid": f"r{number}-uid", "ownerReferences": [{**owner, "controller": True}]}
    asks = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": devices}}]}
    h.object(f"r{number}", kind="ResourceClaim", metadata=meta, spec={"devices": asks})
    h.generated(f"p{number}", claim=f"r{number}")


def add_devices(h: VectorHarness, name: str, node: Machine, *, is_free: bool) -> None:
    """The ResourceSlice of a node, and the claim of another job that has some of its devices."""
    if not node.devices:
        return
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"g{number}"} for number in range(node.devices)]
    spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool, "devices": devices}
    h.object(f"s-{name}", kind="ResourceSlice", spec=spec)
    if is_free or not node.held:
        return
    results = [
        {"request": "gpu", "driver": "gpu.example.com", "pool": name, "device": each["name"]}
        for each in devices[: node.held]
    ]
    asks = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": len(results)}}]}
    h.object(
        f"held-{name}",
        kind="ResourceClaim",
        metadata={"namespace": "default", "uid": f"held-{name}-uid"},
        spec={"devices": asks},
        status={"allocation": {"devices": {"results": results}}},
    )


@given(st.lists(machines, min_size=1, max_size=5), gangs)
def test_a_gang_has_a_limit_of_nodes_only_if_it_does_not_start_on_empty_nodes(nodes: list[Machine], gang: Gang) -> None:
    starts = cluster(nodes, gang, is_free=True).job("g").phase is PodGroupPhase.RUNNING
    job = cluster(nodes, gang, is_free=False).job("g")
    assert job.node_limit is None or not starts, job.node_limit
    # A port and an anti-affinity together may leave fewer places than the scarcer of them.
    if not (gang.has_port and gang.apart) and job.phase is not PodGroupPhase.RUNNING:
        assert starts is (job.node_limit is None)


@given(st.lists(machines, min_size=1, max_size=4), further)
def test_no_limit_by_other_rules_refuses_a_gang_that_starts_on_empty_nodes(nodes: list[Machine], gang: Gang) -> None:
    starts = cluster(nodes, gang, is_free=True).job("g").phase is PodGroupPhase.RUNNING
    limit = cluster(nodes, gang, is_free=False).job("g").node_limit
    assert limit is None or not starts, limit
