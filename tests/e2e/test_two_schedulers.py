"""Two schedulers of different names on one cluster: each its own pods, and neither takes what the other has taken."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from capcard_sched.model.annotations import CARD_ALLOCATED
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, gang, gpu_node, node, pod, pod_group, queue
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, QUICK_ELECTION, Daemon
from tests.e2e.expectations import message, until, until_bound
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

_CARD = {"cpu": "1", "nvidia.com/gpu": "1"}
_ROOM = {"cpu": "64", "memory": "256Gi"}
#: Their queues publish their usage, too.
_CONF = CARD_CONF.replace("{name: capacity-card}", "{name: capacity-card, arguments: {publishCardUsage: true}}")
_ONE, _OTHER = "capcard-sched", "night-shift"


class Two:
    """Both, each a user of its own in the audit log, each elected by a Lease of its own."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self.daemons = [
            Daemon(
                control_plane.kubeconfig_for(user),
                folder,
                f"--scheduler-name={name}",
                "--leader-elect",
                *QUICK_ELECTION,
                conf=_CONF,
                name=name,
            )
            for user, name in (("scheduler-a", _ONE), ("scheduler-b", _OTHER))
        ]
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> list[Daemon]:
        for daemon in self.daemons:
            await self._stack.enter_async_context(daemon)
        for daemon in self.daemons:
            await daemon.logged("caches synced")
            await daemon.logged("became leader")
        return self.daemons

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


def binders(control_plane: ControlPlane, namespace: str) -> dict[str, str]:
    """Pod to the user that bound it."""
    return {
        row.name: row.user
        for row in control_plane.audit()
        if row.subresource == "binding" and row.code == 201 and row.namespace == namespace
    }


def foreign(manifests: list[Manifest]) -> list[Manifest]:
    """The same for the other scheduler."""
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            manifest["spec"]["schedulerName"] = _OTHER
    return manifests


async def test_capacity_and_quota_that_the_other_scheduler_holds_are_not_allocated_again(
    cluster: Cluster, control_plane: ControlPlane, history: History, tmp_path: Path
) -> None:
    """Each binds its own pods under a Lease of its own. The node has four cards, the quota three."""
    await cluster.create_all([gpu_node("n1", "A10", 4, cpu=16), queue("q", cards={"A10": 3}, capability=_ROOM)])
    async with Two(control_plane, tmp_path) as daemons:
        await cluster.create_all(foreign(gang("theirs", 2, queue="q", cards="A10", requests=_CARD)))
        await until_bound(cluster, {"theirs-0", "theirs-1"})
        # By quota there is room for one more: a gang of two is refused, one pod is not.
        await cluster.create_all(gang("two", 2, queue="q", cards="A10", requests=_CARD))
        short, writer = "*total would be <4000>, but capability is <3000>*", {"component": "volcano.*"}
        await until(cluster, "events", reason="InsufficientScalarQuota", source=writer, message=short)
        await cluster.create_all(gang("one", 1, queue="q", cards="A10", requests=_CARD))
        assert len(await until_bound(cluster, {"one-0"})) == 3
        # Three of the node's 16 cores are taken, two of them by the other.
        await cluster.create(pod("too-big", requests={"cpu": "14"}))
        await until(cluster, "pods", "too-big", status=message("Insufficient cpu"))
        await cluster.delete("pods", "too-big")
        await cluster.create_all([pod("fits", requests={"cpu": "13"}), pod("nobodys", scheduler="third", requests={})])
        assert len(await until_bound(cluster, {"fits"})) == 4
        expected = {
            **dict.fromkeys(("one-0", "fits"), "scheduler-a"),
            **dict.fromkeys(("theirs-0", "theirs-1"), "scheduler-b"),
        }
        await cluster.wait_until(lambda: len(binders(control_plane, cluster.namespace)) == 4, "the audit log")
        assert binders(control_plane, cluster.namespace) == expected
        leases = {lease["metadata"]["name"] for lease in await cluster.list("leases", namespace="default")}
        assert {_ONE, _OTHER} <= leases
        await prove(history, *daemons)


async def test_nodes_of_their_own_are_never_overcommitted_however_many_arrive_at_once(
    cluster: Cluster, control_plane: ControlPlane, history: History, tmp_path: Path
) -> None:
    """As documented: each its nodes by --node-selector. Then nothing depends on which is quicker."""
    nodes = [node(f"{letter}{index}", cpu=4, labels={"pool": letter}) for letter in "ab" for index in range(3)]
    await cluster.create_all(nodes)
    two = Two(control_plane, tmp_path)
    for letter, daemon in zip("ab", two.daemons, strict=True):
        daemon.command.append(f"--node-selector=pool:{letter}")
    async with two as daemons:
        pods = [pod(f"p{index}") for index in range(14)]
        pods += [pod(f"o{index}", scheduler=_OTHER) for index in range(14)]
        await cluster.create_all(pods, at_a_time=28)
        bound = await until_bound(cluster, 24)
        assert Counter(bound.values()) == {f"{letter}{index}": 4 for letter in "ab" for index in range(3)}
        assert {(name[0], place[0]) for name, place in bound.items()} == {("p", "a"), ("o", "b")}
        await prove(history, *daemons, gangs=False)


async def test_two_schedulers_do_not_overwrite_each_others_statuses_forever(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """PodGroups and queues are written by both, with different pods in view: each writes, then both back off."""
    # A queue each for refused jobs: a group without minResources is admitted by a scheduler that does not see its pods.
    refusing = [queue(name, cards={"A10": 2}, capability=_ROOM) for name in ("q", "r", "s")]
    await cluster.create_all([gpu_node("n1", "A10", 8, cpu=16), *refusing])
    await cluster.create_all([pod("bare"), *(pod(f"t{index}", scheduler=_OTHER) for index in range(2))])
    await cluster.create_all(foreign([pod("lone", queue="q", cards="A10", requests=_CARD)]))
    await cluster.create_all(foreign(gang("refused", 4, queue="r", cards="A10", requests=_CARD)))
    await cluster.create_all(foreign(gang("too-big", 2, queue="s", requests={"cpu": "50"})))
    await cluster.create(pod_group("empty", queue="q", members=2, minResources={"cpu": "500"}))
    async with Two(control_plane, tmp_path):
        await until_bound(cluster, {"bare", "lone", "t0", "t1"})

        def writes() -> Counter[tuple[str, str, str]]:
            return Counter(
                (row.user, row.resource, row.name)
                for row in control_plane.audit()
                if row.user.startswith("scheduler-") and row.verb == "patch" and row.resource in {"podgroups", "queues"}
            )

        for _ in range(6):  # differences in numbers only are rate-limited
            before = writes()
            await asyncio.sleep(5)
            if writes() == before:
                break
        else:
            pytest.fail(f"they go on writing: {writes()}")
    notes = (await cluster.get("queues", "q"))["metadata"]["annotations"]
    assert notes.get(CARD_ALLOCATED) in {None, '{"A10":1}'}
