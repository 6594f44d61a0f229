"""Numatopology objects in scenario files."""

from __future__ import annotations

from pathlib import Path

import pytest

from capcard_sched.simulation.scenario import InputError
from capcard_sched.simulation.scenario_reader import load_scenario

HEAD = "apiVersion: nodeinfo.volcano.sh/v1alpha1\nkind: Numatopology\nmetadata: {name: n}\n"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("[]", "spec: expected a mapping, got a list"),
        ("{numares: x}", 'spec.numares: expected a mapping, got the string "x"'),
        ("{numares: {cpu: {allocatable: 7}}}", "spec.numares.cpu.allocatable: expected a string, got the number 7"),
        ('{cpuDetail: {"0": {numa: a}}}', 'spec.cpuDetail[0].numa: expected an integer, got the string "a"'),
        ("{policies: {CPUManagerPolicy: 1}}", "spec.policies.CPUManagerPolicy: expected a string, got the number 1"),
    ],
)
def test_a_field_of_a_wrong_type_is_named_with_the_accepted_type(tmp_path: Path, spec: str, problem: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{HEAD}spec: {spec}\n")
    with pytest.raises(InputError) as caught:
        load_scenario([str(file)])
    assert f"document 1: Numatopology n: {problem}" in str(caught.value)


def test_wrong_values_are_left_to_the_scheduler(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{HEAD}spec: {{policies: {{CPUManagerPolicy: x}}, cpuDetail: {{0: {{core: 1}}}}}}\n")
    assert load_scenario([str(file)])
