"""Keeps groups apart: HyperNodes that a PodGroup does not share with others, `spec.topologyAffinity`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
import numpy as np

from capcard_sched.framework.api.node_hooks import NODE_SPEC, filter, score
from capcard_sched.framework.api.plugin import Plugin, Reads
from capcard_sched.framework.toolkit.selected_groups import PlacedGroups
from capcard_sched.model import reasons
from capcard_sched.model.group_affinity import AFFINITY_PLUGIN
from capcard_sched.model.quoting import plural
from capcard_sched.model.refusal import Code, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.framework.api.node_view import FilterResult, Mask, NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.placement.hypernode_bounds import HyperNodeRows
    from capcard_sched.framework.session.namespace_work import NamespaceWork
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue

MAX_SCORE: Final = 100.0
#: In texts, which tenants read, in place of the name of a group in another namespace.
_OF_OTHERS: Final = "a group of another namespace"
#: HyperNodes that the reasons of a pod name; more are counted together.
_MOST_NAMED: Final = 8
_MORE_HOLDERS: Final = "node(s) were in further HyperNodes that hold other groups"


class GroupTopologyAffinityArguments(msgspec.Struct, frozen=True):
    """Arguments of group-topology-affinity."""

    #: Multiplier of the score of preferred terms; 0 disables it.
    weight: Annotated[int, msgspec.Meta(ge=0)] = 1


class OccupiedDomains(NamedTuple):
    """The HyperNodes that one required term excludes, and no term before it."""

    #: The place of the term: `required[0]`.
    at: str
    #: Number of the tier; None when no HyperNode has it.
    tier: int | None
    #: The tier as the term names it.
    wanted: str
    #: Why the term is not evaluated; "" if it is.
    problem: str
    #: Numbers of HyperNodes with the key of one of the groups there, ascending; `_OF_OTHERS` of another namespace.
    holders: tuple[tuple[int, str], ...]


class AffinityContext(NamedTuple):
    """The plugin's part of a signature: all that decides on nodes. Of a length in O(HyperNodes + terms)."""

    #: The version of the tree that the numbers are of.
    version: int
    required: tuple[OccupiedDomains, ...]
    #: Numbers of HyperNodes with the sum of the weights of the preferred terms that they violate, ascending.
    lost: tuple[tuple[int, int], ...]
    #: Whether the terms were not evaluated: the namespace reached its bound of comparisons.
    is_postponed: bool = False


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
        self._tree: HyperNodeTree = session.snapshot.tree
        self._work: NamespaceWork = session.namespace_work
        self._work.counts_comparisons = True
        self._groups = PlacedGroups(session)
        #: Key of a job with terms to its context, and the placements of others before it.
        self._contexts: dict[str, tuple[int, AffinityContext]] = {}
        #: The number of placements of each job: its own do not change its context.
        self._own = Counter[str]()

    def on_allocate(self, placement: Placement) -> None:
        self._note(placement)

    def on_deallocate(self, placement: Placement) -> None:
        self._note(placement)

    def _note(self, placement: Placement) -> None:
        self._groups.note(placement.job)
        self._own[placement.job.key] += 1

    # --- occupied HyperNodes ----------------------------------------------------------------------------------------

    def signature(self, queue: Queue, task: Task) -> AffinityContext | None:
        """The occupied HyperNodes of the terms, for pods with requests of a group with terms."""
        job = task.job
        if job is None or not job.anti_affinity or task.cls.best_effort:
            return None
        return self._context(job)

    def _context(self, job: Job) -> AffinityContext:
        known, others = self._contexts.get(job.key), len(self._groups.moves) - self._own[job.key]
        if known is not None and known[0] == others:
            return known[1]
        if not self._work.may_compare(job):
            return AffinityContext(self._tree.version, (), (), is_postponed=True)
        found = self._evaluated(job)
        self._contexts[job.key] = others, found
        return found

    def _evaluated(self, job: Job) -> AffinityContext:
        required: list[OccupiedDomains] = []
        excluded, lost = set[int](), Counter[int]()
        for term in job.anti_affinity:
            tier = term.tier_in(self._tree)
            held: Mapping[int, str] = {}
            if tier is not None and not term.problem:
                held = self._groups.selected(job.namespace, term).holders(tier, job)
                self._work.compare(job.namespace, 1 + len(held))
            if term.weight:
                lost.update(dict.fromkeys(held, term.weight))
                continue
            holders = tuple(
                [
                    (number, key if key.startswith(f"{job.namespace}/") else _OF_OTHERS)
                    for number, key in held.items()
                    if number not in excluded
                ]
            )
            excluded.update(held)
            wanted = term.tier_name or str(term.tier)
            required.append(OccupiedDomains(term.at, tier, wanted, term.problem, holders))
        return AffinityContext(self._tree.version, tuple(required), tuple(sorted(lost.items())))

    # --- required terms ---------------------------------------------------------------------------------------------

    def _is_required(self, signature: PodSignature) -> bool:
        context = signature.context(self.name)
        return context is not None and bool(context.required or context.is_postponed)

    def _is_preferred(self, signature: PodSignature) -> bool:
        context = signature.context(self.name)
        return context is not None and bool(context.lost)

    def pre_predicate(self, signature: PodSignature) -> Refusal | None:
        """Refuses a pod that no node admits by a required term, with the term and the groups."""
        context = signature.context(self.name)
        if context is None:
            return None
        if context.is_postponed:
            row = reasons.GROUP_COMPARISONS
            return Refusal("pre_predicate", self.name, row.code, row.render(), Code.UNRESOLVABLE)
        found = [detail for term in context.required if (detail := self._refusal_of(term))]
        if not found and context.required and not self._open_leaves(context)[self._tree.leaf].any():
            found = self._holders_texts(context)
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

    def _holders_texts(self, context: AffinityContext) -> list[str]:
        """`required[0]: s0 holds default/anchor, s1 holds default/other`; names of a few HyperNodes."""
        names, found, total = self._tree.names, list[str](), 0
        for term in context.required:
            named = term.holders[: max(0, _MOST_NAMED - total)]
            total += len(term.holders)
            if named:
                found.append(f"{term.at}: {', '.join(f'{names[number]} holds {holder}' for number, holder in named)}")
        return [*found, f"{plural(total - _MOST_NAMED, 'more HyperNode')}"] if total > _MOST_NAMED else found

    def _open_leaves(self, context: AffinityContext) -> Mask:
        """Whether the required terms admit nodes, by their lowest HyperNode: bool [HyperNodes + 1]."""
        found: Mask = np.ones(len(self._tree) + 1, dtype=bool)
        excluded = [number for term in context.required for number, _ in term.holders]
        for tier in {term.tier for term in context.required if term.tier is not None}:
            above = self._groups.above_at(tier)
            found &= (above >= 0) & ~np.isin(above, excluded)
        return found

    @filter(reads=NODE_SPEC, when=_is_required)
    def filter_occupied(self, signature: PodSignature, rows: NodeView, result: FilterResult) -> None:
        context, leaf = signature.context(self.name), rows.take(self._tree.leaf)
        if context.is_postponed:
            result.reject_all(Code.UNRESOLVABLE, reasons.GROUP_COMPARISONS.render())
            return
        tiers, named = set[int](), 0
        for term in context.required:
            if term.tier is None or term.problem:
                result.reject_all(Code.UNRESOLVABLE, self._refusal_of(term))
                continue
            above = self._groups.above_at(term.tier)[leaf] if term.holders or term.tier not in tiers else None
            if above is None:
                continue
            if term.tier not in tiers:
                tiers.add(term.tier)
                result.reject(above < 0, Code.UNRESOLVABLE, f"node(s) were in no HyperNode of tier {term.wanted}")
            for number, holder in term.holders[: _MOST_NAMED - named]:
                name = self._tree.names[number]
                result.reject(
                    above == number, Code.UNRESOLVABLE, f"node(s) were in HyperNode {name} that holds {holder}"
                )
            if more := [number for number, _ in term.holders[_MOST_NAMED - named :]]:
                result.reject(np.isin(above, more), Code.UNRESOLVABLE, _MORE_HOLDERS)
            named = min(_MOST_NAMED, named + len(term.holders))

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
        by_number, total = np.zeros(len(self._tree) + 1), np.zeros(len(self._tree) + 1)
        for number, weight in context.lost:
            by_number[number] = weight
        for tier in {self._tree.tiers[number] for number, _ in context.lost}:
            above = self._groups.above_at(tier)
            total += np.where(above >= 0, by_number[above], 0.0)
        return np.maximum(0.0, MAX_SCORE - total) * self.arguments.weight
