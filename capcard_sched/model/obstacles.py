"""What excludes the gated pods of a job from scheduling, in the words of events, conditions and `explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.quoting import brief
from capcard_sched.model.reasons import SCHEDULING_GATED, UNSUPPORTED_FEATURE
from capcard_sched.model.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.job import Job, Task


def obstacles_of(tasks: Iterable[Task]) -> list[str]:
    """One sentence per obstacle with the pods that have it; unsupported features first, then by the first pod."""
    pods: dict[tuple[bool, str], list[str]] = {}
    for task in sorted(tasks, key=lambda task: (task.index, task.name)):
        pods.setdefault((not task.unsupported, task.obstacle), []).append(task.name)
    return [_sentence(names, obstacle) for (_, obstacle), names in sorted(pods.items(), key=lambda item: item[0][0])]


def _sentence(names: list[str], obstacle: str) -> str:
    if obstacle.startswith("scheduling gate"):
        verb = "has" if len(names) == 1 else "have"
        return f"{_pods(names)} {verb} {obstacle}"
    verb = "is" if len(names) == 1 else "are"
    return f"{_pods(names)} {verb} never bound: {obstacle}"


def _pods(names: list[str]) -> str:
    return f"pod {names[0]}" if len(names) == 1 else f"{len(names)} pods ({brief(names)})"


def obstacles_text(tasks: Iterable[Task]) -> str:
    """The sentences of `obstacles_of`, the first with a capital letter."""
    text = "; ".join(obstacles_of(tasks))
    return text[:1].upper() + text[1:]


def obstacle_refusal(job: Job, hook: str, plugin: str = "") -> Refusal:
    """The refusal of a job whose minimum is out of reach without its gated pods."""
    row = UNSUPPORTED_FEATURE if job.needs_unsupported() else SCHEDULING_GATED
    text = row.render(detail=obstacles_text(job.gated.values()))
    return Refusal(hook, plugin, row.code, text, queue=job.queue, event=hook == "job_enqueueable")
