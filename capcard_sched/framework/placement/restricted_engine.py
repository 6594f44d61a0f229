"""Placement confined to some of the nodes: those under one HyperNode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.api.node_view import Diagnosis, NodeView
from capcard_sched.framework.placement.engine import PlacementEngine
from capcard_sched.framework.placement.node_classes import NodeClasses

if TYPE_CHECKING:
    from collections.abc import Hashable

    from capcard_sched.framework.api.node_view import Mask, PodSignature, Rows, Scores
    from capcard_sched.model.job import Job


class RestrictedEngine(PlacementEngine):
    """Answers of another engine for some of the rows, with rankings of its own; lives as long as a session of that.

    What does not depend on the rows is shared. It explains nothing on the way (`explain` does), as most of its users
    only try.
    """

    max_score_caches = 2  # there may be one of these for each of hundreds of HyperNodes

    def __init__(self, whole: PlacementEngine, rows: Rows, *, by_tree: bool) -> None:
        """`rows`: intp, ascending. `by_tree`: whether plugins that follow the tree of HyperNodes are heard."""
        self.__dict__.update(whole.__dict__)
        if not by_tree:  # without a context they have nothing to say
            self._task_context = [entry for entry in self._task_context if entry[0] not in whole.tree_followers]
        self._whole = whole
        self._rows = rows
        self._inside = np.zeros(len(whole.table), dtype=bool)
        self._inside[rows] = True
        self._masks: dict[PodSignature, tuple[Mask, Scores | None]] = {}
        self._rankings = {}
        self._score_caches = {}
        self._diagnoses = {}

    def _add_topology_bound(self, job: Job, contexts: dict[str, Hashable]) -> None:
        """The rows were chosen with the job in mind."""

    def _static_results(self, signature: PodSignature) -> tuple[Mask, Scores | None]:
        found = self._masks.get(signature)
        if found is None:
            feasible, static = self._whole._static_results(signature)
            found = self._masks[signature] = feasible & self._inside, static
        return found

    def classes_for(self, feasible: Mask, static: Scores | None) -> NodeClasses:
        """States of these rows alone."""
        own = None if static is None else np.unique(static, return_inverse=True)[1].astype(np.int64)
        return NodeClasses(self.table, static_groups=own, members=feasible, plugin_states=self.plugin_states)

    def all_rows(self) -> NodeView:
        """Every one of the rows."""
        return NodeView(self.table, self._rows)

    def diagnose(self, signature: PodSignature) -> tuple[str, Diagnosis]:  # noqa: ARG002 - see `explain`
        """Nothing."""
        return "", Diagnosis(0)

    def explain(self, signature: PodSignature) -> str:
        """Why none of the rows takes a pod of the profile, as `PlacementEngine.diagnose` says it."""
        return super().diagnose(signature)[0]


def restricted_engine(whole: PlacementEngine, number: int, *, by_tree: bool) -> RestrictedEngine:
    """The engine for the nodes under one HyperNode; made when first asked for.

    `by_tree`: whether plugins that follow the tree of HyperNodes are heard.
    """
    key = number, by_tree and bool(whole.tree_followers)
    found = whole.restricted.get(key)
    if found is None:
        found = whole.restricted[key] = RestrictedEngine(whole, whole.tree.rows_of(number), by_tree=by_tree)
    assert isinstance(found, RestrictedEngine)
    found.releases = whole.releases
    return found
