"""Free CPUs of all nodes as arrays, and what they let a pod do on each node.

For a pod of one container it follows from how many CPUs are available on each NUMA node: one comparison of matrices.
More containers are planned one after the other, once for all nodes that stand alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from capcard_sched.model.numa import BEST_EFFORT, NONE, RESTRICTED, SINGLE_NUMA_NODE, STATIC
from capcard_sched.plugins.numa_aware.hints import CpuPlan, plan
from capcard_sched.plugins.numa_aware.ledger import NodeCpus

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
#: Ways a node can stand are numbered anew when there are so many more of them than nodes.
_MOST_EMPTY = 16384
#: Answers for so many different numbers of CPUs are kept.
_MOST_SIZES = 256


def is_watched(facts: NumaFacts) -> bool:
    """Whether it matters which CPUs of the node pods get."""
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
        """`most`: how many NUMA nodes a node has at the most."""
        #: Whether anything is known of the node.
        self.present: Mask = np.zeros(nodes, dtype=bool)
        #: Whether containers get CPUs of their own there.
        self.static: Mask = np.zeros(nodes, dtype=bool)
        #: int8, of `CODES`.
        self.policy: Codes = np.zeros(nodes, dtype=np.int8)
        #: Whether its CPUs are told of, and whether any is free.
        self.speaks: Mask = np.zeros(nodes, dtype=bool)
        self.has_cpus: Mask = np.zeros(nodes, dtype=bool)
        #: `is_watched`.
        self.watched: Mask = np.zeros(nodes, dtype=bool)
        #: int64 [nodes, most]: how many CPUs the one, two, ... NUMA nodes with the most have together; available ones,
        #: and all.
        self._reach: Numbers = np.zeros((nodes, most), dtype=np.int64)
        self._total: Numbers = np.zeros((nodes, most), dtype=np.int64)
        #: How the node stands: a number for its topology, policy and available CPUs.
        self._standing: Numbers = np.zeros(nodes, dtype=np.int64)
        self._numbers: dict[tuple[CpuTopology, str, int], int] = {}
        self._stands: list[tuple[CpuTopology, str, int]] = []
        #: Rows in the order they were written, and by what one container wants: on how many NUMA nodes it would lie and
        #: on how many it would at the least (int8 [nodes]), with how much of that order was read.
        self._log: list[int] = []
        self._sizes: dict[int, tuple[Codes, Codes, int]] = {}
        #: What containers want to, by standing, the container that is refused (-1 for none) and the NUMA nodes used.
        self._answers: dict[tuple[int, ...], dict[int, tuple[int, int]]] = {}

    @property
    def watches_any(self) -> bool:
        """Whether it matters anywhere which CPUs pods get."""
        return bool(self._nodes)

    # --- from session to session ------------------------------------------------------------------------------------

    def catch_up(self, session: Session) -> None:
        """Take up what changed; O(nodes) when the set of nodes did."""
        table, numa, changed = session.nodes, session.numa, session.changed
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
            self._look(name, numa.get(name), table.by_name.get(name), session.now)
        most = max((len(cpus.facts.topology.numa_nodes) for cpus in self._nodes.values()), default=1)
        crowded = (
            len(self._stands) > len(table) + _MOST_EMPTY or max(len(self._sizes), len(self._answers)) > _MOST_SIZES
        )
        if moved or crowded or most > self._reach.shape[1]:
            self._make(len(table), most)
            names_stale = numa.keys()
        for name in names_stale:
            node = table.by_name.get(name)
            if node is not None:
                self._describe(node.row, numa.get(name))
                self._write(node)

    def _look(self, name: str, facts: NumaFacts | None, node: Node | None, now: float) -> None:
        """Find out what one node's pods have."""
        if facts is None or node is None or not is_watched(facts):
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

    def next_look(self, now: float) -> float | None:
        """When a claim may end although nothing changes, Unix seconds."""
        moments = (self._nodes[name].next_look(now) for name in self._claiming)
        return min((moment for moment in moments if moment is not None), default=None)

    # --- rows -------------------------------------------------------------------------------------------------------

    def _describe(self, row: int, facts: NumaFacts | None) -> None:
        """What pods do not change."""
        self.present[row] = facts is not None
        self.static[row] = facts is not None and facts.cpu_policy == STATIC
        self.policy[row] = CODES[facts.topology_policy] if facts is not None else 0
        self.speaks[row] = facts is not None and facts.free is not None
        self.has_cpus[row] = facts is not None and bool(facts.free)
        self.watched[row] = facts is not None and is_watched(facts)

    def _write(self, node: Node) -> None:
        """What pods change."""
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
        number = self._numbers.setdefault(key, len(self._stands))
        if number == len(self._stands):
            self._stands.append(key)
        self._standing[row] = number
        self._log.append(row)

    # --- questions --------------------------------------------------------------------------------------------------

    def place(self, rows: Rows, judged: Mask, wanted: tuple[int, ...]) -> tuple[Numbers, Numbers]:
        """What becomes of containers that want so many CPUs each, on the rows that are judged (bool [k]).

        int64 [k] each: position of the container that the node would not take, -1 for none; NUMA nodes used, 0 where
        it is not judged or not taken.
        """
        refused: Numbers = np.full(len(rows), -1, dtype=np.int64)
        spans: Numbers = np.zeros(len(rows), dtype=np.int64)
        if len(wanted) == 1:
            taken, size = self._place_one(rows, wanted[0])
            refused[judged & ~taken] = 0
            spans[judged & taken] = size[judged & taken]
            return refused, spans
        standing, where = np.unique(self._standing[rows[judged]], return_inverse=True)
        known = self._answers.setdefault(wanted, {})
        answers = np.empty((len(standing), 2), dtype=np.int64)
        for index, number in enumerate(standing.tolist()):
            answer = known.get(number)
            if answer is None:
                topology, policy, available = self._stands[number]
                found = plan(topology, available, policy, wanted)
                answer = known[number] = (-1, found.span) if isinstance(found, CpuPlan) else (found.container, 0)
            answers[index] = answer
        refused[judged], spans[judged] = answers[where, 0], answers[where, 1]
        return refused, spans

    def _place_one(self, rows: Rows, wanted: int) -> tuple[Mask, Codes]:
        """Whether each row takes one container, and on how many NUMA nodes it would lie: bool [k], int8 [k]."""
        sizes, leasts = self._sizes_for(wanted)
        size, policy = sizes.take(rows), self.policy.take(rows)
        preferred = size == leasts.take(rows)
        aligned = preferred & ((policy != CODES[SINGLE_NUMA_NODE]) | (size == 1))
        return (size <= self._reach.shape[1]) & (aligned | (policy == CODES[BEST_EFFORT])), size

    def _sizes_for(self, wanted: int) -> tuple[Codes, Codes]:
        """How many NUMA nodes hold so many available CPUs, and how many hold so many CPUs at all: int8 [nodes] each.

        One more than there are at the most when all do not. Only rows that were written since the last time are looked
        at.
        """
        known = self._sizes.get(wanted)
        if known is None:
            nodes = len(self._standing)
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

    # --- placements -------------------------------------------------------------------------------------------------

    def claim(self, node: Node, uid: str, wanted: tuple[int, ...]) -> None:
        """Give a pod CPUs, if the node is watched and lets it start."""
        cpus = self._nodes.get(node.name)
        if cpus is not None and cpus.claim(uid, wanted):
            self._claiming.add(node.name)
            self._write(node)

    def release(self, node: Node, uid: str) -> None:
        """Take them back."""
        cpus = self._nodes.get(node.name)
        if cpus is not None and cpus.release(uid):
            self._write(node)

    def given(self, node: Node, uid: str) -> tuple[Mapping[int, int], CpuPlan] | None:
        """The NUMA nodes of a node, number to CPUs, and what a pod was given there; None for nothing."""
        cpus = self._nodes.get(node.name)
        claim = cpus.claims.get(uid) if cpus is not None else None
        if cpus is None or claim is None:
            return None
        topology = cpus.facts.topology
        return dict(zip(topology.numa_ids, topology.numa_nodes, strict=True)), claim.plan
