"""Claims that are allocated and reserved for pods that nothing binds, as a former leader leaves them."""

from __future__ import annotations

from typing import Any, Final

import pytest

from capcard_sched.framework.session.unused_claims import UNUSED_SECONDS
from capcard_sched.model.deltas import BindRetry, ObjectChanged, Takeover
from capcard_sched.model.device_objects import DeviceClassObject, ResourceClaimObject, ResourceSliceObject
from capcard_sched.model.intents import ReleaseClaims
from capcard_sched.testing import Harness
from tests.scenarios.notation import objects_of
from tests.scenarios.test_scenarios import run
from tests.unit.devices.pools import decode
from tests.vectors.world import conf_text

_CONF: Final = conf_text(["enqueue, allocate", ["gang"], ["predicates"]])


def _claim(name: str, *consumers: str, at: int = 0) -> ObjectChanged:
    """A claim of one device; with uids of pods it has g0 of node n1 since second `at`, and is reserved for them.

    "" is no pod: the claim has the device without one.
    """
    here = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    status: dict[str, Any] = {
        "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in consumers if uid],
        "allocation": {
            "allocationTimestamp": f"2026-01-01T00:00:{at:02}Z",
            "devices": {"results": [{"request": "r", "driver": "d", "pool": "n1", "device": "g0"}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        },
    }
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
        "status": status if consumers else {},
    }
    return ObjectChanged(decode(body, ResourceClaimObject))


class _World:
    """Node n1 with one device, which claim `left` holds for pod `left`; pod `waits` wants it."""

    def __init__(self, *, fits: bool = False, shared: bool = False) -> None:
        self.h = h = Harness(_CONF)
        h.node("n1", cpu="8")
        h.queue("q")
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "d", "nodeName": "n1", "pool": pool, "devices": [{"name": "g0"}]}
        h.apply(
            ObjectChanged(decode({"metadata": {"name": "n1"}, "spec": spec}, ResourceSliceObject)),
            ObjectChanged(decode({"metadata": {"name": "c"}, "spec": {}}, DeviceClassObject)),
            _claim("waits"),
        )
        for name, cpu in (("left", "2" if fits else "9"), ("waits", "2")):
            h.group(name, queue="q")
            claims = [{"name": "r", "resourceClaimName": name}]
            h.pod(name, group=name, requests={"cpu": cpu}, resourceClaims=claims)
        users = ["left"]
        if shared:
            h.group("user", queue="q", phase="Running")
            claims = [{"name": "r", "resourceClaimName": "left"}]
            h.pod("user", group="user", node="n1", phase="Running", requests={"cpu": "1"}, resourceClaims=claims)
            users.append("user")
        h.core.apply_all(h._deltas)
        h._deltas.clear()
        self.uids = {task.name: task.uid for task in h.core.snapshot().state.tasks.values()}
        h.apply(_claim("left", *(self.uids[name] for name in users)))
        self.start = h.now

    def after(self, seconds: float) -> list[ReleaseClaims]:
        """The releases of the step at this number of seconds after the first one."""
        result = self.h.step(self.start + seconds)
        return [intent for intent in result.intents if isinstance(intent, ReleaseClaims)]

    def freed(self) -> None:
        """The writer has released the claim."""
        self.h.apply(_claim("left"), BindRetry("default", "left", self.uids["left"]))


def test_devices_of_a_pod_that_does_not_fit_their_node_go_to_another_pod() -> None:
    world = _World()
    assert world.after(0) == []
    assert world.after(UNUSED_SECONDS - 1) == []
    (released,) = world.after(UNUSED_SECONDS)
    assert (released.name, [each.claim for each in released.claims]) == ("left", ["left"])
    assert released.claims[0].allocation is not None
    assert [event.object.name for event in world.h.events if event.reason == "ResourceClaimsReleased"] == ["left"]
    assert not world.h.binds
    world.freed()
    world.after(UNUSED_SECONDS + 2)
    assert world.h.binds == {"waits": "n1"}


def test_the_end_of_the_time_needs_no_change_of_the_cluster() -> None:
    world = _World()
    world.after(0)
    world.after(1)  # writes of the first session
    assert world.after(2) == []
    assert world.h.step(world.start + 3).next_wakeup == world.start + UNUSED_SECONDS


