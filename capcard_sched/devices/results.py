"""Parts of allocations that follow from the chosen devices."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from capcard_sched.model.objects import NodeSelector, NodeSelectorTerm, Requirement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.devices.inventory import PoolDevice


def node_selector(devices: Sequence[PoolDevice], node: str) -> NodeSelector | None:
    """The nodes on which the devices are usable; None for all."""
    expressions: list[Requirement] = []
    fields: list[Requirement] = []
    for device in devices:
        spec = device.spec if device.slice.spec.per_device_node_selection else device.slice.spec
        if device.spec.binds_to_node or spec.node_name:
            here = Requirement("metadata.name", "In", (node,))
            return NodeSelector((NodeSelectorTerm(match_fields=(here,)),))
        if spec.node_selector is not None:
            term = spec.node_selector.node_selector_terms[0]
            expressions += [each for each in term.match_expressions or () if each not in expressions]
            fields += [each for each in term.match_fields or () if each not in fields]
    if not expressions and not fields:
        return None
    return NodeSelector((NodeSelectorTerm(tuple(expressions) or None, tuple(fields) or None),))


def share_id(uid: str, number: int) -> str:
    """A version 5 UUID of a claim and the number of its result."""
    digest = bytearray(hashlib.sha1(f"{uid}/{number}".encode(), usedforsecurity=False).digest()[:16])
    digest[6] = (digest[6] & 0x0F) | 0x50
    digest[8] = (digest[8] & 0x3F) | 0x80
    text = digest.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
