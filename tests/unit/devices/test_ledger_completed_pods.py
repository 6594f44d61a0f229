"""Devices of pods that complete before the next session sees the reservation of their claims."""

from __future__ import annotations

from typing import Final

import pytest

from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.device_objects import DeviceClassObject, ResourceClaimObject, ResourceSliceObject
from capcard_sched.model.intents import Bind
from capcard_sched.testing import Harness
from tests.unit.devices.pools import Json, decode
from tests.vectors.world import conf_text

_CONF: Final = conf_text(["enqueue, allocate", ["gang"], ["predicates"]])


def _claim(name: str, status: Json | None = None) -> ObjectChanged:
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
        "status": status or {},
    }
    return ObjectChanged(decode(body, ResourceClaimObject))


def _allocated(uid: str) -> Json:
    result = {"request": "r", "driver": "d", "pool": "n1", "device": "g0"}
    return {
        "reservedFor": [{"resource": "pods", "name": "short", "uid": uid}],
        "allocation": {"devices": {"results": [result]}},
    }


@pytest.mark.parametrize("seen", [True, False], ids=["written and released", "released, the writing is not seen"])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_device_is_free_after_a_pod_that_ended_within_a_session_period(phase: str, *, seen: bool) -> None:
    harness = Harness(_CONF)
    harness.node("n1", cpu="8")
    harness.queue("q")
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "nodeName": "n1", "pool": pool, "devices": [{"name": "g0"}]}
    harness.apply(
        ObjectChanged(decode({"metadata": {"name": "n1"}, "spec": spec}, ResourceSliceObject)),
        ObjectChanged(decode({"metadata": {"name": "c"}, "spec": {}}, DeviceClassObject)),
        *[_claim(name) for name in ("short", "next")],
    )
    for name in ("short", "next"):
        harness.group(name, queue="q")
    claims = [{"name": "r", "resourceClaimName": "short"}]
    harness.pod("short", group="short", resourceClaims=claims)
    (bound,) = [intent for intent in harness.step().intents if isinstance(intent, Bind)]
    harness.pod("short", group="short", node="n1", phase=phase, resourceClaims=claims)
    if seen:
        harness.apply(_claim("short", _allocated(bound.uid)))
    harness.apply(_claim("short"))
    harness.pod("next", group="next", resourceClaims=[{"name": "r", "resourceClaimName": "next"}])
    assert [intent.name for intent in harness.step().intents if isinstance(intent, Bind)] == ["next"]
    assert harness.core.snapshot().state.claims.consumers("default/short") == set()
