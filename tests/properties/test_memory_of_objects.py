"""Memory and time of the scheduler are linear in the bytes of the objects.

No list or map of one object costs every node; the time is counted in executed lines. What rules read together is a
table; every further list and map that the types of the objects declare is tried by itself.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pytest

from capcard_sched.model import deltas
from capcard_sched.model.kinds import KINDS
from capcard_sched.testing import Harness
from tests.lines import executed_lines
from tests.properties.worst_fields import declared_fields, filled_fields, worst_object

_NODES = 400
#: Entries of each list or map.
_MANY = 1500
#: Nodes, and entries of each list or map, for the cost of a session in executed lines.
_FEW_NODES, _FEW_ENTRIES, _MORE_ENTRIES = 4, 60, 240
#: Bytes of memory per byte of an object, at most, and of what a session needs anyway.
_FACTOR, _SESSION = 60, 6 << 20
Json = dict[str, Any]
_CONTAINER = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
_TERM = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}


def _pod(**spec: Any) -> Json:
    return {"spec": {"schedulerName": "capcard-sched", "containers": [_CONTAINER], **spec}}


def _group(annotations: Json | None = None, **spec: Any) -> Json:
    return {"metadata": {"annotations": annotations or {}}, "spec": {"queue": "q", **spec}}


def worst_objects(many: int) -> dict[str, dict[str, Json]]:
    """Kind to the field to an object with many entries in it."""
    names = [f"worst.example.com/n{index}" for index in range(many)]
    texts = {f"worst.example.com/k{index}": str(index) for index in range(many)}
    amounts = dict.fromkeys(names, "1")
    selector_terms = [{"matchExpressions": [{"key": name, "operator": "Exists"}]} for name in names]
    containers = [{"name": f"c{index}", "resources": {"requests": {names[index]: "1"}}} for index in range(many)]
    limited = [{"name": f"c{index}", "resources": {"limits": {names[index]: "1"}}} for index in range(many)]
    expressions = {"matchExpressions": [{"key": name, "operator": "Exists"} for name in names]}
    ports = [{"containerPort": 1, "hostPort": 1 + index} for index in range(many)]
    claims = [{"name": f"c{index}", "resourceClaimName": f"c{index}"} for index in range(many)]
    groups = [
        {
            "name": name,
            "subGroupSize": 1,
            "minSubGroups": 1,
            "labelSelector": {"matchLabels": {name: "x"}},
            "matchLabelKeys": [name],
        }
        for name in names
    ]
    selectors = [{"cel": {"expression": f"device.driver == 'd{index}'"}} for index in range(many)]
    exactly = {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}
    requests = [{"name": f"r{i}", "exactly": {**exactly, "selectors": [each]}} for i, each in enumerate(selectors)]
    consumers = [{"resource": "pods", "name": name, "uid": name} for name in names]
    members = [{"type": "Node", "selector": {"exactMatch": {"name": name}}} for name in names]
    return {
        "Pod": {
            "labels": {"metadata": {"labels": texts}, **_pod()},
            "annotations": {"metadata": {"annotations": texts}, **_pod()},
            "names of requests": _pod(containers=[{"name": "c", "resources": {"requests": amounts}}]),
            "names of limits": _pod(containers=[{"name": "c", "resources": {"limits": amounts}}]),
            "names of a bound pod": _pod(containers=[{"name": "c", "resources": {"requests": amounts}}], nodeName="n0"),
            "names of a pod on an unknown node": _pod(
                containers=[{"name": "c", "resources": {"requests": amounts}}], nodeName="unknown"
            ),
            "names of overhead": _pod(overhead=amounts),
            "names of the pod": _pod(resources={"requests": amounts}),
            "containers": _pod(containers=containers),
            "initContainers": _pod(
                initContainers=limited
            ),
            "ports": _pod(containers=[{"name": "c", "ports": ports}]),
            "nodeSelector": _pod(nodeSelector=texts),
            "tolerations": _pod(tolerations=[{"key": name, "operator": "Exists"} for name in names]),
            "node affinity": _pod(
                affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": selector_terms}}}
            ),
            "pod affinity": _pod(
                affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_TERM] * many}}
            ),
            "topologySpreadConstraints": _pod(
                topologySpreadConstraints=[
                    {"maxSkew": 1, "topologyKey": name, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
                    for name in names
                ]
            ),
            "volumes": _pod(
                volumes=[{"name": f"v{i}", "persistentVolumeClaim": {"claimName": f"c{i}"}} for i in range(many)]
            ),
            "resourceClaims": _pod(resourceClaims=claims),
            "ownerReferences": {"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name} for name in names]}, **_pod()},
            "schedulingGates": _pod(schedulingGates=[{"name": name} for name in names]),
            "conditions": {**_pod(), "status": {"conditions": [{"type": name, "status": "True"} for name in names]}},
        },
        "PodGroup": {
            "labels": {"metadata": {"labels": texts}, "spec": {"queue": "q"}},
            "annotations": {"metadata": {"annotations": texts}, "spec": {"queue": "q"}},
            "minResources": {"spec": {"queue": "q", "minResources": amounts}},
            "subGroupPolicy": _group(subGroupPolicy=groups),
            "matchLabelKeys": _group(subGroupPolicy=[{"name": "a", "subGroupSize": 1, "matchLabelKeys": names}]),
            "card.request": _group({"volcano.sh/card.request": msgspec.json.encode(dict.fromkeys(names, 1)).decode()}),
            "minTaskMember": {"spec": {"queue": "q", "minTaskMember": dict.fromkeys(names, 1)}},
            "conditions": {"spec": {}, "status": {"conditions": [{"type": name, "status": "True"} for name in names]}},
        },
        "ResourceClaim": {
            "requests": {"spec": {"devices": {"requests": requests}}},
            "constraints": {"spec": {"devices": {"requests": requests[:1], "constraints": [
                {"requests": ["r0"], "matchAttribute": name} for name in names]}}},
            "selectors": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c",
                "selectors": selectors}}]}}},
            "alternatives": {"spec": {"devices": {"requests": [{"name": "r", "firstAvailable": [
                {"name": f"s{index}", "deviceClassName": "c"} for index in range(many)]}]}}},
            "reservedFor": {"spec": {"devices": {"requests": requests[:1]}}, "status": {"reservedFor": consumers}},
        },
        "PodDisruptionBudget": {"selector": {"spec": {"selector": expressions}}},
        "HyperNode": {"members": {"spec": {"tier": 1, "members": members}}},
        "Queue": {
            "labels": {"metadata": {"labels": texts}, "spec": {}},
            "annotations": {"metadata": {"annotations": texts}, "spec": {}},
            "capability": {"spec": {"capability": amounts}},
            "deserved": {"spec": {"deserved": amounts}},
            "guarantee": {"spec": {"guarantee": {"resource": amounts}}},
            "status.allocated": {"spec": {}, "status": {"allocated": amounts}},
        },
        "Node": {
            "labels": {"metadata": {"labels": texts}},
            "annotations": {"metadata": {"annotations": texts}},
            "allocatable": {"status": {"allocatable": amounts}},
            "capacity": {"status": {"capacity": amounts}},
            "taints": {"spec": {"taints": [{"key": name, "effect": "NoSchedule"} for name in names]}},
            "images": {"status": {"images": [{"names": [name], "sizeBytes": 1} for name in names]}},
            "conditions": {"status": {"conditions": [{"type": name, "status": "True"} for name in names]}},
        },
    }  # fmt: skip


_TYPES = {one.name: one.watch.type for one in KINDS if one.watch is not None}
#: Kinds whose every list and map is tried: tenants and nodes write them.
_KINDS = (
    *("Pod", "PodGroup", "Queue", "NamespaceQueue", "Node", "ResourceClaim"),
    *("PodDisruptionBudget", "PersistentVolumeClaim", "ResourceQuota", "ConfigMap"),
)
#: Metadata is read alike of all kinds.
_METADATA = ("metadata.annotations{}", "metadata.labels{}", "metadata.ownerReferences[]")


_table = cache(worst_objects)


def _worst(kind: str, field: str, many: int) -> Json:
    """An object with many entries in a field: of the table, or a list or map of the type by its path."""
    found = _table(many).get(kind, {}).get(field)
    return worst_object(_TYPES[kind], field, many) if found is None else found


def _cases() -> Iterator[tuple[str, str]]:
    """The table, and the lists and maps that it leaves out."""
    table = _table(_FEW_ENTRIES)
    for kind in dict.fromkeys((*table, *_KINDS)):
        rows = table.get(kind, {})
        yield from ((kind, field) for field in rows)
        if kind in _KINDS:
            declared = declared_fields(_TYPES[kind])
            filled = {path for obj in rows.values() for path in filled_fields(obj, {*declared}, _FEW_ENTRIES)}
            known = filled if kind == "Pod" else filled.union(_METADATA)
            yield from ((kind, path) for path in declared if path not in known)


_CASES = [*_cases()]


def _cluster(nodes: int) -> Harness:
    """Nodes, a queue and a gang with a pod that was placed."""
    h = Harness()
    h.queue("q")
    h.group("g", queue="q")
    for index in range(nodes):
        h.node(f"n{index}", cpu="8")
    h.pod("ordinary", group="g", requests={"cpu": "1"})
    h.step()
    return h


def _change(kind: str, obj: Json) -> tuple[deltas.ObjectChanged, int]:
    """The object with its metadata as a change, and its bytes; a pod is of the gang."""
    body = {**obj, "metadata": {"name": "worst", "namespace": "default", "uid": "worst", **obj.get("metadata", {})}}
    if kind == "Pod":
        body["spec"] = {"schedulerName": "capcard-sched", "containers": [_CONTAINER], **body.get("spec", {})}
        annotations = {**body["metadata"].get("annotations", {}), "scheduling.k8s.io/group-name": "g"}
        body["metadata"]["annotations"] = annotations
    return deltas.ObjectChanged(msgspec.convert(body, _TYPES[kind])), len(msgspec.json.encode(body))


@pytest.mark.parametrize("kind, field", _CASES, ids=[f"{kind} {field}" for kind, field in _CASES])
def test_time_is_linear_in_the_entries_of_an_object(kind: str, field: str) -> None:
    def cost(entries: int) -> int:
        h = _cluster(_FEW_NODES)
        change, _ = _change(kind, _worst(kind, field, entries))
        h.apply(change)
        h.pod("next", group="g", requests={"cpu": "1"})

        def work() -> None:
            h.apply(change)
            h.step()
            h.step()

        return executed_lines(work)

    few, more = cost(_FEW_ENTRIES), cost(_MORE_ENTRIES)
    assert more < 5 * few, (few, more)


@pytest.mark.parametrize("kind, field", _CASES, ids=[f"{kind} {field}" for kind, field in _CASES])
def test_memory_is_linear_in_the_bytes_of_an_object(kind: str, field: str) -> None:
    h = _cluster(_NODES)
    change, size = _change(kind, _worst(kind, field, _MANY))
    gc.collect()
    tracemalloc.start()
    try:
        h.apply(change)
        h.step()
        h.step()
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= _FACTOR * size + _SESSION, f"{peak:,} bytes for {size:,}"
    assert kept <= _FACTOR * size + _SESSION, f"{kept:,} bytes for {size:,}"
