"""The free CPUs of all nodes as arrays, and the placement of a pod's containers on each node.

For a pod with one container the number of available CPUs per NUMA node decides: one comparison of matrices. Several
containers are planned one after the other, once for each group of nodes with equal topology, policy and free CPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from capcard_sched.model.numa import BEST_EFFORT, NONE, RESTRICTED, SINGLE_NUMA_NODE, STATIC
from capcard_sched.plugins.numa_aware.node_cpus import CpuPlan, NodeCpus, plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from capcard_sched.framework.api.node_view import Mask, Rows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Node
    from capcard_sched.model.numa import CpuTopology, NumaFacts

    Codes = npt.NDArray[np.int8]
    Numbers = npt.NDArray[np.int64]

#: Policy of a node's topology manager to its code.
CODES: Final = {"": 0, NONE: 1, BEST_EFFORT: 2, RESTRICTED: 3, SINGLE_NUMA_NODE: 4}
_ALIGNED = frozenset({BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE})
#: Node classes beyond the number of nodes after which the classes are renumbered.
_MAX_UNUSED_CLASSES = 16384
#: Cached results by number of CPUs.
_MAX_SIZES = 256


def is_tracked(facts: NumaFacts) -> bool:
    """Whether the assignment of CPUs on the node matters to the kubelet's admission."""
    return facts.cpu_policy == STATIC and facts.topology_policy in _ALIGNED and facts.free is not None


