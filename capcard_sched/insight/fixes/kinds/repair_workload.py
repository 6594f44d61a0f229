"""Misspelt annotations of workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.fixes.scene import notes_of
from capcard_sched.insight.sources.changes import annotate
from capcard_sched.insight.trials.change import Candidate, ProposedChange
from capcard_sched.validation.checks import Spelling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation
    from capcard_sched.insight.sources.object_view import Json


class RepairWorkloadFix(FixKind):
    """A misspelt annotation of the job, or of its pods, is renamed."""

    disruption = 1
    is_of_job = True

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """One candidate that repairs every misspelt annotation."""
        if any(Spelling().misspelt(notes_of(holder)) for holder in _holders(situation.scene)):
            yield (ProposedChange("RepairWorkload", situation.target),)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """An annotation that is there under its name stays."""
        del change
        for holder in _holders(scene):
            for wrong, right in Spelling().misspelt(notes_of(holder)).items():
                value = notes_of(holder)[wrong]
                annotate(holder, wrong, None)
                if right not in notes_of(holder):
                    annotate(holder, right, value)

    def text(self, change: ProposedChange, scene: Scene) -> str:
        """`deployment/chat: annotation volcano.sh/card-name becomes volcano.sh/card.name`."""
        del change
        found = {k: v for holder in _holders(scene) for k, v in Spelling().misspelt(notes_of(holder)).items()}
        return f"{scene.name}: " + ", ".join(f"annotation {wrong} becomes {right}" for wrong, right in found.items())


def _holders(scene: Scene) -> list[Json]:
    """The workload, its pod templates, and its PodGroup."""
    found = (scene.owner(), scene.group(), *(template for _, template in scene.templates()))
    return [holder for holder in found if holder is not None]
