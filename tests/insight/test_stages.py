"""Stages of a diagnosis that need an error of the API server, or show more than the first sentence.

tests/vectors/explain-stages.yaml has the other stages that the situations do not reach.
"""

from __future__ import annotations

from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.model.deltas import BindFailed
from tests.vectors.notation import VectorHarness


def test_a_failed_binding_is_a_backoff() -> None:
    h = VectorHarness()
    h.do("node n1 cpu=4; queue q; group g; pod p cpu=2")
    h.step()
    failed = BindFailed("default", "p", h.task("p").uid, "etcdserver: request timed out", retry_after=60.0)
    h.core.step([failed], h.now + 1)
    found = diagnose_job(h.core.snapshot(), h.job("g"))
    assert (found.stage, found.scheduled) == ("BindBackoff", 0)
    assert found.summary == "Binding p failed; it is retried after a backoff"


def test_a_diagnosis_of_one_pod_lists_that_pod_and_the_cards_it_may_use() -> None:
    h = VectorHarness()
    h.do("gpu_node n1 +unschedulable; node n2 cpu=4; queue q cards=NVIDIA-H200:16; group g min=2")
    h.do("pod small 1*NVIDIA-H200; pod large 16*NVIDIA-H200")
    h.step()
    found = diagnose_job(h.core.snapshot(), h.job("g"), pod="large")
    assert [pods.names for pods in found.pending] == [("large",)]
    (row,) = found.capacity
    assert (row.card, row.total, row.free, row.largest_free, row.cordoned_nodes) == ("NVIDIA-H200", 8, 0, 0, 1)
