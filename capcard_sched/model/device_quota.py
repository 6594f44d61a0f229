"""Quotas of queues for devices that pods get through ResourceClaims, by DeviceClass.

A key of `capability`, `deserved` or `guarantee` counts the devices of a class (`deviceclass/gpu.nvidia.com`), or sums
one of the capacities that requests for the class name (`memory.deviceclass/gpu.nvidia.com`).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_WORD: Final = "deviceclass"
_COUNT: Final = f"{_WORD}/"
_CAPACITY: Final = f".{_WORD}/"
_CLASS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
#: A name, or a domain and a name.
_DIMENSION: Final = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?")
_MEANT: Final = re.compile(rf"(^|\.){_COUNT}", re.IGNORECASE)
#: Characters of the name of a DeviceClass.
_LONGEST: Final = 253
#: The accepted forms of the keys.
DEVICE_QUOTA_FORM: Final = f"{_COUNT}CLASS, or CAPACITY{_CAPACITY}CLASS"


class DeviceQuotaKey(NamedTuple):
    """What a key counts."""

    class_name: str
    #: Name of a capacity; "" for devices.
    dimension: str = ""


def device_quota_key(resource: str) -> DeviceQuotaKey | None:
    """The parts of a key; None for another resource, and for a key without a class."""
    dimension, separator, class_name = resource.partition(_CAPACITY)
    if separator and dimension and class_name:
        return DeviceQuotaKey(class_name, dimension)
    class_name = resource.removeprefix(_COUNT)
    return DeviceQuotaKey(class_name) if class_name and class_name != resource else None


def is_capacity_quota(resource: str) -> bool:
    """Whether the resource is a sum of capacities of a DeviceClass. Its base unit is the plain unit."""
    return 0 < resource.find(_CAPACITY) < len(resource) - len(_CAPACITY)


def device_quota_problem(resource: str) -> str:
    """Why a resource that is meant as a key is none; "" for a key, and for other resources."""
    meant = _MEANT.search(resource)
    if meant is None:
        return ""
    key = device_quota_key(resource)
    if key is None:
        return "names no DeviceClass" if meant[0].islower() and meant.end() == len(resource) else "is no quota key"
    if len(key.class_name) > _LONGEST or not _CLASS_NAME.fullmatch(key.class_name):
        return "is not the name of a DeviceClass after the slash"
    if key.dimension and not _DIMENSION.fullmatch(key.dimension):
        return f"has no name of a capacity before {_CAPACITY}"
    return ""


def counts_devices(resource: str) -> bool:
    """Whether the resource is a number of devices of a DeviceClass."""
    key = device_quota_key(resource)
    return key is not None and not key.dimension
