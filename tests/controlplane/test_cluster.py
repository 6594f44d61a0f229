"""The client that the other tests look through."""

from __future__ import annotations

import pytest

from tests.controlplane.cluster import ALL, Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import gpu_node, pod, queue


@pytest.mark.parametrize("round", [1, 2])
async def test_every_test_finds_the_cluster_empty(cluster: Cluster, round: int) -> None:
    for kind in ("nodes", "pods", "podgroups", "queues", "priorityclasses", "events"):
        found = await cluster.list(kind, namespace=ALL)
        # The API server reports addresses and ports of Services that the wipe deleted, at any later moment, and again.
        left = {
            one["metadata"]["name"]: one
            for one in found
            if one.get("involvedObject", {}).get("kind") != "IPAddress"
            and not one.get("reportingComponent", "").endswith("allocator-repair-controller")
        }
        assert {name: one for name, one in left.items() if not name.startswith(("system-", "kubernetes."))} == {}, kind
    held = pod("held", grace=30)
    held["metadata"]["finalizers"] = ["tests.example/never-taken-away"]
    await cluster.create_all([gpu_node("n", "A10", 4), queue("q"), held])
    await cluster.create(pod("elsewhere", namespace="default"))
    await cluster.bind("held", "n")
    await cluster.delete("pods", "held", grace=30)


async def test_a_timeout_names_the_awaited_condition_and_the_last_value(cluster: Cluster) -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.1 s for a pod; the last answer was \[\]"):
        await cluster.wait_until(lambda: cluster.list("pods"), "a pod", within=0.1)


async def test_users_have_the_rights_they_were_given(cluster: Cluster, control_plane: ControlPlane) -> None:
    async with Cluster(control_plane, user="nobody", namespace=cluster.namespace) as unprivileged:
        with pytest.raises(RequestError, match='User "nobody" cannot list resource "pods"') as refused:
            await unprivileged.request("GET", f"/api/v1/namespaces/{cluster.namespace}/pods")
    assert refused.value.status == 403


async def test_the_audit_log_names_users_and_their_requests(cluster: Cluster, control_plane: ControlPlane) -> None:
    await cluster.create(pod("watched-over"))

    async def logged() -> list[tuple[str, str, int]]:
        found = [row for row in control_plane.audit() if row.namespace == cluster.namespace and row.resource == "pods"]
        return [(row.user, row.verb, row.code) for row in found]

    assert await cluster.wait_until(logged, "a line in the audit log") == [("admin", "create", 201)]
