"""Pods that a gang can lose and still keep its minimum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.status import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.groups import SubGroup
    from capcard_sched.model.job import Job, Task

#: Statuses that count towards the minimum of a gang and of its roles.
_READY = (TaskStatus.ALLOCATED, TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.SUCCEEDED)


class GangSlack:
    """The number of members that a gang can lose, in total and per role."""

    __slots__ = ("_job", "_left", "_roles")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._left = job.ready_tasks - job.min_available
        self._roles: dict[str, int] = {}

    def spares(self, task: Task) -> bool:
        """Whether the gang can lose one more task of the role, which then counts as lost."""
        job, role = self._job, task.role
        if self._left <= 0:
            return False
        minimum = job.min_task_member.get(role, 0) if job.checks_roles else 0
        if minimum > 0:
            if role not in self._roles:
                counts = job.roles.get(role)
                self._roles[role] = (0 if counts is None else sum(counts[status] for status in _READY)) - minimum
            if self._roles[role] <= 0:
                return False
            self._roles[role] -= 1
        self._left -= 1
        return True

    def spares_all(self, tasks: list[Task], *, already: int) -> bool:
        """The same for several tasks together, of which some count as lost `already`."""
        left, roles = self._left, dict(self._roles)
        if all(map(self.spares, tasks[already:])):
            return True
        self._left, self._roles = left, roles
        return False


class SubGroupSlack:
    """The members and whole subgroups that a job with subgroups can lose.

    Pods of the rest and beyond the size of their subgroup leave singly, others with their whole subgroup. A subgroup
    below its size counts for no minimum of its policy.
    """

    __slots__ = ("_beyond", "_gang", "_groups", "_job", "_spare")

    def __init__(self, job: Job) -> None:
        assert job.groups is not None
        self._job, self._groups = job, job.groups
        self._gang = GangSlack(job)
        #: Members beyond the size, by subgroup; ready subgroups beyond the minimum, by policy.
        self._beyond: dict[SubGroup, int] = {}
        ready = job.groups.with_size(_READY, best_effort=False)
        self._spare = [count - policy.minimum for count, policy in zip(ready, job.groups.policies, strict=True)]

    def spares(self, task: Task) -> bool:
        """Whether the job can lose one more pod alone, which then counts as lost."""
        group, groups = self._groups.of(task), self._groups
        if group is None:
            return self._gang.spares(task)
        beyond = self._beyond.setdefault(group, groups.bound_of(group) - groups.size_of(group))
        if beyond <= 0 or not self._gang.spares(task):
            return False
        self._beyond[group] -= 1
        return True

    def spares_group(self, group: SubGroup) -> bool:
        """Whether the job can lose all pods of a subgroup, which then count as lost."""
        is_ready = self._groups.bound_of(group) >= self._groups.size_of(group)
        if is_ready and self._spare[group.policy] <= 0:
            return False
        members = [
            task for task in self._job.tasks.values() if task.status in _READY and self._groups.of(task) == group
        ]
        if not self._gang.spares_all(members, already=self._lost(group)):
            return False
        self._spare[group.policy] -= is_ready
        return True

    def _lost(self, group: SubGroup) -> int:
        beyond = self._groups.bound_of(group) - self._groups.size_of(group)
        return max(0, beyond) - max(0, self._beyond.get(group, beyond))


def spare_subgroups(job: Job, candidates: Iterable[Task]) -> tuple[list[Task], list[SubGroup], list[Task]]:
    """Candidates that leave singly, the subgroups that leave whole, and the remaining candidates. Orders are kept.

    Subgroups below their size go first. For members of one job with subgroups.
    """
    groups = job.groups
    assert groups is not None
    slack = SubGroupSlack(job)
    singles: list[Task] = []
    others: list[Task] = []
    for task in candidates:
        (singles if slack.spares(task) else others).append(task)
    found = [group for group in dict.fromkeys(map(groups.of, others)) if group is not None]
    found.sort(key=lambda group: groups.bound_of(group) >= groups.size_of(group))
    whole = [group for group in found if slack.spares_group(group)]
    return singles, whole, [task for task in others if groups.of(task) not in whole]


def split_slack(candidates: Iterable[Task]) -> tuple[list[Task], list[Task]]:
    """Candidates that their job, and its roles, can lose and keep the minimum, taken in order; and the others.

    Both lists keep the given order; a pod without a job is among the others. O(candidates), and O(tasks) of jobs with
    subgroups, of which whole subgroups may leave.
    """
    candidates = list(candidates)
    members: dict[Job, list[Task]] = {}
    for task in candidates:
        if task.job is not None and task.job.groups is not None:
            members.setdefault(task.job, []).append(task)
    kept = {task.uid for job, own in members.items() for task in spare_subgroups(job, own)[2]}
    gangs: dict[str, GangSlack] = {}
    slack: list[Task] = []
    others: list[Task] = []
    for task in candidates:
        job = task.job
        if job is not None and job.groups is not None:
            (others if task.uid in kept else slack).append(task)
            continue
        if job is not None:
            gang = gangs.get(job.key)
            if gang is None:
                gang = gangs[job.key] = GangSlack(job)
            if gang.spares(task):
                slack.append(task)
                continue
        others.append(task)
    return slack, others
