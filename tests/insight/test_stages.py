"""Stages that the situations do not reach."""

from __future__ import annotations

from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.model.deltas import BindFailed
from capcard_sched.testing import Harness

CONF = """
actions: "enqueue, allocate, preempt"
tiers: [{plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: predicates}]}]
"""


def cluster() -> Harness:
    h = Harness(CONF)
    h.node("n1", cpu="4")
    h.queue("q")
    return h


def test_a_failed_binding_is_a_backoff() -> None:
    h = cluster()
    h.group("g")
    h.pod("p", group="g", requests={"cpu": "2"})
    h.step()
    failed = BindFailed("default", "p", h.task("p").uid, "etcdserver: request timed out", retry_after=60.0)
    h.core.step([failed], h.now + 1)
    found = diagnose_job(h.core.snapshot(), h.job("g"))
    assert (found.stage, found.scheduled) == ("BindBackoff", 0)
    assert found.summary == "Binding p failed; it is retried after a backoff"


def test_a_nominated_pod_waits_for_its_victims() -> None:
    h = cluster()
    h.priority_class("urgent", 1000)
    h.group("low", phase="Running")
    h.pod("low", group="low", requests={"cpu": "3"}, node="n1", phase="Running")
    h.group("high", priority_class="urgent")
    h.pod("high", group="high", requests={"cpu": "3"}, priority=1000)
    h.step()
    found = diagnose_job(h.core.snapshot(), h.job("high"))
    assert (found.stage, found.summary) == (
        "VictimsTerminating",
        "1 pod nominated to n1; waiting for the victims to terminate",
    )
    left = diagnose_job(h.core.snapshot(), h.job("low"))
    assert (left.stage, left.summary) == ("Terminating", "Not pending: 1 of 1 pod is terminating")


def test_a_gang_that_fits_in_part_reports_the_pods_that_fit() -> None:
    h = cluster()
    h.group("g", min_member=4)
    for number in range(4):
        h.pod(f"p{number}", group="g", requests={"cpu": "2"})
    h.step()
    found = diagnose_job(h.core.snapshot(), h.job("g"))
    assert found.summary.startswith("2 of 4 pending pods fit now, and the gang starts with 4")


def test_the_decision_of_the_next_session_is_announced() -> None:
    h = cluster()
    h.group("pods")
    h.pod("p", group="pods", requests={"cpu": "1"})
    h.group("none", phase="Pending")
    h.step()
    assert diagnose_job(h.core.snapshot(), h.job("pods")).summary == "The next session binds 1 pod to n1"
    found = diagnose_job(h.core.snapshot(), h.job("none"))
    assert (found.stage, found.summary) == (
        "Schedulable",
        "The next session admits the PodGroup; then its controller creates the pods",
    )


def test_nodes_without_the_card_are_no_part_of_the_reason() -> None:
    h = Harness()
    h.gpu_node("card", "NVIDIA-H200", 8, cpu="64")
    h.node("small", cpu="1")
    h.queue("q", cards={"NVIDIA-H200": 16})
    h.group("runs", queue="q", phase="Running")
    h.pod("runs", group="runs", card="NVIDIA-H200", cards=4, node="card", phase="Running")
    h.group("waits", queue="q")
    h.pod("waits", group="waits", card="NVIDIA-H200", cards=8, requests={"cpu": "2"})
    h.step()
    found = diagnose_job(h.core.snapshot(), h.job("waits"))
    assert "Insufficient cpu" in found.pending[0].message
    assert found.summary == "No node has 8 NVIDIA-H200 free: the largest free block is 4, on 1 node (card)"
    assert [row.card for row in found.capacity] == ["NVIDIA-H200"]


def test_a_diagnosis_of_one_pod_is_about_that_pod() -> None:
    h = cluster()
    h.group("g", min_member=2)
    h.pod("small", group="g", requests={"cpu": "1"})
    h.pod("large", group="g", requests={"cpu": "8"})
    h.step()
    found = diagnose_job(h.core.snapshot(), h.job("g"), pod="large")
    assert found.stage == "CannotStart"
    assert found.summary == "Can never start: each pod needs 8 cpu, and the largest node has 4"
    assert [pods.names for pods in found.pending] == [("large",)]


def test_one_of_several_resources_that_no_node_has_is_named() -> None:
    h = cluster()
    h.group("g")
    h.pod("large", group="g", requests={"cpu": "8", "memory": "9Ti"})
    h.step()
    found = diagnose_job(h.core.snapshot(), h.job("g"))
    assert found.summary == "Can never start: each pod needs 8 cpu, and the largest node has 4"


def test_the_largest_node_with_any_of_the_cards_counts() -> None:
    h = Harness()
    h.gpu_node("n1", "A", 4)
    h.gpu_node("n2", "B", 6)
    h.queue("q", cards={"A": 16, "B": 16})
    h.group("g", queue="q")
    h.pod("p", group="g", card="A|B", cards=8)
    h.step()
    found = diagnose_job(h.core.snapshot(), h.job("g"))
    assert found.summary == "Can never start: each pod needs 8 A or B, and the largest node has 6"


def test_cordoned_nodes_have_no_free_block() -> None:
    h = Harness()
    h.gpu_node("n1", unschedulable=True)
    h.queue("q", cards={"NVIDIA-H200": 16})
    h.group("g", queue="q")
    h.pod("p", group="g", card="NVIDIA-H200", cards=8)
    h.step()
    (found,) = diagnose_job(h.core.snapshot(), h.job("g")).capacity
    assert (found.total, found.free, found.largest_free, found.cordoned_nodes) == (8, 0, 0, 1)


def test_a_name_like_no_other_is_answered_with_the_known_names() -> None:
    h = Harness()
    h.gpu_node("n1", "A100")
    h.gpu_node("n2", "H200")
    h.queue("q", cards={"A100": 16})
    h.group("g", queue="q")
    h.pod("p", group="g", card="Gaudi", cards=1)
    h.group("lost", queue="research", phase="Pending")
    h.step()
    found = diagnose_job(h.core.snapshot(), h.job("g"))
    assert found.summary == "Can never start: no node provides card Gaudi; the nodes provide A100, H200"
    found = diagnose_job(h.core.snapshot(), h.job("lost"))
    assert found.summary == "Queue research does not exist; existing queues: q"
