"""Events of jobs that can never start: on the PodGroup, its Job and its pods, once for each cause."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.framework.close.never_starting import workload_reference
from capcard_sched.model.intents import EmitEvent, ObjectRef
from capcard_sched.model.involved_object import involved_object
from capcard_sched.model.reasons import CAN_NEVER_START
from capcard_sched.testing import Harness

VCJOB: dict[str, Any] = {"labels": {"volcano.sh/job-name": "train"}, "owner_kind": "Job"}
BATCH: dict[str, Any] = {
    "labels": {"batch.kubernetes.io/job-name": "train", "batch.kubernetes.io/controller-uid": "u1"},
    "owner_kind": "Job",
}


def _reported(h: Harness) -> list[str]:
    """The objects of the events of one session."""
    intents = h.step().intents
    events = [one for one in intents if isinstance(one, EmitEvent) and one.reason == CAN_NEVER_START.code]
    return sorted(f"{one.object.kind} {one.object.name}" for one in events)


def _cluster(group: str) -> Harness:
    h = Harness()
    h.node("n1", cpu="4")
    h.queue("q")
    h.group(group, min_member=3)
    return h


@pytest.mark.parametrize(
    "group, pods, job",
    [("train-u1", VCJOB, ["Job train"]), ("train-u1", BATCH, ["Job.batch/v1 train"]), ("g", {}, [])],
    ids=["of Volcano", "of Kubernetes", "of none"],
)
def test_the_job_and_every_pod_has_the_event_once(group: str, pods: dict[str, Any], job: list[str]) -> None:
    h = _cluster(group)
    for name in ("p0", "p1"):
        h.pod(name, group=group, requests={"cpu": "3"}, **pods)
    assert _reported(h) == [*job, "Pod p0", "Pod p1", f"PodGroup {group}"]
    h.pod("p2", group=group, requests={"cpu": "3"}, **pods)
    assert _reported(h) == ["Pod p2"]
    for second in range(3):
        h.now += 1000
        h.node("n1", cpu="4", labels={"at": str(second)})
        assert _reported(h) == []
    h.node("n2", cpu="4")  # another number of places is another text
    assert _reported(h) == [*job, "Pod p0", "Pod p1", "Pod p2", f"PodGroup {group}"]
    h.node("n3", cpu="4")
    h.settle()
    assert {"p0", "p1", "p2"} <= h.binds.keys()


def test_a_pod_without_a_group_has_the_event_alone() -> None:
    h = _cluster("g")
    h.queue("default")
    h.pod("lone", group=None, requests={"cpu": "5"}, annotations={"scheduling.volcano.sh/queue-name": "q"})
    assert _reported(h) == ["Pod lone"]


def test_the_involved_job_has_the_version_and_the_uid_of_its_kind() -> None:
    for pods, version in ((VCJOB, "batch.volcano.sh/v1alpha1"), (BATCH, "batch/v1")):
        h = _cluster("train-u1")
        h.pod("p0", group="train-u1", **pods)
        h.step()
        ref = workload_reference(h.job("train-u1"))
        assert ref is not None
        assert involved_object(ref, ref.uid) == {
            "apiVersion": version, "kind": "Job", "name": "train", "uid": "u1", "namespace": "default",
        }  # fmt: skip


def test_the_involved_object_of_a_cluster_has_no_namespace() -> None:
    found = involved_object(ObjectRef("Queue", "", "q"), "u")
    assert found == {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "name": "q", "uid": "u"}
