"""ReadWriteOncePod claims, and the volumes that count against the limits of CSI drivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from capcard_sched.testing import Harness

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


def pod(h: Harness, name: str, claim: str = "data", priority: int = 1, **more: Any) -> None:
    h.group(f"g-{name}", priority_class=f"p{priority}", phase="Running" if "node" in more else "Inqueue")
    h.pod(name, group=f"g-{name}", requests={"cpu": "1"}, **uses(claim), **more)


# --- limits of CSI drivers --------------------------------------------------------------------------------------------


def free_attachments(h: Harness, driver: str = "csi.test", limit: int = 1, migrated: Sequence[str] = ()) -> bool:
    """Whether a node with this limit and the pod `r` attaches one more volume of the driver."""
    h.csi_node("n1", migrated=migrated, **{driver.replace(".", "_"): limit})
    h.volume("pv-new", claim="new", driver=driver)
    h.claim("new", volume="pv-new")
    pod(h, "p", "new")
    h.step()
    return "p" in h.binds


#: In-tree sources, their plugins, and the CSI drivers that replace them.
SOURCES: list[tuple[dict[str, Any], str, str]] = [
    ({"awsElasticBlockStore": {"volumeID": "vol-1"}}, "aws-ebs", "ebs.csi.aws.com"),
    ({"gcePersistentDisk": {"pdName": "disk"}}, "gce-pd", "pd.csi.storage.gke.io"),
    ({"azureDisk": {"diskName": "disk", "diskURI": "/uri"}}, "azure-disk", "disk.csi.azure.com"),
    ({"cinder": {"volumeID": "id"}}, "cinder", "cinder.csi.openstack.org"),
    ({"azureFile": {"shareName": "share"}}, "azure-file", "file.csi.azure.com"),
    ({"vsphereVolume": {"volumePath": "[store] path"}}, "vsphere-volume", "csi.vsphere.vmware.com"),
    ({"portworxVolume": {"volumeID": "id"}}, "portworx-volume", "pxd.portworx.com"),
    ({"rbd": {"image": "image"}}, "rbd", "rbd.csi.ceph.com"),
]
#: Plugins that the scheduler of Kubernetes takes for migrated without a look at the CSINode.
EVERYWHERE = ("aws-ebs", "gce-pd", "azure-disk", "cinder")


@pytest.mark.parametrize("listed", [True, False], ids=["listed as migrated", "not listed"])
@pytest.mark.parametrize("inline", [True, False], ids=["inline", "PersistentVolume"])
@pytest.mark.parametrize(("source", "plugin", "driver"), SOURCES, ids=[plugin for _, plugin, _ in SOURCES])
def test_an_in_tree_volume_counts_as_one_of_its_csi_driver_where_its_plugin_is_migrated(
    source: dict[str, Any], plugin: str, driver: str, inline: bool, listed: bool
) -> None:
    h = cluster("n1")
    if inline:
        h.group("g-r", phase="Running")
        h.pod("r", group="g-r", requests={"cpu": "1"}, node="n1", phase="Running", volumes=[{"name": "v", **source}])
    else:
        h.volume("pv", claim="data", **source)
        h.claim("data", volume="pv")
        pod(h, "r", node="n1", phase="Running")
    migrated = [f"kubernetes.io/{plugin}"] if listed else ["kubernetes.io/other"]
    assert free_attachments(h, driver, migrated=migrated) != (listed or plugin in EVERYWHERE)
