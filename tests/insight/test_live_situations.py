"""Situations on a real API server, in the state that a simulation ends with; and what users with few rights see."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.exit_codes import READER_HINT
from capcard_sched.cli.main import run
from capcard_sched.kube.kinds import KINDS
from capcard_sched.simulation.clock import SECOND
from capcard_sched.simulation.run import SimulationOptions, simulate
from capcard_sched.simulation.scenario_reader import load_scenario
from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest
from tests.insight.json_schema import violations
from tests.insight.scenes import WAITING, core_of
from tests.insight.test_fixes import CASES as FIXES
from tests.insight.test_fixes import check_fixes
from tests.insight.test_situations import CASES, HERE, SCHEMA, check
from tests.scenarios.notation import expanded

LIVE = [case for case in CASES if case.get("live")]
FILES = sorted({case["file"] for case in LIVE})
#: Kinds in the order of creation.
_KINDS = (
    *("PriorityClass", "StorageClass", "PersistentVolume", "PersistentVolumeClaim"),
    *("DeviceClass", "ResourceSlice", "ResourceClaimTemplate", "HyperNode"),
    *("Queue", "Node", "Job", "Deployment", "ReplicaSet", "PodGroup", "Pod", "ResourceClaim"),
)
_CLAIMS = ("resourceClaimStatuses",)
_SERVER_SET = ("creationTimestamp", "resourceVersion", "uid", "generation")
_BUILT_IN = {"default", "root"}


def objects_of(path: Path, until: int, *more: str) -> list[Manifest]:
    """The objects that controllers and a scheduler leave behind after `until` microseconds; `more`: further kinds."""
    scenario = load_scenario([str(path)], existing_queues=("root", "default"))
    options = SimulationOptions(until=until)
    store = simulate(scenario, core_of(options), options).store
    return [copy.deepcopy(obj) for kind in (*_KINDS, *more) for obj in store.list(kind)]


async def create_events(cluster: Cluster, events: Iterable[Manifest]) -> None:
    """Create events; those about cluster-scoped objects in namespace `default`."""
    for event in copy.deepcopy([*events]):
        about = event["involvedObject"]
        about.pop("uid", None)
        namespace = cluster.namespace if about.get("namespace") else "default"
        if about.get("namespace"):
            about["namespace"] = namespace
        event["metadata"] = {"name": event["metadata"]["name"], "namespace": namespace}
        await cluster.create(event)


async def create_as_they_are(cluster: Cluster, found: list[Manifest]) -> None:
    """Create objects with their status and owners."""
    uids: dict[str, str] = {}
    for obj in found:
        meta, status = obj["metadata"], obj.get("status")
        if obj["kind"] == "Queue" and meta["name"] in _BUILT_IN:
            continue
        old = meta["uid"]
        for field in _SERVER_SET:
            meta.pop(field, None)
        if "namespace" in meta:
            meta["namespace"] = cluster.namespace
        for owner in meta.get("ownerReferences") or ():
            owner["uid"] = uids.get(owner["uid"], owner["uid"])
        for container in itertools.chain.from_iterable(
            ((obj.get("spec") or {}).get(field) or ()) for field in ("containers", "initContainers")
        ):
            for resource, amount in ((container.get("resources") or {}).get("limits") or {}).items():
                container["resources"].setdefault("requests", {}).setdefault(resource, amount)
        try:
            made = await cluster.create(obj)
        except RequestError as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            continue  # such as a queue name in upper case
        uids[old] = made["metadata"]["uid"]
        if status and obj["kind"] in {"PodGroup", "Queue", "Job"}:
            kind = {"PodGroup": "podgroups", "Queue": "queues", "Job": "jobs.batch.volcano.sh"}[obj["kind"]]
            part = {} if obj["kind"] == "PodGroup" else {"subresource": "status"}
            await cluster.patch(kind, meta["name"], {"status": status}, **part)
        elif status and obj["kind"] == "Pod":
            fields = ("phase", *_CLAIMS) if obj["spec"].get("nodeName") else _CLAIMS
            if part := {field: status[field] for field in fields if status.get(field)}:
                await cluster.patch("pods", meta["name"], {"status": part}, subresource="status")


async def explain(
    cluster: Cluster, config: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    capsys.readouterr()
    command = ["explain", *words, "-n", cluster.namespace, f"--kubeconfig={config}"]
    status = await asyncio.to_thread(run, command)
    return status, *capsys.readouterr()


@pytest.mark.campaign
@pytest.mark.parametrize("file", FILES)
@pytest.mark.asyncio
async def test_a_live_cluster_gives_the_same_facts(
    file: str, cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    await create_as_they_are(cluster, objects_of(expanded(HERE / "situations" / f"{file}.yaml"), 900 * SECOND))
    config = control_plane.kubeconfig_for("scheduler-b")
    for case in (case for case in LIVE if case["file"] == file):
        name = case["name"].removeprefix("ml/")
        status, text, _ = await explain(cluster, config, capsys, name)
        assert status == 0
        _, document, _ = await explain(cluster, config, capsys, name, "-o", "json")
        facts = case["contains"] if case["live"] is True else case["live"]
        local = {**case, "contains": [fact.replace("default/", f"{cluster.namespace}/") for fact in facts]}
        check(local, text, json.loads(document))


@pytest.mark.campaign
@pytest.mark.parametrize("case", [case for case in FIXES if case.get("live")], ids=lambda case: str(case["file"]))
@pytest.mark.asyncio
async def test_a_live_cluster_gets_the_same_fixes_and_keeps_its_objects(
    case: dict[str, Any], cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    await create_as_they_are(cluster, objects_of(expanded(HERE / "situations" / f"{case['file']}.yaml"), 900 * SECOND))
    kinds = ("nodes", "queues", "podgroups", "pods", "jobs.batch.volcano.sh")
    before = {kind: _versions(await cluster.list(kind)) for kind in kinds}
    config = control_plane.kubeconfig_for("scheduler-b")
    status, text, _ = await explain(cluster, config, capsys, case["name"], "--fix")
    assert status == 0
    _, document, _ = await explain(cluster, config, capsys, case["name"], "--fix", "-o", "json")
    fixes = [[text.replace("default/", f"{cluster.namespace}/") for text in fix] for fix in case["fixes"]]
    check_fixes({**case, "fixes": fixes}, text, json.loads(document))
    assert {kind: _versions(await cluster.list(kind)) for kind in kinds} == before


def _versions(found: list[Manifest]) -> dict[str, str]:
    return {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in found}


@pytest.mark.asyncio
async def test_objects_that_nothing_processed_are_explained(
    cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    tasks = [{"name": "w", "replicas": 1, "template": template}]
    spec = {"schedulerName": "volcano", "minAvailable": 1, "tasks": tasks}
    job = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "alone"}, "spec": spec}
    await cluster.create_all([job, {**job, "metadata": {"name": "paused"}}])
    aborted = {"status": {"state": {"phase": "Aborted"}}}
    await cluster.patch("jobs.batch.volcano.sh", "paused", aborted, subresource="status")
    config = control_plane.kubeconfig_for("scheduler-b")
    for name, first in {
        "alone": "Job alone has no PodGroup: no controller has processed it",
        "paused": "Job paused is suspended (phase Aborted)",
    }.items():
        status, text, _ = await explain(cluster, config, capsys, name)
        assert status == 0
        assert text.splitlines()[0] == f"{cluster.namespace}/job/{name}: {first}."


@pytest.mark.asyncio
async def test_rights_in_one_namespace_show_the_scheduler_writes_of_that_namespace(
    cluster: Cluster, control_plane: ControlPlane, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(WAITING)
    await create_as_they_are(cluster, objects_of(file, 30 * SECOND))
    pods = [pod for pod in await cluster.list("pods") if pod["metadata"]["name"].startswith("waits-")]
    for pod in pods:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no <A> left."}
        status = {"status": {"conditions": [condition]}}
        await cluster.patch("pods", pod["metadata"]["name"], status, subresource="status")
    reader = control_plane.kubeconfig_for("somebody")
    rules = [
        {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list"]},
        {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["get", "list"]},
    ]
    answer, text, err = await explain(cluster, reader, capsys, "waits")
    assert (answer, text) == (2, "")
    assert err.splitlines()[-1].startswith(f"error: {control_plane.server}: 403 Forbidden: ")

    rbac = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": "reader"}, "rules": rules}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "reader"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "somebody"}],
    }
    await cluster.create_all([role, binding])
    answer, text, err = await explain(cluster, reader, capsys, "waits")
    assert answer == 0
    unreadable = "nodes, podgroups of other namespaces, pods of other namespaces, queues"
    consequence = f"no quota and no node is shown; {READER_HINT}"
    assert f"note: access denied: {unreadable}; {consequence}\n" in err
    lines = text.splitlines()
    assert lines[0] == f"{cluster.namespace}/job/waits: Pending, as the scheduler wrote last: no A left."
    assert lines[1] == f"  Not readable: {unreadable}; figures of quotas and nodes are missing."
    assert "waits-worker-0, waits-worker-1: no node fits" in lines
    _, document, _ = await explain(cluster, reader, capsys, "waits", "-o", "json")
    found: dict[str, Any] = json.loads(document)
    assert violations(found, SCHEMA, SCHEMA) == []
    assert (found["scheduled"], found["pods"], found["queue"]) == (0, 2, None)


@pytest.mark.asyncio
async def test_a_missing_kind_is_one_clear_line(
    cluster: Cluster,
    control_plane: ControlPlane,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unserved = tuple(replace(kind, path=kind.path.replace("v1beta1/", "v9/")) for kind in KINDS)
    monkeypatch.setattr("capcard_sched.insight.sources.live_objects.KINDS", unserved)
    status, text, err = await explain(cluster, control_plane.kubeconfig_for("scheduler-b"), capsys, "waits")
    assert (status, text) == (2, "")
    line = err.splitlines()[-1].replace("PodGroup", "Queue")
    problem = "kind Queue is not served by the API server: install the CustomResourceDefinitions"
    assert line == f"error: {control_plane.server}: {problem}: kubectl apply -f manifests/crds"


def test_every_situation_is_explained_on_a_live_cluster() -> None:
    live = {*FILES, *(case["file"] for case in FIXES if case.get("live"))}
    assert {file.stem for file in (HERE / "situations").iterdir()} == live
    assert len(live) == 34
