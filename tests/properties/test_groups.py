"""Jobs with subgroups over small random clusters, compared with an enumeration of all placements.

The enumeration shares no code with the product: it knows free cpus, the nodes that a pod may use, and the tree.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness
from tests.accounting import rebuilt, recorded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}]
- plugins: [{name: predicates}, {name: nodeorder}, {name: network-topology-aware}]
"""


class Policy(NamedTuple):
    """Pods of one role, by their value of label `id`."""

    size: int
    minimum: int
    #: The highest tier of a subgroup; 0 for none.
    tier: int


class Member(NamedTuple):
    """One pod; `policy` -1 for the rest. `at`: index of its node, -1 for a pending one."""

    policy: int
    id: int
    cpu: int
    at: int
    #: Indices of the nodes that it may use.
    nodes: frozenset[int]


class Scene(NamedTuple):
    """A cluster of racks in blocks, and one job."""

    cpus: tuple[int, ...]
    #: Rack of each node, block of each rack.
    racks: tuple[int, ...]
    blocks: tuple[int, ...]
    policies: tuple[Policy, ...]
    minimum: int
    tier: int
    members: tuple[Member, ...]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """At most 4 nodes and 6 pods, so that all placements can be enumerated."""
    nodes = draw(st.integers(1, 4))
    racks = tuple(draw(st.lists(st.integers(0, 2), min_size=nodes, max_size=nodes)))
    blocks = tuple(draw(st.lists(st.integers(0, 1), min_size=3, max_size=3)))
    tiers = st.sampled_from([0, 0, 1, 2])
    policies = tuple(
        draw(st.lists(st.builds(Policy, st.integers(1, 3), st.integers(0, 2), tiers), min_size=1, max_size=2))
    )
    every = frozenset(range(nodes))
    members = draw(
        st.lists(
            st.builds(
                Member,
                st.integers(-1, len(policies) - 1),
                st.integers(0, 1),
                st.sampled_from([1, 1, 2]),
                st.just(-1),
                st.one_of(st.just(every), st.sets(st.integers(0, nodes - 1), min_size=1).map(frozenset)),
            ),
            min_size=1,
            max_size=6,
        )
    )
    cpus = tuple(draw(st.lists(st.integers(0, 4), min_size=nodes, max_size=nodes)))
    return Scene(cpus, racks, blocks, policies, draw(st.integers(1, 4)), draw(tiers), tuple(members))


def domain(scene: Scene, node: int, tier: int) -> int:
    return scene.racks[node] if tier == 1 else scene.blocks[scene.racks[node]]


def broken_rules(scene: Scene, at: tuple[int, ...]) -> list[str]:
    """The rules that a placement breaks; `at`: node of each pod, -1 for none."""
    found = []
    left = list(scene.cpus)
    for member, node in zip(scene.members, at, strict=True):
        if node >= 0:
            left[node] -= member.cpu
            if node not in member.nodes:
                found.append("node")
    if min(left) < 0:
        found.append("capacity")
    placed = [number for number, node in enumerate(at) if node >= 0]
    if not placed:
        return found
    if len(placed) < scene.minimum:
        found.append("minMember")
    if scene.tier and len({domain(scene, at[number], scene.tier) for number in placed}) > 1:
        found.append("domain of the job")
    for index, policy in enumerate(scene.policies):
        groups: dict[int, list[int]] = {}
        for number in placed:
            if scene.members[number].policy == index:
                groups.setdefault(scene.members[number].id, []).append(at[number])
        if any(len(nodes) < policy.size for nodes in groups.values()):
            found.append("atomic")
        if len(groups) < policy.minimum:
            found.append("minSubGroups")
        if policy.tier and any(
            len({domain(scene, node, policy.tier) for node in nodes}) > 1 for nodes in groups.values()
        ):
            found.append("domain of a subgroup")
    return found


def can_start(scene: Scene) -> bool:
    choices = [[-1, *sorted(member.nodes)] for member in scene.members]
    return any(max(at) >= 0 and not broken_rules(scene, at) for at in product(*choices))


def build(scene: Scene) -> Harness:
    h = Harness(CONF, run=True)
    h.queue("q")
    for node, cpu in enumerate(scene.cpus):
        h.node(f"n{node}", cpu=str(cpu), labels={"name": f"n{node}"})
    for rack in sorted(set(scene.racks)):
        h.hyper_node(f"r{rack}", 1, nodes=[f"n{node}" for node, own in enumerate(scene.racks) if own == rack])
    for block in sorted({scene.blocks[rack] for rack in scene.racks}):
        under = sorted({rack for rack in scene.racks if scene.blocks[rack] == block})
        h.hyper_node(f"b{block}", 2, hyper_nodes=[f"r{rack}" for rack in under])
    topology = {"mode": "hard", "highestTierAllowed": scene.tier} if scene.tier else None
    h.group(
        "g",
        min_member=scene.minimum,
        policies=[policy_spec(*entry) for entry in enumerate(scene.policies)],
        topology=topology,
    )
    for number, member in enumerate(scene.members):
        terms = [{"key": "name", "operator": "In", "values": [f"n{node}" for node in sorted(member.nodes)]}]
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        h.pod(
            f"p-{number}",
            labels={"role": f"r{member.policy}", "id": str(member.id)},
            requests={"cpu": str(member.cpu)},
            affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        )
    return h


def policy_spec(index: int, policy: Policy) -> dict[str, object]:
    found: dict[str, object] = {
        "name": f"policy{index}",
        "labelSelector": {"matchLabels": {"role": f"r{index}"}},
        "matchLabelKeys": ["id"],
        "subGroupSize": policy.size,
        "minSubGroups": policy.minimum,
    }
    if policy.tier:
        found["networkTopology"] = {"mode": "hard", "highestTierAllowed": policy.tier}
    return found


