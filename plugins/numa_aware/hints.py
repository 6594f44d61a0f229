"""Topology hints: the NUMA nodes for a container, and whether the kubelet admits it there.

A hint is a set of NUMA nodes with enough free CPUs; it is preferred if no smaller set has enough CPUs in total. CPUs
are the only hint provider, so that merging the hints of a container is choosing one: preferred hints first, then the
fewest nodes, then the lowest. Sets of NUMA nodes are integers, bit i for position i of the topology.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.numa import BEST_EFFORT, SINGLE_NUMA_NODE
from capcard_sched.plugins.numa_aware.cpus import assign

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.model.numa import CpuTopology


class Hint(NamedTuple):
    """A set of NUMA nodes with enough free CPUs."""

    nodes: int
    preferred: bool


class CpuPlan(NamedTuple):
    """The exclusive CPUs of each container of a pod, in order."""

    sets: tuple[int, ...]
    #: Number of NUMA nodes with one of these CPUs.
    span: int

    @property
    def cpus(self) -> int:
        """The union of the sets."""
        found = 0
        for each in self.sets:
            found |= each
        return found


class Refused(NamedTuple):
    """The position of the first container that the kubelet would not admit."""

    container: int


def fewest(counts: Iterable[int], wanted: int) -> int:
    """Minimum number of `counts` with a sum of at least `wanted`; one more than there are if all do not suffice."""
    number = 0
    for number, count in enumerate(sorted(counts, reverse=True), 1):
        wanted -= count
        if wanted <= 0:
            return number
    return number + 1


def best_hint(free: Sequence[int], total: Sequence[int], wanted: int) -> Hint | None:
    """The best hint for `wanted` CPUs, given CPUs per NUMA node; None when too few are free. O(nodes squared)."""
    size = fewest(free, wanted)
    if size > len(free):
        return None
    nodes, missing, left = 0, wanted, size
    # The lowest set of that size has the lowest highest node: skip, from above, each node that the rest can replace.
    for position in range(len(free) - 1, -1, -1):
        if left and (position < left or fewest(free[:position], missing) > left):
            nodes |= 1 << position
            missing -= free[position]
            left -= 1
    return Hint(nodes, size == fewest(total, wanted))


def admits(policy: str, hint: Hint | None) -> bool:
    """Whether a kubelet with this policy admits the container; False without a hint."""
    if hint is None:
        return False
    if policy == BEST_EFFORT:
        return True
    return hint.preferred and (policy != SINGLE_NUMA_NODE or hint.nodes.bit_count() == 1)


def plan(topology: CpuTopology, free: int, policy: str, wanted: Sequence[int]) -> CpuPlan | Refused:
    """Plan `wanted` CPUs for each container, one after the other."""
    total = [cpus.bit_count() for cpus in topology.numa_nodes]
    sets = []
    used = 0
    for position, count in enumerate(wanted):
        hint = best_hint([(cpus & free).bit_count() for cpus in topology.numa_nodes], total, count)
        if hint is None or not admits(policy, hint):
            return Refused(position)
        got = assign(topology, free, count, hint.nodes)
        sets.append(got)
        used |= got
        free &= ~got
    return CpuPlan(tuple(sets), sum(1 for cpus in topology.numa_nodes if cpus & used))
