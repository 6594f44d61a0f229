"""Keeps groups apart: HyperNodes that a PodGroup does not share with others, `spec.topologyAffinity`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
import numpy as np

from capcard_sched.framework.api.node_hooks import NODE_SPEC, filter, score
from capcard_sched.framework.api.plugin import Plugin, Reads
from capcard_sched.framework.placement.hypernode_bounds import placed_by_hyper_node
from capcard_sched.model import reasons
from capcard_sched.model.group_affinity import AFFINITY_PLUGIN
from capcard_sched.model.refusal import Code, Refusal
from capcard_sched.model.selectors import matches_labels, namespace_labels

if TYPE_CHECKING:
    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.placement.hypernode_bounds import HyperNodeRows
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.group_affinity import GroupTerm
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue

MAX_SCORE: Final = 100.0
#: In texts, which tenants read, in place of the name of a group in another namespace.
_OF_OTHERS: Final = "a group of another namespace"


class GroupTopologyAffinityArguments(msgspec.Struct, frozen=True):
    """Arguments of group-topology-affinity."""

    #: Multiplier of the score of preferred terms; 0 disables it.
    weight: Annotated[int, msgspec.Meta(ge=0)] = 1


class OccupiedDomains(NamedTuple):
    """The HyperNodes of one term that hold pods of other groups."""

    #: The place of the term: `required[0]`.
    at: str
    #: 1 to 100 for a preferred term, 0 for a required one.
    weight: int
    #: Number of the tier; None when no HyperNode has it.
    tier: int | None
    #: The tier as the term names it.
    wanted: str
    #: Why a required term is not evaluated; "" if it is.
    problem: str
    #: Numbers of HyperNodes with the key of one of the groups there, ascending; `_OF_OTHERS` of another namespace.
    holders: tuple[tuple[int, str], ...]


class AffinityContext(NamedTuple):
    """The plugin's part of a signature: all that decides on nodes."""

    #: The version of the tree that the numbers are of.
    version: int
    terms: tuple[OccupiedDomains, ...]


