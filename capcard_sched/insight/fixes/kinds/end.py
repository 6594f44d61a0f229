"""Pods of other jobs that end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.objects import POD_DELETION_COST
from capcard_sched.framework.explain.rejections import INSUFFICIENT
from capcard_sched.insight.fixes.commands import kubectl
from capcard_sched.insight.fixes.execution import is_active
from capcard_sched.insight.fixes.kind import FixKind
from capcard_sched.insight.trials.change import ProposedChange
from capcard_sched.insight.trials.victims import cheapest_on_nodes, conflicts, jobs_below, limit_holders
from capcard_sched.model.quoting import brief, command, plural
from capcard_sched.model.status import PLACED_STATUSES
from capcard_sched.model.workload import display_name, has_made_group, is_of_vcjob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.fixes.situation import Situation
    from capcard_sched.insight.trials.change import Candidate
    from capcard_sched.model.diagnosis import PendingPods
    from capcard_sched.model.job import Job, Task


#: Kinds of workloads of which single pods end.
_SCALED: Final = frozenset({"deployment", "replicaset"})


class EndFix(FixKind):
    """Jobs are suspended, or pods of Deployments removed: the fewest that free enough."""

    disruption = 4

    def propose(self, situation: Situation) -> Iterator[Candidate]:
        """The fewest that return the missing quota, or free nodes for the needed pods."""
        for row in situation.limits:
            wanted, queue = situation.wanted_of(row), situation.state.queues.get(row.queue)
            if wanted and row.quota is not None and situation.needed_of(row) <= row.quota and queue is not None:
                below = jobs_below(situation.core, queue)
                yield limit_holders(situation.core, below, situation.job, row.resource, wanted - row.quota)
        yield from self._refusing(situation)
        head = situation.state.jobs.get(situation.session.results.blocked_by_head.get(situation.job.key, ""))
        if head is not None:
            yield (ProposedChange("End", ("PodGroup", head.namespace, head.name), display_name(head)),)
        if situation.needed and not any(map(_is_refused, situation.found.pending)):
            yield cheapest_on_nodes(situation.core, situation.session, situation.job, situation.needed)
            if not all(map(_is_short, situation.found.pending)):
                yield from conflicts(situation.core, situation.job, situation.needed)

    @staticmethod
    def _refusing(situation: Situation) -> Iterator[Candidate]:
        """The fewest that return what the limit of a namespace or of the cluster lacks."""
        jobs = situation.state.jobs.values()
        for refusal in situation.refusals:
            of_namespace = refusal.object.startswith("ResourceQuota ")
            scope = [one for one in jobs if not of_namespace or one.namespace == situation.job.namespace]
            for check in refusal.checks:
                resource = check.resource.removeprefix("requests.").removeprefix("limits.")
                if check.requested <= check.limit < check.total:
                    missing = check.total - check.limit
                    yield limit_holders(situation.core, scope, situation.job, resource, missing)

    def edit(self, change: ProposedChange, scene: Scene) -> None:
        """Commands for all pods of the workload that end so far."""
        namespace, kind, name = change.key.split("/", 2)
        job, tasks = _ending(scene, change)
        own = list(filter(is_active, job.tasks.values() if job is not None else tasks))
        placed = {task.name for task in own if task.status in PLACED_STATUSES}
        # A ReplicaSet deletes its pending pods first, whatever their cost.
        others = sorted({task.name for task in own} - placed) if kind in _SCALED else []
        ended = scene.ended.setdefault(change.key, others)
        ended += [task.name for task in tasks if task.name not in ended]
        left = len(placed.difference(ended))
        if kind == "job" and job is not None and is_of_vcjob(job):
            lines = [command("capcard-sched", "job", "suspend", name, "-n", namespace)]
        elif kind == "job":
            suspended = '{"spec": {"suspend": true}}'
            lines = [kubectl(namespace, "patch", "job", name, "--type", "merge", "-p", suspended)]
        elif kind in _SCALED:
            chosen = [pod for pod in ended if pod in placed]
            cost = f"{POD_DELETION_COST}=-1"
            lines = [kubectl(namespace, "annotate", "pod", *chosen, "--overwrite", cost)] if left and chosen else []
            lines.append(kubectl(namespace, "scale", kind, name, f"--replicas={left}"))
        elif kind == "statefulset":
            lines = [kubectl(namespace, "scale", "statefulset", name, "--replicas=0")]
        else:
            lines = [kubectl(namespace, "delete", "pod", *ended)] if ended else []
            if job is not None and job.is_editable and not has_made_group(job):
                lines.append(kubectl(namespace, "delete", "podgroup", job.name))
        scene.write(f"end {change.key}", *lines)

    def text(self, change: ProposedChange, scene: Scene) -> str:
        """`end default/job/low (2 pods)`: all pods of the workload that a fix ends."""
        pods, (job, _) = scene.ended[change.key], _ending(scene, change)
        active = 0 if job is None else sum(map(is_active, job.tasks.values()))
        is_part = change.key.split("/")[1] in _SCALED and len(pods) < active
        count = plural(len(pods), "pod")
        if not pods:
            kind = change.key.split("/")[1]
            verb = "suspend" if kind == "job" else "scale down" if kind in (*_SCALED, "statefulset") else "delete"
            return f"{verb} {change.key}, which has no pods"
        return f"end {count} of {change.key} ({brief(pods)})" if is_part else f"end {change.key} ({count})"


def _is_refused(pods: PendingPods) -> bool:
    """Whether another limit than the size of the domains of a network topology refuses some pods."""
    return pods.outcome == "refused" and (pods.refusal is None or pods.refusal.hook != "hyper_node_order")


def _is_short(pods: PendingPods) -> bool:
    """Whether nothing but amounts of resources decides that no node fits some pods."""
    causes = [row.reason for row in pods.nodes if row.decides]
    return pods.refusal is None and bool(causes) and all(reason.startswith(INSUFFICIENT) for reason in causes)


def _ending(scene: Scene, change: ProposedChange) -> tuple[Job | None, list[Task]]:
    """The job of the pods that a change ends, and the pods."""
    kind, namespace, name = change.target
    if kind == "PodGroup":
        job = scene.core.snapshot().state.jobs[f"{namespace}/{name}"]
        return job, sorted(job.tasks.values(), key=lambda task: task.name)
    task = scene.tasks[f"{namespace}/{name}"]
    return task.job, [task]
