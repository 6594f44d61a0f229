"""Objects that are gone leave nothing behind, whatever their names: of labels, resources, claims, queues."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec
import pytest

from capcard_sched.devices import claims, inventory, pool_changes
from capcard_sched.framework import core
from capcard_sched.framework.placement import signature_cache
from capcard_sched.framework.session import node_places
from capcard_sched.framework.toolkit import node_index, pod_selectors, topology_counts
from capcard_sched.model import deltas
from capcard_sched.model.autoscaling import AutoscalingOptions
from capcard_sched.model.intents import RequestCapacity
from capcard_sched.model.kinds import KINDS
from capcard_sched.plugins.capacity_card import cards, ledger
from capcard_sched.plugins.predicates import empty_nodes
from capcard_sched.state import classes, cluster, jobs, provisioning
from capcard_sched.testing import Harness
from tests.reachable import sizes

Json = dict[str, Any]
#: Entries of objects that are gone, and bytes of them, which caches keep; sessions after which others end.
SPARES: Final = {
    "entries": (
        *((module, "_SPARE") for module in (claims, classes, cluster, jobs, provisioning)),
        *((module, "MAX_CLASSES") for module in (pod_selectors, topology_counts)),
        *((node_places, name) for name in ("_MOST_CLASSES", "_MOST_LIMITED")),
        (classes, "_MOST_SPECS"),
        (empty_nodes, "_MOST_CONTENTS"),
        (inventory, "_SPARE"),
        (pool_changes, "_MOST"),
        (node_index, "_MAX_ENTRIES"),
        (cards, "_SPARE"),
        (ledger, "_SPARE"),
    ),
    "bytes": (
        *((module, "_SPARE_BYTES") for module in (claims, cluster)),
        (classes, "_SPARE"),
        (pool_changes, "_MOST"),
    ),
    "sessions": (
        (core, "_PRUNE_SESSIONS"),
        (topology_counts, "_UNUSED_SESSIONS"),
        (signature_cache, "_STATIC_SESSIONS"),
    ),
}
_CONF: Final = """
actions: "enqueue, allocate, backfill, preempt, reclaim"
tiers:
- plugins:
  - name: priority
  - {name: gang, enableReclaimable: false}
  - {name: conformance, enableReclaimable: false}
  - name: pdb
  - name: sla
  - name: group-topology-affinity
- plugins:
  - name: predicates
  - name: deviceshare
  - {name: capacity-card, arguments: {unnamedCards: infer, cardUnlimitedCpuMemory: true}}
  - name: resourcequota
  - name: fairshare
  - name: nodegroup
  - name: task-topology
  - name: network-topology-aware
  - name: numa-aware
  - name: nodeorder
  - name: binpack
