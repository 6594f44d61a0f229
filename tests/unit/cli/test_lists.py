"""The formats that all lists have, and a queue that is gone. What each list shows: `commands/lists.yaml`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from capcard_sched.cli.main import run
from capcard_sched.framework.explain.queue_uses import queue_uses
from capcard_sched.model.deltas import ObjectGone
from capcard_sched.testing import Harness

AFTER = ["-f", "config/examples/demo", "--until", "10m"]
LISTS = ("job", "pod", "queue", "card", "node")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run([*arguments, *AFTER]) == 0
    return capsys.readouterr().out


def items(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(printed(capsys, *arguments, "-o", "json"))["items"]
    return found


@pytest.mark.parametrize("kind", LISTS)
def test_every_list_has_the_same_formats(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load(printed(capsys, kind, "list", "-o", "yaml"))
    assert document["kind"] == f"{kind.capitalize()}List"
    assert document["items"] == items(capsys, kind, "list")
    header, *rows = printed(capsys, kind, "list", "-o", "wide").splitlines()
    assert header == header.upper()
    names = list(dict.fromkeys(item["name"] for item in document["items"]))
    assert set(names) <= {word for row in rows for word in row.split()}, "no name is cut"
    assert [name.partition("/")[2] for name in printed(capsys, kind, "list", "-o", "name").split()] == names


@pytest.mark.parametrize("kind", LISTS)
def test_every_list_sorts_by_column_and_by_path(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    column = kind if kind in {"card", "node", "queue"} else "name"
    by_column = [item["name"] for item in items(capsys, kind, "list", "--sort-by", column)]
    assert by_column == sorted(by_column)
    for path in (".name", "{.name}", "$['name']"):
        assert [item["name"] for item in items(capsys, kind, "list", "--sort-by", path)] == by_column


def test_a_deleted_queue_with_live_pods_stays_visible() -> None:
    h = Harness('actions: "allocate"\ntiers: [{plugins: [{name: gang}]}]\n')
    h.queue("q")
    h.group("g", queue="q")
    h.node("n1")
    h.pod("p", group="g", node="n1", phase="Running")
    h.step()
    h.apply(ObjectGone("Queue", "", "q"))
    h.step()
    deleted = {use.name: use for use in queue_uses(h.core.snapshot())}["q"]
    assert (deleted.state, deleted.jobs) == ("Deleted", 1)
    assert deleted.resources["cpu"][1] > 0
