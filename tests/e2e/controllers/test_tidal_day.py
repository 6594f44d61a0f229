"""A tidal day: inference takes the cards of training gangs in the morning and gives them back in the evening.

One gang restarts when one of its pods is evicted, the other aborts and is resumed by its owner. At noon the leader of
the controllers is killed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from capcard_sched.model import annotations as keys
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import Manifest, deployment, gpu_node, queue
from tests.e2e.checker import prove
from tests.e2e.controllers.conftest import Jobs
from tests.e2e.daemons import QUICK_ELECTION, TIDE_CONF, Controllers, Daemon
from tests.e2e.expectations import until
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

#: Card model of the nodes and queues of each gang, by the policy for its evictions.
_CARDS = {"RestartJob": "NVIDIA-H200", "AbortJob": "NVIDIA-A100"}
_SERVICE, _GANG = "volcano.sh/service.type", {"RestartJob": "restarts", "AbortJob": "aborts"}


def _pod_template(card: str, count: int, **annotations: str) -> Manifest:
    cards = {"nvidia.com/gpu": str(count)}
    container = {"name": "main", "image": "main:1", "resources": {"requests": {"cpu": "1", **cards}, "limits": cards}}
    spec = {"terminationGracePeriodSeconds": 2, "containers": [container], "schedulerName": "capcard-sched"}
    return {"metadata": {"annotations": {keys.CARD_NAME: card, **annotations}}, "spec": spec}


async def _furnish(cluster: Cluster) -> None:
    """For each gang two nodes of four cards, a queue for inference and one for training."""
    manifests: list[Manifest] = []
    for policy, card in _CARDS.items():
        gang = _GANG[policy]
        manifests += [gpu_node(f"{gang}-{number}", card, 4, cpu=32, memory="64Gi") for number in (1, 2)]
        manifests.append(queue(f"{gang}-i", cards={card: 8}, priority=80000, reclaimable=False))
        manifests.append(queue(f"{gang}-t", cards={card: 8}, priority=20000, reclaimable=True))
    await cluster.create_all(manifests)


async def _deploy(cluster: Cluster, gang: str, card: str) -> None:
    """Inference without replicas at night; each takes the cards of a node."""
    template = _pod_template(card, 4, **{keys.POD_QUEUE_NAME: f"{gang}-i"})
    made = deployment(f"{gang}-chat", 0, template)
    made["metadata"]["annotations"] = {_SERVICE: "inference"}
    await cluster.create(made)


async def test_training_gangs_leave_as_a_whole_and_come_back_once(
    cluster: Cluster,
    control_plane: ControlPlane,
    history: History,
    kubelet: Kubelet,
    workloads: None,
    tmp_path: Path,
) -> None:
    kubelet.stop_delay = 1.0
    jobs = Jobs(cluster)
    await _furnish(cluster)
    flags = (*QUICK_ELECTION, f"--leader-elect-resource-namespace={cluster.namespace}")
    config = control_plane.kubeconfig_for("admin")
    async with (
        Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=TIDE_CONF) as daemon,
        Controllers(config, tmp_path, *flags, name="first") as first,
        Controllers(config, tmp_path, *flags, name="second") as second,
    ):
        night: dict[str, set[str]] = {}
        for policy, card in _CARDS.items():
            gang = _GANG[policy]
            template = _pod_template(card, 4)
            await jobs.create(
                gang,
                tasks=[{"name": "w", "replicas": 2, "template": template}],
                queue=f"{gang}-t",
                policies=[{"event": "PodEvicted", "action": policy}],
                maxRetry=9,
            )
            await _deploy(cluster, gang, card)
        for gang in _GANG.values():
            await jobs.phase(gang, "Running", within=90)
            night[gang] = {pod["metadata"]["uid"] for pod in (await jobs.pods(gang)).values()}

        # Morning: one replica needs the cards of one member. The other member leaves with it.
        for gang in _GANG.values():
            await cluster.patch("deployments", f"{gang}-chat", {"spec": {"replicas": 1}})
        for gang in _GANG.values():
            await until(cluster, "pods", f"{gang}-chat-*", count=1, within=90, status={"phase": "Running"})
        aborted = await jobs.phase("aborts", "Aborted", within=90)
        assert (aborted["status"].get("retryCount", 0), await jobs.pods("aborts")) == (0, {})
        waiting = await jobs.phase("restarts", "Pending", within=90)
        assert waiting["status"]["retryCount"] == 1

        # The gang that restarts does not fit beside inference: no member runs, and it takes nothing back.
        await until(cluster, "pods", "restarts-w-*", count=0, spec={"nodeName": "*"})
        assert len(await cluster.list("pods", labelSelector="app=restarts-chat")) == 1

        leader, standby = (first, second) if first.lines("became leader") else (second, first)
        assert standby.lines("became leader") == []
        await leader.kill()

        # Evening: inference leaves. One gang returns by itself, the other when its owner resumes it.
        for gang in _GANG.values():
            await cluster.patch("deployments", f"{gang}-chat", {"spec": {"replicas": 0}})
        returned = await jobs.phase("restarts", "Running", within=90)
        assert returned["status"]["retryCount"] == 1, "one eviction of a gang is one retry"
        assert (await jobs.get("aborts"))["status"]["state"]["phase"] == "Aborted"
        await jobs.command("ResumeJob", "aborts")
        resumed = await jobs.phase("aborts", "Running", within=90)
        assert resumed["status"]["retryCount"] == 1
        for gang, before in night.items():
            after = {pod["metadata"]["uid"] for pod in (await jobs.pods(gang)).values()}
            assert len(after) == 2
            assert not after & before
        assert await daemon.metric("volcano_evictions_total", reason="reclaim") == 4
        await prove(history, daemon)
        assert len(standby.lines("became leader")) == 1
        assert first.lines("reconcile failed") + second.lines("reconcile failed") == []
        assert await standby.stop() == 0
