"""Shared cards in `card list` and `node list`: in the units of the device plugin, beside whole cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.main import run
from tests.insight.scenes import MIXED_CARDS

VGPU = Path(__file__).parents[3] / "config" / "examples" / "vgpu"
AFTER = ["-f", str(VGPU), "--scheduler-conf", str(VGPU / "conf" / "scheduler.yaml"), "--until", "1m"]
L40S, A100 = "NVIDIA-NVIDIA L40S", "NVIDIA-NVIDIA A100-SXM4-80GB"


def items(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run([*words, "-o", "json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["items"]
    return found


def test_vgpus_memory_and_cores_of_each_node_and_model_are_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["card", "list", *AFTER]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert " ".join(header.split()) == (
        "NODE CARD TOTAL USED FREE SHARED CARDS MEMORY (USED/TOTAL) CORES (USED/TOTAL) STATE"
    )
    assert [" ".join(row.split()) for row in rows] == [
        f"mig-1 {A100} 20 2 18 2 2700/16384 0/200% nvidia.com/mig:NoSchedule",
        f"node5-3 {L40S} 80 8 72 8 14436/39312 110/800% -",
    ]


def test_holders_have_their_shares_and_sum_up_to_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    found = items(capsys, "card", "list", L40S, *AFTER)
    assert [item["name"] for item in found] == [L40S]
    holders = {held["workload"]: (held["amount"], held["memory"], held["cores"]) for held in found[0]["holders"]}
    assert holders["default/job/simple-vgpu-training"] == (3, 3072, 0)
    assert holders["default/pod/notebook"] == (1, 512, 10)
    sums = tuple(sum(column) for column in zip(*holders.values(), strict=True))
    assert sums == tuple(found[0][name] for name in ("used", "usedMemory", "usedCores")) == (8, 14436, 110)
    assert run(["card", "list", L40S, *AFTER, "-o", "wide"]) == 0
    assert "default/pod/notebook (1, memory 512, cores 10%)" in capsys.readouterr().out


def test_shared_cards_sort_and_select_as_whole_ones(capsys: pytest.CaptureFixture[str]) -> None:
    by_memory = items(capsys, "card", "list", "--sort-by", "memory", *AFTER)
    assert [item["name"] for item in by_memory] == [L40S, A100]
    assert items(capsys, "card", "list", "-q", "default", *AFTER)
    assert not items(capsys, "card", "list", "-q", "root", *AFTER)
    assert run(["card", "list", "-o", "name", *AFTER]) == 0
    assert capsys.readouterr().out.splitlines() == [f"card/{A100}", f"card/{L40S}"]


def test_a_node_has_the_vgpus_of_its_shared_cards_apart_from_whole_cards(capsys: pytest.CaptureFixture[str]) -> None:
    found = {item["name"]: item for item in items(capsys, "node", "list", *AFTER)}
    assert (found["node5-3"]["cards"], found["node5-3"]["vgpus"], found["node5-3"]["usedVgpus"]) == ([L40S], 80, 8)
    assert found["node5-3"]["total"] == 0


def test_whole_and_shared_cards_of_one_node_have_the_same_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node.yaml").write_text(MIXED_CARDS)
    whole, shared = items(capsys, "card", "list", "-f", str(tmp_path))
    assert (whole["name"], whole["total"], whole["memory"], whole["state"]) == ("NVIDIA-H200", 8, None, "cordoned")
    assert (shared["name"], shared["total"], shared["free"]) == ("NVIDIA-T4", 20, 9)
    assert shared["holders"] == [
        {"workload": "default/pod/shares", "queue": "", "amount": 1, "memory": 1024, "cores": 25}
    ]
    assert shared["state"] == "cordoned,1 of 2 unavailable"
    assert run(["card", "list", "-f", str(tmp_path)]) == 0
    _, row, _ = capsys.readouterr().out.splitlines()
    assert row.split() == ["mixed", "NVIDIA-H200", "8", "0", "8", "-", "-", "-", "cordoned"]


@pytest.mark.parametrize(
    ("offered", "unavailable"),
    [("10", False), ("1k", False), ("0", True), (None, True)],
    ids=["some", "canonical form of a thousand", "none", "not listed"],
)
def test_cards_are_free_only_where_the_node_offers_vgpus(
    offered: str | None, unavailable: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resources = {} if offered is None else {"volcano.sh/vgpu-number": offered}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "n",
            "annotations": {"volcano.sh/node-vgpu-register": "A,10,100,NVIDIA-T4,true,hami-core:"},
        },
        "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "9", **resources}},
    }
    (tmp_path / "node.json").write_text(json.dumps(node))

    (row,) = items(capsys, "card", "list", "-f", str(tmp_path))

    assert (row["free"], row["state"]) == ((0, "1 of 1 unavailable") if unavailable else (10, ""))
    assert run(["simulate", "-f", str(tmp_path), "--until", "1s"]) == 0
    assert ("unavailable" in capsys.readouterr().out) is unavailable
