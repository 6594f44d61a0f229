"""Larger ResourceQuotas of a namespace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.controllers.objects import spec
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.sources.changes import set_spec
from capcard_sched.insight.trials.change import Candidate, ProposedChange
from capcard_sched.model.limits import format_quota_amount
from capcard_sched.model.quantity import is_quota_in_bytes
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.simulation.kinds import RESOURCE_QUOTA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation

_MEBI: Final = 2**20
_MILLI: Final = 1000


class NamespaceQuotaFix(FixKind):
    """A larger amount of a ResourceQuota that refuses the job."""

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """The amounts of each ResourceQuota that refuses become what the job needs; and beside all that wait for it."""
        job = situation.job
        waiting = [
            other.min_quota
            for other in situation.state.jobs.values()
            if other.namespace == job.namespace and other is not job and other.phase is PodGroupPhase.PENDING
        ]
        for refusal in situation.refusals:
            kind, _, name = refusal.object.partition(" ")
            changes, beside = list[ProposedChange](), list[ProposedChange]()
            for check in refusal.checks if kind == RESOURCE_QUOTA else ():
                of_bytes = is_quota_in_bytes(check.resource)
                factor, step = (1, _MEBI) if of_bytes else (_MILLI, _MILLI)
                value, present = math.ceil(check.total * factor / step) * step, round(check.limit * factor)
                target = (RESOURCE_QUOTA, job.namespace, name)
                changes.append(ProposedChange("NamespaceQuota", target, check.resource, value, present, step))
                more = sum((amounts or {}).get(check.resource, 0) for amounts in waiting)
                beside.append(msgspec.structs.replace(changes[-1], value=value + math.ceil(more / step) * step))
            yield tuple(changes)
            if beside != changes:
                yield tuple(beside)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Set one amount."""
        quota = scene.edit(*change.target)
        hard = {**(spec(quota).get("hard") or {}), change.key: format_quota_amount(change.key, change.value)}
        set_spec(quota, "hard", hard)

    def text(self, change: ProposedChange, scene: Scene) -> str:
        """`requests.cpu of ResourceQuota team: 4 → 5`."""
        before, after = self.values(change, scene)
        return f"{change.key} of {RESOURCE_QUOTA} {change.target[2]}: {before} → {after}"

    def values(self, change: ProposedChange, scene: Scene) -> tuple[str, str]:
        del scene
        return format_quota_amount(change.key, change.present), format_quota_amount(change.key, change.value)
