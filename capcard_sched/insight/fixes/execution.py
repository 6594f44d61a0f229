"""Executes the steps of a fix on copies of objects, by the rules of admission and of the controllers.

A workload whose template changes, or that is created anew, gets new pods and, where controllers create it, a new
PodGroup in phase Pending: the fix holds as long as pods are made from their template.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, cast

import msgspec

from capcard_sched.admission.jobs import check_job_update, check_new_job, default_job
from capcard_sched.admission.queues import check_queue_object
from capcard_sched.admission.review import ClusterView, finding_text
from capcard_sched.controllers.jobs.group import group_patch, new_group
from capcard_sched.controllers.jobs.job_spec import job_spec
from capcard_sched.controllers.objects import (
    JOB,
    POD,
    POD_DELETION_COST,
    POD_GROUP,
    PRIORITY_CLASS,
    QUEUE,
    Key,
    annotations_of,
    deletion_cost,
    merge_diff,
    meta,
    spec,
    status,
)
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.insight.fixes.commands import parse, set_at
from capcard_sched.insight.sources.changes import (
    UnknownObjectError,
    annotate,
    remove_taint,
    set_spec,
    set_unschedulable,
)
from capcard_sched.model.annotations import CLOSED_BY_PARENT, GROUP_MIN_MEMBER, POD_QUEUE_NAME
from capcard_sched.model.kinds import BATCH_JOB
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.objects import QueueObject
from capcard_sched.model.quantity import QuantityError, base_amount, format_amount
from capcard_sched.model.status import COMPLETED_STATUSES, TaskStatus
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.model.workload import has_made_group
from capcard_sched.simulation.kinds import RESOURCE_QUOTA
from capcard_sched.simulation.store import merged
from capcard_sched.validation.pod_templates import check_pod_template

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capcard_sched.controllers.view import View
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.insight.fixes.commands import FixStep
    from capcard_sched.insight.fixes.scene import Scene
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.job import Job, Task
    from capcard_sched.validation.checks import Finding


class RefusedError(ValueError):
    """Admission refuses the result of a step."""


def cluster_view(view: ObjectView) -> ClusterView:
    """The queues as admission sees them."""
    found = ClusterView()
    for queue in view.all_of(QUEUE):
        found.set_queue(msgspec.convert(queue, QueueObject))
    return found


class Execution:
    """One fix: its lines, executed in order."""

    def __init__(self, scene: Scene, cluster: ClusterView, now: float) -> None:
        """`scene`: without edits. `now` (Unix seconds): the creation of what is created anew."""
        self._created = format_timestamp(now)
        self.scene, self._cluster, self.edits = scene, cluster, scene.edits
        self._core, self._job = scene.core, scene.job
        self._recreated: Json | None = None
        self._replaced_queues: list[Json] = []
        self.actions, self._plugins = scene.actions, list[str]()
        #: Running pods of the job that end and are created anew.
        self.restarted: list[str] = []

    def run(self, lines: Iterable[str]) -> None:
        """Execute the lines. Raises RefusedError, UnknownObjectError, msgspec.ValidationError."""
        try:
            for line in lines:
                for step in parse(line, self.scene.workload):
                    self._execute(step)
            if self._recreated is not None:
                self._create_again(self._recreated)
        except QuantityError as error:
            raise RefusedError(str(error)) from None
        finally:
            for queue in self._replaced_queues[::-1]:
                self._cluster.set_queue(msgspec.convert(queue, QueueObject))

    def deltas(self) -> list[Delta]:
        """The changes as the scheduler sees them. Raises msgspec.ValidationError."""
        return self.edits.deltas()

    @property
    def conf(self) -> Conf | None:
        """The scheduler-conf with other actions and further plugins; None for the same."""
        found = before = self._core.snapshot().conf
        if self.actions != before.actions:
            found = msgspec.structs.replace(found, actions=self.actions)
        for name in self._plugins:
            one = parse_conf(f"tiers: [{{plugins: [{{name: {name}}}]}}]", registry=self._core.registry).conf
            if one is not None:
                first, *rest = found.tiers or ((),)
                found = msgspec.structs.replace(found, tiers=((*one.tiers[0], *first), *rest))
        return None if found is before else found

    def _execute(self, step: FixStep) -> None:
        match step.verb, step.key:
            case "actions", _:
                self.actions = step.value
            case "plugin", _:
                self._plugins.append(step.value)
            case "recreate", _:
                self._recreated = self._recreated or copy.deepcopy(self.edits.get(*self._own))
                set_at(self._recreated or {}, *step.value)
            case "patch", Key() as key:
                self._patch(key, step.value)
            case "scale", Key() as key:
                self._scale(key, step.value)
            case "suspend", Key() as key:
                self.end_jobs(self._jobs_of(key))
            case "delete", Key(kind, namespace, name) if kind == POD:
                self._end([self.scene.tasks[f"{namespace}/{name}"]])
            case "delete", Key(kind, namespace, name):
                self.edits.remove(kind, namespace, name)
            case "uncordon", Key(kind, _, name):
                set_unschedulable(self.edits.edit(kind, "", name), value=False)
            case "untaint", Key(kind, _, name):
                remove_taint(self.edits.edit(kind, "", name), step.value)
            case "open", Key(kind, _, name):
                queue = self.edits.edit(kind, "", name)
                queue["status"] = {**status(queue), "state": "Open"}
                annotate(queue, CLOSED_BY_PARENT, None)
                self._set_queue(queue, None)

    @property
    def _own(self) -> Key:
        assert self.scene.workload is not None
        return self.scene.workload

    # --- objects that are patched -----------------------------------------------------------------------------------

    def _patch(self, key: Key, patch: Json) -> None:
        old = self.edits.get(*key)
        if old is None:
            raise UnknownObjectError(f"{key} does not exist or is not readable")
        new = merged(old, patch)
        if key.kind == POD and set((patch.get("metadata") or {}).get("annotations") or ()) == {POD_DELETION_COST}:
            self.edits.know(new)  # which the scheduler does not read
            return
        if key.kind == QUEUE:
            self._set_queue(new, old)
        elif key == self.scene.workload:
            self._follow(new, old, patch)
        elif key.kind == BATCH_JOB:
            self.end_jobs(self._jobs_of(key))  # it is suspended
            return
        elif key.kind == RESOURCE_QUOTA and "hard" in status(new):  # its controller writes it
            new = {**new, "status": {**status(new), "hard": spec(new)["hard"]}}
        elif key == (POD_GROUP, self._job.namespace, self._job.name):
            new = {**new, "status": {**status(new), "phase": self._job.phase.value}}
        self.edits.put(new)

    def _set_queue(self, new: Json, old: Json | None) -> None:
        _refuse(check_queue_object(new, old, self._cluster).errors if old is not None else ())
        self._replaced_queues.append(self.edits.original(QUEUE, "", meta(new)["name"]) or new)
        self._cluster.set_queue(msgspec.convert(new, QueueObject))

    def _follow(self, new: Json, old: Json, patch: Json) -> None:
        """The pods and the PodGroup of the job follow its workload."""
        group = self._group()
        if self.scene.is_vcjob:
            _refuse(check_job_update(new, old, self._cluster).errors)
            if group is not None:
                desired = job_spec(new, self._scheduler)
                changed = group_patch(cast("View", self.edits), desired, group, status(new).get("version") or 0)
                self.edits.put(merged(group, changed))
            return
        minimum = whole_number(annotations_of(new).get(GROUP_MIN_MEMBER))
        if minimum is not None and annotations_of(new) != annotations_of(old) and group is not None:
            set_minimum(group, minimum)
            self.edits.put(group)
        template = spec(patch).get("template")
        if template is not None:
            _refuse(check_pod_template(spec(new).get("template"), "spec.template"))
            self._roll_out(template)

    # --- pods that are created anew -----------------------------------------------------------------------------------

    def _roll_out(self, template: Json) -> None:
        """The pods of a workload with one template are replaced by those of the changed template."""
        pods = [merged(self._pod(task), template) for task in self._job.tasks.values()]
        group = self._group()
        self._end(self._job.tasks.values(), restarts=True)
        for pod in pods:
            body = {**spec(pod), **self._priority(pod)}
            body.pop("nodeName", None)
            uid = f"trial-{meta(pod).get('uid')}"
            metadata = {**meta(pod), "uid": uid, "creationTimestamp": self._created}
            self.edits.put({**pod, "metadata": metadata, "spec": body, "status": {"phase": "Pending"}})
        if group is not None and pods:
            if has_made_group(self._job):
                queue, priority = annotations_of(pods[0]).get(POD_QUEUE_NAME), spec(pods[0]).get("priorityClassName")
                derived = {"queue": queue, "priorityClassName": priority}
                group["spec"] = {**spec(group), **{field: value for field, value in derived.items() if value}}
                group["metadata"] = {**meta(group), "creationTimestamp": self._created}
                group["status"] = {"phase": "Pending"}
            self.edits.put(group)

    def _create_again(self, new: Json) -> None:
        """A Job is deleted, and created with changes."""
        old = self.edits.get(*self._own) or {}
        if self._own.kind == BATCH_JOB:
            self._roll_out(merge_diff(old["spec"]["template"], new["spec"]["template"]))
            return
        default_job(new, self._scheduler)
        if not self.scene.is_stub:
            _refuse(check_new_job(new, self._cluster).errors)
        self._end(self._job.tasks.values(), restarts=True)
        group = new_group(cast("View", self.edits), new, job_spec(new, self._scheduler))
        group["metadata"] = {
            **meta(group),
            "name": self._job.name,
            "uid": "trial-group",
            "creationTimestamp": self._created,
        }
        self.edits.remove(POD_GROUP, self._job.namespace, self._job.name)
        self.edits.put({**group, "status": {"phase": "Pending"}})
        self.edits.put(new)

    def _group(self) -> Json | None:
        """The PodGroup, in its phase in the core; None for pods without one."""
        group = None if self._job.implicit else self.edits.get(POD_GROUP, self._job.namespace, self._job.name)
        return group and {**group, "status": {**status(group), "phase": self._job.phase.value}}

    def _pod(self, task: Task) -> Json:
        pod = self.edits.get(POD, task.namespace, task.name)
        if pod is None:
            raise UnknownObjectError(f"Pod {task.key} is not readable")
        return pod

    def _priority(self, pod: Json) -> Json:
        """What the API server writes into a pod of a PriorityClass."""
        chosen = self.edits.get(PRIORITY_CLASS, "", spec(pod).get("priorityClassName") or "")
        return (
            {} if chosen is None else {"priority": chosen["value"], "preemptionPolicy": chosen.get("preemptionPolicy")}
        )

    @property
    def _scheduler(self) -> str:
        return min(self._core.snapshot().state.scheduler_names)

    # --- pods that end -----------------------------------------------------------------------------------------------

    def _jobs_of(self, key: Key) -> Sequence[Job]:
        word = "job" if key.kind in {JOB, BATCH_JOB} else key.kind.lower()
        return self.scene.jobs.get(f"{key.namespace}/{word}/{key.name}", ())

    def _scale(self, key: Key, replicas: int) -> None:
        """A ReplicaSet deletes its pods without a node first, then those of the lowest cost."""
        if replicas < 0:
            raise RefusedError("replicas have to be at least 0")

        def rank(task: Task) -> tuple[bool, int, str]:
            return task.node is not None, deletion_cost(self._pod(task)), task.name

        tasks = sorted((task for job in self._jobs_of(key) for task in job.tasks.values() if is_active(task)), key=rank)
        self._end(tasks[: max(0, len(tasks) - replicas)])

    def _end(self, tasks: Iterable[Task], *, restarts: bool = False) -> None:
        """Delete pods, and each PodGroup that controllers delete with its last pod."""
        ending = list(tasks)
        for task in ending:
            self.edits.remove(POD, task.namespace, task.name, task.uid)
        if restarts:
            self.restarted += sorted(task.name for task in ending if task.node is not None)
        for job in {id(task.job): task.job for task in ending if task.job is not None}.values():
            if not job.implicit and (restarts or is_complete(job, ending)) and has_made_group(job):
                self.edits.remove(POD_GROUP, job.namespace, job.name)

    def end_jobs(self, jobs: Iterable[Job]) -> None:
        """Delete the pods of jobs, and their PodGroups."""
        for job in jobs:
            for task in job.tasks.values():
                self.edits.remove(POD, task.namespace, task.name, task.uid)
            if not job.implicit:
                self.edits.remove(POD_GROUP, job.namespace, job.name)


def is_active(task: Task) -> bool:
    """Whether a ReplicaSet counts a pod among its replicas: it neither ended nor terminates."""
    return task.status is not TaskStatus.RELEASING and task.status not in COMPLETED_STATUSES


def is_complete(job: Job, ending: Sequence[Task]) -> bool:
    return set(job.tasks) <= {task.uid for task in ending}


def _refuse(errors: Iterable[Finding]) -> None:
    for error in errors:
        if error.severity == "error":
            raise RefusedError(finding_text(error))


def set_minimum(group: Json, value: int) -> None:
    """Set the size of the gang of a PodGroup; its minimum of resources shrinks in proportion."""
    old, amounts = max(1, spec(group).get("minMember") or 1), spec(group).get("minResources") or {}
    set_spec(group, "minMember", value)
    if amounts:
        set_spec(group, "minResources", {name: _scaled(name, amount, value, old) for name, amount in amounts.items()})


def _scaled(resource: str, amount: str, value: int, old: int) -> str:
    return format_amount(resource, -(-(base_amount(resource, amount) or 0) * value // old))
