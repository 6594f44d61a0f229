"""The text of a pod's shortfall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.annotations import CARD_NAME
from capcard_sched.model.quantity import format_amount, is_scalar
from capcard_sched.model.resources import PODS

if TYPE_CHECKING:
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task
    from capcard_sched.model.resources import Vector


def shortfall_text(session: Session, *parts: tuple[Task, Vector]) -> str:
    """The total shortfall of pods, in order of name: `NVIDIA-H200: 4`, or `NVIDIA-H200: 2, cpu: 8, memory: 4Gi`.

    `parts`: each pod with its shortfall, int64 [resource columns], base units. Cards have the name in the pod's
    annotation. Pod slots are omitted unless nothing else is missing.
    """
    totals: dict[str, tuple[str, int]] = {}
    for task, amounts in parts:
        lacking = session.resources.amounts(amounts)
        devices = [name for name in lacking if is_scalar(name) and name != PODS]
        card = task.cls.annotations.get(CARD_NAME) if len(devices) == 1 else None
        for resource, amount in lacking.items():
            if resource != PODS or len(lacking) == 1:
                name = card if card and resource in devices else resource
                totals[name] = resource, amount + totals.get(name, ("", 0))[1]
    return ", ".join(f"{name}: {format_amount(*totals[name])}" for name in sorted(totals)) or "a place"
