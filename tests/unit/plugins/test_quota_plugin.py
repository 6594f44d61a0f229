"""Jobs whose minimum exceeds a capability, under the plugins that limit queues by resource."""

from __future__ import annotations

import msgspec
import pytest

from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.limits import ResourceQuotaObject
from capcard_sched.testing import Harness

_GPU = "nvidia.com/gpu"


def _harness(plugin: str) -> Harness:
    h = Harness(f'actions: "enqueue, allocate"\ntiers: [{{plugins: [{{name: gang}}, {{name: {plugin}}}]}}]', run=True)
    h.node("n", cpu="64", resources={_GPU: 32})
    return h


def _text(needs: str, limit: str, resource: str, queue: str) -> str:
    owner = f"Queue <{queue}>" if "(" not in queue else f"Queue {queue}"
    figures = f"needs {needs}, quota is {limit} (<{resource}> of {owner})"
    return f"can never start: {figures}; nothing is reserved for it"


@pytest.mark.parametrize("plugin", ["capacity", "proportion", "capacity, enableHierarchy: true"])
@pytest.mark.parametrize(
    ("minimum", "expected"),
    [
        ({_GPU: "16"}, _text("16", "8", _GPU, "q")),
        ({"cpu": "12"}, _text("12", "10", "cpu", "q")),
        ({_GPU: "8", "cpu": "10"}, None),
    ],
)
def test_a_minimum_above_a_capability_is_reported(plugin: str, minimum: dict[str, str], expected: str | None) -> None:
    h = _harness(plugin)
    h.queue("q", capability={_GPU: 8, "cpu": "10"})
    h.group("g", queue="q", phase="Pending", min_resources=minimum)
    h.step()

    assert [event.message for event in h.events if event.reason == "CanNeverStart"] == ([expected] if expected else [])
    found = [condition for condition in h.job("g").conditions if condition.type == "CanNeverStart"]
    assert [condition.message for condition in found] == ([expected] if expected else [])


@pytest.mark.parametrize("plugin", ["capacity", "proportion", "capacity-card"])
def test_an_admitted_job_above_a_lowered_limit_returns_its_reservation_at_once(plugin: str) -> None:
    h = _harness(plugin)
    h.queue("q", capability={"cpu": "20"})
    h.group("g", queue="q", phase="Pending", min_resources={"cpu": "16"})
    h.step()
    assert h.phases["g"] == "Inqueue"
    h.group("small", queue="q", phase="Pending", min_resources={"cpu": "6"})
    h.step()
    assert h.phases["small"] == "Pending", "16 of 20 are reserved"

    h.queue("q", capability={"cpu": "12"})
    h.settle()

    assert h.phases["g"] == "Pending"
    assert h.phases["small"] == "Inqueue"
    text = _text("16", "12", "cpu", "q")
    assert ("CanNeverStart", text) in h.event_messages("PodGroup", "g")
    assert ("CanNeverStart", "True", text) in {(one.type, one.status, one.message) for one in h.job("g").conditions}


# --- groups without pending pods --------------------------------------------------------------------------------------

_ADMITTING = [
    "{name: capacity}",
    "{name: proportion}",
    "{name: capacity-card}",
    "{name: overcommit, arguments: {overcommit-factor: 1}}",
    "{name: resourcequota}",
]


def _set_quota(h: Harness, used: str) -> None:
    """A ResourceQuota of 5 cpu; the pods of the harness do not change its usage."""
    hard, meta = {"cpu": "5"}, {"name": "quota", "namespace": "default"}
    quota = {"metadata": meta, "spec": {"hard": hard}, "status": {"hard": hard, "used": {"cpu": used}}}
    h.apply(ObjectChanged(msgspec.convert(quota, ResourceQuotaObject)))


def _half_full(plugin: str) -> Harness:
    """An admitted PodGroup `g` with a minimum of two pods, 4 cpu in all, under a limit of 5."""
    h = Harness(f'actions: "enqueue, allocate"\ntiers: [{{plugins: [{{name: gang}}, {plugin}]}}]', run=True)
    h.node("n", cpu="5")
    h.queue("q", capability={"cpu": "5"})
    _set_quota(h, used="0")
    h.group("g", queue="q", min_member=2, phase="Pending", min_resources={"cpu": "4"})
    h.step()
    assert h.phases["g"] == "Inqueue"
    return h


def _admits_next(h: Harness) -> bool:
    h.group("next", queue="q", min_member=1, phase="Pending", min_resources={"cpu": "2"})
    h.settle()
    return h.phases["next"] == "Inqueue"


@pytest.mark.parametrize("plugin", _ADMITTING)
def test_an_admitted_group_whose_pods_are_not_created_yet_keeps_its_reservation(plugin: str) -> None:
    assert not _admits_next(_half_full(plugin))


@pytest.mark.parametrize("plugin", _ADMITTING)
def test_an_admitted_group_with_a_part_of_its_pods_keeps_its_reservation(plugin: str) -> None:
    h = _half_full(plugin)
    h.pod("g-0", group="g", requests={"cpu": "2"})
    _set_quota(h, used="2")
    h.step()
    assert not _admits_next(h)


@pytest.mark.parametrize("plugin", _ADMITTING)
@pytest.mark.parametrize("end", ["deleted", "Failed", "Succeeded"])
def test_an_admitted_group_whose_only_pod_ended_reserves_nothing(plugin: str, end: str) -> None:
    h = _half_full(plugin)
    h.pod("g-0", group="g", requests={"cpu": "2"})
    h.step()
    if end == "deleted":
        h.delete_pod("g-0")
    else:
        h.set_phase("g-0", end)
    h.step()
    assert _admits_next(h)


def test_new_pods_of_such_a_group_reserve_again() -> None:
    h = _half_full("{name: capacity}")
    h.pod("g-0", group="g", requests={"cpu": "2"})
    h.step()
    h.delete_pod("g-0")
    h.step()
    h.pod("g-1", group="g", requests={"cpu": "2"})
    h.step()
    assert not _admits_next(h)


def test_a_new_group_of_the_same_name_reserves_before_its_pods_are_created() -> None:
    h = _half_full("{name: capacity}")
    h.pod("g-0", group="g", requests={"cpu": "2"})
    h.step()
    h.delete_pod("g-0")
    h.delete_group("g")
    h.step()
    h.group("g", queue="q", min_member=2, phase="Pending", min_resources={"cpu": "4"})
    h.step()
    assert h.phases["g"] == "Inqueue"
    assert not _admits_next(h)
