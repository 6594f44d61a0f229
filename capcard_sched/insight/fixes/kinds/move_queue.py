"""Queues that do not exist, or have child queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.explain.sentences import nearest
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.fixes.scene import notes_of
from capcard_sched.insight.sources.changes import annotate, set_spec
from capcard_sched.insight.trials.change import Candidate, ProposedChange
from capcard_sched.model.annotations import POD_QUEUE_NAME, QUEUE_NAME
from capcard_sched.model.queue import ROOT, subtree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation

_MOST_QUEUES: Final = 2


class MoveQueueFix(FixKind):
    """Another queue instead of a missing one, or of one with child queues."""

    words = "{job} uses queue {key} instead of {queue}"
    before = "{queue}"
    after = "{key}"
    is_single = True
    is_of_job = True

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """The queue with a similar name, or else the first ones; of a queue with child queues the first leaves."""
        position, queues = situation.found.queue, situation.state.queues
        parents = {ROOT, *(queue.parent for queue in queues.values())}
        known = sorted(name for name in queues if name not in parents and "/" not in name)
        if position is not None and position.name in parents and situation.found.stage == "NotAdmitted":
            known = sorted(one.name for one in subtree(queues[position.name], queues) if one.name not in parents)
        elif position is None or position.state != "missing":
            return
        close = nearest(position.name, known) if position.state == "missing" else ""
        for name in [close] if close else known[:_MOST_QUEUES]:
            yield (ProposedChange("MoveQueue", situation.target, name),)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Name the queue where it is named now."""
        owner, group = scene.owner(), scene.group()
        if scene.is_vcjob and owner is not None:
            set_spec(owner, "queue", change.key)
            return
        if group is not None:
            set_spec(group, "queue", change.key)
        for _, template in scene.templates():
            named = [key for key in (POD_QUEUE_NAME, QUEUE_NAME) if key in notes_of(template)]
            for key in named or ([] if group is not None else [POD_QUEUE_NAME]):
                annotate(template, key, change.key)
