"""Requests: documents and pages, headers, access, invalid input."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from capcard_sched.model.quoting import escaped
from capcard_sched.web.pages import PAGES
from capcard_sched.web.usage_csv import usage_csv
from capcard_sched.web.views import UsageGroup
from tests.web.served import ARGUMENTS, EXAMPLES, Reply, Served, serving

Example = Callable[[str], Served]

#: Address below /api/v1 of each kind of page in the demo.
DOCUMENTS = {
    "Overview": "/overview",
    "QueueList": "/queues",
    "Queue": "/queues/serving",
    "JobList": "/jobs",
    "Job": "/jobs/default/chat",
    "NodeList": "/nodes",
    "WhatIf": "/what-if?drain=a100-1",
}
#: Of the tidal example, with a ledger.
USAGE = "/usage?since=24h"


def page_of(document: str) -> str:
    return "/" if document == "/overview" else document


def text_of(reply: Reply) -> str:
    """What a page shows, without markup."""
    body = re.sub(r"<(script|style).*?</\1>", "", reply.body.partition("<body>")[2], flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", body)))


def test_every_kind_of_page_is_listed_here() -> None:
    kinds = {field.default for page in PAGES for field in msgspec.structs.fields(page.kind) if field.name == "kind"}
    assert kinds == {*DOCUMENTS, "Usage", "LedgerUsage", "LedgerHistory"}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_document_has_its_version_and_kind_and_its_page_answers(example: Example, kind: str) -> None:
    served, address = example("demo"), DOCUMENTS[kind]
    document = served.get(f"/api/v1{address}")
    assert (document.status, document.json["kind"]) == (200, kind)
    assert document.json["apiVersion"] == "insight.capcard-sched.io/v1alpha1"
    assert document.headers["Content-Type"].startswith("application/json")
    page = served.get(page_of(address))
    assert page.status == 200
    assert page.headers["Content-Type"].startswith("text/html")
    assert document.json["moment"]["now"] in page.body


def test_the_overview_shows_the_figures_of_its_document(example: Example) -> None:
    served = example("demo")
    found, shown = served.get("/api/v1/overview").json, text_of(served.get("/"))
    for row in found["queues"]:
        for cell in row["cells"]:
            if cell["quota"] and row["queue"] != "root":
                assert f"{cell['used']:g} of {cell['quota']:g}" in shown
    for job in found["waiting"]:
        assert job["name"] in shown
        assert job["reason"] in shown
    for alert in found["alerts"]:
        assert alert["message"] in shown
    used, total = (sum(card[name] for card in found["cards"]) for name in ("used", "total"))
    assert f"Cards in use {used:g} of {total:g}" in shown
    assert [(stage["stage"], stage["jobs"]) for stage in found["stages"]] == [("CannotStart", 1), ("OverQuota", 1)]


def test_the_figures_are_those_of_the_command_line(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    from capcard_sched.cli.main import run

    served = example("demo")
    source = ["-f", str(EXAMPLES / "demo"), "--until", "10m"]
    assert run(["queue", "list", "-o", "json", *source]) == 0
    listed = {item["name"]: item for item in msgspec.json.decode(capsys.readouterr().out)["items"]}
    for row in served.get("/api/v1/queues").json["queues"]:
        cells = {cell["card"]: (cell["used"], cell["quota"], cell["reserved"], cell["free"]) for cell in row["cells"]}
        assert cells == {
            card["card"]: (card["allocated"], card["quota"], card["inqueue"], card["free"])
            for card in listed[row["queue"]]["cards"]
            if "|" not in card["card"]
        }
    assert run(["explain", "chat", "-o", "json", *source]) == 0
    explained = msgspec.json.decode(capsys.readouterr().out)
    found = served.get("/api/v1/jobs/default/chat").json["diagnosis"]
    assert {**found, "fixes": None} == {**explained, "fixes": None}
    assert found["fixes"]["fixes"]
    assert run(["what-if", "-o", "json", "--drain", "a100-1", *source]) == 3
    assert served.get("/api/v1/what-if?drain=a100-1").json["report"] == msgspec.json.decode(capsys.readouterr().out)


def test_the_time_machine_shows_each_moment_of_a_simulation(example: Example) -> None:
    served = example("tidal")

    def used(at: str) -> tuple[float, float]:
        rows = {row["queue"]: row for row in served.get(f"/api/v1/queues?at={at}").json["queues"]}
        return rows["serving"]["cells"][0]["used"], rows["training"]["cells"][0]["used"]

    assert [used(at) for at in ("6h", "8h30m", "2026-01-01T09:30:00Z", "43200")] == [(4, 12), (8, 4), (12, 4), (14, 0)]
    overview = served.get("/api/v1/overview?at=9h").json
    assert [mark["pod"] for mark in overview["evictions"]] == ["default/pretrain-worker-1", "default/pretrain-worker-0"]
    assert overview["moment"]["at"] == 9 * 3600
    assert overview["moment"]["length"] == 24 * 3600
    (card,) = overview["series"]
    assert [(queue["queue"], max(queue["amounts"])) for queue in card["queues"]] == [("serving", 14), ("training", 12)]
    job = served.get("/api/v1/jobs/default/pretrain").json
    assert [period["stage"] for period in job["life"]] == ["running", "waiting", "running"]


@pytest.mark.parametrize(
    "path, status, text",
    [
        ("/queues/nothing", 404, "queue nothing does not exist; existing queues: default, research"),
        ("/jobs/default/nothing", 404, "job default/nothing does not exist"),
        ("/nothing", 404, "/nothing: Not Found"),
        ("/jobs?color=red", 400, "color: unknown parameter; accepted: at, namespace, page, queue, sort, stage, text"),
        ("/jobs?sort=color", 400, "sort: 'color': accepted: wait, name"),
        ("/jobs?page=7", 400, "page: '7': expected a number from 1 to 1"),
        pytest.param(f"/jobs?page={'9' * 5000}", 400, "': expected a number from 1 to 1", id="page of 5,000 digits"),
        ("/jobs?queue=a&queue=b", 400, "queue: given twice"),
        ("/?at=yesterday", 400, "at: 'yesterday': expected a time such as 2026-01-01T00:00:00Z, or "),
        ("/overview?at=24h", 400, "at: '24h': must be between 2026-01-01T00:00:00Z and 2026-01-01T00:10:00Z"),
    ],
)
def test_a_request_without_a_page_names_the_reason(example: Example, path: str, status: int, text: str) -> None:
    served = example("demo")
    document = served.get(f"/api/v1{path if path != '/?at=yesterday' else '/overview?at=yesterday'}")
    assert (document.status, document.json["kind"], document.json["status"]) == (status, "Error", status)
    page = served.get(path.replace("/overview", "/"))
    assert page.status == status
    if path != "/nothing":
        assert text in document.json["message"]
    assert text in text_of(page)


EXTENDER = "conf=" + quote(
    "actions: enqueue, allocate\ntiers:\n- plugins:\n  - name: extender\n"
    '    arguments: {extender.urlPrefix: "http://127.0.0.1:1"}'
)


@pytest.mark.parametrize(
    "query, text",
    [
        ("drain=nothing", "Node nothing does not exist; the input has a100-1"),
        ("quota=serving", "--quota: 'serving': expected QUEUE/CARD=N"),
        ("add-nodes=many", "--add-nodes: 'many': expected NxNODE"),
        ("conf=actions%3A%20%22fly%22", "invalid scheduler-conf"),
        (EXTENDER, "plugin extender sends requests"),
    ],
)
def test_an_invalid_change_is_an_error_on_the_page(example: Example, query: str, text: str) -> None:
    found = example("demo").get(f"/api/v1/what-if?{query}")
    assert found.status == 200
    assert text in found.json["error"]
    assert found.json["report"] is None
    assert "/tmp" not in found.body


def test_responses_allow_nothing_of_other_hosts_and_keep_no_state(example: Example) -> None:
    served = example("demo")
    for path in ("/", "/jobs", "/api/v1/overview", "/static/page.js", "/nothing"):
        headers = served.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "Set-Cookie" not in headers
        assert headers["X-Content-Type-Options"] == "nosniff"
    for page in (served.get("/").body, served.get("/what-if").body):
        assert not re.search(r"""(src|href|action)=["']?(https?:)?//""", page)
        assert " style=" not in page


