"""The pages answer the questions of a platform team about its situations: `questions.yaml`."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
import yaml

from capcard_sched.cli.sources.source import Source
from capcard_sched.cli.web_files import FileClusters
from capcard_sched.web import job_page
from capcard_sched.web.cluster import Cluster
from capcard_sched.web.pages import PAGES
from capcard_sched.web.render import render
from tests.scenarios.notation import expanded

HERE = Path(__file__).parent
QUESTIONS: list[dict[str, Any]] = yaml.safe_load((HERE / "questions.yaml").read_text("utf-8"))


class _Text(HTMLParser):
    """The text of the content of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._is_main = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_main |= tag == "main"

    def handle_endtag(self, tag: str) -> None:
        self._is_main &= tag != "main"

    def handle_data(self, data: str) -> None:
        if self._is_main:
            self.words += data.split()


@cache
def _cluster(file: str, until: str) -> Cluster:
    path = expanded(HERE.parent / "insight" / "situations" / f"{file}.yaml")
    return FileClusters(Source(file=(str(path),), until=until)).load()


def shown(cluster: Cluster, address: str) -> str:
    """The text of a page."""
    url = urlsplit(address)
    parts, query = [unquote(part) for part in url.path.split("/")], dict(parse_qsl(url.query))
    for page in PAGES:
        form = page.address.split("/")
        if len(form) == len(parts) and all(
            one == part or one[:1] == "{" for one, part in zip(form, parts, strict=True)
        ):
            names = {one.strip("{}"): part for one, part in zip(form, parts, strict=True) if one[:1] == "{"}
            found = _Text()
            found.feed(render(page.template, page.view(cluster, {**query, **names}), path=url.path, query=query))
            return " ".join(found.words)
    raise LookupError(address)


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: f"{row['file']} {row['path']}")
def test_a_page_answers_the_question(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_page, "_SMALL", 0)  # fixes are searched where the address has `fix=1`
    text = shown(_cluster(row["file"], row.get("until", "15m")), row["path"])
    for fact in row["contains"]:
        assert fact in text, f"{fact!r} is missing:\n{text}"
