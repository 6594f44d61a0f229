"""Two replicas: whatever becomes of the leader, the other finishes what it began, and nothing is done twice."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import gpu_node, plain, pod
from tests.controlplane.proxy import Exchange, Proxy
from tests.e2e.checker import prove
from tests.e2e.daemons import QUICK_ELECTION, Daemon
from tests.e2e.expectations import until, until_bound
from tests.e2e.faults.workloads import CARD, create_gangs, furnish, members, replica
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

_SIZE = 8
_FOR_EVER = 600.0
#: Long enough to create 128 pods and to hold bindings of all of them: a request ends with the time until renewal.
_SLOW_ELECTION = (
    "--leader-elect-lease-duration=15s",
    "--leader-elect-renew-deadline=12s",
    "--leader-elect-retry-period=500ms",
)


@asynccontextmanager
async def _pair(leader: Daemon, standby: Daemon) -> AsyncIterator[None]:
    """Both: the first leads, the second has a synced cache."""
    async with leader:
        await leader.logged("became leader", within=60)
        async with standby:
            await standby.logged("caches synced", within=60)
            yield


def _cut_off(proxy: Proxy) -> None:
    """Nothing gets through any more."""
    for verb in ("GET", "POST", "PUT", "PATCH", "DELETE", "WATCH"):
        proxy.reset(verb, "", times=None)
    proxy.reset_streams("")


def _written(exchanges: list[Exchange]) -> list[str]:
    return [f"{each.verb} {each.path}" for each in exchanges if each.verb != "GET"]


async def test_a_gang_whose_leader_is_killed_at_any_member_is_completed_by_the_standby(
    cluster: Cluster, history: History, proxy: Proxy, second_proxy: Proxy, tmp_path: Path
) -> None:
    """Two gangs per position: the leader is killed before its binding k is sent, and before the response arrives."""
    positions = range(1, _SIZE + 1)
    gangs = [f"{fate}-{position}" for fate in ("unsent", "committed") for position in positions]
    await furnish(cluster, cards=len(gangs) * _SIZE)
    leader = replica(proxy, "scheduler-a", tmp_path, *_SLOW_ELECTION, f"--bind-workers={len(gangs) * _SIZE}")
    standby = replica(second_proxy, "scheduler-b", tmp_path, *_SLOW_ELECTION)
    async with _pair(leader, standby):
        holds = []
        for name, position in zip(gangs, [*positions, *positions], strict=True):
            path = rf"/pods/{name}-\d+/binding$"
            holds.append(proxy.delay("POST", path, _FOR_EVER, nth=position, times=None))
            if name.startswith("committed"):  # matched first, because made last
                holds.append(proxy.delay("POST", path, _FOR_EVER, after=True, nth=position))
        await create_gangs(cluster, gangs, _SIZE)
        sent = 2 * sum(positions) - len(positions)
        await cluster.wait_until(
            lambda: sum(each.strikes for each in holds) == len(gangs) * _SIZE - sent + len(positions),
            "every gang to stand at its position",
            within=60,
        )
        assert len(await until_bound(cluster, sent)) == sent
        await leader.kill()
        await until_bound(cluster, len(gangs) * _SIZE, within=60)
        await prove(history, standby)


@pytest.mark.parametrize("room", ["free", "taken"])
async def test_half_a_gang_of_a_killed_leader_is_completed_before_newcomers_or_evicted(
    cluster: Cluster, history: History, proxy: Proxy, second_proxy: Proxy, tmp_path: Path, room: str
) -> None:
    """The leader is killed after 8 of 16 bindings; a gang of higher priority waits for 8 cards."""
    size = 2 * _SIZE
    await furnish(cluster, cards=size)
    await cluster.create(plain("PriorityClass", "high", "scheduling.k8s.io/v1", value=1000))
    leader = replica(proxy, "scheduler-a", tmp_path, *QUICK_ELECTION, f"--bind-workers={size}")
    flags = (*QUICK_ELECTION, "--half-gang-timeout=3s")
    async with _pair(leader, replica(second_proxy, "scheduler-b", tmp_path, *flags)):
        held = proxy.delay("POST", r"/pods/half-\d+/binding$", _FOR_EVER, nth=_SIZE + 1, times=None)
        await create_gangs(cluster, ["half"], size)
        await cluster.wait_until(lambda: held.strikes == _SIZE, "eight held bindings", within=60)
        bound = await until_bound(cluster, _SIZE)
        group, *pods = members("new", _SIZE)
        group["spec"]["priorityClassName"] = "high"
        await cluster.create_all([group, *pods])
        if room == "taken":
            for node in ("n0", "n1"):
                free = 16 - [*bound.values()].count(node)
                await cluster.create(pod(f"foreign-{node}", scheduler="foreign", requests={"cpu": free}))
                await cluster.bind(f"foreign-{node}", node)
        await leader.kill()
        if room == "free":
            await until_bound(cluster, size, r"half-\d+")
        else:
            await until(cluster, "events", reason="HalfGangEvicted")
            await until_bound(cluster, _SIZE, r"new-\d+")
            assert not [name for name in await cluster.bound() if name.startswith("half-")]
        await prove(history)


async def test_a_subgroup_of_a_killed_leader_is_completed_in_its_hyper_node_before_newcomers(
    cluster: Cluster, history: History, proxy: Proxy, second_proxy: Proxy, tmp_path: Path
) -> None:
    """The leader is killed after one of two bindings; a gang of higher priority waits for the only two free cards."""
    racks = {"s1": ["n0", "n1"], "s2": ["n2"]}
    domains = [
        plain("HyperNode", rack, "topology.volcano.sh/v1alpha1", spec={"tier": 1, "members": [*map(_node_of, names)]})
        for rack, names in racks.items()
    ]
    await furnish(cluster, cards=3, quota=4, per_node=1)
    await cluster.create_all([*domains, plain("PriorityClass", "high", "scheduling.k8s.io/v1", value=1000)])
    leader = replica(proxy, "scheduler-a", tmp_path, *QUICK_ELECTION, "--bind-workers=1")
    async with _pair(leader, replica(second_proxy, "scheduler-b", tmp_path, *QUICK_ELECTION)):
        held = proxy.delay("POST", r"/pods/half-\d+/binding$", _FOR_EVER, nth=2, times=None)
        group, *pods = members("half", 2)
        domain = {"mode": "hard", "highestTierAllowed": 1}
        policy = {"name": "w", "subGroupSize": 2, "minSubGroups": 1, "networkTopology": domain}
        group["spec"]["subGroupPolicy"] = [policy]
        await cluster.create_all([group, *pods])
        await cluster.wait_until(lambda: held.strikes == 1, "the second binding", within=60)
        ((first, _),) = (await until_bound(cluster, 1)).items()
        newcomer, *others = members("new", 2)
        newcomer["spec"]["priorityClassName"] = "high"
        await cluster.create_all([newcomer, *others])
        await leader.kill()
        bound = await until_bound(cluster, 2)
        assert sorted(bound) == ["half-0", "half-1"], f"{first} was bound by the former leader"
        assert set(bound.values()) == set(racks["s1"])
        await cluster.create(gpu_node("n3", CARD, 1))
        await until_bound(cluster, 4)
        await prove(history)


def _node_of(name: str) -> dict[str, object]:
    return {"type": "Node", "selector": {"exactMatch": {"name": name}}}


@pytest.mark.parametrize("by", ["SIGSTOP", "lost-network"])
async def test_a_leader_that_was_away_for_too_long_writes_nothing_when_it_comes_back(
    cluster: Cluster, history: History, proxy: Proxy, second_proxy: Proxy, tmp_path: Path, by: str
) -> None:
    await furnish(cluster, cards=24)
    # Two bindings at a time: when the first two stand still, the others are decided and not sent.
    one = replica(proxy, "scheduler-a", tmp_path, *QUICK_ELECTION, "--bind-workers=2")
    two = replica(second_proxy, "scheduler-b", tmp_path, *QUICK_ELECTION)
    async with _pair(one, two):
        held = proxy.delay("POST", "/binding$", _FOR_EVER, nth=4, times=None)
        await create_gangs(cluster, ["first"], 8)
        await cluster.wait_until(lambda: held.strikes == 2, "two bindings on their way", within=60)
        if by == "SIGSTOP":
            one.signal(signal.SIGSTOP)
        else:
            _cut_off(proxy)
        await two.logged("became leader", within=60)
        await create_gangs(cluster, ["second"], 8)
        await until_bound(cluster, 16)
        before = len(proxy.exchanges)
        if by == "SIGSTOP":
            one.signal(signal.SIGCONT)
        else:
            proxy.mend()
        await one.logged("standing by", within=60)
        await prove(history, one, two)  # which takes requests of both
        assert _written(proxy.exchanges[before:]) == []
        held.lift()
        assert await two.stop() == 0
        await create_gangs(cluster, ["third"], 8)
        await until_bound(cluster, 24)
        assert len(one.lines("became leader")) == 2
        await prove(history, one)


async def test_writes_that_a_leader_dropped_are_sent_when_it_leads_again(
    cluster: Cluster, history: History, proxy: Proxy, tmp_path: Path
) -> None:
    """It alone runs: no other component changes the PodGroup and the queue, whose statuses it has decided."""
    await furnish(cluster, cards=8)
    async with replica(proxy, "scheduler-a", tmp_path, *QUICK_ELECTION) as only:
        await only.logged("became leader", within=60)
        refused = proxy.answer("PATCH", "", 503, times=None)
        await create_gangs(cluster, ["g"], 8)
        await until_bound(cluster, 8)
        await refused.struck(2, within=60)
        for verb in ("GET", "PUT"):
            proxy.reset(verb, "/leases/", times=None)
        await only.logged("standing by", within=60)
        proxy.mend()
        await only.logged("became leader", times=2, within=60)
        await prove(history, only)
        assert (await cluster.get("podgroups", "g"))["status"]["phase"] == "Running"
        assert (await cluster.get("queues", "q"))["status"]["allocated"]["nvidia.com/gpu"] == "8"