def test_the_server_reads_only_and_answers_to_its_own_names_only(example: Example) -> None:
    served = example("demo")
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert served.get("/", method).status == 405
    port = served.url.rpartition(":")[2]
    assert served.get("/", Host=f"localhost:{port}").status == 200
    assert served.get("/", Host="attacker.example").status == 403
    assert served.get("/api/v1/overview", Host=f"attacker.example:{port}").json["kind"] == "Error"


#: A name that a page must show as text.
SCRIPT = "<script>alert(1)<img src=x onerror=alert(2)>'\"&\x1b[31m\x07\u202e"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A saved state in which every name, label and annotation has markup and control characters."""
    folder = tmp_path_factory.mktemp("hostile")
    with serving("-f", str(hostile_state(folder))) as served:
        yield served


def hostile_state(folder: Path) -> Path:
    """A saved state: no API server has checked its names."""
    meta: dict[str, Any] = {"annotations": {"a": SCRIPT, "volcano.sh/card.name": SCRIPT}, "labels": {"a": SCRIPT}}
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {**meta, "name": f"q{SCRIPT}", "annotations": {"volcano.sh/card.quota": SCRIPT}},
        "spec": {"weight": 1},
    }
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"n{SCRIPT}", "labels": {"nvidia.com/gpu.product": f"card{SCRIPT}"}},
        "spec": {"taints": [{"key": SCRIPT, "value": SCRIPT, "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"}},
    }
    spec = {"schedulerName": "capcard-sched", "priorityClassName": "", "containers": [
        {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}  # fmt: skip
    group = {"scheduling.k8s.io/group-name": f"g{SCRIPT}"}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**meta, "name": f"p{number}{SCRIPT}", "namespace": f"ns{SCRIPT}", "uid": f"uid-{number}",
                         "annotations": {**meta["annotations"], **group}},
            "spec": {**spec, **({"nodeName": f"n{SCRIPT}"} if number else {})},
            "status": {"phase": "Running" if number else "Pending", "message": SCRIPT},
        }
        for number in range(2)
    ]  # fmt: skip
    podgroup = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": f"g{SCRIPT}", "namespace": f"ns{SCRIPT}", "uid": "uid-g"},
        "spec": {"minMember": 2, "queue": f"q{SCRIPT}"},
        "status": {"phase": "Inqueue", "conditions": [{"type": "Unschedulable", "status": "True", "message": SCRIPT}]},
    }
    saved = {"time": "2026-01-01T00:00:00Z", "schedulerNames": ["capcard-sched"], "defaultQueue": "default",
             "schedulerConf": "", "unreadable": []}  # fmt: skip
    document = {"apiVersion": "v1", "kind": "List", "savedState": saved, "items": [queue, node, podgroup, *pods]}
    path = folder / "state.json"
    path.write_bytes(msgspec.json.encode(document))
    return path


_HOSTILE_JOB = f"/jobs/{quote(f'ns{SCRIPT}', safe='')}/{quote(f'g{SCRIPT}', safe='')}"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/queues",
        f"/queues/{quote(f'q{SCRIPT}', safe='')}",
        "/jobs",
        _HOSTILE_JOB,
        "/nodes",
        f"/nodes?text={quote(SCRIPT, safe='')}",
        "/what-if",
        f"/what-if?drain={quote(SCRIPT, safe='')}",
        f"/what-if?conf={quote(SCRIPT, safe='')}",
    ],
    ids=range(10),
)
def test_names_are_shown_as_text_without_control_characters(hostile: Served, path: str) -> None:
    page = hostile.get(path)
    assert page.status == 200
    assert "<script>alert" not in page.body
    assert "<img" not in page.body
    assert not set(page.body) & {"\x1b", "\x07", "\u202e"}
    if path != "/what-if":  # the form has examples
        assert "&lt;script&gt;alert(1)" in page.body


@pytest.fixture(scope="module")
def tidal(ledger: str) -> Iterator[Served]:
    with serving(*ARGUMENTS["tidal"], "--ledger", ledger) as served:
        yield served


def test_the_usage_is_that_of_the_command_line(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    from capcard_sched.cli.main import run

    assert run(["usage", "--ledger", ledger, "--since", "24h", "-o", "csv", "--by", "queue,day"]) == 0
    table = capsys.readouterr().out
    assert run(["usage", "--ledger", ledger, "--since", "24h", "-o", "json"]) == 0
    rows = msgspec.json.decode(capsys.readouterr().out)["rows"]
    with serving(*ARGUMENTS["tidal"], "--ledger", ledger) as served:
        found, shown = served.get(f"/api/v1{USAGE}").json, text_of(served.get(USAGE))
        assert "Usage" in text_of(served.get("/"))
        (address,) = re.findall(r'href="(/usage.csv[^"]*)"', served.get("/usage?since=24h&by=queue,day").body)
        downloaded = served.get(unescape(address))
        assert served.get("/usage.csv?by=pod").status == 400
        by_day = served.get("/api/v1/usage?by=queue,day").json
        refused = {query: served.get(f"/usage?{query}").status for query in ("by=pod", "by=queue,queue", "since=1x")}
    assert downloaded.body == table
    assert downloaded.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert downloaded.headers["Content-Disposition"] == 'attachment; filename="usage.csv"'
    assert [row["group"] for row in found["groups"]] == [["serving", "NVIDIA-H200"], ["training", "NVIDIA-H200"]]
    for row, listed in zip(found["groups"], rows, strict=True):
        assert [listed["queue"], listed["card"]] == row["group"]
        assert listed["used"] / 3_600_000_000 == pytest.approx(row["used"], abs=0.01)
        assert f"{row['used']:.1f}" in shown
    for series in found["series"]:
        for one, row in zip(series["queues"], found["groups"], strict=True):
            assert sum(one["amounts"]) * 24 / len(one["amounts"]) == pytest.approx(row["used"], abs=0.1)
    assert [row["group"][1] for row in by_day["groups"]] == ["2026-01-01", "2026-01-01"]
    assert refused == {"by=pod": 400, "by=queue,queue": 400, "since=1x": 400}


def test_the_page_of_a_job_has_its_former_lives_of_the_ledger(tidal: Served) -> None:
    address = "/jobs/default/pretrain?kind=vcjob&at=14h"
    (life,) = tidal.get(f"/api/v1{address}").json["former"]
    assert life == {
        "submitted": "2026-01-01T00:00:00Z", "queue": "training", "card": "NVIDIA-H200", "waited": 1.0,
        "ran": pytest.approx(28829, abs=1), "cardHours": 64.06, "outcome": "Evicted", "preemptors": life["preemptors"],
    }  # fmt: skip
    assert len(life["preemptors"]) == 1
    assert "Former lives of the ledger Submitted" in text_of(tidal.get(address))
    before = tidal.get("/api/v1/jobs/default/pretrain?kind=vcjob&at=7h").json
    assert before["former"] == [], "the first life lasts"


def test_the_page_of_a_queue_has_its_budgets_with_their_forecast() -> None:
    conf = str(EXAMPLES / "budget/conf/scheduler.yaml")
    with serving("-f", str(EXAMPLES / "budget"), "--scheduler-conf", conf, "--until", "20d") as served:
        (early,) = served.get("/api/v1/queues/research?at=5d").json["budgets"]
        (late,) = served.get("/api/v1/queues/research").json["budgets"]
        shown = text_of(served.get("/queues/research"))
        assert served.get("/api/v1/queues/default").json["budgets"] == []
    same = {"budget": "research-month", "queue": "research", "card": "NVIDIA-H200", "limit": 1000.0, "period": "month"}
    assert early.items() >= {**same, "spent": False, "whenSpent": "stop"}.items()
    assert late.items() >= {**same, "spent": True, "used": 1056.0, "until": "2026-02-01T00:00:00Z"}.items()
    assert 0 < early["used"] < late["used"]
    assert "research-month NVIDIA-H200 1056.00 1000 month until 2026-02-01T00:00:00Z spent stop" in shown


@pytest.mark.parametrize(
    "command",
    [
        "usage --since 24h",
        "usage --by day,queue,service -o json",
        "usage --by user -o csv",
        "history",
        "history job pretrain -n default",
        "history job chat -o json",
        "history job nothing",
    ],
)
def test_a_server_prints_what_its_database_does(
    ledger: str, tidal: Served, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    from capcard_sched.cli.main import run

    status, local = run([*command.split(), "--ledger", ledger]), capsys.readouterr()
    assert run([*command.split(), "--server", tidal.url]) == status
    assert capsys.readouterr() == local


def test_a_server_without_a_ledger_or_of_another_kind_is_an_error(
    example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    from capcard_sched.cli.main import run

    url = example("demo").url
    for address, text in (
        (url, "no ledger: start web with --ledger FILE|URL"),
        (f"{url}/static", "HTTP 404: not a response of `web`"),
    ):
        assert run(["usage", "--server", address]) == 2
        assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\u00a0=1", "\uff1d1", "=\x1b"]
)
def test_no_cell_of_a_csv_is_a_formula(text: str) -> None:
    _, row = csv.reader(io.StringIO(usage_csv(["user"], [_group(text)])))
    assert row[0] == f"'{escaped(text)}"


@pytest.mark.parametrize("text", ["", "ann", "a=1", "2026-01-01", 'with "quotes", and commas'])
def test_other_cells_of_a_csv_are_as_they_are(text: str) -> None:
    _, row = csv.reader(io.StringIO(usage_csv(["user"], [_group(text)])))
    assert row == [text, "1.00", "0.00", "", "", "", "2", "", ""]


def _group(name: str) -> UsageGroup:
    return UsageGroup(
        group=(name,), used=1.0, evicted=0.0, jobs=2, wait_p50=None, wait_p90=None, quota=None, idle=None, lent=None
    )


def test_without_a_ledger_there_is_no_usage(example: Example) -> None:
    served = example("demo")
    assert "Usage" not in text_of(served.get("/"))
    reply = served.get("/api/v1/usage")
    assert (reply.status, reply.json["message"]) == (404, "no ledger: start web with --ledger FILE|URL")
