"""The controllers as manifests/controllers installs them: their account has the rights they use, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from cyclopts import App

from capcard_sched.cli.run import controllers as verb
from capcard_sched.daemon.controller_options import ControllerOptions
from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.proxy import Proxy
from tests.e2e.controllers.conftest import BATCH, Jobs
from tests.e2e.daemons import Controllers
from tests.e2e.rbac.installed import SYSTEM, Audit, Right, install, rights_of
from tests.manifests.documents import MANIFESTS, by_key, read

ACCOUNT = "capcard-sched-controllers"
#: Rights of which the use cannot be brought about here, or by chance only.
RARE = {
    # Reads after a write whose response was lost, and after a conflict.
    *(Right(resource, "get") for resource in ("services", "configmaps", "secrets", "persistentvolumeclaims")),
    Right("pods", "get"),
    Right("networkpolicies", "get", "networking.k8s.io"),
    Right("podgroups", "get", "scheduling.volcano.sh"),
    Right("queues", "get", "scheduling.volcano.sh"),
    Right("commands", "get", "bus.volcano.sh"),
    Right("jobs", "get", "batch.volcano.sh"),
    Right("cronjobs", "get", "batch.volcano.sh"),
    # The API server of the tests does not enforce blockOwnerDeletion; events are counted up when they repeat.
    *(
        Right(f"{resource}/finalizers", "update", group)
        for resource, group in (
            ("pods", ""),
            ("jobs", "batch"),
            ("jobs", "batch.volcano.sh"),
            ("cronjobs", "batch.volcano.sh"),
            *((each, "apps") for each in ("replicasets", "statefulsets", "daemonsets")),
        )
    ),
    Right("events", "patch"),
}


def arguments(objects: list[Manifest]) -> list[str]:
    """The arguments of the Deployment."""
    (container,) = by_key(objects)[f"Deployment {SYSTEM}/{ACCOUNT}"]["spec"]["template"]["spec"]["containers"]
    return [word.replace("$(POD_NAMESPACE)", SYSTEM) for word in container["args"]]


def test_the_deployment_and_the_lease_fit_the_flags() -> None:
    files = (path for path in (MANIFESTS / "controllers").iterdir() if path.name != "kustomization.yaml")
    objects = by_key(manifest for path in sorted(files) for manifest in read(path))
    app = App(result_action="return_value")
    app.command(verb, name="controllers")
    _, bound, _ = app.parse_args(arguments(list(objects.values())), exit_on_error=False, print_error=False)
    options: ControllerOptions = bound.arguments["options"]
    assert options.problems() == []
    role = objects[f"Role {SYSTEM}/{ACCOUNT}-leader-election"]
    assert [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule] == [
        [options.leader_elect_resource_name]
    ]
    (container,) = objects[f"Deployment {SYSTEM}/{ACCOUNT}"]["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metrics": options.listen_address.port, "healthz": options.healthz_address.port}
    assert {manifest["metadata"]["labels"]["app"] for manifest in objects.values()} == {ACCOUNT}


@pytest.mark.asyncio
async def test_the_account_uses_its_rights_and_lacks_none(
    cluster: Cluster, control_plane: ControlPlane, proxy: Proxy, jobs: Jobs, kubelet: Kubelet, tmp_path: Path
) -> None:
    await cluster.apply(MANIFESTS / "base" / "namespace.yaml")
    installation = await install(cluster, MANIFESTS / "controllers")
    user = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
    audit = Audit(control_plane, user)
    token = await cluster.token_of(ACCOUNT, namespace=SYSTEM)
    config = control_plane.kubeconfig_for(token=token, server=proxy.url, namespace=SYSTEM, name=ACCOUNT)
    flags = [flag for flag in arguments(installation.objects)[1:] if not flag.startswith("--enable-")]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    async with Controllers(config, tmp_path, *flags) as running:
        await running.logged("controllers started")
        await jobs.create("j", 2, plugins={"mpi": [], "env": []}, ttlSecondsAfterFinished=1)
        await jobs.phase("j", "Running")
        grown = (await jobs.get("j"))["spec"]["tasks"][0]
        await cluster.patch(
            "jobs.batch.volcano.sh", "j", {"spec": {"tasks": [{**grown, "replicas": 3}], "minAvailable": 2}}
        )

        async def three() -> bool:
            return len(await jobs.pods("j")) == 3

        await cluster.wait_until(three, "the third pod", within=30)
        await cluster.patch(
            "jobs.batch.volcano.sh", "j", {"spec": {"tasks": [{**grown, "replicas": 2}], "minAvailable": 2}}
        )
        await jobs.command("CompleteJob", "j")

        async def gone() -> bool:
            return not await cluster.list("jobs.batch.volcano.sh")

        await cluster.wait_until(gone, "the Job to be deleted", within=60)
        await jobs.create("claims", 1, volumes=[{"mountPath": "/data", "volumeClaim": claim}])

        async def claimed() -> bool:
            return bool(await cluster.list("persistentvolumeclaims") and await cluster.list("podgroups"))

        await cluster.wait_until(claimed, "the claim and the PodGroup", within=30)
        await _cron_job(cluster, (await jobs.get("claims"))["spec"])
        await _plain_pods(cluster)
        await _queues(cluster)
        assert await running.stop() == 0
    assert not audit.denied(), audit.denied()
    granted = {
        right
        for role in installation.objects
        if role["kind"] in {"Role", "ClusterRole"}
        for rule in role["rules"]
        for right in rights_of(rule)
    }
    assert audit.used() <= granted
    # This API server lists through the watch; others do not.
    assert {right for right in granted - audit.used() if right.verb != "list"} <= RARE


async def _cron_job(cluster: Cluster, spec: Manifest) -> None:
    """A CronJob whose last time is long ago creates a Job at once."""
    metadata = {"name": "cron", "namespace": cluster.namespace}
    body = {"schedule": "* * * * *", "jobTemplate": {"spec": {**spec, "volumes": []}}}
    await cluster.create({"apiVersion": BATCH, "kind": "CronJob", "metadata": metadata, "spec": body})
    past = {"status": {"lastScheduleTime": "2026-01-01T00:00:00Z"}}
    await cluster.patch("cronjobs.batch.volcano.sh", "cron", past, subresource="status")

    async def created() -> bool:
        found = await cluster.get("cronjobs.batch.volcano.sh", "cron")
        names = [job["metadata"]["name"] for job in await cluster.list("jobs.batch.volcano.sh")]
        return bool(found["status"].get("active")) and any(name.startswith("cron-") for name in names)

    await cluster.wait_until(created, "the Job of the CronJob", within=30)
    await cluster.delete("cronjobs.batch.volcano.sh", "cron")


async def _plain_pods(cluster: Cluster) -> None:
    """A Deployment, a DaemonSet and a batch Job get their PodGroups, and one loses it."""
    container = {"name": "main", "image": "serve", "resources": {"requests": {"cpu": "100m"}}}
    labels = {"app": "x"}
    spec = {"schedulerName": "capcard-sched", "containers": [container], "restartPolicy": "Always"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    annotations = {"volcano.sh/service.type": "inference"}
    metadata = {"namespace": cluster.namespace, "annotations": annotations}
    selector = {"matchLabels": labels}
    once = {"metadata": {}, "spec": {**spec, "restartPolicy": "Never"}}
    await cluster.create_all(
        [
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {**metadata, "name": "d"},
                "spec": {"replicas": 2, "selector": selector, "template": template},
            },
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {**metadata, "name": "s"},
                "spec": {"selector": selector, "template": template},
            },
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {**metadata, "name": "b"},
                "spec": {"template": once},
            },
        ]
    )

    async def grouped(count: int) -> bool:
        groups = await cluster.list("podgroups")
        owners = {group["metadata"]["ownerReferences"][0]["kind"] for group in groups}
        return len(owners & {"ReplicaSet", "DaemonSet", "Job"}) == 3 and len(groups) == count

    await cluster.wait_until(lambda: grouped(4), "four PodGroups", within=40)
    await cluster.patch("deployments", "d", {"metadata": {"annotations": {"volcano.sh/service.type": "training"}}})

    async def follows() -> bool:
        groups = await cluster.list("podgroups")
        values = {(group["metadata"].get("annotations") or {}).get("volcano.sh/service.type") for group in groups}
        return "training" in values

    await cluster.wait_until(follows, "the annotation to follow", within=30)
    await cluster.patch("deployments", "d", {"spec": {"replicas": 0}})

    async def fewer() -> bool:
        return len(await cluster.list("podgroups")) == 3

    await cluster.wait_until(fewer, "the PodGroup to be deleted", within=30)


async def _queues(cluster: Cluster) -> None:
    """A parent and its child are closed by a command."""
    api = "scheduling.volcano.sh/v1beta1"
    for name, parent in (("p", "root"), ("c", "p")):
        await cluster.create(
            {"apiVersion": api, "kind": "Queue", "metadata": {"name": name}, "spec": {"parent": parent}}
        )
    queue = await cluster.get("queues", "p")
    target = {"apiVersion": api, "kind": "Queue", "name": "p", "uid": queue["metadata"]["uid"]}
    metadata = {"name": "close", "namespace": cluster.namespace}
    await cluster.create(
        {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": metadata,
            "action": "CloseQueue",
            "target": target,
        }
    )

    async def closed() -> bool:
        found = [await cluster.get("queues", name) for name in ("p", "c")]
        return [queue.get("status", {}).get("state") for queue in found] == ["Closed", "Closed"]

    await cluster.wait_until(closed, "both queues to be closed", within=30)


def test_every_file_of_the_folder_is_in_the_kustomization() -> None:
    folder = MANIFESTS / "controllers"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert sorted([*listed, "kustomization.yaml"]) == sorted(path.name for path in folder.iterdir())
