"""Pages of a live cluster: followed by informers, live in the browser, and by tokens as RBAC allows."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from capcard_sched.cli.exit_codes import BadInputError
from capcard_sched.cli.ledger_server import LedgerServer
from capcard_sched.framework.conf.scheduler_conf import default_text
from tests.clock import until
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import gang, queue
from tests.e2e.asking import A10, CARD, set_the_scene
from tests.web.browser import PATIENCE, chromium, window
from tests.web.served import Reply, Served

#: Seconds of a step on a loaded machine.
_SECONDS = 90
_PROGRAM = str(Path(sys.executable).with_name("capcard-sched"))


@asynccontextmanager
async def serving_live(config: Path, *arguments: str) -> AsyncIterator[Served]:
    """A server of the cluster of a kubeconfig, with all lists complete."""
    command = [_PROGRAM, "web", "--listen-address", "127.0.0.1:0", "--kubeconfig", str(config), *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=dict(os.environ))
    assert process.stdout is not None
    try:
        url, is_synced = "", False
        async with asyncio.timeout(_SECONDS):
            while not (url and is_synced):
                line = (await process.stdout.readline()).decode()
                assert line, "the server ended"
                is_synced |= line.startswith("in sync with ")
                if line.startswith("serving on "):
                    url = line.removeprefix("serving on ").strip().rstrip("/")
        yield Served(url, process.pid)
    finally:
        process.terminate()
        assert await process.wait() == 0


@pytest.fixture
async def config(cluster: Cluster, control_plane: ControlPlane) -> Path:
    await set_the_scene(cluster)
    return control_plane.kubeconfig_for("scheduler-b", namespace=cluster.namespace, name="web")


async def get(served: Served, path: str, token: str = "") -> Reply:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return await asyncio.to_thread(served.get, path, **headers)


async def test_the_pages_of_a_live_cluster_follow_it(cluster: Cluster, config: Path, tmp_path: Path) -> None:
    async with serving_live(config, "--ledger", str(tmp_path / "live.db")) as served:
        overview = (await get(served, "/api/v1/overview")).json
        assert overview["moment"]["live"] is True
        assert overview["moment"]["stale"] == 0
        rows = {row["queue"]: {cell["card"]: cell for cell in row["cells"]} for row in overview["queues"]}
        assert (rows["q"][A10]["used"], rows["q"][A10]["quota"]) == (4, 4)
        waits = (await get(served, f"/api/v1/jobs/{cluster.namespace}/waits")).json
        assert waits["diagnosis"]["stage"] in {"OverQuota", "NotAdmitted"}
        assert waits["diagnosis"]["fixes"]["fixes"]
        what_if = (await get(served, "/api/v1/what-if?quota=q/A10=6")).json
        assert what_if["error"] == ""
        assert any("waits" in start["job"] for start in what_if["report"]["starts"])

        loaded = threading.Event()
        browsing = asyncio.create_task(asyncio.to_thread(_watch, served, loaded))
        await until(loaded.is_set, "the page is loaded", within=_SECONDS)
        await cluster.create_all(
            [queue("late-queue", cards={A10: 2}), *gang("late", 2, queue="q", cards=A10, requests=CARD)]
        )
        await browsing
        await until(partial(_is_used, served), "held cards are in the ledger", within=_SECONDS)
        await _check_past(served)


async def _check_past(served: Served) -> None:
    """The pages of the last record equal those of the cluster, as far as a ledger has them."""
    present = (await get(served, "/api/v1/overview")).json
    at = present["moment"]["now"]
    past = (await get(served, f"/api/v1/overview?at={at}")).json
    used = [
        {
            (row["queue"], cell["card"]): (cell["used"], cell["quota"])
            for row in document["queues"]
            for cell in row["cells"]
        }
        for document in (present, past)
    ]
    assert used[1]["q", A10] == used[0]["q", A10] == (4, 4)
    assert [(one["card"], one["total"]) for one in past["cards"]] == [
        (one["card"], one["total"]) for one in present["cards"]
    ]
    jobs = {row["name"]: row["stage"] for row in (await get(served, f"/api/v1/jobs?at={at}")).json["items"]}
    assert jobs["runs"] == ""
    assert jobs["waits"]
    assert 'type="range"' in (await get(served, f"/?at={at}")).body
    assert 'href="/?at=' in (await get(served, "/")).body
    for address, status, text in (
        ("/api/v1/nodes", 400, "the ledger has no nodes"),
        ("/api/v1/what-if", 400, "the ledger has no objects to try changes on"),
        ("/api/v1/ledger/usage", 400, "/usage takes a moment"),
    ):
        reply = await get(served, f"{address}?at={at}")
        assert (reply.status, text in reply.json["message"]) == (status, True)
    assert (await get(served, "/?at=2000-01-01T00:00:00Z")).status == 400
    assert (await get(served, f"/usage.csv?at={at}")).status == 200


class _Prometheus(BaseHTTPRequestHandler):
    """Of the four cards of `runs`, two have samples: one of `runs-0` in use, one of `runs-1` without use."""

    def do_GET(self) -> None:
        query, namespace = parse_qs(urlsplit(self.path).query)["query"][0], self.server.namespace  # type: ignore[attr-defined]
        pods = ["runs-1"] if "== 0" in query else ["runs-0", "runs-1"]
        number = "1" if query.startswith("count") else "100000"  # more intervals than the pods exist
        series = [{"metric": {"namespace": namespace, "pod": pod}, "value": [0, number]} for pod in pods]
        content = json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


async def test_unused_cards_come_from_the_prometheus_of_the_scheduler_conf(
    cluster: Cluster, config: Path, tmp_path: Path
) -> None:
    conf, database = tmp_path / "conf.yaml", str(tmp_path / "live.db")

    async def cards(address: str) -> tuple[dict[str, Any], str]:
        conf.write_text(f"{default_text()}\nmetrics: {{type: prometheus, address: '{address}'}}\n")
        command = [_PROGRAM, "card", "list", "-o", "json", "--kubeconfig", str(config), "--scheduler-conf", str(conf)]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        out, err = await process.communicate()
        return {item["node"]: item["unused"] for item in json.loads(out)["items"]}, err.decode()

    unused, note = await cards("http://127.0.0.1:1")
    assert unused == {"n1": None, "n2": None}
    assert note.startswith("note: unused cards are not known: http://127.0.0.1:1: ClientConnectorError:")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Prometheus) as server:
        server.namespace = cluster.namespace  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert await cards(f"http://127.0.0.1:{server.server_port}") == ({"n1": 1, "n2": None}, "")
        async with serving_live(config, "--ledger", database, "--scheduler-conf", str(conf)) as served:
            found: list[Any] = []

            def is_recorded(*, used: bool) -> bool:
                reply = served.get("/api/v1/ledger/usage?since=1h")
                found[:] = [reply.json] if reply.status == 200 else []
                return any(row["used"] or not used for one in found for row in one["rows"])

            begun = partial(asyncio.to_thread, is_recorded, used=False)
            await until(begun, "the jobs are in the ledger", within=_SECONDS)
            # Without a change of its rows the ledger is written twice a minute.
            await cluster.create(queue("more", cards={A10: 1}))
            await until(partial(begun, used=True), "held cards are in the ledger", within=_SECONDS)
        server.shutdown()
    (row,) = [row for row in found[0]["rows"] if row["group"] == ["q", A10]]
    assert 0 < row["unused"] < row["measured"] < row["used"]
    (note,) = found[0]["notes"]
    assert note.endswith("card-hours are not measured: UNUSED leaves them out")


def _is_used(served: Served) -> bool:
    """Whether the ledger has card-hours of the queue, up to the present."""
    found = served.get("/api/v1/usage?by=queue,card&since=1h")
    return found.status == 200 and any(row["group"] == ["q", A10] for row in found.json["groups"])


def _watch(served: Served, loaded: threading.Event) -> None:
    """Wait in a browser until a new job and a new queue are on the page, without loading it again."""
    try:
        with chromium() as browser, window(browser, served.url) as watched:
            watched.open("/")
            watched.page.get_by_text("● live").wait_for()
            watched.page.evaluate("window.isSame = true")
            loaded.set()
            watched.page.get_by_role("link", name="late-queue").first.wait_for(timeout=PATIENCE)
            watched.page.get_by_role("link", name="late", exact=True).first.wait_for(timeout=PATIENCE)
            assert watched.page.evaluate("window.isSame")
            assert watched.faults == []
    finally:
        loaded.set()


async def test_a_token_shows_the_jobs_of_namespaces_whose_pods_its_user_may_get(
    cluster: Cluster, control_plane: ControlPlane, config: Path, tmp_path: Path
) -> None:
    await cluster.allow("somebody", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])
    database = str(tmp_path / "live.db")
    async with serving_live(config, "--authentication", "token", "--ledger", database) as served:
        for path in ("/", "/api/v1/jobs", "/api/v1/events"):
            reply = await get(served, path)
            assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await get(served, "/", "invented")).status == 401
        seen = {}
        for user in ("admin", "somebody", "nobody"):
            token = control_plane.token(user)
            jobs = (await get(served, "/api/v1/jobs", token)).json
            seen[user] = {row["name"] for row in jobs["items"] if row["namespace"] == cluster.namespace}
            rows = (await get(served, "/api/v1/queues", token)).json["queues"]
            (used,) = [
                cell["used"] for row in rows if row["queue"] == "q" for cell in row["cells"] if cell["card"] == A10
            ]
            assert used == 4  # sums of queues are visible to all
            nodes = await get(served, "/api/v1/nodes", token)
            assert (f"{cluster.namespace}/runs-0" in nodes.body) == (user != "nobody")
            job = await get(served, f"/jobs/{cluster.namespace}/waits", token)
            assert job.status == (404 if user == "nobody" else 200)
        assert seen == {"admin": {"runs", "waits", "fits", "early"}, "somebody": seen["admin"], "nobody": set()}
        denied = (await get(served, "/api/v1/what-if?drain=n1", control_plane.token("somebody"))).json
        assert denied["error"].startswith("access denied")

        def history(user: str) -> set[str]:
            """The jobs that `history --server --token-file` lists."""
            file = tmp_path / f"token-{user}"
            file.write_text(f"{control_plane.token(user)}\n")
            lives, _ = LedgerServer(served.url, file).history("1d", "", cluster.namespace)
            return {life.job.name for life in lives}

        def is_recorded() -> bool:
            return Path(database).exists() and {"runs", "waits"} <= history("admin")

        await until(lambda: asyncio.to_thread(is_recorded), "jobs are in the ledger", within=_SECONDS)
        assert await asyncio.to_thread(history, "nobody") == set()
        assert {"runs", "waits"} <= await asyncio.to_thread(history, "somebody")
        with pytest.raises(BadInputError, match="--token-file FILE gives a token"):
            await asyncio.to_thread(LedgerServer(served.url).usage, "1d", "queue")
