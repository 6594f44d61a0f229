"""Owner references of tenants: namespace, API group, kind, name and uid of the owner are compared."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capcard_sched.controllers.objects import identity, is_owned, owner_reference
from capcard_sched.controllers.view import Create, is_as_good
from capcard_sched.kube.controllers.object_cache import ObjectCache
from capcard_sched.kube.controllers.records import BUILT_IN
from capcard_sched.model.objects import ObjectMeta
from capcard_sched.model.ownership import controller_of_meta
from tests.unit.controllers.bench import ClusterBench, task

ROOT = Path(__file__).parents[3]
JOB = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
       "metadata": {"name": "j", "namespace": "default", "uid": "job-uid"}}  # fmt: skip
#: What a tenant may write in the place of the reference that a controller writes.
FOREIGN: dict[str, dict[str, Any]] = {
    "another namespace": {"namespace": "other"},
    "another uid": {"uid": "x"},
    "another name": {"name": "x"},
    "another kind": {"kind": "CronJob"},
    "another API group": {"apiVersion": "batch/v1"},
    "no API group": {"apiVersion": "v1"},
    "no controller": {"controller": False},
    "controller unset": {"controller": None},
}


def owned_by(job: dict[str, Any], kind: str, name: str, changes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    changes = dict(changes)
    metadata = {"name": name, "namespace": changes.pop("namespace", "default"), "uid": f"uid-of-{name}",
                "resourceVersion": "5", "ownerReferences": [{**owner_reference(job), **changes}],
                **fields.pop("metadata", {})}  # fmt: skip
    return {"kind": kind, "metadata": metadata, **fields}


@pytest.mark.parametrize("changes", [{}, {"apiVersion": "batch.volcano.sh/v1"}, *FOREIGN.values()], ids=str)
def test_all_places_agree_on_what_a_job_owns(changes: dict[str, Any]) -> None:
    expected = changes in ({}, {"apiVersion": "batch.volcano.sh/v1"})
    pod = owned_by(JOB, "Pod", "p", changes)
    assert is_owned(pod, JOB) is expected
    meta = msgspec.convert(pod["metadata"], ObjectMeta)
    assert (controller_of_meta(meta) == identity(JOB)) is expected

    cache = ObjectCache(lambda: 0.0, lambda *_: None)
    change = BUILT_IN.decode_change("Pod", msgspec.json.encode(pod))
    assert change is not None
    cache.apply(change)
    assert bool(cache.owned(JOB, "Pod")) is expected
    assert is_as_good(pod, Create(owned_by(JOB, "Pod", "p", {}))) is expected


@pytest.mark.parametrize("changes", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_pod_neither_fails_nor_counts_for_a_job(changes: dict[str, Any]) -> None:
    bench = ClusterBench()
    policies = [{"event": "PodFailed", "action": "RestartJob"}]
    bench.running_job("j", task("w", 2), policies=policies)
    job = bench.get("Job", "j")
    (genuine, *_) = bench.store.owned(job, "Pod")
    notes = {"annotations": genuine["metadata"]["annotations"], "labels": genuine["metadata"].get("labels", {})}
    before = bench.status()
    for index, phase in enumerate(("Failed", "Running", "Pending")):
        foreign = owned_by(job, "Pod", f"foreign-{index}", changes, metadata={**notes, "uid": ""}, spec={"containers": [
            {"name": "main"}]}, status={"phase": phase})  # fmt: skip
        bench.store.create("Pod", foreign)
    bench.cluster.settle()
    assert bench.phase() == "Running"
    assert bench.retries() == before.get("retryCount", 0)
    assert bench.status().get("running") == before.get("running")
    assert len(bench.store.owned(job, "Pod")) == 2


@pytest.mark.parametrize("changes", [{"namespace": "other"}, {"uid": "x"}], ids=str)
def test_a_foreign_pod_group_does_not_take_the_place_of_the_own_one(changes: dict[str, Any]) -> None:
    bench = ClusterBench()
    bench.job("j", task("w", 2))
    job = bench.get("Job", "j")
    foreign = owned_by(job, "PodGroup", "foreign", changes, apiVersion="scheduling.volcano.sh/v1beta1",
                       spec={"minMember": 77}, metadata={"uid": ""})  # fmt: skip
    bench.store.create("PodGroup", foreign)
    bench.cluster.settle()
    (own,) = bench.store.owned(job, "PodGroup")
    assert own["spec"]["minMember"] == 2
    found = bench.store.get("PodGroup", changes.get("namespace", "default"), "foreign")
    assert found is not None
    assert found["spec"]["minMember"] == 77


#: Modules that read owner references: the comparison, the structs, indexes of references, and writers of new ones.
_READERS = {
    "capcard_sched/controllers/objects.py", "capcard_sched/controllers/view.py",
    "capcard_sched/model/objects.py", "capcard_sched/model/ownership.py",
    "capcard_sched/model/pod_facts.py",  # the kind of the first owner selects a service type
    "capcard_sched/state/pod_runs.py",  # equality with the last pod
    "capcard_sched/controllers/podgroups.py",  # all direct owners: compared by identity
    "capcard_sched/simulation/store.py", "capcard_sched/simulation/cluster.py",  # the garbage collector
    "capcard_sched/simulation/workloads/claims.py",  # claims end with the pod that they were generated for
    "capcard_sched/kube/controllers/records.py", "capcard_sched/insight/trials/impossible.py",
    "capcard_sched/validation/late_members.py",  # names an owner in a sentence
    # the uid of the PodGroup that owns a ProvisioningRequest
    "capcard_sched/model/provisioning.py", "capcard_sched/kube/writes/capacity_requests.py",
    "capcard_sched/simulation/effects.py",
    "capcard_sched/simulation/scenario_reader.py",  # names of owners, for a warning
}  # fmt: skip


def test_only_known_modules_read_owner_references() -> None:
    found = set()
    for path in [*ROOT.glob("capcard_sched/**/*.py"), *ROOT.glob("plugins/**/*.py"), *ROOT.glob("actions/**/*.py")]:
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_read = isinstance(node, ast.Attribute) and node.attr == "owner_references"
            is_key = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "get"
                and any(isinstance(one, ast.Constant) and one.value == "ownerReferences" for one in node.args)
            )
            if is_read or is_key:
                found.add(str(path.relative_to(ROOT)))
    assert found <= _READERS, found - _READERS
