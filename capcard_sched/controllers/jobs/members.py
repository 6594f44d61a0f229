"""The objects of a Job that is Pending or Running: those of its plugins, claims, PodGroup and pods."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from capcard_sched.controllers.jobs.group import group_patch, is_of_version, new_group
from capcard_sched.controllers.jobs.job_spec import job_pod
from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair, PluginError
from capcard_sched.controllers.jobs.plugins.registry import content_digest, job_plugins
from capcard_sched.controllers.objects import (
    CLAIM,
    JOB,
    POD,
    POD_GROUP,
    JsonObject,
    Key,
    is_terminating,
    key_of,
    meta,
    owner_reference,
    status,
)
from capcard_sched.controllers.view import Create, Delete, Observe, Patch, Write
from capcard_sched.model.annotations import CONTROLLER_OUT_OF_SYNC
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from capcard_sched.controllers.jobs.job_spec import JobSpec, TaskSpec
    from capcard_sched.controllers.jobs.job_status import JobMember, Records
    from capcard_sched.controllers.jobs.plugins.job_plugin import JobPlugin
    from capcard_sched.controllers.view import View

_SUFFIX_LETTERS: Final = 12
_encode = msgspec.json.Encoder().encode


def claim_name(job: JobSpec, index: int) -> str:
    """`<job>-pvc-<suffix>` for volume `index`. A repeated creation finds the claim of the first."""
    return f"{job.name}-pvc-{hashlib.sha256(f'{job.uid}/{index}'.encode()).hexdigest()[:_SUFFIX_LETTERS]}"


def created_claims(job: JobSpec) -> list[str]:
    """Names of the claims that were created for the Job, in the order of its volumes."""
    names = (claim_name(job, index) for index in range(len(job.volumes)))
    return [name for name, volume in zip(names, job.volumes, strict=True) if volume.get("volumeClaimName") == name]


def missing_claims(view: View, job: JobSpec) -> Sequence[str]:
    """Claims that the Job names and that do not exist."""
    names = dict.fromkeys(volume["volumeClaimName"] for volume in job.volumes if volume.get("volumeClaimName"))
    return [name for name in names if view.get(CLAIM, job.namespace, name) is None]


#: Histogram of the time from the creation of a Job to that of its first pods.
POD_LATENCY: Final = "volcano_controller_job_to_pod_creation_latency_milliseconds"
#: Pods created in one pass, and their bytes: a Job of a million pods must not hold up the others, and plugins list the
#: hosts of all pods in each.
_CREATES_PER_PASS: Final = 500
_BYTES_PER_PASS: Final = 16 << 20
#: Mounts and variables of the Job in all containers of a pod: more do not fit into an object.
_MOST_ENTRIES: Final = 32_768
#: Reason of the event about an argument of a plugin without effect.
PLUGIN_ARGUMENT_IGNORED: Final = "PluginArgumentIgnored"
#: What an event is about to its reason, text and whether it is a warning.
News: TypeAlias = dict[str, tuple[str, str, bool]]


class MemberSync:
    """Collects the writes of one pass: those `before` the status, and those `after` it."""

    def __init__(
        self,
        view: View,
        job: JsonObject,
        desired: JobSpec,
        records: Records,
        group: JsonObject | None,
        members: Sequence[JobMember],
    ) -> None:
        self._view = view
        self._job = job
        self._spec = desired
        self._records = records
        self._group = group
        self._members = members
        self._plugins: list[JobPlugin] = []
        self.before: list[Write] = []
        self.after: list[Write] = []
        self.news: News = {}
        #: Claims that do not exist yet, and pods of others that have the names of members.
        self.awaited: list[Key] = []

    def rename_volumes(self) -> list[Write]:
        """Create the claims of volumes that have none, and write their names into the spec."""
        namespace, writes, volumes = self._spec.namespace, list[Write](), list[JsonObject]()
        for index, volume in enumerate(self._spec.volumes):
            if volume.get("volumeClaimName") or volume.get("volumeClaim") is None:
                volumes.append(volume)
                continue
            name = claim_name(self._spec, index)
            volumes.append({**volume, "volumeClaimName": name})
            metadata = {"name": name, "namespace": namespace, "ownerReferences": [owner_reference(self._job)]}
            claim = {"apiVersion": "v1", "kind": CLAIM, "metadata": metadata, "spec": volume["volumeClaim"]}
            writes.append(Create(claim, adopt=True))
        if writes:
            key, version = Key(JOB, namespace, self._spec.name), meta(self._job).get("resourceVersion", "")
            writes.append(Patch(key, {"spec": {"volumes": volumes}}, uid=self._spec.uid, version=version))
        return writes

    def prepare(self, make_keys: Callable[[], KeyPair]) -> bool:
        """What must exist before the PodGroup; False when something is missing or wrong."""
        missing = missing_claims(self._view, self._spec)
        if missing:
            self.awaited = [Key(CLAIM, self._spec.namespace, name) for name in missing]
            self._warn("PVCError", f"PersistentVolumeClaim {', '.join(missing)} not found")
            return False
        for name in created_claims(self._spec):
            self._records.add_claim(name)
        try:
            self._plugins = job_plugins(self._spec, make_keys)
            self._report_arguments()
            self._sync_plugins()
        except PluginError as error:
            self._warn("PluginError", str(error))
            return False
        return True

    def _report_arguments(self) -> None:
        for plugin in self._plugins:
            for entry in plugin.arguments.ignored:
                text = f"plugin {plugin.name}: {entry.message}; accepted: {entry.accepted}"
                self.news[f"{plugin.name} {entry.place}"] = (PLUGIN_ARGUMENT_IGNORED, text, True)

    def _sync_plugins(self) -> None:
        present = self._records.plugins()
        for plugin in self._plugins:
            digest = content_digest(plugin)
            if plugin.name not in present:
                # No object of others is taken over: the controller deletes it with the pods.
                self.before += [Create(obj) for obj in plugin.objects(self._job)]
            elif present[plugin.name] != digest:
                self.before += [Patch(key, content) for key, content in plugin.contents().items()]
            self._records.add_plugin(plugin.name, digest)

    def plugin_deletes(self) -> list[Delete]:
        """Delete the objects of plugins."""
        try:
            plugins = job_plugins(self._spec, lambda: KeyPair("", ""))  # only kinds and names count
        except PluginError:
            return []  # they were never created
        return [Delete(Key(obj["kind"], *key_of(obj)), "") for plugin in plugins for obj in plugin.objects(self._job)]

    def _warn(self, reason: str, text: str) -> None:
        self.news[reason] = (reason, text, True)

    def sync_group(self, version: int) -> None:
        """The PodGroup exists before the first pod and follows the Job."""
        if self._group is None:
            self.after.append(Create(new_group(self._view, self._job, self._spec)))
            return
        key, uid = Key(POD_GROUP, *key_of(self._group)), meta(self._group)["uid"]
        if is_of_version(self._group, version) is False:
            if not is_terminating(self._group):
                self.after.append(Delete(key, uid))
            return
        patch = group_patch(self._view, self._spec, self._group, version)
        if patch:
            self.after.append(Patch(key, patch, uid=uid))
        self._report_pending(self._group)

    def _report_pending(self, group: JsonObject) -> None:
        if status(group).get("phase") not in (None, "", "Pending"):
            return
        for condition in status(group).get("conditions") or ():
            if condition.get("type") == "Unschedulable" and condition.get("status") == "True":
                namespace, name = key_of(group)
                text = f"PodGroup {namespace}:{name} unschedulable, reason: {condition.get('message', '')}"
                self._warn("PodGroupPending", text)

    def sync_pods(self) -> None:
        """Create the pods that are missing once the PodGroup is admitted, and delete those that are not wanted."""
        for member in self._members:
            if member.to_delete and not is_terminating(member.pod):
                self._delete(member)
        group = self._group
        if group is None or is_terminating(group) or status(group).get("phase") in (None, "", "Pending"):
            return
        if is_of_version(group, int(status(self._job).get("version") or 0)) is False:
            return
        created = self._create_pods(meta(group)["name"])
        if created and not self._members and not status(self._job).get("version"):
            self.after.append(Observe(POD_LATENCY, parse_time(meta(self._job).get("creationTimestamp")), created))

    def _create_pods(self, group: str) -> int:
        """Create the pods that are missing; returns their number."""
        created, size, present = 0, 0, {member.notes.name for member in self._members}
        ready = Counter(member.notes.task for member in self._members if member.ready)
        for task in self._spec.tasks:
            if not self._may_start(task, ready) or not self._fits(task):
                continue
            for index in range(task.replicas):
                if created == _CREATES_PER_PASS or size >= _BYTES_PER_PASS:
                    return created  # the first of these pods brings the next pass
                name = self._spec.pod_name(task, index)
                if name in present:
                    continue
                if self._view.get(POD, self._spec.namespace, name) is None:
                    pod = self._pod(task, index, group)
                    created, size = created + 1, size + len(_encode(pod))
                    self.after.append(Create(pod))
                else:
                    self.awaited.append(Key(POD, self._spec.namespace, name))
                    self._warn("FailedCreate", f"pod {name} exists and is not controlled by this Job")
        return created

    def _fits(self, task: TaskSpec) -> bool:
        """Whether the pods of a task can be made; reported if not."""
        body = task.template.get("spec") or {}
        containers = len(body.get("containers") or ()) + len(body.get("initContainers") or ())
        entries = containers * (len(self._spec.volumes) + sum(plugin.entries for plugin in self._plugins))
        if entries > _MOST_ENTRIES:
            text = (
                f"pods of task {task.name} have {entries} mounts and variables of the Job, at most {_MOST_ENTRIES} fit"
            )
            self._warn("FailedCreate", text)
        return entries <= _MOST_ENTRIES

    def _pod(self, task: TaskSpec, index: int, group: str) -> JsonObject:
        pod = job_pod(self._job, self._spec, task, index, group)
        for plugin in self._plugins:
            plugin.change_pod(pod, task, index)
        return pod

    def _delete(self, member: JobMember) -> None:
        key, uid = Key(POD, *key_of(member.pod)), meta(member.pod)["uid"]
        if member.surplus:
            # The Job may grow again before the pod is gone: its end must not count as an eviction then.
            mark = {"metadata": {"annotations": {CONTROLLER_OUT_OF_SYNC: "true"}}}
            self.after.append(Patch(key, mark, uid=uid))
        self.after.append(Delete(key, uid))

    def _may_start(self, task: TaskSpec, ready: Mapping[str, int]) -> bool:
        """Whether the tasks this one depends on are ready; pods that have succeeded are."""
        if not task.depends_on:
            return True
        met = []
        for name in task.depends_on:
            needed = self._spec.task(name)
            met.append(needed is not None and ready[name] >= needed.min_available)
        return any(met) if task.depends_on_any else all(met)
