"""The status of a Job: records of its actions, the counts of its pods, and the status to write.

An action is one write of the status: phase, `retryCount`, version and record change together. Which pods are to be
deleted, and which events were processed, follows from the record and from the annotations of the pods. A
controller that ends between two writes resumes there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.controllers.jobs.phases import ACTIVE, FINISHED, RESTARTING, Census
from capcard_sched.controllers.objects import (
    JsonObject,
    annotations_of,
    has_ended,
    is_terminating,
    labels_of,
    meta,
    status,
)
from capcard_sched.model.annotations import (
    CONTROLLER_OUT_OF_SYNC,
    JOB_RETRY_COUNT,
    JOB_VERSION,
    PARTITION_ID,
    TASK_INDEX,
    TASK_SPEC,
)
from capcard_sched.model.numbers import whole_number
from capcard_sched.model.timestamps import format_duration, format_timestamp, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capcard_sched.controllers.jobs.job_spec import JobSpec

#: Keys: pods of an earlier retry count than the value are outdated.
_JOB, _TASK, _PARTITION, _POD = "restart-job", "restart-task-", "restart-partition-", "restart-pod-"
#: Key: failed pods of an earlier retry count than the value are outdated.
_FAILED = "resume-failed"
#: Keys: restarts after evictions that do not count towards `maxRetry`, and resumes, which never do.
_UNCOUNTED, _RESUMES = "uncounted-restarts", "resumes"
#: Key: the moment at which the delayed action for an evicted pod is due.
_EVICTED = "evicted-"
#: Key: the uid of the Command that was applied last.
_COMMAND = "command"
_PLUGIN, _CLAIM, _DIGEST = "plugin-", "volume-pvc-", "digest-"


class MemberAnnotations(NamedTuple):
    """The annotations of a pod by which it is matched with its Job."""

    name: str
    task: str
    ordinal: int
    version: int
    retries: int
    #: The partition of its task, "" for none.
    partition: str = ""


def member_annotations(pod: JsonObject) -> MemberAnnotations:
    """What a pod records of its Job; values that are no numbers count as 0, an unreadable index as -1."""
    notes = annotations_of(pod)
    ordinal = whole_number(notes.get(TASK_INDEX) or meta(pod)["name"].rpartition("-")[2])
    return MemberAnnotations(
        meta(pod)["name"],
        notes.get(TASK_SPEC, ""),
        -1 if ordinal is None else ordinal,
        whole_number(notes.get(JOB_VERSION)) or 0,
        whole_number(notes.get(JOB_RETRY_COUNT)) or 0,
        labels_of(pod).get(PARTITION_ID, ""),
    )


class Records:
    """`status.controlledResources`, to be changed in place and written with the status."""

    def __init__(self, entries: Mapping[str, str] | None) -> None:
        self.entries = dict(entries or {})

    def outdated(self, pod: MemberAnnotations, *, failed: bool = False) -> bool:
        """Whether a restart of the Job, the task, the partition or the pod came after the pod was created.

        A resume outdates pods that have `failed`.
        """
        if not self.entries:
            return False
        keys = [_JOB, f"{_TASK}{pod.task}", f"{_PARTITION}{pod.task}-{pod.partition}", f"{_POD}{pod.name}"]
        if failed:
            keys.append(_FAILED)
        return any(pod.retries < (whole_number(self.entries.get(key)) or 0) for key in keys)

    @property
    def restarts_job(self) -> bool:
        """Whether the last whole-job action was a restart that keeps no pod."""
        return _JOB in self.entries

    def restart(self, retries: int, *, task: str = "", partition: str = "", pod: str = "") -> None:
        """Every pod is outdated; with a task, a partition of it or a pod, only those."""
        of_task = f"{_PARTITION}{task}-{partition}" if partition else f"{_TASK}{task}" if task else _JOB
        self.entries[f"{_POD}{pod}" if pod else of_task] = str(retries)

    def resume(self, retries: int) -> None:
        """Pods that have failed, or fail while they terminate, are outdated; the resume is counted."""
        self.entries[_FAILED] = str(retries)
        self.entries[_RESUMES] = str(self.resumes + 1)

    def forget_actions(self) -> None:
        """A whole-job action follows: what earlier ones outdated is deleted with the rest."""
        outdated = (_JOB, _TASK, _PARTITION, _POD, _FAILED, _EVICTED)
        self.entries = {key: value for key, value in self.entries.items() if not key.startswith(outdated)}

    @property
    def resumes(self) -> int:
        return whole_number(self.entries.get(_RESUMES)) or 0

    @property
    def uncounted(self) -> int:
        """Restarts after evictions that do not count towards `maxRetry`."""
        return whole_number(self.entries.get(_UNCOUNTED)) or 0

    def add_uncounted(self) -> None:
        """A restart after an eviction follows, and does not count."""
        self.entries[_UNCOUNTED] = str(self.uncounted + 1)

    def evicted(self) -> dict[str, str]:
        """Pod name to the moment at which its delayed action is due."""
        return {key.removeprefix(_EVICTED): value for key, value in self.entries.items() if key.startswith(_EVICTED)}

    def delay(self, pod: str, moment: str) -> None:
        """The action for an evicted pod is due then; the pod may be gone by that time."""
        self.entries.setdefault(f"{_EVICTED}{pod}", moment)

    def cancel(self, pod: str) -> None:
        """No delayed action for this pod any more."""
        self.entries.pop(f"{_EVICTED}{pod}", None)

    @property
    def command(self) -> str:
        """The uid of the Command that was applied last."""
        return self.entries.get(_COMMAND, "")

    @command.setter
    def command(self, uid: str) -> None:
        self.entries[_COMMAND] = uid

    def plugins(self) -> dict[str, str]:
        """Plugin to the digest of the objects that exist for it."""
        names = [key.removeprefix(_PLUGIN) for key in self.entries if key.startswith(_PLUGIN)]
        return {name: self.entries.get(f"{_DIGEST}{name}", "") for name in names}

    def add_plugin(self, name: str, digest: str) -> None:
        """The objects of a plugin exist."""
        self.entries[f"{_PLUGIN}{name}"] = name
        if digest:
            self.entries[f"{_DIGEST}{name}"] = digest

    def drop_plugin(self, name: str) -> None:
        """The objects of a plugin are deleted."""
        self.entries.pop(f"{_PLUGIN}{name}", None)
        self.entries.pop(f"{_DIGEST}{name}", None)

    def add_claim(self, name: str) -> None:
        """The Job uses a claim that was created for it."""
        self.entries[f"{_CLAIM}{name}"] = name


_KEEPS_MEMBERS = ACTIVE | {RESTARTING}
_PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")


class JobMember(NamedTuple):
    """A pod of a Job."""

    pod: JsonObject
    notes: MemberAnnotations
    #: `Unknown` for a phase that is none.
    phase: str
    #: To be deleted, whether or not its deletion has begun.
    to_delete: bool
    #: Belongs to the present version and to a replica of the spec: what happens to it is an event.
    current: bool
    #: Of the present version, but beyond the replicas of its task.
    surplus: bool

    @property
    def ready(self) -> bool:
        """Succeeded, or running with all containers ready."""
        if self.to_delete or is_terminating(self.pod):
            return False
        rows = status(self.pod).get("containerStatuses") or ()
        return self.phase == "Succeeded" or (self.phase == "Running" and all(row.get("ready", True) for row in rows))


def members(
    job: JobSpec, pods: Iterable[tuple[JsonObject, MemberAnnotations]], phase: str, version: int, records: Records
) -> list[JobMember]:
    """The pods with what is to become of each while the Job is in `phase`."""
    last = {task.name: task.replicas for task in job.tasks}
    found = []
    for pod, notes in pods:
        wanted = 0 <= notes.ordinal < last.get(notes.task, 0)
        outdated = records.outdated(notes, failed=status(pod).get("phase") == "Failed")
        if has_ended(pod):
            to_delete = (outdated and phase in _KEEPS_MEMBERS) or (phase in ACTIVE and not wanted)
        elif phase in ACTIVE:
            to_delete = outdated or not wanted or notes.version < version
        else:
            to_delete = phase != RESTARTING or outdated or notes.version < version
        present = not outdated and notes.version >= version
        current = wanted and present and CONTROLLER_OUT_OF_SYNC not in annotations_of(pod)
        pod_phase = status(pod).get("phase") or "Pending"
        known = pod_phase if pod_phase in _PHASES else "Unknown"
        found.append(JobMember(pod, notes, known, to_delete, current, surplus=present and not wanted))
    return found


def census(pods: Iterable[JobMember]) -> Census:
    """Count the pods: those that are to go apart, those that ended always."""
    counts = dict.fromkeys((*_PHASES, "Terminating"), 0)
    by_task: dict[str, dict[str, int]] = {}
    for member in pods:
        if is_terminating(member.pod) or member.to_delete:
            counts["Terminating"] += 1
            continue
        counts[member.phase] += 1
        of_task = by_task.setdefault(member.notes.task, {})
        of_task[member.phase] = of_task.get(member.phase, 0) + 1
    return Census(
        counts["Pending"],
        counts["Running"],
        counts["Succeeded"],
        counts["Failed"],
        counts["Terminating"],
        counts["Unknown"],
        by_task,
    )


def job_status(
    job: JsonObject,
    desired: JobSpec,
    count: Census,
    *,
    phase: str,
    version: int,
    retries: int,
    records: Records,
    reason: str,
    now: float,
) -> JsonObject:
    """The status to write. Fields that are 0 or empty are left out, as the reference does."""
    present = status(job)
    wanted = {
        **present,
        "minAvailable": desired.min_available,
        "pending": count.pending,
        "running": count.running,
        "succeeded": count.succeeded,
        "failed": count.failed,
        "terminating": count.terminating,
        "unknown": count.unknown,
        "taskStatusCount": {name: {"phase": phases} for name, phases in sorted(count.by_task.items())},
        "version": version,
        "retryCount": retries,
        "controlledResources": records.entries,
    }
    if (present.get("state") or {}).get("phase") != phase:
        stamp = format_timestamp(now)
        wanted["state"] = {"phase": phase, "lastTransitionTime": stamp, **({"reason": reason} if reason else {})}
        # One entry per phase, the newest last.
        others = [entry for entry in present.get("conditions") or () if entry.get("status") != phase]
        wanted["conditions"] = [*others, {"status": phase, "lastTransitionTime": stamp}]
        if phase in FINISHED:
            wanted["runningDuration"] = format_duration(now - parse_time(meta(job).get("creationTimestamp")))
    kept = {"state", "minAvailable"}
    return {field: value for field, value in wanted.items() if value or field in kept}
