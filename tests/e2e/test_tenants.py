"""A tenant with rights on pods and PodGroups never holds more cards than the quota of its queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.model.annotations import CARD_NAME, POD_QUEUE_NAME, QUEUE_NAMESPACES
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import Manifest, gang, gpu_node, pod, queue
from tests.e2e.daemons import CARD_CONF, Daemon
from tests.e2e.expectations import until_bound

H200 = "NVIDIA-H200"
CARD = {"cpu": "100m", "nvidia.com/gpu": "1"}
PREEMPT_CONF = CARD_CONF.replace("allocate, backfill", "allocate, preempt, backfill").replace(
    "{name: gang}", "{name: gang, enablePreemptable: false}"
)
Attack = Callable[[Cluster, str], Awaitable[object]]

pytestmark = pytest.mark.campaign


def annotate(key: str, value: str | None) -> Attack:
    async def attack(cluster: Cluster, name: str) -> None:
        for index in range(4):
            await cluster.patch("pods", f"{name}-{index}", {"metadata": {"annotations": {key: value}}})

    return attack


async def delete_slowly(cluster: Cluster, name: str) -> None:
    for index in range(4):
        await cluster.delete("pods", f"{name}-{index}", grace=1_000_000)
    await cluster.delete("podgroups", name)


async def nothing(_: Cluster, __: str) -> None:
    return


#: By queue: the action on four pods that fill its quota, before four more of a gang want cards of it.
ATTACKS: dict[str, Attack] = {
    "name-removed": annotate(CARD_NAME, None),
    "name-changed": annotate(CARD_NAME, "OTHER"),
    "name-malformed": annotate(CARD_NAME, "A||"),
    "group-deleted": lambda cluster, name: cluster.delete("podgroups", name),
    "group-moved": lambda cluster, name: cluster.patch("podgroups", name, {"spec": {"queue": "other"}}),
    "slow-end": delete_slowly,
    "bare-pods-moved": annotate(POD_QUEUE_NAME, "other"),
    "no-card-name": nothing,
}


def four(name: str, **rest: Any) -> list[Manifest]:
    return gang(name, 4, **{"queue": name, "cards": H200, "requests": CARD, **rest})


async def test_no_action_of_a_tenant_gets_more_cards_than_the_quota(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, tmp_path: Path
) -> None:
    """Neither of the daemon that saw it, nor of one that starts afterwards."""
    kubelet.stop_delay = 600.0
    notes = {"metadata": {"annotations": {POD_QUEUE_NAME: "of-the-namespace"}}}
    await cluster.patch("namespaces", cluster.namespace, notes)
    foreign = queue("theirs", cards={H200: 16}, annotations={QUEUE_NAMESPACES: "somebody-else"})
    await cluster.create_all([foreign, *(gpu_node(f"n{index}", H200, 16, cpu=64) for index in range(8))])
    await cluster.create_all([queue("other", cards={}), queue("of-the-namespace", cards={H200: 4})])
    await cluster.create_all(queue(name, cards={H200: 4}) for name in ATTACKS)
    bare = [pod(f"bare-pods-moved-{index}", queue="bare-pods-moved", cards=H200, requests=CARD) for index in range(4)]
    held = {f"{name}-{index}" for name in ATTACKS for index in range(4)}

    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path) as daemon:
        for name in ATTACKS:
            await cluster.create_all(bare if name == "bare-pods-moved" else four(name))
        await until_bound(cluster, held)
        for name, attack in ATTACKS.items():
            await attack(cluster, name)
            cards = "" if name == "no-card-name" else H200
            await cluster.create_all(four(f"{name}-more", queue=name, cards=cards))
        await cluster.create_all(four("theirs") + four("root") + four("cpu", queue="root", cards="", requests={}))
        for name in ("first", "second", "third"):
            group, *members = gang(name, 2, cards=H200, requests=CARD)
            del group["spec"]["queue"]  # that of the namespace, of which two fit
            await cluster.create_all([group, *members])
        await until_bound(cluster, len(held) + 4)
        await daemon.settled()
        before = await cluster.bound()
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, name="again") as daemon:
        await daemon.settled()
        assert await cluster.bound() == before
    gangs = [name.partition("-")[0] for name in before.keys() - held]
    assert (len(gangs), len({*gangs})) == (4, 2)
    assert {*gangs} < {"first", "second", "third"}


async def test_a_critical_class_of_a_podgroup_evicts_no_pod_of_another_team(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, tmp_path: Path
) -> None:
    await cluster.create_all([gpu_node("n1", H200, 4), queue("q", cards={H200: 12})])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=PREEMPT_CONF) as daemon:
        await cluster.create_all(four("theirs", queue="q"))
        await until_bound(cluster, 4)
        for critical in ("system-cluster-critical", "system-node-critical"):
            group, *members = four(critical, queue="q")
            group["spec"]["priorityClassName"] = critical
            await cluster.create_all([group, *members])
        await daemon.settled()
        pods = await cluster.list("pods")
        assert not [one["metadata"]["name"] for one in pods if "deletionTimestamp" in one["metadata"]]
        assert len(pods) == 12
