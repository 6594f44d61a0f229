"""Queues that are closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import QUEUE, status
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.sources.changes import annotate
from capcard_sched.insight.trials.change import Candidate, ProposedChange
from capcard_sched.model.annotations import CLOSED_BY_PARENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation


class OpenQueueFix(FixKind):
    """The queue is opened."""

    words = "open queue {name}"
    after = "Open"
    before = "Closed"
    disruption = 1

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """For a job that is not admitted, and for further pods of one that is."""
        position = situation.found.queue
        is_closed = position is not None and position.state not in {"missing", "Open", ""}
        if position is not None and is_closed and situation.found.stage == "NotAdmitted":
            yield (ProposedChange("OpenQueue", (QUEUE, "", position.name)),)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """As `queue open` does."""
        queue = scene.edit(*change.target)
        queue["status"] = {**status(queue), "state": "Open"}
        annotate(queue, CLOSED_BY_PARENT, None)