class NumaRows:
    """One entry per node of the session in every array."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeCpus] = {}
        #: Nodes with claims.
        self._claiming: set[str] = set()
        self._names: list[str] = []
        self._generation = -1
        self._make(0, 1)

    def _make(self, nodes: int, most: int) -> None:
        """`most`: the maximum number of NUMA nodes per node."""
        #: Whether the node has a Numatopology.
        self.present: Mask = np.zeros(nodes, dtype=bool)
        #: Whether its CPU manager policy is static.
        self.static: Mask = np.zeros(nodes, dtype=bool)
        #: int8: topology manager policy, one of `CODES`.
        self.policy: Codes = np.zeros(nodes, dtype=np.int8)
        #: Whether its Numatopology lists CPUs, and whether any is free.
        self.reports_cpus: Mask = np.zeros(nodes, dtype=bool)
        self.has_cpus: Mask = np.zeros(nodes, dtype=bool)
        #: `is_tracked`.
        self.tracked: Mask = np.zeros(nodes, dtype=bool)
        #: int64 [nodes, most]: CPUs of the one, two, ... NUMA nodes with the most CPUs together; available ones, and
        #: all.
        self._reach: Numbers = np.zeros((nodes, most), dtype=np.int64)
        self._total: Numbers = np.zeros((nodes, most), dtype=np.int64)
        #: Node class: a number for topology, policy and available CPUs.
        self._class_of: Numbers = np.zeros(nodes, dtype=np.int64)
        self._numbers: dict[tuple[CpuTopology, str, int], int] = {}
        self._classes: list[tuple[CpuTopology, str, int]] = []
        #: Rows in the order of their updates.
        self._log: list[int] = []
        #: By CPUs of one container: the NUMA nodes it uses, the minimum it could use (int8 [nodes]), the log position.
        self._sizes: dict[int, tuple[Codes, Codes, int]] = {}
        #: CPUs of the containers to, by node class, the rejected container (-1 for none) and the NUMA nodes used.
        self._plans: dict[tuple[int, ...], dict[int, tuple[int, int]]] = {}

    @property
    def tracks_any(self) -> bool:
        return bool(self._nodes)

    def catch_up(self, session: Session) -> None:
        """Apply the changes. O(nodes) when the set of nodes changed."""
        table, numa, changed = session.nodes, session.snapshot.numa, session.changed
        moved = len(self._names) != len(table)
        if table.generation != self._generation or moved:
            self._generation = table.generation
            names = table.names
            moved = moved or names != self._names
            self._names = names
        names_stale: Iterable[str] = {*changed.numa, *(changed.nodes & self._nodes.keys()), *self._claiming}
        if changed.everything or moved:
            names_stale = {*numa, *self._nodes}
        for name in sorted(names_stale):
            self._update_node(name, numa.get(name), table.by_name.get(name), session.now)
        most = max((len(cpus.facts.topology.numa_nodes) for cpus in self._nodes.values()), default=1)
        over_limit = (
            len(self._classes) > len(table) + _MAX_UNUSED_CLASSES
            or max(len(self._sizes), len(self._plans)) > _MAX_SIZES
        )
        if moved or over_limit or most > self._reach.shape[1]:
            self._make(len(table), most)
            names_stale = numa.keys()
        for name in names_stale:
            node = table.by_name.get(name)
            if node is not None:
                self._describe(node.row, numa.get(name))
                self._write(node)

    def _update_node(self, name: str, facts: NumaFacts | None, node: Node | None, now: float) -> None:
        if facts is None or node is None or not is_tracked(facts):
            self._nodes.pop(name, None)
            self._claiming.discard(name)
            return
        cpus = self._nodes.get(name)
        if cpus is None:
            cpus = self._nodes[name] = NodeCpus(facts)
        elif cpus.facts is not facts:
            cpus.update(facts)
        cpus.catch_up(node, now)
        if cpus.claims:
            self._claiming.add(name)
        else:
            self._claiming.discard(name)

    def next_expiry(self, now: float) -> float | None:
        """Unix seconds when a claim may end without any change."""
        expiries = (self._nodes[name].next_expiry(now) for name in self._claiming)
        return min((expiry for expiry in expiries if expiry is not None), default=None)

    def _describe(self, row: int, facts: NumaFacts | None) -> None:
        """Write the facts that pods do not change."""
        self.present[row] = facts is not None
        self.static[row] = facts is not None and facts.cpu_policy == STATIC
        self.policy[row] = CODES[facts.topology_policy] if facts is not None else 0
        self.reports_cpus[row] = facts is not None and facts.free is not None
        self.has_cpus[row] = facts is not None and bool(facts.free)
        self.tracked[row] = facts is not None and is_tracked(facts)

    def _write(self, node: Node) -> None:
        """Write the facts that pods change."""
        cpus, row = self._nodes.get(node.name), node.row
        if cpus is None:
            return
        topology, available = cpus.facts.topology, cpus.available
        self.has_cpus[row] = bool(cpus.unclaimed)
        for matrix, found in ((self._reach, available), (self._total, topology.cpus)):
            counts = sorted(((numa & found).bit_count() for numa in topology.numa_nodes), reverse=True)
            matrix[row] = sum(counts)
            matrix[row, : len(counts)] = np.cumsum(counts)
        key = (topology, cpus.facts.topology_policy, available)
        number = self._numbers.setdefault(key, len(self._classes))
        if number == len(self._classes):
            self._classes.append(key)
        self._class_of[row] = number
        self._log.append(row)

    def place(self, rows: Rows, checked: Mask, wanted: tuple[int, ...]) -> tuple[Numbers, Numbers]:
        """Place containers with `wanted` CPUs each on the `checked` rows (bool [k]).

        Returns int64 [k] each: position of the first rejected container, -1 for none; NUMA nodes used, 0 where the
        row is not checked or a container is rejected.
        """
        refused: Numbers = np.full(len(rows), -1, dtype=np.int64)
        spans: Numbers = np.zeros(len(rows), dtype=np.int64)
        if len(wanted) == 1:
            taken, size = self._place_one(rows, wanted[0])
            refused[checked & ~taken] = 0
            spans[checked & taken] = size[checked & taken]
            return refused, spans
        classes, where = np.unique(self._class_of[rows[checked]], return_inverse=True)
        known = self._plans.setdefault(wanted, {})
        results = np.empty((len(classes), 2), dtype=np.int64)
        for index, number in enumerate(classes.tolist()):
            result = known.get(number)
            if result is None:
                topology, policy, available = self._classes[number]
                found = plan(topology, available, policy, wanted)
                result = known[number] = (-1, found.span) if isinstance(found, CpuPlan) else (found.container, 0)
            results[index] = result
        refused[checked], spans[checked] = results[where, 0], results[where, 1]
        return refused, spans

    def _place_one(self, rows: Rows, wanted: int) -> tuple[Mask, Codes]:
        """Whether each row admits one container, and the number of NUMA nodes it uses: bool [k], int8 [k]."""
        sizes, leasts = self._sizes_for(wanted)
        size, policy = sizes.take(rows), self.policy.take(rows)
        preferred = size == leasts.take(rows)
        aligned = preferred & ((policy != CODES[SINGLE_NUMA_NODE]) | (size == 1))
        return (size <= self._reach.shape[1]) & (aligned | (policy == CODES[BEST_EFFORT])), size

    def _sizes_for(self, wanted: int) -> tuple[Codes, Codes]:
        """Minimum number of NUMA nodes with `wanted` available CPUs, and with `wanted` CPUs at all: int8 [nodes] each.

        One more than the maximum number of NUMA nodes when all do not suffice. Only rows updated since the last call
        are computed.
        """
        known = self._sizes.get(wanted)
        if known is None:
            nodes = len(self._class_of)
            sizes, leasts = np.zeros(nodes, dtype=np.int8), np.zeros(nodes, dtype=np.int8)
            stale = np.arange(nodes, dtype=np.intp)
        else:
            sizes, leasts, position = known
            if position == len(self._log):
                return sizes, leasts
            stale = np.array(self._log[position:], dtype=np.intp)
        sizes[stale] = 1 + (self._reach[stale] < wanted).sum(axis=1)
        leasts[stale] = 1 + (self._total[stale] < wanted).sum(axis=1)
        self._sizes[wanted] = sizes, leasts, len(self._log)
        return sizes, leasts

    def claim(self, node: Node, uid: str, wanted: tuple[int, ...]) -> None:
        """Assign CPUs to a pod, if the node is tracked and admits it."""
        cpus = self._nodes.get(node.name)
        if cpus is not None and cpus.claim(uid, wanted):
            self._claiming.add(node.name)
            self._write(node)

    def release(self, node: Node, uid: str) -> None:
        cpus = self._nodes.get(node.name)
        if cpus is not None and cpus.release(uid):
            self._write(node)

    def assigned(self, node: Node, uid: str) -> tuple[Mapping[int, int], CpuPlan] | None:
        """The NUMA nodes of a node, number to CPUs, and a pod's plan there; None without a claim."""
        cpus = self._nodes.get(node.name)
        claim = cpus.claims.get(uid) if cpus is not None else None
        if cpus is None or claim is None:
            return None
        topology = cpus.facts.topology
        return dict(zip(topology.numa_ids, topology.numa_nodes, strict=True)), claim.plan