"""
#: Objects of each kind in the first churn and in the second, and those that exist at a time.
_FEW, _MANY, _AT_ONCE = 20, 200, 20
#: Sessions, and seconds between them, after which what is kept of earlier ones has expired.
_SESSIONS, _SECONDS = 20, 1000.0


def _names(index: int) -> Json:
    return {f"example.com/k{index}": f"v{index}"}


def _meta(index: int, **more: Any) -> Json:
    return {"name": f"o{index}", "uid": f"u{index}", "namespace": f"ns{index}", "labels": _names(index),
            "annotations": _names(index), **more}  # fmt: skip


def _pod(index: int, spec: Json | None = None, annotations: Json | None = None, **meta: Any) -> Json:
    own = {"metadata": _meta(index, **meta), "spec": {"schedulerName": "capcard-sched", "containers": [
        {"name": "c", "resources": {"requests": {"cpu": "1"}}}], **(spec or {})}}  # fmt: skip
    own["metadata"]["annotations"] |= annotations or {}
    return own


def _requesting(index: int, name: str, **spec: Any) -> Json:
    resources = {"requests": {name: "1"}, "limits": {name: "1"}}
    return _pod(index, {"containers": [{"name": "c", "resources": resources}], **spec})


def _pods(index: int) -> list[Json]:
    """Pods of one name: each replaces the one before it."""
    selector = {"topologyKey": f"example.com/t{index}", "labelSelector": {"matchLabels": _names(index)},
                "namespaceSelector": {"matchLabels": _names(index)}}  # fmt: skip
    return [
        _requesting(index, f"example.com/r{index}"),
        _requesting(index, f"deviceclass.resource.kubernetes.io/c{index}"),
        _requesting(index, f"example.com/r{index}", nodeName="n1"),
        _requesting(index, "cpu", nodeName=f"missing{index}"),
        _pod(index, annotations={"scheduling.k8s.io/group-name": f"g{index}"}),
        _pod(index, annotations={"scheduling.volcano.sh/queue-name": f"q{index}"}),
        _pod(index, annotations={"volcano.sh/card.name": f"card{index}"}),
        _pod(index, {"nodeName": "n1"}, {"capcard-sched.io/queue": f"q{index}"}),
        _pod(index, {"schedulingGroup": {"podGroupName": f"g{index}"}}),
        _pod(index, {"priorityClassName": f"p{index}", "nodeSelector": _names(index)}),
        _pod(index, {"tolerations": [{"key": f"k{index}", "operator": "Exists"}]}),
        _pod(index, {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [selector]}}}),
        _pod(index, {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": selector}]}}}),
        _pod(index, {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": f"k{index}",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": _names(index)}}]}),
        _pod(index, {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": f"c{index}"}}]}),
        _pod(index, {"resourceClaims": [{"name": "c", "resourceClaimName": f"c{index}"}]}),
        _pod(index, {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": f"c{index}"}]}),
        _pod(index, {"schedulingGates": [{"name": f"example.com/g{index}"}]}),
        _pod(index, ownerReferences=[{"apiVersion": "apps/v1", "kind": f"K{index}", "name": f"w{index}",
                                      "uid": f"w{index}", "controller": True}]),
        _pod(index, {"schedulerName": "other", "nodeName": "n1"}),
    ]  # fmt: skip


def _group(index: int, annotations: Json | None = None, **spec: Any) -> Json:
    own = {"metadata": _meta(index), "spec": {"queue": "q", "minMember": 1, **spec}}
    own["metadata"]["annotations"] |= annotations or {}
    return own


def _groups(index: int) -> list[Json]:
    return [
        _group(index, minResources={f"example.com/r{index}": "1", "cpu": "1"}),
        _group(index, minResources={f"deviceclass.resource.kubernetes.io/c{index}": "1"}),
        _group(index, queue=f"q{index}"),
        _group(index, queue=f"namespace/q{index}"),
        _group(index, priorityClassName=f"p{index}", minTaskMember={f"t{index}": 1}),
        _group(index, {"volcano.sh/card.request": f'{{"card{index}": 1}}'}),
        _group(index, {f"volcano.sh/card.{index}": "x", "volcano.sh/card.request": f"{{{index}"}),
        _group(index, subGroupPolicy=[{"name": f"s{index}", "subGroupSize": 1, "matchLabelKeys": [f"k{index}"]}]),
        _group(index, networkTopology={"mode": "hard", "highestTierName": f"tier{index}"}),
        _group(index, topologyAffinity={"podGroupAntiAffinity": {"required": [
            {"topologyTier": 1, "podGroupSelector": {"matchLabels": _names(index)}}]}}),
    ]  # fmt: skip


def _claim(index: int, status: Json | None = None) -> Json:
    expression = f"device.driver == 'd{index}'"
    exactly = {"deviceClassName": f"c{index}", "selectors": [{"cel": {"expression": expression}}]}
    requests = [{"name": f"r{index}", "exactly": exactly}]
    return {"metadata": _meta(index), "spec": {"devices": {"requests": requests}}, "status": status or {}}


def _claims(index: int) -> list[Json]:
    consumer = {"resource": "pods", "name": f"p{index}", "uid": f"p{index}"}
    result = {"request": f"r{index}", "driver": "d", "pool": "p", "device": "g"}
    return [
        _claim(index),
        _claim(index, {"reservedFor": [consumer], "allocation": {"devices": {"results": [result]}}}),
        _claim(index, {"allocation": {"devices": {"results": [result | {"pool": f"p{index}"}]}}}),
    ]


def _slices(index: int) -> list[Json]:
    """Slices of a node that stays, of one that does not exist, and of all nodes: pools of one name each."""
    spec = {
        "driver": "d",
        "pool": {"name": f"p{index}", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"g{index}", "attributes": {f"a{index}": {"string": f"v{index}"}}}],
    }
    places: list[Json] = [{"nodeName": "n1"}, {"nodeName": f"missing{index}"}, {"allNodes": True}]
    return [{"metadata": _meta(index, namespace=""), "spec": {**spec, **place}} for place in places]


def _queue(index: int, **spec: Any) -> Json:
    amounts = {f"example.com/r{index}": "1"}
    return {"metadata": _meta(index), "spec": {
        "capability": amounts, "deserved": amounts, "guarantee": {"resource": amounts}, **spec}}  # fmt: skip


def _members(index: int) -> list[Json]:
    """Pods of a gang that waits."""
    gang, own = {"scheduling.k8s.io/group-name": "gang"}, {"namespace": "default"}
    return [
        _pod(index, {"nodeSelector": _names(index)}, gang, **own),
        _pod(index, {"containers": [{"name": "c", "resources": {"requests": {"cpu": f"{index + 1}m"}}}]}, gang, **own),
        _pod(index, {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": f"c{index}"}}]}, gang, **own),
        _pod(index, {"containers": [{"name": "c", "ports": [{"hostPort": index + 1}]}]}, gang, **own),
        _pod(index, {"resourceClaims": [{"name": "c", "resourceClaimName": f"c{index}"}]}, gang, **own),
    ]  # fmt: skip


def _requests(index: int) -> list[Json]:
    """ProvisioningRequests of a PodGroup that exists, of one that does not, and of none."""
    owner = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "name": f"g{index}",
             "uid": f"g{index}", "controller": True}  # fmt: skip
    failed = {"conditions": [{"type": "Failed", "status": "True", "message": f"m{index}"}]}
    return [
        {"metadata": _meta(index, namespace="default", ownerReferences=refs), "spec": {}, "status": failed}
        for refs in ([owner | {"name": "gang", "uid": "gang"}], [owner], [])
    ]


#: What tenants create, and drivers of nodes that come and go: kind to the objects of one name, one after the other.
CHURN: Final[dict[str, Callable[[int], list[Json]]]] = {
    "Pod": _pods,
    "PodGroup": _groups,
    "NamespaceQueue": lambda index: [
        _queue(index), _queue(index, parent="cluster/q"), _queue(index, parent=f"p{index}")],
    "ResourceClaim": _claims,
    "ResourceClaimTemplate": lambda index: [{"metadata": _meta(index), "spec": {"spec": _claim(index)["spec"]}}],
    "PersistentVolumeClaim": lambda index: [{"metadata": _meta(index), "spec": {
        "storageClassName": f"s{index}", "volumeName": f"v{index}", "accessModes": ["ReadWriteOnce"]}}],
    "PodDisruptionBudget": lambda index: [{"metadata": _meta(index), "spec": {
        "minAvailable": 1, "selector": {"matchLabels": _names(index)}}}],
    "ResourceQuota": lambda index: [{"metadata": _meta(index), "spec": {
        "hard": {f"requests.example.com/r{index}": "1"}}}],
    "ProvisioningRequest": _requests,
    "ConfigMap": lambda index: [{"metadata": _meta(index), "data": _names(index)}],
    "Namespace": lambda index: [{"metadata": {**_meta(index), "namespace": "", "name": f"ns{index}"}}],
    "ResourceSlice": _slices,
}  # fmt: skip
_PROVISIONING: Final = "check-capacity.autoscaling.x-k8s.io"
TYPES: Final = {one.name: one.watch.type for one in KINDS if one.watch is not None}


#: The objects of one number, one after the other.
_Made = Callable[[int], list[Json]]


class Churn:
    """Objects of one kind that come and go, beside a cluster that stays."""

    def __init__(self, kind: str, made: _Made) -> None:
        self.h = h = Harness(_CONF, autoscaling=AutoscalingOptions(provisioning_class=_PROVISIONING))
        self._kind, self._made = kind, made
        for name in ("n1", "n2"):
            h.gpu_node(name, card="A", count=8)
        h.queue("q", cards={"A": 9}, capability={"cpu": "100", "memory": "100Gi"}, allowed=["*"])
        h.apply(self._changed("DeviceClass", {"metadata": {"name": "c"}, "spec": {}}))
        h.group("g", queue="q")
        h.pod("p", group="g", requests={"cpu": "1"})
        h.group("waiting", queue="q")
        h.pod("waits", group="waiting", requests={"cpu": "1000"})
        h.group("gang", queue="q", min_member=1000)
        h.step()

    @staticmethod
    def _changed(kind: str, obj: Json) -> deltas.ObjectChanged:
        return deltas.ObjectChanged(msgspec.convert(obj, TYPES[kind]))

    def run(self, first: int, count: int) -> None:
        """Objects with the numbers from `first` on."""
        for begin in range(first, first + count, _AT_ONCE):
            made = [self._made(index) for index in range(begin, begin + _AT_ONCE)]
            for stage in zip(*made, strict=True):
                for obj in stage:
                    self.h.apply(self._changed(self._kind, obj))
                self.h.step()
            for each in made:
                namespace = each[0]["metadata"]["namespace"]
                self.h.apply(deltas.ObjectGone(self._kind, namespace, each[0]["metadata"]["name"]))
            self.h.step()
        for _ in range(_SESSIONS):  # records of events and refusals expire
            self.h.pod("spare", group="g", labels={"at": str(self.h.now)})
            self.h.step(self.h.now + _SECONDS)
        gc.collect()


def _cases() -> Iterator[Any]:
    """All objects of a kind one after the other, and each alone: a change by one may clear what another left."""
    for bound, kinds in (("entries", (*CHURN,)), ("bytes", ("Pod", "ResourceClaim"))):
        for kind in kinds:
            yield pytest.param(kind, CHURN[kind], bound, id=f"{kind}-{bound}")
    for kind, made in (*CHURN.items(), ("Pod", _members)):
        count = len(made(0))
        for place in range(count) if count > 1 else ():
            single = partial(_single, made, place)
            yield pytest.param(kind, single, "entries", id=f"{made.__name__.lstrip('_')}-{kind}-{place}")


def _single(made: _Made, place: int, index: int) -> list[Json]:
    return [made(index)[place]]


@pytest.mark.parametrize(("kind", "made", "bound"), [*_cases()])
def test_objects_that_are_gone_leave_nothing(
    kind: str, made: _Made, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds of caches are as small as possible here: of their entries, or of the bytes of their entries."""
    for module, name in (*SPARES[bound], *SPARES["sessions"]):
        monkeypatch.setattr(module, name, 8)
    churn = Churn(kind, made)
    churn.run(0, _FEW)
    before = sizes(churn.h.core)
    churn.run(_FEW, _MANY)
    after = sizes(churn.h.core)
    grown = [f"{path}: {before[path]} to {size}" for path, size in after.items() if size > 2 * before[path] + 32]
    assert not grown, "\n".join(grown)


