"""A budget of card-hours on an API server: `web --ledger` writes the status, and the scheduler applies it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.clock import until as eventually
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, gang, gpu_node, plain, queue
from tests.controlplane.processes import end, spawn
from tests.e2e.daemons import Daemon
from tests.e2e.expectations import until, until_bound
from tests.manifests.documents import MANIFESTS, read

H200 = "NVIDIA-H200"
CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: budget}, {name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: capacity-card}]
"""
#: Seconds: statuses follow the records, which are at most a minute old.
PATIENCE = 150.0


def card_budget(hours: str) -> Manifest:
    spec = {"queue": "q", "period": "month", "cards": {H200: hours}, "whenSpent": "stop"}
    return plain("CardBudget", "month", "capcard-sched.io/v1alpha1", spec=spec)


def rights() -> list[Manifest]:
    """Those of a reader, and of the component `budgets`."""
    roles = [each for path in ("readers/clusterrole.yaml", "budgets/rbac.yaml") for each in read(MANIFESTS / path)]
    return [rule for role in roles if role["kind"] == "ClusterRole" for rule in role["rules"]]


@pytest.mark.timeout(600)
async def test_a_spent_budget_stops_jobs_until_it_is_raised(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    # One card-hour is used in a second.
    await cluster.create_all([gpu_node("n", H200, 4000, cpu=64), queue("q", cards={H200: 4000}), card_budget("1h")])
    await cluster.allow("somebody", rights(), everywhere=True)
    web = [
        *(str(Path(sys.executable).with_name("capcard-sched")), "web", "--listen-address=127.0.0.1:0"),
        f"--kubeconfig={control_plane.kubeconfig_for('somebody')}",
        f"--ledger={tmp_path / 'ledger.db'}",
    ]
    log = tmp_path / "web.log"
    process = await asyncio.to_thread(spawn, web, log=log, environment=dict(os.environ))
    try:
        async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=CONF) as daemon:
            await daemon.logged("caches synced", within=60)
            await eventually(lambda: "in sync with " in log.read_text(), "the lists of web", within=PATIENCE)
            first = gang("first", 1, queue="q", cards=H200, requests={"cpu": "1", "nvidia.com/gpu": "3990"})
            await cluster.create_all(first)
            await until_bound(cluster, {"first-0"})

            spent = {"spent": True, "observedGeneration": 1, "remaining": {H200: "0.00h"}}
            found = await until(cluster, "cardbudgets", "month", within=PATIENCE, status=spent)
            assert found["status"]["conditions"][0]["status"] == "True"
            assert found["metadata"].get("finalizers") is None
            assert found["metadata"].get("annotations") is None

            owner = {"kind": "Queue", "uid": (await until(cluster, "queues", "q"))["metadata"]["uid"]}
            # The scheduler has the status.
            await until(
                cluster, "events", namespace="default", within=PATIENCE, reason="CardBudgetSpent", involvedObject=owner
            )
            second = gang("second", 1, queue="q", cards=H200, requests={"cpu": "1", "nvidia.com/gpu": "1"})
            await cluster.create_all(second)
            refusal = (
                "CardBudget <month> of Queue <q> is spent: <NVIDIA-H200> used <*h of 1h> in the period that ends at *"
            )
            await until(cluster, "events", reason="CardBudgetSpent", message=refusal, involvedObject={"name": "second"})
            assert "second-0" not in await cluster.bound()

            await cluster.patch("cardbudgets", "month", {"spec": {"cards": {H200: "999999h"}}}, strategy="merge")
            within = {"spent": False, "observedGeneration": 2}
            await until(cluster, "cardbudgets", "month", within=PATIENCE, status=within)
            await until_bound(cluster, {"second-0"})
    except BaseException as error:
        error.add_note(f"--- web ---\n{log.read_text()[-4000:]}")
        raise
    finally:
        await asyncio.to_thread(end, process, gently=10)
    assert process.returncode == 0, log.read_text()
    assert "warning" not in log.read_text()
