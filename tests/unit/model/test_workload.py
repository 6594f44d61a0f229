"""The workload name of a job, read off its pods."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.objects import OwnerReference
from capcard_sched.model.workload import workload_of
from capcard_sched.state.cluster import ClusterState
from tests import objects

HASH = {"pod-template-hash": "6d4f"}
CASES: Mapping[str, tuple[str, str, Mapping[str, str], str]] = {
    "a replica of a Deployment": ("chat-6d4f-x2x5z", "ReplicaSet", HASH, "deployment/chat"),
    "a Deployment whose name looks like a hash": ("chat-6d4f-6d4f-x2x5z", "ReplicaSet", HASH, "deployment/chat-6d4f"),
    "a name that was cut": ("a-very-long-name-6d-x2x5z", "ReplicaSet", HASH, ""),
    "a replica of a ReplicaSet of its own": ("web-x2x5z", "ReplicaSet", {}, "replicaset/web"),
    "a member of a StatefulSet": ("db-main-0", "StatefulSet", {}, "statefulset/db-main"),
    "a pod of a DaemonSet": ("agent-x2x5z", "DaemonSet", {}, "daemonset/agent"),
    "a pod of a Volcano Job": ("train-worker-0", "Job", {"volcano.sh/job-name": "train"}, "job/train"),
    "a pod of a batch Job": ("etl-x2x5z", "Job", {"batch.kubernetes.io/job-name": "etl"}, "job/etl"),
    "a pod of an old batch Job": ("etl-x2x5z", "Job", {"job-name": "etl"}, "job/etl"),
    "a pod of a Job without labels": ("etl-x2x5z", "Job", {}, ""),
    "a pod of an unknown kind": ("ray-head-x2x5z", "RayCluster", {}, ""),
    "a pod of its own": ("notebook", "", {}, "pod/notebook"),
}


def _job_of(delta: ObjectChanged, kind: str) -> str:
    metadata = delta.object.metadata
    owners = (OwnerReference(kind=kind, name="owner", uid="owner", controller=True),) if kind else None
    owned = msgspec.structs.replace(metadata, owner_references=owners)
    state = ClusterState(("capcard-sched",), "default")
    state.apply(ObjectChanged(msgspec.structs.replace(delta.object, metadata=owned)))
    (job,) = state.jobs.values()
    return workload_of(job)


@pytest.mark.parametrize("name, kind, labels, called", CASES.values(), ids=CASES)
def test_a_job_has_the_name_of_its_workload(name: str, kind: str, labels: Mapping[str, str], called: str) -> None:
    assert _job_of(objects.pod(name, labels=labels), kind) == called


def test_pods_that_name_a_group_are_known_by_that() -> None:
    assert _job_of(objects.pod("worker-0", group="train"), "") == ""


def test_a_pod_whose_group_a_controller_made_is_still_called_by_its_own_name() -> None:
    made = objects.pod("notebook")
    uid = made.object.metadata.uid
    assert _job_of(objects.pod("notebook", group=f"podgroup-{uid}"), "") == "pod/notebook"


def test_a_group_without_pods_is_known_by_its_job_or_else_its_own_name() -> None:
    state = ClusterState(("capcard-sched",), "default")
    early = objects.group("early")
    state.apply(early)
    assert workload_of(state.jobs["default/early"]) == ""
    owners = (OwnerReference("Job", "train", "u", "batch.volcano.sh/v1alpha1", controller=True),)
    owned = msgspec.structs.replace(early.object.metadata, owner_references=owners)
    state.apply(ObjectChanged(msgspec.structs.replace(early.object, metadata=owned)))
    assert workload_of(state.jobs["default/early"]) == "job/train"
