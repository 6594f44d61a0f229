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


def ebs(name: str, volume_id: str) -> dict[str, Any]:
    return {"name": name, "awsElasticBlockStore": {"volumeID": volume_id}}


#: Volumes of the pod on the node, volumes of the new pod, limit, whether it fits.
INLINE: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], int | None, bool]] = {
    "one more than the limit": ([ebs("a", "1"), ebs("b", "2")], [ebs("c", "3")], 2, False),
    "as many as the limit": ([ebs("a", "1")], [ebs("c", "3")], 2, True),
    "no limit": ([ebs("a", "1"), ebs("b", "2")], [ebs("c", "3")], None, True),
    "the same volume": ([ebs("a", "1"), ebs("b", "2")], [ebs("c", "2")], 2, True),
    "the same volume, once with its zone": ([ebs("a", "aws://z/1")], [ebs("c", "1")], 1, True),
    "two new ones, one too many": ([ebs("a", "1")], [ebs("c", "3"), ebs("d", "4")], 2, False),
    "the same new one twice": ([ebs("a", "1")], [ebs("c", "3"), ebs("d", "3")], 2, True),
    "a ConfigMap and a Secret": (
        [ebs("a", "1")],
        [{"name": "c", "configMap": {"name": "c"}}, {"name": "s", "secret": {"secretName": "s"}}],
        1,
        True,
    ),
    "a ConfigMap and a volume": ([ebs("a", "1")], [{"name": "c", "configMap": {"name": "c"}}, ebs("d", "2")], 1, False),
    "a hostPath": ([ebs("a", "1")], [{"name": "h", "hostPath": {"path": "/h"}}], 1, True),
}


@pytest.mark.parametrize(("held", "new", "limit", "fits"), INLINE.values(), ids=list(INLINE))
def test_inline_volumes_count(
    held: list[dict[str, Any]], new: list[dict[str, Any]], limit: int | None, fits: bool
) -> None:
    h = cluster("n1")
    h.csi_node("n1", ebs_csi_aws_com=limit)
    for name, volumes, node, phase in (("r", held, "n1", "Running"), ("p", new, "", "Pending")):
        h.group(f"g-{name}", phase="Running" if node else "Inqueue")
        h.pod(name, group=f"g-{name}", requests={"cpu": "1"}, volumes=volumes, node=node, phase=phase)
    h.step()
    assert ("p" in h.binds) is fits
    if not fits:
        assert "node(s) exceed max volume count" in h.pod_message("p")
        h.delete_pod("r")
        h.settle()
        assert "p" in h.binds
