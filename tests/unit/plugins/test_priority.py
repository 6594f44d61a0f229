"""Priority: orders, starving jobs and victims."""

from __future__ import annotations

import pytest

from capcard_sched.testing import Harness

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
