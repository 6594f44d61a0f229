"""A stand-in for the device plugin of one node, written from its protocol: annotations in, annotations out.

It registers cards, reports when a handshake requests it, and serves containers: of the pods whose `vgpu-node` is this
node and whose `bind-phase` is `allocating`, the one with the smallest `vgpu-time`; of it the first segment of
`devices-to-allocate`. It shares no code with the scheduler.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from tests.controlplane.cluster import ALL, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest
from tests.controlplane.node_agent import NodeAgent

REGISTER: Final = "volcano.sh/node-vgpu-register"
HANDSHAKE: Final = "volcano.sh/node-vgpu-handshake"
LOCK: Final = "hamivgpu"
NODE, TIME = "volcano.sh/vgpu-node", "volcano.sh/vgpu-time"
DEVICES, PHASE = "volcano.sh/devices-to-allocate", "volcano.sh/bind-phase"
SERVED_TIME: Final = "18446744073709551615"
_NUMBER = "volcano.sh/vgpu-number"


class Served(NamedTuple):
    """One container that got its devices."""

    pod: str
    environment: dict[str, str]


class DevicePlugin(NodeAgent):
    """The plugin of one node; `factor` is the MiB of a memory unit. `paused` stops it from serving and reporting."""

    def __init__(self, control_plane: ControlPlane, node: str, *, factor: int = 1, paused: bool = False) -> None:
        super().__init__(control_plane)
        self.node = node
        self.paused = paused
        self.served: list[Served] = []
        self.reports = 0
        self._factor = factor

    async def register(self, cards: str, *, handshake: bool = True) -> None:
        """Publish a card list."""
        notes = {REGISTER: cards}
        if handshake:
            notes[HANDSHAKE] = _reported()
        await self._annotate_node(notes)

    async def _run(self) -> None:
        while True:
            if not self.paused:
                await self._report()
                await self._serve()
            await asyncio.sleep(0.05)

    async def _report(self) -> None:
        node = await self._cluster.get("nodes", self.node, namespace="")
        if "Requesting" in (node["metadata"].get("annotations") or {}).get(HANDSHAKE, ""):
            self.reports += 1
            await self._annotate_node({HANDSHAKE: _reported()})

    async def _serve(self) -> None:
        """One call of Allocate for the pod that was bound first."""
        waiting = []
        for pod in await self._cluster.list("pods", namespace=ALL):
            notes = pod["metadata"].get("annotations") or {}
            bound = pod["spec"].get("nodeName") == self.node == notes.get(NODE)
            if bound and notes.get(PHASE) == "allocating":
                waiting.append((int(notes[TIME]), pod))
        if waiting:
            await self._allocate(min(waiting, key=lambda each: each[0])[1])

    async def _allocate(self, pod: Manifest) -> None:
        segments = pod["metadata"]["annotations"][DEVICES].split(";")
        index = next((at for at, segment in enumerate(segments) if "," in segment), None)
        devices = [] if index is None else [part.split(",") for part in segments[index].split(":") if part]
        wanted = 0
        if index is not None:
            limits = pod["spec"]["containers"][index].get("resources", {}).get("limits", {})
            wanted = int(limits.get(_NUMBER, 1))
        if index is None or len(devices) != wanted:
            await self._finish(pod, {PHASE: "failed", TIME: SERVED_TIME})
            return
        environment = {"NVIDIA_VISIBLE_DEVICES": ",".join(device[0] for device in devices)}
        for number, device in enumerate(devices):
            environment[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] = f"{int(device[2]) * self._factor}m"
        environment["CUDA_DEVICE_SM_LIMIT"] = devices[0][3]
        self.served.append(Served(pod["metadata"]["name"], environment))
        segments[index] = ""
        notes = {DEVICES: ";".join(segments)}
        if not any(segments):
            notes |= {PHASE: "success", TIME: SERVED_TIME}
        await self._finish(pod, notes)

    async def _finish(self, pod: Manifest, notes: dict[str, str]) -> None:
        try:
            await self._cluster.patch(
                "pods", pod["metadata"]["name"], {"metadata": {"annotations": notes}}, namespace=_namespace(pod)
            )
        except RequestError as error:
            if error.status != 404:
                raise
        if PHASE in notes:
            await self._annotate_node({LOCK: None})

    async def _annotate_node(self, notes: dict[str, Any]) -> None:
        await self._cluster.patch("nodes", self.node, {"metadata": {"annotations": notes}}, namespace="")


def _namespace(pod: Manifest) -> str:
    return str(pod["metadata"]["namespace"])


def _reported() -> str:
    return f"Reported {datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f} +0000 UTC"
