"""The CPUs of one node: free and assigned ones, topology hints, assignment to containers.

A set of CPUs is an integer, CPU n is bit n. The order is that of the kubelet's static CPU manager, so that the planned
assignment is, as a rule, the kubelet's.

A hint is a set of NUMA nodes with enough free CPUs; it is preferred if no smaller set has enough CPUs in total. CPUs
are the only hint provider, so that merging the hints of a container is choosing one: preferred hints first, then the
fewest nodes, then the lowest. Sets of NUMA nodes are integers, bit i for position i of the topology.

The Numatopology lags behind by some seconds, and a kubelet may assign other CPUs than planned. An assignment made here
is therefore a *claim*. A CPU is available if the object shows it as free and no claim includes it, so that a CPU which
is both claimed and in use counts once. A claim ends when the object includes the pod, that is, when

* the object lists the pod among those with exclusive CPUs (newer exporters), or
* the object lists no pods, the pod runs, and none of the claimed CPUs is free, or
* the object lists no pods, the pod has been running for `SETTLE_SECONDS` (exporters report every few seconds), and at
  least as many CPUs are in use as the running pods on the node need;

or when the pod has left the node. If another pod got a claimed CPU, the claim is planned again on the remaining CPUs.
Pods that appear on the node without a plan (another scheduler's, or after a restart) get a claim as the kubelet would
assign it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.model.numa import BEST_EFFORT, SINGLE_NUMA_NODE, members
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.numa import CpuTopology, NumaFacts


def assign(topology: CpuTopology, free: int, count: int, nodes: int) -> int:
    """Assign `count` CPUs of `free`, those of the preferred NUMA `nodes` (bit i: position i of the topology) first.

    Raises ValueError when fewer are free.
    """
    near = 0
    for position, cpus in enumerate(topology.numa_nodes):
        if nodes >> position & 1:
            near |= cpus & free
    first = assign_packed(topology, near, min(count, near.bit_count()))
    rest = count - first.bit_count()
    return first | assign_packed(topology, free & ~first, rest) if rest else first


def assign_packed(topology: CpuTopology, free: int, count: int) -> int:
    """Assign `count` CPUs of `free`, packed. Raises ValueError when fewer are free."""
    if count >= free.bit_count():
        if count > free.bit_count():
            raise ValueError(f"{count} CPUs of {free.bit_count()}")
        return free
    taken = 0
    for socket in topology.sockets:
        if socket & free == socket and socket.bit_count() <= count:
            taken |= socket
            count -= socket.bit_count()
    if not count:
        return taken
    for core in _whole_cores(topology, free & ~taken):
        if core.bit_count() <= count:
            taken |= core
            count -= core.bit_count()
            if not count:
                return taken
    for thread in _threads(topology, free & ~taken, taken)[:count]:
        taken |= thread
    return taken


def _whole_cores(topology: CpuTopology, free: int) -> list[int]:
    """Entirely free cores, those on sockets with the fewest of them first."""
    whole = [(socket, core) for socket, core in topology.cores if core & free == core]
    on_socket = [0] * len(topology.sockets)
    for socket, _ in whole:
        on_socket[socket] += 1
    whole.sort(key=lambda each: (on_socket[each[0]], each[0]))
    return [core for _, core in whole]


def _threads(topology: CpuTopology, free: int, taken: int) -> list[int]:
    """Free CPUs: sockets with the most assigned CPUs first, then sockets and cores with the fewest free CPUs."""
    socket_order = [(-(cpus & taken).bit_count(), (cpus & free).bit_count()) for cpus in topology.sockets]
    cores = [(socket, core & free) for socket, core in topology.cores if core & free]
    cores.sort(key=lambda each: (socket_order[each[0]], each[1].bit_count(), each[0]))
    return [thread for _, core in cores for thread in members(core)]


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


#: Seconds of running after which the Numatopology includes a pod, if an exporter updates it.
SETTLE_SECONDS: Final = 30.0

#: Bound to the node, but possibly not admitted by its kubelet yet.
_STARTING = frozenset({TaskStatus.BINDING, TaskStatus.BOUND})


class CpuClaim:
    """CPUs assigned to a pod that the object may still show as free."""

    __slots__ = ("plan", "running_since", "wanted")

    def __init__(self, found: CpuPlan, wanted: tuple[int, ...]) -> None:
        self.plan = found
        #: Number of exclusive CPUs of each container.
        self.wanted = wanted
        #: Unix seconds when the pod was first seen running; None before.
        self.running_since: float | None = None


def exclusive_cpus(task: Task) -> tuple[int, ...]:
    """Number of exclusive CPUs of each container of a pod; empty for most pods."""
    return tuple(count for _, count in task.cls.own_cpus or ())


def _total_exclusive_cpus(tasks: Iterable[Task]) -> int:
    return sum(sum(exclusive_cpus(task)) for task in tasks)


class NodeCpus:
    """Implements the module's accounting for one node."""

    def __init__(self, facts: NumaFacts) -> None:
        #: Claims by pod uid, the oldest first.
        self.claims: dict[str, CpuClaim] = {}
        #: uids of pods on the node that have or had a claim, or need none.
        self._known: set[str] = set()
        self._fresh = True
        self.update(facts)

    def update(self, facts: NumaFacts) -> None:
        self.facts = facts
        self._reserved = assign_packed(facts.topology, facts.topology.cpus, facts.reserved)

    @property
    def shown(self) -> int:
        """Bit set of the CPUs that the object shows as free, including those reserved for the system."""
        return self.facts.free or 0

    @property
    def unclaimed(self) -> int:
        """Free CPUs without a claim."""
        free = self.shown
        for claim in self.claims.values():
            free &= ~claim.plan.cpus
        return free

    @property
    def available(self) -> int:
        """Bit set of the CPUs that can be assigned."""
        return self.unclaimed & ~self._reserved

    def plan(self, wanted: Sequence[int]) -> CpuPlan | Refused:
        return plan(self.facts.topology, self.available, self.facts.topology_policy, wanted)

    def claim(self, uid: str, wanted: tuple[int, ...]) -> bool:
        """Assign CPUs to a pod; False, without a claim, when the node's policy does not admit it."""
        found = self.plan(wanted)
        if isinstance(found, Refused):
            return False
        self.claims[uid] = CpuClaim(found, wanted)
        self._known.add(uid)
        return True

    def release(self, uid: str) -> bool:
        """Remove the claim of a pod whose placement is undone. Returns whether it had one."""
        self._known.discard(uid)
        return self.claims.pop(uid, None) is not None

    def catch_up(self, node: Node, now: float) -> None:
        """End claims, and add those of pods that appeared without a plan. O(pods on the node)."""
        tasks = {uid: task for uid, task in node.tasks.items() if task.cls.own_cpus}
        for uid in [uid for uid in self.claims if uid not in tasks]:
            del self.claims[uid]
        self._known &= tasks.keys()
        self._add_new(tasks)
        for uid, claim in list(self.claims.items()):
            if tasks[uid].status is TaskStatus.RUNNING and claim.running_since is None:
                claim.running_since = now
            if self._is_shown(tasks[uid], claim, tasks.values(), now):
                del self.claims[uid]
        self._replan(tasks.values())

    def _add_new(self, tasks: dict[str, Task]) -> None:
        """Add claims for new pods. The object includes the oldest of those that run already."""
        new = sorted(
            (task for uid, task in tasks.items() if uid not in self._known), key=lambda task: (task.created, task.uid)
        )
        unexplained = self._in_use if self._fresh else 0
        self._fresh = False
        for task in new:
            self._known.add(task.uid)
            wanted = exclusive_cpus(task)
            if task.status not in _STARTING and not self.facts.pods:
                unexplained -= sum(wanted)
                if unexplained >= 0:
                    continue
            if not self._names(task) and not task.deleting:
                self.claims[task.uid] = CpuClaim(self._guess(wanted), wanted)

    def _names(self, task: Task) -> bool:
        return task.uid in self.facts.pods or task.key in self.facts.pods

    def _is_shown(self, task: Task, claim: CpuClaim, others: Iterable[Task], now: float) -> bool:
        if self.facts.pods:
            return self._names(task)
        if claim.running_since is None:
            return False
        if not claim.plan.cpus & self.shown:
            return True
        return now >= claim.running_since + SETTLE_SECONDS and self._in_use >= _total_exclusive_cpus(
            other for other in others if other.status not in _STARTING
        )

    @property
    def _in_use(self) -> int:
        """Number of CPUs that the object does not show as free."""
        return (self.facts.topology.cpus & ~self.shown).bit_count()

    def _replan(self, tasks: Iterable[Task]) -> None:
        """Plan claims again whose CPUs another pod got, while fewer free CPUs are claimed than pods will take."""
        if not self.claims:
            return
        if self.facts.pods:
            expected = sum(sum(claim.wanted) for claim in self.claims.values())
        else:
            expected = _total_exclusive_cpus(tasks) - self._in_use
        for uid, claim in list(self.claims.items()):
            if (self.shown & ~self.unclaimed).bit_count() >= expected:
                return
            if claim.plan.cpus & ~self.shown:
                del self.claims[uid]
                claim.plan = self._guess(claim.wanted)
                self.claims[uid] = claim

    def _guess(self, wanted: tuple[int, ...]) -> CpuPlan:
        """The expected assignment of a pod on the node: at most the available CPUs when no plan is admitted."""
        for policy in (self.facts.topology_policy, BEST_EFFORT):
            found = plan(self.facts.topology, self.available, policy, wanted)
            if isinstance(found, CpuPlan):
                return found
        free = self.available
        return CpuPlan((assign_packed(self.facts.topology, free, min(sum(wanted), free.bit_count())),), 1)

    def next_expiry(self, now: float) -> float | None:
        """Unix seconds when a claim may end without a change of the object; None without such a claim."""
        if self.facts.pods:
            return None
        ends = (
            claim.running_since + SETTLE_SECONDS for claim in self.claims.values() if claim.running_since is not None
        )
        return min((end for end in ends if end > now), default=None)
