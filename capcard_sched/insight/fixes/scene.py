"""The objects that a fix edits, as copies, and the workload that the pods of the job are made from."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.jobs.job_spec import DEFAULT_QUEUE
from capcard_sched.controllers.objects import (
    BATCH_API,
    DEPLOYMENT,
    JOB,
    POD,
    POD_GROUP,
    REPLICA_SET,
    STATEFUL_SET,
    Key,
    annotations_of,
    meta,
    spec,
)
from capcard_sched.insight.sources.changes import Edits, set_spec
from capcard_sched.model.annotations import TASK_SPEC
from capcard_sched.model.kinds import APPS_API, BATCH_JOB
from capcard_sched.model.workload import display_name, is_of_vcjob, workload_of

if TYPE_CHECKING:
    from capcard_sched.framework.core import Core
    from capcard_sched.insight.sources.object_view import Json, ObjectView
    from capcard_sched.model.job import Job, Task

#: Workloads with one pod template, by the word in their name.
_ONE_TEMPLATE: Final = {"deployment": DEPLOYMENT, "statefulset": STATEFUL_SET, "replicaset": REPLICA_SET}


class Scene:
    """The state before a fix, and the copies that the fix edits."""

    def __init__(self, core: Core, view: ObjectView, job: Job, owner: Json | None) -> None:
        """`owner`: the workload of the pods, if it is known (`known_owner`)."""
        self.core, self.view, self.job = core, view, job
        self.edits = Edits(view)
        #: Commands that no edit of an object expresses, by what they are for.
        self.lines: dict[str, tuple[str, ...]] = {}
        self.actions = core.snapshot().conf.actions
        #: Pods that end, by workload.
        self.ended: dict[str, list[str]] = {}
        #: Objects and commands of the change that is made now.
        self.touched: set[tuple[str, ...]] = set()
        self.workload = _workload_key(job)
        #: The workload is made from its pods, as the view does not have it.
        self.is_stub = False
        if self.workload is not None:
            self.is_stub = owner is None
            self.edits.know(owner if owner is not None else _stub(self.workload, job, view))

    @property
    def name(self) -> str:
        """`job/train`."""
        return display_name(self.job).partition("/")[2]

    @property
    def is_vcjob(self) -> bool:
        return self.workload is not None and self.workload.kind == JOB

    @property
    def creates_pods(self) -> bool:
        """Whether a controller creates the pods of the job once it is admitted, from a vcjob that is known."""
        return self.is_vcjob and (not self.is_stub or bool(self.job.tasks))

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """The pods by `namespace/name`, in a new dict. O(pods)."""
        return {task.key: task for task in self.core.snapshot().state.tasks.values()}

    @cached_property
    def jobs(self) -> dict[str, list[Job]]:
        """The jobs by the name of their workload."""
        found: dict[str, list[Job]] = {}
        for job in self.core.snapshot().state.jobs.values():
            found.setdefault(display_name(job), []).append(job)
        return found

    @cached_property
    def cards(self) -> set[str]:
        state = self.core.snapshot().state
        return {card for node in state.nodes.by_name.values() for card in state.cards_of(node)}

    def edit(self, kind: str, namespace: str, name: str) -> Json:
        """A copy that replaces an object. Raises UnknownObjectError."""
        self.touched.add((kind, namespace, name))
        return self.edits.edit(kind, namespace, name)

    def write(self, subject: str, *lines: str) -> None:
        """Set the commands about a subject that is no object."""
        self.touched.add((subject,))
        self.lines[subject] = lines

    def owner(self) -> Json | None:
        """The workload; None for pods that none creates."""
        return None if self.workload is None else self.edit(*self.workload)

    def group(self) -> Json | None:
        """The PodGroup of Volcano, where it exists and follows no workload."""
        if not self.job.is_editable or self.workload is not None:
            return None
        return self.edit(POD_GROUP, self.job.namespace, self.job.name)

    def templates(self) -> list[tuple[str, Json]]:
        """What the pods are made from, with the name of the task; the pending pods themselves where nothing is."""
        owner = self.owner()
        if owner is None:
            names = [task.name for task in self.job.pending.values()]
            return [(name, self.edit(POD, self.job.namespace, name)) for name in names]
        if self.is_vcjob:
            return [
                (task.get("name") or "", task.setdefault("template", {})) for task in spec(owner).get("tasks") or ()
            ]
        return [("", owner.setdefault("spec", {}).setdefault("template", {}))]

    def set_priority_class(self, name: str) -> None:
        """Set the PriorityClass of the vcjob, of the pod template, or of the PodGroup."""
        owner, group = self.owner(), self.group()
        if self.is_vcjob and owner is not None:
            set_spec(owner, "priorityClassName", name)
        elif owner is not None:
            for _, template in self.templates():
                set_spec(template, "priorityClassName", name)
        elif group is not None:
            set_spec(group, "priorityClassName", name)


def known_owner(view: ObjectView, job: Job, vcjob: Json | None) -> Json | None:
    """The workload of the pods of a job; None if the view does not have it. `vcjob`: one that was read already."""
    key = _workload_key(job)
    return vcjob if key is None or (vcjob is not None and key.kind == JOB) else view.get(*key)


def notes_of(template: Json) -> dict[str, str]:
    return (template.get("metadata") or {}).get("annotations") or {}


def _workload_key(job: Job) -> Key | None:
    kind, _, name = workload_of(job).partition("/")
    if kind == "job":
        return Key(JOB if is_of_vcjob(job) else BATCH_JOB, job.namespace, name)
    return Key(_ONE_TEMPLATE[kind], job.namespace, name) if kind in _ONE_TEMPLATE else None


def _stub(key: Key, job: Job, view: ObjectView) -> Json:
    """The workload as far as its pods show it."""
    metadata: Json = {"namespace": key.namespace, "name": key.name, "uid": job.name.removeprefix(f"{key.name}-")}
    roles: dict[str, list[Task]] = {}
    for task in sorted(job.tasks.values(), key=lambda task: task.name):
        roles.setdefault(task.cls.annotations.get(TASK_SPEC, "") if key.kind == JOB else "", []).append(task)
    if key.kind != JOB:
        (tasks,) = roles.values()
        version, kind = ("batch/v1", "Job") if key.kind == BATCH_JOB else (APPS_API, key.kind)
        body: Json = {"replicas": len(tasks), "template": _template(view, tasks[0])}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": body}
    group = view.get(POD_GROUP, job.namespace, job.name)
    if group is not None:
        metadata["annotations"] = annotations_of(group)
    body = {"queue": job.queue or DEFAULT_QUEUE, "minAvailable": job.min_available}
    if job.priority_class_name:
        body["priorityClassName"] = job.priority_class_name
    body["tasks"] = [
        {"name": role, "replicas": len(tasks), "template": _template(view, tasks[0])} for role, tasks in roles.items()
    ]
    return {"apiVersion": BATCH_API, "kind": JOB, "metadata": metadata, "spec": body}


def _template(view: ObjectView, task: Task) -> Json:
    pod = view.get(POD, task.namespace, task.name) or {"metadata": {}}
    kept = {field: meta(pod)[field] for field in ("annotations", "labels") if field in meta(pod)}
    return {"metadata": kept, "spec": {field: value for field, value in spec(pod).items() if field != "nodeName"}}
