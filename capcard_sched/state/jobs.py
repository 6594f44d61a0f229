"""All jobs: those of PodGroups, those of pods without PodGroup, and the schedulable ones among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.annotations import GROUP_PRIORITY
from capcard_sched.model.groups import SubGroups
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.job import CRITICAL_CLASSES, IMPLICIT, NO_ENTRIES, SYSTEM_NAMESPACE, Job
from capcard_sched.model.kube_groups import kube_name
from capcard_sched.model.namespace_queues import queue_id
from capcard_sched.model.queue import Queue
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.state.accounting import recount_members
from capcard_sched.state.decode import SAME_NAME
from capcard_sched.state.fixed_queues import FixedQueues

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capcard_sched.model.job import Task
    from capcard_sched.model.resources import ResourceColumns
    from capcard_sched.state.changes import Changes
    from capcard_sched.state.decode import GroupFacts
    from capcard_sched.state.invalid_objects import IgnoredEdits

#: Unused `minResources` that may stay shared, beyond twice the number of jobs, and characters of the names of a shared
#: one.
_SPARE = 1024
_MOST_CHARACTERS = 1024


class JobTable:
    """Jobs by key ("namespace/name"), each in the `jobs` and `allocated` of its queue when the queue exists.

    The first pod or PodGroup of a key creates the job; the last one to be deleted removes it.
    """

    def __init__(
        self,
        columns: ResourceColumns,
        queues: Mapping[str, Queue],
        changes: Changes,
        default_queue: str,
        ignored_edits: IgnoredEdits,
    ) -> None:
        self._columns = columns
        self._queues = queues
        self._changes = changes
        self._default_queue = default_queue
        self._ignored_edits = ignored_edits
        #: Queues that do not exist and have jobs with bound tasks, by name: their usage stays visible.
        self.deleted_queues: dict[str, Queue] = {}
        self.fixed_queues = FixedQueues()
        #: All jobs, those without PodGroup included.
        self.by_key: dict[str, Job] = {}
        #: Jobs that sessions see: their PodGroup exists (or the job is implicit), and so does their queue.
        self.schedulable: dict[str, Job] = {}
        #: Jobs whose queue does not exist.
        self.orphans: dict[str, Job] = {}
        #: Jobs of pods that name a missing PodGroup.
        self.groups_missing: dict[str, Job] = {}
        #: Key of a job with unsupported fields to the text: sessions do not see it.
        self.held: dict[str, str] = {}
        #: Pods of ours that name no group, by uid: the queue each requests. They form implicit jobs until a PodGroup
        #: appears. The oldest one determines the attributes of a job, independent of the order of arrival.
        self._groupless: dict[str, str] = {}
        #: The oldest of them in each implicit job, by job key.
        self._oldest: dict[str, Task] = {}
        #: Usage of jobs without tasks; vectors of jobs are never changed in place.
        self._zeros = columns.zeros()
        #: Equal `minResources` share one mapping.
        self._minimums: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}
        #: Value of each PriorityClass, and whether it is the global default.
        self.priority_classes: dict[str, tuple[int, bool]] = {}
        self._default_priority = 0
        #: Default queue by namespace, and keys of the jobs that name no queue.
        self._namespace_queues: dict[str, str] = {}
        self._unnamed: dict[str, None] = {}  # 10,000 keys take 0.2 MiB, and in a set 0.5
        #: Resources that count nowhere, and what was left out of `minResources` for that, by job key.
        self._uncounted: frozenset[str] = frozenset()
        self._removed: dict[str, dict[str, int]] = {}

    def get_or_create(self, key: str) -> Job:
        """The job of this key, created on first use."""
        job = self.by_key.get(key)
        if job is None:
            self._zeros = self._columns.fit(self._zeros)
            job = self.by_key[key] = Job(key, self._zeros, self._zeros, self._zeros)
        return job

    def requested_queue(self, task: Task) -> str | None:
        """The queue that a task without a group requests, "" for none; None for a task with a group."""
        return self._groupless.get(task.uid)

    def set_requested_queue(self, task: Task, queue: str | None) -> None:
        """Set the result of `requested_queue`. Call `tasks_added` afterwards."""
        if queue is None:
            self._groupless.pop(task.uid, None)
        else:
            self._groupless[task.uid] = queue

    def tasks_added(self, job: Job, tasks: Sequence[Task], bound_queue: str = "") -> None:
        """Update a job with new tasks that are alike, or a changed one; `bound_queue`: as their bindings wrote it."""
        job.had_tasks = True
        job.note_whole()
        self.bound_changed(job)
        if bound_queue or job.implicit or not job.uid:
            for task in tasks:
                self._task_added(job, task, bound_queue)

    def _task_added(self, job: Job, task: Task, bound_queue: str) -> None:
        if bound_queue and task.node is not None and self.fixed_queues.note(job, _age(task), bound_queue):
            self._set_queue(job, self.fixed_queues.requested(job) or bound_queue)
        if job.uid and not job.implicit:
            return
        oldest = self._oldest.get(job.key)
        if task.uid in self._groupless:
            if oldest is None or _age(task) <= _age(oldest):
                self._describe_by_oldest(job, task)
        elif oldest is task:
            self._find_oldest(job)
        if not job.uid:
            self.groups_missing[job.key] = job

    def task_removed(self, job: Job, task: Task) -> None:
        """Update or remove a job after a task left it."""
        self.bound_changed(job)
        if job.uid and not job.implicit:
            return
        if not job.tasks:
            self._remove(job)
        elif self._oldest.get(job.key) is task:
            self._find_oldest(job)

    def _find_oldest(self, job: Job) -> None:
        groupless = [task for task in job.tasks.values() if task.uid in self._groupless]
        if groupless:
            self._describe_by_oldest(job, min(groupless, key=_age))
        else:
            self._clear_group(job)

    def _describe_by_oldest(self, job: Job, oldest: Task) -> None:
        """Derive the attributes of an implicit job from its oldest task."""
        if not job.implicit:
            job.uid = IMPLICIT
            job.implicit = True
            self._reset(job)
            job.min_available = 1
            self.groups_missing.pop(job.key, None)
        self._oldest[job.key] = oldest
        job.created = oldest.created
        job.priority_class_name = oldest.cls.priority_class_name
        job.priority = self._priority_of(job)
        self._set_named_queue(job, self._groupless[oldest.uid])

    def _reset(self, job: Job) -> None:
        """Remove what an earlier PodGroup of a job declared."""
        job.created, job.min_available = 0.0, 0
        job.min_resources, job.min_quota, job.min_task_member = None, None, NO_ENTRIES
        job.roles, job.groups = NO_ENTRIES, None
        job.annotations, job.labels, job.topology, job.owner_job = NO_ENTRIES, NO_ENTRIES, None, ""
        job.anti_affinity = ()
        job.conditions, job.status_counts = (), (0, 0, 0)

    def update(self, facts: GroupFacts, *, edited: bool = True) -> None:
        """Apply the facts of a PodGroup. `edited`: an edit of its object or of a pod led to them."""
        key = f"{facts.namespace}/{facts.name}"
        job = self.get_or_create(key)
        minimum = self._counted(key, facts.min_resources)
        if minimum is not facts.min_resources:
            facts = facts._replace(min_resources=None if minimum is None else dict(minimum))
        requested = self.fixed_queues.requested(job)
        if key in self._unnamed:
            requested = self._default_queue
        if job.uid == facts.uid and facts.matches(job, requested):
            return
        taken_over = job.implicit
        if job.uid != facts.uid:
            job.had_tasks = bool(job.tasks) or any(facts.status_counts)
            job.was_whole = facts.was_whole or (job.was_whole and job.bound > 0)
        self._oldest.pop(key, None)
        self.groups_missing.pop(key, None)
        job.uid = facts.uid
        job.implicit = False
        job.created = facts.created
        job.min_available = facts.min_member
        job.min_resources = self._share(facts.min_resources)
        for name in SAME_NAME:
            setattr(job, name, getattr(facts, name))
        job.priority = self._priority_of(job)
        if not taken_over or facts.phase is not PodGroupPhase.PENDING:
            job.phase = facts.phase
        if facts.min_task_member != job.min_task_member or facts.policies != job.policies:
            job.min_task_member = facts.min_task_member
            job.groups = SubGroups(facts.policies) if facts.policies else None
            recount_members(job)
        job.note_whole()
        self._set_named_queue(job, facts.queue, edited=edited)
        self._changes.jobs.add(key)

    def set_minimum(self, job: Job, minimum: Mapping[str, int]) -> None:
        """Set `minResources` of a job whose object has none."""
        job.min_resources = self._share(self._counted(job.key, minimum))

    def set_uncounted(self, resources: frozenset[str]) -> None:
        """From now on these resources of `minResources` count nowhere."""
        self._uncounted = resources
        for key, removed in list(self._removed.items()):
            job = self.by_key.get(key)
            if job is not None and job.min_resources is not None:
                job.min_resources = {**job.min_resources, **removed}
        self._removed.clear()
        for key, job in self.by_key.items():
            job.min_resources = self._counted(key, job.min_resources)

    def _counted(self, key: str, minimum: Mapping[str, int] | None) -> Mapping[str, int] | None:
        """`minResources` without what counts nowhere; the same mapping when nothing is left out."""
        self._removed.pop(key, None)
        if minimum is None or self._uncounted.isdisjoint(minimum):
            return minimum
        self._removed[key] = {name: amount for name, amount in minimum.items() if name in self._uncounted}
        return {name: amount for name, amount in minimum.items() if name not in self._uncounted}

    def _share(self, minimum: Mapping[str, int] | None) -> Mapping[str, int] | None:
        if minimum is None or sum(map(len, minimum)) > _MOST_CHARACTERS:
            return minimum
        if len(self._minimums) > 2 * len(self.by_key) + _SPARE:
            self._minimums.clear()
        return self._minimums.setdefault(tuple(minimum.items()), minimum)

    def drop(self, key: str, uid: str) -> None:
        """Apply the deletion of a PodGroup; an empty uid matches any PodGroup of the key."""
        job = self.by_key.get(key)
        if job is None or job.implicit or not job.uid or (uid and job.uid != uid):
            return
        job.uid = ""
        self._changes.jobs.add(key)
        if job.tasks:
            self._find_oldest(job)
        else:
            self._remove(job)

    def _clear_group(self, job: Job) -> None:
        """Mark the PodGroup of a job as missing. The job stays as it is while it has bound tasks."""
        job.uid, job.implicit = "", False
        self._oldest.pop(job.key, None)
        self.groups_missing[job.key] = job
        if not self.fixed_queues.of(job):
            self._detach(job)
            self.fixed_queues.release(job)
            job.queue, job.phase = "", PodGroupPhase.PENDING
            self._reset(job)
            self.schedulable.pop(job.key, None)
            self.orphans.pop(job.key, None)

    def _remove(self, job: Job) -> None:
        self._detach(job)
        self.fixed_queues.release(job)
        self._ignored_edits.forget("PodGroup", job.key)
        self._oldest.pop(job.key, None)
        self.by_key.pop(job.key, None)
        self._unnamed.pop(job.key, None)
        self.schedulable.pop(job.key, None)
        self.orphans.pop(job.key, None)
        self.groups_missing.pop(job.key, None)
        self._changes.jobs.add(job.key)

    def adopt(self, queue: str) -> None:
        """Add the orphans of a new queue to it."""
        for job in [job for job in self.orphans.values() if job.queue == queue]:
            self._join(job, queue)

    def orphan(self, queue: Queue) -> None:
        """Orphan the jobs of a deleted queue until it exists again."""
        for job in queue.jobs.values():
            self.schedulable.pop(job.key, None)
            self.orphans[job.key] = job
            self._account_orphan(job)
            self._changes.jobs.add(job.key)

    def bound_changed(self, job: Job) -> None:
        """Apply a change of the number of bound tasks: the last one releases the queue of the job."""
        if job.key in self.orphans:
            self._account_orphan(job)
        if job.bound:
            return
        requested = self.fixed_queues.release(job)
        if requested is not None:
            self._set_queue(job, requested)
        if not job.uid and job.queue and job.key in self.by_key:
            self._clear_group(job)

    def set_default_queue(self, namespace: str, queue: str) -> None:
        """Set the queue of the jobs of a namespace that name none; "" restores the default queue of the cluster."""
        if queue:
            self._namespace_queues[namespace] = queue
        else:
            self._namespace_queues.pop(namespace, None)
        for key in sorted(self._unnamed):
            job = self.by_key.get(key)
            if job is None:
                self._unnamed.pop(key, None)
            elif job.namespace == namespace and job.uid:
                self._set_named_queue(job, "", edited=False)

    def _set_named_queue(self, job: Job, name: str, *, edited: bool = True) -> None:
        """Set the queue that a job names. The cluster's default queue counts as none: the API server fills it in."""
        if name in ("", self._default_queue):
            self._unnamed[job.key] = None
            name = self._namespace_queues.get(job.namespace, self._default_queue)
        else:
            self._unnamed.pop(job.key, None)
        self._set_queue(job, queue_id(name, job.namespace), edited=edited)

    def _set_queue(self, job: Job, name: str, *, edited: bool = True) -> None:
        """Move a job to a queue, or once it has no bound task. `edited`: its owner requested that."""
        fixed = self.fixed_queues.request(job, name)
        if fixed != name and edited and job.uid and not job.implicit:
            self._ignored_edits.note(
                ObjectRef("PodGroup", job.namespace, job.name, job.uid), f"spec.queue changed to <{name}>"
            )
        self._join(job, fixed)

    def _join(self, job: Job, name: str) -> None:
        if job.queue != name:
            self._detach(job)
            job.queue = name
        queue = self._queues.get(name)
        if queue is None:
            self.schedulable.pop(job.key, None)
            self.orphans[job.key] = job
            self._account_orphan(job)
            return
        if job.key not in queue.jobs:
            self._subtract_orphan(job)
            queue.jobs[job.key] = job
            queue.allocated += job.allocated
            queue.releasing += job.releasing
            self._changes.queues.add(name)
        self.orphans.pop(job.key, None)
        self.schedulable[job.key] = job
        if job.key in self.held:
            del self.schedulable[job.key]
        self._changes.jobs.add(job.key)

    def _detach(self, job: Job) -> None:
        self._subtract_orphan(job)
        queue = self._queues.get(job.queue)
        if queue is not None and queue.jobs.pop(job.key, None) is not None:
            queue.allocated -= job.allocated
            queue.releasing -= job.releasing
            self._changes.queues.add(queue.name)

    def _account_orphan(self, job: Job) -> None:
        """Keep the usage of an orphan under the name of its queue while it has bound tasks."""
        if not job.bound:
            self._subtract_orphan(job)
            return
        queue = self.deleted_queues.get(job.queue)
        if queue is None:
            queue = self.deleted_queues[job.queue] = Queue(job.queue, self._columns.zeros(), self._columns.zeros())
            queue.state = "Deleted"
        if job.key not in queue.jobs:
            queue.jobs[job.key] = job
            queue.allocated += job.allocated
            queue.releasing += job.releasing

    def _subtract_orphan(self, job: Job) -> None:
        queue = self.deleted_queues.get(job.queue)
        if queue is not None and queue.jobs.pop(job.key, None) is not None:
            queue.allocated -= job.allocated
            queue.releasing -= job.releasing
            if not queue.jobs:
                del self.deleted_queues[job.queue]

    def set_priority_class(self, name: str, value: int, *, is_default: bool) -> None:
        """Add or update a PriorityClass. Among several global defaults the highest value applies."""
        self.priority_classes[name] = (value, is_default)
        self._refresh_priorities()

    def drop_priority_class(self, name: str) -> None:
        """Remove a PriorityClass: jobs that name it get the default priority."""
        self.priority_classes.pop(name, None)
        self._refresh_priorities()

    def _priority_of(self, job: Job) -> int:
        """The value of the job's class. Critical classes count only in kube-system: no ResourceQuota restricts them.

        A PodGroup of `scheduling.k8s.io` has the value in its spec.
        """
        name = job.priority_class_name
        if name in CRITICAL_CLASSES and job.namespace != SYSTEM_NAMESPACE:
            return self._default_priority
        if kube_name(job.name) and GROUP_PRIORITY in job.annotations:
            return int(job.annotations[GROUP_PRIORITY])
        return self.priority_classes.get(name, (self._default_priority,))[0]

    def _refresh_priorities(self) -> None:
        defaults = [value for value, is_default in self.priority_classes.values() if is_default]
        self._default_priority = max(defaults, default=0)
        for job in self.by_key.values():
            priority = self._priority_of(job)
            if priority != job.priority:
                job.priority = priority
                self._changes.jobs.add(job.key)


def _age(task: Task) -> tuple[float, str]:
    return task.created, task.uid
