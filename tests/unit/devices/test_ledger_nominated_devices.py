"""Devices of victims between their end and the release of their claims, which another controller writes."""

from __future__ import annotations

from typing import Any, Final

from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.device_objects import DeviceClassObject, ResourceClaimObject, ResourceSliceObject
from capcard_sched.testing import Harness
from tests.unit.devices.pools import decode
from tests.vectors.world import conf_text

_CONF: Final = conf_text(
    ["enqueue, allocate, preempt", ["priority", {"gang": {"enablePreemptable": False}}], ["predicates"]]
)


def _claim(name: str, consumer: str = "", device: str = "g0") -> ObjectChanged:
    """A claim of one device; with the uid of a pod it is allocated and reserved."""
    here = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    status: dict[str, Any] = {
        "reservedFor": [{"resource": "pods", "name": "low", "uid": consumer}],
        "allocation": {
            "devices": {"results": [{"request": "r", "driver": "d", "pool": "n1", "device": device}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        },
    }
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
        "status": status if consumer else {},
    }
    return ObjectChanged(decode(body, ResourceClaimObject))


def _harness() -> Harness:
    harness = Harness(_CONF)
    harness.node("n1", cpu="8")
    harness.queue("q")
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "nodeName": "n1", "pool": pool, "devices": [{"name": "g0"}, {"name": "g1"}]}
    harness.apply(
        ObjectChanged(decode({"metadata": {"name": "n1"}, "spec": spec}, ResourceSliceObject)),
        ObjectChanged(decode({"metadata": {"name": "c"}, "spec": {}}, DeviceClassObject)),
        *[_claim(name) for name in ("of-high", "of-other")],
    )
    harness.priority_class("high", 9)
    for name in ("low", "kept"):
        harness.group(name, queue="q", phase="Running")
    harness.group("high", queue="q", priority_class="high")
    harness.group("other", queue="q")
    return harness


def _pod(harness: Harness, name: str, **more: Any) -> None:
    harness.pod(name, group=name, resourceClaims=[{"name": "r", "resourceClaimName": f"of-{name}"}], **more)


def _running(harness: Harness) -> str:
    """Two pods that run, each with one of the devices. The uid of the one of job low."""
    for name, device in (("kept", "g1"), ("low", "g0")):
        _pod(harness, name, node="n1", phase="Running")
        harness.step()
        (uid,) = [task.uid for task in harness.core.snapshot().state.tasks.values() if task.name == name]
        harness.apply(_claim(f"of-{name}", uid, device))
    harness.step()
    return uid


def test_a_nomination_waits_for_the_release_of_the_claim() -> None:
    harness = _harness()
    _running(harness)
    _pod(harness, "high", priority=9)
    harness.step()
    leaving = harness.core.snapshot().state.claims.leaving
    (uid,) = leaving  # evicted
    victim = harness.core.snapshot().state.tasks[uid].name
    harness.delete_pod(victim)
    _pod(harness, "other")
    for _ in range(3):
        harness.step()
        assert not harness.binds
        assert list(leaving) == [uid]  # no second victim
    harness.apply(_claim(f"of-{victim}"))
    harness.step()
    assert harness.binds == {"high": "n1"}


def test_devices_of_an_ended_pod_are_free_when_its_claim_is_released() -> None:
    harness = _harness()
    _running(harness)
    _pod(harness, "low", node="n1", phase="Succeeded")
    _pod(harness, "other")
    for _ in range(2):
        harness.step()
        assert not harness.binds
    harness.apply(_claim("of-low"))
    harness.step()
    assert harness.binds == {"other": "n1"}
