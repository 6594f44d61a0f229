"""Input that cannot be simulated: exit status 2, nothing on standard output, and what to mend. See `manifests.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from capcard_sched.cli.main import run
from capcard_sched.simulation.scenario import InputError
from capcard_sched.simulation.scenario_reader import load_scenario
from tests.malformed.case import table
from tests.malformed.world import MANIFESTS


class Case(NamedTuple):
    """Documents and all their messages, without `error: FILE: ` before each line; FILE stands for the file."""

    id: str
    text: str | bytes
    problems: tuple[str, ...]
    name: str = "bad.yaml"


def unreadable(id: str, text: str | bytes, problem: str, name: str = "bad.yaml") -> Case:
    return Case(id, text, (problem,), name)


ALIASES = b"a0: &a0 [x]\n" + b"".join(
    b"a%d: &a%d [*a%d%s]\n" % (n, n, n - 1, b", *a%d" % (n - 1) * 19) for n in range(1, 9)
)
NODE = "apiVersion: v1\nkind: Node\n"
SURROGATE = "a string holds half of a surrogate pair, which is not valid Unicode"
DEEP = "document 1: nested too deeply"
CASES = [
    *(Case(*row) for row in table("manifests.yaml")),
    unreadable("thousands of digits", f"{NODE}status: {{x: {'9' * 5000}}}\n",
               f"document 1: line 3, column 13: '{'9' * 60}' is not an integer: too long"),
    unreadable("thousands of hexadecimal digits", f"{NODE}status: {{x: 0x{'f' * 5000}}}\n",
               f"document 1: line 3, column 13: '0x{'f' * 58}' is not an integer: too long"),
    unreadable("control characters", "a: \x01", "document 1: not valid YAML: control characters are not allowed"),
    unreadable("deep YAML", "a: " + "[" * 200_000, DEEP),
    unreadable("deep YAML without brackets", "- " * 100_000, DEEP),
    unreadable("aliases that explode", ALIASES,
               "document 1: line 6, column 15: aliases expand to more than 1000000 values"),
    unreadable("no UTF-8", b"\xff\xfe\xfa", "not UTF-8 text (byte 0)"),
    unreadable("JSON: half a surrogate pair", '{"kind":"A"}{"\\uDFFF":"Node"}', f"document 2: {SURROGATE}"),
    unreadable("JSON: thousands of digits", '{"kind":' + "9" * 5000 + "}",
               f"document 1: '{'9' * 60}' is not an integer: too long"),
    unreadable("JSON: infinity", '{"kind":"A"}\n{"kind":-1e999}', "document 2: '-1e999' is not a finite number"),
    unreadable("JSON: NaN", '{"kind":NaN}', "document 1: NaN is not a JSON number"),
    unreadable("JSON: a key twice", '{"kind":"A","kind":"B"}',
               "document 1: the key 'kind' occurs twice in one object"),
    unreadable("JSON: very deep", '{"a":' + "[" * 100_000, DEEP),
    unreadable("JSON: broken", '{"a": 1,}',
               "line 1, column 9: Expecting property name enclosed in double quotes", "a.json"),
]  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_input_that_cannot_be_simulated_is_refused_with_place_object_field_and_form(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / case.name
    good.write_text(MANIFESTS)
    bad.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
    assert run(["simulate", "-f", str(good), "-f", str(bad), "-o", "json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [f"error: {bad}: {line.replace('FILE', str(bad))}" for line in case.problems]


POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a%s}\nspec: {containers: [{name: c}]%s}\n"
HARMLESS = {
    "a malformed card quota": "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\n"
    'metadata: {name: q, annotations: {volcano.sh/card.quota: "{broken"}}\n',
    "an empty card name": POD % (', annotations: {volcano.sh/card.name: "A||"}', ""),
    "odd card labels": f"{NODE}metadata: {{name: n, labels: {{nvidia.com/gpu.memory: many}}}}\n",
    "null fields": POD % (", creationTimestamp: null, labels: null", ", nodeName: null") + "status: {}\n",
    "a batch CronJob": "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: a}\nspec: {template: 5}",
    "wrong values of a Numatopology": "apiVersion: nodeinfo.volcano.sh/v1alpha1\nkind: Numatopology\n"
    "metadata: {name: n}\nspec: {policies: {CPUManagerPolicy: x}, cpuDetail: {0: {core: 1}}}\n",
    "an empty timeline": "apiVersion: simulation.capcard-sched.io/v1alpha1\nkind: Scenario\n"
    "spec: {operations: [{at: 0, delete: {apiVersion: v1, kind: Pod, metadata: {name: a}}}]}",
}


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_input_that_an_api_server_accepts_is_loaded(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "input.yaml").write_text(text)
    scenario = load_scenario([str(path)])
    assert scenario.entries or scenario.operations


def test_unknown_kinds_get_one_warning_each_and_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "input.yaml"
    path.write_text("---\n".join(f"apiVersion: v1\nkind: pod\nmetadata: {{name: w{i}}}\n" for i in range(3)))
    scenario = load_scenario([str(path)])
    assert len(scenario.entries) == 3
    assert len(scenario.warnings) == 1
    assert "pod (v1): ignored, not a kind of the scheduler; did you mean Pod?" in str(scenario.warnings[0])


def test_a_folder_without_manifests_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("no manifest")
    with pytest.raises(InputError, match=r"no \.yaml, .yml, .json file in this folder"):
        load_scenario([str(tmp_path)])
