"""Manifests that an API server takes although an annotation or label is malformed: simulated, with an event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from capcard_sched.cli.main import run
from tests.malformed.world import MANIFESTS


class Tolerated(NamedTuple):
    """An object that the API server accepts: it is simulated, and the scheduler emits an event on it."""

    id: str
    text: str
    #: Kind, reason and message of the one event about it.
    event: tuple[str, str, str]


def annotated(id: str, kind: str, annotation: str, event: tuple[str, str, str], spec: str = "") -> Tolerated:
    api = "v1" if kind == "Pod" else "scheduling.volcano.sh/v1beta1"
    text = f"apiVersion: {api}\nkind: {kind}\nmetadata: {{name: bad, annotations: {{{annotation}}}}}\n{spec}\n"
    return Tolerated(id, text, event)


POD_SPEC = "spec: {schedulerName: volcano, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}"
QUOTA = "Invalid annotation volcano.sh/card.quota: {}; all card quotas of Queue <bad> are 0"
CHARGE = "Get request resource failed, Queue <q>, error: <{}>"
IN_QUEUE = "scheduling.volcano.sh/queue-name: q"
CASES = [
    annotated("card quota", "Queue", "volcano.sh/card.quota: '{\"A\": 2.5}'",
              ("Queue", "InvalidCardQuota", QUOTA.format("<A>: 2.5 is not a non-negative integer"))),
    annotated("card quota, deep", "Queue", f"volcano.sh/card.quota: '{'[' * 50_000}'", ("Queue", "InvalidCardQuota",
              QUOTA.format("nested too deeply; expected a JSON object of card names and integers"))),
    annotated("card name", "Pod", f"volcano.sh/card.name: A||B, {IN_QUEUE}", ("Pod", "GetTaskRequestResourceFailed",
              CHARGE.format("invalid card name <A||B>: empty alternative")), POD_SPEC),
    annotated("unknown card name", "Pod", f'volcano.sh/card.name: "カード\\0", {IN_QUEUE}',
              ("Pod", "GetTaskRequestResourceFailed", CHARGE.format("no resource name found for card <カード\0>")),
              POD_SPEC),
    annotated("card request", "PodGroup", "volcano.sh/card.request: '[]'", ("PodGroup", "InvalidCardRequest",
              'Invalid annotation volcano.sh/card.request: [] is not a JSON object such as {"NVIDIA-H200":8}'),
              "spec: {queue: q}"),
    annotated("service type", "PodGroup", "volcano.sh/service.type: batch", ("PodGroup", "InvalidServiceType",
              ("Invalid annotation volcano.sh/service.type: <batch> is neither inference nor training; "
              "treated as unknown")), "spec: {queue: q}"),
    annotated("missing queue", "PodGroup", "", ("PodGroup", "QueueNotFound", "Queue <absent> does not exist"),
              "spec: {queue: absent}"),
    Tolerated("memory label", "apiVersion: v1\nkind: Node\nmetadata: {name: bad, labels: {nvidia.com/gpu.product: A, "
              "nvidia.com/gpu.memory: many}}\n", ("Node", "InvalidCardLabel",
              "Label nvidia.com/gpu.memory=many is not a positive integer")),
]  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_input_that_an_api_server_accepts_is_simulated_with_an_event(
    case: Tolerated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "input.yaml"
    path.write_text(MANIFESTS + case.text)
    assert run(["simulate", "-f", str(path), "-o", "json", "--until", "10s"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    nodes = {item["metadata"]["name"]: item["spec"].get("nodeName") for item in items if item["kind"] == "Pod"}
    assert {name: nodes[name] for name in nodes if name != "bad"} == {
        "gang-default0-0": "good",
        "gang-default0-1": "good",
    }
    events = [item for item in items if item["kind"] == "Event" and item["involvedObject"]["name"] == "bad"]
    assert case.event in [(e["involvedObject"]["kind"], e["reason"], e["message"]) for e in events]
