"""Pods as tasks: their objects, bindings and evictions in flight, and the facts that a binding fixes."""

from __future__ import annotations

from operator import attrgetter
from sys import intern
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.model import deltas
from capcard_sched.model.annotations import DEVICE_ANNOTATIONS
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.job import NO_ENTRIES, Node, Task
from capcard_sched.model.kube_groups import kube_name
from capcard_sched.model.objects import PodObject
from capcard_sched.model.pod_facts import FactsReader
from capcard_sched.model.quantity import QuantityError
from capcard_sched.model.status import ALLOCATED_STATUSES, COMPLETED_STATUSES, TaskStatus
from capcard_sched.model.unsupported import foreign_gates
from capcard_sched.model.workload import MADE_GROUP
from capcard_sched.state.classes import SharedLabels
from capcard_sched.state.decode import assign, differs
from capcard_sched.state.invalid_objects import describe_edits, fixed_notes
from capcard_sched.state.pod_runs import PodRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.model.objects import ObjectMeta
    from capcard_sched.model.pod_facts import PodFacts
    from capcard_sched.model.task_class import TaskClass
    from capcard_sched.state.accounting import Accounting
    from capcard_sched.state.changes import Changes
    from capcard_sched.state.classes import ClassTable
    from capcard_sched.state.decode import Facts
    from capcard_sched.state.invalid_objects import IgnoredEdits, InvalidObjects
    from capcard_sched.state.jobs import JobTable
    from capcard_sched.state.kube_groups import KubeGroups
    from capcard_sched.state.node_cache import NodeCache

#: Statuses of an evicted pod's object before its deletion timestamp arrives.
_LIVE = frozenset({TaskStatus.PENDING, TaskStatus.BOUND, TaskStatus.RUNNING})
#: Facts that a task takes over under the same name, whenever its pod changes.
_SAME_NAME: Final = (
    *("role", "priority", "preemptable", "gates", "unsupported", "deleting", "ends", "failure"),
    *("nominated_node", "assigned_card", "cooldown", "device_notes", "extended_claim"),
)
_same_name = attrgetter(*_SAME_NAME)
#: Facts that decide, with the status, where a task is counted.
_CHARGED: Final = ("cls", "node", "job")


