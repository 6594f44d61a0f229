"""shuffle: tasks that plugins name are evicted, unless they are protected or their gang would be broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from capcard_sched.framework.api.plugin import Plugin
from capcard_sched.model.intents import Evict
from capcard_sched.model.job import Task
from capcard_sched.testing import Harness
from tests.accounting import rebuilt, recorded
from tests.evictions import evicted

_CONF = """
actions: "allocate, shuffle"
tiers: [{plugins: [{name: gang}]}, {plugins: [{name: pointing}]}]
"""


class _Pointing(Plugin):
    name: ClassVar[str] = "pointing"
    names: ClassVar[frozenset[str]] = frozenset()

    def victim_tasks(self, tasks: Sequence[Task]) -> list[Task]:
        if "boom" in self.names:
            raise RuntimeError("boom")
        return [task for task in tasks if task.name in self.names]


def _harness(names: set[str], *, pods: int = 4, least: int = 1, **pod: Any) -> Harness:
    _Pointing.names = frozenset(names)
    h = Harness(_CONF, run=True, plugins=[_Pointing])
    h.node("n1")
    h.queue("q")
    h.group("g", min_member=least, phase="Running")
    for i in range(pods):
        h.pod(f"g-w-{i}", node="n1", **pod)
    return h


@pytest.mark.parametrize(
    "names, least, gone",
    [
        pytest.param({"g-w-1"}, 1, ["g-w-1"], id="named victims"),
        pytest.param({"g-w-0", "g-w-1"}, 3, ["g-w-0"], id="as many as the gang can do without"),
        pytest.param({"g-w-0"}, 4, [], id="a gang without a spare member is not broken"),
        pytest.param({f"g-w-{i}" for i in range(4)}, 4, [f"g-w-{i}" for i in range(4)], id="all of it may go"),
    ],
)
def test_named_pods_are_evicted(names: set[str], least: int, gone: list[str]) -> None:
    h = _harness(names, least=least)
    result = h.step()
    assert evicted(result) == gone
    assert {intent.reason for intent in result.intents if isinstance(intent, Evict)} <= {"shuffle"}
    assert recorded(h.state) == rebuilt(h.state)


@pytest.mark.parametrize(
    "pod",
    [
        {"annotations": {"volcano.sh/preemptable": "false"}},
        {"priorityClassName": "system-cluster-critical"},
    ],
)
def test_protected_pods_stay(pod: dict[str, Any]) -> None:
    assert evicted(_harness({"g-w-0"}, **pod).step()) == []


def test_a_failing_plugin_evicts_no_pod_and_the_session_completes() -> None:
    h = _harness({"boom"})
    result = h.step()
    assert evicted(result) == []
    assert [(error.plugin, error.hook) for error in result.report.errors] == [("pointing", "victim_tasks")]
