"""Elections while the API server goes away, and through random faults: at most one replica leads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from capcard_sched.kube.election import ElectionEvent
from tests.clock import until
from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.proxy import Proxy
from tests.kube.election.electors import LEASE, Elector, Watchman

pytestmark = pytest.mark.campaign


async def test_a_leader_outlives_a_restart_of_the_api_server_that_is_shorter_than_its_deadline(
    cluster: Cluster, control_plane: ControlPlane, kubeconfig: Path
) -> None:
    patient = {"lease_duration": 40.0, "renew_deadline": 30.0, "retry_period": 1.0}
    async with (
        Elector(kubeconfig, cluster.namespace, "a", **patient) as one,
        Elector(kubeconfig, cluster.namespace, "b", **patient) as two,
        Watchman([one, two]) as watchman,
    ):
        await until(lambda: one.leads or two.leads, "a leader")
        first, other = (one, two) if one.leads else (two, one)
        await asyncio.to_thread(control_plane.restart_apiserver)
        restarted = time.monotonic()
        await until(lambda: (first.election.renewal_age() or 0.0) < time.monotonic() - restarted, "a renewal")
        assert first.leads
        assert (first.changes, other.changes) == ([True], [])
        await first.election.release()
        await until(lambda: other.leads, "the next leader")
        assert not watchman.together


async def test_without_an_api_server_no_replica_leads_and_afterwards_one_does(
    cluster: Cluster, control_plane: ControlPlane, kubeconfig: Path
) -> None:
    async with (
        Elector(kubeconfig, cluster.namespace, "a") as one,
        Elector(kubeconfig, cluster.namespace, "b") as two,
        Watchman([one, two]) as watchman,
    ):
        await until(lambda: one.leads or two.leads, "a leader")
        first = one if one.leads else two
        killed = time.monotonic()
        await asyncio.to_thread(control_plane.kill_apiserver)
        await until(lambda: not first.leads, "its end")
        assert time.monotonic() - killed < 3.5
        await until(lambda: first.changes == [True, False], "the notification", within=0.3)
        assert len(first.reported(ElectionEvent.UNREACHABLE)) == 1
        await asyncio.to_thread(control_plane.start_apiserver)
        await until(lambda: one.leads or two.leads, "a new leader")
        assert not watchman.together


@pytest.mark.parametrize("seed", range(3))
async def test_at_most_one_replica_leads_through_random_faults_and_in_the_end_one_does(
    seed: int, cluster: Cluster, control_plane: ControlPlane, proxy: Proxy
) -> None:
    chance = random.Random(seed)
    settings = {"lease_duration": 2.0, "renew_deadline": 1.4, "retry_period": 0.25}
    kubeconfigs = [control_plane.kubeconfig_for("scheduler-a"), proxy.kubeconfig_for("scheduler-b")]
    server = control_plane.pid("kube-apiserver")
    terms: list[tuple[str, int]] = []
    names = iter(range(1000))

    def jumping_clock() -> datetime:
        return datetime.now(UTC) + timedelta(days=chance.choice([0, -4000, 4000]))

    def replica() -> Elector:
        elector = Elector(
            chance.choice(kubeconfigs), cluster.namespace, f"r{next(names)}", calendar=jumping_clock, **settings
        )

        def changed(leads: bool) -> None:
            elector.changes.append(leads)
            if leads:
                terms.append((elector.election.identity, elector.election.transitions))

        elector.election._on_change = changed
        return elector

    replicas = [await replica().__aenter__() for _ in range(3)]
    async with Watchman(replicas) as watchman:
        for _ in range(12):
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            what = chance.choice(["release", "kill", "hang", "edit", "lose", "slow", "delete"])
            whose = chance.randrange(3)
            if what in {"release", "kill"}:
                if what == "release":
                    await replicas[whose].election.release()
                await replicas[whose].__aexit__(None, None, None)
                replicas[whose] = await replica().__aenter__()
                watchman.electors[whose] = replicas[whose]
            elif what == "hang":
                os.kill(server, signal.SIGSTOP)
                try:
                    await asyncio.sleep(chance.uniform(0.1, 3.0))
                finally:
                    os.kill(server, signal.SIGCONT)
            elif what == "edit":
                await cluster.patch("leases", LEASE, {"metadata": {"annotations": {"x": str(chance.random())}}})
            elif what == "lose":
                proxy.lose_answer("PUT", LEASE, times=chance.randint(1, 6))
            elif what == "slow":
                proxy.delay("PUT", LEASE, chance.uniform(0.1, 3.0), after=chance.random() < 0.5, times=3)
            elif found := await cluster.find("leases", LEASE):
                # A replica that missed a renewal of a Lease that is gone waits for too short a time: none here has.
                seen = [each.election._observation.record for each in replicas]
                if all(record and record.renew_time == found["spec"]["renewTime"] for record in seen):
                    body = {"preconditions": {"resourceVersion": found["metadata"]["resourceVersion"]}}
                    with contextlib.suppress(RequestError):  # renewed at this moment
                        await cluster.request("DELETE", await cluster.path("leases", LEASE), body=body)
        proxy.mend()
        await until(lambda: any(each.leads for each in replicas), "a leader in the end")
        for each in replicas:
            if each.leads:
                await each.kill()
        await until(lambda: any(each.leads for each in replicas), "one after it")
    for each in replicas:
        await each.__aexit__(None, None, None)
    assert not watchman.together
    assert watchman.looks > 500
    assert len(terms) == len(set(terms)) > 1
