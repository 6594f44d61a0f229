"""ReadWriteOncePod claims, and the volumes that count against the limits of CSI drivers."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.model.intents import Evict
from capcard_sched.testing import Harness

IN_USE = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
_CONF = """
actions: "enqueue, allocate, backfill, preempt"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false, enableJobStarving: false}]
- plugins: [{name: predicates}]
"""


def cluster(*nodes: str) -> Harness:
    h = Harness(_CONF, run=True)
    h.queue("q")
    for name in nodes:
        h.node(name)
    for value in (1, 10):
        h.priority_class(f"p{value}", value)
    h.storage_class("disk")
    return h


def uses(*claims: str) -> dict[str, Any]:
    return {
        "volumes": [
            {"name": f"v{index}", "persistentVolumeClaim": {"claimName": name}} for index, name in enumerate(claims)
        ]
    }


def exclusive(h: Harness, name: str = "data", *modes: str) -> None:
    modes = modes or ("ReadWriteOncePod",)
    h.volume(f"pv-{name}", claim=name, modes=modes)
    h.claim(name, volume=f"pv-{name}", modes=modes)


def pod(h: Harness, name: str, claim: str = "data", priority: int = 1, **more: Any) -> None:
    h.group(f"g-{name}", priority_class=f"p{priority}", phase="Running" if "node" in more else "Inqueue")
    h.pod(name, group=f"g-{name}", requests={"cpu": "1"}, **uses(claim), **more)


# --- ReadWriteOncePod -------------------------------------------------------------------------------------------------


def test_a_second_pod_of_an_exclusive_claim_is_rejected_on_all_nodes() -> None:
    h = cluster("n1", "n2")
    exclusive(h)
    pod(h, "holder", node="n1", phase="Running")
    pod(h, "p")
    h.step()
    assert not h.binds
    assert IN_USE in h.pod_message("p")


def test_pods_of_one_session_do_not_share_an_exclusive_claim() -> None:
    h = cluster("n1", "n2")
    exclusive(h)
    for name in ("a", "b"):
        pod(h, name)
    h.settle()
    assert len(h.binds) == 1


def test_a_gang_with_one_exclusive_claim_is_not_placed() -> None:
    h = cluster("n1")
    exclusive(h)
    h.group("g", min_member=2)
    for name in ("a", "b"):
        h.pod(name, requests={"cpu": "1"}, **uses("data"))
    h.settle()
    assert not h.binds


def test_other_pods_share_other_claims() -> None:
    h = cluster("n1", "n2")
    exclusive(h, "data", "ReadWriteMany")
    pod(h, "holder", node="n1", phase="Running")
    pod(h, "p")
    h.step()
    assert "p" in h.binds


def test_an_exclusive_claim_is_free_when_its_pod_is_gone() -> None:
    h = cluster("n1", "n2")
    exclusive(h)
    pod(h, "holder", node="n1", phase="Running")
    pod(h, "p")
    h.settle()
    assert not h.binds
    h.delete_pod("holder")
    h.step()
    assert "p" in h.binds


def test_a_claim_that_becomes_known_later_is_exclusive_from_then_on() -> None:
    h = cluster("n1")
    pod(h, "holder", node="n1", phase="Running")
    h.step()
    exclusive(h)
    pod(h, "p")
    h.step()
    assert not h.binds


@pytest.mark.parametrize(("priority", "evicted"), [(10, ["holder"]), (1, [])])
def test_a_pod_of_higher_priority_preempts_the_holder(priority: int, evicted: list[str]) -> None:
    h = cluster("n1", "n2")
    exclusive(h)
    pod(h, "holder", node="n1", phase="Running", priority=1)
    pod(h, "other", claim="other", node="n2", phase="Running", priority=1)
    h.claim("other", volume="pv-other")
    h.volume("pv-other", claim="other")
    pod(h, "p", priority=priority)
    result = h.step()
    assert [intent.name for intent in result.intents if isinstance(intent, Evict)] == evicted
    if evicted:
        h.delete_pod("holder")
        h.settle()
        assert h.binds["p"] == "n1"


# --- limits of CSI drivers --------------------------------------------------------------------------------------------


def free_attachments(h: Harness, driver: str = "csi.test", limit: int = 1) -> bool:
    """Whether a node with this limit and the pod `r` attaches one more volume of the driver."""
    h.csi_node("n1", **{driver.replace(".", "_"): limit})
    h.volume("pv-new", claim="new", driver=driver)
    h.claim("new", volume="pv-new")
    pod(h, "p", "new")
    h.step()
    return "p" in h.binds


def test_a_claim_bound_to_a_missing_volume_counts_by_its_class() -> None:
    h = cluster("n1")
    h.claim("data", storage_class="disk", volume="pv-missing")
    pod(h, "r", node="n1", phase="Running")
    assert not free_attachments(h)


def test_a_claim_bound_to_a_missing_volume_of_no_class_does_not_count() -> None:
    h = cluster("n1")
    h.claim("data", volume="pv-missing")
    pod(h, "r", node="n1", phase="Running")
    assert free_attachments(h)


@pytest.mark.parametrize(
    ("source", "driver"),
    [
        ({"awsElasticBlockStore": {"volumeID": "vol-1"}}, "ebs.csi.aws.com"),
        ({"gcePersistentDisk": {"pdName": "disk"}}, "pd.csi.storage.gke.io"),
        ({"azureDisk": {"diskName": "disk", "diskURI": "/uri"}}, "disk.csi.azure.com"),
        ({"azureFile": {"shareName": "share"}}, "file.csi.azure.com"),
        ({"cinder": {"volumeID": "id"}}, "cinder.csi.openstack.org"),
        ({"vsphereVolume": {"volumePath": "[store] path"}}, "csi.vsphere.vmware.com"),
        ({"portworxVolume": {"volumeID": "id"}}, "pxd.portworx.com"),
        ({"rbd": {"image": "image"}}, "rbd.csi.ceph.com"),
    ],
)
def test_an_in_tree_volume_counts_as_one_of_its_csi_driver(source: dict[str, Any], driver: str) -> None:
    h = cluster("n1")
    h.volume("pv", claim="data", **source)
    h.claim("data", volume="pv")
    pod(h, "r", node="n1", phase="Running")
    assert not free_attachments(h, driver)


def test_an_in_tree_provisioner_counts_as_its_csi_driver() -> None:
    h = cluster("n1")
    h.storage_class("gp2", provisioner="kubernetes.io/aws-ebs")
    h.claim("data", storage_class="gp2", volume="pv-missing")
    pod(h, "r", node="n1", phase="Running")
    assert not free_attachments(h, "ebs.csi.aws.com")


def test_a_local_volume_counts_for_no_driver() -> None:
    h = cluster("n1")
    h.volume("pv", claim="data", local={"path": "/data"})
    h.claim("data", volume="pv")
    pod(h, "r", node="n1", phase="Running")
    assert free_attachments(h)
