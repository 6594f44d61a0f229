"""Smaller gangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.insight.fixes.execution import set_minimum
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.sources.changes import annotate, set_spec
from capcard_sched.insight.trials.change import Candidate, ProposedChange
from capcard_sched.model.annotations import GROUP_MIN_MEMBER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation
    from capcard_sched.model.diagnosis import LimitUse
    from capcard_sched.model.job import Job


class MinAvailableFix(FixKind):
    """A smaller gang: of the pods that fit now, or the largest that other changes make possible."""

    words = "minAvailable of {job}: {present} → {value}"
    before = "{present}"
    after = "{value}"
    disruption = 6
    is_of_job = True
    is_of_gang = True

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """The size that fits now, on empty nodes, or, where pods have to end for it, of one pod."""
        job, found = situation.job, situation.found
        if job.is_ready() or not job.is_editable or job.min_available <= 1:
            return
        fitting = situation.fitting()
        if not fitting and found.stage in {"CannotStart", "NotAdmitted"}:
            fitting = _fitting_by_figures(situation)
        empty = _places(situation, when_empty=True)
        sizes = [fitting] if fitting else [empty, 1 if empty or not found.capacity else 0]
        for size in dict.fromkeys(job.ready_tasks + pods for pods in sizes):
            if 0 < size < job.min_available:
                yield (ProposedChange("MinAvailable", situation.target, value=size, present=job.min_available),)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Set the minimum of the vcjob, of the workload by its annotation, or of the PodGroup."""
        owner, group = scene.owner(), scene.group()
        if scene.is_vcjob and owner is not None:
            set_spec(owner, "minAvailable", change.value)
        elif owner is not None:
            annotate(owner, GROUP_MIN_MEMBER, str(change.value))
        elif group is not None:
            set_minimum(group, change.value)

    def cost(self, change: ProposedChange, job: Job) -> str:
        """A job that is not elastic does not work with a part of its pods."""
        pods = max(len(job.tasks), change.present)
        return f"a job that is not elastic runs with {change.value} of {pods} pods"


def _fitting_by_figures(situation: Situation) -> int:
    """Pods for which quota and nodes suffice, by the sums of a diagnosis without an attempt."""

    def share(row: LimitUse) -> float:
        """What one pod requests; in a job without pods, its share."""
        of_one = 0.0 if situation.waiting else row.requested / max(1, situation.job.min_available)
        return row.requested_per_pod or of_one

    limits = [row for row in situation.limits if row.quota is not None and share(row)]
    bounds = [int((row.usable if row.usable is not None else 0.0) // share(row)) for row in limits]
    if situation.found.capacity:
        bounds.append(_places(situation))
    return min(bounds, default=0)


def _places(situation: Situation, *, when_empty: bool = False) -> int:
    """Pods that the nodes with an accepted card, or else those with the scarcest resource, fit."""
    rows = situation.found.capacity
    fits = [(row.card != row.resource, row.fits_when_empty if when_empty else row.fits_now) for row in rows]
    cards = [pods for is_card, pods in fits if is_card]
    return sum(cards) if cards else min((pods for _, pods in fits), default=0)
