"""`capcard-sched card list` and `node list`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capcard_sched.cli.main import run

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
    assert names == [f"node/{item['node']}" for item in found["items"]]


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
    items = json.loads(capsys.readouterr().out)["items"]
    assert {item["node"]: item["state"] for item in items} == {"cordoned": "cordoned", "tainted": "team=a:NoSchedule"}


BAD = {
    "unknown card": (["card", "list", "H201"], "no such card: H201; existing cards: NVIDIA-A100-80GB"),
    "unknown column": (["node", "list", "--sort-by", "x"], "--sort-by: 'x': accepted: node, state, cards"),
}


@pytest.mark.parametrize("arguments, text", BAD.values(), ids=BAD)
def test_bad_input_is_one_clear_line(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, *AFTER]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1
