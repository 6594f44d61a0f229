"""Many claims at once: of single pods and of gangs, on half of all devices, released and allocated again.

`CAPCARD_CLAIMS=5000` is the full size, on 500 nodes of 16 devices; a campaign has a tenth of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.device_driver import DeviceDriver
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import node, queue
from tests.e2e.claims.scenes import H200, claiming, gang, gpu, prove, template
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.history import History

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(3600)]

CLAIMS: Final = int(os.environ.get("CAPCARD_CLAIMS", "500"))
_DEVICES: Final = 16
#: Seconds for all pods of a wave.
_PATIENCE: Final = 60 + CLAIMS / 4


async def until_phases(cluster: Cluster, **wanted: int) -> None:
    """Wait until these numbers of pods are in these phases, and all claims of finished pods are released."""
    found: dict[str, int] = {}

    async def so() -> bool:
        found.clear()
        for each in await cluster.list("pods"):
            phase = each["status"].get("phase", "")
            found[phase] = found.get(phase, 0) + 1
        claims = await cluster.list("resourceclaims")
        found["allocated"] = sum(1 for each in claims if each.get("status", {}).get("allocation"))
        return found == {**wanted, "allocated": wanted["Running"]}

    try:
        await cluster.wait_until(so, f"{wanted}", within=_PATIENCE)
    except AssertionError as error:
        error.add_note(f"there are {found}")
        raise


async def test_claims_by_the_thousand(
    cluster: Cluster, kubelet: Kubelet, driver: DeviceDriver, device_history: History, tmp_path: Path
) -> None:
    """A wave fills the quota. Half of its pods end, and the second wave, which waits for the quota, follows."""
    nodes, half = CLAIMS // 10, CLAIMS // 2
    await cluster.create_all([node(f"n{number}", cpu=64) for number in range(nodes)])
    for number in range(nodes):
        await driver.publish(f"n{number}", [gpu(f"g{device}") for device in range(_DEVICES)])
    limits = {"cpu": str(64 * nodes), "memory": f"{16 * nodes}Gi"}
    await cluster.create_all([queue("q", cards={H200: CLAIMS}, capability=limits), template("one")])
    async with Daemon(cluster.control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await cluster.create_all([claiming(f"single-{number}", "one", queue="q") for number in range(half)])
        gangs = [each for number in range(half // 4) for each in gang(f"gang{number}", 4, "one")]
        await cluster.create_all(gangs)
        in_gangs = half // 4 * 4
        await until_phases(cluster, Running=half + in_gangs)
        second = [claiming(f"second-{number}", "one", queue="q") for number in range(half)]
        await cluster.create_all(second)
        for number in range(half):
            await kubelet.finish(f"single-{number}", namespace=cluster.namespace)
        await until_phases(cluster, Running=in_gangs + half, Succeeded=half)
        left = [f"second-{number}" for number in range(half)]
        left += [f"gang{number}-{index}" for number in range(half // 4) for index in range(4)]
        for name in left:
            await kubelet.finish(name, namespace=cluster.namespace)

        async def released() -> bool:
            claims = await cluster.list("resourceclaims")
            return not any(each.get("status", {}).get("allocation") for each in claims)

        await cluster.wait_until(released, "all claims to be released", within=_PATIENCE)
        await prove(device_history, kubelet, daemon)
        assert await daemon.stop() == 0
