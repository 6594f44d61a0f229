"""The client that the other tests look through."""

from __future__ import annotations

import pytest

from tests.controlplane.cluster import ALL, Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import gang, gpu_node, node, pod, queue

pytestmark = pytest.mark.asyncio


async def test_objects_are_made_read_changed_and_deleted(cluster: Cluster) -> None:
    await cluster.create(node("n1"))
    made = await cluster.create(pod("p1"))
    assert made["status"]["phase"] == "Pending"
    await cluster.patch("pods", "p1", {"metadata": {"labels": {"a": "b"}}})
    assert (await cluster.get("Pod", "p1"))["metadata"]["labels"] == {"a": "b"}
    await cluster.bind("p1", "n1", uid=made["metadata"]["uid"])
    assert await cluster.bound() == {"p1": "n1"}
    await cluster.delete("pods", "p1")
    assert await cluster.find("pods", "p1") is None
    with pytest.raises(RequestError, match='pods "p1" not found') as refused:
        await cluster.get("pods", "p1")
    assert (refused.value.status, refused.value.reason) == (404, "NotFound")


async def test_our_own_kinds_are_there(cluster: Cluster) -> None:
    await cluster.create(queue("q", weight=2))
    await cluster.create_all(gang("train", 3, queue="q"))
    group = await cluster.get("podgroups", "train")
    assert (group["spec"]["minMember"], group["spec"]["queue"]) == (3, "q")
    assert len(await cluster.list("pods")) == 3


async def test_status_is_written_by_its_subresource_only(cluster: Cluster) -> None:
    made = await cluster.create(queue("q"))
    made["status"] = {"state": "Closed"}
    updated = await cluster.update({**made, "spec": {"weight": 3}})
    assert updated.get("status", {}).get("state") != "Closed"
    newest = await cluster.get("queues", "q")
    await cluster.update({**newest, "status": {"state": "Closed"}}, subresource="status")
    after = await cluster.get("queues", "q")
    assert (after["spec"]["weight"], after["status"]["state"]) == (3, "Closed")


@pytest.mark.parametrize("round", [1, 2])
async def test_every_test_finds_the_cluster_empty(cluster: Cluster, round: int) -> None:
    for kind in ("nodes", "pods", "podgroups", "queues", "priorityclasses", "events"):
        left = [each["metadata"]["name"] for each in await cluster.list(kind, namespace=ALL)]
        assert [name for name in left if not name.startswith("system-")] == [], kind
    held = pod("held", grace=30)
    held["metadata"]["finalizers"] = ["tests.example/never-taken-away"]
    await cluster.create_all([gpu_node("n", "A10", 4), queue("q"), held])
    await cluster.create(pod("elsewhere", namespace="default"))
    await cluster.bind("held", "n")
    await cluster.delete("pods", "held", grace=30)


async def test_apply_takes_yaml_and_repeats_itself_without_harm(cluster: Cluster) -> None:
    text = "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {k: v}}\n---\n"
    first, second = await cluster.apply(text), await cluster.apply(text)
    assert first[0]["metadata"]["resourceVersion"] == second[0]["metadata"]["resourceVersion"]


async def test_a_timeout_names_the_awaited_condition_and_the_last_value(cluster: Cluster) -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.1 s for a pod; the last answer was \[\]"):
        await cluster.wait_until(lambda: cluster.list("pods"), "a pod", within=0.1)


async def test_a_watch_yields_every_change(cluster: Cluster) -> None:
    version = str(cluster.control_plane.revision())
    await cluster.create(pod("p1"))
    await cluster.delete("pods", "p1")
    seen = []
    async for event in cluster.watch("pods", resourceVersion=version):
        seen.append((event["type"], event["object"]["metadata"]["name"]))
        if event["type"] == "DELETED":
            break
    # An immediate deletion is two steps: marked, then gone.
    assert seen == [("ADDED", "p1"), ("MODIFIED", "p1"), ("DELETED", "p1")]


async def test_users_have_the_rights_they_were_given(cluster: Cluster, control_plane: ControlPlane) -> None:
    async with Cluster(control_plane, user="nobody", namespace=cluster.namespace) as unprivileged:
        with pytest.raises(RequestError, match='User "nobody" cannot list resource "pods"') as refused:
            await unprivileged.request("GET", f"/api/v1/namespaces/{cluster.namespace}/pods")
    assert refused.value.status == 403


async def test_service_accounts_get_tokens(cluster: Cluster, control_plane: ControlPlane) -> None:
    await cluster.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}})
    token = await cluster.token_of("robot")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = await cluster.create(review | {"metadata": {}})
    assert answer["status"]["user"]["username"] == f"system:serviceaccount:{cluster.namespace}:robot"


async def test_the_audit_log_names_users_and_their_requests(cluster: Cluster, control_plane: ControlPlane) -> None:
    await cluster.create(pod("watched-over"))

    async def logged() -> list[tuple[str, str, int]]:
        found = [row for row in control_plane.audit() if row.namespace == cluster.namespace and row.resource == "pods"]
        return [(row.user, row.verb, row.code) for row in found]

    assert await cluster.wait_until(logged, "a line in the audit log") == [("admin", "create", 201)]
