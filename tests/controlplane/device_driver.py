"""A driver of dynamic resource allocation: it publishes devices, and prepares those with binding conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import aiohttp

from tests.controlplane.cluster import ALL, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, plain
from tests.controlplane.node_agent import NodeAgent

API = "resource.k8s.io/v1"


def device_class(name: str, expression: str = "") -> Manifest:
    """A DeviceClass with one selector, by default all devices of the driver of this name."""
    selected = expression or f'device.driver == "{name}"'
    return plain("DeviceClass", name, API, spec={"selectors": [{"cel": {"expression": selected}}]})


class DeviceDriver(NodeAgent):
    """One driver on all nodes, as user `kubelet`. Devices with binding conditions get them all, unless `paused`."""

    def __init__(self, control_plane: ControlPlane, name: str, *, paused: bool = False) -> None:
        super().__init__(control_plane)
        self.name = name
        self.paused = paused
        #: Pool to its generation and number of slices.
        self._pools: dict[str, tuple[int, int]] = {}

    async def publish(self, node: str, devices: Sequence[Manifest], *, counters: Sequence[Manifest] = ()) -> None:
        """The pool of a node has these devices from now on, as a new generation; counters have a slice of their own."""
        generation, former = self._pools.get(node, (0, 0))
        pool = {"name": node, "generation": generation + 1, "resourceSliceCount": 1 + bool(counters)}
        common = {"driver": self.name, "nodeName": node, "pool": pool}
        parts: list[dict[str, Any]] = [{"devices": list(devices)}]
        if counters:
            parts.append({"sharedCounters": list(counters)})
        for number, part in enumerate(parts):
            name = f"{node}-{self.name}-{generation + 1}-{number}"
            await self._cluster.create(plain("ResourceSlice", name, API, spec={**common, **part}))
        for number in range(former):
            await self._cluster.delete("resourceslices", f"{node}-{self.name}-{generation}-{number}")
        self._pools[node] = generation + 1, len(parts)

    async def _run(self) -> None:
        while True:
            try:
                for claim in await self._cluster.list("resourceclaims", namespace=ALL):
                    if not self.paused:
                        await self._prepare(claim)
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass  # the API server restarts
            except RequestError as answer:
                if answer.status not in {404, 409, 422} and answer.status < 500:
                    raise
            await asyncio.sleep(0.2)

    async def _prepare(self, claim: Manifest) -> None:
        """Report the conditions of allocated devices, as a driver does that attached them."""
        meta, status = claim["metadata"], claim.get("status", {})
        results = status.get("allocation", {}).get("devices", {}).get("results") or ()
        mine = [each for each in results if each["driver"] == self.name and each.get("bindingConditions")]
        reported = {(each["pool"], each["device"]) for each in status.get("devices") or ()}
        new = [
            {
                "driver": self.name,
                "pool": each["pool"],
                "device": each["device"],
                "conditions": [_condition(name) for name in each["bindingConditions"]],
            }
            for each in mine
            if (each["pool"], each["device"]) not in reported
        ]
        if new:
            patch = {
                "metadata": {"resourceVersion": meta["resourceVersion"]},
                "status": {"devices": [*(status.get("devices") or ()), *new]},
            }
            await self._cluster.patch(
                "resourceclaims", meta["name"], patch, namespace=meta["namespace"], subresource="status"
            )


def _condition(name: str) -> Manifest:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": name, "status": "True", "reason": "Prepared", "message": "", "lastTransitionTime": now}
