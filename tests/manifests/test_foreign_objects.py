"""No policy or webhook of the manifests refuses an object of another scheduler, whichever of our objects is missing."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from capcard_sched.daemon.admission.certificates import renewed
from capcard_sched.model.annotations import BOUND_QUEUE, FENCE
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import binding, deployment, job, node, plain, pod, pod_group, queue
from tests.manifests.documents import INSTALL, MANIFESTS, Manifest, kustomized, read
from tests.manifests.test_chart import rendered

ADMISSION: Final = (
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
)
SCHEDULER: Final = "system:serviceaccount:capcard-system:capcard-sched"
_NO_REPLICA: Final = "failed calling webhook"
CRITICAL: Final = "system-cluster-critical"
#: What our objects depend on, by kind and name.
DEPENDENCIES: Final = (
    ("leases", "capcard-sched"),
    ("configmaps", "capcard-sched-conf"),
    ("secrets", "capcard-sched-admission"),
    ("serviceaccounts", "capcard-sched"),
    ("services", "capcard-sched-admission"),
    ("deployments", "capcard-sched-admission"),
    ("deployments", "capcard-sched-controllers"),
    ("deployments", "capcard-sched"),
)


CARD = "volcano.sh/card.assigned"
_DEVICE = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": "g0"}


class Attempt(NamedTuple):
    """A request, as a trial."""

    name: str
    method: str
    kind: str
    body: Any
    object: str = ""
    subresource: str = ""
    user: str = ""


def template(scheduler: str, **spec: Any) -> Manifest:
    made = pod("x", scheduler=scheduler, **spec)
    return {"metadata": {"annotations": {BOUND_QUEUE: "q"}}, "spec": made["spec"]}


def cron_job(name: str, **spec: Any) -> Manifest:
    job_spec = job("x", **spec)["spec"]
    return plain(
        "CronJob", name, "batch.volcano.sh/v1alpha1", spec={"schedule": "@daily", "jobTemplate": {"spec": job_spec}}
    )


def create(name: str, manifest: Manifest, kind: str) -> Attempt:
    return Attempt(name, "POST", kind, manifest)


def workloads(scheduler: str) -> Iterator[Attempt]:
    """Pods and what becomes one, each with all that a policy of ours refuses."""
    notes = {BOUND_QUEUE: "q", "volcano.sh/vgpu-ids-new": "x"}
    bad: Manifest = {"nodeName": "n1", "priorityClassName": CRITICAL}
    yield create("pod", pod("new", scheduler=scheduler, annotations=notes, **bad), "pods")
    labels = {"app": "x"}
    selected = {"selector": {"matchLabels": labels}}
    labelled = {**template(scheduler, **bad), "metadata": {"labels": labels}}
    yield create("deployment", deployment("new", 1, labelled), "deployments")
    for kind in ("ReplicaSet", "DaemonSet"):
        yield create(kind, plain(kind, "new", "apps/v1", spec={**selected, "template": labelled}), f"{kind.lower()}s")
    stateful = {**selected, "serviceName": "x", "template": labelled}
    yield create("StatefulSet", plain("StatefulSet", "new", "apps/v1", spec=stateful), "statefulsets")
    once = {**labelled, "spec": {**labelled["spec"], "restartPolicy": "Never"}}
    yield create("batch Job", plain("Job", "new", "batch/v1", spec={"template": once}), "jobs.batch")
    timed = {"schedule": "@daily", "jobTemplate": {"spec": {"template": once}}}
    yield create("batch CronJob", plain("CronJob", "new", "batch/v1", spec=timed), "cronjobs.batch")


def foreign(scheduler: str) -> list[Attempt]:
    """Requests about objects of another scheduler; the pods `there` and `bound` exist."""
    tasks = [{"name": "w", "replicas": 1, "template": template(scheduler, nodeName="n1", priorityClassName=CRITICAL)}]
    volcano: Manifest = {"schedulerName": scheduler, "priorityClassName": CRITICAL, "tasks": tasks}
    note = {"metadata": {"annotations": {BOUND_QUEUE: "x", "volcano.sh/card.name": "B", "volcano.sh/queue-name": "b"}}}
    more = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
    fenced = binding("there", "n1", annotations={FENCE: "somebody/7"})
    return [
        *workloads(scheduler),
        create("vcjob", job("new", **volcano), "jobs.batch.volcano.sh"),
        create("volcano CronJob", cron_job("new", **volcano), "cronjobs.batch.volcano.sh"),
        Attempt("bind", "POST", "pods", binding("there", "n1"), "there", "binding"),
        Attempt("bind with a token", "POST", "pods", fenced, "there", "binding"),
        Attempt("bind without a token, as ours", "POST", "pods", binding("there", "n1"), "there", "binding", SCHEDULER),
        Attempt("annotate", "PATCH", "pods", note, "bound"),
        Attempt("annotate by status", "PATCH", "pods", note, "bound", "status"),
        Attempt("resize", "PATCH", "pods", more, "bound", "resize"),
        Attempt("delete", "DELETE", "pods", None, "bound"),
        create("claim", allocated_claim("new", {CARD: "x"}), "resourceclaims"),
        Attempt("annotate a claim", "PATCH", "resourceclaims", {"metadata": {"annotations": {CARD: "x"}}}, "held"),
        Attempt("release a claim", "PATCH", "resourceclaims", {"status": {"allocation": None}}, "held", "status"),
        Attempt("delete a claim", "DELETE", "resourceclaims", None, "held"),
        create("other group", plain("Lease", "x", "coordination.k8s.io/v1", spec={}), "leases"),
    ]


def allocated_claim(name: str, annotations: dict[str, str]) -> Manifest:
    """A claim for one device, without its status."""
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
    found = plain("ResourceClaim", name, "resource.k8s.io/v1", spec=spec)
    found["metadata"]["annotations"] = annotations
    return found


def groups_and_queues() -> list[Attempt]:
    """Kinds of Volcano that name no scheduler."""
    return [create("queue", queue("new"), "queues"), create("podgroup", pod_group("new"), "podgroups")]


def ours() -> list[Attempt]:
    """Requests that a policy refuses whatever is missing."""
    bad: Manifest = {"priorityClassName": CRITICAL}
    group = pod_group("new", **bad)
    return [
        create("pod", pod("new", **bad), "pods"),
        create("podgroup", group, "podgroups"),
        Attempt("claim", "PATCH", "resourceclaims", {"metadata": {"annotations": {BOUND_QUEUE: "x"}}}, "ours"),
        create("new claim", allocated_claim("new", {BOUND_QUEUE: "x"}), "resourceclaims"),
        create("vcjob", job("new", schedulerName="capcard-sched", **bad), "jobs.batch.volcano.sh"),
        create("cronjob", cron_job("new", schedulerName="capcard-sched", **bad), "cronjobs.batch.volcano.sh"),
        create(
            "daemonset",
            next(each for each in workloads("capcard-sched") if each.name == "DaemonSet").body,
            "daemonsets",
        ),
    ]


async def prepare(cluster: Cluster) -> None:
    """Creates the objects that exist before the policies: a node, and an allocated claim of others and of ours."""
    await cluster.create(node("n1"))
    for claim, notes in (("held", {CARD: "{}"}), ("ours", {BOUND_QUEUE: "q", CARD: "{}"})):
        await cluster.create(allocated_claim(claim, notes))
        status = {"status": {"allocation": {"devices": {"results": [_DEVICE]}}}}
        await cluster.patch("resourceclaims", claim, status, subresource="status")


async def response(cluster: Cluster, attempt: Attempt) -> str:
    """The error of a request, empty for one that is accepted."""
    path = await cluster.path(attempt.kind, attempt.object, subresource=attempt.subresource)
    headers = {"Content-Type": "application/json"}
    if attempt.method == "PATCH":
        headers["Content-Type"] = "application/strategic-merge-patch+json"
    if attempt.user:
        headers |= {"Impersonate-User": attempt.user, "Impersonate-Group": "system:masters"}
    body = None if attempt.body is None else json.dumps(attempt.body).encode()
    params = {"dryRun": "All"}
    async with cluster.session.request(attempt.method, path, params=params, data=body, headers=headers) as answer:
        text = await answer.text()
    return "" if answer.status < 400 else f"{answer.status} {text}"


async def refusals(cluster: Cluster, attempts: list[Attempt]) -> dict[str, str]:
    found = {attempt.name: await response(cluster, attempt) for attempt in attempts}
    return {name: text for name, text in found.items() if text}


@pytest.fixture(params=["install", "chart", "beside-volcano"])
def installed(request: pytest.FixtureRequest) -> tuple[str, list[Manifest]]:
    """Name and objects of an installation, without CRDs."""
    sources: dict[str, Callable[[], list[Manifest]]] = {
        "install": lambda: read(INSTALL),
        "chart": lambda: rendered(request.getfixturevalue("helm")),
        "beside-volcano": lambda: kustomized(request.getfixturevalue("kubectl"), MANIFESTS / "beside-volcano"),
    }
    found = sources[request.param]()
    return request.param, [each for each in found if each["kind"] != "CustomResourceDefinition"]


async def test_objects_of_other_schedulers_pass_whatever_is_missing(
    cluster: Cluster, installed: tuple[str, list[Manifest]]
) -> None:
    name, objects = installed
    await prepare(cluster)
    for scheduler in ("default-scheduler", "volcano"):
        await cluster.create_all([pod("there", scheduler=scheduler), pod("bound", scheduler=scheduler)])
        await cluster.bind("bound", "n1")
        attempts = foreign(scheduler) + (groups_and_queues() if name == "beside-volcano" else [])
        assert await refusals(cluster, attempts) == {}, "the requests are valid"
        if scheduler == "default-scheduler":
            await cluster.apply(each for each in objects if each["kind"] in ADMISSION)
            await acting(cluster)
            assert await refusals(cluster, attempts) == {}, "no other object of ours exists"
            await cluster.apply(each for each in objects if each["kind"] == "Namespace")
            if await cluster.find("namespaces", "capcard-system") is None:
                await cluster.make_namespace("capcard-system")
            await cluster.apply(each for each in objects if each["kind"] not in ADMISSION)
            spec = {"holderIdentity": "a", "leaseTransitions": 0}
            lease = plain("Lease", "capcard-sched", "coordination.k8s.io/v1", namespace="capcard-system", spec=spec)
            secret = plain("Secret", "capcard-sched-admission", namespace="capcard-system")
            await cluster.apply([lease, secret])
            assert await refusals(cluster, attempts) == {}, "no replica runs"
            for kind, missing in DEPENDENCIES:
                if await cluster.find(kind, missing, namespace="capcard-system") is not None:
                    await cluster.delete(kind, missing, namespace="capcard-system")
                    assert await refusals(cluster, attempts) == {}, f"{kind} {missing} does not exist"
        assert await refusals(cluster, attempts) == {}, scheduler
        for each in ("there", "bound"):
            await cluster.delete("pods", each)
    found = await refusals(cluster, ours())
    assert set(found) == {each.name for each in ours()}
    held = {"vcjob", "podgroup"} if name != "beside-volcano" else set()
    assert {each for each, text in found.items() if _NO_REPLICA in text} == held


def _authority() -> tuple[str, ssl.SSLContext]:
    """A serving certificate for loopback, and the PEM of the authority that issued it."""
    pair = renewed(None, ("127.0.0.1",), dt.datetime.now(dt.UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(pair.certificate + pair.key)
        file.flush()
        context.load_cert_chain(file.name)
    return pair.authorities, context


@pytest.mark.parametrize("bundle", ["of another authority", "none"])
async def test_objects_of_other_schedulers_pass_with_a_wrong_authority_in_the_webhooks(
    cluster: Cluster, installed: tuple[str, list[Manifest]], bundle: str
) -> None:
    """A server is there, and its certificate is not that of `caBundle`: each call of a webhook fails."""
    name, objects = installed
    (_, context), (other, _) = _authority(), _authority()
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    hooks = [hook for each in objects if each["kind"] in ADMISSION for hook in each.get("webhooks", ())]
    assert hooks
    for hook in hooks:
        hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{hook['clientConfig']['service']['path']}"}
        if bundle != "none":
            hook["clientConfig"]["caBundle"] = base64.b64encode(other.encode()).decode()
    async with server:
        await prepare(cluster)
        await cluster.apply(each for each in objects if each["kind"] in ADMISSION)
        await acting(cluster)
        for scheduler in ("default-scheduler", "volcano"):
            await cluster.create_all([pod("there", scheduler=scheduler), pod("bound", scheduler=scheduler)])
            await cluster.bind("bound", "n1")
            attempts = foreign(scheduler) + (groups_and_queues() if name == "beside-volcano" else [])
            assert await refusals(cluster, attempts) == {}, scheduler
            for each in ("there", "bound"):
                await cluster.delete("pods", each)
        gated = pod("new", annotations={"scheduling.volcano.sh/queue-allocation-gate": "true"})
        assert await response(cluster, create("pod", gated, "pods")) == "", "the webhook of pods fails open"
        found = await refusals(cluster, ours())
        assert set(found) == {each.name for each in ours()}
        held = {"vcjob", "podgroup"} if name != "beside-volcano" else set()
        assert {each for each, text in found.items() if "failed to verify certificate: x509" in text} == held


async def acting(cluster: Cluster) -> None:
    """Waits until each policy refuses one object of ours; webhooks without a replica do so before it."""

    async def all_refuse() -> bool:
        found = await refusals(cluster, ours())
        return len(found) == len(ours()) and all("403" in text or _NO_REPLICA in text for text in found.values())

    await cluster.wait_until(all_refuse, "the policies to be in effect", within=60)


async def test_a_binding_of_our_scheduler_passes_without_its_lease_and_fails_with_that_of_another_replica(
    cluster: Cluster,
) -> None:
    await cluster.create_all([node("n1"), pod("there")])
    await cluster.apply(MANIFESTS / "base" / "admission-fence.yaml")
    await cluster.apply(MANIFESTS / "base" / "namespace.yaml")
    body = binding("there", "n1", annotations={FENCE: "a/0"})
    bind = Attempt("bind", "POST", "pods", body, "there", "binding", SCHEDULER)
    spec = {"holderIdentity": "b", "leaseTransitions": 1}
    lease = plain("Lease", "capcard-sched", "coordination.k8s.io/v1", namespace="capcard-system", spec=spec)
    await cluster.create(lease)

    async def refused() -> bool:
        return "does not lead" in await response(cluster, bind)

    async def passes() -> bool:
        return await response(cluster, bind) == ""

    await cluster.wait_until(refused, "the fence to act", within=60)
    await cluster.delete("leases", "capcard-sched", namespace="capcard-system")
    await cluster.wait_until(passes, "the fence to notice that the Lease is gone", within=60)


@pytest.mark.parametrize("path", sorted(MANIFESTS.rglob("*admission*.yaml")) + sorted(MANIFESTS.rglob("webhooks.yaml")))
def test_every_rule_names_groups_and_resources(path: Path) -> None:
    if "templates" in path.parts:
        return
    for manifest in read(path):
        spec = manifest.get("spec", {}).get("matchConstraints", {}).get("resourceRules", [])
        for rule in [*spec, *(rule for hook in manifest.get("webhooks", []) for rule in hook["rules"])]:
            assert "*" not in [*rule["apiGroups"], *rule["apiVersions"], *rule["operations"]]
            assert not [each for each in rule["resources"] if "*" in each]


def test_a_job_that_names_another_scheduler_is_outside_of_the_webhooks() -> None:
    hooks = [hook for each in read(MANIFESTS / "admission" / "webhooks.yaml") for hook in each["webhooks"]]
    jobs = [hook for hook in hooks if hook["rules"][0]["resources"] == ["jobs"]]
    assert len(jobs) == 2
    for hook in jobs:
        assert [row["name"] for row in hook["matchConditions"]] == ["of-our-scheduler"]
