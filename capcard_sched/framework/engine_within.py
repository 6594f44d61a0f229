"""Placement confined to some of the nodes: those under one HyperNode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from capcard_sched.framework.placement import PlacementEngine
from capcard_sched.framework.rows import Diagnosis, NodeRows
from capcard_sched.framework.states import RowStates

if TYPE_CHECKING:
    from collections.abc import Hashable

    from capcard_sched.framework.rows import Mask, Profile, Rows, Scores
    from capcard_sched.framework.session import Session
    from capcard_sched.model.job import Job


class EngineWithin(PlacementEngine):
    """Answers of another engine for some of the rows, with rankings of its own; lives as long as a session of that.

    What does not depend on the rows is shared. It explains nothing on the way (`explain` does), as most of its users
    only try.
    """

    most_scans = 2  # there may be one of these for each of hundreds of HyperNodes

    def __init__(self, whole: PlacementEngine, rows: Rows, *, by_tree: bool) -> None:
        """`rows`: intp, ascending. `by_tree`: whether plugins that follow the tree of HyperNodes are heard."""
        self.__dict__.update(whole.__dict__)
        if not by_tree:  # without a context they have nothing to say
            self._task_context = [entry for entry in self._task_context if entry[0] not in whole.tree_followers]
        self._whole = whole
        self._rows = rows
        self._inside = np.zeros(len(whole.table), dtype=bool)
        self._inside[rows] = True
        self._masks: dict[Profile, tuple[Mask, Scores | None]] = {}
        self._rankings = {}
        self._scans = {}
        self._diagnoses = {}

    def _confine(self, job: Job, contexts: dict[str, Hashable]) -> None:
        """The rows were chosen with the job in mind."""

    def _static_answers(self, profile: Profile) -> tuple[Mask, Scores | None]:
        found = self._masks.get(profile)
        if found is None:
            feasible, static = self._whole._static_answers(profile)
            found = self._masks[profile] = feasible & self._inside, static
        return found

    def states_for(self, feasible: Mask, static: Scores | None) -> RowStates:
        """States of these rows alone."""
        own = None if static is None else np.unique(static, return_inverse=True)[1].astype(np.int64)
        return RowStates(self.table, kinds=own, members=feasible)

    def all_rows(self) -> NodeRows:
        """Every one of the rows."""
        return NodeRows(self.table, self._rows)

    def diagnose(self, profile: Profile) -> tuple[str, Diagnosis]:  # noqa: ARG002 - see `explain`
        """Nothing."""
        return "", Diagnosis(0)

    def explain(self, profile: Profile) -> str:
        """Why none of the rows takes a pod of the profile, as `PlacementEngine.diagnose` says it."""
        return super().diagnose(profile)[0]


def engine_within(session: Session, number: int, *, by_tree: bool) -> EngineWithin:
    """The session's engine for the nodes under one HyperNode; made when first asked for.

    `by_tree`: whether plugins that follow the tree of HyperNodes are heard.
    """
    whole = session.engine
    key = number, by_tree and bool(whole.tree_followers)
    found = whole.confined.get(key)
    if found is None:
        found = whole.confined[key] = EngineWithin(whole, session.tree.rows_of(number), by_tree=by_tree)
    assert isinstance(found, EngineWithin)
    found.releases = whole.releases
    return found
