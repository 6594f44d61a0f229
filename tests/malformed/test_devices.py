"""One malformed object of dynamic resource allocation: a pod with a good claim runs all the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from capcard_sched.model.card_devices import CardDevice
from capcard_sched.model.card_labels import CardLabels
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.deltas import ObjectChanged, ObjectGone, ObjectUnreadable
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.testing import Harness
from tests.malformed.world import World

Json = dict[str, Any]
MANY: Final = [{"uid": f"u{number}", "name": f"p{number}", "device": f"g{number}"} for number in range(256)]
KINDS: Final = {
    "slice": "ResourceSlice",
    "class": "DeviceClass",
    "claim": "ResourceClaim",
    "rule": "DeviceTaintRule",
}
_REQUESTS: Final = [{"name": "r", "exactly": {"deviceClassName": "good"}}]


def _slice(name: str, devices: int) -> Json:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    listed = [{"name": f"g{number}", "attributes": {"a": {"int": number}}} for number in range(devices)]
    return {"spec": {"driver": "good.example.com", "nodeName": "plain", "pool": pool, "devices": listed}}


#: The object `bad` before it is malformed.
BASES: Final[dict[str, Json]] = {
    "slice": _slice("bad", 1),
    "class": {"spec": {}},
    "claim": {"metadata": {"namespace": "default"}, "spec": {"devices": {"requests": _REQUESTS}}},
    "rule": {"spec": {"deviceSelector": {"pool": "bad"}, "taint": {"key": "k", "effect": "NoSchedule"}}},
}


class Row:
    """One case of the file."""

    def __init__(self, kind: str, path: str, name: str, found: Any) -> None:
        self.id = f"{kind}: {path}: {name}"
        self.kind = kind
        facts = found if isinstance(found, dict) and "value" in found else {"value": found}
        #: Part of the event, "" without one, "none" for a kind without events.
        self.event: str = facts.get("event", "")
        self.bad: str = facts.get("bad", "")
        #: Whether other devices keep their use: a rule may select all.
        self.keeps: bool = facts.get("keep", True)
        self.object = copy.deepcopy(BASES[kind])
        value = facts["value"]
        if isinstance(value, dict) and "MANY" in str(value):
            value = _filled(value)
        *parents, last = path.split(".")
        place = self.object
        for each in parents:
            place = place.setdefault(each, {})
        place[last] = value
        self.object = {**self.object, "metadata": {**self.object.get("metadata", {}), "name": "bad", "uid": "bad-uid"}}


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each) for key, each in value.items()}
    return MANY if value == "MANY" else value


ROWS: Final = [
    Row(kind, path, name, found)
    for kind, paths in yaml.safe_load(Path(__file__).with_name("devices.yaml").read_text("utf-8")).items()
    for path, cases in paths.items()
    for name, found in cases.items()
]


def give(h: Harness, kind: str, obj: Json) -> None:
    """Applies an object as the reflector decodes it."""
    rule = KIND_BY_NAME[kind].watch
    assert rule is not None
    meta = obj["metadata"]
    try:
        h.apply(ObjectChanged(msgspec.convert({"kind": kind, **obj}, rule.type)))
    except msgspec.ValidationError as error:
        if rule.explained:
            ref: Any = kind
            problem = str(field_problem(error, obj))
            h.apply(ObjectUnreadable(ObjectRef(ref, meta.get("namespace", ""), meta["name"], meta["uid"]), problem))


def claimed(h: Harness, pod: str, claim: str) -> None:
    """A pod with a claim in a PodGroup of its own."""
    h.group(pod, queue="q", phase="Pending")
    h.pod(pod, group=pod, resourceClaims=[{"name": "r", "resourceClaimName": claim}])


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS])
def test_the_rest_of_the_cluster_is_scheduled(row: Row) -> None:
    world = World()
    h = world.h
    give(h, KINDS[row.kind], row.object)
    give(h, "DeviceClass", {"metadata": {"name": "good", "uid": "c"}, "spec": {}})
    give(h, "ResourceSlice", {**_slice("good", 4), "metadata": {"name": "good", "uid": "s"}})
    if row.kind == "class":
        requests = [{"name": "r", "exactly": {"deviceClassName": "bad"}}]
        meta = {"name": "bad", "namespace": "default", "uid": "claim"}
        give(h, "ResourceClaim", {"metadata": meta, "spec": {"devices": {"requests": requests}}})
    meta = {"name": "good", "namespace": "default", "uid": "good"}
    give(h, "ResourceClaim", {"metadata": meta, "spec": {"devices": {"requests": _REQUESTS}}})
    claimed(h, "ok", "good")
    if row.bad:
        claimed(h, "bad", "bad")
    world.run()
    assert world.errors == []
    assert ("ok" in h.binds) is row.keeps
    events = [event.message for event in world.events() if event.reason == "InvalidObject"]
    if row.event in ("", "none"):
        assert events == []
    else:
        assert len(events) == 1
        assert row.event in events[0]
    if row.bad == "runs":
        assert "bad" in h.binds
    elif row.bad:
        assert row.bad in h.pod_message("bad")


# --- malformed beside other objects ---------------------------------------------------------------------------------


def _prepared(*, devices: int = 4) -> World:
    world = World()
    give(world.h, "DeviceClass", {"metadata": {"name": "good", "uid": "c"}, "spec": {}})
    give(world.h, "ResourceSlice", {**_slice("good", devices), "metadata": {"name": "good", "uid": "s"}})
    return world


def _claim(name: str, status: Json | None = None, class_name: str = "good") -> Json:
    requests = [{"name": "r", "exactly": {"deviceClassName": class_name}}]
    found: Json = {"metadata": {"name": name, "namespace": "default", "uid": name}}
    return {**found, "spec": {"devices": {"requests": requests}}, "status": status or {}}


def test_slices_of_one_pool_with_two_counts_give_no_device() -> None:
    world = _prepared()
    for number, count in enumerate((2, 3)):
        found = _slice("bad", 1)
        found["spec"]["pool"]["resourceSliceCount"] = count
        give(world.h, "ResourceSlice", {**found, "metadata": {"name": f"bad{number}", "uid": f"b{number}"}})
    for name in ("ok", "other"):
        give(world.h, "ResourceClaim", _claim(name))
        claimed(world.h, name, name)
    world.run()
    assert world.errors == []
    assert {"ok", "other"} <= world.h.binds.keys()
    held = [world.h.core.snapshot().state.claims.allocation(f"default/{name}") for name in ("ok", "other")]
    assert {each.pool for one in held if one is not None for each in one.devices.results or ()} == {"good"}


def test_a_pod_whose_claim_has_no_source_waits() -> None:
    world = _prepared()
    world.h.group("bad", queue="q", phase="Pending")
    world.h.pod("bad", group="bad", resourceClaims=[{"name": "r"}])
    world.run()
    assert world.errors == []
    assert 'pod "default/bad", spec.resourceClaim "r": none of the supported fields are set' in world.h.pod_message(
        "bad"
    )


def test_a_slice_that_completes_a_pool_ends_the_events_of_the_others() -> None:
    """The counters of a device are in a slice that comes later, and goes again."""
    world = _prepared()
    use = {"counterSet": "s", "counters": {"m": {"value": "1"}}}
    common = {"driver": "good.example.com", "nodeName": "plain"}
    devices = {"devices": [{"name": "g", "consumesCounters": [use]}]}

    def published(name: str, count: int, part: Json) -> list[str]:
        pool = {"name": "bad", "generation": 1, "resourceSliceCount": count}
        found = {"metadata": {"name": name, "uid": name}, "spec": {**common, **part, "pool": pool}}
        give(world.h, "ResourceSlice", found)
        world.run()
        return [*world.h.core.snapshot().state.problems.values()]

    fault, end = "spec.devices[0].consumesCounters[0]", "no device of pool good.example.com/bad is allocated"
    assert published("bad", 1, devices) == [
        f'{fault}.counterSet: counter set "s" is in no ResourceSlice of the pool; {end}'
    ]
    assert published("bad", 2, devices) == []
    sets = {"sharedCounters": [{"name": "s", "counters": {"n": {"value": "1"}}}]}
    assert published("sets", 2, sets) == [f'{fault}.counters: counter "m" is not in counter set "s" of the pool; {end}']
    world.h.apply(ObjectGone("ResourceSlice", "", "sets"))
    world.run()
    assert not world.h.core.snapshot().state.problems
    assert world.errors == []


def test_a_class_that_is_deleted_keeps_the_claims_that_have_devices() -> None:
    """Their pods are bound where the devices are; claims without devices wait for the class."""
    world = _prepared()
    give(world.h, "DeviceClass", {"metadata": {"name": "bad", "uid": "b"}, "spec": {}})
    result = {"request": "r", "driver": "good.example.com", "pool": "good", "device": "g0"}
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["plain"]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [here]}}
    give(world.h, "ResourceClaim", _claim("has", {"allocation": allocation}, "bad"))
    give(world.h, "ResourceClaim", _claim("waits", None, "bad"))
    give(world.h, "ResourceClaim", _claim("ok"))
    world.h.apply(ObjectGone("DeviceClass", "", "bad", "b"))
    for name in ("has", "waits", "ok"):
        claimed(world.h, name, name)
    world.run()
    assert world.errors == []
    assert {"has", "ok"} <= world.h.binds.keys()
    assert "request r: device class bad does not exist" in world.h.pod_message("waits")


def test_a_template_of_another_namespace_is_none() -> None:
    world = _prepared()
    meta = {"name": "t", "namespace": "other", "uid": "t"}
    give(world.h, "ResourceClaimTemplate", {"metadata": meta, "spec": {"spec": _claim("t")["spec"]}})
    world.h.group("bad", queue="q", phase="Pending")
    world.h.pod("bad", group="bad", resourceClaims=[{"name": "r", "resourceClaimTemplateName": "t"}])
    give(world.h, "ResourceClaim", _claim("ok"))
    claimed(world.h, "ok", "ok")
    world.run()
    assert world.errors == []
    assert "ok" in world.h.binds
    assert "ResourceClaim not created yet" in world.h.pod_message("bad")


def test_ten_thousand_devices_in_one_pool() -> None:
    world = _prepared(devices=10_000)
    give(world.h, "ResourceClaim", _claim("ok"))
    claimed(world.h, "ok", "ok")
    world.run()
    assert world.errors == []
    assert "ok" in world.h.binds


def test_there_are_sixty_rows() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS) >= 60


def test_the_event_about_a_card_follows_the_rules_of_its_driver() -> None:
    world = _prepared()
    found = _slice("bad", 1)
    found["spec"]["devices"][0]["attributes"]["model"] = {"string": "A|B"}
    give(world.h, "ResourceSlice", {**found, "metadata": {"name": "bad", "uid": "b"}})
    state = world.h.core.snapshot().state

    def problems(*rules: CardDevice) -> int:
        state.card_labels = CardLabels(devices=rules)
        world.run()
        return len(state.problems)

    assert [problems(), problems(CardDevice("good.example.com", ("model",))), problems()] == [0, 1, 0]
