"""What operators and users write about groups, on a real API server: gates, PodGroups without pods, kept usage."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from capcard_sched.model.annotations import GROUP_NAME_ALIAS, QUEUE_ALLOCATION_GATE
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, gpu_node, node, plain, pod, pod_group, queue
from tests.e2e.daemons import Daemon
from tests.e2e.expectations import until, until_bound

CARD: Final = {"cpu": "1", "nvidia.com/gpu": "1"}
_GROVE: Final = "grove.io/podgang-pending-creation"
_FOREIGN: Final = "example.com/x"


def gates(*names: str) -> list[Manifest]:
    return [{"name": name} for name in names]


async def test_a_gate_of_the_queue_goes_without_annotation_and_after_those_of_others(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all([queue("q", cards={"A10": 4}), gpu_node("n1", "A10", 8)])
    ours = pod("ours", queue="q", cards="A10", requests=CARD, schedulingGates=gates(QUEUE_ALLOCATION_GATE))
    both = pod("both", queue="q", cards="A10", requests=CARD, schedulingGates=gates(QUEUE_ALLOCATION_GATE, _FOREIGN))
    await cluster.create_all([ours, both])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path) as daemon:
        await until_bound(cluster, {"ours"})
        await until(cluster, "events", reason="SchedulingGateRemoved", involvedObject={"name": "ours"}, count=1)
        await daemon.settled()
        kept = (await cluster.get("pods", "both"))["spec"]["schedulingGates"]
        assert {gate["name"] for gate in kept} == {QUEUE_ALLOCATION_GATE, _FOREIGN}
        await cluster.patch("pods", "both", {"spec": {"schedulingGates": [{"name": QUEUE_ALLOCATION_GATE}]}})
        await until_bound(cluster, {"both"})


async def test_the_reasons_of_volcano_are_written_on_demand(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all([queue("q", cards={"A10": 1}), gpu_node("n1", "A10", 8)])
    await cluster.create_all([pod(name, queue="q", cards="A10", requests=CARD) for name in ("a", "b")])
    for flags, reason in (((), "QuotaPending"), (("--pod-pending-reasons=volcano",), "Unschedulable")):
        (folder := tmp_path / reason).mkdir()
        async with Daemon(control_plane.kubeconfig_for("scheduler-a"), folder, *flags) as daemon:
            await until_bound(cluster, 1)
            await until(cluster, "pods", status={"conditions": [{"type": "PodScheduled", "reason": reason}]}, count=1)
            await daemon.stop()


async def test_a_pod_gang_waits_for_the_gates_of_its_operator_and_starts_with_its_minimums(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    def policy(clique: str, size: int) -> Manifest:
        selector = {"matchLabels": {"grove.io/podclique": clique}}
        return {
            "name": clique,
            "labelSelector": selector,
            "matchLabelKeys": ["grove.io/podclique"],
            "subGroupSize": size,
            "minSubGroups": 1,
        }

    def member(clique: str, index: int) -> Manifest:
        labels, notes = {"grove.io/podclique": clique}, {GROUP_NAME_ALIAS: "gang"}
        return pod(f"{clique}-{index}", group="gang", labels=labels, annotations=notes, schedulingGates=gates(_GROVE))

    names = [("worker", index) for index in range(5)] + [("ps", index) for index in range(3)]
    policies = [policy("worker", 2), policy("ps", 3)]
    await cluster.create_all([node("n1", cpu=5), pod_group("gang", members=5, subGroupPolicy=policies)])
    await cluster.create_all([member(*name) for name in names])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path) as daemon:
        await daemon.settled()
        assert await cluster.bound() == {}
        for clique, index in names:
            await cluster.patch("pods", f"{clique}-{index}", {"spec": {"schedulingGates": []}})
        await until_bound(cluster, 5)
        await daemon.settled()
        bound = await cluster.bound()
        assert sorted(name.partition("-")[0] for name in bound) == ["ps"] * 3 + ["worker"] * 2
        await until(cluster, "podgroups", "gang", status={"phase": "Running"})


async def test_a_group_whose_operator_waits_for_its_admission_is_admitted_without_pods(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all([node("n1", cpu=4), pod_group("early", members=2, minResources={"cpu": "2"})])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path):
        await until(cluster, "podgroups", "early", status={"phase": "Inqueue"})
        await cluster.create_all([pod(f"early-{index}", group="early") for index in range(2)])
        await until_bound(cluster, 2)


async def test_a_thousand_pods_of_a_standing_failure_have_their_condition_written_once(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Each further node changes the number of nodes in the messages, which are written again after 30 s at most."""
    size = 1000
    await cluster.create_all([queue("q", cards={"A10": 8 * size}), gpu_node("n1", "A10", 4), pod_group("g", queue="q")])
    large = {"cpu": "1", "nvidia.com/gpu": "8"}
    await cluster.create_all([pod(f"g-{index}", group="g", cards="A10", requests=large) for index in range(size)])
    lacking = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    since, start = control_plane.audited, time.monotonic()
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path) as daemon:
        await until(cluster, "pods", "g-*", count=size, within=300, status=lacking)
        for number in range(2, 8):
            await cluster.create(node(f"n{number}", cpu=1))
            await daemon.settled()
        await daemon.stop()
    rows = [row for row in control_plane.audit(since) if row.resource == "pods" and row.subresource == "status"]
    writes = Counter(row.name for row in rows if row.user == "scheduler-a" and row.verb == "patch")
    assert writes.keys() == {f"g-{index}" for index in range(size)}
    most = 1 + (time.monotonic() - start) // 30
    assert max(writes.values()) <= most, writes.most_common(3)


FAIRSHARE: Final = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: gang}, {name: fairshare, arguments: {fairshare.resourceKey: cpu, fairshare.persistState: true,
    fairshare.stateNamespace: default, fairshare.flushIntervalSeconds: 1}}]
- plugins: [{name: predicates}]
"""


async def test_the_usage_that_a_former_scheduler_kept_orders_jobs_and_is_written_back(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    def kept(usage: dict[str, Any]) -> dict[str, str]:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"state.json": json.dumps({"lastCycle": moment, "queues": {"q": usage}})}

    heavy, light = cluster.namespace, await cluster.make_namespace()
    state = plain("ConfigMap", "fairshare-usage-state", namespace="default", data=kept({heavy: 10_000_000.0}))
    await cluster.create_all([state, queue("q", weight=1)])
    for space in (heavy, light):  # the one that used more is the older one
        notes = {"scheduling.volcano.sh/queue-name": "q"}
        await cluster.create(pod("p", namespace=space, annotations=notes))
    await cluster.create(node("n1", cpu=1))
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=FAIRSHARE) as daemon:

        async def nodes() -> dict[str, str]:
            found = [await cluster.get("pods", "p", namespace=space) for space in (heavy, light)]
            return {each["metadata"]["namespace"]: each["spec"].get("nodeName", "") for each in found}

        async def is_bound() -> bool:
            return any((await nodes()).values())

        await cluster.wait_until(is_bound, "one of the pods to be bound")
        assert await nodes() == {heavy: "", light: "n1"}
        await daemon.settled()  # the interval passes; a session that changes nothing writes nothing
        await cluster.create(pod("later", namespace=light))

        async def written() -> bool:
            found = await cluster.get("configmaps", "fairshare-usage-state", namespace="default")
            usage = json.loads(found["data"]["state.json"])["queues"].get("q", {})
            return bool(usage.get(light, 0) > 0 and 0 < usage.get(heavy, 0) <= 10_000_000)

        await cluster.wait_until(written, "the state to be written")
