"""ProvisioningRequests and their PodTemplates on a real API server: created once, deleted by their owner alone."""

from __future__ import annotations

import pytest

from capcard_sched.model.deltas import CapacityRequestRefused
from capcard_sched.model.intents import AnnotatePod, RequestCapacity, RequestedPods, WithdrawRequest
from capcard_sched.model.provisioning import DEMAND_DIGEST
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import Manifest, pod, pod_group
from tests.controlplane.provisioning import PROVISIONING, serve_provisioning, without_provisioning
from tests.controlplane.proxy import Proxy
from tests.kube.write.harness import Harness, ids

CHECK = "check-capacity.autoscaling.x-k8s.io"
NAME = "g-provisioning-1"


async def _gang(cluster: Cluster) -> Manifest:
    made, *_ = await cluster.create_all([pod_group("g", members=2), pod("head"), pod("w-0")])
    return made


def _request(group: Manifest) -> RequestCapacity:
    namespace, name, uid = ids(group)
    sets = (RequestedPods("head", 1), RequestedPods("w-0", 2))
    return RequestCapacity(namespace, NAME, name, uid, CHECK, sets, {DEMAND_DIGEST: "d"})


def _withdrawal(group: Manifest) -> WithdrawRequest:
    namespace, _, uid = ids(group)
    return WithdrawRequest(namespace, NAME, "", uid, 2)


async def _names(cluster: Cluster, kind: str) -> list[str]:
    return sorted(each["metadata"]["name"] for each in await cluster.list(kind))


async def test_a_request_is_created_with_its_templates_and_deleted_with_them(
    cluster: Cluster, effects: Harness
) -> None:
    await serve_provisioning(cluster)
    group = await _gang(cluster)
    await effects.write(_request(group))
    made = await cluster.get(PROVISIONING, NAME)
    assert [(each["podTemplateRef"]["name"], each["count"]) for each in made["spec"]["podSets"]] == [
        (f"{NAME}-0", 1),
        (f"{NAME}-1", 2),
    ]
    assert await _names(cluster, "podtemplates") == [f"{NAME}-0", f"{NAME}-1"]
    await effects.write(_withdrawal(group))
    assert (await _names(cluster, PROVISIONING), await _names(cluster, "podtemplates")) == ([], [])
    assert not effects.deltas


@pytest.mark.parametrize("path", ["/podtemplates$", "/provisioningrequests$"])
async def test_a_lost_response_creates_no_second_object(
    cluster: Cluster, proxy: Proxy, effects: Harness, path: str
) -> None:
    await serve_provisioning(cluster)
    group = await _gang(cluster)
    proxy.lose_answer("POST", path)
    await effects.write(_request(group))
    assert await _names(cluster, PROVISIONING) == [NAME]
    assert await _names(cluster, "podtemplates") == [f"{NAME}-0", f"{NAME}-1"]
    assert not effects.deltas


async def test_objects_of_another_owner_are_neither_used_nor_deleted(cluster: Cluster, effects: Harness) -> None:
    await serve_provisioning(cluster)
    group = await _gang(cluster)
    template = {"metadata": {}, "spec": pod("x")["spec"]}
    await cluster.create({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": f"{NAME}-1"},
                          "template": template})  # fmt: skip
    await effects.write(_request(group))
    [refused] = effects.deltas
    assert isinstance(refused, CapacityRequestRefused)
    assert (refused.group, refused.is_unavailable) == ("g", False)
    await effects.write(_withdrawal(group))
    assert await _names(cluster, "podtemplates") == [f"{NAME}-1"]


async def test_a_missing_right_is_no_quota_of_a_namespace(cluster: Cluster, proxy: Proxy, effects: Harness) -> None:
    await serve_provisioning(cluster)
    group = await _gang(cluster)
    hard = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
            "spec": {"hard": {"count/podtemplates": "0"}}}  # fmt: skip
    await cluster.create(hard)

    async def is_counted() -> bool:
        return bool((await cluster.get("resourcequotas", "q")).get("status", {}).get("hard"))

    await cluster.patch("resourcequotas", "q", {"status": hard["spec"]}, subresource="status")
    await cluster.wait_until(is_counted, "the quota")
    await effects.write(_request(group))
    [refused] = effects.deltas
    assert isinstance(refused, CapacityRequestRefused)
    assert not refused.is_unavailable, refused.message


async def test_without_the_kind_requests_are_unavailable(cluster: Cluster, effects: Harness) -> None:
    await without_provisioning(cluster)
    group = await _gang(cluster)
    await effects.write(_request(group))
    [refused] = effects.deltas
    assert isinstance(refused, CapacityRequestRefused)
    assert refused.is_unavailable
    await effects.write(_withdrawal(group))
    assert await _names(cluster, "podtemplates") == []


async def test_annotations_of_a_pod_reach_no_successor_of_its_name(cluster: Cluster, effects: Harness) -> None:
    made = await cluster.create(pod("p"))
    await cluster.delete("pods", "p")
    await cluster.create(pod("p"))
    await effects.write(AnnotatePod(*ids(made), {"a": "b"}))
    assert "a" not in ((await cluster.get("pods", "p"))["metadata"].get("annotations") or {})
