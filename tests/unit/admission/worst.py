"""The most expensive objects of every kind that an API server stores: one list or map of an object, repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.unit.admission.objects import Json


class Worst(NamedTuple):
    """One shape of an object under review."""

    path: str
    kind: str
    build: Callable[[int], Json]


def _job(tasks: list[Json], annotations: Json | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "n", "annotations": annotations or {}},
        "spec": {"queue": "research", "minAvailable": 1, "tasks": tasks, **spec},
    }


def _task(index: int, annotations: Json | None = None, pod: Json | None = None, **fields: Any) -> Json:
    return {"name": f"t{index}", "template": _template(annotations, pod), **fields}


def _template(annotations: Json | None = None, pod: Json | None = None) -> Json:
    return {"metadata": {"annotations": annotations or {}}, "spec": _pod_spec(**(pod or {}))}


def _pod_spec(**fields: Any) -> Json:
    return {"schedulerName": "volcano", "containers": [_container()], **fields}


def _container(**fields: Any) -> Json:
    return {"name": "main", "image": "i", **fields}


def _pod(annotations: Json | None = None, **fields: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n",
            "annotations": annotations or {}}, "spec": _pod_spec(**fields)}  # fmt: skip


def _group(annotations: Json | None = None, **spec: Any) -> Json:
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "g",
            "namespace": "n", "annotations": annotations or {}}, "spec": {"queue": "research", **spec}}  # fmt: skip


def _queue(annotations: Json | None = None, **spec: Any) -> Json:
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "new",
            "annotations": annotations or {}}, "spec": spec}  # fmt: skip


def _namespace_queue(annotations: Json | None = None, **spec: Any) -> Json:
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "NamespaceQueue", "metadata": {"name": "new",
            "namespace": "n", "annotations": annotations or {}}, "spec": spec}  # fmt: skip


def _deployment(annotations: Json | None = None, own: Json | None = None, **pod: Any) -> Json:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n",
            "annotations": own or {}}, "spec": {"template": _template(annotations, pod)}}  # fmt: skip


def _noise(count: int) -> Json:
    """Annotations that resemble supported ones without being one of them."""
    return {f"volcano.sh/card.qu{index}ota": "x" for index in range(count)}


def _invented(count: int) -> Json:
    return {f"nvidia.com/mig-{index}": "1" for index in range(count)}


def _limits(count: int) -> Json:
    return {"limits": _invented(count), "requests": _invented(count)}


def _cards(count: int) -> str:
    return "|".join(f"card-{index}/mig-{index}-mixed" for index in range(count))


def _request(count: int) -> str:
    return "{" + ",".join(f'"card-{index}|other": 1' for index in range(count)) + "}"


def _chain(count: int) -> list[Json]:
    return [_task(index, dependsOn={"name": [f"t{index + 1}"]}) for index in range(count)]


def _dense(count: int) -> list[Json]:
    """Tasks of which each depends on the 150 before it."""
    return [
        _task(index, dependsOn={"name": [f"t{other}" for other in range(max(0, index - 150), index)]})
        for index in range(count // 100)
    ]


_JOBS: dict[str, Callable[[int], Json]] = {
    "annotations": lambda n: _job([_task(0)], _noise(n)),
    "annotations of templates": lambda n: _job([_task(i, _noise(3)) for i in range(n // 3)]),
    "annotations above templates": lambda n: _job([_task(i) for i in range(n)], _noise(n)),
    "alike annotations of templates": lambda n: _job([_task(i, {"volcano.sh/card.nmae": "A"}) for i in range(n)]),
    "a request and templates": lambda n: _job(
        [_task(i, {"volcano.sh/card.name": f"card-{i}|other"}, {"containers": [_container(resources=_limits(1))]})
         for i in range(n)], {"volcano.sh/card.request": _request(n)},
    ),
    "a chain of dependencies": lambda n: _job([*_chain(n), _task(n)]),
    "a cycle of dependencies": lambda n: _job([*_chain(n), _task(n, dependsOn={"name": ["t0"]})]),
    "dense dependencies": lambda n: _job(_dense(n)),
    "dependencies without tasks": lambda n: _job([_task(0, dependsOn={"name": [f"x{i}" for i in range(n)]})]
                                                 + [_task(i) for i in range(1, n)]),
    "tasks without anything": lambda n: _job([{} for _ in range(n)]),
    "tasks of one name": lambda n: _job([_task(0) for _ in range(n)]),
    "policies": lambda n: _job([_task(0)], policies=[{} for _ in range(n)]),
    "events": lambda n: _job([_task(0)], policies=[{"action": "RestartJob", "events": ["PodFailed", "x"] * n}]),
    "exit codes": lambda n: _job([_task(0)], policies=[{"action": "RestartJob", "exitCode": i} for i in range(n)]),
    "volumes": lambda n: _job([_task(0)], volumes=[{"mountPath": "/same"} for _ in range(n)]),
    "plugins": lambda n: _job([_task(0)], plugins={f"plugin-{i}": [] for i in range(n)}),
    "arguments of a plugin": lambda n: _job([_task(i) for i in range(n)], plugins={"mpi": ["--master=x"] * n}),
    "task topology": lambda n: _job(
        [_task(i) for i in range(n)], {"volcano.sh/task-topology-affinity": ";".join(f"t{i},x" for i in range(n))}
    ),
    "containers": lambda n: _job([_task(0, None, {"containers": [_container() for _ in range(n)]})]),
    "environment": lambda n: _job([_task(0, None, {"containers": [
        _container(env=[{"name": f"{i}="} for i in range(n)])]})]),
    "ports": lambda n: _job([_task(0, None, {"containers": [_container(ports=[{} for _ in range(n)])]})]),
    "mounts": lambda n: _job([_task(0, None, {"containers": [
        _container(volumeMounts=[{"name": f"v{i}", "mountPath": f"/{i}"} for i in range(n)])],
        "volumes": [{"name": f"v{i}", "a": {}, "b": {}} for i in range(n)]})]),
    "mounts without volumes": lambda n: _job([_task(0, None, {"containers": [
        _container(volumeMounts=[{"name": f"x{i}", "mountPath": f"/{i}"} for i in range(n)])],
        "volumes": [{"name": f"v{i}", "emptyDir": {}} for i in range(n)]})]),
    "resources": lambda n: _job([_task(0, None, {"containers": [_container(resources=_limits(n))]})]),
    "tolerations": lambda n: _job([_task(0, None, {"tolerations": [{"operator": "x"} for _ in range(n)]})]),
    "selector": lambda n: _job([_task(0, None, {"nodeSelector": {f"-{i}": "?" for i in range(n)}})]),
}  # fmt: skip
_PODS: dict[str, Callable[[int], Json]] = {
    "annotations": lambda n: _pod(_noise(n)),
    "resources": lambda n: _pod(containers=[_container(resources=_limits(n))]),
    "alternatives": lambda n: _pod(
        {"volcano.sh/card.name": _cards(n)}, containers=[_container(resources=_limits(n))]
    ),
    "containers": lambda n: _pod(containers=[_container(resources=_limits(1)) for _ in range(n)]),
    "weights": lambda n: _pod({
        "volcano.sh/resource-strategy-scoring-type": "x",
        "volcano.sh/resource-strategy-weight": ",".join(f'"r{i}": 1' for i in range(n))}),
}  # fmt: skip
_GROUPS: dict[str, Callable[[int], Json]] = {
    "annotations": lambda n: _group(_noise(n)),
    "a request": lambda n: _group({"volcano.sh/card.request": _request(n)}),
    "one key of a request": lambda n: _group({"volcano.sh/card.request": f'{{"{_cards(n)}": 1}}'}),
    "minimums of tasks": lambda n: _group(minTaskMember={f"t{i}": -1 for i in range(n)}),
    "resources": lambda n: _group(minResources=_invented(n)),
}
_QUEUES: dict[str, Callable[[int], Json]] = {
    "annotations": lambda n: _queue(_noise(n)),
    "a quota": lambda n: _queue({"volcano.sh/card.quota": "{" + ",".join(f'"a/{i}": 1' for i in range(n)) + "}"}),
    "a hierarchy": lambda n: _queue({"volcano.sh/hierarchy": "/".join("a" * n), "volcano.sh/hierarchy-weights":
                                     "/".join("x" * n)}),
    "amounts": lambda n: _queue(capability=_invented(n), deserved=dict.fromkeys(_invented(n), "2"),
                                guarantee={"resource": dict.fromkeys(_invented(n), "x")}),
}  # fmt: skip
_NAMESPACE_QUEUES: dict[str, Callable[[int], Json]] = {
    "annotations": lambda n: _namespace_queue(_noise(n)),
    "a parent": lambda n: _namespace_queue(parent="a" * n),
    "amounts": lambda n: _namespace_queue(capability=_invented(n), deserved=dict.fromkeys(_invented(n), "2"),
                                          guarantee={"resource": dict.fromkeys(_invented(n), "x")}),
}  # fmt: skip
_DEPLOYMENTS: dict[str, Callable[[int], Json]] = {
    "annotations": lambda n: _deployment(_noise(n), _noise(n)),
    "resources": lambda n: _deployment(containers=[_container(resources=_limits(n))]),
}

WORST = {
    f"{kind}: {name}": Worst(path, kind, build)
    for kind, path, shapes in (
        ("Job", "/jobs/validate", _JOBS),
        ("Pod", "/pods/validate", _PODS),
        ("PodGroup", "/podgroups/validate", _GROUPS),
        ("Queue", "/queues/validate", _QUEUES),
        ("NamespaceQueue", "/namespacequeues/validate", _NAMESPACE_QUEUES),
        ("Deployment", "/workloads/validate", _DEPLOYMENTS),
    )
    for name, build in shapes.items()
}


def review(obj: Json, *, namespace: str = "n", operation: str = "CREATE", old: Json | None = None) -> Json:
    """The AdmissionReview of an object."""
    request = {"uid": "u", "kind": {"kind": obj["kind"]}, "operation": operation, "namespace": namespace,
               "name": obj["metadata"]["name"], "object": obj, "oldObject": old,
               "userInfo": {"username": f"user-of-{namespace}"}}  # fmt: skip
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
