"""ClusterState: PodGroups, the groups of pods that name none, queues and priority classes."""

from __future__ import annotations

import pytest

from capcard_sched.model.status import PodGroupPhase, TaskStatus
from capcard_sched.state.cluster import ClusterState
from tests.accounting import CheckedState, gone
from tests.objects import group, node, pod, priority_class, queue

ONE = {"cpu": 1000, "pods": 1}


def _usage(state: CheckedState) -> dict[str, dict[str, int]]:
    return {name: state.columns.amounts(item.allocated) for name, item in state.queues.items()}


# --- PodGroups --------------------------------------------------------------------------------------------------------


def test_a_deleted_podgroup_leaves_its_pods_unseen_until_it_is_made_again() -> None:
    state = CheckedState(queue("q"), node("n1"), group("g"), pod("p", group="g", node="n1"), pod("w", group="g"))
    state.delete("PodGroup", "g", "g-group")
    job = state.jobs["default/g"]
    assert (job.uid, dict(state.schedulable), state.queues["q"].jobs, _usage(state)) == ("", {}, {}, {"q": {}})
    state.apply(group("g", uid="second", minMember=2))
    assert (job.uid, job.min_available, list(state.schedulable)) == ("second", 2, ["default/g"])
    assert _usage(state) == {"q": ONE}


def test_the_late_end_of_an_earlier_podgroup_does_not_take_the_new_one() -> None:
    state = CheckedState(queue("q"), group("g", uid="first"), group("g", uid="second"), gone("PodGroup", "g", "first"))
    assert state.jobs["default/g"].uid == "second"
    state.delete("PodGroup", "g")
    assert not state.jobs


def test_a_job_is_gone_with_its_last_pod_and_its_podgroup_in_either_order() -> None:
    ends = [gone("PodGroup", "g"), gone("Pod", "p")]
    for order in (ends, ends[::-1]):
        state = CheckedState(queue("q"), group("g"), pod("p", group="g"), *order)
        assert (dict(state.jobs), dict(state.schedulable), state.queues["q"].jobs) == ({}, {}, {})


def test_role_minimums_follow_the_podgroup_down_to_none() -> None:
    best_effort = pod("b", group="g", role="worker", requests={})
    state = CheckedState(group("g", roles={"ps": 1, "worker": 1}), pod("a", group="g", role="ps"), best_effort)
    job = state.jobs["default/g"]
    assert (job.roles["ps"][TaskStatus.PENDING], job.roles["worker"][len(TaskStatus)]) == (1, 1)
    for roles in ({"ps": 1}, {}, {"worker": 1}):
        state.apply(group("g", roles=roles))
        assert dict(job.min_task_member) == roles
        assert bool(job.roles) == bool(roles)
    assert job.roles["worker"][TaskStatus.PENDING] == 1


def test_a_podgroup_has_the_pods_of_its_own_namespace_only() -> None:
    state = CheckedState(group("g"), pod("p", group="g"), pod("q", group="g", namespace="two"))
    assert {key: list(job.tasks) for key, job in state.jobs.items()} == {"default/g": ["p-uid"], "two/g": ["q-uid"]}
    assert list(state.groups_missing) == ["two/g"]


def test_a_podgroup_that_moves_takes_its_usage_to_the_other_queue() -> None:
    state = CheckedState(queue("q"), queue("r"), node("n1"), group("g"), pod("p", group="g", node="n1"))
    state.apply(group("g", queue="r"))
    assert _usage(state) == {"q": {}, "r": ONE}


def test_a_podgroup_that_names_no_queue_goes_to_the_default_one() -> None:
    state = CheckedState(queue("default"), group("g", queue=None))
    assert set(state.queues["default"].jobs) == {"default/g"}


@pytest.mark.parametrize("text", ["", "Inqueue", "Running", "Unknown"])
@pytest.mark.parametrize("before", [(), (group("g", phase="Completed"),)], ids=["new", "after Completed"])
def test_the_phase_is_the_podgroups(before: tuple[object, ...], text: str) -> None:
    state = CheckedState(*before, group("g", phase=text))  # type: ignore[arg-type]
    assert state.jobs["default/g"].phase is PodGroupPhase(text or "Pending")


def test_the_echo_of_a_podgroup_changes_nothing() -> None:
    fact = group("g", minMember=2, roles={"a": 1}, minResources={"cpu": "4"}, phase="Inqueue")
    assert CheckedState(queue("q"), fact).marked(fact) == set()


# --- pods that name no group ------------------------------------------------------------------------------------------


def test_a_pod_without_group_is_a_job_of_its_own_in_the_queue_it_names() -> None:
    state = CheckedState(queue("default"), queue("other"), pod("a"), pod("b", queue="other"))
    jobs = {key: (job.queue, job.min_available, job.implicit) for key, job in state.schedulable.items()}
    assert jobs == {"default/podgroup-a-uid": ("default", 1, True), "default/podgroup-b-uid": ("other", 1, True)}
    state.apply(pod("a", queue="other"))
    assert set(state.queues["other"].jobs) == set(jobs)


