"""The admission policies of the manifests: a tenant cannot edit what his quota depends on."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from capcard_sched.model.annotations import ALLOW_RESIZE, BOUND_ANNOTATIONS, BOUND_LABELS, BOUND_QUEUE
from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.manifests import binding, deployment, job, node, plain, pod, pod_group, queue
from tests.manifests.documents import MANIFESTS, Manifest, policies, read

TENANT = "somebody"
SYSTEM = "capcard-system"
CARD, QUEUE = "volcano.sh/card.name", "scheduling.volcano.sh/queue-name"
GROUP = "scheduling.k8s.io/group-name"
_RULES = [
    {"apiGroups": [""], "resources": ["pods", "pods/status", "pods/resize"], "verbs": ["*"]},
    {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["*"]},
    {"apiGroups": ["batch.volcano.sh"], "resources": ["jobs", "cronjobs"], "verbs": ["*"]},
    {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["*"]},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceclaims", "resourceclaimtemplates", "resourceclaims/status"],
        "verbs": ["*"],
    },
]


@pytest.fixture
async def admin(cluster: Cluster) -> Cluster:
    """A cluster with the policies in effect, a queue and a node; the tenant has all rights on his namespace's pods."""
    for name in ("namespace", "serviceaccount", "rbac-scheduling", "rbac-claims", "admission-tenants"):
        await cluster.apply(MANIFESTS / "base" / f"{name}.yaml")
    await cluster.create_all([node("n1"), queue("q"), queue("other")])
    await cluster.allow(TENANT, _RULES)

    async def effective() -> bool:
        wrong, _ = REFUSED["priority"]
        for body in (pod_group("x", priorityClassName="system-node-critical"), *(of_template(k, wrong) for k in KINDS)):
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
    """A bound pod; its binding writes the queue."""
    written = {BOUND_QUEUE: annotations.pop(BOUND_QUEUE)} if BOUND_QUEUE in annotations else {}
    await admin.create(pod(name, annotations=annotations))
    body = binding(name, "n1", annotations=written)
    await admin.request("POST", await admin.path("pods", name, subresource="binding"), body=body)


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
    *[dict[str, str | None]({key: "other"}) for key in sorted(BOUND_ANNOTATIONS)],
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
    for key in sorted(BOUND_LABELS):
        async with forbidden(f"besides: {key}"):
            await tenant.patch("pods", "p", {"metadata": {"labels": {key: "high"}}})
    await tenant.patch("pods", "p", {"metadata": {"annotations": {"mine": "free"}, "labels": {"mine": "free"}}})


def _claim(name: str, annotations: Manifest) -> Manifest:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
    }


def _template(name: str, annotations: Manifest) -> Manifest:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"metadata": {"annotations": annotations}, "spec": _claim(name, {})["spec"]},
    }


