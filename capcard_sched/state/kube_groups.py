"""What the state keeps of PodGroups of `scheduling.k8s.io` beyond their translation."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from capcard_sched.model.annotations import HELD, TOPOLOGY_LABEL
from capcard_sched.model.hyper_nodes import DEFAULT_TIER, NetworkTopology
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.kube_groups import job_name, kube_name
from capcard_sched.model.status import COMPLETED_STATUSES, PodGroupPhase, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.objects import PodObject
    from capcard_sched.model.pod_facts import PodFacts
    from capcard_sched.state.decode import GroupFacts
    from capcard_sched.state.jobs import JobTable


class KubeGroups:
    """Queues that pods name for groups without one, pods with two groups, and pods of other schedulers."""

    def __init__(self, jobs: JobTable, default_queue: str) -> None:
        self._jobs = jobs
        self._default_queue = default_queue
        #: Pods that name a PodGroup of each kind, with the text of their event.
        self.two_groups: dict[ObjectRef, str] = {}
        #: Groups with pods of other schedulers, with the text of their event.
        self.other_schedulers: dict[ObjectRef, str] = {}
        #: Job key to the text about the first such pod, and the names of those that exist.
        self._others: dict[str, tuple[str, set[str]]] = {}
        #: Namespace and name of such a pod to its job key.
        self._other_pods: dict[tuple[str, str], str] = {}
        #: Job key to the facts of a group as translated.
        self._facts: dict[str, GroupFacts] = {}
        #: Job key to the pods that name a queue, in order: name, uid and queue. They are facts of pods, whether their
        #: group exists or not: a group that comes again finds them.
        self._naming: dict[str, list[tuple[str, str, str]]] = {}
        #: uid of such a pod to its job key and its entry.
        self._named: dict[str, tuple[str, tuple[str, str, str]]] = {}

    def apply(self, facts: GroupFacts) -> GroupFacts:
        """The facts of a PodGroup with what only the scheduler knows, and with the queue of its pods."""
        if not kube_name(facts.name):
            return facts
        key = f"{facts.namespace}/{facts.name}"
        former = self._facts.get(key)
        if former is not None and former.uid != facts.uid:
            self.drop(former.namespace, former.name, former.uid)
        self._facts[key] = facts
        self._report_other(key)
        label = facts.annotations.get(TOPOLOGY_LABEL)
        if label:
            facts = facts._replace(topology=NetworkTopology(hard=True, highest=DEFAULT_TIER, label=label))
        job = self._jobs.by_key.get(key)
        if HELD in facts.annotations:
            self._jobs.held[key] = facts.annotations[HELD]
        else:
            self._jobs.held.pop(key, None)
        if job is not None and job.uid == facts.uid:
            facts = facts._replace(
                phase=job.phase,
                conditions=job.conditions,
                status_counts=job.status_counts,
                min_resources=None if job.min_resources is None else dict(job.min_resources),
            )
        if facts.queue == self._default_queue:
            facts = facts._replace(queue=self._queue_of_pods(key) or facts.queue)
        return facts

    def refresh(self, jobs: Iterable[str]) -> None:
        """Sum the requests of the first pods of changed jobs: what their minimum demands at enqueue, and reserves.

        A PodGroup of `scheduling.k8s.io` has no field for it. O(pods) per changed group.
        """
        for key in jobs if self._facts else ():
            job = self._jobs.by_key.get(key)
            if job is not None and key in self._facts:
                self._jobs.set_minimum(job, _first_requests(job))

    def _queue_of_pods(self, key: str) -> str:
        """The queue that the first pod by name names, of those that name one; "" for none."""
        named = self._naming.get(key)
        return named[0][2] if named else ""

    def has_started(self, key: str) -> bool:
        """Whether the minimum of the group of a job was bound at some time, by its condition."""
        facts = self._facts.get(key)
        return facts is not None and facts.phase is PodGroupPhase.RUNNING

    def note(self, task: Task, facts: PodFacts) -> bool:
        """Take the queue and the groups of a pod of this scheduler that was added or changed.

        Returns whether it has any that count here: they count for the pods of its run, too.
        """
        if not task.ours:
            return False
        if self._other_pods:
            self.forget_other(task.namespace, task.name)
        if facts.other_group:
            ref = ObjectRef("Pod", task.namespace, task.name, task.uid)
            detail = f"PodGroup {facts.group_name} of scheduling.volcano.sh counts"
            self.two_groups[ref] = f"{detail}, not PodGroup {facts.other_group} of scheduling.k8s.io"
        elif self.two_groups:
            self.two_groups.pop(ObjectRef("Pod", task.namespace, task.name, task.uid), None)
        key = ""
        if facts.queue_name and kube_name(facts.group_name):
            key = f"{task.namespace}/{facts.group_name}"
        self._set_queue(task, key, facts.queue_name)
        return bool(key or facts.other_group)

    def _set_queue(self, task: Task, key: str, queue: str) -> None:
        """Set the queue that a pod names for the group of a job; `key` is "" for none."""
        former, now = self._named.get(task.uid), (key, (task.name, task.uid, queue)) if key else None
        if former == now:
            return
        before = {each[0]: self._queue_of_pods(each[0]) for each in (former, now) if each is not None}
        if former is not None:
            named = self._naming[former[0]]
            del named[bisect_left(named, former[1])]
            if not named:
                del self._naming[former[0]]
            del self._named[task.uid]
        if now is not None:
            insort(self._naming.setdefault(key, []), now[1])
            self._named[task.uid] = now
        for each, known in before.items():
            if each in self._facts and self._queue_of_pods(each) != known:
                self._jobs.update(self.apply(self._facts[each]), edited=now is not None)

    def note_other(self, pod: PodObject, namespace: str, scheduler: str) -> None:
        """Take a pod of another scheduler; the first one of a group is reported."""
        named, name = pod.spec.scheduling_group, pod.metadata.name
        key = f"{namespace}/{job_name(named.pod_group_name)}" if named is not None and named.pod_group_name else ""
        if self._other_pods and self._other_pods.get((namespace, name)) != key:  # another pod had the name
            self.forget_other(namespace, name)
        if not key:
            return
        text = f"pod {name} is one of scheduler {scheduler}: it does not count for the PodGroup"
        self._others.setdefault(key, (text, set()))[1].add(name)
        self._other_pods[namespace, name] = key
        self._report_other(key)

    def _report_other(self, key: str) -> None:
        facts, noted = self._facts.get(key), self._others.get(key)
        if facts is not None and noted is not None:
            self.other_schedulers[ObjectRef("PodGroup", facts.namespace, facts.name, facts.uid)] = noted[0]

    def forget(self, task: Task) -> None:
        """Forget a pod of this scheduler that is gone."""
        if self.two_groups:
            self.two_groups.pop(ObjectRef("Pod", task.namespace, task.name, task.uid), None)
        self._set_queue(task, "", "")

    def forget_other(self, namespace: str, name: str) -> None:
        """Forget a pod of another scheduler that is gone; nothing for another pod."""
        key = self._other_pods.pop((namespace, name), "")
        noted = self._others.get(key)
        if noted is None:
            return
        noted[1].discard(name)
        if not noted[1]:
            del self._others[key]
            facts = self._facts.get(key)
            if facts is not None:
                self.other_schedulers.pop(ObjectRef("PodGroup", facts.namespace, facts.name, facts.uid), None)

    def drop(self, namespace: str, name: str, uid: str) -> None:
        """Forget a group that is gone; an empty uid matches any group of the name."""
        key = f"{namespace}/{name}"
        facts = self._facts.get(key)
        if facts is None or (uid and facts.uid != uid):
            return
        del self._facts[key]
        self.other_schedulers.pop(ObjectRef("PodGroup", namespace, name, facts.uid), None)
        self._jobs.held.pop(key, None)


def _first_requests(job: Job) -> dict[str, int]:
    """The requests of the first `minCount` pods, by resource: placed ones first, then in the order of attempts.

    Pods that ended are among the first, and request nothing more.
    """

    def order(task: Task) -> tuple[bool, bool, int, float, str]:
        return task.status is TaskStatus.PENDING, task.gated, -task.priority, task.created, task.name

    total: dict[str, int] = {}
    for task in sorted(job.tasks.values(), key=order)[: job.min_available]:
        for name, amount in task.cls.requests.items() if task.status not in COMPLETED_STATUSES else ():
            total[name] = total.get(name, 0) + amount
    return total
