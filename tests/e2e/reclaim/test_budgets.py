"""Evictions through the subresource beside PodDisruptionBudgets: protected pods stay whole and unmarked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.e2e.checker import prove
from tests.e2e.daemons import Daemon
from tests.e2e.history import History
from tests.e2e.reclaim.tide import (
    H200,
    PATIENCE,
    ObjectEvent,
    all_events,
    conf,
    evicted,
    furnish,
    given,
    group_evicted,
    leavers,
    make,
    running,
    service,
    settled,
    until_emitted,
    until_running,
    work,
)

pytestmark = pytest.mark.campaign

GUARDED = {"guarded": "yes"}
EVICTION_API = "--use-eviction-api"


@pytest_asyncio.fixture
async def budgets(cluster: Cluster) -> AsyncIterator[None]:
    """The controller that computes how much disruption a budget allows."""
    await asyncio.to_thread(cluster.control_plane.start_controller_manager, "disruption-controller")
    yield
    await asyncio.to_thread(cluster.control_plane.stop_controller_manager)


async def _guard(cluster: Cluster, pods: int) -> None:
    """A budget that lets none of so many running pods go, when its controller has counted them."""
    budget: Manifest = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all-of-them"},
        "spec": {"selector": {"matchLabels": GUARDED}, "minAvailable": pods},
    }
    await cluster.create(budget)

    async def counted() -> bool:
        status = (await cluster.get("poddisruptionbudgets", "all-of-them")).get("status", {})
        return bool(status.get("currentHealthy") == pods and status["disruptionsAllowed"] == 0)

    await cluster.wait_until(counted, "the budget to count its pods", within=PATIENCE)


@pytest.mark.usefixtures("budgets")
@pytest.mark.asyncio
async def test_when_a_budget_forbids_an_eviction_another_pod_is_evicted(
    cluster: Cluster, control_plane: ControlPlane, history: History, slow_kubelet: Kubelet, tmp_path: Path
) -> None:
    """The scheduler reads no budgets here: it learns of this one by the refusal."""
    await furnish(cluster)
    config = control_plane.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path, EVICTION_API, conf=conf()) as daemon:
        await make(cluster, work("guarded", 4, "", labels=GUARDED), work("free", 4, "", priority=40000))
        await until_running(cluster, {"guarded-w-0", "free-w-0"})
        await _guard(cluster, 1)
        await make(cluster, service("r", 4, ""))
        await until_running(cluster, {"guarded-w-0", "r-w-0"})
        assert list(leavers(history.moments)) == ["free-w-0"]
        guarded = await cluster.get("pods", "guarded-w-0")
        assert "DisruptionTarget" not in {row["type"] for row in guarded["status"]["conditions"]}
        emitted = [emitted for emitted in await all_events(cluster, "Evict") if emitted.kind == "Pod"]
        assert emitted == evicted(cluster, ["free-w-0"], f"{H200}: 4", "n1", "r-w-0")
        assert await daemon.metric("volcano_evictions_total", reason="reclaim") == 1
        await prove(history, control_plane, daemon)
        assert await daemon.stop() == 0


@pytest.mark.usefixtures("budgets")
@pytest.mark.asyncio
async def test_without_another_victim_the_refusal_is_reported_and_no_pod_is_evicted(
    cluster: Cluster, control_plane: ControlPlane, history: History, slow_kubelet: Kubelet, tmp_path: Path
) -> None:
    await furnish(cluster)
    config = control_plane.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path, EVICTION_API, conf=conf()) as daemon:
        await make(cluster, work("guarded", 8, "", labels=GUARDED))
        await until_running(cluster, {"guarded-w-0"})
        await _guard(cluster, 1)
        await make(cluster, service("r", 4, ""))
        why = "0/1 nodes can be reclaimed: 1 eviction-refused"
        await until_emitted(cluster, [ObjectEvent("Pod", "r-w-0", "Warning", "ReclaimFailed", why)])
        await settled(daemon)
        assert set(await running(cluster)) == {"guarded-w-0"}
        assert leavers(history.moments) == {}
        assert [emitted for emitted in await all_events(cluster, "Evict") if emitted.kind == "Pod"] == []
        # Room that is free by itself is what it gets in the end.
        await cluster.delete("poddisruptionbudgets", "all-of-them")
        await cluster.delete("pods", "guarded-w-0")
        await until_running(cluster, {"r-w-0"})
        await prove(history, control_plane, daemon)
        assert await daemon.stop() == 0


async def _gang(cluster: Cluster) -> None:
    """A gang of two on two nodes, of which a budget guards the second."""
    group, first, second = work("half", 8, "n1", "n2")
    second["metadata"]["labels"] = GUARDED
    await make(cluster, [group, first, second])
    await until_running(cluster, {"half-w-0", "half-w-1"})
    await _guard(cluster, 1)


@pytest.mark.usefixtures("budgets")
@pytest.mark.asyncio
async def test_a_gang_of_which_a_budget_guards_one_member_is_left_whole(
    cluster: Cluster, control_plane: ControlPlane, history: History, slow_kubelet: Kubelet, tmp_path: Path
) -> None:
    """With the plugin the budgets are checked before any eviction."""
    await furnish(cluster, nodes=2)
    config = control_plane.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path, EVICTION_API, conf=conf("pdb")) as daemon:
        await _gang(cluster)
        await make(cluster, service("r", 4, ""))
        why = "0/2 nodes can be reclaimed: 1 disruption-budget, 1 gang"
        await until_emitted(cluster, [ObjectEvent("Pod", "r-w-0", "Warning", "ReclaimFailed", why)])
        await settled(daemon)
        assert set(await running(cluster)) == {"half-w-0", "half-w-1"}
        assert leavers(history.moments) == {}
        # A deleted budget protects no pod: all of the gang is evicted.
        await cluster.delete("poddisruptionbudgets", "all-of-them")
        node = (await until_running(cluster, {"r-w-0"}))["r-w-0"]
        lacking = f"{H200}: 4"
        await until_emitted(
            cluster,
            [
                *evicted(cluster, ["half-w-0", "half-w-1"], lacking, node, "r-w-0"),
                group_evicted(cluster, "half", 2, "r-w-0"),
                *given(cluster, "r-w-0", "r", 2, node, ["half"], lacking),
            ],
        )
        await prove(history, control_plane, daemon)
        assert await daemon.stop() == 0


@pytest.mark.usefixtures("budgets")
@pytest.mark.asyncio
async def test_a_gang_stays_whole_when_only_the_server_enforces_the_budget(
    cluster: Cluster, control_plane: ControlPlane, history: History, slow_kubelet: Kubelet, tmp_path: Path
) -> None:
    await furnish(cluster, nodes=2)
    config = control_plane.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path, EVICTION_API, conf=conf()) as daemon:
        await _gang(cluster)
        await make(cluster, service("r", 4, ""))
        why = "0/2 nodes can be reclaimed: 2 eviction-refused"
        await until_emitted(cluster, [ObjectEvent("Pod", "r-w-0", "Warning", "ReclaimFailed", why)])
        await settled(daemon)
        assert set(await running(cluster)) == {"half-w-0", "half-w-1"}
        assert leavers(history.moments) == {}
        for name in ("half-w-0", "half-w-1"):
            conditions = (await cluster.get("pods", name))["status"]["conditions"]
            assert "DisruptionTarget" not in {row["type"] for row in conditions}
        await prove(history, control_plane, daemon)
        assert await daemon.stop() == 0
