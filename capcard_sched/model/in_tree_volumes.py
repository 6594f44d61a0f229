"""Volume sources of in-tree plugins, which CSI drivers replace: of PersistentVolumes, and inline in pods."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

#: In-tree plugins to the CSI drivers that replace them.
CSI_DRIVERS: Final = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
    "kubernetes.io/rbd": "rbd.csi.ceph.com",
}
#: Plugins whose volumes the CSI driver serves on every node. The others: on nodes whose CSINode lists the plugin.
MIGRATED_EVERYWHERE: Final = frozenset(
    {"kubernetes.io/aws-ebs", "kubernetes.io/gce-pd", "kubernetes.io/azure-disk", "kubernetes.io/cinder"}
)
#: Annotation of a CSINode: in-tree plugins that a CSI driver replaces on the node, separated by commas.
MIGRATED_PLUGINS: Final = "storage.alpha.kubernetes.io/migrated-plugins"


class AttachmentKey(NamedTuple):
    """A volume as attachments are counted."""

    driver: str
    handle: str
    #: In-tree plugin, if the volume counts only on nodes whose CSINode lists the plugin; else "".
    plugin: str = ""


def in_tree_key(plugin: str, handle: str) -> AttachmentKey:
    """The key of a volume of an in-tree plugin."""
    return AttachmentKey(CSI_DRIVERS[plugin], handle, "" if plugin in MIGRATED_EVERYWHERE else plugin)


class InTreeSource(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """A source of any plugin: the fields that identify its volume."""

    #: Of AWS, Cinder and Portworx; of AWS also in the form `aws://zone/id`.
    volume_id: str = msgspec.field(name="volumeID", default="")
    #: Of GCE, Azure disks, Azure file shares, vSphere.
    pd_name: str = ""
    disk_uri: str = msgspec.field(name="diskURI", default="")
    share_name: str = ""
    volume_path: str = ""
    #: Of RBD.
    pool: str = ""
    image: str = ""

    @property
    def handle(self) -> str:
        """Identifies the volume."""
        if self.image:
            return f"{self.pool}/{self.image}"
        disk = self.volume_id.rpartition("/")[2] or self.pd_name or self.disk_uri
        return disk or self.share_name or self.volume_path


class InTreeSources(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """The in-tree sources of a volume, at most one of which is set."""

    aws_elastic_block_store: InTreeSource | None = None
    gce_persistent_disk: InTreeSource | None = None
    azure_disk: InTreeSource | None = None
    azure_file: InTreeSource | None = None
    cinder: InTreeSource | None = None
    vsphere_volume: InTreeSource | None = None
    portworx_volume: InTreeSource | None = None
    rbd: InTreeSource | None = None

    def in_tree(self) -> AttachmentKey | None:
        """The key of an in-tree volume; None for a volume of another kind."""
        for plugin, attribute in zip(CSI_DRIVERS, _SOURCES, strict=True):
            source: InTreeSource | None = getattr(self, attribute)
            if source is not None:
                return in_tree_key(plugin, source.handle)
        return None


#: Attributes, in the order of CSI_DRIVERS.
_SOURCES: Final = InTreeSources.__struct_fields__
