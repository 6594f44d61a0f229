"""The admission server as its manifests install it, on a real API server: verdicts, defaults, certificates."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import io
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from cryptography import x509

from capcard_sched.daemon.admission.certificates import ServingCertificate, ensure_certificate, renewed
from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.model.annotations import CARD_QUOTA, POD_QUEUE_NAME, QUEUE_ALLOCATION_GATE
from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, deployment, gpu_node, plain, pod, pod_group, queue
from tests.e2e.admission.server import NAME, Admission, serving
from tests.e2e.daemons import Controllers, Daemon
from tests.e2e.expectations import until, until_bound
from tests.e2e.rbac.installed import SYSTEM, Audit
from tests.manifests.documents import overlay


@pytest.fixture
async def admission(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Admission]:
    async with serving(cluster, tmp_path) as server:
        yield server


def job(name: str, *, card: str = "NVIDIA-H200", **spec: Any) -> Manifest:
    """A Job without a name of its task, scheduler or minimum."""
    container = {"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    annotations = {"volcano.sh/card.name": card}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container], "restartPolicy": "Never"}}
    return plain(
        "Job", name, "batch.volcano.sh/v1alpha1", spec={"tasks": [{"replicas": 2, "template": template}], **spec}
    )


async def refusal(cluster: Cluster, manifest: Manifest) -> str:
    """The message with which the creation is rejected; "" when it is accepted."""
    return str(await cluster.rejection(manifest, dry_run=False) or "")


async def warnings(cluster: Cluster, manifest: Manifest) -> list[str]:
    """The warnings that kubectl would print on creation, without storing the object."""
    path = await cluster.path(manifest["kind"].lower() + "s")
    async with cluster.session.post(path, json=manifest, params={"dryRun": "All"}) as response:
        assert response.status == 201, await response.text()
        return response.headers.getall("Warning", [])


@pytest.mark.compat
async def test_a_job_gets_its_defaults(cluster: Cluster, admission: Admission) -> None:
    stored = await cluster.create(job("train", plugins={"pytorch": []}))
    assert stored["spec"]["queue"] == "default"
    assert stored["spec"]["schedulerName"] == "capcard-sched"
    assert stored["spec"]["minAvailable"] == 2
    assert stored["spec"]["plugins"] == {"pytorch": [], "svc": []}
    (task,) = stored["spec"]["tasks"]
    assert (task["name"], task["minAvailable"], task["maxRetry"]) == ("default0", 2, 3)


@pytest.mark.compat
async def test_malformed_objects_are_rejected_with_field_cause_and_accepted_form(
    cluster: Cluster, admission: Admission
) -> None:
    text = await refusal(cluster, job("train", queue="missing", policies=[{"event": "PodFailed", "action": "Restart"}]))
    assert "spec.queue: unable to find job queue: missing" in text
    assert "(accepted: an open queue without child queues: default)" in text
    assert 'spec.policies[0].action: invalid policy action "Restart" (accepted: AbortJob,' in text
    bad = queue("team", weight=1, annotations={CARD_QUOTA: '{"NVIDIA-H200": "3"}'})
    text = await refusal(cluster, bad)
    assert '<NVIDIA-H200>: "3" is not a whole number' in text
    assert await refusal(cluster, queue("team", weight=1, cards={"NVIDIA-H200": 3})) == ""
    text = await refusal(cluster, queue("child", parent="nowhere"))
    assert "spec.parent: failed to get parent queue of queue child: nowhere not found" in text
    assert await refusal(cluster, job("train", queue="team")) == "", "it names a queue that was created just now"
    with pytest.raises(RequestError, match="job updates may not change fields other than"):
        await cluster.patch("jobs.batch.volcano.sh", "train", {"spec": {"queue": "default"}})
    with pytest.raises(RequestError, match="`default` queue can not be deleted"):
        await cluster.delete("queues", "default")


@pytest.mark.compat
async def test_a_pod_that_asks_for_it_gets_the_queue_gate_until_its_queue_admits_it(
    cluster: Cluster, admission: Admission, tmp_path: Path
) -> None:
    admission.kill()
    await admission.start("--feature-gates=SchedulingGatesQueueAdmission=true")
    asked = {QUEUE_ALLOCATION_GATE: "true"}
    await cluster.create(queue("team", cards={"A10": 1}))
    await cluster.create(gpu_node("n1", "A10", 8))
    card = {"cpu": "1", "nvidia.com/gpu": "1"}
    gate, misspelt = [{"name": QUEUE_ALLOCATION_GATE}], {QUEUE_ALLOCATION_GATE: "True"}

    async def gates_of(name: str, notes: dict[str, str], **spec: Any) -> Any:
        made = await cluster.create(pod(name, queue="team", cards="A10", requests=card, annotations=notes, **spec))
        return made["spec"].get("schedulingGates")

    for notes, spec in ((misspelt, {}), (asked, {"schedulerName": "default-scheduler"})):
        assert await gates_of("other", notes, **spec) is None
        await cluster.delete("pods", "other")
    assert await gates_of("first", asked) == gate
    async with Daemon(cluster.control_plane.kubeconfig, tmp_path):
        await until_bound(cluster, {"first"})
        await until(cluster, "events", reason="SchedulingGateRemoved")
        assert await gates_of("second", asked) == gate
        await until(cluster, "events", reason="InsufficientScalarQuota")
        second = await cluster.get("pods", "second")
        assert second["spec"]["schedulingGates"] == gate
        assert [row["reason"] for row in second["status"]["conditions"]] == ["SchedulingGated"]
        await cluster.delete("pods", "first")
        await until_bound(cluster, {"second"})


async def test_pods_of_jobs_and_deployments_with_the_annotation_get_the_queue_gate_until_their_queue_admits_them(
    cluster: Cluster, admission: Admission, workloads: None, tmp_path: Path
) -> None:
    admission.kill()
    await admission.start("--feature-gates=SchedulingGatesQueueAdmission=true")
    await cluster.create(queue("team", cards={"A10": 2}, capability={"cpu": "64", "memory": "64Gi"}))
    await cluster.create(gpu_node("n1", "A10", 8))
    notes = {QUEUE_ALLOCATION_GATE: "true", "volcano.sh/card.name": "A10"}
    resources = {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    spec = {"schedulerName": "capcard-sched", "containers": [{"name": "c", "image": "c:1", "resources": resources}]}
    named = {"metadata": {"annotations": {**notes, POD_QUEUE_NAME: "team"}}, "spec": spec}
    train = job("train", queue="team")
    train["spec"]["tasks"][0] |= {"replicas": 1, "template": {"metadata": {"annotations": notes}, "spec": spec}}
    await eventually_accepted(cluster, train)
    chat = deployment("chat", 1, named)
    chat["metadata"]["annotations"] = {POD_QUEUE_NAME: "team"}
    await cluster.create(chat)
    gated = {"schedulingGates": [{"name": QUEUE_ALLOCATION_GATE}], "nodeName": None}
    await until(cluster, "pods", "chat-*", spec=gated)
    config = cluster.control_plane.kubeconfig
    async with Daemon(config, tmp_path) as daemon, Controllers(config, tmp_path):
        bound = await until_bound(cluster, 2)
        assert {name.partition("-")[0] for name in bound} == {"train", "chat"}
        for name in bound:  # they were gated: the removal is an event
            await until(cluster, "events", reason="SchedulingGateRemoved", involvedObject={"name": name}, count=1)
        await cluster.patch("deployments", "chat", {"spec": {"replicas": 2}})
        await until(cluster, "pods", "chat-*", count=1, spec=gated)
        await until(cluster, "events", reason="InsufficientScalarQuota")
        await daemon.settled()
        assert set(await cluster.bound()) == set(bound)
        await until(cluster, "pods", "chat-*", count=1, spec=gated)
        await cluster.patch("queues", "team", {"metadata": {"annotations": {CARD_QUOTA: '{"A10": 3}'}}})
        await until_bound(cluster, 3)


async def eventually_accepted(cluster: Cluster, manifest: Manifest) -> None:
    """Create an object that refers to one whose watch event may still be on its way."""

    async def accepted() -> bool:
        return await refusal(cluster, manifest) == ""

    await cluster.wait_until(accepted, "the object to be accepted")


@pytest.mark.compat
async def test_kubectl_prints_warnings_about_cards(cluster: Cluster, admission: Admission) -> None:
    template = job("x")["spec"]["tasks"][0]["template"]
    spec = {**template["spec"], "schedulerName": "capcard-sched", "restartPolicy": "Always"}
    found = await warnings(cluster, deployment("chat", 1, {"spec": spec}))
    assert any("without volcano.sh/card.name" in text for text in found), found
    spec["schedulerName"] = "default-scheduler"
    assert await warnings(cluster, deployment("chat", 1, {"spec": spec})) == []


@pytest.mark.campaign
async def test_a_changed_subgroup_policy_is_checked_and_other_writes_pass(
    cluster: Cluster, admission: Admission
) -> None:
    await cluster.create(pod_group("g", subGroupPolicy=[{"name": "a", "subGroupSize": 2}]))
    twice = [{"name": "a"}, {"name": "a"}]
    with pytest.raises(RequestError, match="subGroupPolicy"):
        await cluster.patch("podgroups", "g", {"spec": {"subGroupPolicy": twice}})
    await cluster.patch("podgroups", "g", {"spec": {"subGroupPolicy": [{"name": "a"}, {"name": "b"}]}})
    admission.stop()  # writes of other fields do not need the server
    await cluster.patch("podgroups", "g", {"spec": {"minMember": 3}, "metadata": {"annotations": {"x": "y"}}})


async def test_pods_of_other_schedulers_never_reach_the_server(cluster: Cluster, admission: Admission) -> None:
    admission.stop()
    for scheduler in ("default-scheduler", "capcard-sched"):
        assert await refusal(cluster, pod(scheduler, scheduler=scheduler)) == ""
    assert "failed calling webhook" in await refusal(cluster, job("train"))
    await admission.start()


@pytest.mark.campaign
async def test_pods_that_the_controllers_create_never_reach_the_server(cluster: Cluster, admission: Admission) -> None:
    made = pod("p", annotations={"volcano.sh/jdb-min-available": "0"})
    assert '"0" is not accepted' in await refusal(cluster, made)
    account = f"system:serviceaccount:{SYSTEM}:capcard-sched-controllers"
    headers = {"Impersonate-User": account, "Impersonate-Group": "system:masters"}
    async with cluster.session.post(await cluster.path("pods"), json=made, headers=headers) as response:
        assert response.status == 201, await response.text()


@pytest.mark.campaign
async def test_a_renewed_certificate_is_served_without_a_restart(cluster: Cluster, admission: Admission) -> None:
    secret = await cluster.get("secrets", NAME, namespace=SYSTEM)
    before = await asyncio.to_thread(admission.certificate)
    assert base64.b64decode(secret["data"]["tls.crt"]).decode().strip() == before.strip()
    broken = {"data": {"ca.key": base64.b64encode(b"lost").decode()}}
    await cluster.patch("secrets", NAME, broken, namespace=SYSTEM)

    async def renewed() -> bool:
        return await asyncio.to_thread(admission.certificate) != before

    await cluster.wait_until(renewed, "the new certificate", within=60)
    await eventually_accepted(cluster, queue("later"))
    found = await cluster.get("validatingwebhookconfigurations", NAME)
    bundle = base64.b64decode(found["webhooks"][0]["clientConfig"]["caBundle"]).decode()
    assert bundle.count("BEGIN CERTIFICATE") == 2, "the former authority stays trusted"


async def test_a_certificate_from_the_future_is_replaced(cluster: Cluster, admission: Admission) -> None:
    """A replica whose clock was ahead for some seconds wrote it."""
    secret = await cluster.get("secrets", NAME, namespace=SYSTEM)
    data = {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}
    known = ServingCertificate(data["tls.crt"], data["tls.key"], data["ca.crt"], data["ca.key"])
    hosts = (f"{NAME}.{SYSTEM}.svc", "127.0.0.1")
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=3000)
    wrong = renewed(known, hosts, later)
    texts = dict(zip(("tls.crt", "tls.key", "ca.crt", "ca.key"), msgspec.structs.astuple(wrong), strict=True))
    body = {"data": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}}
    await cluster.patch("secrets", NAME, body, namespace=SYSTEM)

    async def replaced() -> bool:
        found = await cluster.get("secrets", NAME, namespace=SYSTEM)
        pem = base64.b64decode(found["data"]["tls.crt"])
        certificate = x509.load_pem_x509_certificate(pem)
        served = await asyncio.to_thread(admission.certificate)
        is_valid = certificate.not_valid_before_utc <= dt.datetime.now(dt.UTC) < certificate.not_valid_after_utc
        return is_valid and served.strip() == pem.decode().strip()

    await cluster.wait_until(replaced, "a certificate that is valid now", within=60)
    await eventually_accepted(cluster, queue("after-the-future"))


@pytest.mark.parametrize("days", [-20_000, -1000, 1000, 20_000])
async def test_a_certificate_of_a_replica_with_a_wrong_clock_is_valid_by_the_clock_of_the_api_server(
    cluster: Cluster, control_plane: ControlPlane, days: int
) -> None:
    true = dt.datetime.now(dt.UTC)
    connection = load_connection(str(control_plane.kubeconfig_for("admin")), None)
    async with Client(connection) as client:
        for _ in range(2):
            clock = true + dt.timedelta(days=days)
            known = await ensure_certificate(client, cluster.namespace, "wrong-clock", ("localhost",), clock)
        right = await ensure_certificate(client, cluster.namespace, "wrong-clock", ("localhost",), true)
    assert right == known, "a replica with the right clock keeps it"
    certificate = x509.load_pem_x509_certificate(known.certificate.encode())
    assert certificate.not_valid_before_utc <= true < certificate.not_valid_after_utc


@pytest.mark.campaign
async def test_certificates_of_cert_manager_are_read_again_and_need_no_rights(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.make_namespace(SYSTEM)
    for name in ("root", "default"):
        await cluster.create(queue(name))
    server = Admission(cluster, tmp_path)
    now = dt.datetime.now(dt.UTC)
    first = renewed(None, ("127.0.0.1",), now)
    second = renewed(first, ("127.0.0.1", f"{NAME}.{SYSTEM}.svc"), now)
    await server.install(overlay(tmp_path, "cert-manager", resource="admission"), first.authorities)
    audit = Audit(control_plane, f"system:serviceaccount:{SYSTEM}:{NAME}")

    def mount(pair: ServingCertificate) -> None:
        tmp_path.joinpath("tls.key").write_text(pair.key)
        tmp_path.joinpath("tls.crt").write_text(pair.certificate)

    async def rejected() -> bool:
        return "unable to find job queue: missing" in await refusal(cluster, job("train", queue="missing"))

    async def served() -> bool:
        return (await asyncio.to_thread(server.certificate)).strip() == second.certificate.strip()

    mount(first)
    await server.start()
    try:
        await cluster.wait_until(rejected, "the webhooks")
        mount(second)
        await cluster.wait_until(served, "the second certificate", within=60)
        assert await rejected()
    finally:
        server.stop()
    assert not audit.denied()
    assert {right.resource for right in audit.used()} == {"queues", "namespacequeues", "namespaces", "priorityclasses"}


@pytest.mark.campaign
async def test_bodies_that_are_no_reviews_are_refused(cluster: Cluster, admission: Admission) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"https://127.0.0.1:{admission.port}/jobs/validate"
    async with aiohttp.ClientSession() as session:
        for body, status in (
            (b"", 400),
            (b"[]", 400),
            (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1"}', 400),
            (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', 400),
            (b"[" * 100_000, 400),
            (b"x" * (9 * 2**20), 413),
        ):
            async with session.post(url, data=io.BytesIO(body), ssl=context) as response:
                assert response.status == status, body[:20]
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {"uid": "u", "kind": {"kind": "Job"}, "operation": "CREATE", "object": job("ok")},
        }
        async with session.post(url, data=json.dumps(review), ssl=context) as response:
            answer = await response.json()
    assert answer["response"]["uid"] == "u"


@pytest.mark.timeout(120)
async def test_malformed_terms_between_groups_are_rejected(cluster: Cluster, admission: Admission) -> None:
    selector = {"podGroupSelector": {"matchLabels": {"w": "x"}}}
    cases: list[tuple[str, Manifest, str]] = [
        ("required", {**selector, "topologyTier": 1, "weight": 5}, "[0].weight: is not accepted in a required term"),
        ("preferred", {**selector, "topologyTier": 1}, "[0].weight: is required in a preferred term"),
        ("required", {**selector, "topologyTier": 1, "topologyTierName": "r"}, "[0]: has both of topologyTierName"),
        ("required", selector, "[0]: has none of topologyTierName and topologyTier"),
        ("required", {"topologyTier": 1}, "[0].podGroupSelector: is required"),
    ]
    fine = {"podGroupAntiAffinity": {"required": [{**selector, "topologyTier": 1}]}}
    await cluster.create(pod_group("stored", topologyAffinity=fine))
    for side, term, expected in cases:
        wanted = f"spec.topologyAffinity.podGroupAntiAffinity.{side}{expected}"
        affinity = {"podGroupAntiAffinity": {side: [term]}}
        assert wanted in await refusal(cluster, pod_group("new", topologyAffinity=affinity))
        changed = {"podGroupAntiAffinity": {"required": None, "preferred": None, side: [term]}}
        with pytest.raises(RequestError) as error:
            await cluster.patch("podgroups", "stored", {"spec": {"topologyAffinity": changed}})
        assert wanted in str(error.value)
    assert (await cluster.get("podgroups", "stored"))["spec"]["topologyAffinity"] == fine
    assert await cluster.find("podgroups", "new") is None
