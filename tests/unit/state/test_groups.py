"""ClusterState: PodGroups, the groups of pods that name none, queues and priority classes."""

from __future__ import annotations

import pytest

from capcard_sched.model import deltas
from capcard_sched.model.status import PodGroupPhase, TaskStatus
from capcard_sched.state.cluster import ClusterState
from tests.accounting import rebuilt, recorded
from tests.objects import group, node, pod, priority_class, queue


def _is_clean_after(state: ClusterState, *facts: deltas.Delta) -> bool:
    state.open_session()
    for fact in facts:
        state.apply(fact)
    return not state.open_session()


# --- PodGroups --------------------------------------------------------------------------------------------------------


def test_a_deleted_podgroup_leaves_its_pods_unseen_until_it_is_made_again() -> None:
    state = CheckedState(queue("q"), node("n1"), group("g"), pod("p", group="g", node="n1"), pod("w", group="g"))
    state.apply(gone("PodGroup", "g", "g-group"))
    job = state.jobs["default/g"]
    assert (job.uid, dict(state.schedulable), state.queues["q"].jobs) == ("", {}, {})
    assert state.columns.amounts(state.queues["q"].allocated) == {}
    state.apply(group("g", uid="second", minMember=2))
    assert (job.uid, job.min_available, list(state.schedulable)) == ("second", 2, ["default/g"])
    assert state.columns.amounts(state.queues["q"].allocated) == {"cpu": 1000, "pods": 1}


def test_the_late_end_of_an_earlier_podgroup_does_not_take_the_new_one() -> None:
    state = CheckedState(queue("q"), group("g", uid="first"), group("g", uid="second"))
    state.apply(gone("PodGroup", "g", "first"))
    assert state.jobs["default/g"].uid == "second"
    state.apply(gone("PodGroup", "g", ""))
    assert not state.jobs


def test_a_job_is_gone_with_its_last_pod_and_its_podgroup_in_either_order() -> None:
    ends: list[deltas.Delta] = [gone("PodGroup", "g"), gone("Pod", "p")]
    for order in (ends, ends[::-1]):
        state = CheckedState(queue("q"), group("g"), pod("p", group="g"), *order)
        assert (dict(state.jobs), dict(state.schedulable), state.queues["q"].jobs) == ({}, {}, {})


def test_role_minimums_follow_the_podgroup_down_to_none() -> None:
    state = CheckedState(
        group("g", minMember=2, roles={"ps": 1, "worker": 1}),
        pod("a", group="g", role="ps"),
        pod("b", group="g", role="worker", requests={}),
    )
    job = state.jobs["default/g"]
    assert job.roles["ps"][TaskStatus.PENDING] == 1
    assert job.roles["worker"][len(TaskStatus)] == 1
    state.apply(group("g", minMember=2, roles={"ps": 1}))
    assert (dict(job.min_task_member), recorded(state)) == ({"ps": 1}, rebuilt(state))
    state.apply(group("g", minMember=2))
    assert (dict(job.min_task_member), job.roles) == ({}, {})
    state.apply(group("g", minMember=2, roles={"worker": 1}))
    assert job.roles["worker"][TaskStatus.PENDING] == 1


def test_a_podgroup_has_the_pods_of_its_own_namespace_only() -> None:
    state = CheckedState(
        group("g"),
        pod("p", uid="one-uid", group="g"),
        pod("q", uid="two-uid", group="g", namespace="two"),
    )
    assert {key: list(job.tasks) for key, job in state.jobs.items()} == {"default/g": ["one-uid"], "two/g": ["two-uid"]}
    assert list(state.groups_missing) == ["two/g"]


def test_a_podgroup_that_moves_takes_its_usage_to_the_other_queue() -> None:
    state = CheckedState(queue("q"), queue("r"), node("n1"), group("g"), pod("p", group="g", node="n1"))
    state.apply(group("g", queue="r"))
    amounts = {name: state.columns.amounts(item.allocated) for name, item in state.queues.items()}
    assert amounts == {"q": {}, "r": {"cpu": 1000, "pods": 1}}


def test_a_podgroup_that_names_no_queue_goes_to_the_default_one() -> None:
    state = CheckedState(queue("default"), group("g", queue=None))
    assert set(state.queues["default"].jobs) == {"default/g"}


@pytest.mark.parametrize(
    "text, phase",
    [
        ("", PodGroupPhase.PENDING),
        ("Inqueue", PodGroupPhase.INQUEUE),
        ("Running", PodGroupPhase.RUNNING),
        ("Unknown", PodGroupPhase.UNKNOWN),
    ],
)
def test_the_phase_is_the_podgroups(text: str, phase: PodGroupPhase) -> None:
    assert CheckedState(group("g", phase=text)).jobs["default/g"].phase is phase
    assert CheckedState(group("g", phase="Completed"), group("g", phase=text)).jobs["default/g"].phase is phase


def test_the_echo_of_a_podgroup_changes_nothing() -> None:
    fact = group("g", minMember=2, roles={"a": 1}, minResources={"cpu": "4"}, phase="Inqueue")
    state = CheckedState(queue("q"), fact)
    assert _is_clean_after(state, fact)


# --- pods that name no group ------------------------------------------------------------------------------------------


def test_a_pod_without_group_is_a_job_of_its_own_in_the_queue_it_names() -> None:
    state = CheckedState(queue("default"), queue("other"), pod("a"), pod("b", queue="other"))
    jobs = {key: (job.queue, job.min_available, job.implicit) for key, job in state.schedulable.items()}
    assert jobs == {"default/podgroup-a-uid": ("default", 1, True), "default/podgroup-b-uid": ("other", 1, True)}


