"""Controllers keep nothing of objects that are gone: of Jobs, queues, commands, schedules, owners and their pods."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from capcard_sched.model.topology_discovery import TopologyType
from capcard_sched.simulation.workloads.controller_runner import ControllerRunner
from tests.reachable import sizes
from tests.unit.controllers.bench import API, ClusterBench, task

Json = dict[str, Any]
#: Objects with new names of the first churn and of the second.
_FEW, _MANY = 10, 60
#: Seconds after which what is kept of earlier objects has expired.
_SECONDS: Final = 3700


def _object(kind: str, index: int, meta: Json | None = None, **fields: Any) -> tuple[str, Json]:
    named = {"name": f"o{index}", "labels": {f"example.com/k{index}": f"v{index}"}, **(meta or {})}
    return kind, {"apiVersion": API.get(kind, "v1"), "kind": kind, "metadata": named, **fields}


def _owner(kind: str, index: int, api: str = "v1") -> Json:
    return {"apiVersion": api, "kind": kind, "name": f"w{index}", "uid": f"w{index}", "controller": True}


def _job(index: int, **spec: Any) -> tuple[str, Json]:
    spec = {"schedulerName": "volcano", "minAvailable": 1, "tasks": [task(f"t{index}", 2)], **spec}
    return _object("Job", index, spec=spec)


def _pod(index: int, **meta: Any) -> tuple[str, Json]:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    return _object("Pod", index, meta, spec={"schedulerName": "volcano", "containers": containers})


def _command(index: int, kind: str, action: str) -> tuple[str, Json]:
    target = {"apiVersion": API[kind], "kind": kind, "name": f"o{index}", "uid": f"u{index}"}
    return _object("Command", index, action=action, target=target)


_SCHEDULED: Final = {"spec": {"schedulerName": "volcano", "tasks": [task("w", 1)]}}
_POLICIES: Final = [{"event": "PodFailed", "action": "RestartJob"}, {"event": "PodEvicted", "action": "AbortJob"}]
#: Objects of one number that tenants create together.
_CHURN: Final[dict[str, Callable[[int], list[tuple[str, Json]]]]] = {
    "Job": lambda index: [_job(index)],
    "Job with plugins": lambda index: [_job(index, plugins={"env": [], "svc": [], "ssh": []}, policies=_POLICIES)],
    "Job with a wrong plugin": lambda index: [_job(index, plugins={f"p{index}": []})],
    "Job of a missing queue": lambda index: [_job(index, queue=f"q{index}")],
    "Job with volumes": lambda index: [_job(index, volumes=[
        {"mountPath": "/a", "volumeClaimName": f"c{index}"}, {"mountPath": "/b", "volumeClaim": {"accessModes": []}}])],
    "Job after another task": lambda index: [_job(index, tasks=[
        task(f"a{index}", 1), task(f"b{index}", 1, dependsOn={"name": [f"a{index}"]})])],
    "Job with a lifetime": lambda index: [_job(index, ttlSecondsAfterFinished=10)],
    "Command for a Job": lambda index: [_command(index, "Job", "AbortJob")],
    "Command for a Queue": lambda index: [_command(index, "Queue", "CloseQueue")],
    "Job with a command": lambda index: [_job(index), _command(index, "Job", "AbortJob")],
    "CronJob": lambda index: [_object("CronJob", index, spec={"schedule": "* * * * *", "jobTemplate": _SCHEDULED})],
    "CronJob without a schedule": lambda index: [
        _object("CronJob", index, spec={"schedule": f"every {index}", "jobTemplate": _SCHEDULED})],
    "Queue": lambda index: [_object("Queue", index, spec={"parent": "root"})],
    "Queue without a parent": lambda index: [_object("Queue", index, spec={"parent": f"missing{index}"})],
    "NamespaceQueue": lambda index: [
        _object("NamespaceQueue", index, spec={"parent": "cluster/default", "capability": {f"r{index}": "1"}})],
    "NamespaceQueue without a parent": lambda index: [
        _object("NamespaceQueue", index, spec={"parent": f"missing{index}"})],
    "PodGroup": lambda index: [_object("PodGroup", index, spec={"minMember": 1, "queue": f"q{index}"})],
    "PodGroup of a Job": lambda index: [_object("PodGroup", index, {"ownerReferences": [
        _owner("Job", index, API["Job"])]}, spec={"minMember": 1, "queue": "default"})],
    "Pod": lambda index: [_pod(index)],
    "Pod of a missing group": lambda index: [_pod(index, annotations={"scheduling.k8s.io/group-name": f"g{index}"})],
    "Pod of a missing owner": lambda index: [_pod(index, ownerReferences=[_owner("ReplicaSet", index, "apps/v1")])],
    "Pod of an unknown owner": lambda index: [_pod(index, ownerReferences=[_owner(f"K{index}", index, "a.b/v1")])],
    "Pod of a LeaderWorkerSet": lambda index: [_pod(index, labels={
        "leaderworkerset.sigs.k8s.io/name": f"l{index}", "leaderworkerset.sigs.k8s.io/group-index": "0",
        "leaderworkerset.sigs.k8s.io/worker-index": "1"})],
    "Pod of a JobSet": lambda index: [_pod(index, labels={
        "jobset.sigs.k8s.io/jobset-name": f"s{index}", "jobset.sigs.k8s.io/replicatedjob-name": "r"})],
    "Pod of a ray cluster": lambda index: [_pod(index, labels={
        "ray.io/cluster": f"r{index}", "ray.io/node-type": "head"})],
    "Pod of a Job of Kubeflow": lambda index: [_pod(index, labels={
        "training.kubeflow.org/job-name": f"t{index}", "training.kubeflow.org/replica-type": "worker"})],
    "Deployment": lambda index: [_object("Deployment", index, spec={"replicas": 2, "selector": {
        "matchLabels": {"app": f"a{index}"}}, "template": {"metadata": {"labels": {"app": f"a{index}"}}, "spec": {
            "schedulerName": "volcano", "containers": [{"name": "c"}]}}})],
    "Node": lambda index: [_object("Node", index, {"labels": {"rack": f"r{index}", "block": f"b{index}"}}, status={})],
    "HyperNode": lambda index: [_object("HyperNode", index, spec={"tier": 1, "members": [
        {"type": "Node", "selector": {"exactMatch": {"name": f"n{index}"}}}]})],
}  # fmt: skip


def _kept(bench: ClusterBench) -> Counter[str]:
    """Entries of what the controllers keep, and of their work queues."""
    gc.collect()
    found: Counter[str] = Counter()
    for runner in bench.cluster._controllers:
        if isinstance(runner, ControllerRunner):
            controller = runner._controller
            for part in (controller, runner._queue, runner._timers):
                for path, size in sizes(part).items():
                    if "._store" not in path and "Timer" not in type(part).__name__:
                        found[f"{type(controller).__name__}{type(part).__name__}{path}"] += size
    return found


@pytest.mark.parametrize("kind", _CHURN)
def test_controllers_keep_nothing_of_objects_that_are_gone(kind: str) -> None:
    bench = ClusterBench()
    bench.cluster.discover((TopologyType("net", ("rack", "block")),))

    def churn(first: int, count: int) -> None:
        for index in range(first, first + count):
            made = _CHURN[kind](index)
            for each, obj in made:
                bench.store.create(each, obj)
                bench.cluster.settle()
            bench.admit()
            bench.bind()
            bench.wait(61)
            for each, obj in made:
                if (present := bench.find(each, obj["metadata"]["name"])) is not None:
                    bench.delete(each, present["metadata"]["name"])
            bench.wait(10)
        for pod in bench.names("Pod"):
            bench.delete("Pod", pod)
        bench.wait(_SECONDS)

    churn(0, _FEW)
    before = _kept(bench)
    churn(_FEW, _MANY)
    after = _kept(bench)
    grown = [f"{path}: {before[path]} to {size}" for path, size in after.items() if size > 2 * before[path] + 16]
    assert not grown, "\n".join(grown)
