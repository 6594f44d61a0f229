"""Events and records of preemption: on victims, on pods that get capacity, and on those that get none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.framework.session.carry_over import REFRESH_SECONDS
from capcard_sched.model import reasons
from capcard_sched.model.annotations import CARD_NAME
from capcard_sched.model.explanation import EvictedPod, VictimsConsidered
from capcard_sched.model.quantity import format_amount, is_scalar
from capcard_sched.model.refusal import Refusal
from capcard_sched.model.resources import PODS

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence

    from capcard_sched.framework.api.plugin import Placement
    from capcard_sched.framework.eviction.node_plans import PreemptionPlan
    from capcard_sched.framework.eviction.scope import WithinQueue
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.resources import Vector


class EvictionEvents:
    """Reports the attempts of one action within one scope."""

    def __init__(self, session: Session, scope: WithinQueue) -> None:
        self._session = session
        self._scope = scope
        #: uid of a pod to its shortfall on its node: int64 [resource columns].
        self._shortfalls: dict[str, Vector] = {}
        #: uid of a pod to the text of its shortfall, as of the last text of an eviction for it.
        self._lacking: dict[str, str] = {}

    def victim_text(self, queue: Queue, task: Task, plan: PreemptionPlan) -> str:
        """The text of the evictions of a plan for a pod of a queue."""
        self._shortfalls[task.uid] = plan.shortfall
        return self._text(queue, task, self._session.nodes.nodes[plan.row])

    def taker_text(self, queue: Queue, task: Task, former: Task, node: Node) -> str:
        """The text of evictions that were planned for another pod, `former`, which moved to another node."""
        self._shortfalls.setdefault(task.uid, self._shortfalls[former.uid])
        return self._text(queue, task, node)

    def _text(self, queue: Queue, task: Task, node: Node) -> str:
        lacking = self._lacking[task.uid] = _shortfall_text(self._session, (task, self._shortfalls[task.uid]))
        return f"{self._scope.action}: {lacking} on node {node.name} for {task.key} of queue {queue.name}"

    def committed(self, queue: Queue, promises: list[Placement], victims: list[Task], begun: int) -> None:
        """Emits the events on the jobs of the victims and on the preemptor, and records the evictions for `explain`."""
        session = self._session
        by_pod: dict[str, list[Task]] = {}
        of_job: dict[str, list[Task]] = {}
        takers: dict[str, str] = {}
        for victim, intent in zip(victims, session.results.evictions[begun:], strict=True):
            by_pod.setdefault(intent.by, []).append(victim)
            assert victim.job is not None
            of_job.setdefault(victim.job.key, []).append(victim)
            takers.setdefault(victim.job.key, intent.by)
            evicted = EvictedPod(victim.name, intent.node, self._scope.action, intent.by, intent.queue, session.now)
            session.carry_over.remember_eviction(victim.job.key, evicted)
        for key in sorted(of_job):
            members = of_job[key]
            first = members[0].job
            assert first is not None
            session.results.touch(key)
            if not first.implicit:
                message = reasons.GROUP_EVICTED.render(
                    action=self._scope.action, pods=len(members), by=takers[key], queue=queue.name
                )
                session.results.notice(first, reasons.GROUP_EVICTED, message)
        row = self._scope.success
        served = {
            task: node.name
            for placement in promises
            for task, node in zip(placement.tasks, placement.nodes, strict=True)
            if task.key in by_pod
        }
        text = ""
        for task, node in served.items():
            text = self._beneficiary_text(row, {task: node}, by_pod[task.key])
            session.results.notice(task, row, text)
        job = next((task.job for task in served), None)
        if job is not None and not job.implicit:
            alone = len(served) == 1 and len(by_pod) == 1  # the text of its pod holds for the job
            session.results.notice(job, row, text if alone else self._beneficiary_text(row, served, victims))

    def _beneficiary_text(self, row: reasons.Reason, served: Mapping[Task, str], victims: Sequence[Task]) -> str:
        """The text of an event about the pods of a job (to their nodes) that the evictions serve."""
        names = sorted({victim.job.key for victim in victims if victim.job is not None})
        if len(served) == 1:
            lacking = self._lacking[next(iter(served)).uid]
        else:
            lacking = _shortfall_text(self._session, *((task, self._shortfalls[task.uid]) for task in served))
        return row.render(
            pods=len(victims), jobs=len(names), node=", ".join(sorted(set(served.values()))), names=", ".join(names),
            lacking=lacking,
        )  # fmt: skip

    def unplaced(self, queue: Queue, job: Job, task: Task, kept: Counter[str], not_enough: int) -> None:
        """Records the candidates of an unplaced pod and the causes that protect them.

        `kept`: pods by cause; `not_enough`: nodes without enough candidates.
        """
        session, action = self._session, self._scope.action
        considered = VictimsConsidered(
            action, task.name, len(session.nodes), tuple(sorted(kept.items(), key=lambda entry: (-entry[1], entry[0]))),
            not_enough,
        )  # fmt: skip
        session.results.report_preemption(job, considered)
        failure = self._scope.failure
        if failure is not None:
            causes = f": {considered.text}" if considered.text else ""
            message = failure.render(nodes=considered.nodes, causes=causes)
            refusal = Refusal(self._scope.hook, "", failure.code, message, queue=queue.name, event=True)
            self._refuse(job, task, refusal)

    def _refuse(self, job: Job, task: Task, refusal: Refusal) -> None:
        """Refuses the pod. An unchanged job keeps its refusal; pod and figures are refreshed at intervals."""
        session, carry_over = self._session, self._session.carry_over
        uid, before, refresh_at = carry_over.reclaim_refusals.get(job.key, ("", refusal, 0.0))
        changed = session.changed.everything or job.key in session.changed.jobs
        if uid in job.pending and session.now < refresh_at and not changed:
            session.results.refuse(job.pending[uid], before)
            return
        carry_over.keep_reclaim_refusal(job.key, task.uid, refusal, session.now + REFRESH_SECONDS)
        session.results.refuse(task, before if uid == task.uid and before == refusal else refusal)


def _shortfall_text(session: Session, *parts: tuple[Task, Vector]) -> str:
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
    found = ", ".join(f"{name}: {format_amount(*totals[name])}" for name in sorted(totals))
    return found or ("devices of ResourceClaims" if any(task.cls.claims for task, _ in parts) else "a place")
