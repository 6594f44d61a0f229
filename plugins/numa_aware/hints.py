"""On which NUMA nodes a container should lie, and whether the kubelet would take it there (plugins reference §20, 3).

A hint is a set of NUMA nodes with enough free CPUs; it is preferred when no fewer nodes could ever hold the container.
CPUs are the only thing hinted at, so that merging the hints of a container is choosing one: preferred before others,
then the fewest nodes, then the lowest. Sets of NUMA nodes are integers, bit i for position i of the topology.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.model.numa import BEST_EFFORT, SINGLE_NUMA_NODE
from capcard_sched.plugins.numa_aware.cpus import assign

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.model.numa import CpuTopology


class Hint(NamedTuple):
    """Some NUMA nodes with enough free CPUs."""

    nodes: int
    preferred: bool


class CpuPlan(NamedTuple):
    """The CPUs of each container of a pod that gets its own, in order."""

    sets: tuple[int, ...]
    #: How many NUMA nodes they lie on.
    span: int

    @property
    def cpus(self) -> int:
        """All of them."""
        found = 0
        for each in self.sets:
            found |= each
        return found


class Refused(NamedTuple):
    """The first container that the kubelet would not take, by its position."""

    container: int


def fewest(counts: Iterable[int], wanted: int) -> int:
    """How many of `counts`, the largest first, it takes to reach `wanted`; one more than there are if all do not."""
    number = 0
    for number, count in enumerate(sorted(counts, reverse=True), 1):
        wanted -= count
        if wanted <= 0:
            return number
    return number + 1


def best_hint(free: Sequence[int], total: Sequence[int], wanted: int) -> Hint | None:
    """The best hint for `wanted` CPUs; None when that many are not free. CPUs per NUMA node in, O(nodes squared)."""
    size = fewest(free, wanted)
    if size > len(free):
        return None
    nodes, missing, left = 0, wanted, size
    # The lowest set of that size has the lowest highest node: leave out, from above, whom the rest can do without.
    for position in range(len(free) - 1, -1, -1):
        if left and (position < left or fewest(free[:position], missing) > left):
            nodes |= 1 << position
            missing -= free[position]
            left -= 1
    return Hint(nodes, size == fewest(total, wanted))


def admits(policy: str, hint: Hint | None) -> bool:
    """Whether a kubelet of that policy starts the container: never when too few CPUs are free."""
    if hint is None:
        return False
    if policy == BEST_EFFORT:
        return True
    return hint.preferred and (policy != SINGLE_NUMA_NODE or hint.nodes.bit_count() == 1)


def plan(topology: CpuTopology, free: int, policy: str, wanted: Sequence[int]) -> CpuPlan | Refused:
    """CPUs for containers that want so many each, one after the other."""
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
