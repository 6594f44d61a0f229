"""Larger capabilities of queues."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.objects import QUEUE, spec
from capcard_sched.framework.explain.sentences import quantity
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.sources.changes import set_spec
from capcard_sched.insight.trials.change import Candidate, ProposedChange
from capcard_sched.model.quantity import format_amount, in_units, is_in_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation

_MEBI: Final = 2**20
_CARD: Final = 1000


class CapabilityFix(FixKind):
    """A larger capability of a queue: cpu, memory, devices."""

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """With the quotas of one card (`Quota`), and alone."""
        yield raised_capabilities(situation)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Set one resource."""
        queue = scene.edit(*change.target)
        limits = {**(spec(queue).get("capability") or {}), change.key: format_amount(change.key, change.value)}
        set_spec(queue, "capability", limits)

    def text(self, change: ProposedChange, scene: Scene) -> str:
        """`capability cpu of queue q: 16 → 24 (+8)`."""
        before, after = self.values(change, scene)
        more = quantity(change.key, in_units(change.key, change.value - change.present))
        return f"capability {change.key} of queue {change.target[2]}: {before} → {after} (+{more.split()[0]})"

    def values(self, change: ProposedChange, scene: Scene) -> tuple[str, str]:
        del scene
        return format_amount(change.key, change.present), format_amount(change.key, change.value)


def raised_capabilities(situation: Situation) -> Candidate:
    """Every capability that is too small: those of the diagnosis, and those of refusals by devices and ancestors."""
    found = [
        _capability(row.queue, row.resource, wanted, row.quota or 0.0)
        for row in situation.limits
        if row.cluster_total is None and (wanted := situation.wanted_of(row))
    ]
    shown = {(row.queue, row.resource) for row in situation.limits}
    for refusal in situation.refusals:
        for check in refusal.checks:
            for queue in situation.queues if check.total > check.limit else ():
                limit = (queue.capability or {}).get(check.resource)
                if limit is not None and (queue.name, check.resource) not in shown:
                    change = _capability(queue.name, check.resource, check.total, check.limit)
                    found += [change] if change.present == limit else []
    return tuple(dict.fromkeys(found))


def _capability(queue: str, resource: str, wanted: float, limit: float) -> ProposedChange:
    """Base units: milli-cores, bytes in whole Mi, thousandths of devices."""
    target = (QUEUE, "", queue)
    if is_in_bytes(resource):
        return ProposedChange("Capability", target, resource, math.ceil(wanted / _MEBI) * _MEBI, int(limit), _MEBI)
    return ProposedChange("Capability", target, resource, round(wanted * _CARD), round(limit * _CARD))
