"""Placement of pods on a set of nodes, once per pod signature.

Static results are kept until a node's facts change (`signature_cache`), rankings (`ranking`) and scores (`ScoreCache`)
for one session. Where nothing can be kept, `candidates` and `choose` run all hooks over all nodes.
"""

from __future__ import annotations

from heapq import heappop, heappush, nsmallest
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.api.node_view import Diagnosis, FilterResult, NodeView
from capcard_sched.framework.api.plugin import Grant
from capcard_sched.framework.placement import hypernode_bounds
from capcard_sched.framework.placement.node_classes import NodeSet
from capcard_sched.framework.placement.ranking import Ranking
from capcard_sched.model.refusal import Code
from capcard_sched.model.resources import PODS_COLUMN

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from capcard_sched.framework.api.dispatch import Dispatch, Entry
    from capcard_sched.framework.api.node_view import Mask, PodSignature, Rows, Scores
    from capcard_sched.framework.placement.node_hooks import SignatureHooks
    from capcard_sched.framework.placement.signature_cache import SignatureCache
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import ResourceColumns
    from capcard_sched.state.columns import NodeTable

_NEVER = float("-inf")
#: The negated score of a node without capacity.
_FULL: Final = float("inf")
#: Most pods per node, and nodes times pods, that are scored ahead.
_STEPS_AHEAD: Final = 8
_SCORED_AHEAD: Final = 512
#: Pods: the longest pause of looking ahead after it found no second row.
_LONGEST_PAUSE: Final = 63

#: Names in the reasons of a pod among the resources that no node offers.
_MOST_UNOFFERED: Final = 4


