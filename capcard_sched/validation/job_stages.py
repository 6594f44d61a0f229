"""Gangs of vcjobs that wait for pods of a later task (`dependsOn`): such a job never starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.quoting import plural
from capcard_sched.validation.checks import Finding, listed
from capcard_sched.validation.inventory import as_map
from capcard_sched.validation.job_structure import (
    check_dependencies,
    count_of,
    depends_on,
    minimum_of,
    replicas_of,
    task_name,
    tasks_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.validation.inventory import Json


def check_stages(spec: Json) -> Iterator[Finding]:
    """Warnings for a gang that never starts: it needs pods of tasks that wait for its own pods to run."""
    tasks = tasks_of(spec)
    minimums = {task_name(task, index): minimum_of(task) for index, task in enumerate(tasks)}
    if not any(map(depends_on, tasks)) or any(finding.severity == "error" for finding in check_dependencies(tasks)):
        return
    waiting = dict.fromkeys(index for index, task in enumerate(tasks) if not _is_first(task, minimums))
    first = sum(replicas_of(task) for index, task in enumerate(tasks) if index not in waiting)
    total = sum(minimums.values())
    needed = count_of(spec.get("minAvailable")) or total
    names = listed([task_name(tasks[index], index) for index in waiting])
    if needed > first:
        gang = f"the gang needs {plural(needed, 'pod')}"
        message = f"can never start: {gang}; dependsOn holds back those of {names} until it runs"
        yield Finding("warning", "spec.minAvailable", message, f"at most {first}")
    elif needed >= total:  # else the minimums of the tasks do not count
        for index in waiting:
            name = task_name(tasks[index], index)
            if minimums[name]:
                message = f"can never start: dependsOn holds back {name}, which the gang needs, until it runs"
                accepted = f"0, or spec.minAvailable below {total}"
                yield Finding("warning", f"spec.tasks[{index}].minAvailable", message, accepted)


def _is_first(task: Json, minimums: dict[str, int]) -> bool:
    """Whether the pods of a task exist before any pod of the job runs."""
    others = depends_on(task)
    met = [not minimums.get(other, 1) for other in others]
    return not others or (any(met) if as_map(task.get("dependsOn")).get("iteration") == "any" else all(met))
