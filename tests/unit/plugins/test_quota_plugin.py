"""Jobs whose minimum exceeds a capability, under the plugins that limit queues by resource."""

from __future__ import annotations

import pytest

from capcard_sched.testing import Harness

_GPU = "nvidia.com/gpu"


def _harness(plugin: str) -> Harness:
    h = Harness(f'actions: "enqueue, allocate"\ntiers: [{{plugins: [{{name: gang}}, {{name: {plugin}}}]}}]', run=True)
    h.node("n", cpu="64", resources={_GPU: 32})
    return h


def _text(needs: str, limit: str, resource: str, queue: str) -> str:
    figures = f"needs {needs}, quota is {limit} (<{resource}> of Queue <{queue}>)"
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


def test_the_capability_of_an_ancestor_limits_a_job_too() -> None:
    h = _harness("capacity, enableHierarchy: true")
    h.queue("parent", capability={_GPU: 8})
    h.queue("child", parent="parent")
    h.group("g", queue="child", phase="Pending", min_resources={_GPU: "16"})
    h.step()

    messages = [event.message for event in h.events if event.reason == "CanNeverStart"]
    assert messages == [_text("16", "8", _GPU, "parent")]


def test_a_raised_capability_ends_the_report() -> None:
    h = _harness("capacity")
    h.queue("q", capability={_GPU: 8})
    h.group("g", queue="q", phase="Pending", min_resources={_GPU: "16"})
    h.pod("p", group="g", requests={_GPU: "16"})
    h.step()
    h.queue("q", capability={_GPU: 16})
    h.settle()

    assert {(one.type, one.status) for one in h.job("g").conditions} >= {("CanNeverStart", "False")}
    assert h.binds == {"p": "n"}
