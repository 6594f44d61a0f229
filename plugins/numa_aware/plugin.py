"""The hooks of numa-aware."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.annotations import NUMA_TOPOLOGY_DECISION, NUMA_TOPOLOGY_POLICY
from capcard_sched.model.numa import NONE
from capcard_sched.model.refusal import Code
from capcard_sched.model.status import TaskStatus
from capcard_sched.plugins.numa_aware.rows import CODES, NumaRows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.numa_aware.hints import CpuPlan

NO_FACTS = "numa info is empty"
NOT_STATIC = "cpu manager policy isn't static"
OTHER_POLICY = "task topology policy[{task}] is different with node[{node}]"
NO_TOPOLOGY = "no topo information"
NO_CPUS = "cpu allocatable map is empty"
REFUSED = "container {name} cannot be assigned by numa"

_MOST = 100
_IN_SESSION = frozenset({TaskStatus.ALLOCATED, TaskStatus.PIPELINED})


class NumaAwareArguments(msgspec.Struct, frozen=True):
    """Arguments as users write them."""

    #: Of the score, which is up to 100.
    weight: int = 1


def policy_of(cls: TaskClass) -> str:
    """The policy a pod asks for, "" for none."""
    said = cls.annotations.get(NUMA_TOPOLOGY_POLICY, "")
    return "" if said == NONE else said


def normalised(spans: Scores, weight: int) -> Scores:
    """Numbers of NUMA nodes used as scores, fewer is better: float64 [k]."""
    most = int(spans.max(initial=0))
    if not most:
        return np.full(len(spans), float(_MOST * weight))
    return (_MOST - _MOST * spans // most) * weight


class NumaAware(Plugin):
    """Places Guaranteed pods with whole CPUs where the kubelet can lay them on NUMA nodes as its policy asks.

    A pod that names a policy (volcano.sh/numa-topology-policy) only goes to nodes with that policy, those where it
    needs fewer NUMA nodes first. Nodes are known by Numatopology objects; what is given away is remembered per pod
    until the object shows it, and written on the pod as CPUs per NUMA node (volcano.sh/topology-decision).
    """

    name = "numa-aware"
    Arguments = NumaAwareArguments
    arguments: NumaAwareArguments
    wakes_on = frozenset({"numa"})

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._session: Session
        self._rows = NumaRows()

    def open(self, session: Session) -> None:
        """Take up topologies and what became of pods. O(what changed); O(nodes) when nodes or topologies did."""
        self._session = session
        self._rows.catch_up(session)

    def next_wakeup(self) -> float | None:
        """When CPUs may turn out to be free although nothing changes, if somebody waits."""
        moment = self._rows.next_look(self._session.now)
        waits = moment is not None and any(job.pending for job in self._session.with_pending_tasks())
        return moment if waits else None

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _concerns(self, cls: TaskClass) -> bool:
        """Whether the pod is judged at all: it is Guaranteed, and names a policy or wants CPUs that are watched."""
        if cls.own_cpus is None:
            return False
        return bool(policy_of(cls)) or (bool(cls.own_cpus) and self._rows.watches_any)

    def row_private(self, profile: PodSignature) -> bool:
        """Which CPUs are free is more than how many."""
        return self._concerns(profile.cls)

    def predicate(self, profile: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
        cls = profile.cls
        if not self._concerns(cls):
            return
        known, policy = self._rows, policy_of(cls)
        judged = rows.take(known.watched)
        if policy:
            judged = self._judge_policy(policy, rows, verdict)
        containers = cls.own_cpus or ()
        if not containers or not judged.any():
            return
        refused, _ = known.place(rows.rows, judged, tuple(count for _, count in containers))
        for position, (name, _) in enumerate(containers):
            here = refused == position
            if here.any():
                verdict.reject(here, Code.UNRESOLVABLE, REFUSED.format(name=name))

    def _judge_policy(self, policy: str, rows: NodeView, verdict: FilterResult) -> Mask:
        """Reject nodes that do not follow the pod's policy; returns those that do: bool [k]."""
        known = self._rows
        left = np.ones(len(rows), dtype=bool)

        def reject(wrong: Mask, reason: str) -> None:
            nonlocal left
            wrong = wrong & left
            if wrong.any():
                verdict.reject(wrong, Code.ERROR, reason)
                left = left & ~wrong

        reject(~rows.take(known.present), NO_FACTS)
        reject(~rows.take(known.static), NOT_STATIC)
        theirs = rows.take(known.policy)
        for other, code in CODES.items():
            if other != policy:
                reject(theirs == code, OTHER_POLICY.format(task=policy, node=other))
        reject(~rows.take(known.speaks), NO_TOPOLOGY)
        reject(~rows.take(known.has_cpus), NO_CPUS)
        return left

    def batch_node_order(self, profile: PodSignature, candidates: NodeView) -> Scores | None:
        cls = profile.cls
        if not cls.own_cpus or not policy_of(cls):
            return None
        judged = candidates.take(self._rows.watched)
        _, spans = self._rows.place(candidates.rows, judged, tuple(count for _, count in cls.own_cpus))
        return normalised(spans.astype(np.float64), self.arguments.weight)

    # --- placements -------------------------------------------------------------------------------------------------

    def on_allocate(self, placement: Placement) -> None:
        """Give pods CPUs. An eviction that is undone changes nothing: the CPUs of pods that leave are theirs."""
        wanted = tuple(count for _, count in placement.cls.own_cpus or ())
        if wanted and self._rows.watches_any:
            for task, node in zip(placement.tasks, placement.nodes, strict=True):
                if task.status in _IN_SESSION:
                    self._rows.claim(node, task.uid, wanted)

    def on_deallocate(self, placement: Placement) -> None:
        """Take CPUs back from pods that were placed in this session."""
        if placement.cls.own_cpus and self._rows.watches_any:
            for task, node in zip(placement.tasks, placement.nodes, strict=True):
                if task.status in _IN_SESSION:
                    self._rows.release(node, task.uid)

    def bind_annotations(self, placement: Placement) -> dict[str, dict[str, str]] | None:
        if not placement.cls.own_cpus or not self._rows.watches_any:
            return None
        found = {}
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            given = self._rows.given(node, task.uid)
            if given is not None:
                found[task.uid] = {NUMA_TOPOLOGY_DECISION: decision(*given)}
        return found


def decision(numa_nodes: Mapping[int, int], given: CpuPlan) -> str:
    """What is written on the pod: `{"numa":{"0":{"cpu":"4"}}}`. `numa_nodes`: number to CPUs."""
    counts = {number: (cpus & given.cpus).bit_count() for number, cpus in numa_nodes.items()}
    return json.dumps(
        {"numa": {str(number): {"cpu": str(count)} for number, count in counts.items() if count}},
        separators=(",", ":"),
    )
