"""Objects of the scenes with ResourceClaims: nodes with slices, and pods with a generated claim each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from benchmarks.workloads import make_queue, timestamp
from capcard_sched.model.deltas import Delta, ObjectChanged
from capcard_sched.model.device_objects import DeviceClassObject, ResourceClaimObject, ResourceSliceObject
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.model.intents import Bind

#: Scene to members of a gang.
CLAIMED: Final = {"D1": 50, "D2": 8, "D3": 50}
#: Pods per node. D1 at 5,000 nodes: 20,000.
PODS_PER_NODE: Final = 4
#: Devices of a node in D1 and D2, GPUs of a node in D3, and the partitions of each.
_DEVICES, _GPUS, _PARTITIONS = 8, 3, 7
_DRIVER: Final = "gpu.nvidia.com"
#: The model of a node, by its number.
_MODELS: Final = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100 SXM4 80GB")
#: Of the templates of D1: model, devices, and NUMA node or None for any.
_TEMPLATES: Final = (
    (_MODELS[0], 1, None),
    (_MODELS[1], 1, None),
    (_MODELS[2], 1, None),
    (_MODELS[0], 2, None),
    (_MODELS[2], 2, None),
    (_MODELS[1], 1, 1),
)
_Document = dict[str, Any]


def present(scene: str, nodes: int) -> Iterator[Delta]:
    """The queue, DeviceClasses, nodes and ResourceSlices of a scene."""
    quota = {"-".join(name.split()): nodes * _DEVICES for name in _MODELS}
    quota["NVIDIA-H200/mig-1g.18gb-mixed"] = nodes * _GPUS * _PARTITIONS
    yield ObjectChanged(make_queue("q", quota))
    for kind in ("gpu", "mig"):
        expression = f'device.driver == "{_DRIVER}" && device.attributes["{_DRIVER}"].type == "{kind}"'
        document = {"metadata": {"name": kind}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        yield ObjectChanged(msgspec.convert(document, DeviceClassObject))
    amounts = {"cpu": "192", "memory": "2Ti", "pods": "110"}
    for number in range(nodes):
        name = f"node-{number:05d}"
        node = {"metadata": {"name": name}, "status": {"allocatable": amounts, "capacity": amounts}}
        yield ObjectChanged(msgspec.convert(node, NodeObject))
        for document in node_slices(scene, name, number):
            yield ObjectChanged(msgspec.convert(document, ResourceSliceObject))


def node_slices(scene: str, node: str, number: int) -> Iterator[_Document]:
    """The slices of a node: whole devices, or GPUs and their partitions with one counter set per GPU."""
    if scene != "D3":
        model = _MODELS[number % len(_MODELS)]
        devices = [_device(f"gpu-{index}", model, numa=index // (_DEVICES // 2)) for index in range(_DEVICES)]
        yield _slice(node, "gpus", {"devices": _with_uuids(node, devices)}, 1)
        return
    sets = [{"name": f"gpu-{gpu}", "counters": {"memory": {"value": "126Gi"}}} for gpu in range(_GPUS)]
    yield _slice(node, "counters", {"sharedCounters": sets}, 2)
    devices = []
    for gpu in range(_GPUS):
        for part in range(_PARTITIONS):
            devices.append(_device(f"gpu-{gpu}-mig-{part}", _MODELS[0], uses=(f"gpu-{gpu}", "18Gi")))
        devices.append(_device(f"gpu-{gpu}", _MODELS[0], uses=(f"gpu-{gpu}", "126Gi")))
    yield _slice(node, "gpus", {"devices": _with_uuids(node, devices)}, 2)


def _device(name: str, model: str, *, numa: int = 0, uses: tuple[str, str] | None = None) -> _Document:
    is_part = "-mig-" in name
    attributes: _Document = {"type": {"string": "mig" if is_part else "gpu"}, "productName": {"string": model}}
    attributes |= {"profile": {"string": "1g.18gb"}} if is_part else {"numa": {"int": numa}}
    found: _Document = {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}
    if uses is not None:
        found["consumesCounters"] = [{"counterSet": uses[0], "counters": {"memory": {"value": uses[1]}}}]
    return found


def _with_uuids(node: str, devices: list[_Document]) -> list[_Document]:
    """Devices with an attribute of their own, which drivers publish and no claim reads."""
    for each in devices:
        each["attributes"]["uuid"] = {"string": f"GPU-{node}-{each['name']}"}
    return devices


def _slice(node: str, name: str, spec: _Document, count: int) -> _Document:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    return {
        "metadata": {"name": f"{node}-{name}", "uid": f"slice-{node}-{name}"},
        "spec": {"driver": _DRIVER, "nodeName": node, "pool": pool, **spec},
    }


def claim_spec(scene: str, template: int) -> _Document:
    """The spec of the claims of a template."""
    if scene == "D3":
        request: _Document = {"deviceClassName": "gpu" if template == 0 else "mig"}
        return {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
    model, count, numa = _TEMPLATES[template]
    expression = f'device.attributes["{_DRIVER}"].productName == "{model}"'
    here = f' && device.attributes["{_DRIVER}"].numa == '
    selected = expression if numa is None else f"{expression}{here}{numa}"
    request = {"deviceClassName": "gpu", "count": count, "selectors": [{"cel": {"expression": selected}}]}
    if scene == "D1":
        return {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
    near = {**request, "name": "near", "selectors": [{"cel": {"expression": f"{expression}{here}1"}}]}
    any_selectors = [{"cel": {"expression": expression}}]
    alternatives = [near, {**request, "name": "any", "selectors": any_selectors}]
    return {"devices": {"requests": [{"name": "gpu", "firstAvailable": alternatives}]}}


def arriving(scene: str, pods: int, first: int = 0, *, alone: bool = False) -> Iterator[Delta]:
    """A number of pods in groups, each with its claim: templates take turns, gang by gang. `alone`: groups of one."""
    size = CLAIMED[scene]
    for number in range(first, first + pods):
        group = number // size
        name, template = f"job-{group:06d}", group % len(_TEMPLATES)
        meta = {"namespace": "default", "creationTimestamp": timestamp(group // 50)}
        if number % size == 0 or alone:
            document = {
                "metadata": {**meta, "name": name, "uid": f"group-uid-{group}"},
                "spec": {"minMember": 1 if alone else size, "queue": "q"},
                "status": {"phase": "Inqueue"},
            }
            yield ObjectChanged(msgspec.convert(document, PodGroupObject))
        yield ObjectChanged(_claim(scene, number, template, f"{name}-w-{number % size}"))
        yield ObjectChanged(_pod(number, template, name, f"{name}-w-{number % size}", meta))


def _claim(scene: str, number: int, template: int, pod: str) -> ResourceClaimObject:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"pod-uid-{number}", "controller": True}
    meta = {"namespace": "default", "name": f"{pod}-gpu-x", "uid": f"claim-uid-{number}", "ownerReferences": [owner]}
    return msgspec.convert({"metadata": meta, "spec": claim_spec(scene, template)}, ResourceClaimObject)


def _pod(number: int, template: int, group: str, name: str, meta: _Document) -> PodObject:
    notes = {"scheduling.k8s.io/group-name": group}
    document = {
        "metadata": {**meta, "name": name, "uid": f"pod-uid-{number}", "annotations": notes},
        "spec": {
            "schedulerName": "capcard-sched",
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": f"template-{template}"}],
            "containers": [{"name": "main", "resources": {"requests": {"cpu": 4, "memory": "16Gi"}}}],
        },
        "status": {
            "phase": "Pending",
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"{name}-gpu-x"}],
        },
    }
    return msgspec.convert(document, PodObject)


def written(claim: ResourceClaimObject, bind: Bind) -> ResourceClaimObject:
    """A claim as the API shows it once the pod of the binding has it."""
    assert bind.claims
    consumer = {"resource": "pods", "name": bind.name, "uid": bind.uid}
    status = {"allocation": msgspec.to_builtins(bind.claims[0].allocation), "reservedFor": [consumer]}
    return msgspec.structs.replace(claim, status=msgspec.convert(status, type(claim.status)))
