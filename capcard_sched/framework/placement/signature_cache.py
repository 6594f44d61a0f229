"""Pod signatures, and the results of the static node hooks per signature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.api.node_view import Diagnosis, FilterResult, PodSignature
from capcard_sched.framework.placement import hypernode_bounds
from capcard_sched.framework.placement.node_classes import NodeSet
from capcard_sched.framework.placement.node_hooks import NodeHooks
from capcard_sched.framework.placement.plugin_states import PluginStates
from capcard_sched.model.hyper_nodes import NO_TREE
from capcard_sched.model.refusal import Code

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from capcard_sched.framework.api.dispatch import Dispatch
    from capcard_sched.framework.api.node_view import Mask, Scores
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.state.columns import NodeTable

#: Sessions without use after which static results are dropped, and the number of results above which all but those of
#: the last session are. Each holds a mask and scores over all nodes.
_STATIC_SESSIONS = 64
_MOST_STATIC = 4096


class SignatureCache:
    """One per scheduler-conf. Signatures are interned for one session; static results live until a node changes."""

    def __init__(self, dispatch: Dispatch) -> None:
        self.hooks = NodeHooks(dispatch)
        self.plugin_states = PluginStates(dispatch)
        self._static: dict[Hashable, tuple[int, int, Mask, Scores | None]] = {}
        self._session = 0
        #: All nodes of the session.
        self.nodes: NodeSet | None = None
        self.tree = NO_TREE
        self._signatures: dict[Hashable, PodSignature] = {}
        #: The number of evictions of the session; each one invalidates known limits.
        self.releases = 0
        #: Key of a job, or it and a subgroup, to a HyperNode: its pods are placed there, while a trial lasts.
        self.confined: dict[Hashable, int] = {}

    def open(self, table: NodeTable, tree: HyperNodeTree = NO_TREE) -> NodeSet:
        """Starts a session over a settled node table; returns the set of all its nodes."""
        self._session += 1
        self.hooks.open()
        self.plugin_states.open(len(table))
        self.nodes = NodeSet(table, self.plugin_states) if self.nodes is None else self.nodes.reopen(table)
        self.tree = tree
        self._signatures = {}
        self.releases = 0
        over_capacity = len(self._static) > _MOST_STATIC
        if over_capacity or self._session % _STATIC_SESSIONS == 0:
            old = self._session - (2 if over_capacity else _STATIC_SESSIONS)
            self._static = {key: value for key, value in self._static.items() if value[1] > old}
        return self.nodes

    def contexts(
        self, queue: Queue, task: Task, *, restricted: bool = False, by_tree: bool = True
    ) -> dict[str, Hashable]:
        """The contexts of a task now, by plugin.

        `restricted`: the nodes were chosen for a job in hard mode, so that its signature has no bound; `by_tree`:
        includes the contexts of plugins that follow the tree of HyperNodes.
        """
        job = task.job
        contexts = self.hooks.contexts(queue, task, by_tree=by_tree)
        if not restricted and job is not None and (job.topology is not None or job.groups is not None):
            bounds = hypernode_bounds.bounds_of(self.tree, job, task, self.confined)
            if bounds:
                contexts[hypernode_bounds.CONTEXT] = bounds
        return contexts

    def intern(self, cls: TaskClass, contexts: dict[str, Hashable]) -> PodSignature:
        """The one signature of the session with this content."""
        key: Hashable = (cls.id, tuple(contexts.items())) if contexts else cls.id
        signature = self._signatures.get(key)
        if signature is None:
            row_key = _row_key(cls, contexts) if cls.alike else None
            signature = self._signatures[key] = PodSignature(cls, contexts, len(self._signatures), row_key)
        return signature

    def count_alike(
        self, queue: Queue, signature: PodSignature, tasks: Sequence[Task], *, restricted: bool, by_tree: bool
    ) -> int:
        """How many tasks from the first on have signatures with the `row_key` of this one. Their classes are alike."""
        for count, task in enumerate(tasks):
            try:
                contexts = self.contexts(queue, task, restricted=restricted, by_tree=by_tree)
            except HookFailed:  # it concerns this task, and is raised again at its turn
                return count
            if _row_key(task.cls, contexts) != signature.row_key:
                return count
        return len(tasks)

    def static_results(self, signature: PodSignature) -> tuple[Mask, Scores | None]:
        """Mask and scores over all nodes that placements cannot change; cached until a node's facts change."""
        assert self.nodes is not None
        table = self.nodes.table
        key = signature.row_key
        generation = table.generation
        found = self._static.get(key)
        if found is not None and found[0] == generation and len(found[2]) == len(table):
            self._static[key] = (generation, self._session, found[2], found[3])
            return found[2], found[3]
        everything = self.nodes.view()
        result, hooks = FilterResult(len(everything)), self.hooks.of(signature)
        hooks.filter_static(everything, result)
        bounds = signature.contexts.get(hypernode_bounds.CONTEXT)
        if bounds is not None:
            assert isinstance(bounds, tuple)
            allowed = hypernode_bounds.allowed_rows(self.tree, bounds)
            result.reject(~allowed, Code.UNRESOLVABLE, hypernode_bounds.beyond_text(bounds))
        total = hooks.static_scores(everything)
        self._static[key] = (generation, self._session, result.ok, total)
        return result.ok, total

    def open_to_evictions(self, signature: PodSignature) -> Mask:
        """Rows that pass the static filters, possibly after evictions: bool [nodes]. Not cached.

        Evictions below a queue with a full quota return quota, and with it the nodes that only the quota closed.
        """
        assert self.nodes is not None
        everything = self.nodes.view()
        diagnosis = Diagnosis(len(everything))
        self.hooks.of(signature).filter_static(everything, diagnosis)
        open_rows: Mask = self.static_results(signature)[0] | (diagnosis.codes == Code.UNSCHEDULABLE)
        return open_rows


def _row_key(cls: TaskClass, contexts: dict[str, Hashable]) -> Hashable:
    """`PodSignature.row_key` of pods with generated claims: without the names that belong to one pod."""
    return cls.alike, tuple([(name, getattr(context, "shared", context)) for name, context in contexts.items()])
