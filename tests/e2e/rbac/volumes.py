"""Claims that wait for their pod: of a volume that is there, and of one that is made for the pod's node."""

from __future__ import annotations

from typing import Any, Final

from tests.controlplane.cluster import Cluster, Manifest

_MADE: Final = "csi.test"
_SELECTED: Final = "volume.kubernetes.io/selected-node"
LOCAL, DISK = "local", "disk"


def storage_classes() -> list[Manifest]:
    """`LOCAL`: of volumes that are there; `DISK`: of volumes that are made."""
    provisioners = {LOCAL: "kubernetes.io/no-provisioner", DISK: _MADE}
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        for name, provisioner in provisioners.items()
    ]


def claim(name: str, storage_class: str) -> Manifest:
    """A claim of 1 Gi."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": storage_class,
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def volume(name: str, storage_class: str, node: str, **source: Any) -> Manifest:
    """A volume of 1 Gi that one node can use."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "persistentVolumeReclaimPolicy": "Retain",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        **(source or {"hostPath": {"path": f"/disks/{name}"}}),
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def mounting(*claims: str) -> dict[str, Any]:
    """The `volumes` of a pod's spec."""
    return {"volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]}


async def provision(cluster: Cluster, name: str, *, within: float = 20.0) -> None:
    """The provisioner's part: a volume for the node that stands in the claim."""

    async def selected() -> Manifest | None:
        found = await cluster.get("persistentvolumeclaims", name)
        return found if _SELECTED in found["metadata"].get("annotations", {}) else None

    found = await cluster.wait_until(selected, f"a node in claim {name}", within=within)
    assert found is not None
    owner = {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": cluster.namespace,
        "name": name,
        "uid": found["metadata"]["uid"],
    }
    made = f"made-{cluster.namespace}-{name}"
    node = found["metadata"]["annotations"][_SELECTED]
    source = {"csi": {"driver": _MADE, "volumeHandle": made}, "claimRef": owner}
    await cluster.create(volume(made, DISK, node, **source))


async def available(cluster: Cluster, name: str) -> None:
    """Wait until the volume controller has looked at a new volume."""

    async def seen() -> bool:
        found = await cluster.get("persistentvolumes", name)
        return bool(found.get("status", {}).get("phase") == "Available")

    await cluster.wait_until(seen, f"volume {name} to be available", within=20)
