"""The admission policies of the manifests: a tenant cannot edit what his quota depends on."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from capcard_sched.model.annotations import BOUND_QUEUE
from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.manifests import job, node, plain, pod, pod_group, queue
from tests.manifests.documents import MANIFESTS, Manifest

TENANT = "somebody"
SYSTEM = "capcard-system"
CARD, QUEUE = "volcano.sh/card.name", "scheduling.volcano.sh/queue-name"
GROUP = "scheduling.k8s.io/group-name"
_RULES = [
    {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["*"]},
    {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["*"]},
    {"apiGroups": ["batch.volcano.sh"], "resources": ["jobs"], "verbs": ["*"]},
]


@pytest.fixture
async def admin(cluster: Cluster) -> Cluster:
    """A cluster with the policies in effect, a queue and a node; the tenant has all rights on his namespace's pods."""
    for name in ("namespace", "serviceaccount", "rbac-scheduling", "admission-tenants"):
        await cluster.apply(MANIFESTS / "base" / f"{name}.yaml")
    await cluster.create_all([node("n1"), queue("q"), queue("other")])
    await cluster.allow(TENANT, _RULES)

    async def effective() -> bool:
        for body in (pod_group("x", priorityClassName="system-node-critical"), {**pod_group("x"), "status": RUNNING}):
            error = await cluster.rejection(body)
            if error is None or error.status != 403:
                return False
        return await pod_policy_acts(cluster)

    await cluster.create(pod("probe", annotations={CARD: "A"}))
    await cluster.bind("probe", "n1")
    await cluster.wait_until(effective, "the policies to be in effect")
    return cluster


async def pod_policy_acts(cluster: Cluster) -> bool:
    path = await cluster.path("pods", "probe")
    body = {"metadata": {"annotations": {CARD: "B"}}}
    kind = "application/merge-patch+json"
    try:
        await cluster.request("PATCH", path, params={"dryRun": "All"}, body=body, content_type=kind)
    except RequestError as error:
        return error.status == 403
    return False


@pytest.fixture
async def tenant(admin: Cluster) -> AsyncIterator[Cluster]:
    async with Cluster(admin.control_plane, user=TENANT, namespace=admin.namespace) as client:

        async def granted() -> bool:
            try:
                await client.list("podgroups")
            except RequestError:
                return False
            return True

        await admin.wait_until(granted, "the tenant's rights")
        yield client


RUNNING: Manifest = {"phase": "Running", "running": 2}


@asynccontextmanager
async def account(admin: Cluster, name: str, namespace: str = SYSTEM) -> AsyncIterator[Cluster]:
    """A client of a ServiceAccount."""
    token = await admin.token_of(name, namespace=namespace)
    async with Cluster(admin.control_plane, token=token, namespace=admin.namespace) as client:
        yield client


async def in_phase(admin: Cluster, name: str, phase: str, running: int = 0) -> None:
    """A PodGroup with a status that the scheduler wrote."""
    await admin.create(pod_group(name, queue="q"))
    async with account(admin, "capcard-sched") as scheduler:
        await scheduler.patch("podgroups", name, {"status": {"phase": phase, "running": running}})


async def bound_pod(admin: Cluster, name: str, **annotations: str) -> None:
    await admin.create(pod(name, annotations=annotations))
    await admin.bind(name, "n1")


@asynccontextmanager
async def forbidden(text: str, what: object = None) -> AsyncIterator[None]:
    with pytest.raises(RequestError) as refused:
        yield
    assert (refused.value.status, text in refused.value.message) == (403, True), (what, refused.value)


CHANGES: tuple[dict[str, str | None], ...] = (
    {CARD: None},
    {CARD: "B"},
    {CARD: "{"},
    {QUEUE: "other"},
    {QUEUE: None},
    {GROUP: "another"},
    {"volcano.sh/card.card": "B"},
    {BOUND_QUEUE: "other"},
    {BOUND_QUEUE: None},
)


@pytest.mark.compat
async def test_annotations_of_pods_are_fixed_when_they_are_bound(admin: Cluster, tenant: Cluster) -> None:
    await tenant.create(pod("free", annotations={CARD: "A", QUEUE: "q"}))
    await tenant.patch("pods", "free", {"metadata": {"annotations": {CARD: "B", QUEUE: None}}})
    await bound_pod(admin, "p", **{CARD: "A", QUEUE: "q", BOUND_QUEUE: "q"})
    await bound_pod(admin, "ends", **{CARD: "A", GROUP: "g"})
    await tenant.delete("pods", "ends", grace=1_000_000)
    async with forbidden("queue, group and card annotations"):
        await tenant.patch("pods", "ends", {"metadata": {"annotations": {GROUP: None}}})
    await admin.delete("pods", "ends", grace=0)
    for changes, subresource in itertools.product(CHANGES, ("", "status")):
        async with forbidden("queue, group and card annotations of a bound pod cannot be changed", changes):
            await tenant.patch("pods", "p", {"metadata": {"annotations": changes}}, subresource=subresource)
    await tenant.patch("pods", "p", {"metadata": {"annotations": {"mine": "free"}, "labels": {"mine": "free"}}})


