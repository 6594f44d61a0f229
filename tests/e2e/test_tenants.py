"""A tenant with rights on pods and PodGroups never holds more cards than the quota of his queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from capcard_sched.model.annotations import CARD_NAME, POD_QUEUE_NAME, QUEUE_NAMESPACES
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import gang, gpu_node, pod, queue
from tests.e2e.card.expectations import wants
from tests.e2e.card.stage import eventually
from tests.e2e.daemons import CARD_CONF, Daemon

H200 = "NVIDIA-H200"
#: The daemon runs with its built-in scheduler-conf, as installed; in the tests of preemption with this one.
PREEMPT_CONF = CARD_CONF.replace("allocate, backfill", "allocate, preempt, backfill").replace(
    "{name: gang}", "{name: gang, enablePreemptable: false}"
)
Attack = Callable[[Cluster], Awaitable[None]]

pytestmark = pytest.mark.asyncio


def rename(text: str | None) -> Attack:
    async def attack(cluster: Cluster) -> None:
        for index in range(4):
            await cluster.patch("pods", f"held-{index}", {"metadata": {"annotations": {CARD_NAME: text}}})

    return attack


async def delete_group(cluster: Cluster) -> None:
    await cluster.delete("podgroups", "held")


async def move_group(cluster: Cluster) -> None:
    await cluster.patch("podgroups", "held", {"spec": {"queue": "other"}})


async def delete_slowly(cluster: Cluster) -> None:
    for index in range(4):
        await cluster.delete("pods", f"held-{index}", grace=1_000_000)
    await cluster.delete("podgroups", "held")


async def nothing(_: Cluster) -> None:
    return


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("attack", "target", "cards"),
    [
        pytest.param(rename(None), "q", H200, id="the card name is removed"),
        pytest.param(rename("OTHER"), "q", H200, id="the card name is changed"),
        pytest.param(rename("A||"), "q", H200, id="the card name is malformed"),
        pytest.param(delete_group, "q", H200, id="the PodGroup is deleted"),
        pytest.param(move_group, "q", H200, id="the PodGroup changes its queue"),
        pytest.param(delete_slowly, "q", H200, id="the pods terminate slowly"),
        pytest.param(nothing, "q", "", id="no card name"),
        pytest.param(nothing, "theirs", H200, id="the queue of another team"),
        pytest.param(nothing, "root", H200, id="root"),
        pytest.param(nothing, "root", None, id="root, without cards"),
    ],
)
async def test_no_action_of_a_tenant_gets_more_cards_than_the_quota(
    cluster: Cluster,
    control_plane: ControlPlane,
    kubelet: Kubelet,
    tmp_path: Path,
    attack: Attack,
    target: str,
    cards: str | None,
) -> None:
    kubelet.stop_delay = 600.0
    await cluster.create_all(
        [
            gpu_node("n1", H200, 8),
            gpu_node("n2", H200, 8),
            queue("q", cards={H200: 4}),
            queue("other", cards={}),
            queue("theirs", cards={H200: 16}, annotations={QUEUE_NAMESPACES: "somebody-else"}),
        ]
    )
    held = {f"held-{index}" for index in range(4)}
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path) as daemon:
        await cluster.create_all(gang("held", 4, queue="q", cards=H200, requests=wants()))
        await eventually(cluster.bound, "the first gang to be bound", lambda bound: bound.keys() == held)
        await attack(cluster)
        requests = {"cpu": "1"} if cards is None else wants()
        await cluster.create_all(gang("more", 4, queue=target, cards=cards or "", requests=requests))
        await settled(daemon)
        assert (await cluster.bound()).keys() == held
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, name="again") as daemon:
        await settled(daemon)
        assert (await cluster.bound()).keys() == held


@pytest.mark.campaign
async def test_bare_pods_that_change_their_queue_free_no_quota(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, tmp_path: Path
) -> None:
    await cluster.create_all([gpu_node("n1", H200, 8), queue("q", cards={H200: 4}), queue("other", cards={})])
    await cluster.create_all([pod(f"held-{i}", queue="q", cards=H200, requests=wants()) for i in range(4)])
    held = {f"held-{index}" for index in range(4)}
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path) as daemon:
        await eventually(cluster.bound, "the first pods to be bound", lambda bound: bound.keys() == held)
        for name in sorted(held):
            await cluster.patch("pods", name, {"metadata": {"annotations": {POD_QUEUE_NAME: "other"}}})
        await cluster.create_all([pod(f"more-{i}", queue="q", cards=H200, requests=wants()) for i in range(4)])
        await settled(daemon)
        assert (await cluster.bound()).keys() == held
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, name="again") as daemon:
        await settled(daemon)
        assert (await cluster.bound()).keys() == held


@pytest.mark.campaign
@pytest.mark.parametrize("critical", ["system-cluster-critical", "system-node-critical"])
async def test_a_critical_class_of_a_podgroup_evicts_no_pod_of_another_team(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, tmp_path: Path, critical: str
) -> None:
    await cluster.create_all([gpu_node("n1", H200, 4), queue("q", cards={H200: 8})])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=PREEMPT_CONF) as daemon:
        await cluster.create_all(gang("theirs", 4, queue="q", cards=H200, requests=wants()))
        await eventually(cluster.bound, "the gang to be bound", lambda bound: len(bound) == 4)
        group, *members = gang("mine", 4, queue="q", cards=H200, requests=wants())
        group["spec"]["priorityClassName"] = critical
        await cluster.create_all([group, *members])
        await settled(daemon)
        pods = await cluster.list("pods")
        assert not [one["metadata"]["name"] for one in pods if "deletionTimestamp" in one["metadata"]]
        assert len(pods) == 8


@pytest.mark.campaign
async def test_the_default_queue_of_the_namespace_limits_podgroups_that_name_none(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, tmp_path: Path
) -> None:
    await cluster.patch("namespaces", cluster.namespace, {"metadata": {"annotations": {POD_QUEUE_NAME: "q"}}})
    await cluster.create_all([gpu_node("n1", H200, 8), queue("q", cards={H200: 4})])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path) as daemon:
        for name in ("first", "second", "third"):
            group, *members = gang(name, 2, cards=H200, requests=wants())
            del group["spec"]["queue"]
            await cluster.create_all([group, *members])
        await eventually(cluster.bound, "two gangs to be bound", lambda bound: len(bound) == 4)
        await settled(daemon)
        assert len(await cluster.bound()) == 4


async def settled(daemon: Daemon) -> None:
    """Return after sessions that had the time to bind."""
    await daemon.logged("caches synced")
    await eventually(lambda: daemon.metric("volcano_cycles_total"), "some sessions", lambda cycles: cycles >= 3)