def placement(h: Harness, scene: Scene) -> tuple[int, ...]:
    tasks = {task.name: task for task in h.job("g").tasks.values()}
    nodes = [tasks[f"p-{number}"].node for number in range(len(scene.members))]
    return tuple(-1 if node is None else int(node.name[1:]) for node in nodes)


@settings(max_examples=2 * settings().max_examples)
@given(scene=scenes())
def test_a_job_with_subgroups_starts_if_and_only_if_a_legal_placement_exists(scene: Scene) -> None:
    h = build(scene)
    for _ in range(8):
        assert not h.step().report.errors
        at = placement(h, scene)
        assert not broken_rules(scene, at), (at, broken_rules(scene, at))
    assert (max(at) >= 0) == can_start(scene)


COMPETING = """
actions: "enqueue, allocate, backfill, preempt"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: %s}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""


class Rivals(NamedTuple):
    """Two jobs of other priorities on the same nodes."""

    cpus: tuple[int, ...]
    #: Per job: policies, minMember, and its pods.
    jobs: tuple[tuple[tuple[Policy, ...], int, tuple[Member, ...]], ...]
    votes: bool


@st.composite
def rivals(draw: st.DrawFn) -> Rivals:
    """Jobs without topology; about a half of them fits."""
    cpus = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    jobs = []
    for _ in range(2):
        policies = tuple(
            draw(st.lists(st.builds(Policy, st.integers(1, 3), st.integers(0, 2), st.just(0)), min_size=1, max_size=2))
        )
        member = st.builds(
            Member, st.integers(-1, len(policies) - 1), st.integers(0, 2), st.sampled_from([0, 1, 1, 2]), st.just(-1),
            st.just(frozenset[int]()),
        )  # fmt: skip
        jobs.append((policies, draw(st.integers(1, 3)), tuple(draw(st.lists(member, min_size=1, max_size=7)))))
    return Rivals(cpus, tuple(jobs), draw(st.booleans()))


def bound_members(h: Harness, number: int, members: tuple[Member, ...]) -> dict[int, Member]:
    """The placed pods of a job that are not ending, by position."""
    tasks = {task.name: task for task in h.job(f"g{number}").tasks.values()}
    found = {}
    for position, member in enumerate(members):
        task = tasks.get(f"p{number}-{position}")
        if task is not None and task.node is not None and task.status is not TaskStatus.RELEASING:
            found[position] = member
    return found


def by_subgroup(members: Iterable[Member]) -> Counter[tuple[int, int]]:
    return Counter((member.policy, member.id) for member in members if member.policy >= 0)


def holds(policies: tuple[Policy, ...], minimum: int, members: Collection[Member]) -> bool:
    """Whether pods meet every minimum of a job."""
    ready = Counter(policy for (policy, _), count in by_subgroup(members).items() if count >= policies[policy].size)
    return len(members) >= minimum and all(ready[index] >= one.minimum for index, one in enumerate(policies))


def add_member(h: Harness, number: int, position: int, member: Member) -> None:
    h.pod(
        f"p{number}-{position}", group=f"g{number}", labels={"role": f"r{member.policy}", "id": str(member.id)},
        requests={"cpu": str(member.cpu)} if member.cpu else {}, priority=number,
    )  # fmt: skip


@given(scene=rivals(), data=st.data())
def test_no_session_tears_a_subgroup_or_starts_a_job_below_a_minimum(scene: Rivals, data: st.DataObject) -> None:
    h = Harness(COMPETING % str(scene.votes).lower(), run=True)
    h.queue("q")
    for node, cpu in enumerate(scene.cpus):
        h.node(f"n{node}", cpu=str(cpu))
    for number, (policies, minimum, members) in enumerate(scene.jobs):
        h.priority_class(f"c{number}", number)
        h.group(
            f"g{number}", min_member=minimum, priority_class=f"c{number}",
            policies=[policy_spec(*entry) for entry in enumerate(policies)],
        )  # fmt: skip
        for position, member in enumerate(members):
            add_member(h, number, position, member)
    before: list[dict[int, Member]] = [{}, {}]
    for _ in range(8):
        assert not h.step().report.errors
        assert recorded(h.state) == rebuilt(h.state)
        for number, (policies, minimum, members) in enumerate(scene.jobs):
            after = bound_members(h, number, members)
            fresh = after.keys() - before[number].keys()
            if not fresh:
                continue
            # Pending pods that request nothing count as placed: backfill follows.
            counted = {**after, **{at: one for at, one in enumerate(members) if not one.cpu}}
            assert holds(policies, minimum, counted.values()), (number, after)
            had, has = by_subgroup(before[number].values()), by_subgroup(counted.values())
            for position in fresh:
                group = members[position].policy, members[position].id
                if group[0] >= 0 and not had[group]:
                    assert has[group] >= policies[group[0]].size, (group, after)
        before = [{}, {}]
        for number, job in enumerate(scene.jobs):
            placed = bound_members(h, number, job[2])
            leaving = {task.name for task in h.job(f"g{number}").tasks.values() if task.status is TaskStatus.RELEASING}
            for position, member in enumerate(job[2]):
                name = f"p{number}-{position}"
                if name in leaving or (position in placed and data.draw(st.integers(0, 5)) == 0):
                    h.delete_pod(name)
                    add_member(h, number, position, member)
                elif position in placed:
                    before[number][position] = member
