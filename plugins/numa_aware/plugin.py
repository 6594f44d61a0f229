"""The numa-aware plugin: node filter, node scores and placements."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from capcard_sched.framework.api.node_hooks import CANDIDATES, NODE_PODS, filter, score
from capcard_sched.framework.api.plugin import Plugin, Reads
from capcard_sched.model.annotations import NUMA_TOPOLOGY_DECISION, NUMA_TOPOLOGY_POLICY
from capcard_sched.model.numa import NONE
from capcard_sched.model.refusal import Code
from capcard_sched.model.status import SESSION_STATUSES
from capcard_sched.plugins.numa_aware.numa_rows import CODES, NumaRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.plugins.numa_aware.node_cpus import CpuPlan

NO_FACTS = "numa info is empty"
NOT_STATIC = "cpu manager policy isn't static"
OTHER_POLICY = "task topology policy[{task}] is different with node[{node}]"
NO_TOPOLOGY = "no topo information"
NO_CPUS = "cpu allocatable map is empty"
REFUSED = "container {name} cannot be assigned by numa"

_MOST = 100


class NumaAwareArguments(msgspec.Struct, frozen=True):
    """Arguments of numa-aware."""

    #: Score multiplier; 0 disables.
    weight: int = 1


def policy_of(cls: TaskClass) -> str:
    """The topology policy of a pod, "" without one."""
    policy = cls.annotations.get(NUMA_TOPOLOGY_POLICY, "")
    return "" if policy == NONE else policy


def normalised(spans: Scores, weight: int) -> Scores:
    """Scores from the number of NUMA nodes used, fewer is better: float64 [k]."""
    most = int(spans.max(initial=0))
    if not most:
        return np.full(len(spans), float(_MOST * weight))
    return (_MOST - _MOST * spans // most) * weight


class NumaAware(Plugin):
    """Places Guaranteed pods with whole CPUs on nodes whose kubelet can align them to NUMA nodes by its policy.

    A pod with a policy (volcano.sh/numa-topology-policy) fits only nodes with that policy and prefers those where it
    uses fewer NUMA nodes. Numatopology objects describe the nodes. Assigned CPUs are claimed per pod until the object
    shows them, and written to the pod as CPUs per NUMA node (volcano.sh/topology-decision).
    """

    name = "numa-aware"
    Arguments = NumaAwareArguments
    arguments: NumaAwareArguments
    reads = Reads.NUMA

    def setup(self) -> None:
        self._session: Session
        self._rows = NumaRows()

    def open(self, session: Session) -> None:
        """Apply changed topologies and pods. O(changes); O(nodes) when nodes or topologies changed."""
        self._session = session
        self._rows.catch_up(session)

    def next_wakeup(self) -> float | None:
        """When a claim may end without any change, if a pod is pending."""
        return self._session.if_pods_wait(self._rows.next_expiry(self._session.now))

    def _reads_cpus(self, signature: PodSignature) -> bool:
        """Whether the checks apply: the pod is Guaranteed, and has a policy or uses exclusive CPUs that are tracked."""
        cls = signature.cls
        if cls.own_cpus is None:
            return False
        return bool(policy_of(cls)) or (bool(cls.own_cpus) and self._rows.tracks_any)

    def _prefers_few_numa_nodes(self, signature: PodSignature) -> bool:
        return bool(signature.cls.own_cpus and policy_of(signature.cls))

    @filter(reads=NODE_PODS, when=_reads_cpus)
    def filter_by_cpus(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        cls = signature.cls
        known, policy = self._rows, policy_of(cls)
        checked = rows.take(known.tracked)
        if policy:
            checked = self._filter_policy(policy, rows, result)
        containers = cls.own_cpus or ()
        if not containers or not checked.any():
            return
        refused, _ = known.place(rows.rows, checked, tuple(count for _, count in containers))
        for position, (name, _) in enumerate(containers):
            here = refused == position
            if here.any():
                result.reject(here, Code.UNRESOLVABLE, REFUSED.format(name=name))

    def _filter_policy(self, policy: str, rows: NodeView, result: FilterResult) -> Mask:
        """Reject nodes without the pod's policy; returns the others: bool [k]."""
        known = self._rows
        left = np.ones(len(rows), dtype=bool)

        def reject(wrong: Mask, reason: str) -> None:
            nonlocal left
            wrong = wrong & left
            if wrong.any():
                result.reject(wrong, Code.ERROR, reason)
                left = left & ~wrong

        reject(~rows.take(known.present), NO_FACTS)
        reject(~rows.take(known.static), NOT_STATIC)
        node_policy = rows.take(known.policy)
        for other, code in CODES.items():
            if other != policy:
                reject(node_policy == code, OTHER_POLICY.format(task=policy, node=other))
        reject(~rows.take(known.reports_cpus), NO_TOPOLOGY)
        reject(~rows.take(known.has_cpus), NO_CPUS)
        return left

    @score(reads=CANDIDATES, when=_prefers_few_numa_nodes)
    def score_numa_nodes(self, signature: PodSignature, candidates: NodeView) -> Scores:
        checked, containers = candidates.take(self._rows.tracked), signature.cls.own_cpus or ()
        _, spans = self._rows.place(candidates.rows, checked, tuple(count for _, count in containers))
        return normalised(spans.astype(np.float64), self.arguments.weight)

    def on_allocate(self, placement: Placement) -> None:
        """Assign CPUs to placed pods. Undoing an eviction changes nothing: a terminating pod keeps its CPUs."""
        wanted = tuple(count for _, count in placement.cls.own_cpus or ())
        if wanted and self._rows.tracks_any:
            for task, node in zip(placement.tasks, placement.nodes, strict=True):
                if task.status in SESSION_STATUSES:
                    self._rows.claim(node, task.uid, wanted)

    def on_deallocate(self, placement: Placement) -> None:
        """Release the CPUs of pods that were placed in this session."""
        if placement.cls.own_cpus and self._rows.tracks_any:
            for task, node in zip(placement.tasks, placement.nodes, strict=True):
                if task.status in SESSION_STATUSES:
                    self._rows.release(node, task.uid)

    def bind_annotations(self, placement: Placement) -> dict[str, dict[str, str]] | None:
        if not placement.cls.own_cpus or not self._rows.tracks_any:
            return None
        found = {}
        for task, node in zip(placement.tasks, placement.nodes, strict=True):
            given = self._rows.assigned(node, task.uid)
            if given is not None:
                found[task.uid] = {NUMA_TOPOLOGY_DECISION: decision(*given)}
        return found


def decision(numa_nodes: Mapping[int, int], given: CpuPlan) -> str:
    """The annotation value: `{"numa":{"0":{"cpu":"4"}}}`. `numa_nodes`: number to CPUs."""
    counts = {number: (cpus & given.cpus).bit_count() for number, cpus in numa_nodes.items()}
    return json.dumps(
        {"numa": {str(number): {"cpu": str(count)} for number, count in counts.items() if count}},
        separators=(",", ":"),
    )
