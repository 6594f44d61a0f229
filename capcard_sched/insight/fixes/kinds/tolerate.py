"""Tolerations of taints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.objects import spec
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.sources.changes import set_spec
from capcard_sched.insight.trials.change import Candidate, ProposedChange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation

_MOST_TAINTS: Final = 2


class TolerateFix(FixKind):
    """The pods tolerate the taint of a node. Not one that is a condition of the node."""

    words = "{job} tolerates the taint {key}"
    after = "{key}"
    disruption = 3
    is_of_job = True

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """The taints of the nodes with the most free places."""
        taints = dict.fromkeys(row.taint for row in situation.excluded_nodes if row.taint)
        for taint in list(taints)[:_MOST_TAINTS]:
            yield (ProposedChange("Tolerate", situation.target, taint),)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Add the toleration. Those that the API server adds to pods are none of a template."""
        rest, _, effect = change.key.rpartition(":")
        key, equals, value = rest.partition("=")
        operator = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
        for _, template in scene.templates():
            kept = [one for one in spec(template).get("tolerations") or () if not one.get("tolerationSeconds")]
            set_spec(template, "tolerations", [*kept, {"key": key, "effect": effect, **operator}])
