"""Each right the manifests grant is taken away in turn: the daemon logs the missing one, goes on with what it can,
and with everything once it has the right back, without a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

import pytest
import pytest_asyncio

from capcard_sched.kube.kinds import KINDS, WatchedKind
from capcard_sched.model.annotations import CARD_ALLOCATED, POD_QUEUE_NAME
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import gang, pod
from tests.controlplane.proxy import failure
from tests.e2e.daemons import Daemon
from tests.e2e.rbac.bench import LEASE, Bench
from tests.e2e.rbac.installed import SYSTEM, Right, rights_of, without
from tests.e2e.rbac.volumes import DISK, LOCAL, available, claim, mounting, provision, volume

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.campaign]

_SCHEDULING: Final = "scheduling.volcano.sh"
_CARD: Final = {"cpu": "1", "nvidia.com/gpu": "1"}
_LEASES: Final = "coordination.k8s.io"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(plain_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with Bench(plain_control_plane, tmp_path_factory.mktemp("missing-rights")) as running:
        yield running


# --- writes, and reads on the way -------------------------------------------------------------------------------------

#: Makes the daemon want to use the right, and returns what to check: that it goes on without, and with it again.
Step = Callable[[], Awaitable[None]]
Provoke = Callable[[Bench], Awaitable[tuple[Step, Step]]]


async def _binding(bench: Bench) -> tuple[Step, Step]:
    name = bench.name()
    await bench.cluster.create(pod(name))
    return lambda: bench.has_event(name, "FailedScheduling", text="pods/binding"), lambda: bench.bound(name)


async def _pod_status(bench: Bench) -> tuple[Step, Step]:
    names = [bench.name(), bench.name()]
    await bench.cluster.create(pod(names[0], requests={"cpu": "5000"}))

    async def goes_on() -> None:
        await bench.has_event(names[0], "FailedScheduling")
        await bench.binds()

    async def recovers() -> None:
        await bench.cluster.create(pod(names[1], requests={"cpu": "5000"}))
        await bench.has_condition(names[1])

    return goes_on, recovers


async def _group_status(bench: Bench) -> tuple[Step, Step]:
    name = bench.name()
    await bench.cluster.create_all(gang(name, 2))

    async def recovers() -> None:
        async def runs() -> bool:
            group = await bench.cluster.get("podgroups", name)
            return bool(group.get("status", {}).get("phase") == "Running")

        await bench.wait_until(runs, "the phase to be written")

    return lambda: bench.bound(f"{name}-0", f"{name}-1"), recovers


async def _queue_status(bench: Bench) -> tuple[Step, Step]:
    name = bench.name()
    await bench.cluster.create(pod(name))

    async def recovers() -> None:
        async def counted() -> bool:
            found = await bench.cluster.get("queues", "default")
            allocated = found.get("status", {}).get("allocated", {})
            bound = [each["metadata"] for each in await bench.cluster.list("pods") if each["spec"].get("nodeName")]
            here = [meta for meta in bound if POD_QUEUE_NAME not in meta.get("annotations", {})]
            return bool(allocated.get("pods") == str(len(here)))

        await bench.wait_until(counted, "what is allocated to be written")

    return lambda: bench.bound(name), recovers


async def _queue_annotation(bench: Bench) -> tuple[Step, Step]:
    name = bench.name()
    await bench.cluster.create(pod(name, queue="q", cards="A10", requests=_CARD))

    async def recovers() -> None:
        async def written() -> bool:
            found = await bench.cluster.get("queues", "q")
            return bool(found["metadata"]["annotations"].get(CARD_ALLOCATED) == '{"A10":1}')

        await bench.wait_until(written, "the annotation to be written")
        await bench.cluster.delete("pods", name)

    return lambda: bench.bound(name), recovers


async def _event(bench: Bench) -> tuple[Step, Step]:
    first, second = bench.name(), bench.name()
    await bench.cluster.create_all([pod(first), pod(second, requests={"cpu": "5000"})])

    async def goes_on() -> None:
        await bench.bound(first)
        await bench.has_condition(second)

    async def recovers() -> None:
        await bench.has_event(await bench.binds(), "Scheduled")

    return goes_on, recovers


async def _repeated_event(bench: Bench) -> tuple[Step, Step]:
    """A refusal by a quota that changes to and fro: the same event again is a patch."""
    name = bench.name()
    await bench.cluster.create(pod(name, queue="q", cards="A10", requests={**_CARD, "nvidia.com/gpu": "50"}))

    async def limited(cards: int, *, times: int) -> None:
        quota = {"volcano.sh/card.quota": f'{{"A10": {cards}}}'}
        await bench.cluster.patch("queues", "q", {"metadata": {"annotations": quota}})
        text = f"capability is <{cards}000>"
        await bench.has_event(name, "InsufficientScalarQuota", text=text, count=times)

    await limited(4, times=1)
    await limited(5, times=1)
    await limited(4, times=1)

    async def recovers() -> None:
        await limited(5, times=2)
        await limited(4, times=2)
        await bench.cluster.delete("pods", name)

    return lambda: _ignore(bench.binds()), recovers


async def _look_at_pod(bench: Bench) -> tuple[Step, Step]:
    name = bench.name()
    lost = bench.proxy.lose_answer("POST", f"{name}/binding$")
    await bench.cluster.create(pod(name))
    await lost.struck()

    async def goes_on() -> None:
        await bench.bound(name)
        await bench.binds()
        found = await bench.cluster.get("pods", name)
        assert [row["status"] for row in found["status"]["conditions"] if row["type"] == "PodScheduled"] == ["True"]

    async def recovers() -> None:
        other = bench.name()
        before = len(bench.daemon.lines("bind failed"))
        bench.proxy.lose_answer("POST", f"{other}/binding$")
        await bench.cluster.create(pod(other))
        await bench.has_event(other, "Scheduled")
        assert len(bench.daemon.lines("bind failed")) == before

    return goes_on, recovers


async def _eviction(bench: Bench) -> tuple[Step, Step]:
    name = await bench.binds()
    await bench.cluster.patch("pods", name, {"status": {"phase": "Running"}}, subresource="status")
    await bench.cluster.patch("pods", name, {"metadata": {"labels": {"test/evict": "now"}}})
    return lambda: _ignore(bench.binds()), lambda: bench.is_gone(name)


async def _kept_volume(bench: Bench) -> tuple[Step, Step]:
    name = bench.name()
    await bench.cluster.create_all([volume(name, LOCAL, "n1"), claim(name, LOCAL)])
    await available(bench.cluster, name)
    await bench.cluster.create(pod(name, **mounting(name)))
    return lambda: _ignore(bench.binds()), lambda: bench.bound(name)


async def _made_volume(bench: Bench) -> tuple[Step, Step]:
    name = bench.name()
    await bench.cluster.create_all([claim(name, DISK), pod(name, **mounting(name))])
    provisioning = asyncio.create_task(provision(bench.cluster, name))

    async def recovers() -> None:
        await bench.bound(name)
        await provisioning

    return lambda: _ignore(bench.binds()), recovers


async def _ignore(awaitable: Awaitable[object]) -> None:
    await awaitable


WRITES: Final[dict[Right, Provoke]] = {
    Right("pods/binding", "create"): _binding,
    Right("pods/status", "patch"): _pod_status,
    Right("podgroups", "patch", _SCHEDULING): _group_status,
    Right("queues/status", "patch", _SCHEDULING): _queue_status,
    Right("queues", "patch", _SCHEDULING): _queue_annotation,
    Right("events", "create"): _event,
    Right("events", "patch"): _repeated_event,
    Right("pods", "get"): _look_at_pod,
    Right("pods", "delete"): _eviction,
    Right("persistentvolumes", "get"): _kept_volume,
    Right("persistentvolumes", "patch"): _kept_volume,
    Right("persistentvolumeclaims", "get"): _kept_volume,
    Right("persistentvolumeclaims", "patch"): _made_volume,
    Right("nodes", "get"): _made_volume,
}


@pytest.mark.parametrize("right", WRITES, ids=str)
async def test_without_a_right_to_write_the_rest_goes_on(bench: Bench, right: Right) -> None:
    await bench.begin()
    since = len(bench.daemon.lines())
    async with without(bench.installation, right):
        goes_on, recovers = await WRITES[right](bench)
        await bench.reported(right, bench.daemon, since)
        await goes_on()
        assert (await bench.daemon.get("/healthz"))[0] == HTTPStatus.OK
    await recovers()


# --- watches ----------------------------------------------------------------------------------------------------------


def watching(kind: WatchedKind[Any], verb: str) -> Right:
    """The right to list or watch a kind."""
    return Right(kind.resource, verb, kind.path.split("/")[2] if kind.path.startswith("/apis/") else "")


async def _watched(bench: Bench, stream: str) -> None:
    await bench.wait_until(lambda: bench.proxy.watching(stream) > 0, f"a watch of {stream}")


@pytest.mark.parametrize("verb", ["watch", "list"])
async def test_a_kind_that_may_no_longer_be_watched_leaves_the_others_unaffected(bench: Bench, verb: str) -> None:
    """One kind after the other; with a daemon whose waits between attempts have not grown yet."""
    await bench.end()
    await bench.begin()
    daemon, names = bench.daemon, []
    for kind in KINDS:
        right, stream = watching(kind, verb), f"{kind.path}$"
        await _watched(bench, stream)
        since = len(daemon.lines())
        async with without(bench.installation, right):
            if verb == "watch":
                bench.proxy.reset_streams(stream)
            else:
                await bench.proxy.inject(stream, {"type": "ERROR", "object": failure(410, "too old")})
            await bench.reported(right, daemon, since)
            names.append(bench.name())
            await bench.cluster.create(pod(names[-1]))
            if kind.name != "Pod":
                await bench.bound(names[-1])
            assert (await daemon.get("/healthz"))[0] == HTTPStatus.OK
        if kind.name == "Pod":
            await bench.bound(names[-1])  # the next cases are about others
    for kind in KINDS:
        stream = f"{kind.path}$"
        await _watched(bench, stream)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.required], ids=lambda kind: kind.resource)
async def test_without_a_required_kind_a_replica_is_not_ready(bench: Bench, kind: WatchedKind[Any]) -> None:
    """A list that cannot be watched is not enough."""
    await bench.begin()
    watch, listing = watching(kind, "watch"), watching(kind, "list")
    standby = bench.another()

    async def is_all_it_waits_for() -> bool:
        status, text = await standby.get("/readyz")
        assert status == HTTPStatus.SERVICE_UNAVAILABLE
        return [line for line in text.splitlines() if not line.startswith("[+]")] == [
            f"[-]list/{kind.resource} failed: forbidden",
            "[-]lists-applied failed: the lists are not applied yet",
            "readyz check failed",
        ]

    async def lacks(right: Right) -> None:
        await bench.reported(right, standby)
        await bench.wait_until(is_all_it_waits_for, "readiness to name it alone", within=30)
        assert (await standby.get("/healthz"))[0] == HTTPStatus.OK, "a restart would not help"
        assert not standby.lines("caches synced")

    async with AsyncExitStack() as stack:
        async with without(bench.installation, watch):
            async with without(bench.installation, listing):
                await stack.enter_async_context(standby)
                await lacks(listing)
            await lacks(watch)
        await _ready(bench, standby)


async def _ready(bench: Bench, daemon: Daemon) -> None:
    async def ready() -> bool:
        return (await daemon.get("/readyz"))[0] == HTTPStatus.OK

    await daemon.logged("serving", times=2)
    await bench.wait_until(ready, "the replica to be ready")


async def test_without_an_optional_kind_a_replica_is_ready(bench: Bench) -> None:
    """As documented: no role for volumes where no pod has any, none for evictions."""
    await bench.end()
    (role,) = [item for item in bench.installation.objects if item["metadata"]["name"] == "capcard-sched-volumes"
               and item["kind"] == "ClusterRole"]  # fmt: skip
    optional = [right for rule in role["rules"] for right in rights_of(rule)]
    listed = [watching(kind, "watch") for kind in KINDS if kind.name in {"Namespace", "PriorityClass"}]
    async with AsyncExitStack() as stack:
        async with without(bench.installation, *optional, *listed, Right("pods", "delete")):
            daemon = await stack.enter_async_context(bench.another())
            await _ready(bench, daemon)
            # Without the right to list the daemon does not get as far as watching.
            for right in (*(each for each in optional if each.verb == "list"), *listed):
                await bench.reported(right, daemon)
            await bench.binds()
        await daemon.stop()


# --- the Lease and the queues ----------------------------------------------------------------------------------------

AT_START: Final = tuple(Right("leases", verb, _LEASES) for verb in ("create", "get"))
QUEUE_CREATION: Final = Right("queues", "create", _SCHEDULING)
RENEWAL: Final = Right("leases", "update", _LEASES)
LEASE_WATCH: Final = Right("leases", "watch", _LEASES)


async def test_a_leader_that_may_no_longer_renew_stands_by_and_leads_again(bench: Bench) -> None:
    await bench.begin()
    daemon = bench.daemon
    since, led = len(daemon.lines()), len(daemon.lines("became leader"))
    async with without(bench.installation, RENEWAL):
        await bench.reported(RENEWAL, daemon, since)
        await daemon.logged("standing by", times=led)
        name = bench.name()
        await bench.cluster.create(pod(name))
        assert (await daemon.get("/readyz"))[0] == HTTPStatus.OK
        assert name not in await bench.cluster.bound()
    await daemon.logged("became leader", times=led + 1)
    await bench.bound(name)


@pytest.mark.parametrize("right", AT_START, ids=str)
async def test_a_replica_that_cannot_be_elected_reports_it_and_stays_standby(bench: Bench, right: Right) -> None:
    await bench.end()
    async with AsyncExitStack() as stack:
        async with without(bench.installation, right):
            daemon = await stack.enter_async_context(bench.another())
            await bench.reported(right, daemon)
            await _ready(bench, daemon)
            assert not daemon.lines("became leader")
        await daemon.logged("became leader")
        await bench.binds()
        await daemon.stop()


async def test_a_replica_without_the_right_to_watch_the_lease_takes_over_after_its_expiry(bench: Bench) -> None:
    await bench.end()

    async def other_leader() -> None:
        """A leader that renews its Lease until it is cancelled, which then runs out."""
        while True:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            spec = {"holderIdentity": "somebody", "leaseDurationSeconds": 2, "acquireTime": now, "renewTime": now}
            meta = {"name": LEASE, "namespace": SYSTEM}
            await bench.cluster.apply({"apiVersion": f"{_LEASES}/v1", "kind": "Lease", "metadata": meta, "spec": spec})
            await asyncio.sleep(0.3)

    leader = asyncio.create_task(other_leader())
    async with without(bench.installation, LEASE_WATCH), bench.another() as daemon:
        try:
            await bench.reported(LEASE_WATCH, daemon)
            assert not daemon.lines("became leader")
        finally:
            leader.cancel()
        await daemon.logged("became leader")
        await bench.binds()
        await daemon.stop()


async def test_queues_that_could_not_be_made_are_made_later(bench: Bench) -> None:
    await bench.begin()  # which makes them
    await bench.end()
    for name in ("root", "default"):
        await bench.cluster.delete("queues", name)
    async with AsyncExitStack() as stack:
        async with without(bench.installation, QUEUE_CREATION):
            daemon = await stack.enter_async_context(bench.another())
            await bench.reported(QUEUE_CREATION, daemon)
            await bench.binds(queue="q", requests={})
            name = bench.name()
            await bench.cluster.create(pod(name))
            await bench.has_event(name, "QueueNotFound")
        await bench.bound(name)
        await daemon.stop()


async def test_every_right_of_the_base_has_its_case(bench: Bench) -> None:
    roles = [item for item in bench.installation.objects if item["kind"] in {"ClusterRole", "Role"}]
    granted = {right for role in roles for rule in role["rules"] for right in rights_of(rule)}
    watched = {watching(kind, verb) for kind in KINDS for verb in ("list", "watch")}
    assert granted == {*WRITES, *watched, *AT_START, QUEUE_CREATION, RENEWAL, LEASE_WATCH}
