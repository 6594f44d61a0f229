"""The card that a device of a ResourceSlice is, and the thousandths of it that a claim has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.devices.constraints import attribute_value
from capcard_sched.devices.usage import shares_of
from capcard_sched.model.card_devices import NO_CARD_MARKS
from capcard_sched.model.cards import CARD, mig_card

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
    rule = device.content.cards.get(driver)
    if driver == NVIDIA_DRIVER:
        name = "" if card_problem(device)[0] else _nvidia_card(device)
    else:
        name = rule.card(lambda name: _text(device, name)) if rule is not None else ""
    return f"{name}/shared" if name and device.is_shared else name


def _text(device: PoolDevice, name: str) -> str:
    """The value of an attribute; "" without one."""
    found = attribute_value(device, name)
    return str(found[1]) if found is not None else ""


def _nvidia_card(device: PoolDevice) -> str:
    product = "-".join(_text(device, f"{NVIDIA_DRIVER}/productName").split())
    if not product:
        return ""
    match _text(device, f"{NVIDIA_DRIVER}/type"):
        case "gpu":
            return product
        case "mig":
            return mig_card(product, _text(device, f"{NVIDIA_DRIVER}/profile").strip())
        case "vfio":
            return f"{product}/vfio"
        case _:
            return ""


def card_problem(device: PoolDevice) -> tuple[str, str]:
    """The attribute that prevents the name of a card, and why; ("", "") for none, and for one that is missing.

    Without its profile a MIG device has no name.
    """
    driver = device.id[0]
    names: tuple[str, ...] = (*NVIDIA_ATTRIBUTES[1:], "profile")
    is_mig = driver == NVIDIA_DRIVER and _text(device, f"{driver}/type") == "mig"
    if driver != NVIDIA_DRIVER:
        rule = device.content.cards.get(driver)
        names = rule.name if rule is not None else ()
    elif not is_mig:
        names = NVIDIA_ATTRIBUTES[1:]
    for name in names:
        value = _text(device, name if "/" in name else f"{driver}/{name}")
        if any(mark in value for mark in NO_CARD_MARKS):
            text = f'"{value}" cannot be part of the name of a card, which has neither | nor a comma'
            return name, f"{text}: the device costs no card quota"
    if is_mig and _text(device, f"{driver}/productName").strip() and not _text(device, f"{driver}/profile").strip():
        return (
            "profile",
            "is required on a MIG device, for example 1g.18gb: without it the device is no card and costs no quota",
        )
    return "", ""


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
