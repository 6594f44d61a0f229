"""Pages of a live cluster: followed by informers, live in the browser, and by tokens as RBAC allows."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from capcard_sched.cli.inputs import BadInputError
from capcard_sched.cli.ledger_server import LedgerServer
from tests.clock import until
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import gang, queue
from tests.e2e.asking import A10, CARD, set_the_scene
from tests.web.browser import PATIENCE, chromium, window
from tests.web.served import Reply, Served

#: Seconds of a step on a loaded machine.
_SECONDS = 90


@asynccontextmanager
async def serving_live(config: Path, *arguments: str) -> AsyncIterator[Served]:
    """A server of the cluster of a kubeconfig, with all lists complete."""
    program = str(Path(sys.executable).with_name("capcard-sched"))
    command = [program, "web", "--listen-address", "127.0.0.1:0", "--kubeconfig", str(config), *arguments]
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
        yield Served(url)
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
        assert (await get(served, "/?at=1h")).status == 400

        loaded = threading.Event()
        browsing = asyncio.create_task(asyncio.to_thread(_watch, served, loaded))
        await until(loaded.is_set, "the page is loaded", within=_SECONDS)
        await cluster.create_all(
            [queue("late-queue", cards={A10: 2}), *gang("late", 2, queue="q", cards=A10, requests=CARD)]
        )
        await browsing
        await until(partial(_is_used, served), "held cards are in the ledger", within=_SECONDS)


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
