"""The admission policy of Commands: only users who may update a Queue create a Command for it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.manifests import plain, queue
from tests.manifests.documents import MANIFESTS, Manifest

USER = "somebody"
#: Rights of a tenant (manifests/readers/jobs.yaml), and those of an operator of queues.
TENANT = [{"apiGroups": ["bus.volcano.sh"], "resources": ["commands"], "verbs": ["*"]}]
QUEUES = {"apiGroups": ["scheduling.volcano.sh"], "resources": ["queues"], "verbs": ["get", "list"]}


def command(name: str, target: str, kind: str = "Queue", uid: str = "x", namespace: str = "") -> Manifest:
    """A Command as vcctl creates it."""
    api = "scheduling.volcano.sh/v1beta1" if kind == "Queue" else "batch.volcano.sh/v1alpha1"
    action = "CloseQueue" if kind == "Queue" else "AbortJob"
    aim = {"apiVersion": api, "kind": kind, "name": target, "uid": uid, "controller": True}
    return plain("Command", name, "bus.volcano.sh/v1alpha1", namespace=namespace, action=action, target=aim)


@pytest.fixture
async def user(cluster: Cluster) -> AsyncIterator[Cluster]:
    """A user with all rights on Commands; the policy is in effect."""
    await cluster.apply(MANIFESTS / "controllers" / "admission-commands.yaml")
    await cluster.create_all([queue("q"), queue("other")])
    await cluster.allow(USER, [*TENANT, QUEUES], everywhere=True)
    async with Cluster(cluster.control_plane, user=USER, namespace=cluster.namespace) as client:

        async def acting() -> bool:
            error = await client.rejection(command("x", "q"))
            return error is not None and "cannot update Queue q" in error.message

        await cluster.wait_until(acting, "the policy to be in effect", within=60)
        yield client


async def test_a_tenant_closes_no_queue_from_any_namespace(cluster: Cluster, user: Cluster) -> None:
    found = await cluster.get("queues", "q")
    for namespace in (cluster.namespace, "default"):
        for uid in (found["metadata"]["uid"], "wrong", ""):
            body = command("c", "q", uid=uid, namespace=namespace)
            with pytest.raises(RequestError, match="user somebody cannot update Queue q") as refused:
                await user.create(body)
            assert refused.value.status == 403


async def test_a_command_for_a_job_passes_and_cannot_be_turned_to_a_queue(user: Cluster) -> None:
    made = await user.create(command("c", "j", kind="Job"))
    with pytest.raises(RequestError, match="cannot update Queue q"):
        await user.patch("commands", "c", {"target": command("c", "q")["target"]})
    assert (await user.get("commands", "c"))["target"] == made["target"]


async def test_a_user_who_may_update_a_queue_closes_that_one(cluster: Cluster, user: Cluster) -> None:
    rule = {**QUEUES, "verbs": ["update"], "resourceNames": ["q"]}
    await cluster.allow(USER, [*TENANT, QUEUES, rule], everywhere=True)

    async def granted() -> bool:
        return await user.rejection(command("x", "q", namespace="default")) is None

    await cluster.wait_until(granted, "the right to update the queue", within=60)
    with pytest.raises(RequestError, match="cannot update Queue other"):
        await user.create(command("x", "other"))
    await user.create(command("x", "q", namespace="default"))