def test_a_pod_is_not_scheduled_during_the_release_and_afterwards_it_is() -> None:
    world = _World()
    world.after(0)
    assert world.after(UNUSED_SECONDS)
    world.h.node("n2", cpu="16")  # without devices
    world.h.node("n1", cpu="16")
    assert world.after(UNUSED_SECONDS + 1) == []
    assert not world.h.binds
    world.freed()
    world.after(UNUSED_SECONDS + 2)
    assert world.h.binds in ({"left": "n1"}, {"waits": "n1"})


def test_a_release_that_fails_is_repeated() -> None:
    world = _World()
    world.after(0)
    assert world.after(UNUSED_SECONDS)
    world.h.apply(BindRetry("default", "left", world.uids["left"]))  # the claim is as before
    assert world.after(UNUSED_SECONDS + 1) == []
    assert world.after(2 * UNUSED_SECONDS) == []
    assert len(world.after(2 * UNUSED_SECONDS + 1)) == 1


def test_a_pod_that_fits_is_bound_with_the_devices_that_it_has() -> None:
    world = _World(fits=True)
    world.after(0)
    assert world.h.binds == {"left": "n1"}
    assert [world.after(seconds) for seconds in (UNUSED_SECONDS, 2 * UNUSED_SECONDS)] == [[], []]
    assert world.h.binds == {"left": "n1"}


def test_a_claim_that_another_pod_uses_stays() -> None:
    world = _World(shared=True)
    world.after(0)
    assert world.after(UNUSED_SECONDS) == []


@pytest.mark.parametrize("seconds", [UNUSED_SECONDS - 1, UNUSED_SECONDS])
def test_a_new_leader_gives_the_pod_the_whole_time(seconds: float) -> None:
    world = _World()
    world.after(0)
    world.h.apply(Takeover())
    assert world.after(seconds) == []
    assert world.after(2 * UNUSED_SECONDS)


def test_a_release_that_the_former_leader_did_not_finish_is_repeated() -> None:
    world = _World()
    world.after(0)
    assert world.after(UNUSED_SECONDS)
    world.h.apply(Takeover())
    world.after(UNUSED_SECONDS + 1)
    assert world.after(2 * UNUSED_SECONDS + 1)


# --- without a consumer --------------------------------------------------------------------------------------------


def test_a_claim_without_a_consumer_is_released_for_a_pod_that_does_not_fit_its_node() -> None:
    world = _World()
    world.h.apply(_claim("left", ""))
    assert [world.after(seconds) for seconds in (0, UNUSED_SECONDS - 1)] == [[], []]
    (released,) = world.after(UNUSED_SECONDS)
    assert (released.name, [each.claim for each in released.claims]) == ("left", ["left"])
    assert not world.h.binds
    world.freed()
    world.after(UNUSED_SECONDS + 2)
    assert world.h.binds == {"waits": "n1"}


def test_a_claim_without_a_consumer_serves_a_pod_that_fits_its_node() -> None:
    world = _World(fits=True)
    world.h.apply(_claim("left", ""))
    world.after(0)
    assert world.h.binds == {"left": "n1"}
    assert world.after(UNUSED_SECONDS) == []


@pytest.mark.parametrize("held_by", ["a gate", "a running pod"])
def test_a_claim_without_a_consumer_stays_while_its_pod_is_not_tried_or_another_one_has_it(held_by: str) -> None:
    world = _World()
    world.h.apply(_claim("left", ""))
    claims = [{"name": "r", "resourceClaimName": "left"}]
    if held_by == "a gate":
        world.h.delete_pod("left")
        gates = [{"name": "example.com/later"}]
        world.h.pod("gated", group="left", requests={"cpu": "1"}, schedulingGates=gates, resourceClaims=claims)
    else:
        world.h.pod("runs", node="n1", phase="Running", requests={"cpu": "1"}, resourceClaims=claims)
    assert [world.after(seconds) for seconds in (0, UNUSED_SECONDS, 2 * UNUSED_SECONDS)] == [[], [], []]


def test_a_claim_that_no_pod_names_stays() -> None:
    world = _World()
    world.h.apply(_claim("left", ""))
    world.h.delete_pod("left")
    assert [world.after(seconds) for seconds in (0, UNUSED_SECONDS, 2 * UNUSED_SECONDS)] == [[], [], []]
    assert not world.h.binds