def test_pods_of_one_controller_are_one_job_that_follows_the_oldest() -> None:
    facts = [
        pod("new", owner="rs", created=30, queue="late", priorityClassName="low"),
        pod("old", owner="rs", created=10, queue="early", priorityClassName="high"),
        pod("mid", owner="rs", created=20),
    ]
    classes = [priority_class("low", 1), priority_class("high", 9)]
    queues = [queue("default"), queue("early"), queue("late")]
    for order in (facts, facts[::-1], facts[1:] + facts[:1]):
        state = CheckedState(*classes, *queues, *order)
        (job,) = state.schedulable.values()
        assert (job.key, job.queue, job.priority, job.created) == (
            "default/podgroup-rs",
            "early",
            9,
            state.tasks["old-uid"].created,
        )
    state.apply(gone("Pod", "old"))
    assert (job.queue, job.priority, job.created) == ("default", 0, state.tasks["mid-uid"].created)
    state.apply(gone("Pod", "mid"))
    assert (job.queue, job.priority) == ("late", 1)
    state.apply(gone("Pod", "new"))
    assert (dict(state.jobs), state.queues["late"].jobs) == ({}, {})


def test_a_pod_without_group_may_change_the_queue_it_names() -> None:
    state = CheckedState(queue("q"), queue("r"), pod("p", queue="q"))
    state.apply(pod("p", queue="r"))
    assert (set(state.queues["q"].jobs), set(state.queues["r"].jobs)) == (set(), {"default/podgroup-p-uid"})


def test_the_podgroup_made_for_a_pod_takes_its_job_over_and_gives_it_back() -> None:
    state = CheckedState(queue("default"), queue("q"), pod("p"))
    job = state.jobs["default/podgroup-p-uid"]
    job.phase = PodGroupPhase.INQUEUE
    state.apply(group("podgroup-p-uid", minMember=3, annotations={"a": "b"}))
    assert (job.implicit, job.queue, job.min_available, job.phase) == (False, "q", 3, PodGroupPhase.INQUEUE)
    state.apply(pod("p", group="podgroup-p-uid"))
    state.apply(gone("PodGroup", "podgroup-p-uid"))
    assert (job.implicit, job.queue, job.min_available, dict(job.annotations)) == (True, "default", 1, {})
    assert list(state.schedulable) == ["default/podgroup-p-uid"]


def test_a_pod_that_names_a_missing_group_waits_for_it_under_any_name() -> None:
    state = CheckedState(queue("default"), pod("p", group="podgroup-of-another"))
    assert (list(state.jobs), dict(state.schedulable)) == (["default/podgroup-of-another"], {})


def test_a_big_job_without_podgroup_is_taken_in_in_linear_time() -> None:
    state = CheckedState(queue("default"))
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
    state = CheckedState(queue("q"), node("n1"), group("g"), pod("p", group="g", node="n1"))
    state.apply(gone("Queue", "q"))
    assert (dict(state.schedulable), list(state.orphans)) == ({}, ["default/g"])
    state.apply(pod("p2", group="g", node="n1"))
    state.apply(queue("q", weight=3))
    assert (list(state.schedulable), dict(state.orphans)) == (["default/g"], {})
    assert state.columns.amounts(state.queues["q"].allocated) == {"cpu": 2000, "pods": 2}


def test_a_changed_queue_keeps_its_identity_and_its_usage() -> None:
    state = CheckedState(queue("q"), node("n1"), group("g"), pod("p", group="g", node="n1"))
    before = state.queues["q"]
    state.apply(queue("q", weight=7, capability={"cpu": "4"}, reclaimable=False))
    after = state.queues["q"]
    assert after is before
    assert (after.weight, after.capability, after.reclaimable) == (7, {"cpu": 4000}, False)


def test_the_echo_of_a_queue_and_of_its_own_status_changes_nothing() -> None:
    state = CheckedState(queue("q"))
    assert _is_clean_after(state, queue("q"))
    state.queues["q"].status_allocated = {"cpu": 1500, "pods": 1}
    written = {"state": "Open", "allocated": {"cpu": "1500m", "memory": "0", "pods": "1"}}
    assert _is_clean_after(state, queue("q", status=written))
    assert not _is_clean_after(state, queue("q", status={**written, "state": "Closed"}))


# --- priority classes -------------------------------------------------------------------------------------------------


def test_priorities_follow_the_classes_in_any_order() -> None:
    state = CheckedState(queue("q"), group("named", priorityClassName="high"), group("plain"))

    def priorities() -> tuple[int, int]:
        return state.jobs["default/named"].priority, state.jobs["default/plain"].priority

    assert priorities() == (0, 0)
    state.apply(priority_class("high", 100))
    assert priorities() == (100, 0)
    state.apply(priority_class("usual", 5, default=True))
    assert priorities() == (100, 5)
    state.apply(priority_class("high", 50))
    assert priorities() == (50, 5)
    state.apply(gone("PriorityClass", "high"))
    assert priorities() == (5, 5)
    state.apply(gone("PriorityClass", "usual"))
    assert priorities() == (0, 0)


def test_a_priority_class_dirties_only_the_jobs_it_moves() -> None:
    state = CheckedState(queue("q"), group("named", priorityClassName="high"), group("plain"))
    state.open_session()
    state.apply(priority_class("high", 100))
    assert state.open_session().jobs == {"default/named"}
    assert _is_clean_after(state, priority_class("high", 100), priority_class("unused", 3))
