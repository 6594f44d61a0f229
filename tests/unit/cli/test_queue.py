"""`capcard-sched queue list -f`: the table, the JSON, the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.main import run
from capcard_sched.framework.explain.queue_uses import queue_uses
from capcard_sched.model.deltas import ObjectGone
from capcard_sched.testing import Harness

DEMO = Path(__file__).parents[3] / "config" / "examples" / "demo"
WORK = """
apiVersion: v1
kind: Node
metadata:
  name: n1
  labels: {nvidia.com/gpu.product: NVIDIA-H200, nvidia.com/gpu.count: '4', nvidia.com/gpu.memory: '143771'}
status: {allocatable: {cpu: '8', memory: 64Gi, pods: '110', nvidia.com/gpu: '4'}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: team, annotations: {volcano.sh/card.quota: '{"NVIDIA-H200": 3, "NVIDIA-H100": 1}'}}
spec: {capability: {cpu: '6', memory: 32Gi}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: plain}
spec: {capability: {memory: 1536Mi}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: train, annotations: {volcano.sh/card.request: '{"NVIDIA-H200": 1}'}}
spec: {queue: team, minMember: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {volcano.sh/card.name: NVIDIA-H200, scheduling.volcano.sh/queue-name: team}}
spec:
  schedulerName: volcano
  containers: [{name: main, image: x, resources: {requests: {cpu: 1500m, memory: 1Gi}, limits: {nvidia.com/gpu: 2}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: waits, annotations: {volcano.sh/card.name: NVIDIA-H100, scheduling.volcano.sh/queue-name: team}}
spec:
  schedulerName: volcano
  containers: [{name: main, image: x, resources: {requests: {cpu: '1'}, limits: {nvidia.com/gpu: 1}}}]
"""


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.fixture
def work(tmp_path: Path) -> str:
    path = tmp_path / "work.yaml"
    path.write_text(WORK)
    return str(path)


def test_cards_and_resources_have_a_row_each(work: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["queue", "list", "-f", work]) == 0
    found = rows(capsys.readouterr().out)
    # In the order: quota, allocated, reserved, quota free, cluster total. Reserved cards count as free.
    assert ["team", "Open", "1", "3", "NVIDIA-H100", "1", "0", "0", "1", "none"] in found
    assert ["NVIDIA-H200", "3", "2", "1", "1", "4"] in found
    assert ["cpu", "6", "1.5", "4.5"] in found
    assert ["memory", "32Gi", "1Gi", "31Gi"] in found
    assert ["plain", "Open", "0", "0", "memory", "1536Mi", "0Gi", "1536Mi"] in found


def test_a_resource_without_a_limit_has_no_quota(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "work.yaml"
    path.write_text(WORK.replace("spec: {capability: {cpu: '6', memory: 32Gi}}", "spec: {}"))
    assert run(["queue", "list", "team", "-f", str(path)]) == 0
    assert ["cpu", "no", "quota", "1.5"] in rows(capsys.readouterr().out)


def test_json_is_the_record(work: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["queue", "list", "team", "-f", work, "-o", "json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["items"]
    assert found == [
        {
            "depth": 0,
            "labels": {},
            "name": "team",
            "state": "Open",
            "jobs": 3,
            "waiting": 1,
            "cards": [
                {
                    "card": "NVIDIA-H100",
                    "quota": 1,
                    "allocated": 0,
                    "inqueue": 0,
                    "total": 0,
                    "queue": "team",
                    "free": 1,
                },
                {
                    "card": "NVIDIA-H200",
                    "quota": 3,
                    "allocated": 2,
                    "inqueue": 1,
                    "total": 4,
                    "queue": "team",
                    "free": 1,
                },
            ],
            "resources": {"cpu": [6000, 1500], "memory": [32 * 2**30, 2**30]},
            "warnings": [],
            "parent": "root",
        }
    ]


TREE = """
apiVersion: v1
kind: Node
metadata:
  name: n1
  labels: {nvidia.com/gpu.product: NVIDIA-H200, nvidia.com/gpu.count: '8', nvidia.com/gpu.memory: '143771'}
status: {allocatable: {cpu: '8', memory: 64Gi, pods: '110', nvidia.com/gpu: '8'}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: llm, annotations: {volcano.sh/card.quota: '{"NVIDIA-H200": 3}'}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: a, annotations: {volcano.sh/card.quota: '{"NVIDIA-H200": 3}'}}
spec: {parent: llm}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: b, annotations: {volcano.sh/card.quota: '{"NVIDIA-H200": 2, "NVIDIA-L20": 1}'}}
spec: {parent: llm}
---
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {volcano.sh/card.name: NVIDIA-H200, scheduling.volcano.sh/queue-name: a}}
spec:
  schedulerName: volcano
  containers: [{name: main, image: x, resources: {requests: {cpu: 1500m}, limits: {nvidia.com/gpu: 2}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: waits, annotations: {volcano.sh/card.name: NVIDIA-H200, scheduling.volcano.sh/queue-name: b}}
spec:
  schedulerName: volcano
  containers: [{name: main, image: x, resources: {requests: {cpu: '1'}, limits: {nvidia.com/gpu: 2}}}]
"""


def test_children_are_indented_and_a_parent_shows_the_sum_of_its_subtree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tree.yaml"
    path.write_text(TREE)
    assert run(["queue", "list", "-f", str(path)]) == 0
    out = capsys.readouterr().out
    names = [line.partition("Open")[0].rstrip() for line in out.splitlines() if "Open" in line]
    assert names == ["default", "llm", "  a", "  b", "root"]
    found = rows(out)
    # In the order: quota, allocated, reserved, quota free, cluster total. A child has what its parent leaves.
    assert ["llm", "Open", "0", "0", "NVIDIA-H200", "3", "2", "0", "1", "8"] in found
    assert ["a", "Open", "0", "1", "NVIDIA-H200", "3", "2", "0", "1", "8"] in found
    assert ["b", "Open", "1", "1", "NVIDIA-H200", "2", "0", "0", "1", "8"] in found
    assert ["NVIDIA-L20", "1", "0", "0", "0", "none"] in found
    assert ["cpu", "no", "quota", "1.5"] in found
    assert ["root", "Open", "0", "0", "NVIDIA-H200", "no", "quota", "2", "0", "8"] in found


def test_explain_shows_the_quota_of_the_ancestor_that_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tree.yaml"
    path.write_text(TREE)
    assert run(["explain", "waits", "-f", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Queue <llm> (ancestor of <b>) has insufficient <NVIDIA-H200> quota: requested <2000>" in out
    assert ["llm", "NVIDIA-H200", "3", "2", "0", "1", "8"] in rows(out)


def test_a_limit_that_no_plugin_enforces_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "work.yaml"
    path.write_text(WORK.replace("{memory: 1536Mi}", "{memory: 1536Mi, nvidia.com/gpu: 4}"))
    assert run(["queue", "list", "-f", str(path)]) == 0
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert warning == (
        'warning: queue plain: spec.capability["nvidia.com/gpu"]: not enforced: no plugin of the scheduler-conf limits '
        "nvidia.com/gpu by capability"
    )
    conf = tmp_path / "gang.conf"
    conf.write_text("actions: enqueue\ntiers: [{plugins: [{name: gang}]}]\n")
    assert run(["queue", "list", "team", "-f", str(path), "--scheduler-conf", str(conf)]) == 0
    *others, warning = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert others == [
        f'warning: queue team: spec.capability["{name}"]: not enforced: no plugin of the scheduler-conf limits {name} '
        "by capability"
        for name in ("cpu", "memory")
    ]
    assert warning == (
        'warning: queue team: metadata.annotations["volcano.sh/card.quota"]: not enforced: the scheduler-conf has no '
        "plugin capacity-card"
    )


def test_a_deleted_queue_with_live_pods_stays_visible() -> None:
    h = Harness('actions: "allocate"\ntiers: [{plugins: [{name: gang}]}]\n')
    h.queue("q")
    h.group("g", queue="q")
    h.node("n1")
    h.pod("p", group="g", node="n1", phase="Running")
    h.step()
    h.apply(ObjectGone("Queue", "", "q"))
    h.step()
    deleted = {use.name: use for use in queue_uses(h.core.snapshot())}["q"]
    assert (deleted.state, deleted.jobs) == ("Deleted", 1)
    assert deleted.resources["cpu"][1] > 0


def test_queues_come_in_order_of_name_and_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["queue", "list", "-f", str(DEMO), "--until", "10m", "-o", "json"]) == 0
    names = [queue["name"] for queue in json.loads(capsys.readouterr().out)["items"]]
    assert names == sorted(names)
    assert {"default", "root", "serving", "vision"} <= set(names)


def test_time_makes_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    held = []
    for until in ("0s", "90s"):
        assert run(["queue", "list", "research", "-f", str(DEMO), "--until", until, "-o", "json"]) == 0
        (queue,) = json.loads(capsys.readouterr().out)["items"]
        held.append({use["card"]: use["allocated"] for use in queue["cards"]}["NVIDIA-H200"])
    assert held == [0, 8]


def test_cards_reserved_for_alternatives_have_no_quota_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["queue", "list", "vision", "-f", str(DEMO), "--until", "0s"]) == 0
    claim = "NVIDIA-GeForce-RTX-4090|NVIDIA-A100-80GB"
    assert [claim, "-", "0", "4", "-", "-"] in rows(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words, message",
    [
        (["list", "nope"], "error: no such queue: nope; existing queues: default, plain, root, team\n"),
        (["list", "team", "a", "b"], "error: no such queue: a, b; existing queues: default, plain, root, team\n"),
        (["list", "--until", "soon"], "error: --until: "),
        (["list", "-o", "xml"], "error: Invalid value"),
        (["list", "--scheduler-conf", "/nowhere.yaml"], "error: /nowhere.yaml: No such file or directory\n"),
        (["show"], "error: "),
    ],
    ids=["an unknown queue", "unknown queues", "no time", "no output", "no conf", "no command"],
)
def test_bad_input_is_reported_and_has_its_status(
    words: list[str], message: str, work: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["queue", *words, "-f", work]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)


def test_without_a_subcommand_it_lists_the_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["queue"]) == 0
    out = capsys.readouterr().out
    assert "Usage: capcard-sched queue COMMAND" in out
    assert "List queues with quota, allocated, reserved and free amounts" in out


def test_help_names_the_argument_of_each_flag(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {
        ("queue", "list"): ["[OPTIONS] [NAMES...]"],
        ("explain",): ["--namespace -n NAME", "--context NAME", "NAMESPACE/NAME"],
        ("simulate",): [],
        ("validate",): [],
    }
    source = ["--until DURATION", "--schedule-period DURATION", "--scheduler-name NAME", "--default-queue NAME"]
    for words, texts in expected.items():
        assert run([*words, "--help"]) == 0
        out = capsys.readouterr().out
        for text in [*texts, "--file -f PATH", *(source if words != ("validate",) else [])]:
            assert text in out, words
        assert " STR" not in out, words


@pytest.mark.parametrize("words", [["queue", "list"], ["explain"]], ids=["queue list", "explain"])
def test_help_separates_flags_for_files_from_flags_for_a_live_cluster(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--help"]) == 0
    out = capsys.readouterr().out
    first, simulated, live = (
        out.index("─ Parameters"),
        out.index("─ With -f"),
        out.index("─ Without -f: a live cluster"),
    )
    assert first < out.index("--scheduler-conf") < simulated < out.index("--until") < live < out.index("--kubeconfig")
    assert out.index("--output") < out.index("--file"), "flags of the command come before flags of the cluster"
