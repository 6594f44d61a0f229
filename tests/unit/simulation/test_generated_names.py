"""Names from `metadata.generateName`: those of an API server in form, and the same in every run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.cli.main import run
from capcard_sched.model.kinds import KINDS
from capcard_sched.simulation.generated_names import generate_names
from capcard_sched.simulation.manifests import ManifestDocument
from capcard_sched.simulation.scenario_reader import read_scenario

TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": "x"}]}}
SPECS: dict[str, Any] = {
    "Pod": {"spec": TEMPLATE["spec"]},
    "Deployment": {"spec": {"template": TEMPLATE}},
    "ReplicaSet": {"spec": {"template": TEMPLATE}},
    "StatefulSet": {"spec": {"template": TEMPLATE}},
    "Job": {"spec": {"tasks": [{"name": "w", "template": TEMPLATE}]}},
    "PriorityClass": {"value": 5},
    "CardBudget": {"spec": {"queue": "q", "period": "month", "cards": {"A": "1h"}}},
    "ResourceSlice": {
        "spec": {"driver": "d", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}
    },
    "DeviceTaintRule": {"spec": {"taint": {"key": "k", "effect": "NoSchedule"}}},
    "Command": {"action": "CloseQueue", "target": {"kind": "Queue", "name": "q"}},
}


def unnamed(kind: str = "Pod", prefix: str = "a-", **metadata: Any) -> dict[str, Any]:
    (row,) = [row for row in KINDS if row.name == kind]
    spec = json.loads(json.dumps(SPECS.get(kind, {})))
    return {"apiVersion": row.api_version, "kind": kind, "metadata": {"generateName": prefix, **metadata}, **spec}


def names(*values: Any) -> list[str]:
    documents = [ManifestDocument("f", number, value) for number, value in enumerate(values, 1)]
    scenario, problems = read_scenario((), documents=documents)
    assert not problems, problems
    created = [operation.body for operation in scenario.operations]
    return [obj["metadata"]["name"] for obj in (*(entry.object for entry in scenario.entries), *created)]


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_every_kind_gets_a_name_of_prefix_and_five_characters(kind: str) -> None:
    (name,) = names(unnamed(kind))
    assert re.fullmatch("a-[bcdfghjklmnpqrstvwxz2456789]{5}", name)
    assert names(unnamed(kind)) == [name]


def test_names_are_unique_among_documents_lists_and_timelines() -> None:
    shared = unnamed()
    scenario = {
        "apiVersion": "simulation.capcard-sched.io/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": "s"},
        "spec": {"operations": [{"at": "1s", "create": shared}]},
    }
    pods = {
        "apiVersion": "v1",
        "kind": "PodList",
        "items": [{"metadata": shared["metadata"], "spec": shared["spec"]}] * 2,
    }
    found = names(unnamed(), {"apiVersion": "v1", "kind": "List", "items": [shared, shared]}, pods, scenario)
    assert len(set(found)) == len(found) == 6


def test_a_name_of_the_input_is_not_generated_again() -> None:
    (first,) = names(unnamed())
    found = names(unnamed(), unnamed(name=first))
    assert len(set(found)) == 2
    assert first in found


def test_a_long_prefix_is_cut_and_a_given_name_stays() -> None:
    (name,) = names(unnamed(prefix="a" * 80))
    assert len(name) == 63
    assert names(unnamed(name="given")) == ["given"]


WORDS = st.sampled_from(["kind", "items", "metadata", "generateName", "name", "spec", "operations", "create"])
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(WORDS, one, max_size=4),
)


@given(JSON)
def test_documents_of_any_form_are_survived(value: Any) -> None:
    generate_names([ManifestDocument("f", 1, value)])


def test_all_verbs_read_the_same_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8"}}}
    job = unnamed("Job", "train-")
    (path := tmp_path / "in.yaml").write_text("\n---\n".join(map(json.dumps, [node, job])))
    (name,) = names(job)
    assert run(["validate", "-f", str(path)]) == 0
    for verb in ("explain " + name, "job list", "pod list", "simulate -o table"):
        capsys.readouterr()
        assert run([*verb.split(), "-f", str(path), "--until", "1m"]) == 0, verb
        assert name in capsys.readouterr().out