def test_gangs_whose_requests_were_refused_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota of PodTemplates refuses each ProvisioningRequest of a namespace."""
    for module, name in (*SPARES["entries"], *SPARES["sessions"]):
        monkeypatch.setattr(module, name, 8)
    refused = 0

    def churn(first: int, count: int) -> None:
        nonlocal refused
        for index in range(first, first + count):
            h.group(f"g{index}", queue="q", namespace=f"ns{index}", min_member=2)
            for each in "ab":
                h.pod(f"{each}{index}", group=f"g{index}", namespace=f"ns{index}", card="A", cards=8)
            asked = [one for _ in range(3) for one in h.step().intents if isinstance(one, RequestCapacity)]
            for one in asked:
                h.apply(deltas.CapacityRequestRefused(one.namespace, one.name, one.group, f"exceeded quota {index}"))
            refused += len(asked)
            h.step()
            for each in "ab":
                h.apply(deltas.ObjectGone("Pod", f"ns{index}", f"{each}{index}"))
            h.apply(deltas.ObjectGone("PodGroup", f"ns{index}", f"g{index}"))
            h.step()
        for _ in range(_SESSIONS):
            h.pod("spare", group="g", labels={"at": str(h.now)})
            h.step(h.now + _SECONDS)
        gc.collect()

    h = Churn("PodGroup", _groups).h
    h.queue("q", cards={"A": 64}, allowed=["*"])
    churn(0, _FEW)
    before = sizes(h.core)
    churn(_FEW, _MANY)
    assert refused >= _FEW + _MANY
    grown = [
        f"{path}: {before[path]} to {size}" for path, size in sizes(h.core).items() if size > 2 * before[path] + 32
    ]
    assert not grown, "\n".join(grown)
