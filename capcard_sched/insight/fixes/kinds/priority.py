"""Higher PriorityClasses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.trials.change import CONF, Candidate, ProposedChange
from capcard_sched.insight.trials.preemption import EVICTING_ACTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation

_MOST_CLASSES: Final = 2


class PriorityFix(FixKind):
    """A higher PriorityClass."""

    words = "priorityClassName of {job}: {key} (value {value})"
    before = "{priority}"
    after = "{key}"
    disruption = 3
    is_single = True
    is_of_job = True

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """Ahead of others in the queue, or able to preempt."""
        job, conf, position = situation.job, situation.conf, situation.found.queue
        may = any(task.may_preempt for task in situation.needed)
        evicts = may and any(name in conf.actions for name in EVICTING_ACTIONS)
        if not job.is_editable or situation.found.stage in {"CannotStart", "NotAdmitted"}:
            return
        plugin = () if conf.option("priority") is not None else (ProposedChange("Plugin", CONF, "priority"),)
        if plugin and evicts:
            yield plugin
        classes = sorted((value, name) for name, (value, _) in situation.state.priority_classes.items())
        higher = [(value, name) for value, name in classes if value > job.priority and not name.startswith("system-")]
        for value, name in higher[:_MOST_CLASSES]:
            raised = (*plugin, ProposedChange("Priority", situation.target, name, value, value))
            if evicts or (position is not None and position.ahead):
                yield raised
            if may and not evicts:
                yield (ProposedChange("Action", CONF, "preempt"), *raised)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        scene.set_priority_class(change.key)
