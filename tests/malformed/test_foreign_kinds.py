"""Objects of other API groups whose kind has a name of ours: kept with a warning, without any effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.main import run
from capcard_sched.model.kinds import KINDS, Kind, group_of, kind_of, owner_kind
from capcard_sched.validation.object_checks import check_objects
from capcard_sched.validation.templates import templates_of

GROUPS = (
    "mq.example.com/v1beta1",
    "scheduling.run.ai/v2",
    "scheduling.k8s.io/v1alpha9",
    "batch.example.com/v2",
    "apps.kruise.io/v1",
)
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1"},
    "status": {"allocatable": {"cpu": "8", "memory": "32Gi"}},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {
        "schedulerName": "capcard-sched",
        "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}],
    },
}
#: Fields that would matter, or that are malformed, in an object of ours.
BODY = {
    "spec": {
        "minMember": "four",
        "replicas": "x",
        "queue": 5,
        "parent": 7,
        "tasks": "none",
        "template": [],
        "tier": {},
    },
    "status": {"allocatable": "all", "phase": 1},
    "target": {"kind": "Queue", "name": "default"},
    "action": "CloseQueue",
    "value": "high",
}


def foreign(kind: Kind, api_version: str) -> dict[str, Any]:
    metadata = {"name": "x0", "namespace": "default", "annotations": {"volcano.sh/card.quota": "{broken"}}
    return {"apiVersion": api_version, "kind": kind.name, "metadata": metadata, **BODY}


PAIRS = [(kind, group) for kind in KINDS for group in GROUPS if kind.group != group_of(group)]


@pytest.fixture(name="input", params=["documents", "list", "typed lists"])
def _input(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Every kind that is read, of every foreign group, in three forms."""
    objects = [foreign(kind, group) for kind, group in PAIRS]
    if request.param == "list":
        objects = [{"apiVersion": "v1", "kind": "List", "items": objects}]
    elif request.param == "typed lists":
        objects = [
            {
                "apiVersion": obj["apiVersion"],
                "kind": f"{obj['kind']}List",
                "items": [{k: obj[k] for k in obj if k not in ("apiVersion", "kind")}],
            }
            for obj in objects
        ]
    path = tmp_path / "input.yaml"
    path.write_text("\n---\n".join(map(json.dumps, [NODE, *objects, POD])))
    return path


def test_foreign_objects_are_kept_with_one_warning_per_kind(input: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "-f", str(input), "-o", "json", "--until", "1m"]) == 0
    captured = capsys.readouterr()
    items = json.loads(captured.out)["items"]
    (pod,) = [item for item in items if item["kind"] == "Pod" and item["apiVersion"] == "v1"]
    assert pod["spec"]["nodeName"] == "n1"
    kept = {(item["kind"], item["apiVersion"]) for item in items}
    assert kept >= {(kind.name, group) for kind, group in PAIRS}
    for kind, group in PAIRS:
        own = f"not the {kind.name} of {kind.api_version}"
        if kind.name == "PodGroup" and group.startswith("scheduling.k8s.io/"):
            own = "only scheduling.k8s.io/v1beta1 is read of this group"
        text = f"{kind.name} ({group}): ignored, {own}"
        assert captured.err.count(text) == 1
    assert len(captured.err.splitlines()) == len(PAIRS)


def test_reading_verbs_ignore_foreign_objects(input: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("explain p", "node list", "queue list", "job list", "pod list", "card list"):
        assert run([*verb.split(), "-f", str(input), "--until", "1m"]) == 0, verb
        assert "x0" not in capsys.readouterr().out


def test_validate_checks_foreign_objects_for_nothing_but_their_kind(
    input: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", "-f", str(input), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {row["severity"] for row in found} == {"warning"}
    assert all(": ignored, " in row["message"] for row in found)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_unknown_version_of_our_group_is_an_error_that_names_the_accepted_one(
    kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = f"{kind.group}/v9".lstrip("/")
    (path := tmp_path / "input.json").write_text(json.dumps(foreign(kind, version)))
    assert run(["validate", "-f", str(path)]) == 2
    assert f"expected {kind.api_version} for kind {kind.name}" in capsys.readouterr().out


def test_kinds_and_owners_are_told_apart_by_group() -> None:
    assert kind_of({"apiVersion": "batch/v1", "kind": "Job"}) == "Job.batch/v1"
    assert kind_of({"apiVersion": "batch.volcano.sh/v7", "kind": "Job"}) == "Job"
    assert kind_of({"kind": "Job"}) == "Job"
    assert owner_kind("batch/v1", "Job") == owner_kind("batch.volcano.sh/v1alpha1", "Job") == "Job"
    assert owner_kind("apps.kruise.io/v1beta1", "StatefulSet") == "StatefulSet.apps.kruise.io"
    assert owner_kind("apps.kruise.io/v1beta1", "CloneSet") == "CloneSet"


@pytest.mark.parametrize("group", GROUPS)
def test_no_template_is_read_from_a_foreign_workload(group: str) -> None:
    template = {"metadata": {"annotations": {"volcano.sh/card.name": "A"}}, "spec": {"containers": [{}]}}
    for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod"):
        obj = {"apiVersion": group, "kind": kind, "metadata": {"name": "w"}, "spec": {"template": template}}
        assert not list(templates_of(obj))
        assert not check_objects([obj])
