"""Shared by tests of evictions: a plugin that decides on victims, and the victims of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from capcard_sched.framework.api.plugin import Plugin, VictimDecision
from capcard_sched.framework.core import StepResult
from capcard_sched.model.intents import Evict
from capcard_sched.model.job import Job, Task


class Tide(Plugin):
    """Queues whose name begins with `qi` reclaim from those whose name begins with `qt`; no others reclaim."""

    name: ClassVar[str] = "tide"

    def may_reclaim(self, job: Job) -> bool:
        return job.queue.startswith("qi")

    def reclaimable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
        assert task.job is not None
        takes = task.job.queue.startswith("qi")
        victims = [one for one in candidates if takes and one.job is not None and one.job.queue.startswith("qt")]
        named = {victim.uid for victim in victims}
        return VictimDecision({one.uid: "service-type" for one in candidates if one.uid not in named}, victims)


def evicted(result: StepResult) -> list[str]:
    """Names of the pods a step evicted, in order of name."""
    return sorted(intent.name for intent in result.intents if isinstance(intent, Evict))
