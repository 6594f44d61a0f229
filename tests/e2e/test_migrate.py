"""`migrate check` on a live cluster with Volcano: its objects, Deployments and ConfigMaps, and the exit status."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, plain, queue
from tests.e2e.asking import Answer, LiveCommand
from tests.insight.test_situations import HERE

READER: Final = HERE.parents[1] / "manifests" / "readers" / "clusterrole.yaml"
SYSTEM: Final = "volcano-system"


class Installed(NamedTuple):
    """A Deployment of Volcano 1.15.0 as its installation file has it."""

    app: str
    program: str
    config_map: str
    words: str


INSTALLED: Final = {
    "volcano-scheduler": Installed(
        "volcano-scheduler",
        "vc-scheduler",
        "volcano-scheduler-configmap",
        """--logtostderr --scheduler-conf=/volcano.scheduler/volcano-scheduler.conf --enable-healthz=true
        --enable-metrics=true --leader-elect=false --kube-api-qps=2000 --kube-api-burst=2000 --schedule-period=1s
        --node-worker-threads=20 -v=3 2>&1""",
    ),
    "volcano-controllers": Installed(
        "volcano-controller",
        "vc-controller-manager",
        "",
        """--logtostderr --enable-healthz=true --enable-metrics=true --leader-elect=false --kube-api-qps=50
        --kube-api-burst=100 --worker-threads=3 --worker-threads-for-gc=5 --worker-threads-for-podgroup=5
        --sharding-configmap=volcano-sharding-configmap --sharding-configmap-namespace=volcano-system -v=4 2>&1""",
    ),
    "volcano-admission": Installed(
        "volcano-admission",
        "vc-webhook-manager",
        "volcano-admission-configmap",
        """--enabled-admission=/jobs/mutate,/podgroups/validate,/queues/mutate,/queues/validate,/hypernodes/validate
        --tls-cert-file=/admission.local.config/certificates/tls.crt
        --tls-private-key-file=/admission.local.config/certificates/tls.key
        --ca-cert-file=/admission.local.config/certificates/ca.crt
        --admission-conf=/admission.local.config/configmap/volcano-admission.conf --webhook-namespace=volcano-system
        --webhook-service-name=volcano-admission-service --enable-healthz=true --logtostderr --port=8443 -v=4 2>&1""",
    ),
}
CONF: Final = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- plugins: [{name: overcommit}, {name: drf, enablePreemptable: false}, {name: predicates}, {name: proportion}]
"""
DIFFERENT_CONF: Final = CONF.replace("allocate", "allocate, gangpreempt")


