"""Larger card quotas."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import QUEUE
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.fixes.kinds.capability import raised_capabilities
from capcard_sched.insight.fixes.kinds.repair_queue import repair, repaired_quota
from capcard_sched.insight.sources.changes import set_card_quota
from capcard_sched.insight.trials.change import Candidate, ProposedChange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation
    from capcard_sched.model.diagnosis import LimitUse


class QuotaFix(FixKind):
    """A larger quota of a card, of the queue or an ancestor; a misspelt one is written correctly first."""

    words = "quota of {key} in queue {name}: {present} → {value} (+{more})"
    before = "{present}"
    after = "{value}"

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """Every limit that is too small is raised to what the job needs: one candidate per choice of cards."""
        rows = [row for row in situation.limits if row.cluster_total is not None]
        common = raised_capabilities(situation)
        for cards in situation.choices() or [{row.resource for row in rows}]:
            chosen = [row for row in rows if row.resource in cards]
            yield (*common, *(change for row in chosen if (change := self._raised(situation, row)) is not None))

    def _raised(self, situation: Situation, row: LimitUse) -> ProposedChange | None:
        wanted, target = math.ceil(situation.wanted_of(row)), (QUEUE, "", row.queue)
        queue = situation.view.get(*target)
        if not wanted or row.quota is None:
            return None
        present = int(row.quota)
        if queue is not None and (repaired := repaired_quota(queue, situation.scene.cards)) is not None:
            present = max(present, repaired.get(row.resource, 0))
            if wanted <= present:  # the repair alone suffices
                return ProposedChange("RepairQueue", target)
        return ProposedChange("Quota", target, row.resource, wanted, present)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Repair the annotation and set the quota."""
        queue = scene.edit(*change.target)
        repair(queue, scene)
        set_card_quota(queue, change.key, change.value)
