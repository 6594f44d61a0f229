"""What `validate` notes about gang."""

from __future__ import annotations

from pathlib import Path

import pytest

from capcard_sched.cli.main import run


@pytest.mark.parametrize(("switch", "noted"), [("false", True), ("true", False)])
def test_validate_states_how_unprotected_gangs_are_evicted_in_volcano(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], switch: str, noted: bool
) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text(f"actions: allocate\ntiers: [{{plugins: [{{name: gang, enablePreemptable: {switch}}}]}}]\n")
    assert run(["validate", "--scheduler-conf", str(conf)]) == 0
    assert ("Volcano evicts only the pods that it needs" in " ".join(capsys.readouterr().out.split())) == noted
