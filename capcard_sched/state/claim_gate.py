"""Pods with ResourceClaims where the support of claims changes with the scheduler-conf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.pod_claims import with_claims
from capcard_sched.model.status import TaskStatus
from capcard_sched.model.unsupported import foreign_gates

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.job import Task
    from capcard_sched.state.accounting import Accounting


def gate_claims(tasks: Iterable[Task], accounting: Accounting, *, supported: bool) -> None:
    """Excludes pending pods with claims from scheduling, or includes them."""
    for task in tasks:
        if task.status is TaskStatus.PENDING and (task.cls.claims or task.unsupported):
            accounting.subtract(task)
            task.unsupported = with_claims(task.unsupported, task.cls.claims, supported=supported)
            task.gated = bool(foreign_gates(task.gates) or task.unsupported)
            accounting.add(task)
