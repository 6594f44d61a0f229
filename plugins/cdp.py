"""Protects pods from eviction for a cool-down time after they start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capcard_sched.framework.api.plugin import Plugin, VictimDecision
from capcard_sched.framework.toolkit.annotation_warnings import AnnotationWarnings, invalid_annotation
from capcard_sched.model.annotations import COOLDOWN_TIME
from capcard_sched.model.cooldown import COOLDOWN_FORM, Start
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue

#: The cause of a protection in reports.
CAUSE = "cool-down"


class CdpArguments(msgspec.Struct, frozen=True):
    """The start of the cool-down."""

    #: The pod condition whose transition starts the cool-down. A pod that is not ready yet uses PodScheduled.
    start: Start = msgspec.field(name="cdp.start", default="PodScheduled")


class Cdp(Plugin):
    """Protects running pods from eviction for the time in their label or annotation volcano.sh/cooldown-time.

    The time starts when the pod is scheduled or, with `cdp.start`, when it becomes ready.
    """

    name = "cdp"
    victims_by_usage = False
    Arguments = CdpArguments
    arguments: CdpArguments

    def setup(self) -> None:
        self._now = 0.0
        #: The earliest end of a cool-down that protected a pod: later sessions need not examine the pod again.
        self._due: float | None = None
        self._warnings = AnnotationWarnings()

    def open(self, session: Session) -> None:
        """Report times that cannot be parsed. O(pods of the jobs that changed)."""
        self._now = session.now
        if self._due is not None and self._due <= self._now:
            self._due = None
        self._warnings.report_pods(session, _problem)

    def next_wakeup(self) -> float | None:
        """The earliest end of a protection: no other change triggers a session then."""
        return self._due

    def preemptable(self, task: Task, candidates: Sequence[Task]) -> VictimDecision:
        """Protects in every tier, so that no other plugin can override a cool-down."""
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

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[()]:
        """Empty: cool-downs are facts of the pods until `next_wakeup`."""
        return ()


def _problem(task: Task) -> str:
    """The event message about a pod's invalid cool-down, "" for a valid one."""
    cooldown = task.cooldown
    if cooldown is None or not cooldown.problem:
        return ""
    kind = "label" if cooldown.is_label else "annotation"
    return invalid_annotation(COOLDOWN_TIME, f"{cooldown.problem} ({kind}); the pod is not protected", COOLDOWN_FORM)
