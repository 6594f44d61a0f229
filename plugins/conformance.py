"""Protects critical pods of the cluster from eviction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.job import CRITICAL_CLASSES, SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.model.job import Task
    from capcard_sched.model.queue import Queue


class Conformance(Plugin):
    """Protects critical pods and all pods in `kube-system` from eviction."""

    name = "conformance"
    victims_by_usage = False

    def preemptable(self, task: Task, candidates: Sequence[Task]) -> list[Task]:
        return [
            candidate
            for candidate in candidates
            if candidate.namespace != SYSTEM_NAMESPACE and candidate.cls.priority_class_name not in CRITICAL_CLASSES
        ]

    reclaimable = preemptable

    def eviction_version(self, hook: str, queue: Queue, role: str) -> tuple[()]:
        """Empty: only the pod decides."""
        return ()
