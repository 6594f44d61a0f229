"""The cdp plugin: what `tests/vectors/cdp.yaml` does not show."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.kube.instrumentation import Observer
from capcard_sched.kube.kinds import KINDS
from capcard_sched.kube.reflector import DeltaStore
from capcard_sched.model.annotations import COOLDOWN_TIME
from capcard_sched.model.cooldown import Cooldown
from capcard_sched.model.objects import PodObject
from tests.objects import stamp


def pod(ready: bool, **meta: Any) -> PodObject:
    conditions = [
        {"type": name, "status": "True", "lastTransitionTime": stamp(60)} for name in ("PodScheduled", "Ready")
    ]
    body = {
        "metadata": {"name": "p", "namespace": "d", **meta},
        "status": {"phase": "Running", "conditions": conditions[: 1 + ready]},
    }
    return msgspec.convert(body, PodObject)


@pytest.mark.parametrize(
    ("meta", "received"),
    [({"annotations": {COOLDOWN_TIME: "10m"}}, 2), ({"labels": {COOLDOWN_TIME: "10m"}}, 2), ({}, 1)],
)
def test_conditions_are_kept_only_for_pods_with_a_cool_down(meta: dict[str, Any], received: int) -> None:
    known: DeltaStore[PodObject] = DeltaStore(next(kind for kind in KINDS if kind.name == "Pod"), Observer())
    out: list[Any] = []
    for ready in (False, True, True):
        known.changed(pod(ready, **meta), out)
    assert len(out) == received


@given(
    text=st.sampled_from(["10m", "0", "1h", "x", "-5m"]),
    scheduled=st.one_of(st.just(0.0), st.floats(1, 1e9)),
    ready=st.one_of(st.just(0.0), st.floats(1, 1e9)),
    start=st.sampled_from(["PodScheduled", "ContainersReady", "Ready"]),
)
def test_a_cool_down_ends_its_length_after_its_start(text: str, scheduled: float, ready: float, start: Any) -> None:
    found = Cooldown(text, False, scheduled, ready, ready)
    length = {"10m": 600, "1h": 3600}.get(text, 0)
    begun = scheduled if start == "PodScheduled" or not ready else ready
    assert found.until(start) == (begun + length if begun else 0.0)
