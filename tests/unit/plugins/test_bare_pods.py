"""Bare pods as candidates for preemption: plugin gang protects them, and the report names the cause."""

from __future__ import annotations

import pytest

from capcard_sched.model.intents import Evict
from capcard_sched.testing import Harness

_CONF = """
actions: "enqueue, allocate, preempt"
tiers:
- plugins: [{{name: priority}}, {{name: gang{switches}}}]
- plugins: [{{name: predicates}}]
"""


def cluster(switches: str) -> Harness:
    h = Harness(_CONF.format(switches=switches), run=True)
    h.queue("q")
    h.queue("default")
    for value in (1, 10):
        h.priority_class(f"p{value}", value)
    h.node("n", cpu="1")
    h.pod("bare", group=None, node="n", phase="Running", requests={"cpu": "1"}, priority=1)
    h.group("g", queue="default", priority_class="p10")
    h.pod("p", requests={"cpu": "1"}, priority=10)
    return h


@pytest.mark.parametrize(("switches", "evicted"), [("", []), (", enablePreemptable: false", ["bare"])])
def test_a_bare_pod_is_protected_by_gang_alone(switches: str, evicted: list[str]) -> None:
    h = cluster(switches)
    result = h.step()
    assert [intent.name for intent in result.intents if isinstance(intent, Evict)] == evicted


def test_the_report_names_the_bare_pod() -> None:
    h = cluster("")
    h.step()
    session = h.last_session
    (report,) = session.preemption_reports["default/g"].values()
    assert "gang (bare pod)" in report.text
