"""The manifests on a real API server, put there as users do: by kubectl and by Helm."""

from __future__ import annotations

import base64
import copy
import json
import re
import shutil
from pathlib import Path

import pytest

from capcard_sched.model.annotations import CARD_QUOTA
from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.manifests import plain, queue
from tests.controlplane.processes import output
from tests.manifests.documents import (
    CHART,
    INSTALL,
    MANIFESTS,
    Manifest,
    by_key,
    kustomized,
    read,
    scheduler_only,
)


async def run(cluster: Cluster, program: Path, *words: str | Path, succeeds: bool = True) -> str:
    """The output of kubectl or Helm for the cluster."""
    return await output(program, "--kubeconfig", cluster.control_plane.kubeconfig, *words, succeeds=succeeds)


async def installed(cluster: Cluster) -> dict[str, Manifest]:
    """Our objects as they are now, by key."""
    kinds = {each["kind"]: each["apiVersion"] for each in read(INSTALL)}
    found: dict[str, Manifest] = {}
    for kind, version in kinds.items():
        if kind != "CustomResourceDefinition":
            items = await cluster.list(kind, namespace="capcard-system")
            found |= by_key({"kind": kind, "apiVersion": version, **item} for item in items)
    expected = set(by_key(read(INSTALL)))
    return {name: manifest for name, manifest in found.items() if name in expected}


@pytest.mark.compat
async def test_one_manifest_is_all_it_takes(cluster: Cluster, kubectl: Path) -> None:
    shown = await run(cluster, kubectl, "apply", "--server-side", "--validate=strict", "-f", INSTALL)
    assert len(shown.splitlines()) == len(read(INSTALL))
    expected = {name for name in by_key(read(INSTALL)) if not name.startswith("CustomResourceDefinition")}
    assert set(await installed(cluster)) == expected


@pytest.mark.campaign
@pytest.mark.parametrize("way", [(), ("--server-side",)], ids=["client-side", "server-side"])
@pytest.mark.parametrize("former_way", [(), ("--server-side",)], ids=["client-side", "server-side"])
async def test_an_installation_of_the_scheduler_alone_is_upgraded(
    cluster: Cluster, kubectl: Path, tmp_path: Path, former_way: tuple[str, ...], way: tuple[str, ...]
) -> None:
    manifest = scheduler_only(tmp_path)
    await run(cluster, kubectl, "apply", *former_way, "--validate=strict", "-f", manifest)
    before = await installed(cluster)
    former = {name for name in by_key(read(manifest)) if not name.startswith("CustomResourceDefinition")}
    assert set(before) == former
    await run(cluster, kubectl, "apply", *way, "--validate=strict", "-f", INSTALL)
    after = await installed(cluster)
    await run(cluster, kubectl, "apply", *way, "--validate=strict", "-f", INSTALL)
    assert await installed(cluster) == after, "nothing is written the second time"
    assert former <= set(by_key(read(INSTALL))), "an object that the new manifest lacks would remain"
    assert {name: after[name]["metadata"]["uid"] for name in former} == {
        name: each["metadata"]["uid"] for name, each in before.items()
    }
    for name in ("capcard-sched", "capcard-sched-controllers", "capcard-sched-admission"):
        path = await cluster.path("deployments", name, namespace="capcard-system")
        fresh = await cluster.request(
            "PATCH",
            path,
            params={"dryRun": "All", "fieldManager": "fresh", "force": "true"},
            body=by_key(read(INSTALL))[f"Deployment capcard-system/{name}"],
            content_type="application/apply-patch+yaml",
        )
        assert after[f"Deployment capcard-system/{name}"]["spec"] == fresh["spec"]