def test_pods_of_one_controller_are_one_job_that_follows_the_oldest() -> None:
    facts = [
        pod("new", owner="rs", created=30, queue="late", priorityClassName="low"),
        pod("old", owner="rs", created=10, queue="early", priorityClassName="high"),
        pod("mid", owner="rs", created=20),
    ]
    others = [priority_class("low", 1), priority_class("high", 9), queue("default"), queue("early"), queue("late")]
    for order in (facts, facts[::-1], facts[1:] + facts[:1]):
        state = CheckedState(*others, *order)
        for oldest, name, priority in (("old", "early", 9), ("mid", "default", 0), ("new", "late", 1)):
            (job,) = state.schedulable.values()
            assert (job.key, job.queue, job.priority) == ("default/podgroup-rs", name, priority)
            assert job.created == state.tasks[f"{oldest}-uid"].created
            state.delete("Pod", oldest)
        assert (dict(state.jobs), state.queues["late"].jobs) == ({}, {})


def test_the_podgroup_made_for_a_pod_takes_its_job_over_and_gives_it_back() -> None:
    state = CheckedState(queue("default"), queue("q"), pod("p"))
    job = state.jobs["default/podgroup-p-uid"]
    job.phase = PodGroupPhase.INQUEUE
    state.apply(group("podgroup-p-uid", minMember=3, annotations={"a": "b"}))
    assert (job.implicit, job.queue, job.min_available, job.phase) == (False, "q", 3, PodGroupPhase.INQUEUE)
    state.apply(pod("p", group="podgroup-p-uid"), gone("PodGroup", "podgroup-p-uid"))
    assert (job.implicit, job.queue, job.min_available, dict(job.annotations)) == (True, "default", 1, {})
    assert list(state.schedulable) == ["default/podgroup-p-uid"]


def test_a_pod_that_names_a_missing_group_waits_for_it_under_any_name() -> None:
    state = CheckedState(queue("default"), pod("p", group="podgroup-of-another"))
    assert (list(state.jobs), dict(state.schedulable)) == (["default/podgroup-of-another"], {})


def test_a_big_job_without_podgroup_is_taken_in_in_linear_time() -> None:
    state = ClusterState(("capcard-sched",), "default")
    looked_at = 0

    class Counting(dict[str, str]):
        def __contains__(self, key: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return super().__contains__(key)

    state._job_table._groupless = Counting()
    for i in range(500):
        state.apply(pod(f"p{i}", owner="rs", created=500 - i))
    for i in range(500):
        state.apply(gone("Pod", f"p{i}"))
    assert looked_at < 5000


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_that_goes_and_comes_back_finds_its_jobs_again() -> None:
    state = CheckedState(queue("q"), node("n1"), group("g"), pod("p", group="g", node="n1"), gone("Queue", "q"))
    assert (dict(state.schedulable), list(state.orphans)) == ({}, ["default/g"])
    state.apply(pod("p2", group="g", node="n1"), queue("q", weight=3))
    assert (list(state.schedulable), dict(state.orphans)) == (["default/g"], {})
    assert _usage(state) == {"q": {"cpu": 2000, "pods": 2}}


def test_a_changed_queue_keeps_its_identity_and_its_usage() -> None:
    state = CheckedState(queue("q"), node("n1"), group("g"), pod("p", group="g", node="n1"))
    before = state.queues["q"]
    state.apply(queue("q", weight=7, capability={"cpu": "4"}, reclaimable=False))
    after = state.queues["q"]
    assert after is before
    assert (after.weight, after.capability, after.reclaimable) == (7, {"cpu": 4000}, False)


def test_the_echo_of_a_queue_and_of_its_own_status_changes_nothing() -> None:
    state = CheckedState(queue("q"))
    assert state.marked(queue("q")) == set()
    state.queues["q"].status_allocated = {"cpu": 1500, "pods": 1}
    written = {"state": "Open", "allocated": {"cpu": "1500m", "memory": "0", "pods": "1"}}
    assert state.marked(queue("q", status=written)) == set()
    assert state.marked(queue("q", status={**written, "state": "Closed"})) == {"queue:q"}


# --- priority classes -------------------------------------------------------------------------------------------------


def test_priorities_follow_the_classes_in_any_order() -> None:
    state = CheckedState(queue("q"), group("named", priorityClassName="high"), group("plain"))
    for change, priorities in (
        (None, (0, 0)),
        (priority_class("high", 100), (100, 0)),
        (priority_class("usual", 5, default=True), (100, 5)),
        (priority_class("high", 50), (50, 5)),
        (gone("PriorityClass", "high"), (5, 5)),
        (gone("PriorityClass", "usual"), (0, 0)),
    ):
        state.apply(*([change] if change else []))
        assert (state.jobs["default/named"].priority, state.jobs["default/plain"].priority) == priorities


def test_a_priority_class_marks_only_the_jobs_whose_priority_changes() -> None:
    state = CheckedState(queue("q"), group("named", priorityClassName="high"), group("plain"))
    assert state.marked(priority_class("high", 100)) == {"job:default/named"}
    assert state.marked(priority_class("high", 100), priority_class("unused", 3)) == set()
