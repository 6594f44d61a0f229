"""The memory of the scheduler is linear in the bytes of the objects: no list or map of one object costs every node."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from capcard_sched.model import deltas
from capcard_sched.model.kinds import KINDS
from capcard_sched.testing import Harness

_NODES = 400
#: Entries of each list or map.
_MANY = 1500
#: Bytes of memory per byte of an object, at most, and of what a session needs anyway.
_FACTOR, _SESSION = 60, 6 << 20
_NAMES = [f"worst.example.com/n{index}" for index in range(_MANY)]
_TEXTS = {f"worst.example.com/k{index}": str(index) for index in range(_MANY)}
_AMOUNTS = dict.fromkeys(_NAMES, "1")
_CONTAINER = {"name": "c", "resources": {"requests": {"cpu": "1"}}}


def _pod(**spec: Any) -> dict[str, Any]:
    return {"spec": {"schedulerName": "capcard-sched", "containers": [_CONTAINER], **spec}}


def _containers(make: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": f"c{index}", **make(index)} for index in range(_MANY)]


_SELECTOR = {"matchExpressions": [{"key": name, "operator": "Exists"} for name in _NAMES]}
_PORTS = [{"containerPort": 1, "hostPort": 1 + index} for index in range(_MANY)]
_TERM = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
#: Kind to the field to an object with many entries in it.
_WORST: dict[str, dict[str, dict[str, Any]]] = {
    "Pod": {
        "labels": {"metadata": {"labels": _TEXTS}, **_pod()},
        "annotations": {"metadata": {"annotations": _TEXTS}, **_pod()},
        "names of requests": _pod(containers=[{"name": "c", "resources": {"requests": _AMOUNTS}}]),
        "names of limits": _pod(containers=[{"name": "c", "resources": {"limits": _AMOUNTS}}]),
        "names of a bound pod": _pod(containers=[{"name": "c", "resources": {"requests": _AMOUNTS}}], nodeName="n0"),
        "names of a pod on an unknown node": _pod(
            containers=[{"name": "c", "resources": {"requests": _AMOUNTS}}], nodeName="unknown"
        ),
        "names of overhead": _pod(overhead=_AMOUNTS),
        "names of the pod": _pod(resources={"requests": _AMOUNTS}),
        "containers": _pod(containers=_containers(lambda index: {"resources": {"requests": {_NAMES[index]: "1"}}})),
        "initContainers": _pod(
            initContainers=_containers(lambda index: {"resources": {"limits": {_NAMES[index]: "1"}}})
        ),
        "ports": _pod(containers=[{"name": "c", "ports": _PORTS}]),
        "nodeSelector": _pod(nodeSelector=_TEXTS),
        "tolerations": _pod(tolerations=[{"key": name, "operator": "Exists"} for name in _NAMES]),
        "node affinity": _pod(
            affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": name, "operator": "Exists"}]} for name in _NAMES]}}}
        ),
        "pod affinity": _pod(
            affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_TERM] * _MANY}}
        ),
        "topologySpreadConstraints": _pod(
            topologySpreadConstraints=[
                {"maxSkew": 1, "topologyKey": name, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
                for name in _NAMES
            ]
        ),
        "volumes": _pod(
            volumes=[{"name": f"v{i}", "persistentVolumeClaim": {"claimName": f"c{i}"}} for i in range(_MANY)]
        ),
        "schedulingGates": _pod(schedulingGates=[{"name": name} for name in _NAMES]),
        "conditions": {**_pod(), "status": {"conditions": [{"type": name, "status": "True"} for name in _NAMES]}},
    },
    "PodGroup": {
        "labels": {"metadata": {"labels": _TEXTS}, "spec": {"queue": "q"}},
        "annotations": {"metadata": {"annotations": _TEXTS}, "spec": {"queue": "q"}},
        "minResources": {"spec": {"queue": "q", "minResources": _AMOUNTS}},
        "minTaskMember": {"spec": {"queue": "q", "minTaskMember": dict.fromkeys(_NAMES, 1)}},
        "conditions": {"spec": {}, "status": {"conditions": [{"type": name, "status": "True"} for name in _NAMES]}},
    },
    "Queue": {
        "labels": {"metadata": {"labels": _TEXTS}, "spec": {}},
        "annotations": {"metadata": {"annotations": _TEXTS}, "spec": {}},
        "capability": {"spec": {"capability": _AMOUNTS}},
        "deserved": {"spec": {"deserved": _AMOUNTS}},
        "guarantee": {"spec": {"guarantee": {"resource": _AMOUNTS}}},
        "status.allocated": {"spec": {}, "status": {"allocated": _AMOUNTS}},
    },
    "Node": {
        "labels": {"metadata": {"labels": _TEXTS}},
        "annotations": {"metadata": {"annotations": _TEXTS}},
        "allocatable": {"status": {"allocatable": _AMOUNTS}},
        "capacity": {"status": {"capacity": _AMOUNTS}},
        "taints": {"spec": {"taints": [{"key": name, "effect": "NoSchedule"} for name in _NAMES]}},
        "images": {"status": {"images": [{"names": [name], "sizeBytes": 1} for name in _NAMES]}},
        "conditions": {"status": {"conditions": [{"type": name, "status": "True"} for name in _NAMES]}},
    },
}  # fmt: skip
_CASES = [(kind, field) for kind, fields in _WORST.items() for field in fields]


@pytest.mark.parametrize("kind, field", _CASES, ids=[f"{kind} {field}" for kind, field in _CASES])
def test_memory_is_linear_in_the_bytes_of_an_object(kind: str, field: str) -> None:
    h = Harness()
    h.queue("q")
    h.group("g", queue="q")
    for index in range(_NODES):
        h.node(f"n{index}", cpu="8")
    h.pod("ordinary", group="g", requests={"cpu": "1"})
    h.step()
    body = {**_WORST[kind][field]}
    body["metadata"] = {"name": "worst", "namespace": "default", "uid": "worst", **body.get("metadata", {})}
    if kind == "Pod":
        body["metadata"].setdefault("annotations", {})
        body["metadata"]["annotations"] = {**body["metadata"]["annotations"], "scheduling.k8s.io/group-name": "g"}
    [watch] = [one.watch for one in KINDS if one.name == kind and one.watch is not None]
    size = len(msgspec.json.encode(body))
    gc.collect()
    tracemalloc.start()
    try:
        h.apply(deltas.ObjectChanged(msgspec.convert(body, watch.type)))
        h.step()
        h.step()
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= _FACTOR * size + _SESSION, f"{peak:,} bytes for {size:,}"
    assert kept <= _FACTOR * size + _SESSION, f"{kept:,} bytes for {size:,}"
