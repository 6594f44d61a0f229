"""The shares of a pod as annotation text: one segment per container, one entry per share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.model.quoting import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

DEVICE_FORM: Final = "uuid,NVIDIA,memory,cores:"
#: What the second field of every share holds.
VENDOR: Final = "NVIDIA"

_FIELDS = 4
_AMOUNT = re.compile(r"[0-9]{1,15}")
_SLICE = re.compile(r"(?P<uuid>[^\[\]]+)\[(?P<group>.+)-(?P<position>[0-9]{1,4})\]")


class Device(NamedTuple):
    """A share of one card for one container."""

    #: Of the card.
    uuid: str
    #: Requested units of memory.
    memory: int
    #: Percent.
    cores: int
    #: Group of the geometry and position in it; "" and -1 without a MIG slice.
    group: str = ""
    position: int = -1

    @property
    def id(self) -> str:
        """The card's uuid, with the slice where there is one: `GPU-m[group2-3]`."""
        return f"{self.uuid}[{self.group}-{self.position}]" if self.group else self.uuid


class PodDevices(NamedTuple):
    """The shares of a pod, by container; containers without any are empty."""

    containers: tuple[tuple[Device, ...], ...]
    #: One sentence per share that is left out.
    problems: tuple[str, ...] = ()


def encode_devices(containers: Sequence[Sequence[Device]]) -> str:
    """The annotation value; empty segments at the end are left out."""
    segments = [
        "".join(f"{device.id},{VENDOR},{device.memory},{device.cores}:" for device in devices) for devices in containers
    ]
    while segments and not segments[-1]:
        segments.pop()
    return ";".join(segments)


def decode_devices(text: str) -> PodDevices:
    """The shares in an annotation value. What is no share is left out, with a problem; "" holds none."""
    containers: list[tuple[Device, ...]] = []
    problems: list[str] = []
    for index, segment in enumerate(text.split(";")):
        devices = []
        for fragment in segment.split(":"):
            if "," not in fragment:
                continue
            device = _device(fragment)
            if device is None:
                problems.append(
                    f'share "{shortened(fragment)}" of container {index} is left out: '
                    f"expected {DEVICE_FORM} with integers"
                )
            else:
                devices.append(device)
        containers.append(tuple(devices))
    while containers and not containers[-1]:
        containers.pop()
    return PodDevices(tuple(containers), tuple(problems))


def _device(fragment: str) -> Device | None:
    fields = [field.strip() for field in fragment.split(",")]
    if len(fields) < _FIELDS or not fields[0]:
        return None
    uuid, _, memory, cores = fields[:_FIELDS]
    if _AMOUNT.fullmatch(memory) is None or _AMOUNT.fullmatch(cores) is None:
        return None
    match = _SLICE.fullmatch(uuid)
    if match is not None:
        return Device(match["uuid"], int(memory), int(cores), match["group"], int(match["position"]))
    return None if "[" in uuid else Device(uuid, int(memory), int(cores))
