"""The stand-ins for the volume controller and the provisioners, one rule at a time, without a scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.simulation.cluster import SimulatedCluster
from capcard_sched.simulation.workloads.volumes import give_volume, volume_refusal

CLUSTER_SCOPED = ("Node", "PersistentVolume", "StorageClass")


class Workbench:
    """A settled cluster with a node in a zone."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(("ours",), "default")
        self.store = self.cluster.store
        self.create("Node", "n1", metadata={"labels": {"topology.kubernetes.io/zone": "a"}})
        self.create("StorageClass", "waits", provisioner="x", volumeBindingMode="WaitForFirstConsumer")
        self.create("StorageClass", "now", provisioner="x")
        self.create("StorageClass", "hand", provisioner="kubernetes.io/no-provisioner")

    def create(self, kind: str, name: str, **fields: Any) -> None:
        api = "storage.k8s.io/v1" if kind == "StorageClass" else "v1"
        metadata = {"name": name, **fields.pop("metadata", {})}
        self.store.create(kind, {"apiVersion": api, "kind": kind, "metadata": metadata, **fields})
        self.cluster.settle()

    def claim(self, name: str, storage_class: str | None, **spec: Any) -> None:
        body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
        if storage_class is not None:
            body["storageClassName"] = storage_class
        self.create("PersistentVolumeClaim", name, spec=body)

    def volume(self, name: str, storage_class: str, size: str = "1Gi", **spec: Any) -> None:
        body = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
        self.create("PersistentVolume", name, spec={**body, **spec})

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found = self.store.get(kind, "" if kind in CLUSTER_SCOPED else "default", name)
        assert found is not None, (kind, name)
        return found

    def held(self, claim: str) -> str:
        found = self.get("PersistentVolumeClaim", claim)
        return str(found["spec"].get("volumeName", "")) if found["status"]["phase"] == "Bound" else ""

    def give(self, claim: str, volume: str) -> None:
        give_volume(self.store, "default", claim, volume, "n1")
        self.cluster.settle()

    def delete(self, claim: str) -> None:
        self.store.delete("PersistentVolumeClaim", "default", claim)
        self.cluster.settle()


def test_an_immediate_claim_takes_the_smallest_volume_that_will_do() -> None:
    bench = Workbench()
    for name, size in (("large", "9Gi"), ("fits", "2Gi"), ("small", "1Mi")):
        bench.volume(name, "hand", size)
    bench.volume("other", "now")
    bench.claim("data", "hand")
    assert bench.held("data") == "fits"
    assert bench.get("PersistentVolume", "fits")["spec"]["claimRef"]["name"] == "data"
    assert bench.get("PersistentVolume", "large")["status"]["phase"] == "Available"


def test_an_immediate_claim_waits_for_a_volume_or_for_its_class() -> None:
    bench = Workbench()
    bench.claim("data", "hand")
    bench.claim("late", "later")
    assert (bench.held("data"), bench.held("late")) == ("", "")
    bench.volume("pv", "hand")
    bench.create("StorageClass", "later", provisioner="x")
    assert bench.held("data") == "pv"
    assert bench.held("late").startswith("pvc-")


def test_a_claim_names_its_volume_or_is_named_by_it() -> None:
    bench = Workbench()
    bench.volume("first", "hand")
    bench.volume("second", "hand")
    bench.volume("kept", "waits", claimRef={"namespace": "default", "name": "awaited"})
    bench.claim("named", "hand", volumeName="second")
    bench.claim("awaited", "waits")
    bench.claim("hopeless", "hand", volumeName="nowhere")
    assert [bench.held(name) for name in ("named", "awaited", "hopeless")] == ["second", "kept", ""]


def test_a_claim_without_a_class_gets_the_default_class_of_its_time() -> None:
    bench = Workbench()
    bench.claim("before", None)
    notes = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    bench.create("StorageClass", "usual", provisioner="x", metadata=notes)
    bench.claim("after", None)
    bench.claim("none", "")
    classes = {
        name: bench.get("PersistentVolumeClaim", name)["spec"].get("storageClassName")
        for name in ("before", "after", "none")
    }
    assert classes == {"before": None, "after": "usual", "none": ""}
    assert bench.held("after")


def test_a_claim_that_waits_is_bound_as_the_scheduler_chose() -> None:
    bench = Workbench()
    bench.volume("pv", "waits")
    bench.volume("better", "waits", "2Gi")
    bench.claim("chosen", "waits")
    bench.claim("made", "waits")
    assert (bench.held("chosen"), bench.held("made")) == ("", "")
    bench.give("chosen", "better")
    bench.give("made", "")
    assert bench.held("chosen") == "better"
    made = bench.get("PersistentVolume", bench.held("made"))
    assert made["spec"]["capacity"] == {"storage": "1Gi"}
    assert made["spec"]["csi"] == {"driver": "x", "volumeHandle": made["metadata"]["name"]}
    [term] = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]


def test_a_volume_for_many_nodes_is_made_without_a_zone() -> None:
    bench = Workbench()
    bench.claim("made", "waits", accessModes=["ReadWriteMany"])
    bench.give("made", "")
    assert "nodeAffinity" not in bench.get("PersistentVolume", bench.held("made"))["spec"]


@pytest.mark.parametrize(
    ("claim", "volume", "refusal"),
    [
        ("mine", "pv", ""),
        ("mine", "", ""),
        ("other", "pv", ""),
        ("mine", "taken", "volume taken is given to claim default/other"),
        ("mine", "nowhere", 'persistentvolumes "nowhere" not found'),
        ("nobody", "pv", 'persistentvolumeclaims "nobody" not found'),
    ],
)
def test_reasons_of_refused_bindings(claim: str, volume: str, refusal: str) -> None:
    bench = Workbench()
    bench.volume("taken", "waits")
    bench.volume("pv", "waits")
    bench.claim("mine", "waits")
    bench.claim("other", "waits")
    bench.give("other", "taken")
    assert volume_refusal(bench.store, "default", claim, volume) == refusal


def test_volume_phases_after_deletion_of_the_claim() -> None:
    bench = Workbench()
    bench.volume("kept", "hand")
    bench.claim("by-hand", "hand")
    bench.claim("on-demand", "now")
    made = bench.held("on-demand")
    bench.delete("by-hand")
    bench.delete("on-demand")
    assert bench.get("PersistentVolume", "kept")["status"]["phase"] == "Released"
    assert bench.store.get("PersistentVolume", "", made) is None
    bench.claim("again", "hand")
    assert bench.held("again") == ""
