"""Guarantees of docs/extender.md: the schema, the example server, simulation and replay."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from capcard_sched.cli.main import run
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.testing import Harness, registry
from capcard_sched_extender import wire
from capcard_sched_extender.wire import schema, schema_text
from tests.daemon.recording.day import CONFS, Day
from tests.unit.extender.webhook import VERBS, Webhook, cluster, conf

pytestmark = pytest.mark.processes

PAGE = (Path(__file__).parents[3] / "docs" / "extender.md").read_text()


def block(language: str) -> str:
    """The one fenced block of a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(found)


# --- the schema -------------------------------------------------------------------------------------------------------


def test_the_published_schema_is_the_one_in_use() -> None:
    assert block("json").rstrip("\n") == schema_text(), "put capcard_sched_extender.wire.schema_text() there"
    assert json.loads(schema_text()) == {
        **schema(), "$defs": {name: _untitled(one) for name, one in schema()["$defs"].items()}
    }  # fmt: skip


def _untitled(definition: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in definition.items() if key != "title" and value != []}


def test_the_table_of_the_page_names_every_verb() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    for verb in wire.FORMS:
        assert any(f"`{verb}`" in row for row in rows), verb
    assert set(wire.FORMS) == set(VERBS)


def test_every_request_matches_the_schema() -> None:
    def all_of_them(received: Any) -> Any:
        return {"status": 1, "victims": received["evictees"]}

    replies: dict[str, Any] = {
        "open": {}, "close": {}, "predicate": {}, "prioritize": {"nodeScore": {}}, "preemptable": all_of_them,
        "reclaimable": {"status": 1}, "enqueueable": {"status": 1}, "enqueued": {}, "ready": {"status": True},
        "overused": {}, "allocate": {}, "deallocate": {},
    }  # fmt: skip
    replies["batch"] = lambda received: {"results": {node["Name"]: {} for node in received["nodes"]}}
    for predicate in ("predicate", "batch"):
        with Webhook(**replies) as webhook:
            verbs = set(replies) - {"predicate", "batch"} | {predicate}
            h = cluster(
                conf(webhook.url, *verbs, actions="enqueue, allocate, preempt, reclaim", others="priority gang"),
                requests={"cpu": "1", "x/y": "1"}, labels={"a": "b"}, annotations={"volcano.sh/preemptable": "true"},
            )  # fmt: skip
            h.node(
                "n0", resources={"x/y": 4}, labels={"volcano.sh/revocable-zone": "z"},
                taints=[{"key": "k", "value": "v", "effect": "PreferNoSchedule"}], cpu="5",
            )  # fmt: skip
            h.queue("q", capability={"cpu": 100}, guarantee={"x/y": 1}, annotations={"n": "o"})
            h.queue("other")
            h.group("g", phase="Pending", min_resources={"cpu": 1}, min_task_member={"": 1}, annotations={"x": "y"})
            for name, queue, request in (("low", "q", "2"), ("far", "other", "2")):
                h.group(name, queue=queue)
                h.pod(name, group=name, node="n0", requests={"cpu": request, "x/y": "1"}, priority=1)
            h.priority_class("high", 1000)
            h.group("big", min_member=2, priority_class="high")
            for number in range(2):
                h.pod(f"big-x-{number}", group="big", requests={"cpu": "4", "x/y": "1"}, priority=1000)
            h.group("half", min_member=2)  # only one of its pods finds room
            for number, cpu in enumerate(("1", "1000")):
                h.pod(f"half-x-{number}", group="half", requests={"cpu": cpu})
            h.settle_for(2)
            argument = {word: verb for verb, word in VERBS.items()}
            for word, received in webhook.received:
                form, _ = wire.FORMS[argument[word]]
                assert msgspec.to_builtins(msgspec.convert(received, form)) == received, word
            assert set(webhook.verbs()) == verbs


# --- the example ------------------------------------------------------------------------------------------------------


@pytest.fixture
def example(tmp_path: Path) -> Iterator[str]:
    """The URL of the example server, running in a process of its own."""
    program = tmp_path / "server.py"
    program.write_text(block("python"))
    with subprocess.Popen(
        [sys.executable, program, "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def test_the_example_server_and_the_example_conf_work_together(example: str) -> None:
    text = block("yaml").replace("http://127.0.0.1:8080", example).replace("500ms", "30s")
    result = parse_conf(text, registry=registry())
    assert not result.problems
    h = Harness(text)
    h.node("full", resources={"nvidia.com/gpu": 8})
    h.pod("other", group=None, node="full", requests={"nvidia.com/gpu": 6})
    h.node("best", resources={"nvidia.com/gpu": 8}, labels={"example.com/maintenance": "today"})
    h.node("good", resources={"nvidia.com/gpu": 8})
    h.queue("q")
    h.group("g", phase="Pending", priority_class="urgent")
    h.priority_class("urgent", 1000)
    h.pod("p", requests={"cpu": "1", "nvidia.com/gpu": 1})
    h.group("g2")
    h.pod("p2", group="g2", requests={"cpu": "1", "nvidia.com/gpu": 8})
    h.settle()
    assert h.binds == {"p": "good"}
    assert "1 node is due for maintenance: today" in h.pod_message("p2")


# --- simulation and replay --------------------------------------------------------------------------------------------

SCENARIO = """
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {allocatable: {cpu: 64, memory: 256Gi}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {allocatable: {cpu: 64, memory: 256Gi}}}
---
{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: default}}
---
{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {
  schedulerName: capcard-sched, containers: [{name: main, resources: {requests: {cpu: 1}}}]}}
"""


def not_n1(received: Any) -> Any:
    return {"status": "not here", "code": 3} if received["node"]["Name"] == "n1" else {}


def test_the_simulator_calls_the_extender(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Webhook(predicate=not_n1) as webhook:
        (tmp_path / "scenario.yaml").write_text(SCENARIO)
        (tmp_path / "conf.yaml").write_text(conf(webhook.url, "predicate"))
        files = ["-f", str(tmp_path / "scenario.yaml"), "--scheduler-conf", str(tmp_path / "conf.yaml")]
        assert run(["simulate", *files, "-o", "yaml"]) == 0
        items = yaml.safe_load(capsys.readouterr().out)["items"]
        (pod,) = [item for item in items if item["kind"] == "Pod"]
        assert pod["spec"]["nodeName"] == "n2"
        assert set(webhook.verbs()) == {"predicate"}


@pytest.mark.parametrize("same", [True, False])
def test_a_replay_depends_on_the_current_responses_of_the_extender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], same: bool
) -> None:
    with Webhook(predicate={}) as webhook:
        monkeypatch.setitem(CONFS, "asking", conf(webhook.url, "predicate", actions="enqueue, allocate"))
        day = Day(tmp_path / "day.jsonl", "asking")
        day.h.group("g", phase="Inqueue")
        day.h.pod("g-0", group="g")
        day.step()
        day.close()
        recorded = len(webhook.received)
        assert recorded
        if not same:
            webhook.replies = {"predicate": {"status": "not any more", "code": 3}}
        assert run(["replay", str(tmp_path / "day.jsonl")]) == (0 if same else 3)
        assert ("not any more" in capsys.readouterr().out) == (not same)
        assert len(webhook.received) > recorded
