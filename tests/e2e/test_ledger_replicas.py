"""Two replicas of `web` with one ledger: the one that holds the Lease records, the other one continues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.ledger_replica import LedgerReplica
from capcard_sched.cli.sources.cores import build_core, options_of
from capcard_sched.cli.sources.source import Source
from capcard_sched.cli.web_live import FollowedCluster
from capcard_sched.kube.connection import load_connection
from capcard_sched.ledger import schema
from capcard_sched.ledger.database import LedgerError
from capcard_sched.ledger.usage_ledger import open_ledger
from tests.clock import until
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import gang, gpu_node, queue
from tests.controlplane.proxy import Proxy
from tests.e2e.asking import A10, CARD
from tests.kube.election.electors import QUICK
from tests.manifests.documents import MANIFESTS, read

LEASE = "capcard-sched-web"


@asynccontextmanager
async def replica(kubeconfig: Path, database: str, lease: str) -> AsyncIterator[asyncio.Task[None]]:
    """The part of `web` that follows the cluster and records; yields the task that records."""
    connection = load_connection(str(kubeconfig))
    core = build_core(None, None, options_of(Source(scheduler_name=("capcard-sched",))))
    held = FollowedCluster(core, connection, "default")
    following = asyncio.create_task(held.follow(await held.find_kinds()))
    recording = asyncio.create_task(LedgerReplica(database, held, lease, **QUICK).run())
    try:
        yield recording
    finally:
        for task in (recording, following):
            task.cancel()
            await asyncio.wait({task})


def rows(database: str, table: Any) -> dict[str, Any]:
    """Rows of a table by their first column, none before the database exists."""
    try:
        with open_ledger(database, create=False) as ledger:
            return {row[0]: row for row in ledger.database.read(table.select())}
    except LedgerError:
        return {}


async def charged(database: str, *pods: str, ended: tuple[str, ...] = ()) -> dict[str, Any]:
    """Charges by pod, once these pods hold cards or no longer do."""

    def find() -> dict[str, Any]:
        found = {row.pod: row for row in rows(database, schema.CHARGE).values()}
        is_there = {*pods} <= {*found} and all(found[pod].ended for pod in ended)
        return found if is_there else {}

    return await until(lambda: asyncio.to_thread(find), f"charges of {pods}", within=120)


@pytest.mark.timeout(300)
async def test_another_replica_records_on_when_the_holder_of_the_lease_is_gone(
    cluster: Cluster, control_plane: ControlPlane, proxy: Proxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.create_all([gpu_node("n1", A10, 8), queue("q", cards={A10: 8})])
    await cluster.create_all(gang("runs", 4, queue="q", cards=A10, requests=CARD))
    rights = [*read(MANIFESTS / "readers" / "clusterrole.yaml"), *read(MANIFESTS / "budgets" / "rbac.yaml")]
    await cluster.allow("somebody", [rule for each in rights for rule in each.get("rules", ())], everywhere=True)
    (role,) = [each for each in read(MANIFESTS / "web-lease" / "rbac.yaml") if each["kind"] == "Role"]
    await cluster.allow("somebody", role["rules"])
    database, lease = str(tmp_path / "ledger.db"), f"{cluster.namespace}/{LEASE}"
    output = ""

    def printed(text: str) -> Callable[[], bool]:
        def find() -> bool:
            nonlocal output
            output += "".join(capsys.readouterr())
            return text in output

        return find

    await cluster.bind("runs-0", "n1")
    async with replica(proxy.kubeconfig_for("somebody"), database, lease) as first:
        await until(printed(f"this replica records: it holds Lease {lease}, term 0"), "the first leader", within=120)
        await charged(database, "runs-0")
        async with replica(control_plane.kubeconfig_for("somebody"), database, lease):
            await until(printed("ledger: standing by: "), "the standby", within=120)
            await cluster.bind("runs-1", "n1")
            await charged(database, "runs-0", "runs-1")
            assert len(await asyncio.to_thread(rows, database, schema.SOURCE)) == 1
            # Neither the release of the Lease nor a renewal arrives: as for a killed process.
            faults = [proxy.reset(verb, f"/leases/{LEASE}", times=None) for verb in ("GET", "PUT")]
            first.cancel()
            await asyncio.wait({first})
            assert any(fault.strikes for fault in faults)
            assert (await cluster.get("leases", LEASE))["spec"]["holderIdentity"]
            killed = time.time()
            await cluster.bind("runs-2", "n1")
            await until(printed(f"this replica records: it holds Lease {lease}, term 1"), "the next leader", within=120)
            await charged(database, "runs-2")
            await cluster.delete("pods", "runs-0")
            await cluster.bind("runs-3", "n1")
            found = await charged(database, "runs-3", ended=("runs-0",))
    assert {pod: bool(row.ended) for pod, row in found.items()} == {
        **dict.fromkeys(("runs-1", "runs-2", "runs-3"), False),
        "runs-0": True,
    }
    assert not any(row.gap for row in found.values())
    assert found["runs-0"].end_reason == "Deleted"
    # The API server writes whole seconds.
    assert killed - 2 < found["runs-2"].began / 1000
    former, latter = sorted(
        (await asyncio.to_thread(rows, database, schema.SOURCE)).values(), key=lambda row: row.began
    )
    assert former.recorded_until < found["runs-2"].began + 2000
    assert former.recorded_until < latter.began
    assert {row.generation for row in (await asyncio.to_thread(rows, database, schema.RECORDER)).values()} == {2}
    assert "another process" not in output
