"""Assignment of CPUs and the search for hints."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.numa import (
    BEST_EFFORT,
    RESTRICTED,
    SINGLE_NUMA_NODE,
    CpuPlace,
    CpuTopology,
    format_cpus,
    parse_cpus,
    topology_of,
)
from capcard_sched.plugins.numa_aware.node_cpus import (
    CpuPlan,
    Hint,
    Refused,
    admits,
    assign,
    assign_packed,
    best_hint,
    fewest,
    plan,
)

POLICIES = (BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE)


def machine(sockets: int, nodes: int, cores: int, threads: int) -> CpuTopology:
    """So many NUMA nodes per socket, cores per NUMA node and threads per core; the second threads come last."""
    places, number = {}, 0
    for _thread in range(threads):
        for core in range(sockets * nodes * cores):
            numa = core // cores
            places[number] = CpuPlace(numa, numa // nodes, core)
            number += 1
    return topology_of(places)


#: Two sockets of one NUMA node with 4 cores of 2 threads: 0-3 and 8-11, 4-7 and 12-15.
XEON = machine(2, 1, 4, 2)
#: One socket of two NUMA nodes with 4 cores of one thread.
EPYC = machine(1, 2, 4, 1)


@pytest.mark.parametrize(
    ("topology", "free", "count", "taken"),
    [
        pytest.param(XEON, "0-15", 8, "0-3,8-11", id="a whole socket"),
        pytest.param(XEON, "1-15", 8, "4-7,12-15", id="the socket that is whole"),
        pytest.param(XEON, "0-15", 10, "0-4,8-12", id="a socket, then a core of the other"),
        pytest.param(XEON, "0-15", 2, "0,8", id="a whole core"),
        pytest.param(XEON, "1-15", 4, "1-2,9-10", id="cores of the socket with fewer whole ones"),
        pytest.param(XEON, "0-15", 1, "0", id="a thread"),
        pytest.param(XEON, "0-2,4-15", 1, "11", id="the thread of a core that is partly used"),
        pytest.param(XEON, "0-10,12-15", 3, "0,3,8", id="a core, then the thread that is left alone beside it"),
        pytest.param(XEON, "0,1,4,5,12", 3, "4,12,5", id="a core, then threads of its socket"),
        pytest.param(XEON, "0-3", 4, "0-3", id="threads alone"),
        pytest.param(XEON, "0-3", 0, "", id="nothing"),
        pytest.param(EPYC, "0-7", 8, "0-7", id="all there is"),
        pytest.param(EPYC, "1-7", 3, "1-3", id="cores of one thread"),
    ],
)
def test_cpus_are_taken_packed(topology: CpuTopology, free: str, count: int, taken: str) -> None:
    assert format_cpus(assign_packed(topology, parse_cpus(free), count)) == format_cpus(parse_cpus(taken))


@pytest.mark.parametrize(
    ("free", "count", "nodes", "taken"),
    [
        pytest.param("0-15", 4, 0b10, "4-5,12-13", id="inside the hinted node"),
        pytest.param("0-15", 10, 0b10, "0,4-8,12-15", id="the hinted node first, the rest from outside"),
        pytest.param("0-3,4", 3, 0b11, "0-1,4", id="both"),
        pytest.param("0-3,4", 1, 0b10, "4", id="the last one there"),
    ],
)
def test_cpus_of_hinted_nodes_go_first(free: str, count: int, nodes: int, taken: str) -> None:
    assert format_cpus(assign(XEON, parse_cpus(free), count, nodes)) == format_cpus(parse_cpus(taken))


# --- hints ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "admitted"),
    [
        (None, ()),
        (Hint(0b01, preferred=True), POLICIES),
        (Hint(0b11, preferred=True), (BEST_EFFORT, RESTRICTED)),
        (Hint(0b11, preferred=False), (BEST_EFFORT,)),
    ],
)
def test_policies(hint: Hint | None, admitted: tuple[str, ...]) -> None:
    assert tuple(policy for policy in POLICIES if admits(policy, hint)) == admitted


def brute_force(free: list[int], total: list[int], wanted: int) -> Hint | None:
    """Every mask with enough free CPUs, preferred when of the smallest size whose total is enough; the best of them."""
    masks = [mask for size in range(1, len(free) + 1) for mask in combinations(range(len(free)), size)]
    enough = [len(mask) for mask in masks if sum(total[node] for node in mask) >= wanted]
    hints = [
        (len(mask) != min(enough), len(mask), sum(1 << node for node in mask))
        for mask in masks
        if sum(free[node] for node in mask) >= wanted
    ]
    if not hints:
        return None
    other, _, nodes = min(hints)
    return Hint(nodes, preferred=not other)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7), st.integers(1, 40))
def test_the_search_matches_an_exhaustive_search_of_masks(nodes: list[tuple[int, int]], wanted: int) -> None:
    free = [used for used, _ in nodes]
    total = [used + rest for used, rest in nodes]
    assert best_hint(free, total, wanted) == brute_force(free, total, wanted)


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(1, 40))
def test_fewest(counts: list[int], wanted: int) -> None:
    sizes = [
        size for size in range(1, len(counts) + 1) if any(sum(some) >= wanted for some in combinations(counts, size))
    ]
    assert fewest(counts, wanted) == min(sizes, default=len(counts) + 1)


def test_many_numa_nodes_take_no_time() -> None:
    """Masks are not tried one by one: 64 nodes have too many."""
    assert best_hint([1] * 64, [2] * 64, 32) == Hint(2**32 - 1, preferred=False)


# --- properties -------------------------------------------------------------------------------------------------------

_machines = st.builds(machine, st.integers(1, 3), st.integers(1, 2), st.integers(1, 4), st.integers(1, 2))


@st.composite
def scenes(draw: st.DrawFn) -> tuple[CpuTopology, int, list[int]]:
    """A machine, the CPUs that are free on it, and what containers want."""
    topology = draw(_machines)
    free = draw(st.integers(0, topology.cpus))
    return topology, free, draw(st.lists(st.integers(1, 10), min_size=1, max_size=4))


@given(scenes(), st.integers(0, 63))
def test_assigned_cpus_are_free_and_as_many_as_requested(scene: tuple[CpuTopology, int, list[int]], nodes: int) -> None:
    topology, free, (count, *_) = scene
    hinted = sum(cpus for position, cpus in enumerate(topology.numa_nodes) if nodes >> position & 1) & free
    if count > free.bit_count():
        with pytest.raises(ValueError, match="CPUs of"):
            assign(topology, free, count, nodes)
        return
    got = assign(topology, free, count, nodes)
    assert got & ~free == 0
    assert got.bit_count() == count
    assert (got & hinted).bit_count() == min(count, hinted.bit_count()), "hinted nodes go first"


@given(scenes(), st.sampled_from(POLICIES))
def test_plans_are_disjoint_and_of_the_requested_size(scene: tuple[CpuTopology, int, list[int]], policy: str) -> None:
    topology, free, wanted = scene
    found = plan(topology, free, policy, wanted)
    if isinstance(found, Refused):
        assert policy != BEST_EFFORT or sum(wanted) > free.bit_count(), "best effort admits every container that fits"
        return
    assert [cpus.bit_count() for cpus in found.sets] == wanted
    assert found.cpus & ~free == 0
    assert found.cpus.bit_count() == sum(wanted)
    assert found.span == sum(1 for cpus in topology.numa_nodes if cpus & found.cpus)
    if policy == SINGLE_NUMA_NODE:
        assert all(any(cpus & ~numa == 0 for numa in topology.numa_nodes) for cpus in found.sets)


@given(scenes(), st.sampled_from(POLICIES))
def test_one_container_uses_as_many_nodes_as_its_hint(scene: tuple[CpuTopology, int, list[int]], policy: str) -> None:
    """The condition under which counts alone decide for one container."""
    topology, free, (count, *_) = scene
    found: Any = plan(topology, free, policy, [count])
    if isinstance(found, CpuPlan):
        assert found.span == fewest([(cpus & free).bit_count() for cpus in topology.numa_nodes], count)