@pytest.mark.campaign
async def test_an_upgrade_keeps_the_authority_in_the_webhook_configurations(cluster: Cluster, kubectl: Path) -> None:
    kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    for way in ((), ("--server-side", "--force-conflicts")):
        await run(cluster, kubectl, "apply", *way, "-f", INSTALL)
        bundle = base64.b64encode(b"authority").decode()
        for kind in kinds:
            hooks = (await cluster.get(kind, "capcard-sched-admission"))["webhooks"]
            operations = [
                {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
                for index in range(len(hooks))
            ]
            path = await cluster.path(kind, "capcard-sched-admission")
            patch = "application/json-patch+json"
            await cluster.request("PATCH", path, body=operations, content_type=patch)
        await run(cluster, kubectl, "apply", *way, "-f", INSTALL)
        for kind in kinds:
            hooks = (await cluster.get(kind, "capcard-sched-admission"))["webhooks"]
            assert {hook["clientConfig"].get("caBundle") for hook in hooks} == {bundle}


@pytest.mark.campaign
async def test_the_queues_of_the_scheduler_do_not_wait_for_the_webhooks(cluster: Cluster, kubectl: Path) -> None:
    await run(cluster, kubectl, "apply", "--server-side", "-f", INSTALL)
    token = await cluster.token_of("capcard-sched", namespace="capcard-system")

    async def configured() -> bool:  # users depend on the webhook, which has no endpoint here
        return "failed calling webhook" in str(await cluster.rejection(queue("root")))

    await cluster.wait_until(configured, "the webhooks to be configured", within=60)
    async with Cluster(cluster.control_plane, token=token) as scheduler:
        stored = await scheduler.create(queue("root"))
    assert stored["metadata"]["name"] == "root"


def pod_of(deployment: Manifest) -> Manifest:
    """A pod as the Deployment's ReplicaSet would make it."""
    template = copy.deepcopy(deployment["spec"]["template"])
    made = plain("Pod", "capcard-sched-0", namespace="capcard-system", spec=template["spec"])
    return {**made, "metadata": {**template["metadata"], **made["metadata"]}}


async def dry_create(cluster: Cluster, pod: Manifest) -> Manifest:
    path = await cluster.path("pods", namespace="capcard-system")
    return await cluster.request("POST", path, params={"dryRun": "All", "fieldValidation": "Strict"}, body=pod)


async def test_the_namespace_takes_our_pod_and_none_that_may_more(cluster: Cluster, kubectl: Path) -> None:
    await run(cluster, kubectl, "apply", "--server-side", "-f", INSTALL)
    for name in ("capcard-sched", "capcard-sched-controllers", "capcard-sched-admission"):
        pod = pod_of(await cluster.get("deployments", name, namespace="capcard-system"))
        made = await dry_create(cluster, pod)
        assert made["spec"]["priority"] == 2_000_000_000
        for loosened, field, missed in (
            (pod["spec"], "runAsNonRoot", "runAsNonRoot"),
            (pod["spec"], "seccompProfile", "seccompProfile"),
            (pod["spec"]["containers"][0], "capabilities", "unrestricted capabilities"),
            (pod["spec"]["containers"][0], "allowPrivilegeEscalation", "allowPrivilegeEscalation"),
        ):
            value = loosened["securityContext"].pop(field)
            with pytest.raises(RequestError, match="violates PodSecurity") as refused:
                await dry_create(cluster, pod)
            assert missed in refused.value.message
            loosened["securityContext"][field] = value


async def test_helm_installs_upgrades_and_uninstalls(cluster: Cluster, helm: Path, tmp_path: Path) -> None:
    in_release = ("--namespace", "capcard-system")
    definitions = await cluster.list("customresourcedefinitions")
    shown = await run(cluster, helm, "install", "capcard-sched", CHART, *in_release, "--create-namespace")
    assert await cluster.list("customresourcedefinitions") == definitions, "those that are there are left alone"
    _, _, notes = shown.partition("\nNOTES:\n")
    assert "places pods whose schedulerName is capcard-sched." in notes
    assert "ConfigMap capcard-sched-conf" in notes
    expected = {name for name in by_key(read(INSTALL)) if not name.startswith("CustomResourceDefinition")}
    assert set(await installed(cluster)) == expected

    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"custom": {"scheduler_replicas": 3, "scheduler_name": ["volcano", "gpu"]}}), "utf-8")
    await run(cluster, helm, "upgrade", "capcard-sched", CHART, *in_release, "--values", values)
    deployment = await cluster.get("deployments", "capcard-sched", namespace="capcard-system")
    assert deployment["spec"]["replicas"] == 3
    role = await cluster.get("roles", "capcard-sched-leader-election", namespace="capcard-system")
    assert ["gpu-volcano"] in [rule.get("resourceNames") for rule in role["rules"]]

    await run(cluster, helm, "uninstall", "capcard-sched", *in_release)
    kept = {name for name in await installed(cluster) if not name.startswith("ValidatingAdmissionPolicy")}
    assert kept == {"Namespace capcard-system"}
    policies = {name for name in await installed(cluster) if name.startswith("ValidatingAdmissionPolicy")}
    assert {name.split()[1] for name in policies} == {"capcard-sched-fence"}, "a fence must never be deleted"
    assert len(await cluster.list("customresourcedefinitions")) >= 4, "CRDs, and with them all jobs, outlive a release"


@pytest.mark.campaign
async def test_helm_upgrades_a_release_of_the_scheduler_alone(
    cluster: Cluster, helm: Path, kubectl: Path, tmp_path: Path
) -> None:
    in_release = ("--namespace", "capcard-system")
    alone = ("--set", "custom.controller_enable=false,custom.admission_enable=false")
    await run(cluster, helm, "install", "capcard-sched", CHART, *in_release, "--create-namespace", *alone)
    await run(cluster, kubectl, "apply", "--server-side", "-k", MANIFESTS / "controllers")
    words = ("upgrade", "capcard-sched", CHART, *in_release, "--reset-values")
    refused = await run(cluster, helm, *words, succeeds=False)
    assert "invalid ownership metadata" in refused
    await run(cluster, helm, *words, "--take-ownership")
    found = await installed(cluster)
    assert set(found) == {name for name in by_key(read(INSTALL)) if not name.startswith("CustomResourceDefinition")}
    controllers = found["Deployment capcard-system/capcard-sched-controllers"]["metadata"]
    assert controllers["labels"]["app.kubernetes.io/managed-by"] == "Helm"


def examples() -> list[str]:
    """The YAML of docs/install.md."""
    page = (MANIFESTS.parent / "docs" / "install.md").read_text("utf-8")
    return re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


async def test_the_examples_of_the_page_are_accepted(cluster: Cluster, kubectl: Path, tmp_path: Path) -> None:
    kustomization, objects = sorted(examples(), key=lambda text: "kind: Kustomization" not in text)
    tree = tmp_path / "tree"
    shutil.copytree(MANIFESTS, tree / "manifests")
    (tree / "mine").mkdir()
    (tree / "mine" / "kustomization.yaml").write_text(kustomization, "utf-8")
    made = by_key(kustomized(kubectl, tree / "mine"))
    container = made["Deployment capcard-system/capcard-sched"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"].startswith("registry.example.com/capcard-sched:")
    assert {"--fence=true", "--use-eviction-api=true"} <= set(container["args"])

    (tmp_path / "objects.yaml").write_text(objects, "utf-8")
    words = ("apply", "--server-side", "--validate=strict", "--namespace", cluster.namespace)
    await run(cluster, kubectl, *words, "-f", tmp_path / "objects.yaml")
    assert json.loads((await cluster.get("queues", "research"))["metadata"]["annotations"][CARD_QUOTA])
