"""Gangs in hard mode over random trees of HyperNodes: never split, never pending while a HyperNode fits."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.placement.hypernode_bounds import anchor_of
from capcard_sched.framework.session import hypernode_search
from capcard_sched.model.annotations import JOB_ALLOCATED_HYPERNODE
from capcard_sched.model.hyper_nodes import HyperNodeTree
from capcard_sched.model.intents import AnnotatePodGroup
from capcard_sched.testing import Harness

CONF = """
actions: "allocate, backfill, preempt, reclaim"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}]
- plugins: [{name: predicates}, {name: proportion}, {name: nodeorder}%s]
"""
PLUGIN = ", {name: network-topology-aware}"


class Gang(NamedTuple):
    """One PodGroup and its pods."""

    hard: bool
    highest: int
    pods: int
    minimum: int
    cpu: int
    best_effort: int
    queue: str
    #: Pods of it that end before the next gang comes.
    ending: int


class World(NamedTuple):
    """Nodes by leaf (their cpus), and how leaves and what is above them are grouped."""

    leaves: list[list[int]]
    outside: list[int]
    spines: list[int]
    cores: list[int]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A tree of up to three tiers; a HyperNode without one above it is a root."""
    leaves = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=5))
    spines = [draw(st.integers(-1, 1)) for _ in leaves]
    return World(
        leaves, draw(st.lists(st.integers(1, 4), max_size=2)), spines, [draw(st.integers(-1, 0)) for _ in "ab"]
    )


gangs = st.builds(
    Gang,
    hard=st.sampled_from([True, True, False]),
    highest=st.integers(0, 4),
    pods=st.integers(1, 7),
    minimum=st.integers(1, 7),
    cpu=st.integers(1, 2),
    best_effort=st.sampled_from([0, 0, 1]),
    queue=st.sampled_from(["a", "b"]),
    ending=st.integers(0, 3),
)


def build(world: World, *, plugin: bool) -> Harness:
    h = Harness(CONF % (PLUGIN if plugin else ""), run=True)
    h.queue("a", reclaimable=True)
    h.queue("b", weight=2)
    for number, cpus in enumerate(world.leaves):
        names = [f"n{number}-{index}" for index in range(len(cpus))]
        for name, cpu in zip(names, cpus, strict=True):
            h.node(name, cpu=str(cpu))
        h.hyper_node(f"leaf{number}", 1, nodes=names)
    for index, cpu in enumerate(world.outside):
        h.node(f"x-{index}", cpu=str(cpu))
    for spine in (0, 1):
        under = [f"leaf{number}" for number, above in enumerate(world.spines) if above == spine]
        h.hyper_node(f"spine{spine}", 2, hyper_nodes=under)
    h.hyper_node("core", 3, hyper_nodes=[f"spine{spine}" for spine, above in enumerate(world.cores) if above == 0])
    return h


def assert_no_pod_is_too_far(h: Harness) -> None:
    tree = h.state.tree
    for job in h.state.jobs.values():
        if job.topology is not None and job.topology.hard:
            anchor = anchor_of(tree, job)
            assert anchor is None or (anchor >= 0 and tree.tiers[anchor] <= job.topology.highest), job


def tier_of(tree: HyperNodeTree, name: str) -> int:
    return int(tree.tiers[tree.numbers[name]])


def room(h: Harness, cpu: int) -> dict[str, int]:
    """Number of pods with these cpus that fit, by HyperNode."""
    tree, table = h.state.tree, h.state.nodes
    column = h.state.columns.column("cpu")
    idle = (table.allocatable - table.used)[:, column] // (1000 * cpu)
    return {name: int(idle[tree.rows_of(number)].clip(0).sum()) for number, name in enumerate(tree.names)}


def utilization(h: Harness, cpu: int) -> dict[str, Fraction]:
    """The part of the cpus that is used once further ones are, by HyperNode with nodes."""
    tree, table = h.state.tree, h.state.nodes
    column = h.state.columns.column("cpu")
    found = {}
    for number, name in enumerate(tree.names):
        rows = tree.rows_of(number)
        used, total = int(table.used[rows, column].sum()), int(table.allocatable[rows, column].sum())
        if total:
            found[name] = Fraction(used + 1000 * cpu, total)
    return found