class GroupTopologyAffinity(Plugin):
    """Keeps the pods of a PodGroup out of HyperNodes that hold pods of other groups.

    `spec.topologyAffinity.podGroupAntiAffinity` selects the other groups by the labels of PodGroups and namespaces, and
    the HyperNodes by tier. A required term excludes occupied HyperNodes and nodes in none of the tier; a preferred one
    lowers the score of occupied ones. A term concerns the pods of its own group alone. Pods without requests, which
    backfill binds, are not filtered.
    """

    name = AFFINITY_PLUGIN
    Arguments = GroupTopologyAffinityArguments
    arguments: GroupTopologyAffinityArguments
    reads = Reads.NAMESPACES

    def open(self, session: Session) -> None:
        self._session = session
        self._tree: HyperNodeTree = session.snapshot.tree
        #: Namespace and selection of a term to the groups that it selects.
        self._peers: dict[tuple[str, bytes], list[Job]] = {}
        #: Key of a job to its HyperNodes; dropped when its pods change.
        self._leaves: dict[str, frozenset[int]] = {}
        self._above: dict[int, np.ndarray[tuple[int], np.dtype[np.intp]]] = {}
        #: Key of a job with terms to its context, and the placements of others before it.
        self._contexts: dict[str, tuple[int, AffinityContext]] = {}
        #: The number of placements of the session, and of each job: its own do not change its context.
        self._placements, self._own = 0, Counter[str]()

    def on_allocate(self, placement: Placement) -> None:
        self._note(placement)

    def on_deallocate(self, placement: Placement) -> None:
        self._note(placement)

    def _note(self, placement: Placement) -> None:
        self._leaves.pop(placement.job.key, None)
        self._placements += 1
        self._own[placement.job.key] += 1

    # --- occupied HyperNodes ----------------------------------------------------------------------------------------

    def signature(self, queue: Queue, task: Task) -> AffinityContext | None:
        """The occupied HyperNodes of each term, for pods with requests of a group with terms."""
        job = task.job
        if job is None or not job.anti_affinity or task.cls.best_effort:
            return None
        return self._context(job)

    def _context(self, job: Job) -> AffinityContext:
        known, others = self._contexts.get(job.key), self._placements - self._own[job.key]
        if known is None or known[0] != others:
            found = AffinityContext(
                self._tree.version, tuple([self._occupied(job, term) for term in job.anti_affinity])
            )
            known = self._contexts[job.key] = others, found
        return known[1]

    def _occupied(self, job: Job, term: GroupTerm) -> OccupiedDomains:
        tier, holders = term.tier_in(self._tree), dict[int, str]()
        if tier is not None and not term.problem:
            above = self._above_at(tier)
            for peer in self._peers_of(job.namespace, term):
                if peer.uid != job.uid:
                    for leaf in sorted(self._leaves_of(peer)):
                        if (number := int(above[leaf])) >= 0:
                            holders.setdefault(number, peer.key if peer.namespace == job.namespace else _OF_OTHERS)
        wanted = term.tier_name or str(term.tier)
        return OccupiedDomains(term.at, term.weight, tier, wanted, term.problem, tuple(sorted(holders.items())))

    def _peers_of(self, namespace: str, term: GroupTerm) -> list[Job]:
        """The groups that a term of a PodGroup in a namespace selects, by key; itself included. O(jobs) once."""
        found = self._peers.get((namespace, term.selection))
        if found is None:
            labels, jobs = self._session.snapshot.namespaces, self._session.jobs
            found = self._peers[namespace, term.selection] = [
                job
                for _, job in sorted(jobs.items())
                if job.is_editable
                and matches_labels(term.groups, job.labels)
                and (
                    job.namespace == namespace
                    if term.namespaces is None
                    else matches_labels(term.namespaces, namespace_labels(job.namespace, labels.get(job.namespace)))
                )
            ]
        return found

    def _leaves_of(self, job: Job) -> frozenset[int]:
        """The lowest HyperNodes with placed pods of a job; -1 for nodes in none."""
        found = self._leaves.get(job.key)
        if found is None:
            counted = placed_by_hyper_node(self._tree, job)
            found = self._leaves[job.key] = frozenset(number for number, pods in counted.items() if pods)
        return found

    def _above_at(self, tier: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        """By HyperNode, the one of a tier that it is or is in, -1 for none; the last entry is for nodes in none."""
        found = self._above.get(tier)
        if found is None:
            tree = self._tree
            found = np.full(len(tree) + 1, -1, dtype=np.intp)
            for number in range(len(tree) - 1, -1, -1):  # parents follow their members
                found[number] = number if tree.tiers[number] == tier else found[tree.parents[number]]
            self._above[tier] = found
        return found

    # --- required terms ---------------------------------------------------------------------------------------------

    def _is_required(self, signature: PodSignature) -> bool:
        context = signature.context(self.name)
        return context is not None and any(not term.weight for term in context.terms)

    def _is_preferred(self, signature: PodSignature) -> bool:
        context = signature.context(self.name)
        return context is not None and any(term.weight for term in context.terms)

    def pre_predicate(self, signature: PodSignature) -> Refusal | None:
        """Refuses a pod that no node admits by a required term, with the term and the groups."""
        context = signature.context(self.name)
        details = [] if context is None else [self._refusal_of(term) for term in context.terms if not term.weight]
        found = [detail for detail in details if detail]
        if not found and details:
            leaf, is_open = self._tree.leaf, np.ones(len(self._tree.leaf), dtype=bool)
            required = [term for term in context.terms if not term.weight]
            for term in required:
                is_open &= self._open_domains(term)[leaf]
            if not is_open.any():
                found = [self._holders_text(term) for term in required if term.holders]
        if not found:
            return None
        row = reasons.TOPOLOGY_OCCUPIED
        return Refusal("pre_predicate", self.name, row.code, row.render(detail="; ".join(found)), Code.UNRESOLVABLE)

    def _refusal_of(self, term: OccupiedDomains) -> str:
        """Why a required term cannot be evaluated, "" if it can."""
        if term.problem:
            return f"{term.at} is invalid: {term.problem}"
        if term.tier is None:
            return f"{term.at}: no HyperNode has tier {term.wanted}"
        return ""

    def _holders_text(self, term: OccupiedDomains) -> str:
        """`required[0]: s0 holds default/anchor, s1 holds default/other`."""
        names = self._tree.names
        return f"{term.at}: {', '.join(f'{names[number]} holds {holder}' for number, holder in term.holders)}"

    def _open_domains(self, term: OccupiedDomains) -> Mask:
        """Whether a term admits nodes, by their lowest HyperNode: bool [HyperNodes + 1], the last for none."""
        assert term.tier is not None
        above = self._above_at(term.tier)
        admitted: Mask = (above >= 0) & ~np.isin(above, [number for number, _ in term.holders])
        return admitted

    @filter(reads=NODE_SPEC, when=_is_required)
    def filter_occupied(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        leaf = rows.take(self._tree.leaf)
        for term in signature.context(self.name).terms:
            if term.weight:
                continue
            if term.tier is None or term.problem:
                result.reject_all(Code.UNRESOLVABLE, self._refusal_of(term))
                continue
            above = self._above_at(term.tier)[leaf]
            result.reject(above < 0, Code.UNRESOLVABLE, f"node(s) were in no HyperNode of tier {term.wanted}")
            for number, holder in term.holders:
                name = self._tree.names[number]
                result.reject(
                    above == number, Code.UNRESOLVABLE, f"node(s) were in HyperNode {name} that holds {holder}"
                )

    # --- preferred terms --------------------------------------------------------------------------------------------

    @score(reads=NODE_SPEC, when=_is_preferred)
    def score_free(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        """0 to 100 x `weight` per row, less the weight of each preferred term whose HyperNode is occupied."""
        if not self.arguments.weight:
            return None
        scores: Scores = self._preference(signature.context(self.name))[rows.take(self._tree.leaf)]
        return scores

    def hyper_node_order(self, job: Job, candidates: tuple[HyperNodeRows, ...]) -> Scores | None:
        """The mean `score_free` of the nodes of each HyperNode; None where all are alike."""
        if not self.arguments.weight or not any(term.weight for term in job.anti_affinity):
            return None
        by_leaf, leaf = self._preference(self._context(job)), self._tree.leaf
        scores = np.array([by_leaf[leaf[one.rows]].mean() if len(one.rows) else 0.0 for one in candidates])
        return scores if np.ptp(scores) else None

    def _preference(self, context: AffinityContext) -> Scores:
        """By lowest HyperNode: float64 [HyperNodes + 1], the last for nodes in none."""
        lost = np.zeros(len(self._tree) + 1)
        for term in context.terms:
            if term.weight and term.tier is not None:
                above = self._above_at(term.tier)
                lost += np.where(np.isin(above, [number for number, _ in term.holders]), term.weight, 0.0)
        return np.maximum(0.0, MAX_SCORE - lost) * self.arguments.weight
