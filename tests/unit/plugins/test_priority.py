"""Priority: orders, starving jobs and victims."""

from __future__ import annotations

import pytest

from capcard_sched.framework.session.statement import Statement
from capcard_sched.plugins.priority import Priority
from capcard_sched.testing import Harness

_CONF = """
actions: "allocate"
tiers: [{plugins: [{name: priority}]}]
"""


def test_the_higher_task_priority_goes_first() -> None:
    h = Harness(_CONF)
    h.pod("low", priority=5)
    h.pod("high", priority=10)
    h.session()
    assert Priority().task_order(h.task("high")) < Priority().task_order(h.task("low"))


def test_a_pod_without_priority_goes_before_one_of_priority_zero() -> None:
    h = Harness(_CONF)
    h.pod("none")
    h.pod("zero", priority=0)
    h.session()
    assert Priority().task_order(h.task("none")) < Priority().task_order(h.task("zero"))


def test_equal_priorities_have_equal_keys() -> None:
    h = Harness(_CONF)
    h.pod("a", priority=3)
    h.pod("b", priority=3)
    h.session()
    assert Priority().task_order(h.task("a")) == Priority().task_order(h.task("b"))


def test_the_annotation_overrides_the_pods_priority_unless_it_is_no_number() -> None:
    h = Harness(_CONF)
    h.pod("annotated", priority=1, annotations={"volcano.sh/task-priority": "9"})
    h.pod("garbled", priority=4, annotations={"volcano.sh/task-priority": "high"})
    h.session()
    assert Priority().task_order(h.task("annotated")) < Priority().task_order(h.task("garbled")) == -4


def test_jobs_of_higher_priority_class_are_placed_first() -> None:
    h = Harness(_CONF)
    h.priority_class("urgent", 1000)
    h.node("n1", cpu="1")
    h.queue("q")
    h.group("old")
    h.group("new", priority_class="urgent")
    h.pod("old-pod", group="old")
    h.pod("new-pod", group="new")
    h.step()
    assert h.binds == {"new-pod": "n1"}


@pytest.mark.parametrize(
    "preemptor, victims",
    [pytest.param("c100", ["c50"], id="lower jobs only"), pytest.param("c50", [], id="never an equal or higher job")],
)
def test_preemptable_compares_jobs(preemptor: str, victims: list[str]) -> None:
    h = Harness(_CONF)
    h.queue("q")
    h.node("n1")
    for value in (50, 100, 150):
        h.priority_class(f"c{value}", value)
        h.group(f"g{value}", priority_class=f"c{value}")
        h.pod(f"c{value}", group=f"g{value}", node="n1")
    h.group("preemptor", priority_class=preemptor)
    h.pod("p", group="preemptor")
    h.session()
    candidates = [h.task(name) for name in ("c50", "c100", "c150")]
    assert [task.name for task in Priority().preemptable(h.task("p"), candidates)] == victims


def test_preemptable_compares_tasks_inside_a_job() -> None:
    h = Harness(_CONF)
    h.queue("q")
    h.node("n1")
    h.group("g")
    h.pod("p", priority=5)
    for priority in (1, 5, 9):
        h.pod(f"c{priority}", priority=priority, node="n1")
    h.session()
    candidates = [h.task(f"c{priority}") for priority in (1, 5, 9)]
    assert [task.name for task in Priority().preemptable(h.task("p"), candidates)] == ["c1"]


def test_preemptable_skips_candidates_without_a_job() -> None:
    h = Harness(_CONF)
    h.queue("q")
    h.node("n1")
    h.group("g")
    h.pod("p")
    h.pod("foreign", group=None, node="n1", scheduler="default-scheduler")
    h.session()
    assert h.task("foreign").job is None
    assert Priority().preemptable(h.task("p"), [h.task("foreign")]) == []


def test_a_job_starves_while_any_member_is_not_placed() -> None:
    h = Harness(_CONF)
    h.queue("q")
    h.node("n1")
    h.group("g", min_member=1)
    h.pod("r0", node="n1")
    h.pod("done", node="n1", phase="Succeeded")
    h.session()
    assert not Priority().job_starving(h.job("g"))
    h.pod("waits")
    h.session()
    assert Priority().job_starving(h.job("g"))


