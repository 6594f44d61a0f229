"""`python -m benchmarks.ledger_pages`: CPU time of the pages that read a ledger, of SQLite and PostgreSQL.

The ledger has 5,000 nodes and 50,000 pods in gangs of eight: 5,000 gangs have begun one after the other and run, 1,250
wait, and 1,000 jobs of one pod have ended. Each view is made and rendered for a moment of its own. The CPU time is that
of the process, which has SQLite, and of all processes of PostgreSQL.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from cyclopts import App
from rich.console import Console
from rich.table import Table

from benchmarks import api_objects
from benchmarks.e2e.processes import cpu_seconds
from benchmarks.ledger import decoded, gang, gone
from capcard_sched.ledger.usage_ledger import UsageLedger, open_ledger
from capcard_sched.model.objects import NodeObject, QueueObject
from capcard_sched.model.timestamps import format_timestamp
from capcard_sched.web.pages import PAGES
from capcard_sched.web.past import past_view
from capcard_sched.web.render import render
from tests.unit.ledger import postgres

_GANG: Final = 8
#: Unix seconds of the first step, after the timestamps of the objects, and seconds between two steps.
_BEGIN: Final = 1_795_000_000.0
_STEP: Final = 5.0
_QUEUES: Final = 4
#: Address of a page to its document and query.
ADDRESSES: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "/": ("/overview", {}),
    "/queues": ("/queues", {}),
    "/queues/NAME": ("/queues/{name}", {"name": "queue-1"}),
    "/jobs": ("/jobs", {}),
    "/jobs, by pods, page 30": ("/jobs", {"sort": "pods", "page": "30"}),
    "/jobs, filtered": ("/jobs", {"text": "train-0001"}),
    "/usage, 30 days": ("/usage", {"since": "30d"}),
    "/usage, 1 hour": ("/usage", {"since": "1h"}),
    "/usage, by namespace and day": ("/usage", {"since": "30d", "by": "namespace,day"}),
}


class Cost(NamedTuple):
    """CPU seconds of one page: to read and make the view, and with its HTML; and bytes of the HTML."""

    page: str
    view: float
    rendered: float
    size: int


def fill(ledger: UsageLedger, nodes: int, pods: int, ended: int) -> None:
    """Record the cluster: four fifths of the gangs run."""
    running = pods * 4 // 5 // _GANG
    gangs = [gang(index * _GANG, _GANG, nodes if index < running else 0) for index in range(pods // _GANG)]
    lone = [gang(10**6 + index, 1, nodes) for index in range(ended)]
    first = [decoded(NodeObject, api_objects.node(index)) for index in range(nodes)]
    first += [decoded(QueueObject, _queue(index)) for index in range(_QUEUES)]
    ledger.start("bench", "simulation", _BEGIN)
    ledger.feed(_BEGIN, first + [delta for one in gangs[running:] for delta in one])
    now = _BEGIN
    for number, one in enumerate(gangs[:running]):
        now += _STEP
        others = lone[number] + list(gone(lone[number - 1])) if 0 < number < ended else []
        ledger.feed(now, one + others)
    ledger.flush()


def _queue(index: int) -> dict[str, object]:
    return {
        "kind": "Queue",
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "metadata": {
            "name": f"queue-{index}",
            "uid": f"queue-{index}",
            "resourceVersion": "1",
            "creationTimestamp": "2026-11-21T09:29:58Z",
            "annotations": {"volcano.sh/card.quota": '{"NVIDIA-H200": 20000}'},
        },
        "spec": {"weight": 1},
    }


def measure(url: str, count: int, server: int | None = None) -> list[Cost]:
    """Make every page `count` times. `server`: the process id of the database."""
    with open_ledger(url, create=False) as ledger:
        until = ledger.recorded_until
    templates = {page.document: page.template for page in PAGES}

    def cpu() -> float:
        return time.process_time() + (cpu_seconds(server) if server is not None else 0.0)

    found = []
    for page, (document, query) in ADDRESSES.items():
        viewed, made, html = 0.0, 0.0, ""
        for number in range(-1, count):  # the first one loads what it needs
            asked = {**query, "at": format_timestamp(until - 60 * (number + 2))}
            begun = cpu()
            view = past_view(url, "bench", document, asked, None)
            read = cpu()
            html = render(templates[document], view, path=page, query=asked)
            if number >= 0:
                viewed, made = viewed + read - begun, made + cpu() - begun
        found.append(Cost(page, viewed / count, made / count, len(html.encode())))
    return found


def _show(console: Console, title: str, found: Iterable[Cost]) -> None:
    table = Table("Page with at", "view, ms", "with HTML, ms", "KiB", title=f"{title}, load {os.getloadavg()[0]:.1f}")
    for one in found:
        table.add_row(one.page, f"{1000 * one.view:.0f}", f"{1000 * one.rendered:.0f}", f"{one.size / 1024:.0f}")
    console.print(table)


app = App(name="ledger_pages", help=__doc__)


@app.default
def main(*, nodes: int = 5000, pods: int = 50_000, ended: int = 1000, count: int = 10) -> None:
    """Measure, and print tables."""
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "ledger.db")
        with open_ledger(url) as ledger:
            fill(ledger, nodes, pods, ended)
        _show(console, "SQLite", measure(url, count))
    try:
        with postgres.server() as served:
            url = postgres.new_database(served)
            with open_ledger(url) as ledger:
                fill(ledger, nodes, pods, ended)
            process = int((served / "data" / "postmaster.pid").read_text().splitlines()[0])
            _show(console, "PostgreSQL", measure(url, count, process))
    except postgres.NoPostgresError as error:
        console.print(str(error))


if __name__ == "__main__":
    main()
