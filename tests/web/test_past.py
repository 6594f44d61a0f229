"""Pages at a moment of a ledger: as those of the simulation that was recorded, at the same moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capcard_sched.ledger import schema
from capcard_sched.ledger.database import LedgerDatabase, put_rows
from capcard_sched.ledger.rows import ChargeRow
from capcard_sched.ledger.usage_ledger import open_ledger
from capcard_sched.simulation.clock import EPOCH
from capcard_sched.web.past import past_view
from capcard_sched.web.render import render
from tests.web.served import Served

#: Moments without an event: in the night, at the rise of serving, and at its full tide.
MOMENTS = ["00:30:17", "08:20:17", "11:30:17"]
#: Stages of jobs that the ledger does not have: those without a PodGroup.
UNRECORDED = ("Suspended", "Finished")
#: Pages with a template.
PAGES = {"/overview": "overview", "/queues": "queues", "/jobs": "jobs", "/usage": "usage"}
SERVER = "https://cluster.example"


def at_moment(ledger: str, document: str, moment: str, **more: Any) -> Any:
    """The document of the ledger, as its JSON."""
    namespaces = more.pop("namespaces", None)
    query = {"at": f"2026-01-01T{moment}Z", **more}
    return msgspec.json.decode(msgspec.json.encode(past_view(ledger, SERVER, document, query, namespaces)))


def cells(rows: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[Any, ...]]:
    """What queues use, by queue and card; queues with quotas."""
    return {
        (row["queue"], cell["card"]): (cell["used"], cell["quota"], cell["over"], cell["total"], row["depth"])
        for row in rows
        for cell in row["cells"]
        if cell["quota"]
    }


def waits(rows: list[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """The jobs that last, and whether they wait."""
    return {
        f"{row['namespace']}/{row['kind']}/{row['name']}": (row["queue"], bool(row["stage"]), row["minAvailable"])
        for row in rows
        if row["stage"] not in UNRECORDED
    }


def evictions(overview: dict[str, Any]) -> list[tuple[str, float, str, float]]:
    """Pods, cards, preemptors and times of evictions."""
    return sorted((one["pod"], one["cards"], one["preemptor"], one["at"]) for one in overview["evictions"])


@pytest.mark.parametrize("moment", MOMENTS)
def test_pages_of_a_moment_equal_those_of_the_recorded_run(
    example: Callable[[str], Served], ledger: str, moment: str
) -> None:
    tidal = example("tidal")

    def recorded(path: str) -> Any:
        return tidal.get(f"/api/v1{path}?at=2026-01-01T{moment}Z").json

    expected, found = recorded("/overview"), at_moment(ledger, "/overview", moment)
    assert cells(found["queues"]) == cells(expected["queues"])
    assert [(one["card"], one["total"], one["used"], one["free"]) for one in found["cards"]] == [
        (one["card"], one["total"], one["used"], one["free"]) for one in expected["cards"]
    ]
    assert [one["mean"] for one in found["cards"]] == pytest.approx([one["mean"] for one in expected["cards"]])
    decided, ended = evictions(expected), evictions(found)
    assert [one[:3] for one in decided] == [one[:3] for one in ended]
    # The run has the decision, the ledger the end of the pod after its grace period of 30 s.
    assert all(before[3] <= after[3] <= before[3] + 31 for before, after in zip(decided, ended, strict=True))
    assert found["waitingJobs"] == sum(one["jobs"] for one in expected["stages"] if one["stage"] not in UNRECORDED)
    jobs = at_moment(ledger, "/jobs", moment)
    assert waits(jobs["items"]) == waits(recorded("/jobs")["items"])
    queue, other = at_moment(ledger, "/queues/{name}", moment, name="training"), recorded("/queues/training")
    assert cells(queue["tree"]) == cells(other["tree"])
    assert waits(queue["jobs"]) == waits(other["jobs"])
    assert at_moment(ledger, "/queues", moment)["queues"] == found["queues"]
    assert found["moment"]["now"] == expected["moment"]["now"]
    assert (found["moment"]["at"], found["moment"]["length"]) == (expected["moment"]["at"], 86400)


def test_usage_ends_at_the_moment(ledger: str) -> None:
    night = at_moment(ledger, "/usage", "07:59:17")
    assert night["end"] == "2026-01-01T07:59:17Z"
    used = {tuple(row["group"]): row["used"] for row in night["groups"]}
    whole = {tuple(row["group"]): row["used"] for row in at_moment(ledger, "/usage", "23:59:17")["groups"]}
    overview = at_moment(ledger, "/overview", "07:59:17")["cards"]
    assert sum(used.values()) == pytest.approx(sum(one["mean"] for one in overview) * (8 - 43 / 3600), abs=0.02)
    assert all(used[group] <= whole[group] for group in used)
    (hour,) = {row["used"] for row in at_moment(ledger, "/usage", "07:59:17", since="1h", by="card")["groups"]}
    assert hour <= max(one["total"] for one in overview)


@pytest.mark.parametrize(
    ("document", "query", "text"),
    [
        ("/nodes", {}, "at: the ledger has no nodes; `web --recording FILE` shows"),
        ("/what-if", {}, "at: the ledger has no objects to try changes on"),
        ("/jobs/{namespace}/{name}", {"namespace": "default", "name": "pretrain"}, "at: the ledger has no diagnoses"),
        ("/ledger/usage", {}, "at: this document ends with the last record; /usage takes a moment"),
        ("/overview", {"at": "yesterday"}, "at: 'yesterday': expected a time"),
        ("/overview", {"at": "2025-01-01T00:00:00Z"}, "must be between 2026-01-01T00:00:00Z and"),
        ("/jobs", {"sort": "x"}, "sort: 'x': accepted:"),
        ("/usage", {"by": "x"}, "by: 'x': accepted:"),
    ],
)
def test_what_the_ledger_lacks_is_refused(ledger: str, document: str, query: Mapping[str, str], text: str) -> None:
    with pytest.raises(ValueError) as refused:
        past_view(ledger, SERVER, document, {"at": "2026-01-01T08:20:17Z", **query}, None)
    assert text in str(refused.value)


def test_viewers_see_the_jobs_of_their_namespaces(ledger: str) -> None:
    nothing: frozenset[str] = frozenset()
    hidden = at_moment(ledger, "/overview", "11:30:17", namespaces=nothing)
    shown = at_moment(ledger, "/overview", "11:30:17")
    assert (hidden["jobs"], hidden["waiting"], hidden["evictions"]) == (0, [], [])
    assert shown["jobs"] > 0
    assert shown["evictions"]
    assert hidden["queues"] == shown["queues"]
    queue = at_moment(ledger, "/queues/{name}", "11:30:17", name="training", namespaces=nothing)
    assert (queue["jobs"], queue["hiddenJobs"]) == ([], 1)
    with pytest.raises(ValueError, match="namespaces and users are visible"):
        at_moment(ledger, "/usage", "11:30:17", by="user", namespaces=nothing)


def test_pages_have_a_slider_and_name_what_they_lack(ledger: str) -> None:
    query = {"at": "2026-01-01T11:30:17Z"}
    for document, template in (
        ("/overview", "overview"),
        ("/queues", "queues"),
        ("/jobs", "jobs"),
        ("/usage", "usage"),
    ):
        view = past_view(ledger, SERVER, document, query, None)
        page = render(f"{template}.html", view, path="/" if template == "overview" else document, query=query)
        assert '<input type="range" name="at" min="0" max="86400" value="41417"' in page
        assert "Of the records: the ledger has no reserved cards" in page
        assert ">live</a>" in page
        assert "Largest free block" not in page
        assert "every node is ready" not in page
        assert "expected start" not in page


def test_a_pod_with_two_cards_is_one_pod_and_one_eviction(tmp_path: Path) -> None:
    """A pod runs, another one was evicted, each with two cards."""
    begin = EPOCH * 1000
    rows = [
        ChargeRow(
            *(
                pod,
                pod,
                "team",
                "j",
                1,
                "q",
                "",
                "training",
                card,
                1000,
                "n1",
                begin,
                ended,
                "Evicted" if ended else "",
            ),
            part=part,
        )
        for pod, ended in (("runs", None), ("gone", begin + 5_000))
        for part, card in enumerate("AB")
    ]
    name = str(tmp_path / "ledger.db")
    with open_ledger(name) as writer:
        for seconds in (0, 10):
            writer.start("day", "simulation", EPOCH + seconds)
            writer.feed(EPOCH + seconds, [])
            writer.flush()
    database = LedgerDatabase(name)
    with database.engine.begin() as connection:
        put_rows(connection, schema.CHARGE, [msgspec.structs.asdict(row) for row in rows])
    database.close()
    found = at_moment(name, "/overview", "00:00:10")
    assert found["runningPods"] == 1
    assert [(one["pod"], one["card"], one["cards"]) for one in found["evictions"]] == [("team/gone", "A, B", 2.0)]
