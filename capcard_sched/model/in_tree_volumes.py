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


class _Source(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """Base: camelCase on the wire, immutable here."""


class AwsElasticBlockStore(_Source, frozen=True):
    volume_id: str = msgspec.field(name="volumeID", default="")

    @property
    def handle(self) -> str:
        """The id, without the zone of the form `aws://zone/id`."""
        return self.volume_id.rpartition("/")[2]


class GcePersistentDisk(_Source, frozen=True):
    handle: str = msgspec.field(name="pdName", default="")


class AzureDisk(_Source, frozen=True):
    handle: str = msgspec.field(name="diskURI", default="")


class AzureFile(_Source, frozen=True):
    handle: str = msgspec.field(name="shareName", default="")


class VolumeIdentifier(_Source, frozen=True):
    """A Cinder or Portworx volume."""

    handle: str = msgspec.field(name="volumeID", default="")


class VsphereVolume(_Source, frozen=True):
    handle: str = msgspec.field(name="volumePath", default="")


class Rbd(_Source, frozen=True):
    image: str = ""
    pool: str = ""

    @property
    def handle(self) -> str:
        """Identifies the image."""
        return f"{self.pool}/{self.image}"


class InTreeSources(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """The in-tree sources of a volume, at most one of which is set."""

    aws_elastic_block_store: AwsElasticBlockStore | None = None
    gce_persistent_disk: GcePersistentDisk | None = None
    azure_disk: AzureDisk | None = None
    azure_file: AzureFile | None = None
    cinder: VolumeIdentifier | None = None
    vsphere_volume: VsphereVolume | None = None
    portworx_volume: VolumeIdentifier | None = None
    rbd: Rbd | None = None

    def in_tree(self) -> AttachmentKey | None:
        """The key of an in-tree volume; None for a volume of another kind."""
        for plugin, source in (
            ("aws-ebs", self.aws_elastic_block_store),
            ("gce-pd", self.gce_persistent_disk),
            ("azure-disk", self.azure_disk),
            ("azure-file", self.azure_file),
            ("cinder", self.cinder),
            ("vsphere-volume", self.vsphere_volume),
            ("portworx-volume", self.portworx_volume),
            ("rbd", self.rbd),
        ):
            if source is not None:
                return in_tree_key(f"kubernetes.io/{plugin}", source.handle)
        return None
