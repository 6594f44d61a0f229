"""The daemon on a real API server, from its start to its end, as seen from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from capcard_sched.model.annotations import GROUP_NAME
from tests.clock import until as wait_for
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import gang, gpu_node, node, pod, pod_group, queue
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, Controllers, Daemon
from tests.e2e.expectations import message, until, until_bound
from tests.e2e.history import History

_CARD = {"cpu": "1", "nvidia.com/gpu": "1"}
#: The resource of a DeviceClass.
_CLASS: Final = "deviceclass.resource.kubernetes.io/gpu.example.com"


@pytest.mark.compat
async def test_a_gang_within_its_quota_is_bound_and_one_beyond_it_gets_the_reason(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, tmp_path: Path
) -> None:
    """Pods without a group are bound before any controller runs, in the queues that the daemon makes at its start."""
    await cluster.create_all(
        [gpu_node("n1", "A10", 8), queue("q", cards={"A10": 4}, capability={"cpu": "64", "memory": "64Gi"})]
    )
    fits = gang("fits", 4, queue="q", cards="A10", requests=_CARD)
    waits = gang("waits", 2, queue="q", cards="A10", requests=_CARD)
    await cluster.create_all([*fits, *waits, pod("bare"), pod("foreign", scheduler="somebody-else")])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await until_bound(cluster, 5)
        await until(cluster, "events", reason="InsufficientScalarQuota")
        assert await cluster.bound() == dict.fromkeys(("bare", *(f"fits-{member}" for member in range(4))), "n1")
        await until(cluster, "queues", count=3)
        assert {queue["metadata"]["name"] for queue in await cluster.list("queues")} == {"default", "root", "q"}
        await until(cluster, "podgroups", "fits", status={"phase": "Running"})
        assert (await daemon.get("/healthz"))[0] == 200
        assert (await daemon.get("/readyz"))[0] == 200
        await daemon.until_metric("volcano_pods_bound_total", 5)

        async def is_counted() -> bool:
            return await daemon.metric("volcano_queue_card_seconds_total", queue="q", card="A10") > 0

        await wait_for(is_counted, "card-seconds of the gang")
        assert await daemon.stop() == 0
    assert not [line for line in daemon.lines() if line["level"] in ("error", "critical")]


async def test_a_pod_with_a_missing_resource_claim_is_not_bound(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """The claim does not exist. The reason of a resource that no DeviceClass offers names it."""
    claims = [{"name": "gpu", "resourceClaimName": "missing"}]
    await cluster.create_all(
        [
            node("n1", cpu=8),
            queue("q", capability={"cpu": "64", "memory": "64Gi"}),
            pod("claims", queue="q", resourceClaims=claims),
            pod_group("g", queue="q", members=2),
            pod("g-0", group="g"),
            pod("g-1", group="g", resourceClaims=claims),
            pod("extended", queue="q", requests={"cpu": "1", _CLASS: "1"}),
        ]
    )
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:
        await until(cluster, "pods", "claims", status=message('resourceclaim "missing" not found'))
        await until(cluster, "pods", "g-1", status=message('resourceclaim "missing" not found'))
        await until(cluster, "pods", "extended", status=message(f"Insufficient {_CLASS}"))
        await until(cluster, "events", reason="FailedScheduling", message='*resourceclaim "missing" not found*')
        await cluster.create_all([pod("plain", queue="q")])
        await until_bound(cluster, ["plain"])
        assert set(await cluster.bound()) == {"plain"}
        assert await daemon.stop() == 0


@pytest.mark.campaign
async def test_controllers_that_race_the_scheduler_cost_no_second_decision(
    cluster: Cluster, control_plane: ControlPlane, history: History, tmp_path: Path
) -> None:
    """A pod without a group is bound, and gets the PodGroup that the controllers make for it, in either order."""
    nodes = [node(f"n{index}", cpu=8) for index in range(5)]
    await cluster.create_all([*nodes, queue("q", capability={"cpu": "64", "memory": "256Gi"})])
    async with (
        Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon,
        Controllers(control_plane.kubeconfig_for("admin"), tmp_path) as controllers,
    ):
        await daemon.logged("caches synced")
        await controllers.logged("controllers started")
        await cluster.create_all(pod(f"bare-{index}", queue="q") for index in range(40))
        await until(cluster, "podgroups", count=40, status={"phase": "Running"})
        await until(cluster, "pods", count=40, metadata={"annotations": {GROUP_NAME: "*"}})
        await until(cluster, "queues", "q", status={"allocated": {"pods": "40", "cpu": "40"}})
        assert len((await prove(history, daemon)).binds) == 40


PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_PODS: Final = 150
#: Attempts for the pods of queue `hostile` take some seconds each, and are counted in a file.
_PLUGIN: Final = """
import time
from capcard_sched.framework.api.plugin import Plugin

