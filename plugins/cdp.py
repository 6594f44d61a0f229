"""Pods that were just placed are not evicted again at once (plugins reference §18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.framework.api.plugin import Plugin, VictimDecision
from capcard_sched.framework.toolkit.annotation_warnings import AnnotationWarnings, annotation_warnings
from capcard_sched.model.annotations import COOLDOWN_TIME
from capcard_sched.model.cooldown import COOLDOWN_FORM, Start
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task

#: What keeps a pod, as people are told.
CAUSE = "cool-down"


class CdpArguments(msgspec.Struct, frozen=True):
    """When the cool-down begins."""

    #: The condition of the pod since which it is counted. A pod that is not ready (yet) counts from PodScheduled.
    start: Start = msgspec.field(name="cdp.start", default="PodScheduled")


class Cdp(Plugin):
    """Lets no running pod be evicted for as long as its label or annotation volcano.sh/cooldown-time says.

    The time is counted from when the pod was scheduled, or with `cdp.start` from when it became ready.
    """

    name = "cdp"
    Arguments = CdpArguments
    arguments: CdpArguments

    def __init__(self, arguments: Any = None, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._now = 0.0
        #: The first end of a cool-down that protected somebody in this session.
        self._due: float | None = None
        self._misread = AnnotationWarnings()

    def open(self, session: Session) -> None:
        """Tell of times that cannot be read. O(pods of the jobs that changed)."""
        self._now = session.now
        self._due = None
        self._misread.report_pods(session, _problem)

    def next_wakeup(self) -> float | None:
        """When a pod that was kept may go: nothing else tells those who wait for its room."""
        return self._due

    def preemptable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
        """Protects in every tier: who asks for a cool-down asks for it against everybody."""
        protected: dict[str, str] = {}
        victims: list[Task] = []
        for candidate in candidates:
            cooldown = candidate.cooldown
            if cooldown is not None and candidate.status is TaskStatus.RUNNING:
                until = cooldown.until(self.arguments.start)
                if until > self._now:
                    protected[candidate.uid] = CAUSE
                    self._due = until if self._due is None else min(self._due, until)
                    continue
            victims.append(candidate)
        return VictimDecision(protected, victims)

    reclaimable = preemptable


def _problem(task: Task) -> str:
    """What is wrong with a pod's cool-down, as it is told; "" for nothing."""
    cooldown = task.cooldown
    if cooldown is None or not cooldown.problem:
        return ""
    kind = "label" if cooldown.is_label else "annotation"
    return annotation_warnings(COOLDOWN_TIME, f"{cooldown.problem} ({kind}); the pod is not protected", COOLDOWN_FORM)
