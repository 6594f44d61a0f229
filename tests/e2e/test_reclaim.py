"""Inference takes cards from training on a real API server: by the Eviction API, beside budgets, across a failover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.model import annotations as keys
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import Manifest, Manifests, gpu_node, plain, pod, pod_group, queue
from tests.e2e.checker import prove
from tests.e2e.daemons import QUICK_ELECTION, TIDE_CONF, Daemon
from tests.e2e.expectations import until
from tests.e2e.history import History, Moment

H200 = "NVIDIA-H200"
#: Much more than anything here takes on an idle machine: it may be a busy one.
PATIENCE = 45.0
GUARDED = {"guarded": "yes"}
EVICTION_API = "--use-eviction-api"
PDB_CONF = f"{TIDE_CONF}  - name: pdb\n"


async def furnish(cluster: Cluster, *, nodes: int, training: int = 16) -> None:
    """Nodes n1, n2 ... of 8 cards, and the queues `qi` for inference and `qt` for training."""
    await cluster.create_all(
        [
            *(gpu_node(f"n{number + 1}", H200, 8, cpu=64, memory="512Gi") for number in range(nodes)),
            queue("qi", cards={H200: 16}, priority=80000, reclaimable=False),
            queue("qt", cards={H200: training}, priority=20000, reclaimable=True),
        ]
    )


async def make(cluster: Cluster, name: str, cards: int, *nodes: str, service: str = "training", **rest: Any) -> None:
    """Create a PodGroup and, one after the other, a pod with `cards` cards for each named node ("" for any)."""
    chosen: list[dict[str, Any]] = [
        {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {} for node in nodes
    ]
    requests = {"cpu": "1", "nvidia.com/gpu": cards}
    notes = {keys.SERVICE_TYPE: service}
    members = rest.pop("minimum", len(nodes))
    made: Manifests = [pod_group(name, queue=f"q{service[0]}", members=members, annotations=notes)]
    for index, where in enumerate(chosen):
        made.append(pod(f"{name}-w-{index}", group=name, cards=H200, requests=requests, grace=600, **where, **rest))
    for manifest in made:
        await cluster.create(manifest)


async def running(cluster: Cluster) -> dict[str, str]:
    """Pod to node of the pods that run, "leaving" for those that terminate."""
    return {
        item["metadata"]["name"]: "leaving" if "deletionTimestamp" in item["metadata"] else item["spec"]["nodeName"]
        for item in await cluster.list("pods")
        if item["status"].get("phase") == "Running" or "deletionTimestamp" in item["metadata"]
    }


async def until_running(cluster: Cluster, names: Collection[str]) -> None:
    """Wait until exactly these pods run and none is terminating."""

    async def so() -> bool:
        found = await running(cluster)
        return set(found) == set(names) and "leaving" not in found.values()

    await cluster.wait_until(so, f"{sorted(names)} to run", within=PATIENCE)


def leavers(moments: Sequence[Moment]) -> dict[str, Manifest]:
    """Deleted pods, by name: as they were last seen."""
    found: dict[str, Manifest] = {}
    for change in (change for moment in moments for change in moment.changes):
        if change.kind == "pods" and "deletionTimestamp" in change.item["metadata"]:
            found[change.item["metadata"]["name"]] = change.item
    return found


def disrupted(pod: Manifest) -> bool:
    conditions = pod["status"].get("conditions") or []
    return ("DisruptionTarget", "PreemptionByScheduler") in {(row["type"], row.get("reason")) for row in conditions}


@pytest.fixture
async def budgets(cluster: Cluster) -> AsyncIterator[None]:
    """The controller that computes how much disruption a budget allows."""
    await asyncio.to_thread(cluster.control_plane.start_controller_manager, "disruption-controller")
    yield
    await asyncio.to_thread(cluster.control_plane.stop_controller_manager)


async def _guard(cluster: Cluster) -> None:
    """A budget that lets none of one running pod go, when its controller has counted it."""
    spec = {"selector": {"matchLabels": GUARDED}, "minAvailable": 1}
    await cluster.create(plain("PodDisruptionBudget", "all-of-them", "policy/v1", spec=spec))
    await until(cluster, "poddisruptionbudgets", status={"currentHealthy": 1, "disruptionsAllowed": 0})


@pytest.mark.usefixtures("budgets")
async def test_when_a_budget_forbids_an_eviction_another_pod_is_evicted(
    cluster: Cluster, control_plane: ControlPlane, history: History, kubelet: Kubelet, tmp_path: Path
) -> None:
    """The scheduler reads no budgets here: it learns of this one by the refusal."""
    kubelet.stop_delay = 1.5
    await furnish(cluster, nodes=1)
    config = control_plane.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path, EVICTION_API, conf=TIDE_CONF) as daemon:
        await make(cluster, "free", 4, "")
        await make(cluster, "guarded", 4, "", labels=GUARDED)  # the younger one, which would go first
        await until_running(cluster, {"guarded-w-0", "free-w-0"})
        await _guard(cluster)
        await make(cluster, "r", 4, "", service="inference")
        await until_running(cluster, {"guarded-w-0", "r-w-0"})
        victims = leavers(history.moments)
        assert {name: disrupted(pod) for name, pod in victims.items()} == {"free-w-0": True}
        assert not disrupted(await cluster.get("pods", "guarded-w-0"))

        def answers() -> bool:
            rows = (row for row in control_plane.audit() if row.subresource == "eviction")
            return ("guarded-w-0", 429) in {(row.name, row.code) for row in rows}

        await cluster.wait_until(answers, "the refusal in the audit log")
        await daemon.until_metric("volcano_evictions_total", 1, reason="reclaim")
        await prove(history, daemon)
        assert await daemon.stop() == 0


@pytest.mark.campaign
@pytest.mark.usefixtures("budgets")
@pytest.mark.parametrize("conf", [PDB_CONF, TIDE_CONF], ids=["checked before", "refused by the server"])
async def test_a_gang_of_which_a_budget_guards_one_member_is_left_whole(
    cluster: Cluster, control_plane: ControlPlane, history: History, kubelet: Kubelet, tmp_path: Path, conf: str
) -> None:
    kubelet.stop_delay = 1.5
    await furnish(cluster, nodes=2)
    config = control_plane.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path, EVICTION_API, conf=conf) as daemon:
        await make(cluster, "half", 8, "n1", "n2")
        await cluster.patch("pods", "half-w-1", {"metadata": {"labels": GUARDED}})
        await until_running(cluster, {"half-w-0", "half-w-1"})
        await _guard(cluster)
        await make(cluster, "r", 4, "", service="inference")
        await until(cluster, "events", reason="ReclaimFailed", involvedObject={"name": "r-w-0"})
        await daemon.settled()
        assert set(await running(cluster)) == {"half-w-0", "half-w-1"}
        assert not any(map(disrupted, await cluster.list("pods")))
        assert leavers(history.moments) == {}
        # A deleted budget protects no pod: all of the gang is evicted. The server's refusal is remembered for longer.
        if conf == PDB_CONF:
            await cluster.delete("poddisruptionbudgets", "all-of-them")
            await until_running(cluster, {"r-w-0"})
        await prove(history, daemon)
        assert await daemon.stop() == 0


@pytest.mark.campaign
@pytest.mark.parametrize("nominated", [True, False], ids=["nominated", "before its node is nominated"])
async def test_a_leader_that_is_killed_after_an_eviction_is_followed_by_one_that_finishes_it(
    cluster: Cluster,
    control_plane: ControlPlane,
    history: History,
    kubelet: Kubelet,
    tmp_path: Path,
    nominated: bool,
) -> None:
    await furnish(cluster, nodes=3, training=32)
    kubelet.stop_delay = 600.0  # victims end when the test deletes them
    one, two = (
        Daemon(control_plane.kubeconfig_for(user), tmp_path, *QUICK_ELECTION, conf=TIDE_CONF, name=user)
        for user in ("scheduler-a", "scheduler-b")
    )
    async with one:
        await one.logged("became leader", within=PATIENCE)
        await make(cluster, "a", 8, "n1")
        await make(cluster, "g", 4, "n2", "n3")
        await make(cluster, "x", 4, "n2", "n3", minimum=1)
        night = {"a-w-0", "g-w-0", "g-w-1", "x-w-0", "x-w-1"}
        await until_running(cluster, night)
        async with two:
            await two.logged("caches synced", within=PATIENCE)
            await make(cluster, "r", 8, "n1", service="inference")

            async def leaving() -> bool:
                return list(leavers(history.moments)) == ["a-w-0"]

            await cluster.wait_until(leaving, "the eviction", within=PATIENCE)
            await until(cluster, "pods", "r-w-0", status={"nominatedNodeName": "n1"})
            await one.kill()
            if not nominated:  # as if it had been killed before it wrote that
                patch = {"status": {"nominatedNodeName": None}}
                await cluster.patch("pods", "r-w-0", patch, subresource="status")
            await two.logged("became leader", within=PATIENCE)
            # Another pending pod does not get the capacity, though it could use it first.
            await make(cluster, "late", 8, "n1")
            await two.settled()
            assert list(leavers(history.moments)) == ["a-w-0"], "no second set of victims"
            await cluster.delete("pods", "a-w-0")
            await until_running(cluster, night - {"a-w-0"} | {"r-w-0"})
            await two.settled()
            assert list(leavers(history.moments)) == ["a-w-0"]
            assert await two.metric("volcano_evictions_total") == 0
            await prove(history, two)
            assert await two.stop() == 0
