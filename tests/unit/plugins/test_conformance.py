"""The conformance plugin."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from capcard_sched.plugins.conformance import Conformance
from capcard_sched.testing import Harness

_CONF = """
actions: "allocate"
tiers: [{plugins: [{name: conformance}]}]
"""


class Pod(NamedTuple):
    name: str
    namespace: str = "default"
    priority_class: str = ""


@pytest.mark.parametrize(
    "pods, victims",
    [
        pytest.param([Pod("a"), Pod("b", "kube-system")], ["a"], id="3.1 kube-system stays"),
        pytest.param(
            [Pod("a", priority_class="system-node-critical"), Pod("b", "ml", "high")],
            ["b"],
            id="3.2 node-critical pods stay",
        ),
        pytest.param([Pod("a", "kube-system")], [], id="3.3 an empty list is a decision, not an abstention"),
        pytest.param([Pod("a", "monitoring", "huge")], ["a"], id="3.4 only the name of a class counts"),
        pytest.param([Pod("a", priority_class="system-cluster-critical")], [], id="cluster-critical pods stay"),
    ],
)
@pytest.mark.parametrize("hook", ["preemptable", "reclaimable"])
def test_critical_pods_are_no_victims(hook: str, pods: list[Pod], victims: list[str]) -> None:
    h = Harness(_CONF)
    h.node("n1")
    h.priority_class("huge", 2_000_001_000)
    h.pod("preemptor")
    for pod in pods:
        more: dict[str, Any] = {"priorityClassName": pod.priority_class} if pod.priority_class else {}
        h.pod(pod.name, namespace=pod.namespace, node="n1", **more)
    h.session()
    candidates = [h.task(pod.name, namespace=pod.namespace) for pod in pods]
    answer = getattr(Conformance(), hook)(h.task("preemptor"), candidates)
    assert [task.name for task in answer] == victims
