"""Filtering and scoring of nodes by the plugins' node hooks, once per pod signature.

Static results are kept until a node's facts change, rankings (`ranking`) and scores (`score_cache`) for one session.
Where nothing can be kept, `candidates` and `choose` run all hooks over all nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.api.node_view import Diagnosis, FilterResult, NodeView, PodSignature
from capcard_sched.framework.placement import hypernode_bounds
from capcard_sched.framework.placement.node_classes import NodeClasses
from capcard_sched.framework.placement.plugin_states import PluginStates
from capcard_sched.framework.placement.ranking import Ranking
from capcard_sched.framework.placement.score_cache import ScoreCache
from capcard_sched.model.hyper_nodes import NO_TREE
from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import numpy.typing as npt

    from capcard_sched.framework.api.dispatch import Dispatch, Entry
    from capcard_sched.framework.api.node_view import Mask, Rows, Scores
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import ResourceColumns
    from capcard_sched.state.columns import NodeTable

#: Sessions without use after which static results are dropped, and the number of results above which all but those of
#: the last session are. Each holds a mask and scores over all nodes.
_STATIC_SESSIONS = 64
_MOST_STATIC = 4096

_NEVER = float("-inf")


class PlacementEngine:
    """Pod signatures and their rankings, one per scheduler-conf.

    Rankings live for one session, static results longer.
    """

    #: Size of the LRU cache of score caches, each with one score per node.
    max_score_caches: ClassVar[int] = 64

    def __init__(self, dispatch: Dispatch, columns: ResourceColumns) -> None:
        self._dispatch = dispatch
        self._columns = columns
        self._class_context = dispatch.entries("class_context")
        self._task_context = dispatch.entries("task_context")
        #: Names of the plugins that follow the tree of HyperNodes (`Plugin.follows_tree`).
        self.tree_followers = frozenset(plugin.name for plugin in dispatch.plugins if plugin.follows_tree)
        self._predicate_static = dispatch.entries("predicate_static")
        self._predicate = dispatch.entries("predicate")
        self._predicate_domain = dispatch.entries("predicate_domain")
        self._order_static = dispatch.entries("node_order_static")
        self._order = dispatch.entries("node_order")
        self._batch_order = dispatch.entries("batch_node_order")
        self._best_node = dispatch.entries("best_node")
        declared = {name for name, _ in dispatch.entries("row_private")}
        #: Some plugin filters or scores rows without declaring its reads: no result is shared between nodes.
        self._undeclared = any(name not in declared for name, _ in (*self._predicate, *self._order))
        #: Per quota plugin (name, batch form, plain form).
        self.quota_hooks = quota_hooks(dispatch.entries("allocatable_many"), dispatch.entries("allocatable"))
        self._static: dict[Hashable, tuple[int, int, Mask, Scores | None]] = {}
        #: The node classes shared by rankings; built with the first one, kept from session to session while the nodes
        #: stay. Static groups (`_static_groups`) outlive them.
        self._node_classes: NodeClasses | None = None
        self.plugin_states = PluginStates(dispatch)
        self._session = 0
        #: Generation of the node table, and the static groups of its rows.
        self._static_groups: tuple[int, npt.NDArray[np.int64] | None] = (-1, None)

    def open(self, table: NodeTable, tree: HyperNodeTree = NO_TREE) -> None:
        """Starts a session over a settled node table."""
        self._session += 1
        self.table = table
        self.tree = tree
        self.plugin_states.open(len(table))
        #: Who answers for the nodes under a HyperNode, by its number and whether the followers of the tree are heard.
        self.restricted: dict[tuple[int, bool], PlacementEngine] = {}
        self._signatures: dict[Hashable, PodSignature] = {}
        self._rankings: dict[PodSignature, Ranking] = {}
        self._score_caches: dict[PodSignature, ScoreCache] = {}
        self._diagnoses: dict[PodSignature, tuple[int, str, Diagnosis]] = {}
        #: Incremented by every eviction of the session, which invalidates known limits.
        self.releases = 0
        if self._node_classes is not None and not self._node_classes.is_reusable(table):
            self._node_classes = None
        if self._node_classes is not None:
            self._node_classes.recheck()
        over_capacity = len(self._static) > _MOST_STATIC
        if over_capacity or self._session % _STATIC_SESSIONS == 0:
            old = self._session - (2 if over_capacity else _STATIC_SESSIONS)
            self._static = {key: value for key, value in self._static.items() if value[1] > old}

    # --- profiles ---------------------------------------------------------------------------------------------------

    def signature(self, queue: Queue, task: Task) -> PodSignature:
        """The signature of a task now: contexts may change with every placement."""
        cls = task.cls
        contexts: dict[str, Hashable] = {}
        for name, call in self._class_context:
            try:
                context = call(queue, cls)
            except Exception as error:
                raise HookFailed(name, "class_context", error) from error
            if context is not None:
                contexts[name] = context
        for name, context in self.task_contexts(task):
            contexts[name] = (contexts[name], context) if name in contexts else context
        if task.job is not None and task.job.topology is not None:
            self._add_topology_bound(task.job, contexts)
        key: Hashable = (cls.id, tuple(contexts.items())) if contexts else cls.id
        signature = self._signatures.get(key)
        if signature is None:
            signature = self._signatures[key] = PodSignature(cls, contexts, len(self._signatures))
        return signature

    def _add_topology_bound(self, job: Job, contexts: dict[str, Hashable]) -> None:
        """Restricts a job in hard mode to the HyperNodes near its placed pods."""
        bound = hypernode_bounds.bound_of(self.tree, job)
        if bound is not None:
            contexts[hypernode_bounds.CONTEXT] = bound

    def task_contexts(self, task: Task) -> list[tuple[str, Hashable]]:
        """The contexts of one pod beyond its class, as (plugin, context); usually empty."""
        found: list[tuple[str, Hashable]] = []
        for name, call in self._task_context:
            try:
                context = call(task)
            except Exception as error:
                raise HookFailed(name, "task_context", error) from error
            if context is not None:
                found.append((name, context))
        return found

    # --- evaluation -------------------------------------------------------------------------------------------------

    def scores(self, signature: PodSignature, selection: NodeView) -> Scores:
        """Row hooks over a selection, without the static part: float64 [k], -inf where a filter rejects."""
        result: FilterResult | None = None
        if self._predicate:
            result = FilterResult(len(selection))
            self._filter(self._predicate, "predicate", signature, selection, result)
        total = self._order_scores(signature, selection)
        if result is not None and not result.unanimous:
            total = np.where(result.ok, total, _NEVER)  # a new array: the old one may belong to a plugin
        return total

    def _order_scores(self, signature: PodSignature, selection: NodeView) -> Scores:
        total = self._sum(self._order, "node_order", signature, selection)
        return np.zeros(len(selection)) if total is None else total

    @staticmethod
    def _sum(
        entries: Sequence[Entry], hook: str, signature: PodSignature, selection: NodeView, total: Scores | None = None
    ) -> Scores | None:
        """Adds the plugins' scores to `total`: float64 [k]; None without any."""
        for name, call in entries:
            try:
                part = call(signature, selection)
            except Exception as error:
                raise HookFailed(name, hook, error) from error
            if part is not None:
                total = part if total is None else total + part
        return total

    @staticmethod
    def _filter(
        entries: Sequence[Entry], hook: str, signature: PodSignature, selection: NodeView, result: FilterResult
    ) -> None:
        for name, call in entries:
            try:
                call(signature, selection, result)
            except Exception as error:
                raise HookFailed(name, hook, error) from error

    def _static_results(self, signature: PodSignature) -> tuple[Mask, Scores | None]:
        """Mask and scores that placements cannot change; cached until a node's facts change."""
        key = (signature.cls, tuple(signature.contexts.items()))
        generation = self.table.generation
        found = self._static.get(key)
        if found is not None and found[0] == generation and len(found[2]) == len(self.table):
            self._static[key] = (generation, self._session, found[2], found[3])
            return found[2], found[3]
        everything = self.all_rows()
        result = FilterResult(len(everything))
        self._filter(self._predicate_static, "predicate_static", signature, everything, result)
        bound = signature.contexts.get(hypernode_bounds.CONTEXT)
        if bound is not None:
            assert isinstance(bound, hypernode_bounds.HyperNodeBound)
            result.reject(~hypernode_bounds.allowed_rows(self.tree, bound), Code.UNRESOLVABLE, hypernode_bounds.BEYOND)
        total = self._sum(self._order_static, "node_order_static", signature, everything)
        self._static[key] = (generation, self._session, result.ok, total)
        return result.ok, total

    def all_rows(self) -> NodeView:
        """Every row."""
        return NodeView(self.table, np.arange(len(self.table), dtype=np.intp), whole=True)

    def ranking(self, signature: PodSignature) -> Ranking:
        """The up-to-date ranking of a signature."""
        ranking = self._rankings.get(signature)
        if ranking is None:
            feasible, static = self._static_results(signature)
            ranking = self._rankings[signature] = Ranking(self, signature, feasible, static)
        else:
            ranking.sync()
        return ranking

    def classes_for(self, feasible: Mask, static: Scores | None) -> NodeClasses:
        """The node classes for a ranking with these static results: the shared ones, else its own."""
        table = self.table
        if self._node_classes is None:
            generation, static_groups = self._static_groups
            known = generation == table.generation and static_groups is not None and len(static_groups) == len(table)
            self._node_classes = NodeClasses(
                table, static_groups=static_groups if known else None, plugin_states=self.plugin_states
            )
        else:
            self._node_classes.catch_up()
        if self._node_classes.separates(feasible, static):
            self._static_groups = (table.generation, self._node_classes.static_groups)
            return self._node_classes
        own = None if static is None else np.unique(static, return_inverse=True)[1].astype(np.int64)
        return NodeClasses(table, static_groups=own, members=feasible, plugin_states=self.plugin_states)

    def is_private(self, signature: PodSignature) -> bool:
        """Whether a row hook reads more of a node than its amounts, for this signature."""
        return self._undeclared or self._dispatch.any("row_private", signature)

    def compares_nodes(self, signature: PodSignature, candidates: Rows) -> bool:
        """Whether some hook's result for one node depends on other nodes, for this signature now."""
        if self._best_node:
            return True
        for name, call in self._batch_order:
            try:
                if call(signature, NodeView(self.table, candidates)) is not None:
                    return True
            except Exception as error:
                raise HookFailed(name, "batch_node_order", error) from error
        return False

    def is_domain_bound(self, signature: PodSignature) -> bool:
        """Whether placements elsewhere may change the feasible nodes of this signature."""
        return self._dispatch.any("domain_bound", signature)

    # --- results ----------------------------------------------------------------------------------------------------

    def feasible(self, signature: PodSignature) -> Mask:
        """Rows that pass the static filters: bool [nodes]."""
        return self._static_results(signature)[0]

    def open_to_evictions(self, signature: PodSignature) -> Mask:
        """Rows that pass the static filters, possibly after evictions: bool [nodes]. Not cached.

        Evictions in the pod's own queue return quota, and with it the nodes that only the quota closed.
        """
        everything = self.all_rows()
        diagnosis = Diagnosis(len(everything))
        self._filter(self._predicate_static, "predicate_static", signature, everything, diagnosis)
        open_rows: Mask = self.feasible(signature) | (diagnosis.codes == Code.UNSCHEDULABLE)
        return open_rows

    def static_scores(self, signature: PodSignature) -> Scores | None:
        """The part of all scores that placements cannot change: float64 [nodes]; None without such a part."""
        return self._static_results(signature)[1]

    def candidates(self, signature: PodSignature, *, future: bool, among: Rows | None = None) -> Rows:
        """All rows that fit one pod now (`future`: once releasing pods are gone), nominations kept. The full scan.

        `among`: intp, ascending; restricts the scan to these rows.
        """
        feasible, _ = self._static_results(signature)
        rows = np.flatnonzero(feasible) if among is None else among[feasible.take(among)]
        rows = rows[self.has_capacity(signature, NodeView(self.table, rows), future=future)]
        if not len(rows):
            return rows
        selection = NodeView(self.table, rows, future=future)
        result = FilterResult(len(rows))
        self._filter(self._predicate, "predicate", signature, selection, result)
        if self.is_domain_bound(signature):
            self._filter(self._predicate_domain, "predicate_domain", signature, selection, result)
        return rows[result.ok]

    @staticmethod
    def has_capacity(signature: PodSignature, selection: NodeView, *, future: bool = False) -> Mask:
        """Whether entries have capacity for one pod now (`future`: once releasing pods are gone): bool [k]."""
        requested = np.flatnonzero(signature.cls.fit_request)
        free = selection.future_idle[:, requested]
        if not future:  # idle capacity assigned to pipelined pods is taken
            free = np.minimum(free, selection.idle[:, requested])
        size: Mask = np.logical_and.reduce(free >= signature.cls.fit_request[requested], axis=1)
        return size

    def best(self, signature: PodSignature) -> int:
        """The row for one pod now, `choose` of the `candidates` from cached scores; -1 when there is none."""
        if self._undeclared or self._dispatch.any("row_dependent", signature):
            return self.choose(signature, self.candidates(signature, future=False))
        cache = self._score_caches.pop(signature, None)
        if cache is None:
            cache = ScoreCache(self, signature, *self._static_results(signature))
            if len(self._score_caches) >= self.max_score_caches:
                del self._score_caches[next(iter(self._score_caches))]
        self._score_caches[signature] = cache  # most recently used
        candidates, scores = cache.candidates()
        if len(candidates) and self.is_domain_bound(signature):
            result = FilterResult(len(candidates))
            self._filter(
                self._predicate_domain, "predicate_domain", signature, NodeView(self.table, candidates), result
            )
            candidates, scores = candidates[result.ok], scores[result.ok]
        if not len(candidates):
            return -1
        selection = NodeView(self.table, candidates)
        total = self._sum(self._batch_order, "batch_node_order", signature, selection, scores)
        return self._pick(signature, candidates, scores if total is None else total)

    def choose(self, signature: PodSignature, candidates: Rows, *, future: bool = False) -> int:
        """The best of some candidate rows by all score hooks; -1 without candidates."""
        if not len(candidates):
            return -1
        selection = NodeView(self.table, candidates, future=future)
        return self._pick(signature, candidates, self.totals(signature, selection))

    def _pick(self, signature: PodSignature, candidates: Rows, total: Scores) -> int:
        """The best of candidate rows with these scores, unless a plugin chooses."""
        for name, call in self._best_node:
            try:
                row = call(signature, candidates, total)
            except Exception as error:
                raise HookFailed(name, "best_node", error) from error
            if row is not None:
                return int(row)
        return int(candidates[int(np.argmax(total))])

    def totals(self, signature: PodSignature, selection: NodeView) -> Scores:
        """All score hooks together, for feasible rows: float64 [k]."""
        _, static = self._static_results(signature)
        total = self._order_scores(signature, selection)
        if static is not None:
            total = total + static[selection.rows]
        compared = self._sum(self._batch_order, "batch_node_order", signature, selection, total)
        return total if compared is None else compared

    def fits(self, signature: PodSignature, row: int, *, future: bool) -> bool:
        """Whether one row passes every filter for one pod."""
        return bool(len(self.candidates(signature, future=future, among=np.array([row], dtype=np.intp))))

    def diagnose(self, signature: PodSignature) -> tuple[str, Diagnosis]:
        """The text with the reasons why no node fits a pod of the signature, and the codes per row.

        Resources come first and end a node's list; then plugins in conf order. Counts sort by number. Best-effort pods
        are filtered by plugins alone, as in backfill.
        """
        position = self.table.serial
        known = self._diagnoses.get(signature)
        if known is not None and known[0] == position:
            return known[1], known[2]
        everything = self.all_rows()
        diagnosis = Diagnosis(len(everything))
        if signature.cls.best_effort:
            # backfill filters by plugins alone: a plugin may reject nodes without free pod slots
            self._run_filter_chain(signature, everything, diagnosis)
            self._reject_insufficient(signature, everything, diagnosis, diagnosis.ok.copy())
        else:
            short = self._reject_insufficient(signature, everything, diagnosis, np.ones(len(everything), dtype=bool))
            rest = np.flatnonzero(~short)
            chain = Diagnosis(len(rest))
            self._run_filter_chain(signature, NodeView(self.table, rest), chain)
            for reason, count in chain.reasons.items():
                diagnosis.reasons[reason] = diagnosis.reasons.get(reason, 0) + count
                diagnosis.sources.setdefault(reason, chain.sources[reason])
            diagnosis.codes[rest] = chain.codes
        text = fit_text(len(everything), diagnosis.reasons)
        self._diagnoses[signature] = (position, text, diagnosis)
        return text, diagnosis

    def _reject_insufficient(
        self, signature: PodSignature, everything: NodeView, diagnosis: Diagnosis, selected: Mask
    ) -> Mask:
        """Rejects the rows of `selected` that lack a requested resource; returns them: bool [nodes]."""
        free, request = everything.future_idle, signature.cls.fit_request
        diagnosis.caller = ("", "fit")
        short_of_any = np.zeros(len(everything), dtype=bool)
        for resource in self._columns.sorted_names(self._columns.amounts(request)):
            column = self._columns.column(resource)
            short = selected & (free[:, column] < request[column])
            diagnosis.reject(short, Code.UNSCHEDULABLE, f"Insufficient {resource}")
            short_of_any |= short
        return short_of_any

    def _run_filter_chain(self, signature: PodSignature, selection: NodeView, diagnosis: Diagnosis) -> None:
        """Runs all filters over a selection."""
        if not len(selection):
            return
        bound = signature.contexts.get(hypernode_bounds.CONTEXT)
        if bound is not None:
            assert isinstance(bound, hypernode_bounds.HyperNodeBound)
            diagnosis.caller = ("", "fit")
            allowed = hypernode_bounds.allowed_rows(self.tree, bound)
            diagnosis.reject(~allowed[selection.rows], Code.UNRESOLVABLE, hypernode_bounds.BEYOND)
        entries = [("predicate_static", self._predicate_static), ("predicate", self._predicate)]
        if self.is_domain_bound(signature):
            entries.append(("predicate_domain", self._predicate_domain))
        for hook, calls in entries:
            for entry in calls:
                diagnosis.caller = (entry[0], hook)
                self._filter([entry], hook, signature, selection, diagnosis)


def fit_text(nodes: int, reasons: dict[str, int]) -> str:
    """The fit text: `0/3 nodes are unavailable: 1 Insufficient cpu, 2 node(s) were unschedulable.`."""
    if not reasons:
        return f"0/{nodes} nodes are unavailable"
    parts = sorted((count, reason) for reason, count in reasons.items())
    return f"0/{nodes} nodes are unavailable: {', '.join(f'{count} {reason}' for count, reason in parts)}."


def quota_hooks(
    many: Sequence[Entry], single: Sequence[Entry]
) -> list[tuple[str, Callable[..., Any] | None, Callable[..., Any]]]:
    """Per quota plugin its batch form where it has one, and its plain form, in conf order."""
    by_name = dict(many)
    return [(name, by_name.get(name), call) for name, call in single]
