"""The counters behind pod affinity and spread when notifications are late, lost or undone."""

from __future__ import annotations

from capcard_sched.framework.api.plugin import Placement
from capcard_sched.framework.session.statement import Statement
from capcard_sched.framework.toolkit.pod_selectors import PodSelector
from capcard_sched.framework.toolkit.topology_counts import TopologyCount, TopologyCounts
from capcard_sched.model.objects import LabelSelector, Requirement
from capcard_sched.testing import Harness

CONF = """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
  - name: predicates
"""
WEB = (PodSelector(LabelSelector(match_expressions=(Requirement("app", "In", ("web",)),)), ("default",)),)
NEAR_WEB = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
        ]
    }
}


def cluster() -> Harness:
    h = Harness(CONF)
    h.queue("q")
    h.group("g")
    h.node("a")
    h.node("b")
    h.pod("resident", node="a", labels={"app": "web"})
    return h


def counters(h: Harness) -> TopologyCounts:
    found: TopologyCounts = h.plugin("predicates")._rules.counters
    return found


def by_row(h: Harness, pod_count: TopologyCount) -> list[int]:
    numbers: list[int] = pod_count.by_row(counters(h).index)[:-1].tolist()
    return numbers


def test_a_selector_first_used_in_mid_session_counts_the_current_pods() -> None:
    h = cluster()
    h.pod("p", labels={"app": "web"})
    h.pod("q", labels={"app": "web"})
    session = h.session()
    statement = Statement(session)
    statement.evict(h.task("resident"), "test")
    statement.allocate(h.job("g"), [h.task("p"), h.task("q")], [session.nodes.by_name[name] for name in "ab"])
    pod_count = counters(h).pods(WEB)
    assert by_row(h, pod_count) == [1, 1]
    statement.discard()
    assert by_row(h, pod_count) == [1, 0]


def test_a_pod_that_was_never_announced_is_not_counted_off() -> None:
    h = cluster()
    h.pod("asks", affinity=NEAR_WEB)
    h.pod("p", labels={"app": "web"})
    session = h.session()
    job, task, node = h.job("g"), h.task("p"), session.nodes.by_name["b"]
    pod_count = counters(h).pods(WEB)
    session.state.place(job, [task], [node], task.status.ALLOCATED)
    # As when another plugin fails before `on_allocate` of this one is called.
    h.plugin("predicates").on_deallocate(Placement(job, task.cls, [task], [node]))
    session.state.unplace(job, [task])
    assert by_row(h, pod_count) == [1, 0]


def test_an_eviction_that_came_to_nothing_is_repaired_at_the_next_open() -> None:
    h = cluster()
    h.pod("asks", affinity=NEAR_WEB)
    h.session()
    task = h.task("resident")
    assert task.job is not None
    assert task.node is not None
    h.plugin("predicates").on_deallocate(Placement(task.job, task.cls, [task], [task.node]))
    pod_count = counters(h).pods(WEB)
    assert by_row(h, pod_count) == [0, 0]
    h.session()
    assert by_row(h, pod_count) == [1, 0]


def test_nothing_is_counted_while_no_pod_has_terms() -> None:
    h = cluster()
    h.session()
    assert counters(h).idle
    h.pod("asks", affinity=NEAR_WEB)
    h.session()
    assert not counters(h).idle
    h.delete_pod("asks")
    for _ in range(70):
        h.session()
    assert counters(h).idle