def test_nominated_and_finished_members_are_placed() -> None:
    """Example 1.5: 2 Running, 1 Succeeded, 1 Pipelined, 1 Pending."""
    h = Harness(_CONF)
    h.queue("q")
    h.node("n1")
    h.group("g", min_member=1)
    for name in ("r0", "r1"):
        h.pod(name, node="n1")
    h.pod("done", node="n1", phase="Succeeded")
    h.pod("promised")
    h.pod("waits")
    session = h.session()
    node = session.nodes.by_name["n1"]
    Statement(session).pipeline(h.job("g"), [h.task("promised")], [node])
    assert Priority().job_starving(h.job("g"))
    Statement(session).pipeline(h.job("g"), [h.task("waits")], [node])
    assert not Priority().job_starving(h.job("g"))


@pytest.mark.parametrize(
    "with_gang, starving",
    [
        pytest.param(False, True, id="alone it lets an elastic job take more than its minimum"),
        pytest.param(True, False, id="beside gang the stricter rule counts"),
    ],
)
def test_in_one_tier_all_must_call_a_job_starving(with_gang: bool, starving: bool) -> None:
    gang = ", {name: gang}" if with_gang else ""
    h = Harness(f'actions: "allocate"\ntiers: [{{plugins: [{{name: priority}}{gang}]}}]')
    h.queue("q")
    h.node("n1")
    h.group("g", min_member=1)
    h.pod("runs", node="n1")
    h.pod("waits")
    assert h.session().job_starving(h.job("g")) is starving


# --- classes that no ResourceQuota restricts --------------------------------------------------------------------------


def _rivals(arguments: str = "") -> Harness:
    h = Harness(f"""
actions: "enqueue, allocate, preempt"
tiers:
- plugins:
  - {{name: priority{arguments}}}
  - {{name: gang, enablePreemptable: false}}
- plugins:
  - name: predicates
""")
    h.priority_class("system-cluster-critical", 2_000_000_000)
    h.priority_class("high", 1000)
    h.node("n1", cpu="4")
    h.queue("q")
    h.group("victim", phase="Running")
    h.pod("victim", group="victim", requests={"cpu": "4"}, node="n1")
    return h


@pytest.mark.parametrize(("namespace", "evicts"), [("default", False), ("kube-system", True)])
@pytest.mark.parametrize("name", ["system-cluster-critical", "system-node-critical"])
def test_critical_classes_of_jobs_count_only_in_kube_system(name: str, namespace: str, evicts: bool) -> None:
    h = _rivals()
    h.priority_class("system-node-critical", 2_000_001_000)
    h.group("mine", namespace=namespace, priority_class=name)
    h.pod("mine", group="mine", namespace=namespace, requests={"cpu": "4"})
    assert bool(h.step().report.evicted) == evicts
    events = [event for event in h.event_messages("PodGroup", "mine") if event[0] == "PriorityClassIgnored"]
    text = f"PriorityClass {name} counts only in namespace kube-system; the default priority applies"
    assert events == ([] if evicts else [("PriorityClassIgnored", text)])


@pytest.mark.parametrize(("bound", "pod_class", "evicts"), [(False, "", True), (True, "", False), (True, "high", True)])
def test_bound_by_pods_limits_a_job_to_the_highest_class_of_its_pods(bound: bool, pod_class: str, evicts: bool) -> None:
    h = _rivals(", arguments: {priority.boundByPods: true}" if bound else "")
    h.group("mine", priority_class="high")
    h.pod("mine", group="mine", requests={"cpu": "4"}, priorityClassName=pod_class)
    assert bool(h.step().report.evicted) == evicts


def test_a_task_priority_annotation_does_not_raise_the_bound() -> None:
    h = _rivals(", arguments: {priority.boundByPods: true}")
    h.group("mine", priority_class="high")
    h.pod("mine", group="mine", requests={"cpu": "4"}, annotations={"volcano.sh/task-priority": "100000"})
    assert not h.step().report.evicted
