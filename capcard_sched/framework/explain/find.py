"""Finds the job of a name that a user knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.workload import workload_of

if TYPE_CHECKING:
    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.model.job import Job


def find_workload(snapshot: CoreSnapshot, namespace: str, name: str) -> Job | None:
    """The job of `NAME` or `kind/NAME`; of several jobs of a workload a pending one, else the newest."""
    kind, _, plain = name.rpartition("/")
    exact = snapshot.state.jobs.get(f"{namespace}/{plain}")
    if exact is not None and kind in ("", "podgroup"):
        return exact
    named = []
    for job in snapshot.state.jobs.values():
        if job.namespace == namespace:
            own_kind, _, own_name = workload_of(job).partition("/")
            if own_name == plain and kind in ("", own_kind):
                named.append(job)
    if named:
        return max(named, key=lambda job: (bool(job.pending), job.created, job.key))
    found = find_job(snapshot, namespace, plain) if kind in ("", "pod") else None
    return found if found is None or not kind or any(task.name == plain for task in found.tasks.values()) else None


def find_job(snapshot: CoreSnapshot, namespace: str, name: str) -> Job | None:
    """The job of a PodGroup, of a pod, of a Job or of another workload, by that name.

    A prefix shared by several owners matches none: `llm` is not the Job `llm-tuning`.
    """
    state = snapshot.state
    exact = state.jobs.get(f"{namespace}/{name}")
    if exact is not None:
        return exact
    for task in state.tasks.values():
        if task.namespace == namespace and task.name == name and task.job is not None:
            return task.job
    for _, job in sorted(state.jobs.items()):
        if job.namespace == namespace and job.owner_job == name:
            return job
    owners = sorted(
        {
            task.job.key
            for task in state.tasks.values()
            if task.namespace == namespace
            and task.name.startswith(f"{name}-")
            and task.job is not None
            and not workload_of(task.job)
        }
    )
    return state.jobs[owners[0]] if owners else None
