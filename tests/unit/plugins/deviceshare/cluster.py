"""A harness with deviceshare, nodes with registrations, and pods that request vGPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from capcard_sched.model import annotations as keys
from capcard_sched.model.card_registration import RegisteredCard, encode_registration
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.objects import PodObject
from capcard_sched.testing import Harness
from tests.unit.plugins.deviceshare.worlds import L40S

NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
PERCENTAGE = "volcano.sh/vgpu-memory-percentage"


def conf(*, actions: str = "enqueue, allocate, backfill", plugins: str = "", **arguments: Any) -> str:
    """A scheduler-conf with vGPU on; `arguments` without their prefix."""
    given = {"VGPUEnable": True, **arguments}
    lines = "\n".join(f"      deviceshare.{key}: {str(value).lower()}" for key, value in given.items())
    return f"""
actions: "{actions}"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: deviceshare
    arguments:
{lines}
{plugins}"""


class SharedCardObjects(Harness):
    """Statements for shared cards."""

    def cards(
        self,
        node: str,
        *cards: str | RegisteredCard,
        annotations: dict[str, str] | None = None,
        offered: int | None = None,
        register: str | None = None,
        **more: Any,
    ) -> None:
        """A node with cards, written `uuid:memory` for an L40S of ten slots, or a registration as text."""
        found = []
        for card in cards:
            if isinstance(card, str):
                uuid, size = card.split(":")
                found.append(RegisteredCard(uuid, 10, int(size), L40S, healthy=True, mode="hami-core"))
            else:
                found.append(card)
        notes = {keys.NODE_VGPU_REGISTER: encode_registration(tuple(found)) if register is None else register}
        number = sum(card.slots for card in found) if offered is None else offered
        memory = sum(card.memory for card in found)
        resources = {NUMBER: number, **({MEMORY: memory, CORES: 100 * len(found)} if register is None else {})}
        resources |= more.pop("resources", {})
        self.node(node, annotations={**notes, **(annotations or {})}, resources=resources, **more)

    def share(
        self,
        name: str,
        memory: int | None = None,
        *,
        number: int = 1,
        cores: int | None = None,
        limits: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """A pod of one container that requests shares."""
        amounts = {NUMBER: number, MEMORY: memory, CORES: cores}
        wanted = {name: amount for name, amount in amounts.items() if amount is not None}
        self.pod(name, limits={**wanted, **(limits or {})}, **more)

    def uses(self, node: str) -> list[tuple[int, int, int]]:
        """Number, memory and cores in use of each card."""
        ledger = self.plugin("deviceshare").rows.by_node[node].ledgers[0]
        return [(card.use.number, card.use.memory, card.use.cores) for card in ledger.cards]


class VgpuHarness(SharedCardObjects):
    """A harness with deviceshare and queue q."""

    def __init__(self, text: str | None = None, **more: Any) -> None:
        super().__init__(conf() if text is None else text, **more)
        super().queue("q")

    def pod_changed(self, key: str) -> ObjectChanged:
        """The delta of a pod as it is, by `namespace/name`."""
        return ObjectChanged(msgspec.convert(self._pods[key], PodObject))