class PodTable:
    """Tasks by uid, and by namespace and name. The first sight of a bound pod fixes its account for its lifetime."""

    def __init__(
        self,
        scheduler_names: frozenset[str],
        *,
        classes: ClassTable,
        nodes: NodeCache,
        jobs: JobTable,
        kube_groups: KubeGroups,
        accounting: Accounting,
        changes: Changes,
        invalid: InvalidObjects,
        ignored_edits: IgnoredEdits,
        match_width: Callable[[], None],
        waits_for_groups: bool,
    ) -> None:
        self._scheduler_names = scheduler_names
        self._classes = classes
        self._nodes = nodes
        self._jobs = jobs
        self._kube_groups = kube_groups
        self._accounting = accounting
        self._changes = changes
        self._invalid = invalid
        self._ignored_edits = ignored_edits
        self._match_width = match_width
        self._waits_for_groups = waits_for_groups
        self.tasks: dict[str, Task] = {}
        #: Tasks whose binding the watch has confirmed since the last read of this list.
        self.confirmed: list[Task] = []
        self._by_name: dict[str, dict[str, Task]] = {}
        self.facts = FactsReader()
        self._labels = SharedLabels()
        #: The pods of a list that were applied last, when a further one may be like them.
        self._run: PodRun | None = None
        #: Latest objects of pods that changed while their binding was in flight, by uid.
        self._deferred: dict[str, PodObject] = {}
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            PodObject: self.apply,
            "Pod": lambda gone: self.drop(gone.namespace, gone.name, gone.uid),
            deltas.BindFailed: self._bind_failed,
            deltas.BindRetry: self._bind_retry,
            deltas.EvictFailed: self._evict_failed,
        }

    def apply_all(
        self,
        found: Iterable[deltas.Delta],
        other: Callable[[deltas.Delta], None],
        failed: Callable[[deltas.Delta, Exception], None] | None,
    ) -> None:
        """Apply deltas in order, those of other kinds by `other`; see `ClusterState.apply_all`."""
        delta: deltas.Delta | None = None
        try:
            for delta in found:
                try:
                    if isinstance(delta, deltas.ObjectChanged) and isinstance(delta.object, PodObject):
                        self._apply_next(delta.object)
                    else:
                        self._end_run()
                        other(delta)
                except Exception as error:
                    if failed is None:
                        raise
                    failed(delta, error)
        finally:
            try:
                self._end_run()
            except Exception as error:
                if failed is None or delta is None:
                    raise
                failed(delta, error)

    def _apply_next(self, pod: PodObject) -> None:
        """Apply the next pod: of a run of alike ones only the first by itself."""
        run, meta = self._run, pod.metadata
        if run is not None and self._may_add(run, meta) and run.has_next(pod):
            self._add_to(run, pod)
        else:
            self._end_run()
            self._apply(pod)

    def _may_add(self, run: PodRun, pod: ObjectMeta) -> bool:
        """Whether a pod is new, and no earlier version of it closes a node: to open one may remove it."""
        namespace = run.task.namespace
        return (
            pod.uid not in self.tasks
            and pod.name not in self._by_name[namespace]
            and not self._nodes.is_closed_by(namespace, pod.name)
        )

    def _job_key_of(self, pod: PodObject, facts: PodFacts, ref: ObjectRef, *, ours: bool) -> tuple[str, str | None]:
        """The key of the job of a pod, "" for none, and the queue that a pod without a group of its own requests.

        A pod that waits for the controllers requests none: its PodGroup is missing. One with a node is a job of its own
        then, which pods of its controller that wait are no members of.
        """
        named, waits = _group_of(facts, ours=ours), self._waits_for_groups
        is_alone = waits and not named and bool(pod.spec.node_name)
        own_group = f"{MADE_GROUP}{(not is_alone and facts.controller_uid) or ref.uid}" if ours else ""
        group = named or own_group
        job_key = f"{ref.namespace}/{group}" if group else ""
        # Controllers annotate a pod with the group they create for it; such a pod names no group of its own.
        is_groupless = ours and group == own_group and (is_alone or not waits)
        return job_key, facts.queue_name if is_groupless else None

    def _add_to(self, run: PodRun, pod: PodObject) -> None:
        """Add a new pod to a run."""
        namespace, meta = run.task.namespace, pod.metadata
        if self._invalid.problems:
            self._invalid.note(ObjectRef("Pod", namespace, meta.name, meta.uid), "")
        task = run.add(meta, self._nodes.get(pod.spec.node_name or "") if run.task.node is not None else None)
        self.tasks[meta.uid] = self._by_name[namespace][meta.name] = task
        if run.requested_queue is not None:
            self._jobs.set_requested_queue(task, run.requested_queue)
        if run.groups is not None:
            self._kube_groups.note(task, run.groups)

    def _end_run(self) -> None:
        """Add what the pods of a run contribute."""
        run, self._run = self._run, None
        if run is None:
            return
        self._accounting.add_alike(run.tasks)
        if run.task.job is not None:
            self._jobs.tasks_added(run.task.job, run.tasks, run.bound_queue)

    def apply(self, pod: PodObject) -> None:
        """Apply an added or updated pod."""
        self._apply(pod)
        self._end_run()

    def _apply(self, pod: PodObject) -> None:
        """Apply a pod, or begin a run with it."""
        meta = pod.metadata
        namespace, name, uid = intern(meta.namespace or "default"), meta.name, meta.uid
        known = self._by_name.get(namespace, {}).get(name)
        if known is not None and known.uid != uid:
            self.drop(namespace, name, known.uid)
            known = None
        ours = self._is_ours(pod, namespace)
        if known is None and not ours and not pod.spec.node_name:
            return
        ref = ObjectRef("Pod", namespace, name, uid)
        facts = self.facts.read(pod)
        job_key, requested_queue = self._job_key_of(pod, facts, ref, ours=ours)
        if known is not None and self._jobs.fixed_queues.live and (known.bound or known.status is TaskStatus.BINDING):
            facts, job_key, requested_queue = self._keep_bound_facts(known, pod, facts, job_key, requested_queue)
        cls = self._class_of(pod, facts, known, ref)
        if cls is None:
            return
        status, node_name = _resolve_status(known, facts, pod.spec.node_name or "")
        cls = self._classes.placed(cls, facts.device_notes if pod.spec.node_name else {})
        self._match_width()
        bound_queue = facts.bound_queue if ours and (known is None or not known.bound) else ""
        fields: Facts = {
            "cls": cls,
            "status": status,
            "node": self._nodes.get(node_name) if node_name else None,
            "job": self._jobs.get_or_create(job_key) if job_key else None,
            "gated": bool(facts.unsupported or foreign_gates(facts.gates)),
            "ours": ours,
            "labels": self._labels.share(meta.labels or {}, self.tasks),
            **dict(zip(_SAME_NAME, _same_name(facts), strict=True)),
        }
        former_job, former_node = (None, None) if known is None else (known.job, known.node)
        if known is not None:
            if self._jobs.requested_queue(known) == requested_queue and not differs(known, fields):
                self._kube_groups.note(known, facts)
                return
            is_counted = self._withdraw(known, fields)
            task = known
        else:
            is_counted = False
            task = Task(uid, namespace, name, cls)
            self.tasks[uid] = task
            self._by_name.setdefault(namespace, {})[name] = task
        assign(task, fields)
        task.bound = bool(pod.spec.node_name)
        task.grace, task.created, task.index = facts.grace, facts.created, facts.index
        self._jobs.set_requested_queue(task, requested_queue)
        is_noted = self._kube_groups.note(task, facts)
        if task.bound:
            self._deferred.pop(uid, None)
        if known is None and task.cooldown is None and job_key != f"{namespace}/{MADE_GROUP}{uid}":
            self._run = PodRun(pod, task, requested_queue, bound_queue, facts if is_noted else None)
            return
        if not is_counted:
            self._accounting.add(task)
        self._leave(task, former_node)
        if former_job is not None and former_job is not task.job:
            self._jobs.task_removed(former_job, task)
        if task.job is not None:
            self._jobs.tasks_added(task.job, (task,), bound_queue)

    def _withdraw(self, known: Task, fields: Facts) -> bool:
        """Subtract a pod that gets new facts from the sums; whether it is counted already, as a confirmed binding."""
        if known.status is TaskStatus.BINDING:
            self._follow_binding(known, fields)
            is_charged_alike = all(getattr(known, name) == fields[name] for name in _CHARGED)
            if is_charged_alike and fields["status"] is TaskStatus.BOUND and self._accounting.confirm(known):
                return True
        self._accounting.subtract(known)
        return False

    def _follow_binding(self, known: Task, fields: Facts) -> None:
        """Applies the new facts of a pod whose binding is in flight, or done."""
        status = fields["status"]
        if status is TaskStatus.BINDING:  # a pod in binding has the annotations that its binding writes
            fields["device_notes"] = known.device_notes
        elif status in (TaskStatus.BOUND, TaskStatus.RUNNING) and fields["node"] is known.node:
            self.confirmed.append(known)  # else another scheduler bound it

    def _is_ours(self, pod: PodObject, namespace: str) -> bool:
        """Whether a pod is one of this scheduler; another one is noted as a member of its PodGroup."""
        scheduler = pod.spec.scheduler_name or "default-scheduler"
        if scheduler in self._scheduler_names:
            return True
        self._kube_groups.note_other(pod, namespace, scheduler)
        return False

    def _leave(self, task: Task, former: Node | None) -> None:
        """Note a pod that is on another node now; one that is on none has no charge, and caches never drain notes."""
        if former is not None and task.node is not None and task.node is not former:
            self._changes.moved.add(task.uid)
        self._nodes.drop_placeholder(former)

    def _class_of(self, pod: PodObject, facts: PodFacts, known: Task | None, ref: ObjectRef) -> TaskClass | None:
        """The class of a pod; the last known one of a bound pod with an invalid quantity. None: not a task."""
        try:
            cls = self._classes.of(pod, facts, ref.namespace)
        except QuantityError as error:
            self._invalid.note(ref, str(error))
            if known is not None and known.node is not None:
                return known.cls
            if known is not None:
                self._forget(known)
            self._nodes.close(ref, "" if facts.status in COMPLETED_STATUSES else pod.spec.node_name or "")
            return None
        self._reopen(ref)
        return cls

    def _reopen(self, ref: ObjectRef) -> None:
        """Drop the problem of an earlier version of a pod."""
        self._invalid.note(ref, "")
        if self._nodes.is_closed_by(ref.namespace, ref.name):
            self._nodes.close(ref, "")

    def _keep_bound_facts(
        self, known: Task, pod: PodObject, facts: PodFacts, job_key: str, requested_queue: str | None
    ) -> tuple[PodFacts, str, str | None]:
        """Replace the facts that the binding of a pod fixes: job, requested queue, card annotations, owner."""
        fixed = msgspec.structs.replace(
            facts,
            class_annotations=dict(known.cls.annotations),
            owner_kind=known.cls.owner_kind,
            assigned_card=known.assigned_card if known.bound else facts.assigned_card,
            device_notes=fixed_notes(known, facts, pod.spec.node_name or ""),
        )
        fixed_key = known.job.key if known.job is not None else ""
        fixed_queue = self._jobs.requested_queue(known)
        if (fixed, fixed_key, fixed_queue) == (facts, job_key, requested_queue):
            self._deferred.pop(known.uid, None)
            return facts, job_key, requested_queue
        detail = describe_edits(fixed, facts, (fixed_key, fixed_queue), (job_key, requested_queue))
        if detail:
            self._ignored_edits.note(ObjectRef("Pod", known.namespace, known.name, known.uid), detail)
        if not pod.spec.node_name:
            self._deferred[known.uid] = pod
        return fixed, fixed_key, fixed_queue

    def _unbind(self, task: Task) -> None:
        """Return a task whose binding failed to PENDING, with the edits made during the binding."""
        former = task.node
        self._accounting.move(task, TaskStatus.PENDING, None)
        self._leave(task, former)
        if task.job is not None:
            self._jobs.bound_changed(task.job)
        pod = self._deferred.pop(task.uid, None)
        if pod is not None:
            self.apply(pod)

    @staticmethod
    def assume_device_notes(task: Task, annotations: Mapping[str, str]) -> None:
        """Assume the device annotations that the binding of a pod writes."""
        found = DEVICE_ANNOTATIONS & annotations.keys()
        task.device_notes = {key: annotations[key] for key in sorted(found)} if found else NO_ENTRIES

    def drop(self, namespace: str, name: str, uid: str) -> None:
        """Apply the deletion of a pod; an empty uid matches any pod of the name."""
        task = self._by_name.get(namespace, {}).get(name)
        if task is not None and (not uid or task.uid == uid):
            self._forget(task)
        self._kube_groups.forget_other(namespace, name)
        self._invalid.forget("Pod", namespace, name, uid)
        if self._nodes.is_closed_by(namespace, name):
            self._nodes.close(ObjectRef("Pod", namespace, name), "")

    def _forget(self, task: Task) -> None:
        job, node = task.job, task.node
        self._accounting.remove(task)
        self._deferred.pop(task.uid, None)
        self._ignored_edits.forget("Pod", task.key)
        self._kube_groups.forget(task)
        self._jobs.set_requested_queue(task, None)
        task.job, task.node = None, None
        del self.tasks[task.uid]
        named = self._by_name[task.namespace]
        del named[task.name]
        if not named:
            del self._by_name[task.namespace]
        self._nodes.drop_placeholder(node)
        if job is not None:
            self._jobs.task_removed(job, task)

    def _bind_failed(self, delta: deltas.BindFailed) -> None:
        task = self.tasks.get(delta.uid)
        if task is not None and task.status is TaskStatus.BINDING:
            self._unbind(task)
            if delta.retry_after > 0:
                self._accounting.hold(task, held=True)

    def _bind_retry(self, delta: deltas.BindRetry) -> None:
        task = self.tasks.get(delta.uid)
        if task is not None and task.held:
            self._accounting.hold(task, held=False)

    def end_term(self) -> None:
        """Drop bindings, evictions and backoffs of an earlier term that the watch has not confirmed."""
        self._changes.everything = True
        for task in list(self.tasks.values()):
            if task.status is TaskStatus.BINDING:
                self._unbind(task)
            elif task.status is TaskStatus.RELEASING and not task.deleting:
                self._accounting.restore(task)
            if task.held:
                self._accounting.hold(task, held=False)

    def _evict_failed(self, delta: deltas.EvictFailed) -> None:
        task = self.tasks.get(delta.uid)
        if task is not None and task.status is TaskStatus.RELEASING and not task.deleting:
            self._accounting.restore(task)

    def keep_undecodable(self, ref: ObjectRef, node_name: str) -> None:
        """Exclude a pending pod from scheduling, and the node of a bound one."""
        known = self._by_name.get(ref.namespace, {}).get(ref.name)
        if known is not None and known.uid != ref.uid:
            self._forget(known)
            known = None
        self._nodes.close(ref, node_name)
        if known is not None and known.status is TaskStatus.PENDING:
            self._accounting.subtract(known)
            known.gated = True
            if node_name:
                known.status, known.node, known.bound = TaskStatus.BOUND, self._nodes.get(node_name), True
            self._accounting.add(known)


def _group_of(facts: PodFacts, *, ours: bool) -> str:
    """The group that a pod names; of those of `scheduling.k8s.io` only pods of this scheduler are members."""
    return "" if not ours and kube_name(facts.group_name) else facts.group_name


def _resolve_status(known: Task | None, facts: PodFacts, node_name: str) -> tuple[TaskStatus, str]:
    """Status and node after an update: those of the pod object, unless a binding or an eviction is in flight."""
    status = facts.status
    if status in COMPLETED_STATUSES:
        return status, ""
    if known is not None:
        here = known.node.name if known.node is not None else ""
        if not node_name and known.status in ALLOCATED_STATUSES and status is TaskStatus.PENDING:
            return known.status, here
        if known.status is TaskStatus.RELEASING and not known.deleting and status in _LIVE:
            return known.status, here
    return status, node_name
