"""The plugins' node hooks: those that apply to a signature, with their results combined by what they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.api.node_hooks import CANDIDATES, NODE_AMOUNTS, NODE_PODS, NODE_SPEC, OTHER_NODES
from capcard_sched.framework.api.node_view import FilterResult, NodeView
from capcard_sched.framework.api.plugin import Reads

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from capcard_sched.framework.api.dispatch import BoundNodeHook, Dispatch
    from capcard_sched.framework.api.node_view import Diagnosis, PodSignature, Rows, Scores
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.state.columns import NodeTable

_NEVER = float("-inf")
#: More pods than nodes hold.
_MANY = 1 << 40


class NodeHooks:
    """Signatures, filters and scores of all plugins. Every method raises HookFailed when a plugin raises."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._signature = dispatch.plain_entries("signature")
        #: Names of the plugins that follow the tree of HyperNodes (`Reads.TREE`).
        self.tree_followers = frozenset(plugin.name for plugin in dispatch.plugins if Reads.TREE in plugin.reads)
        self._signature_without_tree = [entry for entry in self._signature if entry[0] not in self.tree_followers]
        self._of: dict[PodSignature, SignatureHooks] = {}
        #: Plugin, kind and condition of the filters and scores that do not apply to all signatures.
        self._conditions = [
            (hook.plugin, kind, hook.when)
            for kind, hooks in (("filter", dispatch.filters), ("score", dispatch.scores))
            for hook in hooks
            if hook.when is not None
        ]
        #: The results of `_conditions`, to the hooks that apply.
        self._applying: dict[tuple[bool, ...], _ApplyingHooks] = {}
        #: The hooks that apply to pods which differ in names of generated claims, by `PodSignature.row_key`.
        self._alike: dict[Hashable, _ApplyingHooks] = {}

    def open(self) -> None:
        self._of.clear()
        self._alike.clear()

    def contexts(self, queue: Queue, task: Task, *, by_tree: bool = True) -> dict[str, Hashable]:
        """The contexts of a task in its queue, by plugin. `by_tree`: includes the plugins that follow the tree."""
        contexts: dict[str, Hashable] = {}
        name = ""
        try:
            for name, call in self._signature if by_tree else self._signature_without_tree:
                context = call(queue, task)
                if context is not None:
                    contexts[name] = context
        except Exception as error:
            raise HookFailed(name, "signature", error) from error
        return contexts

    def of(self, signature: PodSignature) -> SignatureHooks:
        """The filters and scores that apply to a signature in this session."""
        found = self._of.get(signature)
        if found is None:
            applying = self._alike.get(signature.row_key) if signature.cls.alike else None
            if applying is None:
                applying = self._applying_to(signature)
                if signature.cls.alike:
                    self._alike[signature.row_key] = applying
            found = self._of[signature] = SignatureHooks(self._dispatch, signature, applying)
        return found

    def _applying_to(self, signature: PodSignature) -> _ApplyingHooks:
        plugin, kind, applies = "", "", list[bool]()
        try:
            for plugin, kind, when in self._conditions:  # noqa: B007 - read by the handler
                applies.append(when(signature))
        except Exception as error:
            raise HookFailed(plugin, kind, error) from error
        key = tuple(applies)
        found = self._applying.get(key)
        if found is None:
            found = self._applying[key] = self._of_applying(iter(key))
        return found

    def _of_applying(self, applies: Iterator[bool]) -> _ApplyingHooks:
        """`applies`: the results of `_conditions`, in their order."""
        filters = [hook for hook in self._dispatch.filters if hook.when is None or next(applies)]
        scores = [hook for hook in self._dispatch.scores if hook.when is None or next(applies)]
        return _ApplyingHooks(filters, scores)


class _ApplyingHooks:
    """The filters and scores that apply to some signatures, by what they read."""

    def __init__(self, filters: Sequence[BoundNodeHook], scores: Sequence[BoundNodeHook]) -> None:
        self.static_filters = [hook for hook in filters if hook.reads == NODE_SPEC]
        self.row_filters = [hook for hook in filters if NODE_SPEC < hook.reads < CANDIDATES]
        self.other_filters = [hook for hook in filters if hook.reads >= CANDIDATES]
        self.static_scores = [hook for hook in scores if hook.reads == NODE_SPEC]
        self.row_scores = [hook for hook in scores if NODE_SPEC < hook.reads < CANDIDATES]
        self.comparing_scores = [hook for hook in scores if hook.reads >= CANDIDATES]
        self.read_pods = any(hook.reads == NODE_PODS for hook in (*filters, *scores))
        self.filter_by_amounts = all(hook.reads < CANDIDATES and hook.reads != NODE_PODS for hook in filters)
        self.are_kept = not self.other_filters and not self.comparing_scores
        self.score_by_amounts = all(hook.reads == NODE_AMOUNTS for hook in self.row_scores)
        self.read_other_nodes = bool(self.other_filters) or any(hook.reads == OTHER_NODES for hook in scores)


