"""Texts of tenants in reports of the ledger: one line per row, and no formula in a spreadsheet."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from capcard_sched.cli.main import run
from capcard_sched.ledger.usage_ledger import open_ledger
from capcard_sched.model.annotations import LEDGER_USER
from tests.unit.ledger.test_ledger_histories import DAY0, HOUR, group, node, pod


@pytest.mark.parametrize("text", ["=1+1", "\t=1+1", "\r\n=1+1", " @x", "+1", "\uff1d1+1", 'a"\nb,c', "\x1b[31m", "-\0"])
def test_a_text_of_a_tenant_is_one_cell_and_no_formula(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "ledger.db")
    notes = {LEDGER_USER: text, "scheduling.k8s.io/group-name": "g"}
    with open_ledger(file) as ledger:
        ledger.start("a", "live", DAY0)
        ledger.feed(DAY0, [node(), group(), pod("p", at=DAY0, annotations=notes)])
        ledger.feed(DAY0 + HOUR, [node(7)])
        ledger.flush()
    for output in ("csv", "table"):
        assert run(["usage", "--ledger", file, "--by", "user", "-o", output]) == 0
        shown = capsys.readouterr().out
        assert not [character for character in shown if character < " " and character != "\n"]
        if output == "csv":
            _, (cell, *amounts) = csv.reader(io.StringIO(shown))
            assert len(shown.splitlines()) == 2
            assert cell.lstrip()[0] not in "=+-@\uff1d"
            assert amounts[0] == "1.00"
