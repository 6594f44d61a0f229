"""`capcard-sched trace openb` from outside."""

import json
from pathlib import Path

import pytest
import yaml

from capcard_sched.cli.trace import openb

DATA = Path(__file__).parents[2] / "data" / "openb"
NODES, PODS = DATA / "nodes.csv", DATA / "pods.csv"


def test_the_ending_of_the_output_decides_its_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_yaml, as_json = tmp_path / "s.yaml", tmp_path / "s.json"
    assert openb(nodes=NODES, pods=PODS, output=as_yaml) == 0
    assert openb(nodes=NODES, pods=PODS, output=as_json) == 0
    documents = list(yaml.load_all(as_yaml.read_bytes(), Loader=yaml.CSafeLoader))
    assert documents == json.loads(as_json.read_bytes())["items"]
    assert capsys.readouterr().err.splitlines()[0] == (
        f"{as_yaml}: 5 nodes, 2 queues, 6 pods (5 with cards; 2 asked for a part of a card: --sharing whole)"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"pods": NODES}, "no column name", id="files swapped"),
        pytest.param({"nodes": DATA / "none.csv"}, "No such file", id="missing file"),
        pytest.param({"quota_share": 0.0}, "--quota-share: quota share 0.0", id="bad share"),
        pytest.param({"output": DATA / "none" / "s.yaml"}, "No such file", id="output cannot be written"),
    ],
)
def test_bad_input_ends_with_status_2_and_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: dict[str, Path], message: str
) -> None:
    given = {"nodes": NODES, "pods": PODS, "output": tmp_path / "s.yaml", **arguments}
    assert openb(**given) == 2  # type: ignore[arg-type]
    assert message in capsys.readouterr().err
    assert not (tmp_path / "s.yaml").exists()
