"""What the state keeps of PodGroups of `scheduling.k8s.io` beyond their translation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.annotations import HELD, TOPOLOGY_LABEL
from capcard_sched.model.hyper_nodes import DEFAULT_TIER, NetworkTopology
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.kube_groups import job_name, kube_name
from capcard_sched.model.status import PodGroupPhase

if TYPE_CHECKING:
    from capcard_sched.model.job import Task
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
        #: Job key to the first pod by name with a queue, and the queue.
        self._queues: dict[str, tuple[str, str]] = {}
        #: Job key to the uids of the pods with a queue, and back: groups that never come leave nothing.
        self._naming: dict[str, set[str]] = {}
        self._named: dict[str, str] = {}

    def apply(self, facts: GroupFacts) -> GroupFacts:
        """The facts of a PodGroup with what only the scheduler knows, and with the queue of its pods."""
        if not kube_name(facts.name):
            return facts
        key = f"{facts.namespace}/{facts.name}"
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
            facts = facts._replace(phase=job.phase, conditions=job.conditions, status_counts=job.status_counts)
        if facts.queue == self._default_queue and key in self._queues:
            facts = facts._replace(queue=self._queues[key][1])
        return facts

    def has_started(self, key: str) -> bool:
        """Whether the minimum of the group of a job was bound at some time, by its condition."""
        facts = self._facts.get(key)
        return facts is not None and facts.phase is PodGroupPhase.RUNNING

    def note(self, task: Task, facts: PodFacts) -> None:
        """Take the queue and the groups of a pod of this scheduler that was added or changed."""
        if not task.ours:
            return
        if facts.other_group:
            ref = ObjectRef("Pod", task.namespace, task.name, task.uid)
            detail = f"PodGroup {facts.group_name} of scheduling.volcano.sh counts"
            self.two_groups[ref] = f"{detail}, not PodGroup {facts.other_group} of scheduling.k8s.io"
        elif self.two_groups:
            self.two_groups.pop(ObjectRef("Pod", task.namespace, task.name, task.uid), None)
        if not facts.queue_name or not kube_name(facts.group_name):
            return
        key = f"{task.namespace}/{facts.group_name}"
        self._naming.setdefault(key, set()).add(task.uid)
        self._named[task.uid] = key
        known = self._queues.get(key)
        if known is None or task.name <= known[0]:
            self._queues[key] = (task.name, facts.queue_name)
            if key in self._facts and known != self._queues[key]:
                self._jobs.update(self.apply(self._facts[key]))

    def note_other(self, pod: PodObject, namespace: str, scheduler: str) -> None:
        """Take a pod of another scheduler; the first one of a group is reported."""
        named = pod.spec.scheduling_group
        if named is None or not named.pod_group_name:
            return
        key = f"{namespace}/{job_name(named.pod_group_name)}"
        name = pod.metadata.name
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
        key = self._named.pop(task.uid, "")
        if not key:
            return
        self._naming[key].discard(task.uid)
        if not self._naming[key]:
            del self._naming[key]
            if key not in self._facts:
                self._queues.pop(key, None)

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

    def drop(self, namespace: str, name: str) -> None:
        """Forget a group that is gone."""
        key = f"{namespace}/{name}"
        facts = self._facts.pop(key, None)
        if facts is not None:
            self.other_schedulers.pop(ObjectRef("PodGroup", facts.namespace, facts.name, facts.uid), None)
        self._queues.pop(key, None)
        self._jobs.held.pop(key, None)
