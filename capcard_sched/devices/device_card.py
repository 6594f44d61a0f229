"""The card that a device of a ResourceSlice is, and the thousandths of it that a claim has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.devices.constraints import attribute_value
from capcard_sched.devices.usage import shares_of
from capcard_sched.model.cards import CARD

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from capcard_sched.devices.inventory import PoolDevice
    from capcard_sched.model.card_devices import CardDevice
    from capcard_sched.model.device_objects import AllocatedDevice

NVIDIA_DRIVER: Final = "gpu.nvidia.com"
#: Of the card of a device of that driver.
NVIDIA_ATTRIBUTES: Final = ("type", "productName")


def has_cards(driver: str, rules: Mapping[str, CardDevice]) -> bool:
    """Whether devices of a driver are cards."""
    return driver == NVIDIA_DRIVER or driver in rules


def card_of(device: PoolDevice) -> str:
    """The card that a device is; "" for a device that is no card."""
    if device.content.name is None:
        device.content.name = _card_of(device)
    return device.content.name


def _card_of(device: PoolDevice) -> str:
    driver = device.id[0]

    def value(name: str) -> str:
        found = attribute_value(device, name)
        return str(found[1]) if found is not None else ""

    if driver != NVIDIA_DRIVER:
        rule = device.content.cards.get(driver)
        name = rule.card(value) if rule is not None else ""
        return f"{name}/shared" if name and device.is_shared else name

    def text(name: str) -> str:
        return value(f"{driver}/{name}")

    product = "-".join(text("productName").split())
    names = {"gpu": product, "mig": f"{product}/mig-{text('profile')}-mixed", "vfio": f"{product}/vfio"}
    name = names.get(text("type"), "") if product else ""
    return f"{name}/shared" if name and device.is_shared else name


def charge_of(device: PoolDevice, result: AllocatedDevice) -> int:
    """Thousandths of the card of a device for one result of an allocation: 1000 for a dedicated device."""
    return share_charge(device, shares_of(result)) if device.is_shared else CARD


def share_charge(device: PoolDevice, consumed: Mapping[str, Fraction] | None) -> int:
    """Thousandths of the card of a shared device for what is consumed of it; None: all of it.

    Its largest part of any capacity, rounded up: at least 1, at most 1000.
    """
    capacities = device.content.capacities
    if consumed is None or isinstance(capacities, str):
        return CARD
    totals = {name: each.value for name, each in capacities.items() if each.value}
    parts = [-(-CARD * amount // totals[name]) for name, amount in consumed.items() if name in totals]
    return min(max([1, *parts]), CARD)
