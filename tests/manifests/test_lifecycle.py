"""Another scheduler binds pods while ours is installed, upgraded and removed: none of its requests is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import node, plain, pod
from tests.manifests.documents import CHART, INSTALL, read
from tests.manifests.test_install import run

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(600)]

#: The objects of the first release, without CustomResourceDefinitions.
FIRST = Path(__file__).parents[1] / "data" / "install-0.1.0.yaml"
_SYSTEM = "capcard-system"
_SECONDS = 0.2
#: Bindings that must succeed after a step.
_MORE = 5


class OtherScheduler:
    """Creates and binds pods of another scheduler, one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.bound = 0
        self.refusals: list[str] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            name = f"other-{self.bound + len(self.refusals)}"
            try:
                await self._cluster.create(pod(name, scheduler="volcano"))
                await self._cluster.bind(name, "n1")
                await self._cluster.delete("pods", name)
            except RequestError as error:
                self.refusals.append(str(error))
            else:
                self.bound += 1
            await asyncio.sleep(_SECONDS)

    async def goes_on(self, cluster: Cluster, step: str) -> None:
        """More pods are bound, and none was refused."""
        wanted = self.bound + _MORE

        async def is_ahead() -> bool:
            return bool(self.refusals) or self.bound >= wanted

        await cluster.wait_until(is_ahead, f"bindings after {step}", within=120)
        assert self.refusals == [], step


@pytest.fixture
async def other(cluster: Cluster, control_plane: ControlPlane) -> AsyncIterator[OtherScheduler]:
    """The other scheduler at work, and the controller that empties namespaces."""
    await asyncio.to_thread(control_plane.start_controller_manager, "namespace-controller")
    await cluster.create(node("n1"))
    scheduler = OtherScheduler(cluster)
    working = asyncio.create_task(scheduler.run())
    try:
        yield scheduler
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await asyncio.to_thread(control_plane.stop_controller_manager)


async def lead(cluster: Cluster) -> None:
    """A leader holds the Lease: the fence acts."""
    spec = {"holderIdentity": "a", "leaseTransitions": 0}
    with contextlib.suppress(RequestError):  # it is there
        await cluster.create(plain("Lease", "capcard-sched", "coordination.k8s.io/v1", namespace=_SYSTEM, spec=spec))


async def namespace_is_gone(cluster: Cluster) -> None:
    async def is_gone() -> bool:
        return await cluster.find("namespaces", _SYSTEM) is None

    await cluster.wait_until(is_gone, "the end of the namespace", within=120)


async def test_kubectl_installs_removes_upgrades_and_downgrades(
    cluster: Cluster, other: OtherScheduler, kubectl: Path, tmp_path: Path
) -> None:
    # Without CustomResourceDefinitions: with them, all Jobs and Queues of a cluster are deleted.
    present = tmp_path / "present.yaml"
    kept = [each for each in read(INSTALL) if each["kind"] != "CustomResourceDefinition"]
    present.write_text(yaml.safe_dump_all(kept), "utf-8")
    apply = ("apply", "--server-side", "--force-conflicts", "-f")
    delete = ("delete", "--ignore-not-found", "--wait=false", "-f")
    steps: list[tuple[str, tuple[str | Path, ...]]] = [
        ("installation", (*apply, present)),
        ("removal", (*delete, present)),
        ("second installation", (*apply, present)),
        ("removal of the namespace", ("delete", "namespace", _SYSTEM, "--wait=false")),
        ("installation beside the policies that were left", (*apply, present)),
        ("second removal", (*delete, present)),
        ("installation of 0.1.0", (*apply, FIRST)),
        ("upgrade", (*apply, present)),
        ("way back to 0.1.0", (*apply, FIRST)),
        ("second upgrade", (*apply, present)),
        ("last removal", (*delete, present)),
    ]
    for step, words in steps:
        await run(cluster, kubectl, *words)
        if words[0] == "apply":
            await lead(cluster)
        await other.goes_on(cluster, step)
        if words[0] == "delete":
            await namespace_is_gone(cluster)
            await other.goes_on(cluster, f"{step}, when the namespace is gone")


async def test_helm_installs_upgrades_and_removes(
    cluster: Cluster, other: OtherScheduler, kubectl: Path, helm: Path
) -> None:
    release = ("capcard-sched", "--namespace", _SYSTEM)
    steps: list[tuple[str, Path, tuple[str | Path, ...]]] = [
        ("installation", helm, ("install", *release, CHART, "--create-namespace")),
        ("upgrade", helm, ("upgrade", *release, CHART, "--set", "custom.scheduler_replicas=3")),
        ("removal", helm, ("uninstall", *release)),
        ("second installation", helm, ("install", *release, CHART)),
        ("removal of the namespace", kubectl, ("delete", "namespace", _SYSTEM, "--wait=false")),
    ]
    for step, program, words in steps:
        await run(cluster, program, *words)
        if words[0] in ("install", "upgrade"):
            await lead(cluster)
        await other.goes_on(cluster, step)
    await namespace_is_gone(cluster)
    await other.goes_on(cluster, "end of the namespace")
