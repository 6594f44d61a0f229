"""Node labels that name the model of a device resource.

One rule gives the card of the devices of a resource on a node; the first step that applies decides:

1. The first label of `cardLabels` for the resource that has a value on the node.
2. `<prefix>/<type>.product`, with `<prefix>/<type>.memory`: whole cards, and the MIG and MPS slices of NVIDIA.
3. The first label in `VENDOR_LABELS` for the resource that has a value on the node.
4. The name of the resource itself, for the resources of `VENDOR_LABELS` and `cardLabels`, and slices of NVIDIA.

Other extended resources, such as RDMA devices, are no cards.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from capcard_sched.model.annotations import MEMORY_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from capcard_sched.model.card_devices import CardDevice

NVIDIA: Final = "nvidia.com"
WHOLE_NVIDIA: Final = "nvidia.com/gpu"
MPS_RESOURCE: Final = "nvidia.com/gpu.shared"
MIG_PREFIX: Final = "nvidia.com/mig-"

_PRODUCT: Final = ".product"
_REPLICAS: Final = ".replicas"
_CHIP: Final = ("node.kubernetes.io/npu.chip.name",)
_INTEL: Final = ("gpu.intel.com/product",)
#: Device resource to the labels that its vendor documents for the model, preferred first; () for vendors without one.
VENDOR_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    WHOLE_NVIDIA: (),
    MPS_RESOURCE: (),
    "amd.com/gpu": ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
    "aws.amazon.com/neuron": (),
    "cambricon.com/mlu": (),
    "enflame.com/gcu": (),
    "google.com/tpu": ("cloud.google.com/gke-tpu-accelerator",),
    "gpu.intel.com/i915": _INTEL,
    "gpu.intel.com/xe": _INTEL,
    "habana.ai/gaudi": (),
    "huawei.com/Ascend310": _CHIP,
    "huawei.com/Ascend310P": _CHIP,
    "huawei.com/Ascend910": _CHIP,
    "huawei.com/ascend-1980": _CHIP,
    "hygon.com/dcu": ("hygon.com/dcu.name",),
    "iluvatar.com/gpu": (),
    "metax-tech.com/gpu": ("metax-tech.com/gpu.product",),
    "mthreads.com/gpu": (),
}


class CardLabels:
    """The labels of each device resource: those of the argument `cardLabels`, then those of the vendors.

    Equal content gives equal objects: results of discovery are cached by it.
    """

    __slots__ = ("_key", "drivers", "given", "keys", "shares")

    def __init__(
        self,
        given: Mapping[str, str | tuple[str, ...]] | None = None,
        shares: Collection[str] = frozenset(),
        devices: Collection[CardDevice] = (),
    ) -> None:
        """`given`: resource to its label or labels; `shares`: resources of shared devices, which are no cards.

        `devices`: the rules for the devices of ResourceSlices.
        """
        #: Driver of ResourceSlices to the rule for its devices.
        self.drivers = {each.driver: each for each in devices}
        #: Resource to the labels of the argument.
        self.given = {
            name: (labels,) if isinstance(labels, str) else tuple(labels) for name, labels in (given or {}).items()
        }
        self.shares = frozenset(shares)
        #: Every label that names a model, besides `<resource>.product`.
        self.keys = frozenset(label for table in (self.given, VENDOR_LABELS) for row in table.values() for label in row)
        self._key = tuple(sorted(self.given.items())), self.shares, tuple(self.drivers.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CardLabels) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def without(self, shares: Collection[str]) -> CardLabels:
        """The same, with these resources of shared devices."""
        if self.shares == frozenset(shares):
            return self
        return CardLabels(self.given, shares, self.drivers.values())

    def is_device(self, resource: str) -> bool:
        """Whether the resource counts cards on every node that has it, with and without labels."""
        known = resource in VENDOR_LABELS or resource.startswith(MIG_PREFIX) or resource in self.given
        return known and resource not in self.shares

    def devices(self, resources: Iterable[str]) -> list[str]:
        """Those of some resources that count cards, sorted."""
        return sorted(filter(self.is_device, resources))

    def model(self, resource: str, labels: Mapping[str, str]) -> str:
        """The model by the labels of the vendor; "" without one."""
        return first_value(VENDOR_LABELS.get(resource, ()), labels)

    def missing(self, resource: str, labels: Mapping[str, str]) -> str:
        """The label that is missing beside the product label of a resource; "" for none, and without a product."""
        whole = _whole(resource)
        keys = (f"{whole}{MEMORY_SUFFIX}", *([f"{whole}{_REPLICAS}"] if resource == MPS_RESOURCE else []))
        return next((key for key in keys if key not in labels), "") if labels.get(f"{whole}{_PRODUCT}") else ""

    def needed(self, resource: str, labels: Mapping[str, str] = MappingProxyType({})) -> str:
        """The labels that name the model of a resource, as text. `labels`: those of the node."""
        if key := self.missing(resource, labels):
            return f"label {key}"
        given = self.given.get(resource, VENDOR_LABELS.get(resource, ()))
        if given:
            return f"label {' or '.join(given)}"
        whole = _whole(resource)
        text = f"labels {whole}{_PRODUCT} and {whole}{MEMORY_SUFFIX}"
        if resource == MPS_RESOURCE:
            return f"{text}, and {whole}{_REPLICAS}"
        return text if whole == WHOLE_NVIDIA else f"{text}, or a label of the argument cardLabels of capacity-card"

    def unlabelled(self, resource: str, labels: Mapping[str, str]) -> str:
        """The sentence about devices whose card is the name of their resource, on a node with some labels."""
        if key := self.missing(resource, labels):
            product = f"{_whole(resource)}{_PRODUCT}"
            return f"label {key} is missing beside {product}: quotas and pods name the devices {resource}"
        return f"no product label names their model: quotas and pods name them {resource}"


def _whole(resource: str) -> str:
    """The resource whose labels name the model: that of whole cards for the slices of NVIDIA."""
    return WHOLE_NVIDIA if resource.startswith((MPS_RESOURCE, MIG_PREFIX)) else resource


def first_value(labels: tuple[str, ...], of: Mapping[str, str]) -> str:
    """The value of the first label that has one; "" for none."""
    return next((value for label in labels if (value := of.get(label, "").strip())), "")


#: Without the argument `cardLabels`.
DEFAULT_CARD_LABELS: Final = CardLabels()
