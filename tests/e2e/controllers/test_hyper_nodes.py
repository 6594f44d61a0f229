"""HyperNodes from node labels on an API server, with the rights of the installation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, node
from tests.controlplane.preparation import prepare
from tests.e2e.daemons import QUICK_ELECTION, Controllers
from tests.e2e.rbac.installed import SYSTEM, account, flags_of, install
from tests.manifests.documents import MANIFESTS, read

_ACCOUNT = "capcard-sched-controllers"
_KIND = "hypernodes.topology.volcano.sh"
_LIMIT = 60.0
_CONF = """
networkTopologyDiscovery:
- source: label
  enabled: true
  config: {networkTopologyTypes: {t: [nodeLabel: zone, nodeLabel: rack, nodeLabel: kubernetes.io/hostname]}}
"""


async def _eventually(check: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    deadline = time.monotonic() + _LIMIT
    while (found := await check()) != wanted:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)


async def _play(control_plane: ControlPlane, folder: Path) -> None:
    file = folder / "volcano-controller.conf"
    file.write_text(_CONF)
    async with Cluster(control_plane) as admin:
        await prepare(admin)
        await admin.wipe()
        await admin.make_namespace(SYSTEM)
        await install(admin, MANIFESTS / "controllers")
        rights = read(MANIFESTS / "hyper-nodes" / "rbac.yaml")
        await admin.create_all(rights)
        flags = [*await flags_of(admin, _ACCOUNT), *QUICK_ELECTION, f"--network-topology-discovery={file}"]
        kubeconfig = await account(admin, _ACCOUNT)

        async def members() -> dict[str, list[str]]:
            return {
                each["metadata"]["name"].removeprefix("hypernode-t-"): [
                    member["selector"]["exactMatch"]["name"] for member in each["spec"]["members"]
                ]
                for each in await admin.list(_KIND)
            }

        try:
            for name, labels in (("a", {"rack": "r1", "zone": "z"}), ("b", {"rack": "R2"})):
                made = node(name, cpu="1", memory="1Gi")
                made["metadata"].setdefault("labels", {}).update(labels)
                await admin.create(made)
            async with Controllers(kubeconfig, folder, *flags, name="controllers"):
                await _eventually(lambda: _count(members), 3)
                (second,) = (name for name in await members() if name.startswith("tier1-r2."))
                zone = ["hypernode-t-tier1-r1"]
                await _eventually(members, {"tier1-r1": ["a"], second: ["b"], "tier2-z": zone})
                await admin.patch("nodes", "b", {"metadata": {"labels": {"rack": "r1"}}})
                await _eventually(members, {"tier1-r1": ["a", "b"], "tier2-z": zone})
                await admin.patch(_KIND, "hypernode-t-tier1-r1", {"spec": {"members": []}})
                await _eventually(members, {"tier1-r1": ["a", "b"], "tier2-z": zone})
                await admin.delete(_KIND, "hypernode-t-tier2-z")
                await _eventually(members, {"tier1-r1": ["a", "b"], "tier2-z": zone})
            await admin.patch("nodes", "a", {"metadata": {"labels": {"rack": None, "zone": None}}})
            # The next leader finds what its predecessor made.
            async with Controllers(kubeconfig, folder, *flags, name="next"):
                await _eventually(members, {"tier1-r1": ["b"]})
            await _withdraw(admin, rights)
            rights = []
            # Without the rights the other controllers start, and HyperNodes stay.
            async with Controllers(kubeconfig, folder, *flags, name="without-rights") as running:
                await running.logged("controllers started")
                await admin.patch("nodes", "b", {"metadata": {"labels": {"rack": "r3"}}})
                await running.logged("list/watch forbidden")
                assert await members() == {"tier1-r1": ["b"]}
        finally:
            await _withdraw(admin, rights)
            for each in await admin.list(_KIND):
                await admin.delete(_KIND, each["metadata"]["name"], grace=None)
            await admin.wipe()


async def _withdraw(admin: Cluster, rights: list[Manifest]) -> None:
    for each in rights:
        await admin.delete(f"{each['kind'].lower()}s.rbac.authorization.k8s.io", each["metadata"]["name"], grace=None)


async def _count(found: Callable[[], Awaitable[dict[str, Any]]]) -> int:
    return len(await found())


@pytest.mark.timeout(300)
def test_hyper_nodes_follow_the_labels_of_nodes(control_plane: ControlPlane, tmp_path: Path) -> None:
    asyncio.run(_play(control_plane, tmp_path))
