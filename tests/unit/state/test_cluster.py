"""Pods that name no PodGroup, where controllers make one for them."""

from __future__ import annotations

from tests.vectors.notation import VectorHarness

_CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""


def waiting(text: str) -> VectorHarness:
    h = VectorHarness(_CONF, waits_for_groups=True)
    h.do(f"node n1 cpu=8; queue q; queue default; {text}")
    return h


def test_a_pod_waits_for_the_group_that_the_controllers_make_and_starts_with_its_gang() -> None:
    h = waiting("pod -/a cpu=1")
    h.step()
    assert "a" not in h.reasons, "the controllers need a moment"
    h.settle_for(6)
    assert h.reasons["a"] == ("GangPending", "")
    assert h.pod_message("a").startswith("waiting for the controllers to create PodGroup podgroup-")
    # The annotation comes first, and then the PodGroup and the other pod.
    h.do("pod g/a cpu=1")
    h.step()
    assert not h.binds
    h.do("group g min=2")
    h.step()
    assert not h.binds
    h.do("pod g/b cpu=1")
    h.step()
    assert set(h.binds) == {"a", "b"}


def test_a_pod_with_the_annotation_of_the_controllers_waits_for_the_object() -> None:
    h = waiting("pod podgroup-7/a cpu=1 controllerUid=7")
    h.settle_for(2)
    assert not h.binds
    h.do("group podgroup-7 min=1")
    h.step()
    assert set(h.binds) == {"a"}


def test_running_pods_without_a_group_count_for_their_queue() -> None:
    for waits in (False, True):
        h = VectorHarness(_CONF, waits_for_groups=waits)
        h.do("node n1 cpu=8; queue q; queue default; pod -/a cpu=3 @n1")
        h.step()
        (job,) = h.state.jobs.values()
        assert (job.implicit, job.queue) == (True, "default")


def test_without_controllers_such_a_pod_is_a_job_of_its_own() -> None:
    h = VectorHarness(_CONF)
    h.do("node n1 cpu=8; queue q; queue default; pod -/a cpu=1")
    h.step()
    assert set(h.binds) == {"a"}


def test_a_pod_waits_beside_one_of_its_controller_that_has_a_node() -> None:
    h = waiting("pod -/a cpu=3 @n1 controllerUid=7; pod -/b cpu=1 controllerUid=7")
    h.settle_for(6)
    assert not h.binds
    assert h.reasons["b"] == ("GangPending", "")
    assert [job.queue for job in h.state.jobs.values() if job.implicit] == ["default"]


def test_a_pod_waits_for_a_group_that_is_gone_beside_pods_with_its_annotation() -> None:
    """As in a scheduler that saw the PodGroup."""
    h = waiting("pod podgroup-7/a cpu=3 @n1 controllerUid=7; pod podgroup-7/b cpu=1 controllerUid=7")
    h.settle_for(2)
    assert not h.binds