@given(world=worlds(), arrivals=st.lists(gangs, min_size=1, max_size=5), plugin=st.booleans(), data=st.data())
def test_a_gang_in_hard_mode_never_spans_beyond_the_tier_it_may(
    world: World, arrivals: list[Gang], plugin: bool, data: st.DataObject
) -> None:
    h = build(world, plugin=plugin)
    h.step()
    notes: dict[str, str | None] = {}
    for number, gang in enumerate(arrivals):
        mode = "hard" if gang.hard else "soft"
        h.group(
            f"g{number}", queue=gang.queue, min_member=min(gang.minimum, gang.pods),
            topology={"mode": mode, "highestTierAllowed": gang.highest},
        )  # fmt: skip
        for index in range(gang.pods):
            h.pod(f"p{number}-{index}", group=f"g{number}", requests={"cpu": str(gang.cpu)})
        for index in range(gang.best_effort):
            h.pod(f"e{number}-{index}", group=f"g{number}", requests={})
        for _ in range(3):
            result = h.step()
            assert not result.report.errors
            assert_no_pod_is_too_far(h)
            for intent in result.intents:
                if isinstance(intent, AnnotatePodGroup):
                    notes[intent.name] = intent.annotations[JOB_ALLOCATED_HYPERNODE]
        placed = [task.name for task in h.job(f"g{number}").tasks.values() if task.node is not None]
        for name in placed[: gang.ending]:
            h.delete_pod(name)
        if world.leaves and data.draw(st.integers(0, 4)) == 0:
            h.delete_node("n0-0")
    tree = h.state.tree
    for name, noted in notes.items():
        anchor = anchor_of(tree, h.job(name))
        if anchor is not None:
            assert noted == (tree.names[anchor] if anchor >= 0 else None)


@given(world=worlds(), arrivals=st.lists(gangs, min_size=1, max_size=4), plugin=st.booleans())
def test_a_gang_in_hard_mode_gets_the_fullest_domain_of_the_lowest_tier_that_fits_and_waits_only_without_one(
    world: World, arrivals: list[Gang], plugin: bool
) -> None:
    h = build(world, plugin=plugin)
    plain = CONF.replace(", preempt, reclaim", "").replace(" {name: proportion},", "")
    h.reconfigure(plain % (PLUGIN if plugin else ""))
    h.step()
    for number, gang in enumerate(arrivals):
        free, tree = room(h, gang.cpu), h.state.tree
        full = utilization(h, gang.cpu * gang.pods)
        h.group(
            f"g{number}", queue="a", min_member=gang.pods,
            topology={"mode": "hard", "highestTierAllowed": gang.highest},
        )  # fmt: skip
        for index in range(gang.pods):
            h.pod(f"p{number}-{index}", group=f"g{number}", requests={"cpu": str(gang.cpu)})
        h.step()
        fitting = [int(tree.tiers[tree.numbers[name]]) for name, pods in free.items() if pods >= gang.pods]
        job = h.job(f"g{number}")
        anchor = anchor_of(tree, job)
        if min(fitting, default=9) <= gang.highest:
            assert anchor is not None
            assert tree.tiers[anchor] <= min(fitting)
            assert job.ready_tasks == gang.pods
            # Node scores do not count: nodeorder alone would take the emptiest.
            alike = [name for name, pods in free.items() if pods >= gang.pods and tier_of(tree, name) == min(fitting)]
            if tree.tiers[anchor] == min(fitting):
                assert full[tree.names[anchor]] == max(full[name] for name in alike)
        else:
            assert anchor is None
            assert "HyperNode" in h.pod_message(f"p{number}-0")


@given(world=worlds(), arrivals=st.lists(gangs, min_size=1, max_size=4), plugin=st.booleans())
def test_trying_one_of_several_equal_hypernodes_changes_no_result(
    world: World, arrivals: list[Gang], plugin: bool
) -> None:
    found = []
    for many in (1, 1 << 30):
        h = build(world, plugin=plugin)
        with patch.object(hypernode_search, "_MANY", many):
            for number, gang in enumerate(arrivals):
                h.group(
                    f"g{number}", queue=gang.queue, min_member=min(gang.minimum, gang.pods),
                    topology={"mode": "hard", "highestTierAllowed": gang.highest},
                )  # fmt: skip
                for index in range(gang.pods):
                    h.pod(f"p{number}-{index}", group=f"g{number}", requests={"cpu": str(gang.cpu)})
            h.step()
        texts = {name: h.pod_message(name) for name in (task.name for task in h.state.tasks.values())}
        found.append((h.binds, texts))
    assert found[0] == found[1]
