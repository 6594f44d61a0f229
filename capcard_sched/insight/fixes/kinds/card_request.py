"""Declared cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import POD_GROUP, annotations_of
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.sources.changes import annotate
from capcard_sched.insight.trials.change import Candidate, ProposedChange
from capcard_sched.model.annotations import CARD_REQUEST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation


class CardRequestFix(FixKind):
    """No declaration of cards, where it exceeds the pods."""

    words = "drop the annotation volcano.sh/card.request of {job} ({key})"
    before = "{key}"
    disruption = 3
    is_of_job = True

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """While it represents pods that are not created yet."""
        declared = situation.job.annotations.get(CARD_REQUEST)
        if situation.job.is_editable and not situation.job.tasks and declared is not None:
            yield (ProposedChange("CardRequest", situation.target, declared),)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Annotations of a PodGroup do not follow its Job: both lose it."""
        del change
        for holder in (scene.owner(), scene.edit(POD_GROUP, scene.job.namespace, scene.job.name)):
            if holder is not None and CARD_REQUEST in annotations_of(holder):
                annotate(holder, CARD_REQUEST, None)
