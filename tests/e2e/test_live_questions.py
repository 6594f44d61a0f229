"""`explain` and `queue list` about a live cluster: right answers, clear refusals, and nothing written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from capcard_sched.cli.cluster_source import INSTALLED_CONF
from capcard_sched.cli.main import run
from tests.controlplane.cluster import Cluster, Manifest
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import gang, gpu_node, pod, queue
from tests.e2e.asking import A10, CARD, H200, NO_CONF, LiveCommand, set_the_scene
from tests.e2e.daemons import CARD_CONF, Daemon

_SHORT = "Queue <q> has insufficient <A10> quota: requested <2000>, total would be <6000>, but capability is <4000>"


@pytest.fixture
def run_live(cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> LiveCommand:
    return LiveCommand(control_plane.kubeconfig_for("scheduler-b"), cluster.namespace, capsys)


async def _install(cluster: Cluster, content: Mapping[str, str]) -> None:
    """The ConfigMap with the scheduler-conf, where manifests/ put it."""
    namespace, _, name = INSTALLED_CONF.partition("/")
    await cluster.make_namespace(namespace)
    meta = {"name": name, "namespace": namespace}
    await cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": dict(content)})


async def _allow(cluster: Cluster, user: str, rules: list[Manifest]) -> None:
    rbac, name = "rbac.authorization.k8s.io", f"may-{user}"
    role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": user}],
    }
    await cluster.create_all([role, binding])


# --- explain --------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_explain_shows_why_a_job_is_pending_with_figures(cluster: Cluster, run_live: LiveCommand) -> None:
    await set_the_scene(cluster)
    answer = await run_live.explain("waits")
    assert (answer.status, answer.err) == (0, NO_CONF)
    lines = answer.out.splitlines()
    needs = "it needs 2 A10, and queue q has 0 A10 left of its quota of 4 (4 used)"
    assert lines[0] == f"{cluster.namespace}/podgroup/waits: The PodGroup is not admitted: {needs}."
    assert f"  A10 used in queue q: {cluster.namespace}/podgroup/runs (4)." in lines
    rows = [line.split() for line in lines]
    assert ["Pods:", "0/2", "scheduled,", "minAvailable", "2,", "pending", "for"] in [row[:7] for row in rows]
    assert ["q", "A10", "4", "4", "0", "0", "8"] in rows, "quota, used, reserved, free, in cluster"
    assert answer.out.count(_SHORT) == 1, "the text of the event, once"


@pytest.mark.asyncio
async def test_explain_shows_scheduled_jobs_and_jobs_the_next_session_binds(
    cluster: Cluster, run_live: LiveCommand
) -> None:
    await set_the_scene(cluster)
    assert ": Not pending: all pods are scheduled.\n" in (await run_live.explain("runs")).out
    answer = await run_live.explain("fits")
    assert ": The next session binds 2 pods to n1.\n" in answer.out
    assert not await cluster.list("events", fieldSelector="involvedObject.name=fits"), "and it does not"
    assert sorted(await cluster.bound()) == [f"runs-{member}" for member in range(4)]


@pytest.mark.asyncio
async def test_explain_finds_a_deployment_by_its_name(cluster: Cluster, run_live: LiveCommand) -> None:
    await set_the_scene(cluster)
    for name in ("chat-5d8f-aaaaa", "chat-v2-5d8f-bbbbb"):
        replica = pod(name, queue="q", cards=A10, requests=CARD, labels={"pod-template-hash": "5d8f"})
        replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name[:-6], "uid": name}
        replica["metadata"]["ownerReferences"] = [{**replica_set, "controller": True}]
        await cluster.create(replica)
    for given_name in ("chat", "deployment/chat"):
        head, *rest = (await run_live.explain(given_name)).out.splitlines()
        assert head.startswith(f"{cluster.namespace}/deployment/chat: The PodGroup is not admitted: ")
        assert "chat-5d8f-aaaaa: PodGroup not admitted" in rest
    missing = await run_live.explain("deployment/chad")
    assert missing.status == 2
    assert "namespace" in missing.err
    assert "has deployment/chat, deployment/chat-v2, early, fits, runs, waits\n" in missing.err


# --- queue list -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_queue_list_shows_held_nominated_and_free_quota(cluster: Cluster, run_live: LiveCommand) -> None:
    await set_the_scene(cluster)
    answer = await run_live("queue", "list")
    assert (answer.status, answer.err) == (0, NO_CONF)
    rows = [line.split() for line in answer.out.splitlines()]
    columns = "QUEUE STATE JOBS PENDING JOBS TOTAL CARD OR RESOURCE QUOTA ALLOCATED RESERVED QUOTA FREE CLUSTER TOTAL"
    assert rows[0] == columns.split()
    # A pod that the next session binds holds nothing: `fits` waits.
    assert ["other", "Open", "1", "2", "A10", "2", "0", "0", "2", "8"] in rows
    assert [H200, "2", "0", "2", "2", "2"] in rows
    assert ["q", "Open", "1", "2", "A10", "4", "4", "0", "0", "8"] in rows
    assert ["X", "1", "0", "0", "1", "none"] in rows, "a quota of what is not in the cluster"
    assert ["cpu", "32", "4", "28"] in rows


@pytest.mark.asyncio
async def test_queue_list_agrees_with_the_daemon(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, run_live: LiveCommand, tmp_path: Path
) -> None:
    either = f"{H200}|{A10}"
    await cluster.create_all([gpu_node("n1", A10, 8), gpu_node("n2", H200, 1), queue("q", cards={A10: 3, H200: 8})])
    await cluster.create_all(
        [*gang("job", 3, queue="q", cards=either, requests=CARD), pod("shy", queue="q", cards="|")]
    )
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CARD_CONF) as daemon:

        async def runs() -> bool:
            return bool((await cluster.get("podgroups", "job")).get("status", {}).get("phase") == "Running")

        await cluster.wait_until(runs, "the job to run", within=20)
        (only,) = (await run_live("queue", "list", "q", "-o", "json")).document["items"]
        for row in only["cards"]:
            for figure, metric in {"allocated": "allocated", "quota": "capacity", "inqueue": "inqueue"}.items():
                message = await daemon.metric(f"volcano_queue_card_{metric}", queue_name="q", card=row["card"])
                assert row[figure] == message, (row, metric)
        assert {row["card"]: row["allocated"] for row in only["cards"]} == {A10: 2, H200: 1}
        await daemon.stop()


# --- the scheduler-conf ---------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_installed_scheduler_conf_decides(cluster: Cluster, run_live: LiveCommand, tmp_path: Path) -> None:
    await set_the_scene(cluster)
    await cluster.create(pod("unnamed", queue="q", requests=CARD))
    deny = CARD_CONF.replace("{name: capacity-card}", "{name: capacity-card, arguments: {unnamedCards: deny}}")
    await _install(cluster, {"scheduler.yaml": deny})
    answer = await run_live.explain("unnamed")
    assert answer.err == ""
    assert ": Can never start: card resource nvidia.com/gpu requested without annotation" in answer.out
    given = tmp_path / "conf.yaml"
    given.write_text(CARD_CONF)
    answer = await run_live.explain("unnamed", f"--scheduler-conf={given}")
    assert ": The next session binds 1 pod to " in answer.out, "the conf that is given goes first"
    answer = await run_live.explain("unnamed", "--installed-conf=capcard-system/another")
    assert "ConfigMap capcard-system/another: not found; using the built-in scheduler-conf\n" in answer.err


@pytest.mark.parametrize(
    "content, status, message",
    [
        ({"other.yaml": ""}, 0, f"note: ConfigMap {INSTALLED_CONF} has no key scheduler.yaml; using the built-in"),
        (
            {"scheduler.yaml": "actions: ["},
            2,
            f"error: ConfigMap {INSTALLED_CONF}: invalid scheduler-conf\n",
        ),
    ],
    ids=["another key", "not readable"],
)
@pytest.mark.asyncio
async def test_an_invalid_installed_scheduler_conf_is_reported(
    cluster: Cluster, run_live: LiveCommand, content: Mapping[str, str], status: int, message: str
) -> None:
    await cluster.create(queue("q"))
    await _install(cluster, content)
    answer = await run_live("queue", "list")
    assert answer.status == status
    assert message in answer.err


# --- rights and paths -----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_missing_read_rights_are_named(
    cluster: Cluster, control_plane: ControlPlane, run_live: LiveCommand
) -> None:
    await set_the_scene(cluster)
    reader = control_plane.kubeconfig_for("somebody")
    answer = await run_live("queue", "list", kubeconfig=reader)
    assert (answer.status, answer.out) == (2, "")
    note, error = answer.err.splitlines()
    assert note == f"note: ConfigMap {INSTALLED_CONF}: access denied; using the built-in scheduler-conf"
    assert error.startswith(f"error: {control_plane.server}: 403 Forbidden: nodes is forbidden")
    needed = {"": ["nodes", "pods"], "scheduling.volcano.sh": ["podgroups", "queues"]}
    rules = [{"apiGroups": [group], "resources": names, "verbs": ["list"]} for group, names in needed.items()]
    await _allow(cluster, "somebody", rules)
    answer = await run_live("queue", "list", "q", kubeconfig=reader)
    assert answer.status == 0
    note, left_out = answer.err.splitlines()
    assert left_out.startswith("note: access denied, assumed empty: ")
    assert "priorityclasses" in left_out
    assert ["q", "Open", "1", "2", "A10", "4", "4", "0", "0", "8"] in [line.split() for line in answer.out.splitlines()]


def test_without_a_kubeconfig_files_are_offered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["queue", "list"]) == 2
    err = capsys.readouterr().err
    assert err.endswith("; or pass manifests with -f\n")
    assert err.startswith("error: no kubeconfig is given, KUBECONFIG is not set")
    assert err.count("\n") == 1
