"""Taints that keep pods from a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.sources.changes import remove_taint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation
    from capcard_sched.insight.trials.change import Candidate, ProposedChange
    from capcard_sched.model.job import Job


class UntaintFix(FixKind):
    """A node that is tainted takes the pods. Not where the taint is a condition of the node."""

    words = "remove the taint {key} of node {name}"
    before = "{key}"
    disruption = 3

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """As many nodes as the needed pods take."""
        rows = [row for row in situation.excluded_nodes if row.taint and not row.is_cordoned]
        yield tuple(change for row in situation.first_that_fit(rows) for change in row.changes())

    def cost(self, change: ProposedChange, job: Job) -> str:
        """The taint kept other pods away, too."""
        del job
        return f"node {change.target[2]} takes other pods, too"

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        remove_taint(scene.edit(*change.target), change.key)
