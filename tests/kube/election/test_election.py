"""Elections over a real API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.kube.election import ElectionEvent
from tests.clock import seconds_until, until
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import plain
from tests.controlplane.proxy import Proxy
from tests.kube.election.electors import LEASE, Elector, Watchman, leader, standby
from tests.kube.read.mirror import Ears


def rule(*verbs: str, **more: Any) -> dict[str, Any]:
    """A rule of RBAC on Leases."""
    return {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": [*verbs], **more}


RULES = [rule("create"), rule("get", "update", resourceNames=[LEASE])]
WATCH_TOO = rule("watch", resourceNames=[LEASE])


@pytest.fixture
async def one(cluster: Cluster, proxy: Proxy) -> AsyncIterator[Elector]:
    """A leader behind the proxy."""
    async with leader(proxy.kubeconfig_for("scheduler-a"), cluster.namespace) as elector:
        yield elector


async def spec(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = (await cluster.get("leases", LEASE))["spec"]
    return found


async def make_lease(cluster: Cluster, **spec: Any) -> None:
    await cluster.create(plain("Lease", LEASE, "coordination.k8s.io/v1", spec=spec))


async def recovered(elector: Elector, times: int) -> None:
    await until(lambda: len(elector.reported(ElectionEvent.RECOVERED)) == times, "better times")


# --- one replica ------------------------------------------------------------------------------------------------------


@pytest.mark.compat
async def test_the_first_replica_creates_the_lease_and_leads(cluster: Cluster, kubeconfig: Path) -> None:
    async with Elector(kubeconfig, cluster.namespace, "a") as one:
        assert await seconds_until(lambda: one.leads, "a leader") < 2.0
        assert (one.changes, one.election.holder, one.election.transitions) == ([True], "a", 0)
        output = await spec(cluster)
        assert (output["holderIdentity"], output["leaseDurationSeconds"], output["leaseTransitions"]) == ("a", 4, 0)
        acquired = datetime.fromisoformat(output["acquireTime"])
        assert abs((datetime.now(UTC) - acquired).total_seconds()) < 30


@pytest.mark.campaign
async def test_a_leader_renews_every_retry_period_with_one_request_past_the_client_side_limit(
    cluster: Cluster, kubeconfig: Path
) -> None:
    seen = Ears()
    async with leader(kubeconfig, cluster.namespace, observer=seen, qps=0.01) as one:
        before = await spec(cluster)
        seen.requests.clear()
        await asyncio.sleep(3.2)
        assert one.changes == [True]
        assert 4 <= len(seen.requests) <= 7
        assert {verb for verb, *_ in seen.requests} == {"update"}
        age = one.election.renewal_age()
        assert age is not None
        assert 0.0 <= age < 2.0
    after = await spec(cluster)
    assert after["renewTime"] > before["renewTime"]
    assert after["acquireTime"] == before["acquireTime"]
    assert after["leaseTransitions"] == before["leaseTransitions"]


@pytest.mark.campaign
async def test_fields_of_other_writers_on_the_lease_stay_and_a_conflict_costs_no_term(
    cluster: Cluster, kubeconfig: Path, one: Elector
) -> None:
    for number in range(12):  # each makes the version the leader holds outdated
        await cluster.patch("leases", LEASE, {"metadata": {"annotations": {"somebody": str(number)}}})
        await asyncio.sleep(0.3)
    assert one.changes == [True]
    assert one.leads
    await asyncio.sleep(1.0)
    found = await cluster.get("leases", LEASE)
    assert found["metadata"]["annotations"] == {"somebody": "11"}
    assert found["spec"]["leaseTransitions"] == 0


@pytest.mark.campaign
async def test_a_renewal_whose_response_was_lost_costs_no_term(cluster: Cluster, proxy: Proxy, one: Elector) -> None:
    for count, harm in enumerate((proxy.lose_answer, proxy.reset), 1):
        fault = harm("PUT", LEASE, times=2)  # the HTTP client repeats a PUT on a connection that broke
        await fault.struck(2)
        await recovered(one, count)
    fault = proxy.answer("PUT", LEASE, 504, done=True)
    await fault.struck()
    await recovered(one, 3)
    assert one.changes == [True]
    assert one.leads
    assert len(one.reported(ElectionEvent.UNREACHABLE)) == 2
    assert (await spec(cluster))["leaseTransitions"] == 0


async def test_a_claim_whose_response_was_lost_is_claimed_in_a_term_of_its_own(cluster: Cluster, proxy: Proxy) -> None:
    proxy.lose_answer("POST", "leases$")
    async with leader(proxy.kubeconfig_for("scheduler-a"), cluster.namespace) as one:
        assert one.election.transitions == 1


async def test_a_leader_whose_renewals_hang_stops_at_the_deadline(proxy: Proxy, one: Elector) -> None:
    await asyncio.sleep(1.0)
    fault = proxy.delay("PUT", LEASE, 60.0, times=None)
    await fault.struck()
    age = one.election.renewal_age()
    assert age is not None
    took = await seconds_until(lambda: not one.leads, "its end")
    assert took + age == pytest.approx(3.0, abs=0.3)
    await until(lambda: one.changes == [True, False], "the notification", within=0.3)
    assert "not renewed in time" in one.reported(ElectionEvent.LOST)[0]
    proxy.mend()
    await until(lambda: one.changes == [True, False, True], "a new term")
    assert one.election.transitions == 1


async def test_a_foreign_holder_ends_the_term_at_the_next_renewal(
    cluster: Cluster, kubeconfig: Path, one: Elector
) -> None:
    await cluster.patch("leases", LEASE, {"spec": {"holderIdentity": "somebody"}})
    await until(lambda: one.changes == [True, False], "its end", within=2.0)
    assert "now names somebody" in one.reported(ElectionEvent.LOST)[0]
    await until(lambda: one.leads, "the end of the other's lease")
    assert (await spec(cluster))["leaseTransitions"] == 1
    assert one.reported(ElectionEvent.HOLDER) == ["somebody"]


async def test_an_exception_of_on_change_ends_the_election(cluster: Cluster, kubeconfig: Path) -> None:
    one = Elector(kubeconfig, cluster.namespace, "a")

    def fail(leads: bool) -> None:
        raise LookupError(leads)

    one.election._on_change = fail
    async with one.client:
        with pytest.raises(LookupError):
            async with asyncio.timeout(10):
                await one.election.run()


# --- faults of the cluster --------------------------------------------------------------------------------------------


@pytest.mark.campaign
@pytest.mark.parametrize(("granted", "missing"), [([], "get"), (["get", "watch"], "create")])
async def test_a_missing_right_is_reported_once_and_may_be_granted_later(
    granted: list[str], missing: str, cluster: Cluster, control_plane: ControlPlane
) -> None:
    await cluster.allow("nobody", [rule(*granted, resourceNames=[LEASE])] if granted else [])
    async with Elector(control_plane.kubeconfig_for("nobody"), cluster.namespace, "a") as one:
        await asyncio.sleep(2.5)
        assert not one.changes
        (reported,) = [detail for detail in one.reported(ElectionEvent.FORBIDDEN) if "watch" not in detail]
        assert f"Lease {cluster.namespace}/{LEASE}" in reported
        assert f'cannot {missing} resource "leases"' in reported
        assert not one.reported(ElectionEvent.RECOVERED)
        await cluster.allow("nobody", RULES)
        await until(lambda: one.leads, "a leader")
        assert len(one.reported(ElectionEvent.RECOVERED)) == 1


@pytest.mark.campaign
async def test_a_missing_namespace_is_reported_and_awaited(cluster: Cluster, kubeconfig: Path) -> None:
    later = f"{cluster.namespace}-later"
    async with Elector(kubeconfig, later, "a") as one:
        await asyncio.sleep(1.5)
        (reported,) = one.reported(ElectionEvent.NO_NAMESPACE)
        assert f"namespace {later} does not exist" in reported
        await cluster.make_namespace(later)
        await until(lambda: one.leads, "a leader")


@pytest.mark.campaign
@pytest.mark.parametrize(
    "found, output, least",
    [
        ({}, "holderIdentity is missing", 0.0),
        ({"holderIdentity": "gone"}, "leaseDurationSeconds is missing: treated as 4", 4.0),
        ({"holderIdentity": "gone", "leaseDurationSeconds": 1, "leaseTransitions": 2**31 - 1}, "restart from 0", 1.0),
    ],
)
async def test_a_malformed_lease_is_reported_and_repaired(
    found: dict[str, Any], output: str, least: float, cluster: Cluster, kubeconfig: Path
) -> None:
    await make_lease(cluster, **found)
    async with Elector(kubeconfig, cluster.namespace, "a") as one:
        took = await seconds_until(lambda: one.leads, "a leader")
        assert least - 0.05 <= took < least + 2.0
        assert len(one.reported(ElectionEvent.MALFORMED)) == 1
        assert output in one.reported(ElectionEvent.MALFORMED)[0]
        now = await spec(cluster)
        assert (now["holderIdentity"], now["leaseDurationSeconds"]) == ("a", 4)


async def test_a_response_that_is_no_lease_is_reported_and_the_request_is_repeated(
    cluster: Cluster, proxy: Proxy
) -> None:
    proxy.answer("GET", LEASE, 200, times=2)  # a Status, as some proxies response
    async with leader(proxy.kubeconfig_for("scheduler-a"), cluster.namespace) as one:
        assert len(one.reported(ElectionEvent.MALFORMED)) == 1
        assert "the response is not a Lease" in one.reported(ElectionEvent.MALFORMED)[0]


@pytest.mark.campaign
@pytest.mark.parametrize("turns", range(6))
async def test_a_standby_that_sees_a_change_while_it_is_stopped_stops(
    turns: int, cluster: Cluster, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, one: Elector
) -> None:
    nudges: list[asyncio.Event] = []

    async def watch(nudged: asyncio.Event) -> None:
        nudges.append(nudged)
        await asyncio.Event().wait()

    two = Elector(kubeconfig, cluster.namespace, "b", retry_period=0.9)
    monkeypatch.setattr(two.election, "_watch", watch)
    async with two:
        await until(lambda: two.election.holder == "a", "a standby")
        await asyncio.sleep(0.2)  # it waits to be nudged
        nudges[-1].set()
        for _ in range(turns):  # of the loop, between the change and the end
            await asyncio.sleep(0)
        assert await two.election.release()
        async with asyncio.timeout(5):
            assert two.task is not None
            await two.task


# --- two replicas -----------------------------------------------------------------------------------------------------


@pytest.mark.compat
async def test_a_release_hands_over_at_once_with_the_usual_durations(cluster: Cluster, kubeconfig: Path) -> None:
    usual: dict[str, Any] = {"lease_duration": 15.0, "renew_deadline": 10.0, "retry_period": 2.0}
    async with (
        leader(kubeconfig, cluster.namespace, **usual) as one,
        standby(kubeconfig, cluster.namespace, **usual) as two,
        Watchman([one, two]) as watchman,
    ):
        await asyncio.sleep(1.0)
        released = time.monotonic()
        assert await one.election.release()
        assert one.changes == [True, False]
        await until(lambda: two.leads, "the next leader")
        assert time.monotonic() - released < 1.0
        assert (one.election.handover_wait(), two.election.handover_wait()) == (0.0, 0.0), "no write is on its way"
        assert (await spec(cluster))["leaseTransitions"] == 1
        assert one.task is not None
        async with asyncio.timeout(1):
            await one.task  # `run` returns
        assert not watchman.together


@pytest.mark.campaign
@pytest.mark.parametrize(("rules", "forbidden", "within"), [([*RULES], ["watch"], 1.5), ([*RULES, WATCH_TOO], [], 1.0)])
async def test_a_release_is_found_by_a_watch_of_the_lease_or_by_polling(
    cluster: Cluster, control_plane: ControlPlane, one: Elector, rules: Any, forbidden: list[str], within: float
) -> None:
    await cluster.allow("nobody", rules)
    period = 2.0 if not forbidden else 0.5
    async with standby(control_plane.kubeconfig_for("nobody"), cluster.namespace, retry_period=period) as two:
        await asyncio.sleep(1.0)
        reports = two.reported(ElectionEvent.FORBIDDEN)
        assert len(reports) == len(forbidden)
        assert all(verb in text for verb, text in zip(forbidden, reports, strict=True))
        assert await one.election.release()
        assert await seconds_until(lambda: two.leads, "the next leader") < within


@pytest.mark.compat
async def test_a_killed_leader_is_replaced_after_its_lease(cluster: Cluster, kubeconfig: Path, one: Elector) -> None:
    async with standby(kubeconfig, cluster.namespace) as two, Watchman([one, two]) as watchman:
        await one.kill()
        assert one.changes == [True, False]
        assert 2.5 < await seconds_until(lambda: two.leads, "the next leader") < 6.5
        assert not watchman.together


@pytest.mark.campaign
async def test_a_lease_deleted_under_its_leader_is_made_again_by_it_in_the_same_term(
    cluster: Cluster, kubeconfig: Path, one: Elector
) -> None:
    async with standby(kubeconfig, cluster.namespace) as two, Watchman([one, two]) as watchman:
        for _ in range(4):
            await cluster.delete("leases", LEASE)
            await asyncio.sleep(1.1)
        assert (await spec(cluster))["holderIdentity"] == "a"
        assert (one.changes, two.changes) == ([True], [])
        assert one.election.transitions == (await spec(cluster))["leaseTransitions"] == 0
        assert not watchman.together


@pytest.mark.campaign
async def test_a_release_that_cannot_be_written_is_reported_and_ends_in_time(proxy: Proxy, one: Elector) -> None:
    proxy.reset("PUT", LEASE, times=None)
    started = time.monotonic()
    assert not await one.election.release(timeout=1.0)
    assert time.monotonic() - started < 1.5
    assert not one.leads
    assert any("not released in" in detail for detail in one.reported(ElectionEvent.LOST))


async def test_a_standby_releases_nothing(cluster: Cluster, kubeconfig: Path, one: Elector) -> None:
    async with standby(kubeconfig, cluster.namespace) as two:
        assert await two.election.release()
        assert (await spec(cluster))["holderIdentity"] == "a"
        assert one.leads
