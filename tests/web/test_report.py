"""`--report`: one file that shows the run without requests."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from capcard_sched.cli.main import run
from tests.web.browser import chromium, window
from tests.web.served import ARGUMENTS


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.mark.parametrize("output", ["table", "json"])
def test_simulate_writes_the_tide_into_one_file(tmp_path: Path, browser: Browser, output: str) -> None:
    path = tmp_path / "day.html"
    assert run(["simulate", *ARGUMENTS["tidal"], "-o", output, "--report", str(path)]) == 0
    text = path.read_text("utf-8")
    assert not re.search(r"<a |<script|<link|src=|https?://", text)
    with window(browser, path.as_uri()) as watched:
        watched.open("")
        page = watched.page
        page.get_by_role("img", name="NVIDIA-H200 of 16: serving 2, training 12").wait_for()
        assert page.locator("svg.plot line.evict").count() == 3
        assert "serving/chat-" in page.inner_text("main")
        assert [one["id"] for one in Axe().run(page).response["violations"] if one["impact"] != "moderate"] == []
        assert watched.faults == []


def test_usage_writes_its_figures_into_one_file(tmp_path: Path, browser: Browser, ledger: str) -> None:
    path = tmp_path / "usage.html"
    assert run(["usage", "--ledger", ledger, "--since", "24h", "--report", str(path)]) == 0
    text = path.read_text("utf-8")
    assert not re.search(r"<a |<script|<link|<form|src=|https?://", text)
    with window(browser, path.as_uri()) as watched:
        watched.open("")
        page = watched.page
        page.get_by_role("img", name=re.compile("NVIDIA-H200 of 16")).wait_for()
        assert "training NVIDIA-H200 152.0 384.0" in " ".join(page.locator("table").first.inner_text().split())
        assert [one["id"] for one in Axe().run(page).response["violations"] if one["impact"] != "moderate"] == []
        assert watched.faults == []


def test_a_folder_that_is_missing_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "day.html"
    assert run(["simulate", *ARGUMENTS["demo"], "--report", str(path)]) == 2
    assert f"--report: {path}: No such file or directory" in capsys.readouterr().err