class PlacementEngine:
    """Places pods on one set of nodes in one session: on all nodes, or on those of a HyperNode (`restrict`)."""

    #: Sizes of the LRU cache of score caches, each with one score per node: for all nodes, and for a HyperNode.
    max_score_caches: ClassVar[int] = 64
    max_restricted_score_caches: ClassVar[int] = 2
    #: Pods that are placed at once if they differ in the names of generated claims alone.
    max_alike: ClassVar[int] = 256

    def __init__(
        self,
        cache: SignatureCache,
        columns: ResourceColumns,
        quota_hooks: QuotaHooks,
        nodes: NodeSet,
        *,
        restricted: bool = False,
        by_tree: bool = True,
    ) -> None:
        """`restricted` and `by_tree`: see `SignatureCache.contexts`."""
        self._cache = cache
        self._hooks = cache.hooks
        self._columns = columns
        #: Per quota plugin (name, batch form, plain form).
        self._quota_hooks = quota_hooks
        self.nodes = nodes
        self._is_restricted = restricted
        self._by_tree = by_tree
        self._most_score_caches = self.max_restricted_score_caches if restricted else self.max_score_caches
        #: Engines by number of a HyperNode and participation of the plugins that follow the tree.
        self._restricted: dict[tuple[int, bool, str], PlacementEngine] = {}
        self._masks: dict[PodSignature, tuple[Mask, Scores | None]] = {}
        self._rankings: dict[PodSignature, Ranking] = {}
        #: By `PodSignature.row_key`.
        self._score_caches: dict[Hashable, ScoreCache] = {}
        self._diagnoses: dict[PodSignature, tuple[int, str, Diagnosis]] = {}

    def restrict(self, number: int, *, by_tree: bool, label: str = "") -> PlacementEngine:
        """The engine for the nodes of one HyperNode, or of one value of a node label, built on its first use.

        `by_tree`: whether plugins that follow the tree of HyperNodes take part.
        """
        key = number, by_tree and bool(self.tree_followers), label
        found = self._restricted.get(key)
        if found is None:
            rows = self._cache.tree.labeled(label).rows_of(number)
            nodes = NodeSet(self.nodes.table, self._cache.plugin_states, rows)
            found = self._restricted[key] = PlacementEngine(
                self._cache, self._columns, self._quota_hooks, nodes, restricted=True, by_tree=by_tree
            )
        return found

    @property
    def tree_followers(self) -> frozenset[str]:
        """Names of the plugins that follow the tree of HyperNodes."""
        return self._hooks.tree_followers

    @property
    def confined(self) -> dict[Hashable, int]:
        """Key of a job, or it and a subgroup, to the HyperNode that its pods are confined to for now."""
        return self._cache.confined

    @property
    def releases(self) -> int:
        """The number of evictions of the session; each one invalidates known limits."""
        return self._cache.releases

    def note_release(self) -> None:
        self._cache.releases += 1

    # --- signatures -------------------------------------------------------------------------------------------------

    def signature(self, queue: Queue, task: Task) -> PodSignature:
        """The signature of a task now: contexts may change with every placement."""
        cache = self._cache
        contexts = cache.contexts(queue, task, restricted=self._is_restricted, by_tree=self._by_tree)
        return cache.intern(task.cls, contexts)

    def contexts(self, queue: Queue, task: Task) -> dict[str, Hashable]:
        """The contexts of one pod besides its class, by plugin; usually few."""
        return self._hooks.contexts(queue, task, by_tree=self._by_tree)

    def reads_other_nodes(self, signature: PodSignature) -> bool:
        """Whether placements elsewhere may change filters or scores of this signature."""
        return self._hooks.of(signature).reads_other_nodes

    def picks_highest(self, signature: PodSignature) -> bool:
        """Whether `choose` takes the first row with the highest score, and each score follows from its row alone."""
        return self._hooks.of(signature).picks_highest

    def reads_amounts_only(self, signature: PodSignature) -> bool:
        """Whether no filter and no score of this signature reads other nodes or the pods of a node."""
        hooks = self._hooks.of(signature)
        return not (hooks.reads_other_nodes or hooks.reads_pods)

    def fits_by_amounts(self, signature: PodSignature) -> bool:
        """Whether no filter of this signature reads other nodes or the pods of a node, whatever its scores read."""
        return self._hooks.of(signature).filters_by_amounts

    # --- quotas -----------------------------------------------------------------------------------------------------

    def quota_grant(self, queue: Queue, signature: PodSignature, run: Sequence[Task]) -> Grant:
        """The grant of all quota plugins together for pods of one signature. May raise HookFailed."""
        count = at_once = len(run)
        alternatives: Rows | None = None
        limits: tuple[int, ...] = ()
        for plugin, many, single in self._quota_hooks:
            try:
                if many is None:
                    refusal = single(queue, run[0])
                    result = Grant(0 if refusal is not None else 1, refusal, at_once=1)
                else:
                    result = many(queue, signature, run if count == len(run) else run[:count])
            except Exception as error:
                raise HookFailed(plugin, "allocatable" if many is None else "allocatable_many", error) from error
            if result.count <= 0:
                return result
            count, at_once = min(count, result.count), min(at_once, result.at_once)
            if result.alternatives is not None:
                if alternatives is not None:
                    count = 1  # two plugins with alternatives: both are called before every pod
                alternatives, limits = result.alternatives, result.alternative_limits
        return Grant(count, None, alternatives, limits, at_once)

    # --- static results ---------------------------------------------------------------------------------------------

    def _static_results(self, signature: PodSignature) -> tuple[Mask, Scores | None]:
        if not self._is_restricted:
            return self._cache.static_results(signature)
        found = self._masks.get(signature)
        if found is None:
            feasible, static = self._cache.static_results(signature)
            found = self._masks[signature] = self.nodes.restrict(feasible), static
        return found

    def all_rows(self) -> NodeView:
        """Every row of the set."""
        return self.nodes.view()

    def feasible(self, signature: PodSignature) -> Mask:
        """Rows that pass the static filters: bool [nodes]."""
        return self._static_results(signature)[0]

    def static_scores(self, signature: PodSignature) -> Scores | None:
        """The part of all scores that placements cannot change: float64 [nodes]; None without such a part."""
        return self._static_results(signature)[1]

    def equal_nodes(self, signature: PodSignature) -> Rows:
        """A number for each node; nodes of one number have equal amounts and static results: int64 [nodes], >= 0."""
        return self.nodes.classes_for(*self._static_results(signature)).numbers

    def open_to_evictions(self, signature: PodSignature) -> Mask:
        """Rows of all nodes that pass the static filters, possibly after evictions: bool [nodes]. Not cached."""
        return self._cache.open_to_evictions(signature)

    # --- placement --------------------------------------------------------------------------------------------------

    def ranking(self, signature: PodSignature) -> Ranking:
        """The up-to-date ranking of a signature."""
        ranking = self._rankings.get(signature)
        if ranking is None:
            feasible, static = self._static_results(signature)
            ranking = self._rankings[signature] = Ranking(
                self._hooks.of(signature), self.nodes, signature, feasible, static
            )
        else:
            ranking.sync()
        return ranking

    def candidates(self, signature: PodSignature, *, future: bool, among: Rows | None = None) -> Rows:
        """All rows that fit one pod now (`future`: once releasing pods are gone), nominations kept. The full scan.

        `among`: intp, ascending; restricts the scan to these rows.
        """
        feasible, _ = self._static_results(signature)
        table = self.nodes.table
        rows = feasible.nonzero()[0] if among is None else among[feasible.take(among)]
        rows = rows[NodeView(table, rows).has_capacity(signature.cls.fit_request, future=future)]
        if not len(rows):
            return rows
        selection = NodeView(table, rows, future=future)
        result = FilterResult(len(rows))
        hooks = self._hooks.of(signature)
        hooks.filter_rows(selection, result)
        hooks.filter_by_others(selection, result)
        return rows[result.ok]

    def best(self, signature: PodSignature) -> int:
        """The row for one pod now, `choose` of the `candidates` from cached scores; -1 when there is none."""
        rows = self.best_rows(signature, 1)
        return rows[0] if rows else -1

    def best_rows(self, signature: PodSignature, most: int) -> list[int]:
        """The rows of the next up to `most` pods with equal `row_key`, each `best` after the ones before.

        Only the first one where the others would have to be searched anew; [] where no row is left.
        """
        hooks, table = self._hooks.of(signature), self.nodes.table
        cache = self._score_caches.pop(signature.row_key, None)
        if cache is None:
            cache = ScoreCache(hooks, table, signature, *self._static_results(signature))
            if len(self._score_caches) >= self._most_score_caches:
                del self._score_caches[next(iter(self._score_caches))]
        self._score_caches[signature.row_key] = cache  # most recently used
        if hooks.picks_highest and (row := cache.highest()) is not None:
            is_known = hooks.scores_ahead and self._cache.plugin_states.is_empty
            return cache.highest_rows(row, most) if is_known else [row] if row >= 0 else []
        candidates, scores = cache.candidates()
        if len(candidates) and hooks.reads_other_nodes:
            result = FilterResult(len(candidates))
            hooks.filter_by_others(NodeView(table, candidates), result)
            if not result.unanimous:
                kept = result.ok.nonzero()[0]
                candidates, scores = candidates.take(kept), scores.take(kept)
        if not len(candidates):
            return []
        total = hooks.with_comparing_scores(NodeView(table, candidates), scores)
        row = hooks.pick(candidates, total)
        return [row] if row >= 0 else []

    def count_alike(self, queue: Queue, signature: PodSignature, tasks: Sequence[Task]) -> int:
        """How many tasks from the first on have signatures with the `row_key` of this one. Their classes are alike."""
        restricted, by_tree = self._is_restricted, self._by_tree
        return self._cache.count_alike(queue, signature, tasks, restricted=restricted, by_tree=by_tree)

    def choose(self, signature: PodSignature, candidates: Rows, *, future: bool = False) -> int:
        """The best of some candidate rows by all score hooks; -1 without candidates."""
        if not len(candidates):
            return -1
        selection = NodeView(self.nodes.table, candidates, future=future)
        return self._hooks.of(signature).pick(candidates, self.totals(signature, selection))

    def totals(self, signature: PodSignature, selection: NodeView) -> Scores:
        """All score hooks together, for feasible rows: float64 [k]."""
        _, static = self._static_results(signature)
        hooks = self._hooks.of(signature)
        total = hooks.row_scores(selection)
        if static is not None:
            total = total + static[selection.rows]
        return hooks.with_comparing_scores(selection, total)

    def fits(self, signature: PodSignature, row: int, *, future: bool) -> bool:
        """Whether one row passes every filter for one pod now (`future`: once releasing pods are gone)."""
        return bool(len(self.candidates(signature, future=future, among=np.array([row], dtype=np.intp))))

    # --- reasons ----------------------------------------------------------------------------------------------------

    def diagnose(self, signature: PodSignature) -> tuple[str, Diagnosis]:
        """The text with the reasons why no node fits a pod of the signature, and the codes per row of the set.

        Resources come first and end a node's list; then plugins in conf order. Counts sort by number. Best-effort pods
        are filtered by plugins alone, as in backfill.
        """
        position = self.nodes.table.serial
        known = self._diagnoses.get(signature)
        if known is not None and known[0] == position:
            return known[1], known[2]
        everything = self.all_rows()
        diagnosis = Diagnosis(len(everything))
        if signature.cls.best_effort:
            # backfill filters by plugins alone: a plugin may reject nodes without free pod slots
            self._run_filters(signature, everything, diagnosis)
            self._reject_insufficient(signature, everything, diagnosis, diagnosis.ok.copy())
        else:
            short = self._reject_insufficient(signature, everything, diagnosis, np.ones(len(everything), dtype=bool))
            rest = (~short).nonzero()[0]
            chain = self.filter_rows(signature, rest)
            for reason, count in chain.reasons.items():
                diagnosis.reasons[reason] = diagnosis.reasons.get(reason, 0) + count
                diagnosis.sources.setdefault(reason, chain.sources[reason])
                entries = diagnosis.entries.setdefault(reason, np.zeros(len(everything), dtype=bool))
                entries[rest] |= chain.entries[reason]
            diagnosis.codes[rest] = chain.codes
        text = fit_text(len(everything), diagnosis.reasons)
        self._diagnoses[signature] = (position, text, diagnosis)
        return text, diagnosis

    def filter_rows(self, signature: PodSignature, selected: Rows, into: Diagnosis | None = None) -> Diagnosis:
        """The reasons of all filters for some rows of the set, whatever their free resources. `into`: what records."""
        found = into or Diagnosis(len(selected))
        self._run_filters(signature, NodeView(self.nodes.table, self.all_rows().rows[selected]), found)
        return found

    def _reject_insufficient(
        self, signature: PodSignature, everything: NodeView, diagnosis: Diagnosis, selected: Mask
    ) -> Mask:
        """Rejects the rows of `selected` that lack a requested resource; returns them: bool [nodes of the set]."""
        cls, columns = signature.cls, self._columns
        free, unoffered = everything.future_idle, cls.unoffered
        request = cls.fit_request
        if unoffered:
            request = request.copy()
            request[PODS_COLUMN] = cls.request[PODS_COLUMN]
        diagnosis.caller = ("", "fit")
        short_of_any = np.zeros(len(everything), dtype=bool)
        for resource in columns.sorted_names([*columns.amounts(request), *nsmallest(_MOST_UNOFFERED, unoffered)]):
            column = columns.find(resource)
            short = selected if column is None else selected & (free[:, column] < request[column])
            diagnosis.reject(short, Code.UNSCHEDULABLE, f"Insufficient {resource}")
            short_of_any |= short
        if len(unoffered) > _MOST_UNOFFERED:
            others = len(unoffered) - _MOST_UNOFFERED
            diagnosis.reject(selected, Code.UNSCHEDULABLE, f"Insufficient resources: {others:,} more names")
        return short_of_any

    def _run_filters(self, signature: PodSignature, selection: NodeView, diagnosis: Diagnosis) -> None:
        """Runs all filters over a selection."""
        if not len(selection):
            return
        bounds = signature.contexts.get(hypernode_bounds.CONTEXT)
        if bounds is not None:
            assert isinstance(bounds, tuple)
            diagnosis.caller = ("", "fit")
            allowed = hypernode_bounds.allowed_rows(self._cache.tree, bounds)
            diagnosis.reject(~allowed[selection.rows], Code.UNRESOLVABLE, hypernode_bounds.beyond_text(bounds))
        self._hooks.of(signature).diagnose(selection, diagnosis)


