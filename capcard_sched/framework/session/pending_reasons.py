"""The texts of pending tasks and jobs, rendered from recorded outcomes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.model import reasons
from capcard_sched.model.losses import losses_of
from capcard_sched.model.obstacles import obstacles_text
from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.framework.backlog.task_outcome import TaskOutcome
    from capcard_sched.model.job import Job, Task


#: By status.
_TITLES: Final = tuple(status.title for status in TaskStatus)


def _histogram(counts: Mapping[str, int]) -> str:
    """`2 Pending, 10 Running`: by number, then text."""
    return ", ".join(f"{count} {text}" for count, text in sorted((count, text) for text, count in counts.items()))


def job_fit_text(
    job: Job, outcome_of: Callable[[str], TaskOutcome | None], task_key: Callable[[Task], tuple[Any, ...]]
) -> str:
    """`pod group is not ready, 2 Pending, 3 minAvailable; Pending: 2 Unschedulable. Origin reason is p-0: ...`.

    The origin is the most frequent text among pending tasks, with its first task in task order.
    """
    counts: Counter[str] = Counter()
    for count, title in zip(job.counts, _TITLES, strict=True):
        if count:
            counts[title] += count
    counts["minAvailable"] += job.min_available
    text = f"pod group is not ready, {_histogram(counts)}"
    losses = losses_of(job.tasks.values())
    if losses:
        text += f"; {'; '.join(losses)}"
    pending = [task for task in job.tasks.values() if task.status is TaskStatus.PENDING]
    if not pending:
        return text
    needs_gated = job.needs_gated()
    words: Counter[str] = Counter()
    texts: Counter[str] = Counter()
    messages: dict[str, str] = {}
    for task in pending:
        outcome = outcome_of(task.uid)
        schedulable = outcome is not None and outcome.kind == "schedulable"
        words["Schedulable" if schedulable else "Unschedulable"] += 1
        if outcome is not None and outcome.message:
            texts[outcome.message] += 1
            messages[task.uid] = outcome.message
    text += f"; Pending: {_histogram(words)}"
    if needs_gated:
        text += f". {obstacles_text(job.gated.values())}"
    elif texts:
        most = max(texts.values())
        candidates = [task for task in pending if task.uid in messages and texts[messages[task.uid]] == most]
        try:
            origin = min(candidates, key=task_key) if len(candidates) > 1 else candidates[0]
        except HookFailed:  # the failed hook was recorded during the attempt: the text is still needed
            origin = min(candidates, key=lambda task: (task.created, task.uid))
        text += f". Origin reason is {origin.name}: {messages[origin.uid]}"
    return text


def task_scheduling_reason(task: Task, outcome: TaskOutcome | None, job_text: object) -> tuple[str, str, str]:
    """(condition reason as of Volcano, message, nominated node) of a pending task.

    `job_text`: the text of a task without an outcome of its own is its `str`, computed if it is needed.
    """
    if task.unsupported:
        return reasons.UNSUPPORTED_FEATURE.code, task.unsupported, ""
    if outcome is None:
        return reasons.POD_UNSCHEDULABLE.code, str(job_text), ""
    if outcome.kind in ("schedulable", "pipelined"):
        row = reasons.POD_SCHEDULABLE if outcome.kind == "schedulable" else reasons.POD_PIPELINED
        nominated = outcome.node if outcome.nominated else ""
        return row.code, row.render(namespace=task.namespace, name=task.name, node=outcome.node), nominated
    return reasons.POD_UNSCHEDULABLE.code, outcome.message or str(job_text), ""