async def test_queue_and_cards_of_a_claim_are_those_of_the_scheduler(admin: Cluster, tenant: Cluster) -> None:
    record = {BOUND_QUEUE: "q", "volcano.sh/card.assigned": '{"NVIDIA-H200":1000}'}
    changes: list[Manifest] = [{BOUND_QUEUE: "other"}, {BOUND_QUEUE: None}, {"volcano.sh/card.assigned": "{}"}]
    for client in (tenant, admin):
        for made in (_claim("forged", record), _template("forged", record)):
            async with forbidden("cannot be set or changed"):
                await client.create(made)
    await tenant.create(_template("plain", {"volcano.sh/card.assigned": "x", "c": "d"}))
    async with account(admin, "capcard-sched") as scheduler:
        await scheduler.create(_claim("held", record))
        device = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": "g0"}
        allocation = {"devices": {"results": [device]}}
        await scheduler.patch("resourceclaims", "held", {"status": {"allocation": allocation}}, subresource="status")
        for change in changes:
            for client in (tenant, admin):
                async with forbidden("cannot be set or changed", change):
                    await client.patch("resourceclaims", "held", {"metadata": {"annotations": change}})
        await scheduler.patch("resourceclaims", "held", {"metadata": {"annotations": changes[0]}})
    await tenant.patch("resourceclaims", "held", {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
    await tenant.delete("resourceclaims", "held")
    await tenant.create(_claim("foreign", {}))
    await tenant.patch("resourceclaims", "foreign", {"metadata": {"annotations": {"volcano.sh/card.assigned": "x"}}})
    async with forbidden("cannot be set or changed"):
        await tenant.patch("resourceclaims", "foreign", {"metadata": {"annotations": {BOUND_QUEUE: "q"}}})


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
        ("Unknown", 2),
        ("Pending", 2),
        ("Pending", 0),
        ("Unknown", 0),
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


# --- rules of every kind that becomes a pod ---------------------------------------------------------------------------

DAEMON_SETS = "system:serviceaccount:kube-system:daemon-set-controller"


def of_template(kind: str, template: Manifest, **spec: Any) -> Manifest:
    """An object `x` of a kind with this pod template; `spec` are fields of the specs of Jobs."""
    if kind == "Pod":
        return {**template, "apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "x"}}
    if kind == "DaemonSet":
        return {**deployment("x", 1, template), "kind": "DaemonSet"}
    tasks = [{"name": "w", "replicas": 1, "template": template}]
    made = job("x", tasks=tasks, **spec)
    if kind == "Job":
        return made
    body = {"schedule": "@daily", "jobTemplate": {"spec": made["spec"]}}
    return plain("CronJob", "x", "batch.volcano.sh/v1alpha1", spec=body)


#: Kinds with pod templates.
KINDS = ("Pod", "Job", "CronJob", "DaemonSet")
#: Kinds with the spec of a PodGroup.
GROUPS = ("Job", "CronJob", "PodGroup")


def template(annotations: dict[str, str] | None = None, **spec: Any) -> Manifest:
    made = pod("x", annotations=annotations, **spec)
    return {"metadata": {"annotations": made["metadata"]["annotations"]}, "spec": made["spec"]}


#: Rule to a pod template that it refuses, and a part of the message.
REFUSED = {
    "node": (template(nodeName="n1"), "spec.nodeName (n1) of a pod of this scheduler is set by its binding"),
    "queue": (template({BOUND_QUEUE: "other"}), f"annotation {BOUND_QUEUE} is written by the scheduler"),
    "priority": (
        template(priorityClassName="system-node-critical"),
        "priorityClassName system-node-critical is reserved for the namespace kube-system",
    ),
}


def test_the_table_of_kinds_has_every_kind_of_ours_with_a_template_of_pods_or_jobs() -> None:
    known = {(kind.group, kind.resource) for kind in policies().KINDS}
    found = set()
    for file in sorted((MANIFESTS / "crds").glob("*.yaml")):
        (definition,) = read(file)
        body = definition["spec"]
        for version in body["versions"]:
            fields = set(all_fields(version["schema"]["openAPIV3Schema"]["properties"].get("spec", {})))
            if fields & {"template", "jobTemplate", "priorityClassName"}:
                found.add((body["group"], body["names"]["plural"]))
    assert found == {each for each in known if each[0].endswith("volcano.sh")}
    assert ("batch.volcano.sh", "cronjobs") in found


def all_fields(schema: Any) -> Iterator[str]:
    """Names of all fields of a schema, at any depth."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for value in schema.values():
            yield from all_fields(value)


def test_every_rule_holds_for_every_kind_with_what_it_is_about() -> None:
    table = policies()
    for kind in table.KINDS:
        about_pods, about_groups = kind.pods != "[]", kind.groups != "[]"
        expected = {rule.name for rule in table.RULES if about_pods or (about_groups and rule.of_group)}
        assert table.rules_of(kind) == expected, kind.resource


@pytest.mark.parametrize("rule", REFUSED)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_rule_about_pods_holds_for_what_becomes_a_pod(
    admin: Cluster, tenant: Cluster, kind: str, rule: str
) -> None:
    wrong, message = REFUSED[rule]
    async with forbidden(message):
        await tenant.create(of_template(kind, wrong))
    await tenant.create(of_template(kind, template()))
    if kind == "Pod":
        return
    resource = {"Job": "jobs.batch.volcano.sh", "CronJob": "cronjobs.batch.volcano.sh", "DaemonSet": "daemonsets"}[kind]
    async with forbidden(message):
        await tenant.patch(resource, "x", {"spec": of_template(kind, wrong)["spec"]})
    await admin.delete(resource, "x")
    foreign = {**wrong, "spec": {**wrong["spec"], "schedulerName": "volcano"}}
    more = {"schedulerName": "volcano"} if kind != "DaemonSet" else {}
    await tenant.create(of_template(kind, foreign, **more))
    async with forbidden(message):
        await tenant.patch(resource, "x", {"spec": of_template(kind, wrong)["spec"]})


@pytest.mark.parametrize("kind", GROUPS)
async def test_a_rule_about_podgroups_holds_for_what_becomes_one(admin: Cluster, tenant: Cluster, kind: str) -> None:
    del admin
    wrong: Manifest = {"priorityClassName": "system-cluster-critical"}
    async with forbidden("priorityClassName system-cluster-critical is reserved for the namespace kube-system"):
        await tenant.create(pod_group("x", **wrong) if kind == "PodGroup" else of_template(kind, template(), **wrong))


async def test_only_the_controller_of_daemon_sets_and_kubelets_create_pods_with_a_node(admin: Cluster) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}
    controlled = {"ownerReferences": [{**owner, "controller": True}]}
    mirror = {"annotations": {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"}}
    replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    replica_sets = "system:serviceaccount:kube-system:replicaset-controller"
    cases: tuple[tuple[str, str, Manifest, bool], ...] = (
        (DAEMON_SETS, "system:serviceaccounts:kube-system", controlled, True),
        (DAEMON_SETS, "system:serviceaccounts:kube-system", {"ownerReferences": [owner]}, False),
        (replica_sets, "system:serviceaccounts:kube-system", {"ownerReferences": [replica_set]}, False),
        ("system:kube-controller-manager", "", controlled, True),
        (TENANT, "", controlled, False),
        ("system:node:n1", "system:nodes", mirror, True),
        (TENANT, "", mirror, False),
        ("system:serviceaccount:capcard-system:capcard-sched-controllers", "", {}, False),
    )
    for user, group, meta, passes in cases:
        body = pod("x", nodeName="n1")
        body["metadata"] |= meta
        headers = {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
        groups = [("Impersonate-User", user), ("Impersonate-Group", "system:masters")]
        groups += [("Impersonate-Group", group)] if group else []
        path = await admin.path("pods")
        async with admin.session.post(path, params={"dryRun": "All"}, json=body, headers=groups) as answer:
            text = await answer.text()
        assert (answer.status < 400) == passes, (headers, meta, text)


# --- resizing ---------------------------------------------------------------------------------------------------------


def resources(**amounts: str) -> Manifest:
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": amounts}}]}}


async def resize(client: Cluster, **amounts: str) -> None:
    await client.patch("pods", "p", resources(**amounts), subresource="resize", strategy="strategic-merge")


async def test_requests_of_a_bound_pod_are_raised_only_where_the_namespace_allows_it(
    admin: Cluster, tenant: Cluster
) -> None:
    await bound_pod(admin, "p")
    for amounts in ({"cpu": "1001m"}, {"cpu": "2"}, {"memory": "1Gi"}):
        async with forbidden("requests of a bound pod can be raised only in a namespace with the annotation", amounts):
            await resize(tenant, **amounts)
    await resize(tenant, cpu="500m")
    async with forbidden("requests of a bound pod"):
        await resize(tenant, cpu="1")
    notes = {"metadata": {"annotations": {ALLOW_RESIZE: "true"}}}
    await admin.patch("namespaces", admin.namespace, notes)

    async def allowed() -> bool:
        try:
            await resize(tenant, cpu="3")
        except RequestError:
            return False
        return True

    await admin.wait_until(allowed, "the annotation to be read", within=60)


#: Group, resource and verbs on what decisions about other tenants depend on.
_RESERVED: list[tuple[str, str, tuple[str, ...]]] = [
    ("", "pods/binding", ("create",)),
    ("", "pods/status", ("update", "patch")),
    ("", "nodes", ("create", "update", "patch", "delete")),
    ("", "nodes/status", ("update", "patch")),
    ("", "namespaces", ("create", "update", "patch", "delete")),
    ("scheduling.k8s.io", "priorityclasses", ("create", "update", "patch")),
    ("scheduling.k8s.io", "podgroups/status", ("update", "patch")),
    ("resource.k8s.io", "resourceclaims/status", ("update", "patch")),
    ("resource.k8s.io", "resourceclaims/binding", ("update", "patch")),
    ("resource.k8s.io", "resourceslices", ("create", "update", "patch", "delete")),
    ("resource.k8s.io", "deviceclasses", ("create", "update", "patch", "delete")),
    ("resource.k8s.io", "devicetaintrules", ("create", "update", "patch", "delete")),
    ("capcard-sched.io", "cardbudgets", ("create", "update", "patch", "delete")),
    ("capcard-sched.io", "cardbudgets/status", ("update", "patch")),
    ("scheduling.volcano.sh", "queues", ("create", "update", "patch", "delete")),
    ("scheduling.volcano.sh", "queues/status", ("update", "patch")),
    ("scheduling.volcano.sh", "podgroups/status", ("update", "patch")),
    ("batch.volcano.sh", "jobs/status", ("update", "patch")),
    ("topology.volcano.sh", "hypernodes", ("create", "update", "patch", "delete")),
    ("nodeinfo.volcano.sh", "numatopologies", ("create", "update", "patch", "delete")),
]
_OWN: list[tuple[str, str, tuple[str, ...]]] = [
    ("", "pods", ("create", "delete")),
    ("batch.volcano.sh", "jobs", ("create", "delete")),
    ("bus.volcano.sh", "commands", ("create",)),
    ("resource.k8s.io", "resourceclaims", ("create", "delete")),
]


async def test_the_roles_of_kubernetes_reach_nothing_that_decisions_about_other_tenants_depend_on(
    cluster: Cluster,
) -> None:
    """`view`, `edit` and `admin` with all that they aggregate: no controller fills them on this control plane."""
    for path in sorted((MANIFESTS / "readers").glob("*.yaml")):
        await cluster.apply(path)
    labels = {f"rbac.authorization.k8s.io/aggregate-to-{name}" for name in ("view", "edit", "admin")}
    roles = [each for each in await cluster.list("clusterroles") if labels & {*each["metadata"].get("labels", {})}]
    rules = [rule for role in roles for rule in role["rules"] or () if "nonResourceURLs" not in rule]
    assert any("capcard-sched" in role["metadata"]["name"] for role in roles)
    await cluster.allow("editor", rules)

    async def may(group: str, resource: str, verb: str) -> bool:
        name, _, subresource = resource.partition("/")
        attributes = {"namespace": cluster.namespace, "group": group, "resource": name, "subresource": subresource}
        spec = {"user": "editor", "resourceAttributes": {**attributes, "verb": verb}}
        found = await cluster.create(plain("SubjectAccessReview", "", "authorization.k8s.io/v1", spec=spec))
        return bool(found["status"]["allowed"])

    async def allowed(rows: list[tuple[str, str, tuple[str, ...]]]) -> list[str]:
        return [f"{verb} {row[1]} {row[0]}" for row in rows for verb in row[2] if await may(row[0], row[1], verb)]

    async def own() -> bool:
        return len(await allowed(_OWN)) == sum(len(row[2]) for row in _OWN)

    await cluster.wait_until(own, "the rights of the editor", within=60)
    assert await allowed(_RESERVED) == []