def deployment(name: str, arguments: str = "") -> Manifest:
    """A Deployment of Volcano; `arguments` come after those of the installation file."""
    installed = INSTALLED[name]
    container = {
        "name": name,
        "image": f"docker.io/volcanosh/{installed.program}:v1.15.0",
        "args": [*installed.words.split(), *arguments.split()],
    }
    labels = {"app": installed.app}
    spec: dict[str, Any] = {"containers": [container]}
    if installed.config_map:
        spec["volumes"] = [{"name": "config", "configMap": {"name": installed.config_map}}]
    return plain(
        "Deployment",
        name,
        "apps/v1",
        namespace=SYSTEM,
        spec={
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    )


def config_map(name: str, key: str, text: str) -> Manifest:
    return plain("ConfigMap", name, namespace=SYSTEM, data={key: text})


async def install_volcano(cluster: Cluster, conf: str = CONF, **arguments: str) -> None:
    """Volcano's Deployments with further arguments by program, and its ConfigMaps."""
    await cluster.make_namespace(SYSTEM)
    await cluster.create_all(
        [
            *(deployment(name, arguments.get(name.removeprefix("volcano-"), "")) for name in INSTALLED),
            config_map("volcano-scheduler-configmap", "volcano-scheduler.conf", conf),
            config_map("volcano-controller-configmap", "volcano-controller.conf", ""),
            config_map("volcano-admission-configmap", "volcano-admission.conf", "#resourceGroups:\n"),
        ]
    )


ALL_NAMED: Final = dict.fromkeys(("scheduler", "controllers", "admission"), "--scheduler-name=volcano")


@pytest.fixture
def shell(cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> LiveCommand:
    return LiveCommand(control_plane.kubeconfig_for("scheduler-b"), cluster.namespace, capsys)


@pytest.fixture
async def job_flows(cluster: Cluster) -> AsyncIterator[None]:
    """A kind of Volcano that capcard-sched does not have."""
    names = {"plural": "jobflows", "singular": "jobflow", "kind": "JobFlow", "listKind": "JobFlowList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    spec = {"group": "flow.volcano.sh", "scope": "Namespaced", "names": names, "versions": [version]}
    crd = plain("CustomResourceDefinition", "jobflows.flow.volcano.sh", "apiextensions.k8s.io/v1", spec=spec)
    await cluster.create(crd)
    name = crd["metadata"]["name"]

    async def is_served() -> bool:
        found = await cluster.get("customresourcedefinitions", name)
        conditions = found.get("status", {}).get("conditions") or ()
        return any(row["type"] == "Established" and row["status"] == "True" for row in conditions)

    await cluster.wait_until(is_served, "the CustomResourceDefinition")
    yield
    await cluster.delete("customresourcedefinitions", name)


def rows_of(answer: Answer) -> dict[str, tuple[str, list[tuple[str, str, str]]]]:
    """Verdict and reasons (verdict, message, ruling) by object."""
    return {
        row["object"]: (
            row["verdict"],
            [(reason["verdict"], reason["message"], reason.get("ruling", "")) for reason in row["reasons"]],
        )
        for row in answer.document["objects"]
    }


async def test_the_arguments_of_each_program_are_compared(cluster: Cluster, shell: LiveCommand) -> None:
    await install_volcano(
        cluster,
        scheduler="--scheduler-name=volcano --percentage-nodes-to-find=50 --scheduler-sharding-mode=hard",
        controllers="--scheduler-name=volcano --worker-threads-for-cronjob=2 --no-such-flag=1",
        admission="--scheduler-name=volcano --webhook-url=https://x --tls-min=1",
    )
    answer = await shell("migrate", "check", "-o", "json")
    assert answer.status == 3, answer.err
    found = rows_of(answer)
    for program, part, verdict in (
        ("scheduler", "--percentage-nodes-to-find has no effect", "ignored"),
        ("scheduler", "--scheduler-sharding-mode: hard is not supported", "differs"),
        ("controllers", "--worker-threads-for-cronjob has no effect", "ignored"),
        ("controllers", "'--no-such-flag=1': ", "differs"),
        ("admission", "--webhook-url has no effect", "ignored"),
        ("admission", "'--tls-min=1': ", "differs"),
    ):
        of, reasons = found[f"Deployment {SYSTEM}/volcano-{program}"]
        assert of == "differs"
        assert [row[0] for row in reasons if part in row[1]] == [verdict], (program, part, reasons)
        assert {row[2] for row in reasons} == {"flags.md"}


async def test_an_installation_that_is_not_changed_lacks_the_name_alone(cluster: Cluster, shell: LiveCommand) -> None:
    await install_volcano(cluster)
    answer = await shell("migrate", "check", "-o", "json")
    assert answer.status == 3
    differing = [
        (name, message)
        for name, (_, reasons) in rows_of(answer).items()
        for verdict, message, _ in reasons
        if verdict == "differs"
    ]
    assert {name for name, _ in differing} == {f"Deployment {SYSTEM}/{name}" for name in INSTALLED}
    assert all(message.startswith("--scheduler-name is absent: ") for _, message in differing)


async def test_a_cluster_without_differences_has_status_0(cluster: Cluster, shell: LiveCommand) -> None:
    await install_volcano(cluster, **ALL_NAMED)
    await cluster.create(plain("Queue", "plain", "scheduling.volcano.sh/v1beta1", spec={"weight": 1}))
    await cluster.create(plain("Deployment", "web", "apps/v1", spec=_other_deployment()))
    answer = await shell("migrate", "check", "-o", "json")
    assert answer.status == 0, answer.out
    found = rows_of(answer)
    assert found["Queue plain"] == ("same", [])
    assert "Deployment web" not in "".join(found), "Deployments of other programs are not compared"
    for name in INSTALLED:
        assert found[f"Deployment {SYSTEM}/{name}"][0] in ("same", "ignored")
    table = await shell("migrate", "check")
    assert table.status == 0
    assert table.out.splitlines()[-1].endswith(" 0 differs")


def _other_deployment() -> dict[str, Any]:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}}
    return {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}


@pytest.mark.usefixtures("job_flows")
async def test_each_object_has_its_verdict_and_ruling(cluster: Cluster, shell: LiveCommand) -> None:
    await install_volcano(cluster, DIFFERENT_CONF, **ALL_NAMED)
    groups, space = "scheduling.volcano.sh/v1beta1", cluster.namespace
    task = {"name": "w", "replicas": 1, "template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}}
    await cluster.create_all(
        [
            queue("good", cards={"A": 1}),
            plain("PodGroup", "g", groups, spec={"minMember": 2, "subGroupPolicy": [{"name": "w", "minSubGroups": 1}]}),
            plain("PodGroup", "plain", groups, spec={"minMember": 2}),
            plain("Job", "j.x", "batch.volcano.sh/v1alpha1", spec={"plugins": {"svc": []}, "tasks": [task]}),
            plain(
                "HyperNode",
                "h",
                "topology.volcano.sh/v1alpha1",
                spec={"tier": 1, "members": [{"type": "Node", "selector": {"exactMatch": {"name": "n1"}}}]},
            ),
            plain("JobFlow", "f", "flow.volcano.sh/v1alpha1", spec={}),
        ]
    )
    answer = await shell("migrate", "check", "-o", "json")
    assert answer.status == 3, answer.err
    found = rows_of(answer)
    verdicts = {
        name: (verdict, {row[2] for row in reasons if row[0] == verdict}) for name, (verdict, reasons) in found.items()
    }
    assert verdicts[f"PodGroup {space}/g"] == ("differs", {"subgroups-are-whole"})
    assert verdicts[f"PodGroup {space}/plain"][0] == "same"
    assert verdicts[f"Job {space}/j.x"] == ("differs", {"names-of-jobs"})
    assert verdicts[f"JobFlow {space}/f"] == ("differs", {""})
    gang_actions = "differs", {"gang-actions", "gangs-evicted-whole"}
    assert verdicts[f"ConfigMap {SYSTEM}/volcano-scheduler-configmap"] == gang_actions
    assert found["HyperNode h"][0] in ("same", "ignored")


async def test_the_role_of_readers_suffices_and_a_missing_right_is_an_error(
    cluster: Cluster, control_plane: ControlPlane, shell: LiveCommand
) -> None:
    await install_volcano(cluster, **ALL_NAMED)
    denied = await shell("migrate", "check", kubeconfig=control_plane.kubeconfig_for("somebody"))
    assert (denied.status, denied.out) == (2, "")
    rules = yaml.safe_load(READER.read_text())["rules"]
    without = [rule for rule in rules if "deployments" not in rule["resources"]]
    await cluster.create_all([plain("ServiceAccount", "some"), plain("ServiceAccount", "all")])
    for name, given in (("some", without), ("all", rules)):
        account = f"system:serviceaccount:{cluster.namespace}:{name}"
        await cluster.allow(account, given, everywhere=True)
    some = control_plane.kubeconfig_for(token=await cluster.token_of("some"), name="some")
    denied = await shell("migrate", "check", kubeconfig=some)
    assert (denied.status, denied.out) == (2, "")
    assert 'cannot list resource "deployments"' in denied.err
    full = control_plane.kubeconfig_for(token=await cluster.token_of("all"), name="all")
    answer = await shell("migrate", "check", kubeconfig=full)
    assert answer.status == 0, answer.err
