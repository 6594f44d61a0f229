"""The plugins' node hooks, bound once per scheduler-conf, with their results combined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.node_view import FilterResult, NodeView
from capcard_sched.framework.api.plugin import Reads

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from capcard_sched.framework.api.dispatch import Dispatch, Entry
    from capcard_sched.framework.api.node_view import Diagnosis, PodSignature, Rows, Scores
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.state.columns import NodeTable

_NEVER = float("-inf")


class NodeHooks:
    """Filters, scores and signature contexts of all plugins. Every method raises HookFailed when a plugin raises."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._class_context = dispatch.entries("class_context")
        self._task_context = dispatch.entries("task_context")
        #: Names of the plugins that follow the tree of HyperNodes (`Reads.TREE`).
        self.tree_followers = frozenset(plugin.name for plugin in dispatch.plugins if Reads.TREE in plugin.reads)
        self._task_context_without_tree = [entry for entry in self._task_context if entry[0] not in self.tree_followers]
        self._predicate_static = dispatch.entries("predicate_static")
        self._predicate = dispatch.entries("predicate")
        self._predicate_domain = dispatch.entries("predicate_domain")
        self._order_static = dispatch.entries("node_order_static")
        self._order = dispatch.entries("node_order")
        self._batch_order = dispatch.entries("batch_node_order")
        self._best_node = dispatch.entries("best_node")
        declared = {name for name, _ in dispatch.entries("row_private")}
        #: Some plugin filters or scores rows without declaring its reads: no result is shared between nodes.
        self.undeclared = any(name not in declared for name, _ in (*self._predicate, *self._order))

    # --- signatures -------------------------------------------------------------------------------------------------

    def class_contexts(self, queue: Queue, task: Task) -> dict[str, Hashable]:
        """The contexts of a task's class in a queue, by plugin."""
        contexts: dict[str, Hashable] = {}
        for name, call in self._class_context:
            context = call(queue, task.cls)
            if context is not None:
                contexts[name] = context
        return contexts

    def task_contexts(self, task: Task, *, by_tree: bool = True) -> list[tuple[str, Hashable]]:
        """The contexts of one pod beyond its class, as (plugin, context); usually empty.

        `by_tree`: includes the plugins that follow the tree of HyperNodes.
        """
        found: list[tuple[str, Hashable]] = []
        for name, call in self._task_context if by_tree else self._task_context_without_tree:
            context = call(task)
            if context is not None:
                found.append((name, context))
        return found

    # --- declared reads ---------------------------------------------------------------------------------------------

    def is_private(self, signature: PodSignature) -> bool:
        """Whether a row hook reads more of a node than its amounts, for this signature."""
        return self.undeclared or self._dispatch.any("row_private", signature)

    def is_dependent(self, signature: PodSignature) -> bool:
        """Whether a row hook reads the pods of other nodes, for this signature."""
        return self.undeclared or self._dispatch.any("row_dependent", signature)

    def is_domain_bound(self, signature: PodSignature) -> bool:
        """Whether placements elsewhere may change the feasible nodes of this signature."""
        return self._dispatch.any("domain_bound", signature)

    def compares_nodes(self, signature: PodSignature, table: NodeTable, candidates: Rows) -> bool:
        """Whether some hook's result for one node depends on other nodes, for this signature now."""
        if self._best_node:
            return True
        return any(call(signature, NodeView(table, candidates)) is not None for _, call in self._batch_order)

    # --- filters ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _filter(entries: Sequence[Entry], signature: PodSignature, selection: NodeView, result: FilterResult) -> None:
        for _, call in entries:
            call(signature, selection, result)

    def filter_static(self, signature: PodSignature, selection: NodeView, result: FilterResult) -> None:
        """Runs the filters that placements cannot change."""
        self._filter(self._predicate_static, signature, selection, result)

    def filter_rows(self, signature: PodSignature, selection: NodeView, result: FilterResult) -> None:
        """Runs the filters that read single nodes."""
        self._filter(self._predicate, signature, selection, result)

    def filter_domains(self, signature: PodSignature, selection: NodeView, result: FilterResult) -> None:
        """Runs the filters that read other nodes, where the signature is domain bound."""
        if self.is_domain_bound(signature):
            self._filter(self._predicate_domain, signature, selection, result)

    def diagnose(self, signature: PodSignature, selection: NodeView, diagnosis: Diagnosis) -> None:
        """Runs all filters one by one, with the reasons by plugin and hook."""
        entries = [("predicate_static", self._predicate_static), ("predicate", self._predicate)]
        if self.is_domain_bound(signature):
            entries.append(("predicate_domain", self._predicate_domain))
        for hook, calls in entries:
            for entry in calls:
                diagnosis.caller = (entry[0], hook)
                self._filter([entry], signature, selection, diagnosis)

    # --- scores -----------------------------------------------------------------------------------------------------

    def scores(self, signature: PodSignature, selection: NodeView) -> Scores:
        """Row hooks over a selection, without the static part: float64 [k], -inf where a filter rejects."""
        result: FilterResult | None = None
        if self._predicate:
            result = FilterResult(len(selection))
            self.filter_rows(signature, selection, result)
        total = self.row_scores(signature, selection)
        if result is not None and not result.unanimous:
            total = np.where(result.ok, total, _NEVER)  # a new array: the old one may belong to a plugin
        return total

    def row_scores(self, signature: PodSignature, selection: NodeView) -> Scores:
        """The scores that read single nodes: float64 [k]."""
        total = self._sum(self._order, signature, selection)
        return np.zeros(len(selection)) if total is None else total

    def static_scores(self, signature: PodSignature, selection: NodeView) -> Scores | None:
        """The scores that placements cannot change: float64 [k]; None without any."""
        return self._sum(self._order_static, signature, selection)

    def with_batch_scores(self, signature: PodSignature, selection: NodeView, total: Scores) -> Scores:
        """`total` with the scores that compare nodes: float64 [k]."""
        compared = self._sum(self._batch_order, signature, selection, total)
        return total if compared is None else compared

    @staticmethod
    def _sum(
        entries: Sequence[Entry], signature: PodSignature, selection: NodeView, total: Scores | None = None
    ) -> Scores | None:
        """Adds the plugins' scores to `total`: float64 [k]; None without any."""
        for _, call in entries:
            part = call(signature, selection)
            if part is not None:
                total = part if total is None else total + part
        return total

    def pick(self, signature: PodSignature, candidates: Rows, total: Scores) -> int:
        """The best of candidate rows with these scores, unless a plugin chooses."""
        for _, call in self._best_node:
            row = call(signature, candidates, total)
            if row is not None:
                return int(row)
        return int(candidates[int(np.argmax(total))])
