"""Nodes that are cordoned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.sources.changes import set_unschedulable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation
    from capcard_sched.insight.trials.change import Candidate, ProposedChange
    from capcard_sched.model.job import Job


class UncordonFix(FixKind):
    """A node that is cordoned takes the pods. Not one that needs repair."""

    words = "uncordon node {name}"
    before = "cordoned"
    after = "schedulable"
    disruption = 1

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """As many nodes as the needed pods take: those without a taint, or all that are excluded."""
        excluded = situation.excluded_nodes
        for rows in ([row for row in excluded if not row.taint], excluded):
            taken = situation.first_that_fit(rows)
            yield tuple(change for row in taken for change in row.changes())

    def cost(self, change: ProposedChange, job: Job) -> str:
        """A node that is schedulable is so for all."""
        del job
        return f"node {change.target[2]} takes other pods, too"

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """As `kubectl uncordon` does."""
        set_unschedulable(scene.edit(*change.target), value=False)
