"""What users call a job: the workload they wrote, where its pods tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.model.annotations import JOB_NAME

if TYPE_CHECKING:
    from capcard_sched.model.job import Job

#: How groups are called that a controller makes for pods without one; their owner's uid follows.
_MADE_GROUP: Final = "podgroup-"
#: Label that a Deployment puts on its pods, and part of their names.
_TEMPLATE_HASH: Final = "pod-template-hash"
#: Labels with the name of a batch Job, the newer first.
_BATCH_JOB: Final = ("batch.kubernetes.io/job-name", "job-name")
#: Kinds whose pods are named after them with one more part behind.
_ONE_PART_MORE: Final = frozenset({"DaemonSet", "ReplicaSet", "StatefulSet"})


def workload_of(job: Job) -> str:
    """`deployment/chat`, `job/train`, `pod/notebook`; "" when it is known by its PodGroup's name or nobody tells.

    Deployments own no pods and ReplicaSets are not watched: the name is read off a pod's, which has it in front of the
    hash of its template. Names that were cut short because they are long tell nothing.
    """
    task = next(iter(job.tasks.values()), None)
    if task is None:
        return f"job/{job.owner_job}" if job.owner_job else ""
    kind, labels = task.cls.owner_kind, task.labels
    if not kind:
        return f"pod/{task.name}" if job.implicit or job.name == f"{_MADE_GROUP}{task.uid}" else ""
    if kind == "Job":
        named = next((labels[key] for key in (JOB_NAME, *_BATCH_JOB) if labels.get(key)), "")
        return f"job/{named}" if named else ""
    template = labels.get(_TEMPLATE_HASH) if kind == "ReplicaSet" else None
    if template:
        name, found, _ = task.name.rpartition(f"-{template}-")
        return f"deployment/{name}" if found else ""
    name, found, _ = task.name.rpartition("-")
    return f"{kind.lower()}/{name}" if found and kind in _ONE_PART_MORE else ""
