"""The card that a device of a ResourceSlice is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.devices.constraints import attribute_value

if TYPE_CHECKING:
    from capcard_sched.devices.inventory import PoolDevice

NVIDIA_DRIVER: Final = "gpu.nvidia.com"


def card_of(device: PoolDevice) -> str:
    """The card that a device is; "" for a device that is no card."""
    if device.content.name is None:
        device.content.name = _card_of(device)
    return device.content.name


def _card_of(device: PoolDevice) -> str:
    driver = device.id[0]
    if driver != NVIDIA_DRIVER:
        return ""

    def text(name: str) -> str:
        found = attribute_value(device, f"{driver}/{name}")
        return str(found[1]) if found is not None else ""

    product = "-".join(text("productName").split())
    names = {"gpu": product, "mig": f"{product}/mig-{text('profile')}-mixed", "vfio": f"{product}/vfio"}
    name = names.get(text("type"), "") if product else ""
    return f"{name}/shared" if name and device.is_shared else name
