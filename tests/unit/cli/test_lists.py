"""The lists: jobs, pods, queues, cards and nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from capcard_sched.cli.main import run
from tests.scenarios.notation import expanded

DEMO = str(Path(__file__).parents[3] / "config" / "examples" / "demo")
AFTER = ["-f", DEMO, "--until", "10m"]


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    assert run([*arguments, *AFTER]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_each_card_of_a_node_is_a_row_with_used_and_free_amounts(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = lines(capsys, "card", "list")
    assert header == ["NODE", "CARD", "TOTAL", "USED", "FREE", "STATE"]
    assert ["a100-1", "NVIDIA-A100-80GB", "8", "2", "6", "-"] in rows
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)


def test_the_cards_of_a_node_are_in_order_of_name(capsys: pytest.CaptureFixture[str]) -> None:
    file = expanded(Path(__file__).parents[2] / "insight" / "situations" / "04-mig-slices.yaml")
    assert run(["card", "list", "-f", str(file), "-o", "json"]) == 0
    rows = [(item["node"], item["name"]) for item in json.loads(capsys.readouterr().out)["items"]]
    slices = [("h200-mig", f"NVIDIA-H200/mig-{size}-mixed") for size in ("1g.18gb", "3g.71gb")]
    assert rows == [("h200-mig", "NVIDIA-H200"), *slices]


def test_wide_rows_name_the_holders_and_names_select_cards(capsys: pytest.CaptureFixture[str]) -> None:
    _, *rows = lines(capsys, "card", "list", "NVIDIA-H200", "-o", "wide")
    assert {row[1] for row in rows} == {"NVIDIA-H200"}
    assert all("default/job/llm-tuning (4)" in " ".join(row) for row in rows)


def test_rows_sort_by_the_largest_amount(capsys: pytest.CaptureFixture[str]) -> None:
    _, *rows = lines(capsys, "card", "list", "--sort-by", "free")
    free = [int(row[4]) for row in rows]
    assert free == sorted(free, reverse=True)


def test_nodes_have_the_sums_of_their_cards(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = lines(capsys, "node", "list", "-o", "wide")
    assert header[:6] == ["NODE", "STATE", "CARDS", "TOTAL", "USED", "FREE"]
    assert ["a100-1", "-", "NVIDIA-A100-80GB", "8", "2", "6", "112", "960Gi", "2", "110"] in rows


def test_json_and_names_have_the_same_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["node", "list", "-o", "json", *AFTER]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "NodeList"
    assert run(["node", "list", "-o", "name", *AFTER]) == 0
    names = capsys.readouterr().out.split()
    assert names == [f"node/{item['name']}" for item in found["items"]]


def test_a_cordoned_and_a_tainted_node_show_their_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = '{nvidia.com/gpu.product: NVIDIA-H200, nvidia.com/gpu.memory: "143771"}'
    specs = {
        "cordoned": "{unschedulable: true}",
        "tainted": "{taints: [{key: team, value: a, effect: NoSchedule}, {key: soft, effect: PreferNoSchedule}]}",
    }
    documents = [
        f"apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {labels}}}\nspec: {spec}\n"
        'status: {allocatable: {cpu: "8", nvidia.com/gpu: "8"}}\n'
        for name, spec in specs.items()
    ]
    file = tmp_path / "nodes.yaml"
    file.write_text("---\n".join(documents))
    assert run(["card", "list", "-f", str(file), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["items"]
    assert {item["node"]: item["state"] for item in found} == {"cordoned": "cordoned", "tainted": "team=a:NoSchedule"}


LISTS = ("job", "pod", "queue", "card", "node")


def items(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run([*arguments, "-o", "json", *AFTER]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["items"]
    return found


@pytest.mark.parametrize("kind", LISTS)
def test_every_list_has_the_same_formats(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([kind, "list", "-o", "yaml", *AFTER]) == 0
    document = yaml.safe_load(capsys.readouterr().out)
    assert document["kind"] == f"{kind.capitalize()}List"
    assert document["items"] == items(capsys, kind, "list")
    header, *rows = lines(capsys, kind, "list", "-o", "wide")
    assert " ".join(header) == " ".join(header).upper()
    printed = {word for row in rows for word in row}
    assert {item["name"] for item in document["items"]} <= printed, "no name is cut"
    assert run([kind, "list", "-o", "name", *AFTER]) == 0
    names = capsys.readouterr().out.split()
    plain = [name.partition("/")[2] for name in names]
    assert plain == list(dict.fromkeys(item["name"] for item in document["items"]))


@pytest.mark.parametrize("kind", LISTS)
def test_every_list_sorts_by_column_and_by_path(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    column = kind if kind in {"card", "node", "queue"} else "name"
    by_column = [item["name"] for item in items(capsys, kind, "list", "--sort-by", column)]
    assert by_column == sorted(by_column)
    for path in (".name", "{.name}", "$['name']"):
        assert [item["name"] for item in items(capsys, kind, "list", "--sort-by", path)] == by_column


@pytest.mark.parametrize(
    "kind, queue, expected",
    [
        ("job", "research", {"etl", "llm-pretrain", "llm-pretrain-xl", "llm-tuning"}),
        ("queue", "research", {"research"}),
        ("card", "research", {"NVIDIA-H200"}),
        ("node", "research", {"h200-1", "h200-2"}),
        (
            "pod",
            "vision",
            {f"detector-worker-{number}" for number in range(4)} | {"tracker-worker-0", "tracker-worker-1"},
        ),
    ],
    ids=["job", "queue", "card", "node", "pod"],
)
def test_a_queue_selects_its_jobs_and_the_usage_of_its_pods(
    kind: str, queue: str, expected: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert {item["name"] for item in items(capsys, kind, "list", "-q", queue)} == expected


def test_labels_select_by_kubectls_syntax(capsys: pytest.CaptureFixture[str]) -> None:
    def nodes(selector: str) -> set[str]:
        return {item["name"] for item in items(capsys, "node", "list", "-l", selector)}

    everything = nodes("kubernetes.io/nowhere!=x")
    product = "nvidia.com/gpu.product"
    assert nodes(f"{product}=NVIDIA-H200") == {"h200-1", "h200-2"}
    assert nodes(f"{product} in (NVIDIA-H200, none),!absent") == {"h200-1", "h200-2"}
    assert nodes(f"{product} notin (NVIDIA-H200)") == everything - {"h200-1", "h200-2"}
    assert nodes("absent") == set()


def test_jobs_show_scheduled_and_wanted_pods_and_the_minimum(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = lines(capsys, "job", "list")
    assert header == ["NAME", "KIND", "QUEUE", "PHASE", "PODS", "(MIN)", "AGE"]
    found = {row[0]: row[1:] for row in rows}
    assert found["chat"] == ["deployment", "serving", "Running", "4/6", "(1)", "10m"]
    assert found["llm-pretrain-xl"] == ["job", "research", "Pending", "0/2", "(2)", "10m"]
    assert found["etl"] == ["job", "research", "Completed", "3/3", "(3)", "10m"], "its PodGroup is gone"


def test_namespaces_are_selected_and_a_column_with_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "job", "list", "-A")[0][0] == "NAMESPACE"
    assert items(capsys, "job", "list", "-n", "default") == items(capsys, "job", "list", "-A")
    assert run(["job", "list", "-n", "elsewhere", *AFTER]) == 0
    assert capsys.readouterr() == ("", "No resources found\n")


def test_pods_name_their_job_card_and_node(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = lines(capsys, "pod", "list", "-j", "deployment/chat", "-o", "wide")
    assert header == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "JOB", "QUEUE", "CARD", "NODE"]
    assert ["1/1", "Running", "0", "10m", "deployment/chat", "serving", "NVIDIA-H200", "h200-1"] in [
        row[1:] for row in rows
    ]
    assert sum(row[1:3] == ["0/1", "Pending"] for row in rows) == 2
    assert {row[5] for row in rows} == {"deployment/chat"}


BAD = {
    "unknown job": (["job", "list", "nope"], "no such job: nope; existing jobs: chat, detector"),
    "unknown path": (
        ["pod", "list", "--sort-by", ".nope"],
        "--sort-by: '.nope': no item has it; accepted: a column, or",
    ),
    "form of a path": (["card", "list", "--sort-by", ".free["], "--sort-by: '.free[': expected a JSON path such as"),
    "form of a selector": (["node", "list", "-l", "a b=c"], "--selector: <a b=c> is not a requirement"),
    "watch of files": (["queue", "list", "-w"], "--watch: follows a live cluster"),
    "namespace of nodes": (["node", "list", "-n", "default"], "Unknown option"),
    "unknown card": (["card", "list", "H201"], "no such card: H201; existing cards: NVIDIA-A100-80GB"),
    "unknown column": (["node", "list", "--sort-by", "x"], "--sort-by: 'x': accepted: node, state, cards, total"),
}


@pytest.mark.parametrize("arguments, text", BAD.values(), ids=BAD)
def test_bad_input_is_one_clear_line(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, *AFTER]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1
