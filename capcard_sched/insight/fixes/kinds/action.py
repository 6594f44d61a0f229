"""Actions of the scheduler-conf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.trials.change import CONF, Candidate, ProposedChange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation


class ActionFix(FixKind):
    """An action is switched on in the scheduler-conf."""

    words = "action {key} in the scheduler-conf"
    disruption = 5
    is_of_conf = True

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """Actions that are switched off."""
        present, waiting = situation.conf.actions, situation.waiting
        if "allocate" not in present:
            yield (ProposedChange("Action", CONF, "allocate"),)
        if "backfill" not in present and waiting and all(task.cls.best_effort for task in waiting):
            yield (ProposedChange("Action", CONF, "backfill"),)
        yield tuple(ProposedChange("Action", CONF, name) for name in situation.may_evict if name not in present)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        scene.actions = _with_action(scene.actions, change.key)
        scene.write("actions", f'actions: "{", ".join(scene.actions)}"')

    def values(self, change: ProposedChange, scene: Scene) -> tuple[str, str]:
        return ", ".join(scene.actions), ", ".join(_with_action(scene.actions, change.key))


def _with_action(actions: tuple[str, ...], name: str) -> tuple[str, ...]:
    """`allocate` follows `enqueue`, others come last."""
    if name in actions:
        return actions
    at = len(actions)
    if name == "allocate":
        at = actions.index("enqueue") + 1 if "enqueue" in actions else 0
    return (*actions[:at], name, *actions[at:])
