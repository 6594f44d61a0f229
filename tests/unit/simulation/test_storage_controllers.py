"""The stand-ins for the volume controller and the provisioners, one rule at a time, without a scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.simulation.workloads.volumes import give_volume, volume_refusal
from tests.unit.controllers.bench import ClusterBench


class StorageBench(ClusterBench):
    """A cluster with a node in a zone, and classes of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.patch("Node", "n1", {"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}})
        self.create("StorageClass", "waits", provisioner="x", volumeBindingMode="WaitForFirstConsumer")
        self.create("StorageClass", "now", provisioner="x")
        self.create("StorageClass", "hand", provisioner="kubernetes.io/no-provisioner")

    def claim(self, name: str, storage_class: str | None, **spec: Any) -> None:
        body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
        if storage_class is not None:
            body["storageClassName"] = storage_class
        self.create("PersistentVolumeClaim", name, spec=body)

    def volume(self, name: str, storage_class: str, size: str = "1Gi", **spec: Any) -> None:
        body = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
        self.create("PersistentVolume", name, spec={**body, **spec})

    def held(self, claim: str) -> str:
        found = self.get("PersistentVolumeClaim", claim)
        return str(found["spec"].get("volumeName", "")) if found["status"]["phase"] == "Bound" else ""

    def give(self, claim: str, volume: str) -> None:
        give_volume(self.store, "default", claim, volume, "n1")
        self.cluster.settle()


def test_an_immediate_claim_takes_the_smallest_volume_that_will_do() -> None:
    bench = StorageBench()
    for name, size in (("large", "9Gi"), ("fits", "2Gi"), ("small", "1Mi")):
        bench.volume(name, "hand", size)
    bench.volume("other", "now")
    bench.claim("data", "hand")
    assert bench.held("data") == "fits"
    assert bench.get("PersistentVolume", "fits")["spec"]["claimRef"]["name"] == "data"
    assert bench.get("PersistentVolume", "large")["status"]["phase"] == "Available"


def test_an_immediate_claim_waits_for_a_volume_or_for_its_class() -> None:
    bench = StorageBench()
    bench.claim("data", "hand")
    bench.claim("late", "later")
    assert (bench.held("data"), bench.held("late")) == ("", "")
    bench.volume("pv", "hand")
    bench.create("StorageClass", "later", provisioner="x")
    assert bench.held("data") == "pv"
    assert bench.held("late").startswith("pvc-")


def test_a_claim_names_its_volume_or_is_named_by_it() -> None:
    bench = StorageBench()
    bench.volume("first", "hand")
    bench.volume("second", "hand")
    bench.volume("kept", "waits", claimRef={"namespace": "default", "name": "awaited"})
    bench.claim("named", "hand", volumeName="second")
    bench.claim("awaited", "waits")
    bench.claim("hopeless", "hand", volumeName="nowhere")
    assert [bench.held(name) for name in ("named", "awaited", "hopeless")] == ["second", "kept", ""]


def test_a_claim_without_a_class_gets_the_default_class_of_its_time() -> None:
    bench = StorageBench()
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
    bench = StorageBench()
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
    bench = StorageBench()
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
    bench = StorageBench()
    bench.volume("taken", "waits")
    bench.volume("pv", "waits")
    bench.claim("mine", "waits")
    bench.claim("other", "waits")
    bench.give("other", "taken")
    assert volume_refusal(bench.store, "default", claim, volume) == refusal


def test_volume_phases_after_deletion_of_the_claim() -> None:
    bench = StorageBench()
    bench.volume("kept", "hand")
    bench.claim("by-hand", "hand")
    bench.claim("on-demand", "now")
    made = bench.held("on-demand")
    bench.delete("PersistentVolumeClaim", "by-hand")
    bench.delete("PersistentVolumeClaim", "on-demand")
    assert bench.get("PersistentVolume", "kept")["status"]["phase"] == "Released"
    assert bench.store.get("PersistentVolume", "", made) is None
    bench.claim("again", "hand")
    assert bench.held("again") == ""
