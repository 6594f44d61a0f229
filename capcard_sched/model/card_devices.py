"""Cards of devices of ResourceSlices whose driver has no rule of its own: by the argument `cardDevices`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

#: They join names of cards in annotations.
NO_CARD_MARKS: Final = "|,"


class CardDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rule of a driver: `NAME` or `NAME/SUFFIX`, with `/shared` for devices that serve several claims."""

    driver: str
    #: The attributes whose values are the name, joined by `-`: bare ones are of the driver's domain.
    name: tuple[str, ...]
    suffix: str = ""

    def card(self, value: Callable[[str], str]) -> str:
        """The card of a device by the values of its attributes; "" if one is missing, or cannot be part of a name."""
        parts = ["-".join(value(each if "/" in each else f"{self.driver}/{each}").split()) for each in self.name]
        if not all(parts) or any(mark in part for part in parts for mark in NO_CARD_MARKS):
            return ""
        return "/".join(filter(None, ("-".join(parts), self.suffix)))