def fit_text(nodes: int, reasons: dict[str, int]) -> str:
    """The fit text: `0/3 nodes are unavailable: 1 Insufficient cpu, 2 node(s) were unschedulable.`."""
    if not reasons:
        return f"0/{nodes} nodes are unavailable"
    parts = sorted((count, reason) for reason, count in reasons.items())
    return f"0/{nodes} nodes are unavailable: {', '.join(f'{count} {reason}' for count, reason in parts)}."


#: Per quota plugin its name, its batch form where it has one, and its plain form, in conf order.
QuotaHooks = list[tuple[str, "Callable[..., Any] | None", "Callable[..., Any]"]]


def quota_hooks(dispatch: Dispatch) -> QuotaHooks:
    """The quota hooks of all plugins, without guards."""
    many: Sequence[Entry] = dispatch.plain_entries("allocatable_many")
    by_name = dict(many)
    return [(name, by_name.get(name), call) for name, call in dispatch.plain_entries("allocatable")]


class ScoreCache:
    """Feasible rows for a pod of one signature, or one with an equal `row_key`, and their scores by the row hooks.

    Nominations are kept.

    For signatures that cannot be ranked by node class: rankings require nodes of equal amounts to score the same, and
    scores not to depend on other nodes. Before each pod the row hooks run again for the nodes that changed. Hooks that
    compare nodes, or read other nodes, run over all candidates besides (`PlacementEngine.best`). At 2,000 nodes, the
    session of scene A1 takes 0.39 s, and 1.24 s with a cache per pod; Z1 0.31 and 0.69, N1 0.20 and 0.60.
    """

    __slots__ = ("_feasible", "_hooks", "_passes", "_pause", "_scores", "_signature", "_static", "_synced", "_table")

    def __init__(
        self, hooks: SignatureHooks, table: NodeTable, signature: PodSignature, feasible: Mask, static: Scores | None
    ) -> None:
        """`feasible` (bool [nodes]) and `static` (float64 [nodes]): the results that placements cannot change."""
        self._hooks = hooks
        self._table = table
        self._signature = signature
        self._feasible = feasible
        self._static = static
        #: -inf where the pod does not fit: float64 [nodes].
        self._scores: Scores = np.full(len(feasible), _NEVER)
        self._synced = table.serial
        #: Calls of `highest_rows` until it looks ahead again, and the length of the last pause.
        self._passes = self._pause = 0
        self._evaluate(feasible.nonzero()[0])

    def candidates(self) -> tuple[Rows, Scores]:
        """Feasible rows, ascending, and their scores without comparing hooks: intp and float64 [k]."""
        self._sync()
        rows = (self._scores > _NEVER).nonzero()[0]
        return rows, self._scores.take(rows)

    def highest(self) -> int | None:
        """The lowest of the rows with the highest score, -1 without a feasible row; None if a score is no number."""
        self._sync()
        scores = self._scores
        row = int(scores.argmax()) if len(scores) else -1
        if row < 0 or scores[row] == _NEVER:
            return -1
        return row if scores[row] > _NEVER else None

    def highest_rows(self, first: int, most: int) -> list[int]:
        """The rows of up to `most` pods, each the `highest` after the ones before; `first` is the highest now.

        Placements change the scores of their own nodes alone. The scores of these are computed ahead, and plugins state
        how many pods their filters let pass. Ends at the first node for which the plugins do not know the number.
        """
        if first < 0 or most == 1 or self._passes > 0:
            self._passes -= first >= 0 and most > 1
            return [first] if first >= 0 else []
        scores, size = self._scores, len(self._scores)
        bar = np.partition(scores, size - most)[size - most] if most < size else _NEVER
        rows = ((scores >= bar) & (scores > _NEVER)).nonzero()[0]
        rows = rows.take(np.argsort(-scores.take(rows), kind="stable")[:most])
        found = self._simulated(rows, most)
        self._pause = 0 if len(found) > 1 else min(2 * self._pause + 1, _LONGEST_PAUSE)
        self._passes = self._pause
        return found

    def _simulated(self, rows: Rows, most: int) -> list[int]:
        """`highest_rows` among some rows, best first."""
        steps = max(1, min(_STEPS_AHEAD, _SCORED_AHEAD // len(rows)))
        after = (-self._scores_after(rows, steps)).tolist()
        fitting, ends = self._hooks.further_pods(NodeView(self._table, rows))
        fresh = list(zip((-self._scores.take(rows)).tolist(), rows.tolist(), range(len(rows)), strict=True))
        fresh.reverse()
        #: Negative score, row, its place and the pods that it has got.
        again: list[tuple[float, int, int, int]] = []
        found: list[int] = []
        while len(found) < most and (fresh or again):
            if again and (not fresh or again[0][:2] < fresh[-1][:2]):
                _, row, place, pods = heappop(again)
                if pods >= fitting[place]:
                    break
            else:
                (_, row, place), pods = fresh.pop(), 0
            found.append(row)
            pods += 1
            if pods > steps or (negative := after[pods - 1][place]) != negative:
                break
            if negative < _FULL and (pods < fitting[place] or not ends[place]):
                heappush(again, (negative, row, place, pods))
        return found

    def _scores_after(self, rows: Rows, steps: int) -> Scores:
        """What rows score with one, two, ... `steps` more pods each by their amounts: float64 [steps, k]."""
        cls, table, count = self._signature.cls, self._table, len(rows)
        pods = np.repeat(np.arange(1, steps + 1, dtype=np.int64), count)[:, None]
        repeated = np.tile(rows, steps)
        charged = table.charged.take(repeated, axis=0) + pods * cls.charge
        view = NodeView(table, repeated, allocatable=table.allocatable.take(repeated, axis=0), charged=charged)
        found: Scores = np.full(len(repeated), _NEVER)
        fits = view.has_capacity(cls.fit_request).nonzero()[0]
        if len(fits):
            scores = self._hooks.row_scores(view.only(fits))
            found[fits] = scores if self._static is None else scores + self._static.take(repeated.take(fits))
        return found.reshape(steps, count)

    def _sync(self) -> None:
        table = self._table
        if self._synced != table.serial:
            changed = (table.stamps > self._synced).nonzero()[0]
            self._evaluate(changed[self._feasible.take(changed)])
            self._synced = table.serial  # only now: a failed hook is called again

    def _evaluate(self, rows: Rows) -> None:
        hooks, table, signature = self._hooks, self._table, self._signature
        self._scores[rows] = _NEVER
        if not len(rows):
            return
        view = NodeView(table, rows)
        fits = view.has_capacity(signature.cls.fit_request)
        if not fits[fits.argmin()]:
            rows = rows[fits]
            view = NodeView(table, rows)
        if len(rows):
            scores = hooks.scores(view)
            self._scores[rows] = scores if self._static is None else scores + self._static.take(rows)
