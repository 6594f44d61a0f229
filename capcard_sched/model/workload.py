"""The workload of a job in the user's terms, derived from its pods."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from capcard_sched.model.annotations import JOB_NAME
from capcard_sched.model.kube_groups import kube_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.model.job import Job, Task

#: Kind of a workload, as in `deployment/chat`, to the kind of its object.
WORKLOAD_KINDS: Final = {
    "job": "Job",
    "vcjob": "Job",
    "deployment": "Deployment",
    "statefulset": "StatefulSet",
    "replicaset": "ReplicaSet",
    "pod": "Pod",
    "podgroup": "PodGroup",
}
#: Kind of a PodGroup of `scheduling.k8s.io`, as kubectl takes it.
KUBE_KIND: Final = "podgroup.scheduling.k8s.io"
#: Prefix of the PodGroups that controllers create for pods without one; the owner's uid follows.
MADE_GROUP: Final = "podgroup-"
_UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Label of a Deployment's pods; its value is part of their names.
_TEMPLATE_HASH: Final = "pod-template-hash"
#: Labels with the name of a batch Job, the newer first.
_BATCH_JOB: Final = ("batch.kubernetes.io/job-name", "job-name")
#: Kinds whose pods have the name of the owner plus one part.
_ONE_PART_MORE: Final = frozenset({"DaemonSet", "ReplicaSet", "StatefulSet"})


def display_name(job: Job) -> str:
    """`namespace/kind/name` of the workload, or of the PodGroup where the pods name none."""
    return f"{job.namespace}/{own_name(job)}"


def own_name(job: Job) -> str:
    """`kind/name` of the workload, or of the PodGroup where the pods name none.

    One of `scheduling.k8s.io` has its name there, and its kind with the group.
    """
    kube = kube_name(job.name)
    return workload_of(job) or (f"{KUBE_KIND}/{kube}" if kube else f"podgroup/{job.name}")


def is_of_vcjob(job: Job) -> bool:
    """Whether a Job of `batch.volcano.sh` made the PodGroup or the pods; those of `batch` have another label."""
    return bool(job.owner_job) or any(JOB_NAME in task.labels for task in job.tasks.values())


def has_no_group_of_its_own(job: Job, task: Task) -> bool:
    """Whether a pod has no PodGroup, or one that a controller created for this pod alone."""
    return job.implicit or job.name == f"{MADE_GROUP}{task.uid}"


def names_made_group(job: Job) -> bool:
    """Whether the name is that of a PodGroup which the controllers create: of the uid of a pod or its controller."""
    uids = {task.uid for task in job.tasks.values()}
    _, _, uid = job.name.partition(MADE_GROUP)
    return job.name.startswith(MADE_GROUP) and (uid in uids or _UID.fullmatch(uid) is not None)


def has_made_group(job: Job) -> bool:
    """Whether a controller creates the PodGroup of a job, and deletes it with the pods."""
    return is_of_vcjob(job) or job.name.startswith(MADE_GROUP)


def workload_of(job: Job) -> str:
    """`deployment/chat`, `job/train`, `pod/notebook`; "" when the PodGroup's own name applies or the pods have no clue.

    Deployments own no pods and ReplicaSets are not watched: the name is the part of a pod's name before the hash of its
    template. Truncated names give no result.
    """
    task = next(iter(job.tasks.values()), None)
    if task is None:
        return f"job/{job.owner_job}" if job.owner_job else ""
    kind = task.cls.owner_kind
    if not kind:
        return f"pod/{task.name}" if has_no_group_of_its_own(job, task) else ""
    return owner_of_pod(kind, task.name, task.labels)


def owner_of_pod(kind: str, name: str, labels: Mapping[str, str]) -> str:
    """As `workload_of`, from the kind of a pod's first owner, and the pod's name and labels."""
    if kind == "Job":
        named = next((labels[key] for key in (JOB_NAME, *_BATCH_JOB) if labels.get(key)), "")
        return f"job/{named}" if named else ""
    template = labels.get(_TEMPLATE_HASH) if kind == "ReplicaSet" else None
    if template:
        workload, found, _ = name.rpartition(f"-{template}-")
        return f"deployment/{workload}" if found else ""
    workload, found, _ = name.rpartition("-")
    return f"{kind.lower()}/{workload}" if found and kind in _ONE_PART_MORE else ""