async def test_the_queue_of_a_group_is_fixed_when_it_left_pending(admin: Cluster, tenant: Cluster) -> None:
    await tenant.create(pod_group("new", queue="q"))
    await tenant.patch("podgroups", "new", {"spec": {"queue": "other"}})
    for phase in ("Pending", "Inqueue", "Running", "Unknown", "Completed"):
        name = phase.lower()
        await in_phase(admin, name, phase)
        for value in (None, "other") if phase != "Pending" else ():
            async with forbidden("spec.queue of a PodGroup that has left Pending cannot be changed", phase):
                await tenant.patch("podgroups", name, {"spec": {"queue": value}})
        queued = {"queue": "other"} if phase == "Pending" else {}
        await tenant.patch("podgroups", name, {"spec": {"minMember": 1, **queued}, "metadata": {"labels": {"a": "b"}}})


async def test_a_tenant_writes_no_status_so_that_no_phase_is_faked(admin: Cluster, tenant: Cluster) -> None:
    await in_phase(admin, "g", "Running", 2)
    for status in ({"phase": "Pending"}, {"running": 0}, None):
        async with forbidden("the status of a PodGroup is written by the scheduler and the controllers only"):
            await tenant.patch("podgroups", "g", {"status": status})
    async with forbidden("a PodGroup is created in phase Pending"):
        await tenant.create({**pod_group("h"), "status": {"phase": "Inqueue"}})


async def test_a_group_can_be_deleted_when_none_of_its_pods_runs(admin: Cluster, tenant: Cluster) -> None:
    for phase, running in (
        ("Inqueue", 2),
        ("Running", 2),
        ("Pending", 0),
        ("Inqueue", 0),
        ("Running", 0),
        ("Completed", 1),
    ):
        name = f"{phase.lower()}-{running}"
        await in_phase(admin, name, phase, running)
        if running == 2:
            for path in ("", name):
                async with forbidden("a PodGroup with running pods cannot be deleted", phase):
                    await tenant.request("DELETE", await tenant.path("podgroups", path))
        else:
            await tenant.delete("podgroups", name)
        assert (await admin.find("podgroups", name) is not None) == (running == 2)


@pytest.mark.parametrize("name", ["system-cluster-critical", "system-node-critical"])
async def test_system_priorities_are_reserved_for_kube_system(admin: Cluster, tenant: Cluster, name: str) -> None:
    for manifest in (pod_group("g", priorityClassName=name), job("j", priorityClassName=name)):
        async with forbidden(f"priorityClassName {name} is reserved for the namespace kube-system"):
            await tenant.create(manifest)
    await tenant.create_all([pod_group("g", priorityClassName="high"), job("j", priorityClassName="high")])
    async with forbidden("is reserved"):
        await tenant.patch("podgroups", "g", {"spec": {"priorityClassName": name}})
    async with forbidden("is reserved"):
        await tenant.patch("jobs.batch.volcano.sh", "j", {"spec": {"priorityClassName": name}})
    await admin.create(pod_group("system", namespace="kube-system", priorityClassName=name))


async def test_administrators_are_refused_too_and_the_scheduler_and_the_garbage_collector_are_not(
    admin: Cluster,
) -> None:
    await in_phase(admin, "g", "Running", 1)
    await bound_pod(admin, "p", **{CARD: "A"})
    async with forbidden("cannot be deleted"):
        await admin.delete("podgroups", "g")
    async with forbidden("cannot be changed"):
        await admin.patch("pods", "p", {"metadata": {"annotations": {CARD: "B"}}})
    async with account(admin, "capcard-sched") as scheduler:
        await scheduler.patch("podgroups", "g", {"spec": {"queue": "other"}})
    await admin.create(plain("ServiceAccount", "generic-garbage-collector", namespace="kube-system"))
    await admin.allow("system:serviceaccount:kube-system:generic-garbage-collector", _RULES)
    async with account(admin, "generic-garbage-collector", "kube-system") as client:
        await client.patch("pods", "p", {"metadata": {"annotations": {CARD: "B"}}})
        await client.delete("podgroups", "g")
