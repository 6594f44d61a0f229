"""A saved state has the Jobs, Deployments and events that diagnoses read: its texts are those of the manifests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capcard_sched.cli.main import run
from capcard_sched.cli.sources.load import input_of
from capcard_sched.cli.sources.source import Source
from capcard_sched.daemon.diagnosis.saved_state import (
    SavedSettings,
    as_manifest,
    document_text,
    manifests_of,
    saved_deployment,
    saved_event,
    saved_job,
)
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.simulation.clock import EPOCH, SECOND
from tests.scenarios.notation import manifests

SECONDS = 30
#: Jobs that run, that a quota refuses, and of which the controller makes no PodGroup.
CLUSTER = """
node n1 4*A cpu=32
queue q cards=A:4
queue small cards=A:1
job runs queue=q min=1 + w*2 cpu=1 gpu=1 card=A
job waits queue=q min=2 request=A:4 + w*2 cpu=1 gpu=2 card=A
job large queue=small min=1 + w*1 cpu=1 gpu=2 card=A
job wide queue=q min=1 + w*1 cpu=64
job wrong queue=q min=1 plugins={nope: []} + w*1 cpu=1
job lost queue=gone min=1 + w*1 cpu=1
deployment chat*1 queue=small cpu=64 gpu=1
"""
JOBS = re.findall(r"^job (\w+)", CLUSTER, re.MULTILINE)
#: The annotation of the Deployment itself, which has no effect there.
MISPLACED = {"volcano.sh/card.name": "A", "kubectl.kubernetes.io/last-applied-configuration": "secret"}


class Files:
    """The cluster as manifests, and saved at the end of its simulation."""

    def __init__(self, folder: Path) -> None:
        self.manifests, self.saved = folder / "cluster.yaml", folder / "saved.json"
        objects = manifests(CLUSTER)
        for obj in objects:
            if obj["kind"] == "Deployment":
                obj["metadata"]["annotations"] = dict(MISPLACED)
                for container in obj["spec"]["template"]["spec"]["containers"]:
                    container["command"] = ["secret"]
            if obj["kind"] == "Job":
                obj["spec"].setdefault("plugins", {})["ssh"] = ["--ssh-private-key=secret"]
                obj["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "secret"}
                for task in obj["spec"]["tasks"]:
                    for container in task["template"]["spec"]["containers"]:
                        container |= {"env": [{"name": "TOKEN", "value": "secret"}], "command": ["secret"]}
        self.manifests.write_text("\n---\n".join(map(json.dumps, objects)))
        given = input_of(Source(file=(str(self.manifests),), until=f"{SECONDS}s"))
        _, outcome = given.simulate(given.scenario(), given.core(None, simulated=True))
        store = outcome.store
        watched = [(kind.name, kind.watch.type) for kind in KIND_BY_NAME.values() if kind.watch is not None]
        found = [ObjectChanged(msgspec.convert(obj, type)) for kind, type in watched for obj in store.list(kind)]
        explained = [as_manifest("Job", saved_job(job)) for job in store.list("Job")]
        explained += [as_manifest("Deployment", saved_deployment(one)) for one in store.list("Deployment")]
        explained += [as_manifest("Event", saved_event(event)) for event in store.list("Event")]
        settings = SavedSettings(format_timestamp(EPOCH + outcome.end / SECOND), ("volcano",), "default")
        self.saved.write_bytes(document_text(settings, manifests_of(found), explained))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("saved"))


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", [*(f"job/{name}" for name in JOBS), "deployment/chat"])
@pytest.mark.parametrize("flags", [[], ["--fix"]], ids=["", "fix"])
def test_a_job_has_the_text_of_the_manifests(
    name: str, flags: list[str], files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", name, *flags]
    simulated = output(capsys, *words, "-f", str(files.manifests), "--until", f"{SECONDS}s")
    assert output(capsys, *words, "-f", str(files.saved)) == simulated


def test_a_misplaced_annotation_of_a_deployment_is_named(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "explain", "deployment/chat", "-f", str(files.saved))
    assert 'Deployment default/chat: metadata.annotations["volcano.sh/card.name"]: has no effect here' in text


def test_a_list_has_all_jobs(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["job", "list", "-o", "json"]
    simulated = json.loads(output(capsys, *words, "-f", str(files.manifests), "--until", f"{SECONDS}s"))
    saved = json.loads(output(capsys, *words, "-f", str(files.saved)))
    assert saved == simulated
    assert {item["name"] for item in saved["items"]} == {*JOBS, "chat"}


def test_a_saved_state_has_no_environment_and_no_commands(files: Files) -> None:
    text = files.saved.read_text()
    assert "secret" not in text
    jobs = [each for each in json.loads(text)["explained"] if each["kind"] == "Job"]
    assert len(jobs) == len(JOBS)
    (main,) = jobs[0]["spec"]["tasks"][0]["template"]["spec"]["containers"]
    assert main.keys() == {"name", "image", "resources"}


def test_a_simulation_leaves_the_saved_jobs_out(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    simulated = json.loads(output(capsys, "simulate", "-f", str(files.saved), "--until", "10s", "-o", "json"))
    kinds = {item["kind"] for item in simulated["items"]}
    assert "Pod" in kinds
    assert "Job" not in kinds


def test_a_malformed_saved_job_is_one_error_line(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content: dict[str, Any] = json.loads(files.saved.read_text())
    content["explained"][0]["spec"] = 1
    (tmp_path / "bad.json").write_text(json.dumps(content))
    assert run(["explain", "job/runs", "-f", str(tmp_path / "bad.json")]) == 2
    assert re.fullmatch(r"error: \S+bad.json: explained.spec: expected a mapping, got .*\n", capsys.readouterr().err)


def test_a_pod_that_the_scheduler_keeps_waiting_for_its_podgroup_is_explained_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "waiting for the controllers to create PodGroup podgroup-u1"
    condition = {"type": "PodScheduled", "status": "False", "reason": "GangPending", "message": text}
    objects = manifests("node n1 cpu=4\nqueue default weight=1\npod p cpu=1 status={phase: Pending}")
    for number, obj in enumerate(objects):
        obj["metadata"] |= {"uid": f"u{number}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    objects[-1]["status"]["conditions"] = [condition]
    settings = {"time": "2026-01-01T00:10:00Z", "schedulerNames": ["volcano"], "defaultQueue": "default"}
    file = tmp_path / "saved.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "savedState": settings, "items": objects}))
    assert run(["explain", "p", "-f", str(file), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stage"] == "NotProcessed"
    assert found["summary"] == "Waiting for the controllers to create PodGroup podgroup-u1"
    assert run(["job", "list", "-f", str(file), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["reason"] == found["summary"]
