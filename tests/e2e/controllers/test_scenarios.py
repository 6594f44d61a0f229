"""The scenarios of the controllers on an API server: all at once, each in its namespace, on one set of processes.

The controllers run as manifests/controllers installs them: their account has the rights they use, and no others.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from capcard_sched.controllers.owner_rules import built_in_rules
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import Manifest, node
from tests.controlplane.preparation import prepare, wait_until_watched
from tests.e2e.admission.server import Admission
from tests.e2e.conftest import WORKLOAD_CONTROLLERS
from tests.e2e.controllers.definitions import of_operators
from tests.e2e.controllers.server_world import ServerWorld
from tests.e2e.daemons import QUICK_ELECTION, Controllers, Daemon
from tests.e2e.rbac.installed import SYSTEM, Audit, Right, account, flags_of, granted_by, install
from tests.manifests.documents import MANIFESTS
from tests.scenarios.controllers.scenario_steps import CONF, GRACE, Player, Step, load_scenarios

_ACCOUNT: Final = "capcard-sched-controllers"
#: Rights of which the use cannot be brought about here, or by chance only.
RARE = {
    # Reads after a write whose response was lost, and after a conflict.
    *(Right(resource, "get") for resource in ("services", "configmaps", "secrets", "persistentvolumeclaims")),
    Right("pods", "get"),
    Right("networkpolicies", "get", "networking.k8s.io"),
    Right("podgroups", "get", "scheduling.volcano.sh"),
    Right("queues", "get", "scheduling.volcano.sh"),
    Right("namespacequeues", "get", "scheduling.volcano.sh"),
    Right("commands", "get", "bus.volcano.sh"),
    Right("jobs", "get", "batch.volcano.sh"),
    Right("cronjobs", "get", "batch.volcano.sh"),
    # The API server of the tests does not enforce blockOwnerDeletion; events are counted up when they repeat.
    *(
        Right(f"{resource}/finalizers", "update", group)
        for resource, group in (
            ("pods", ""),
            ("jobs", "batch"),
            ("jobs", "batch.volcano.sh"),
            ("cronjobs", "batch.volcano.sh"),
            *((each, "apps") for each in ("replicasets", "statefulsets", "daemonsets")),
        )
    ),
    Right("events", "patch"),
    # Kinds of operators are watched.
    *(Right(kind.resource, "get", kind.api_kind.group) for rule in built_in_rules() for kind in rule.owners),
}
_SCENARIOS: Final = {**load_scenarios(), **load_scenarios(Path(__file__).parent)}


class Processes:
    """Scheduler, controllers, admission and kubelets. The controllers may be ended at any time."""

    def __init__(self, config: Path, flags: list[str], folder: Path) -> None:
        self._config = config
        self._flags = flags
        self._folder = folder
        self._started = 0
        self._restarts = asyncio.Lock()
        self.controllers = self._make()

    def _make(self) -> Controllers:
        self._started += 1
        return Controllers(self._config, self._folder, *self._flags, name=f"controllers-{self._started}")

    async def restart_controllers(self) -> None:
        async with self._restarts:
            await self.controllers.kill()
            self.controllers = await self._make().start()

    async def end(self) -> None:
        if self.controllers._process is not None:
            await self.controllers.stop()


async def _play(control_plane: ControlPlane, processes: Processes, name: str, steps: list[Step]) -> str:
    """The trouble of one scenario, "" when there is none."""
    async with Cluster(control_plane) as cluster:
        cluster.namespace = await cluster.make_namespace()
        try:
            await Player(ServerWorld(cluster, processes.restart_controllers)).run(steps)
        except Exception as error:  # noqa: BLE001 - one scenario does not end the others
            return "\n".join((f"{name}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ())))
        return ""


async def _play_all(control_plane: ControlPlane, folder: Path) -> tuple[dict[str, str], Audit, set[Right]]:
    async with Cluster(control_plane) as admin:
        await prepare(admin)
        await admin.wipe()  # what an attempt that failed has left
        await admin.make_namespace(SYSTEM)
        pool = {"pool": "plain"}
        await admin.create_all(node(name, cpu="64", memory="64Gi", labels=pool) for name in ("n1", "n2"))
        definitions = [*of_operators()]
        admission = Admission(admin, folder)
        installation = await install(admin, MANIFESTS / "controllers")
        flags = [*await flags_of(admin, _ACCOUNT), *QUICK_ELECTION]
        audit = Audit(control_plane, f"system:serviceaccount:{SYSTEM}:{_ACCOUNT}")
        granted = granted_by(installation.objects)
        processes = Processes(await account(admin, _ACCOUNT), flags, folder)
        try:
            await _serve(admin, definitions)
            await admission.install()
            await admission.start()
            await asyncio.to_thread(control_plane.start_controller_manager, WORKLOAD_CONTROLLERS)
            config = control_plane.kubeconfig_for("scheduler-a")
            scheduler = Daemon(config, folder, "--wait-for-podgroups", conf=CONF)
            async with scheduler, Kubelet(control_plane, stop_delay=GRACE):
                await processes.controllers.start()
                found = await asyncio.gather(
                    *(_play(control_plane, processes, name, steps) for name, steps in _SCENARIOS.items())
                )
            return dict(zip(_SCENARIOS, found, strict=True)), audit, granted
        finally:
            try:
                await processes.end()
                admission.stop()
            finally:
                await asyncio.to_thread(control_plane.stop_controller_manager)
                for each in definitions:
                    await admin.delete("customresourcedefinitions", each["metadata"]["name"], grace=None)
                await admin.wipe()


async def _serve(admin: Cluster, definitions: list[Manifest]) -> None:
    """The kinds of operators, each one that can be written."""
    await admin.create_all(definitions)

    async def served() -> bool:
        names = {each["metadata"]["name"] for each in definitions}
        return names <= (await admin._resources(fresh=True)).keys()

    await admin.wait_until(served, "the kinds of operators to be served", within=60)
    await wait_until_watched(admin)


_Outcomes = tuple[dict[str, str], Audit, set[Right]]


@pytest.fixture(scope="module")
def outcomes(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> _Outcomes:
    """Scenario to its trouble, the requests of the account of the controllers, and its rights."""
    return asyncio.run(_play_all(control_plane, tmp_path_factory.mktemp("scenarios")))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", _SCENARIOS)
def test_scenario(outcomes: _Outcomes, name: str) -> None:
    assert not outcomes[0][name], outcomes[0][name]


@pytest.mark.timeout(300)
def test_the_account_uses_its_rights_and_lacks_none(outcomes: _Outcomes) -> None:
    _, audit, granted = outcomes
    assert not audit.denied()
    assert audit.used() <= granted
    # This API server lists through the watch; others do not.
    assert {right for right in granted - audit.used() if right.verb != "list"} <= RARE
