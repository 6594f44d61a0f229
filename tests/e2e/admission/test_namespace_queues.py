"""NamespaceQueues on an API server: what the webhook rejects, and the conditions of what it accepts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, node, plain, pod, pod_group, queue
from tests.e2e.admission.server import NAME, serving
from tests.e2e.daemons import Controllers, Daemon
from tests.e2e.expectations import message, until, until_bound

_API = "scheduling.volcano.sh/v1beta1"
_CONF = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: gang}, {name: predicates}, {name: capacity, enableHierarchy: true}]
"""


@pytest.fixture
async def running(cluster: Cluster, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[None]:
    """The admission server and the controllers."""
    async with (
        serving(cluster, tmp_path),
        Controllers(control_plane.kubeconfig_for("admin"), tmp_path) as controllers,
    ):
        await controllers.logged("controllers started")
        yield


def local(name: str, parent: str | None = None, **spec: Any) -> Manifest:
    return plain("NamespaceQueue", name, _API, spec={**({"parent": parent} if parent else {}), **spec})


async def rejected(cluster: Cluster, manifest: Manifest) -> str:
    """The message with which the webhook rejects a creation."""
    text = str(await cluster.rejection(manifest, dry_run=False))
    assert "denied the request" in text, text
    return text


async def conditions(cluster: Cluster, name: str, authorized: str, ready: str, text: str = "") -> None:
    """Wait for the two conditions, the second with its reason and a part of its message."""
    status, _, reason = ready.partition(" ")
    rows = [
        {"type": "Authorized", "status": authorized},
        {"type": "Ready", "status": status, "reason": reason, "message": f"*{text}*" if text else "*"},
    ]
    await until(cluster, "namespacequeues", name, status={"conditions": rows})


async def without_webhook(cluster: Cluster, kind: str, name: str, spec: Manifest) -> None:
    """Removes the webhook, and patches what it would reject."""
    await cluster.delete("validatingwebhookconfigurations", NAME, grace=None)

    async def accepted() -> bool:
        try:
            await cluster.patch(kind, name, {"spec": spec})
        except RequestError:
            return False
        return True

    await cluster.wait_until(accepted, "the API server to call the webhook no longer", within=60)


@pytest.mark.usefixtures("running")
async def test_the_namespaces_that_a_queue_allows(cluster: Cluster) -> None:
    text = await rejected(cluster, queue("both", allowedNamespaces=["*", "team-a"]))
    assert "spec.allowedNamespaces" in text
    own = cluster.namespace
    for name, allowed in (("absent", None), ("empty", []), ("other", ["team-b"]), ("named", [own]), ("every", ["*"])):
        made = queue(name)
        if allowed is not None:
            made["spec"]["allowedNamespaces"] = allowed
        await cluster.create(made)
        await cluster.create(local(f"of-{name}", f"cluster/{name}"))
    lacks = f"does not contain namespace {own}"
    for name in ("absent", "empty", "other"):
        await conditions(cluster, f"of-{name}", "False", "False NamespaceNotAllowed", lacks)
    for name in ("named", "every"):
        await conditions(cluster, f"of-{name}", "True", "True Ready")
    # A second subtree of the namespace below one Queue.
    text = await rejected(cluster, local("second", "cluster/named"))
    assert "a namespace has one subtree there" in text


@pytest.mark.usefixtures("running")
async def test_parents_of_namespace_queues(cluster: Cluster) -> None:
    await cluster.create(local("top"))
    await conditions(cluster, "top", "True", "True Ready")  # below the default queue, which allows every namespace
    for parent in ("cluster/root", "namespace/top", "a/b/c"):
        text = await rejected(cluster, local("below", parent))
        assert "spec.parent" in text
        assert "accepted: NAME of a NamespaceQueue of the namespace, or cluster/NAME of a Queue" in text, text
    assert "below would be below itself: " in (await rejected(cluster, local("below", "below"))).replace(
        f"{cluster.namespace}/", ""
    )
    await cluster.create(local("below", "top"))
    await cluster.create(local("lowest", "below"))
    await conditions(cluster, "lowest", "True", "True Ready")
    with pytest.raises(RequestError, match="would be below itself"):
        await cluster.patch("namespacequeues", "top", {"spec": {"parent": "lowest"}})
    with pytest.raises(RequestError, match="has 1 queue below it"):
        await cluster.delete("namespacequeues", "below")
    await cluster.create(local("orphan", "none"))  # its parent may follow
    await conditions(cluster, "orphan", "False", "False ParentNotFound")
    await cluster.create(local("none", "below"))
    await conditions(cluster, "orphan", "True", "True Ready")
    # A cycle that no webhook saw.
    await without_webhook(cluster, "namespacequeues", "top", {"parent": "lowest"})
    for name in ("top", "below", "lowest"):
        await conditions(cluster, name, "*", "False HierarchyCycle", "is below itself")


@pytest.mark.usefixtures("running")
async def test_a_namespace_in_use_stays_in_the_list(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    own = cluster.namespace
    await cluster.create_all([node("n1", cpu=8), queue("team", allowedNamespaces=[own, "other"])])
    await cluster.create(local("t", "cluster/team"))
    await conditions(cluster, "t", "True", "True Ready")
    for allowed in (["other"], [], None):
        with pytest.raises(RequestError, match=f"namespace {own} is missing"):
            await cluster.patch("queues", "team", {"spec": {"allowedNamespaces": allowed}})
    await cluster.patch("queues", "team", {"spec": {"allowedNamespaces": [own]}})
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=_CONF):

        def gang(name: str) -> list[Manifest]:
            return [pod_group(name, queue="namespace/t"), pod(f"{name}-0", group=name, requests={"cpu": "1"})]

        await cluster.create_all(gang("first"))
        await until_bound(cluster, {"first-0"})
        with pytest.raises(RequestError, match="has allocated pods: 1"):
            await cluster.wait_until(lambda: _refused_deletion(cluster, "t"), "allocated pods of the queue", within=60)
        # The list loses the namespace without the webhook: running pods stay, no further one starts.
        await without_webhook(cluster, "queues", "team", {"allowedNamespaces": ["other"]})
        await conditions(cluster, "t", "False", "False NamespaceNotAllowed", f"does not contain namespace {own}")
        await cluster.create_all(gang("second"))
        await until(cluster, "pods", "second-0", status=message("NamespaceNotAllowed"))
        assert set(await cluster.bound()) == {"first-0"}
        await cluster.patch("queues", "team", {"spec": {"allowedNamespaces": [own]}})
        await until_bound(cluster, {"first-0", "second-0"})


async def _refused_deletion(cluster: Cluster, name: str) -> bool:
    """Deletes a NamespaceQueue for trial: RequestError when the webhook rejects it."""
    path = await cluster.path("namespacequeues", name)
    await cluster.request("DELETE", path, params={"dryRun": "All"})
    return False


@pytest.mark.usefixtures("running")
async def test_amounts_of_namespace_queues_stay_within_those_above(cluster: Cluster) -> None:
    own = cluster.namespace
    await cluster.create(queue("team", allowedNamespaces=[own], deserved={"cpu": "100"}, capability={"cpu": "100"}))
    await cluster.create(local("top", "cluster/team", deserved={"cpu": "100"}))
    await cluster.create(local("a", "top", deserved={"cpu": "60"}))
    await conditions(cluster, "a", "True", "True Ready")
    text = await rejected(cluster, local("b", "top", deserved={"cpu": "60"}))
    assert "spec.deserved: deserved of cpu below " in text
    assert "adds up to 120, above its 100" in text
    await cluster.create(local("b", "top", deserved={"cpu": "40"}))
    with pytest.raises(RequestError, match="adds up to 101, above its 100"):
        await cluster.patch("namespacequeues", "b", {"spec": {"deserved": {"cpu": "41"}}})
    # Above the sum without the webhook: the queues of the sum, and those below them, start no pods.
    await cluster.create(local("low", "b"))
    await conditions(cluster, "low", "True", "True Ready")
    await without_webhook(cluster, "namespacequeues", "b", {"deserved": {"cpu": "60"}})
    await conditions(cluster, "low", "True", "False ParentConstraintViolation", "adds up to 120, above its 100")
    await cluster.patch("namespacequeues", "b", {"spec": {"deserved": {"cpu": "40"}}})
    await conditions(cluster, "low", "True", "True Ready")
