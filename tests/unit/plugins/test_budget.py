"""The budget plugin and ResourceClaims: what `tests/vectors/budget.yaml` does not show."""

from __future__ import annotations

import pytest

from benchmarks.claim_objects import present
from capcard_sched.devices import device_content, selector_work
from capcard_sched.model.annotations import CARD_REQUEST
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.device_objects import ResourceClaimObject
from capcard_sched.testing import Harness
from tests.unit.devices.pools import claim, decode
from tests.unit.plugins.test_namespace_work import _put
from tests.vectors.notation import VectorHarness

H200 = "NVIDIA-H200"
_TERM = 'device.attributes["gpu.nvidia.com"].uuid == "{}"'


def _world(plugins: str, nodes: int) -> Harness:
    """Nodes with devices, and a queue with a spent budget."""
    h = VectorHarness(
        f'actions: "enqueue, allocate"\ntiers: [{{plugins: [{{name: priority}}, {{name: gang}}, {plugins}]}}]'
    )
    h.apply(*present("D1", nodes))
    h.do(f"queue q; card_budget month cards={H200}:1h used={H200}:1.00h")
    h.step()
    return h


def _phases(h: Harness) -> dict[str, str]:
    return {job.name: job.phase.value for job in h.state.jobs.values()}


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_refused_job_is_judged_again_when_its_claim_changes(order: str) -> None:
    h = _world("{name: predicates}, {name: budget}", 4)
    for name in order:  # the first refused job is the sample of the other
        request = {CARD_REQUEST: f'{{"{H200}": 1}}'} if name == "a" else {}
        h.group(name, queue="q", namespace="bad", phase="Pending", annotations=request)
        if name == "b":
            _put(h, 1, "bad", "b", "b")
        h.step()
    assert _phases(h) == {"a": "Pending", "b": "Pending"}

    changed = claim(1, {"r": {"class": "gpu", "cel": _TERM.format("none")}})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "pod-1", "controller": True}
    changed["metadata"] |= {"namespace": "bad", "ownerReferences": [owner]}
    h.apply(ObjectChanged(decode(changed, ResourceClaimObject)))
    h.step()
    h.step()
    assert _phases(h) == {"a": "Pending", "b": "Inqueue"}


@pytest.mark.parametrize("plugins", ["{name: budget}", "{name: predicates}, {name: budget}"])
def test_selectors_beyond_the_steps_of_a_session_wait_for_the_next_one(
    plugins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selector_work, "MOST_STEPS", 100_000)
    monkeypatch.setattr(selector_work, "MOST_OF_CONTENT", 20_000)
    monkeypatch.setattr(device_content, "_MOST_RESULTS", 8)
    h = _world(plugins, 60)
    costly = {0: ("x", 100), 13: ("y", 105), 14: ("z", 106)}  # more steps than the claims of one content may take
    for number in range(16):
        uuid, count = costly.get(number, (f"none-{number}", 1))
        terms = [_TERM.format(uuid)] * count
        h.group(f"j{number}", queue="q", namespace="bad", phase="Pending")
        _put(h, number, "bad", f"j{number}", f"j{number}", " || ".join(terms))
    for _ in range(4):
        assert not h.step().report.errors
    refused = range(16) if plugins == "{name: budget}" else costly  # without predicates no claim gets devices
    assert _phases(h) == {f"j{number}": "Pending" if number in refused else "Inqueue" for number in range(16)}
