"""Fewer subgroups of a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.controllers.objects import spec
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.sources.changes import set_spec
from capcard_sched.insight.trials.change import ProposedChange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation
    from capcard_sched.insight.trials.change import Candidate
    from capcard_sched.model.job import Job


class MinSubGroupsFix(FixKind):
    """A gang of fewer subgroups, where their number is what keeps it from starting."""

    words = "minSubGroups of policy {key} of {job}: {present} → {value}"
    before = "{present}"
    after = "{value}"
    disruption = 6
    is_of_job = True
    is_of_gang = True

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """One subgroup of a policy that needs several; the search finds the largest number that starts."""
        job = situation.job
        if job.is_ready() or not job.is_editable or job.groups is None:
            return
        for policy in job.groups.policies:
            if policy.minimum > 1 and not policy.invalid:
                own = ProposedChange("MinSubGroups", situation.target, policy.name, value=1, present=policy.minimum)
                yield (own,)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Set the minimum in the task of the vcjob, or in the policy of the PodGroup."""
        owner, group = scene.owner(), scene.group()
        if scene.is_vcjob and owner is not None:
            tasks = [_with_partitions(task, change) for task in spec(owner).get("tasks") or ()]
            set_spec(owner, "tasks", tasks)
        elif group is not None:
            policies = [
                {**policy, "minSubGroups": change.value} if policy.get("name") == change.key else policy
                for policy in spec(group).get("subGroupPolicy") or ()
            ]
            set_spec(group, "subGroupPolicy", policies)

    def cost(self, change: ProposedChange, job: Job) -> str:
        """A job that is not elastic does not work with a part of its subgroups."""
        del job
        return f"a job that is not elastic runs with {change.value} of {change.present} subgroups of {change.key}"


def _with_partitions(task: dict[str, Any], change: ProposedChange) -> dict[str, Any]:
    """A task with another minimum of partitions, and the `minAvailable` that belongs to it."""
    policy = task.get("partitionPolicy")
    if task.get("name") != change.key or not policy:
        return task
    changed = {**task, "partitionPolicy": {**policy, "minPartitions": change.value}}
    if task.get("minAvailable") is not None and change.value:
        changed["minAvailable"] = change.value * policy["partitionSize"]
    return changed