class Costly(Plugin):
    name = "costly"

    def allocatable(self, queue, task):
        if queue.name == "hostile":
            with open({path!r}, "a") as file:
                file.write(task.name + "\\n")
            time.sleep({seconds})
"""
_CONF: Final = """
actions: "allocate"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: costly}, {name: predicates}]
"""


def _plugin(folder: Path, seconds: float) -> tuple[Path, Path]:
    """The folder of the plugin, and the file of its attempts."""
    tried, plugins = folder / "tried", folder / "plugins"
    tried.touch()
    plugins.mkdir()
    (plugins / "costly.py").write_text(_PLUGIN.format(path=str(tried), seconds=seconds))
    return plugins, tried


@pytest.mark.campaign
async def test_a_healthy_job_is_bound_before_another_queue_was_tried_to_its_end(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    plugins, tried = _plugin(tmp_path, 0.2)
    await cluster.create_all([node("n", cpu="8"), queue("hostile"), queue("healthy")])
    await cluster.create_all(
        [pod(f"hostile-{number}", queue="hostile", requests={"cpu": "100"}) for number in range(_PODS)]
    )
    flags = (f"--plugins-dir={plugins}", "--session-deadline=1s", f"--record={tmp_path / 'day.jsonl'}")
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, *flags, conf=_CONF) as daemon:
        await cluster.wait_until(tried.read_text, "the first attempts")
        await cluster.create_all([pod("healthy", queue="healthy", requests={"cpu": "1"})])
        await cluster.wait_until(cluster.bound, "the healthy pod to be bound")
        assert len(tried.read_text().splitlines()) < _PODS
        assert (await cluster.bound()).keys() == {"healthy"}

        line = await daemon.logged("queue used its share of the session deadline", within=60)
        name = "volcano_queue_deadline_sessions_total"
        assert await daemon.metric(name, queue_name="hostile") >= 1
        assert await daemon.metric(name, queue_name="healthy") == 0
        assert line["queue"] == "hostile"
        await daemon.stop()
    assert '"cuts":{"hostile":{"share":' in (tmp_path / "day.jsonl").read_text()


@pytest.mark.campaign
async def test_a_long_session_is_reported_and_delays_no_probe_and_no_shutdown(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    plugins, tried = _plugin(tmp_path, 300.0)
    await cluster.create_all([node("n"), queue("hostile")])
    flags = (f"--plugins-dir={plugins}",)
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, *flags, conf=_CONF) as daemon:
        await cluster.create(pod("hostile", queue="hostile"))
        await cluster.wait_until(tried.read_text, "the long session")
        await daemon.logged("slow scheduling cycle", within=90)
        for page in ("/healthz", "/readyz", "/metrics"):
            status, _ = await daemon.get(page)
            assert status == 200, page
        await daemon.stop(within=6.0)


# --- many affinity terms ----------------------------------------------------------------------------------------------


@pytest.mark.campaign
async def test_flags_limit_the_affinity_terms_and_spread_constraints_of_a_pod(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    selector = {"matchLabels": {"app": "a"}}
    keys = ("kubernetes.io/hostname", "zone", "rack")
    terms = [{"weight": 1, "podAffinityTerm": {"labelSelector": selector, "topologyKey": key}} for key in keys]
    spread = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
    constraints: list[Any] = [{**spread, "topologyKey": key} for key in keys]
    await cluster.create_all(
        [
            node("n"),
            *(pod(f"terms-{n}", affinity={"podAffinity": {PREFERRED: terms[:n]}}) for n in (2, 3)),
            *(pod(f"spread-{n}", topologySpreadConstraints=constraints[:n]) for n in (1, 2)),
        ]
    )
    flags = ("--max-affinity-terms=2", "--max-spread-constraints=1")
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, *flags):
        for name, text in {
            "terms-3": "pod has 3 affinity terms, the limit is 2",
            "spread-2": "pod has 2 topology spread constraints, the limit is 1",
        }.items():
            await until(cluster, "pods", name, within=120, status=message(text))
        await until_bound(cluster, {"terms-2", "spread-1"})
        assert len(await cluster.bound()) == 2
