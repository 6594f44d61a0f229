"""Texts of tenants in reports of the ledger: one line per row, and no formula in a spreadsheet."""

from __future__ import annotations

import csv
import io
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.cli.main import run
from capcard_sched.ledger.usage_ledger import open_ledger
from capcard_sched.model.annotations import LEDGER_USER
from capcard_sched.web.usage_csv import plain_cell, usage_csv
from capcard_sched.web.views import UsageGroup
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


_SPECIAL = "=+-@;,\t\r\n \"'|\x85\u2028\u202e\ufeff\uff1d\uff0b\uff0d\uff20\0"
_HOSTILE = st.text(st.one_of(st.sampled_from(_SPECIAL), st.characters()))


@given(_HOSTILE, _HOSTILE)
def test_no_cell_is_a_formula_with_either_separator(one: str, other: str) -> None:
    """Spreadsheets split at semicolons where the comma is the decimal separator, and skip space and quotes."""
    group = UsageGroup(
        group=(one, other),
        used=1.0,
        evicted=0.0,
        jobs=1,
        wait_p50=None,
        wait_p90=None,
        quota=None,
        idle=None,
        lent=None,
    )
    text = usage_csv(("user", "queue"), [group])
    _, (first, second, *amounts) = csv.reader(io.StringIO(text))
    assert (first, second, amounts[0]) == (plain_cell(one), plain_cell(other), "1.00")
    assert len(text.splitlines()) == 2
    line = text.splitlines()[1]
    for cell in [first, second, *(part.strip().strip('"') for part in line.split(";"))]:
        assert cell.lstrip()[:1] not in {*"=+-@\uff1d\uff0b\uff0d\uff20"}
    assert not [each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp") and each != "\n"]
