"""The nodeorder plugin: maps its hooks to the scores of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.node_hooks import CANDIDATES, NODE_AMOUNTS, NODE_SPEC, OTHER_NODES, score
from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.framework.toolkit.node_index import NodeIndex
from capcard_sched.plugins.nodeorder import affinity_scores, static_scores
from capcard_sched.plugins.nodeorder.arguments import NodeOrderArguments
from capcard_sched.plugins.nodeorder.preferences import PreferenceBook, Preferences
from capcard_sched.plugins.nodeorder.utilization import Utilization

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from capcard_sched.framework.api.node_view import NodeView, PodSignature, Scores
    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue


class NodeOrder(Plugin):
    """Scores nodes by utilization, affinity, images, taints and topology spread.

    A score that is equal on all candidates is omitted, because it does not change the order.
    """

    name = "nodeorder"
    Arguments = NodeOrderArguments
    arguments: NodeOrderArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._weights = self.arguments
        self._index = NodeIndex(())
        self._images = static_scores.Images(self._index)
        self._generation = -1
        self._utilization = Utilization(self._weights)
        self._book = PreferenceBook(self._weights)
        self._spread = affinity_scores.SpreadScores()

    def open(self, session: Session) -> None:
        table = session.nodes
        outdated = table.generation != self._generation or len(self._index) != len(table) or self._index.over_capacity
        if session.changed.everything or outdated:
            self._index = NodeIndex(table.nodes)
            self._images = static_scores.Images(self._index)
            self._generation = table.generation
        self._utilization.open(session)
        self._book.open(session, self._index)

    # --- pod signature ----------------------------------------------------------------------------------------------

    def signature(self, queue: Queue, task: Task) -> Preferences | None:
        return self._book.preferences(task)

    def _has_preferences(self, signature: PodSignature) -> bool:
        return signature.context(self.name) is not None

    # --- scores -----------------------------------------------------------------------------------------------------

    @score(reads=NODE_SPEC)
    def score_spec(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        weights, cls = self._weights, signature.cls
        parts = []
        if weights.node_affinity and weights.scoring == "volcano":
            parts.append((weights.node_affinity, static_scores.node_affinity(self._index, cls)))
        if weights.image_locality:
            parts.append((weights.image_locality, self._images.scores(cls)))
        return _sum((weight, rows.take(part).astype(np.float64)) for weight, part in parts if part is not None)

    @score(reads=NODE_AMOUNTS)
    def score_utilization(self, signature: PodSignature, rows: NodeView) -> Scores | None:
        return self._utilization.scores(signature.cls, rows)

    @score(reads=CANDIDATES)
    def compare(self, signature: PodSignature, candidates: NodeView) -> Scores | None:
        weights, cls = self._weights, signature.cls
        parts: list[tuple[int, Scores | None]] = []
        if weights.taint_toleration:
            counts = self._index.preferences(cls.tolerations)
            parts.append((weights.taint_toleration, static_scores.taints(counts, candidates)))
        if weights.node_affinity and weights.scoring == "kube-scheduler":
            raw = static_scores.node_affinity(self._index, cls)
            parts.append((weights.node_affinity, static_scores.normalized(raw, candidates)))
        return _sum(parts)

    @score(reads=OTHER_NODES, when=_has_preferences)
    def compare_pods(self, signature: PodSignature, candidates: NodeView) -> Scores | None:
        weights, preferences = self._weights, signature.context(self.name)
        parts: list[tuple[int, Scores | None]] = []
        if preferences.affinity or preferences.carried is not None:
            parts.append((weights.pod_affinity, affinity_scores.pod_affinity(self._index, preferences, candidates)))
        if preferences.spread:
            spread = self._spread.scores(self._index, signature.cls, preferences.spread, candidates)
            parts.append((weights.topology_spread, spread))
        return _sum(parts)

    # --- updates ----------------------------------------------------------------------------------------------------

    def on_allocate(self, placement: Placement) -> None:
        self._book.counters.place(placement)

    def on_deallocate(self, placement: Placement) -> None:
        self._book.counters.displace(placement)


def _sum(parts: Iterable[tuple[int, Scores | None]]) -> Scores | None:
    """The weighted sum of scores; None without any."""
    total: Scores | None = None
    for weight, part in parts:
        if part is not None:
            total = weight * part if total is None else total + weight * part
    return total