def test_a_claim_without_a_consumer_is_released_when_its_node_is_gone() -> None:
    world = _World(fits=True)
    world.h.apply(_claim("left", ""))
    world.h.delete_node("n1")
    world.h.node("n2", cpu="8")
    assert world.after(0) == []
    assert "resourceclaim not available on the node" in world.h.pod_message("left")
    assert [each.name for each in world.after(UNUSED_SECONDS)] == ["left"]


# --- one device for two claims --------------------------------------------------------------------------------------


def _events(world: _World) -> dict[str, str]:
    """The claims with an event DeviceAllocatedTwice, with its text."""
    return {each.object.name: each.message for each in world.h.all_events if each.reason == "DeviceAllocatedTwice"}


@pytest.mark.parametrize(("left", "waits", "loser"), [(1, 2, "waits"), (2, 1, "left"), (1, 1, "waits")])
def test_of_two_claims_of_unbound_pods_the_older_one_keeps_the_device(left: int, waits: int, loser: str) -> None:
    world = _World(fits=True)
    for name, at in (("left", left), ("waits", waits)):
        world.h.apply(_claim(name, world.uids[name], at=at))
    (released,) = world.after(0)
    assert released.name == loser
    keeps = "left" if loser == "waits" else "waits"
    assert world.h.binds == {keeps: "n1"}
    assert set(_events(world)) == {"left", "waits"}
    assert f"d/n1/g0 also to default/{keeps}" in _events(world)[loser]
    (text,) = [each.message for each in world.h.all_events if each.reason == "ResourceClaimsReleased"]
    assert text.endswith(f"ResourceClaim default/{keeps} has device d/n1/g0, too")


def test_a_claim_of_a_bound_pod_precedes_an_older_one() -> None:
    world = _World(shared=True)
    world.h.apply(_claim("waits", world.uids["waits"]))
    world.h.apply(_claim("left", world.uids["user"], at=9))
    (released,) = world.after(0)
    assert released.name == "waits"
    assert not world.h.binds


def test_claims_of_pods_that_run_are_reported_once_and_stay() -> None:
    world = _World(shared=True)
    world.h.apply(_claim("waits", "a pod of another scheduler"), _claim("left", world.uids["user"]))
    assert world.after(0) == []
    assert set(_events(world)) == {"left", "waits"}
    world.h.apply(_claim("left", world.uids["user"], world.uids["left"]))  # one more consumer of the same devices
    assert [world.after(seconds) for seconds in (1, UNUSED_SECONDS + 1)] == [[], []]
    assert len([each for each in world.h.all_events if each.reason == "DeviceAllocatedTwice"]) == 2
    assert world.h.core.snapshot().state.claims.doubled.total == 1


def test_a_device_that_one_of_them_gave_back_is_an_ordinary_one() -> None:
    world = _World(fits=True)
    world.h.apply(_claim("waits", world.uids["waits"], at=1))
    assert world.after(0)
    world.h.apply(_claim("waits"), BindRetry("default", "waits", world.uids["waits"]))
    assert world.after(1) == []
    assert world.h.core.snapshot().state.claims.doubled.devices == {}


def test_the_simulator_releases_the_claim_of_a_pod_that_never_starts() -> None:
    plan = """\
node n1 labels=host:n1; queue q cap=cpu:64,memory:1Ti; device_class gpu; slice n1 1*NVIDIA-H200
resource_claim left class=gpu; resource_claim waits class=gpu
pod left queue=q cpu=1000 resourceClaims=[{name: r, resourceClaimName: left}]
pod waits queue=q cpu=1 resourceClaims=[{name: r, resourceClaimName: waits}]
"""
    objects = objects_of({"cluster": plan})
    named = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    named["Pod", "left"]["metadata"]["uid"] = "uid-of-left"
    here = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": "g0"}
    named["ResourceClaim", "left"]["status"] = {
        "reservedFor": [{"resource": "pods", "name": "left", "uid": "uid-of-left"}],
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        },
    }
    conf = {"conf": ["enqueue, allocate, backfill", ["gang"], ["predicates"]]}

    def state(until: str) -> tuple[bool, list[str]]:
        items = {(each["kind"], each["metadata"]["name"]): each for each in run(objects, conf, until)}
        consumers = items["ResourceClaim", "waits"].get("status", {}).get("reservedFor") or ()
        return bool(items["ResourceClaim", "left"].get("status", {}).get("allocation")), [
            each["name"] for each in consumers
        ]

    assert state("20s") == (True, [])
    assert state("2m") == (False, ["waits"])
