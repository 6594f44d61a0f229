"""Plugins of the scheduler-conf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.insight.fixes.kind import FixKind

if TYPE_CHECKING:
    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.trials.change import ProposedChange


class PluginFix(FixKind):
    """A plugin is switched on in the scheduler-conf. `Priority` proposes it."""

    words = "plugin {key} in the scheduler-conf"
    after = "{key}"
    disruption = 5
    is_of_conf = True

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        scene.write(f"plugin {change.key}", f"- name: {change.key}  # in the first tier of the scheduler-conf")
