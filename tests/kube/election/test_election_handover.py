"""Bindings of a former leader that are delayed in the network do not land after its successor has begun."""

from __future__ import annotations

import asyncio
import json
import math

import pytest

from capcard_sched.kube.election import Election
from capcard_sched.kube.lease import LeaseObservation
from tests.clock import until
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import node, pod
from tests.controlplane.proxy import Proxy
from tests.kube.election.electors import LEASE, QUICK, Elector, leader
from tests.kube.write.harness import Harness, bind_of

pytestmark = pytest.mark.campaign

_PODS = 32
_LEASES = f"/leases/{LEASE}$"


class Writer(Harness):
    """An ApiWriter under the Lease of an election."""

    def __init__(self, cluster: Cluster, proxy: Proxy, election: Election) -> None:
        super().__init__(
            cluster,
            proxy,
            binders=_PODS,
            timeout=30.0,
            time_left=election.time_left,
            server_seconds=election.server_seconds,
        )


async def test_bindings_delayed_across_a_leadership_change_do_not_land_after_it(cluster: Cluster, proxy: Proxy) -> None:
    made = await cluster.create_all([pod(f"p{index}") for index in range(_PODS)])
    await cluster.create(node("n1", cpu=64))
    direct = cluster.control_plane.kubeconfig_for("scheduler-b")
    async with (
        leader(proxy.kubeconfig_for("scheduler-a"), cluster.namespace, "former") as former,
        Elector(direct, cluster.namespace, "next") as successor,
    ):
        await asyncio.sleep(1.0)
        async with Writer(cluster, proxy, former.election) as writer:
            slow = proxy.delay("POST", "/binding$", 7.0, times=None)
            proxy.delay("PUT", _LEASES, 60.0, times=None)
            writer.effects.submit([bind_of(each) for each in made])
            await slow.struck(_PODS)
            await until(lambda: successor.leads, "the second leader")
            assert not former.leads
            wait = successor.election.handover_wait()
            assert 0.0 < wait <= QUICK["lease_duration"] - QUICK["renew_deadline"]
            await asyncio.sleep(wait)
            before = len(await cluster.bound())
            await asyncio.sleep(8.0)
            assert len(await cluster.bound()) - before == 0, "landed after the handover"
            assert before == 0, "each was delayed beyond its deadline"


async def test_a_binding_in_time_is_not_cut_off_and_carries_its_server_side_timeout(
    cluster: Cluster, proxy: Proxy
) -> None:
    (made,) = await cluster.create_all([pod("p")])
    await cluster.create(node("n1"))
    async with leader(proxy.kubeconfig_for("scheduler-a"), cluster.namespace, "one") as one:
        proxy.delay("POST", "/binding$", 1.0)
        async with Writer(cluster, proxy, one.election) as writer:
            writer.effects.submit([bind_of(made)])
            await writer.quiet()
    assert await cluster.bound() == {"p": "n1"}
    log = (cluster.control_plane.folder / "audit.log").read_text("utf-8")
    uris = [json.loads(line)["requestURI"] for line in log.splitlines() if "/binding" in line]
    assert f"/api/v1/namespaces/{cluster.namespace}/pods/p/binding?timeout=1s" in uris


def test_time_left_ends_before_the_lease_can_change_hands() -> None:
    it = LeaseObservation("a", lease_duration=15.0, renew_deadline=10.0)
    assert it.time_left(0.0) == 0.0, "a standby"
    it.leading, it.renewed_at = True, 100.0
    assert it.time_left(100.0) == pytest.approx(14.5)
    assert it.time_left(109.0) == pytest.approx(5.5)
    assert it.time_left(110.0) == 0.0, "no write leaves after the renew deadline"
    assert it.server_seconds == 3.0
    assert math.isfinite(it.time_left(1e9))
