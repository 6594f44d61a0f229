"""ProvisioningRequests of gangs on an API server; the test sets their conditions in place of an autoscaler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, node, pod, pod_group, queue
from tests.controlplane.provisioning import PROVISIONING, serve_provisioning, set_condition, without_provisioning
from tests.e2e.daemons import Daemon
from tests.e2e.expectations import until, until_bound

CHECK = "check-capacity.autoscaling.x-k8s.io"
FLAG = f"--provisioning-request-class={CHECK}"
CONF = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}]
"""


def gang(name: str, size: int = 3) -> list[Manifest]:
    """Pods of one CPU each; nodes have one."""
    return [pod_group(name, members=size), *(pod(f"{name}-{index}", group=name) for index in range(size))]


async def until_reasons(cluster: Cluster, names: Sequence[str], reason: str) -> None:
    """Wait until the condition of each of these pods has this reason."""
    row = {"type": "PodScheduled", "status": "False", "reason": reason}
    for name in names:
        await until(cluster, "pods", name, status={"conditions": [row]})


@pytest.mark.timeout(300)
async def test_a_gang_starts_on_the_nodes_of_its_request(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await serve_provisioning(cluster)
    await cluster.create_all([queue("default"), node("n0", cpu=1)])
    pods = [f"g-{index}" for index in range(3)]
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, FLAG, conf=CONF) as daemon:
        group, *_ = await cluster.create_all(gang("g"))
        made = await until(cluster, PROVISIONING, "g-provisioning-1")
        assert made["spec"]["provisioningClassName"] == CHECK
        assert [each["count"] for each in made["spec"]["podSets"]] == [3]
        assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [group["metadata"]["uid"]]
        template = await cluster.get("podtemplates", made["spec"]["podSets"][0]["podTemplateRef"]["name"])
        requested = template["template"]["spec"]["containers"][0]["resources"]["requests"]
        assert requested == (await cluster.get("pods", "g-0"))["spec"]["containers"][0]["resources"]["requests"]
        notes = {"autoscaling.x-k8s.io/consume-provisioning-request": "g-provisioning-1",
                 "autoscaling.x-k8s.io/provisioning-class-name": CHECK}  # fmt: skip
        for name in pods:
            await until(cluster, "pods", name, metadata={"annotations": notes})
        await until_reasons(cluster, pods, "ProvisioningPending")

        # A failure whose backoff has ended; then the nodes.
        await set_condition(cluster, "g-provisioning-1", "Failed", "no capacity", before=61)
        await until(cluster, PROVISIONING, "g-provisioning-2")
        await until(cluster, PROVISIONING, "g-provisioning-1", count=0)
        await until(cluster, "podtemplates", "g-provisioning-1-*", count=0)
        await set_condition(cluster, "g-provisioning-2", "Provisioned")
        await daemon.settled()
        assert not await cluster.bound()
        await cluster.create_all([node("n1", cpu=1), node("n2", cpu=1)])
        await until_bound(cluster, set(pods))
        await until(cluster, PROVISIONING, count=0)
        await until(cluster, "podtemplates", count=0)


@pytest.mark.timeout(300)
async def test_a_new_leader_keeps_the_request_and_the_backoff(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await serve_provisioning(cluster)
    await cluster.create_all([queue("default"), node("n0", cpu=1)])
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    async with Daemon(kubeconfig, tmp_path, FLAG, conf=CONF, name="first"):
        await cluster.create_all(gang("g"))
        made = await until(cluster, PROVISIONING, "g-provisioning-1")
        await until_reasons(cluster, ["g-0"], "ProvisioningPending")
    async with Daemon(kubeconfig, tmp_path, FLAG, conf=CONF, name="second") as daemon:
        await daemon.settled()
        [kept] = await cluster.list(PROVISIONING)
        assert kept["metadata"]["uid"] == made["metadata"]["uid"]
        await set_condition(cluster, "g-provisioning-1", "Failed", "no capacity", before=-600)
        await daemon.settled()
    async with Daemon(kubeconfig, tmp_path, FLAG, conf=CONF, name="third") as daemon:
        await daemon.settled()
        assert [each["metadata"]["uid"] for each in await cluster.list(PROVISIONING)] == [made["metadata"]["uid"]]
        await until_reasons(cluster, ["g-0"], "ProvisioningPending")


@pytest.mark.timeout(300)
async def test_an_object_of_another_client_counts_for_no_gang(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await serve_provisioning(cluster)
    await cluster.create_all([queue("default"), node("n0", cpu=1)])
    spec = {"provisioningClassName": CHECK, "podSets": [{"count": 1, "podTemplateRef": {"name": "mine"}}]}
    theirs = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest"}
    await cluster.create({**theirs, "metadata": {"name": "g-provisioning-1"}, "spec": spec})
    await set_condition(cluster, "g-provisioning-1", "Provisioned")
    template = {"metadata": {}, "spec": pod("x")["spec"]}
    await cluster.create({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "g-provisioning-2-0"},
                          "template": template})  # fmt: skip
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, FLAG, conf=CONF) as daemon:
        await cluster.create_all(gang("g"))
        await until(cluster, "events", reason="ProvisioningFailed", message="*PodTemplate g-provisioning-2-0 exists*")
        await until_reasons(cluster, [f"g-{index}" for index in range(3)], "ProvisioningPending")
        await cluster.create_all([node("n1", cpu=1), node("n2", cpu=1)])
        await until_bound(cluster, {f"g-{index}" for index in range(3)})
        await daemon.settled()
    assert [each["metadata"]["name"] for each in await cluster.list(PROVISIONING)] == ["g-provisioning-1"]
    assert [each["metadata"]["name"] for each in await cluster.list("podtemplates")] == ["g-provisioning-2-0"]


@pytest.mark.timeout(300)
async def test_without_the_kind_pods_are_unschedulable_and_one_event_reports_it(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await without_provisioning(cluster)
    await cluster.create_all([queue("default"), node("n0", cpu=1)])
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, FLAG, conf=CONF) as daemon:
        await cluster.create_all(gang("g"))
        await until_reasons(cluster, [f"g-{index}" for index in range(3)], "Unschedulable")
        await cluster.create_all(gang("h"))
        await until_reasons(cluster, [f"h-{index}" for index in range(3)], "Unschedulable")
        await daemon.settled()
        found = [each for each in await cluster.list("events") if each["reason"] == "ProvisioningUnavailable"]
        assert len(found) == 1