class SignatureHooks:
    """The filters and scores that apply to one signature."""

    __slots__ = (
        "_best_node",
        "_further",
        "_hooks",
        "_signature",
        "filters_by_amounts",
        "picks_highest",
        "reads_other_nodes",
        "reads_pods",
        "scores_ahead",
    )

    def __init__(self, dispatch: Dispatch, signature: PodSignature, hooks: _ApplyingHooks) -> None:
        self._signature = signature
        self._best_node = dispatch.entries("best_node")
        self._further = dispatch.entries("further_pods")
        self._hooks = hooks
        #: Whether a filter or score reads more of a node than its amounts.
        self.reads_pods = hooks.read_pods
        #: Whether the filters read nothing but the amounts and what placements cannot change.
        self.filters_by_amounts = hooks.filter_by_amounts
        #: Whether placements elsewhere may change the result for a node.
        self.reads_other_nodes = hooks.read_other_nodes
        #: Whether the best node is that with the highest score by hooks that read single nodes.
        self.picks_highest = hooks.are_kept and not self._best_node
        #: Whether scores are also known for amounts that a node will have, whatever the filters read.
        self.scores_ahead = self.picks_highest and hooks.score_by_amounts

    def compares_nodes(self, table: NodeTable, candidates: Rows) -> bool:
        """Whether the score of one of all feasible rows depends on the others now."""
        return bool(self._best_node) or any(
            self._sum([hook], NodeView(table, candidates)) is not None for hook in self._hooks.comparing_scores
        )

    # --- filters ----------------------------------------------------------------------------------------------------

    def _filter(self, hooks: Iterable[BoundNodeHook], selection: NodeView, result: FilterResult) -> None:
        plugin = ""
        try:
            for hook in hooks:
                plugin = hook.plugin
                hook.call(self._signature, selection, result)
        except Exception as error:
            raise HookFailed(plugin, "filter", error) from error

    def filter_static(self, selection: NodeView, result: FilterResult) -> None:
        """Runs the filters that placements cannot change."""
        self._filter(self._hooks.static_filters, selection, result)

    def filter_rows(self, selection: NodeView, result: FilterResult) -> None:
        """Runs the filters that read single nodes."""
        self._filter(self._hooks.row_filters, selection, result)

    def further_pods(self, selection: NodeView) -> tuple[list[int], list[bool]]:
        """How many pods pass the filters on each entry one after the other, where the first one does.

        As far as the plugins know that; and whether the next one does not pass (hook `further_pods`).
        """
        count = len(selection)
        fitting, ends = np.full(count, _MANY), np.zeros(count, dtype=bool)
        calls = dict(self._further)
        for hook in self._hooks.row_filters:
            call = calls.get(hook.plugin) if hook.reads == NODE_PODS else None
            try:
                known = None if call is None else call(self._signature)
                pods, is_end = (1, False) if known is None else known(selection)
            except Exception as error:
                raise HookFailed(hook.plugin, "further_pods", error) from error
            ends = np.where(fitting == pods, ends | is_end, np.where(pods < fitting, is_end, ends))
            fitting = np.minimum(fitting, pods)
        return fitting.tolist(), ends.tolist()

    def filter_by_others(self, selection: NodeView, result: FilterResult) -> None:
        """Runs the filters that read other nodes."""
        self._filter(self._hooks.other_filters, selection, result)

    def diagnose(self, selection: NodeView, diagnosis: Diagnosis) -> None:
        """Runs all filters one by one, with the reasons by plugin."""
        for hook in (*self._hooks.static_filters, *self._hooks.row_filters, *self._hooks.other_filters):
            diagnosis.caller = (hook.plugin, "filter")
            self._filter([hook], selection, diagnosis)

    # --- scores -----------------------------------------------------------------------------------------------------

    def scores(self, selection: NodeView) -> Scores:
        """Row hooks over a selection, without the static part: float64 [k], -inf where a filter rejects."""
        result: FilterResult | None = None
        if self._hooks.row_filters:
            result = FilterResult(len(selection))
            self.filter_rows(selection, result)
        if result is None or result.unanimous:
            return self.row_scores(selection)
        total = np.full(len(selection), _NEVER)
        kept = result.ok.nonzero()[0]
        if len(kept):
            total[kept] = self.row_scores(selection.only(kept))
        return total

    def row_scores(self, selection: NodeView) -> Scores:
        """The scores that read single nodes: float64 [k]."""
        total = self._sum(self._hooks.row_scores, selection)
        return np.zeros(len(selection)) if total is None else total

    def static_scores(self, selection: NodeView) -> Scores | None:
        """The scores that placements cannot change: float64 [k]; None without any."""
        return self._sum(self._hooks.static_scores, selection)

    def comparing_scores(self, selection: NodeView) -> Scores | None:
        """The scores that read other nodes: float64 [k]; None without any."""
        return self._sum(self._hooks.comparing_scores, selection)

    def with_comparing_scores(self, selection: NodeView, total: Scores) -> Scores:
        """`total` with the scores that read other nodes: float64 [k]."""
        compared = self._sum(self._hooks.comparing_scores, selection, total)
        return total if compared is None else compared

    def _sum(self, hooks: Iterable[BoundNodeHook], selection: NodeView, total: Scores | None = None) -> Scores | None:
        """Adds the plugins' scores to `total`: float64 [k]; None without any."""
        plugin, signature = "", self._signature
        try:
            for plugin, _, _, call in hooks:  # noqa: B007 - read by the handler
                part = call(signature, selection)
                if part is not None:
                    total = part if total is None else total + part
        except Exception as error:
            raise HookFailed(plugin, "score", error) from error
        return total

    def pick(self, candidates: Rows, total: Scores) -> int:
        """The best of candidate rows with these scores, unless a plugin chooses."""
        for _, call in self._best_node:
            row = call(self._signature, candidates, total)
            if row is not None:
                return int(row)
        return int(candidates[int(np.argmax(total))])
