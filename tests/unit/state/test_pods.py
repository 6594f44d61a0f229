"""ClusterState: pods coming, changing and going, before or after what they refer to."""

from __future__ import annotations

import pytest

from capcard_sched.model import deltas
from capcard_sched.model.status import TaskStatus
from capcard_sched.state.cluster import ClusterState
from tests.accounting import rebuilt, recorded
from tests.objects import group, node, pod, queue


def _state(*facts: deltas.Delta) -> ClusterState:
    state = ClusterState(("capcard-sched",), "default")
    for fact in facts:
        state.apply(fact)
    return state


def _dirty(state: ClusterState, *facts: deltas.Delta) -> set[str]:
    """Changes that the facts mark, as kind:name."""
    state.open_session()
    for fact in facts:
        state.apply(fact)
    dirty = state.open_session()
    assert not dirty.everything
    return {
        *(f"job:{key}" for key in dirty.jobs),
        *(f"queue:{name}" for name in dirty.queues),
        *(f"node:{name}" for name in dirty.nodes),
    }


# --- status -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "phase, on_node, deleting, status, holds_resources",
    [
        pytest.param("Pending", False, False, TaskStatus.PENDING, False, id="pending"),
        pytest.param("Pending", True, False, TaskStatus.BOUND, True, id="bound"),
        pytest.param("Running", True, False, TaskStatus.RUNNING, True, id="running"),
        pytest.param("Running", True, True, TaskStatus.RELEASING, True, id="a running pod that is deleted leaves"),
        pytest.param("Pending", True, True, TaskStatus.RELEASING, True, id="so does a bound one"),
        pytest.param("Pending", False, True, TaskStatus.RELEASING, False, id="deleted without a node it holds nothing"),
        pytest.param("Succeeded", True, False, TaskStatus.SUCCEEDED, False, id="a finished pod frees its node"),
        pytest.param("Failed", True, False, TaskStatus.FAILED, False, id="a failed pod frees its node"),
        pytest.param("Unknown", True, False, TaskStatus.UNKNOWN, True, id="a pod in phase Unknown occupies its node"),
    ],
)
def test_status_and_usage_follow_phase_node_and_deletion(
    phase: str, on_node: bool, deleting: bool, status: TaskStatus, holds_resources: bool
) -> None:
    state = _state(
        node("n1"),
        queue("q"),
        group("g"),
        pod("p", group="g", phase=phase, node="n1" if on_node else "", deleting=deleting),
    )
    job, used = state.jobs["default/g"], state.columns.amounts(state.nodes.used[0])
    assert state.tasks["p-uid"].status is status
    assert job.counts[status] == 1
    assert used == ({"cpu": 1000, "pods": 1} if holds_resources else {})
    assert set(state.nodes.nodes[0].tasks) == ({"p-uid"} if holds_resources else set())
    assert recorded(state) == rebuilt(state)


def test_a_gated_pod_is_counted_but_not_offered_for_placement() -> None:
    state = _state(queue("q"), group("g"), pod("p", group="g", gated=True))
    job = state.jobs["default/g"]
    assert (job.counts[TaskStatus.PENDING], dict(job.pending)) == (1, {})
    state.apply(pod("p", group="g"))
    assert list(job.pending) == ["p-uid"]


def test_best_effort_means_requesting_nothing() -> None:
    state = _state(
        group("g"), pod("a", group="g", requests={}), pod("b", group="g", requests={"cpu": 0}), pod("c", group="g")
    )
    assert state.jobs["default/g"].pending_best_effort == 2


# --- order of arrival -------------------------------------------------------------------------------------------------


def test_a_pod_before_everything_it_names_is_in_place_once_all_is_there() -> None:
    facts: list[deltas.Delta] = [pod("p", group="g", node="n1"), group("g"), queue("q"), node("n1")]
    expected = recorded(_state(*reversed(facts)))
    state = _state(facts[0])
    assert (dict(state.schedulable), dict(state.orphans), len(state.nodes)) == ({}, {}, 0)
    state.apply(facts[1])
    assert (list(state.schedulable), list(state.orphans)) == ([], ["default/g"])
    state.apply(facts[2])
    assert (list(state.schedulable), list(state.orphans)) == (["default/g"], [])
    state.apply(facts[3])
    assert recorded(state) == expected == rebuilt(state)


def test_a_new_uid_under_a_known_name_is_another_pod() -> None:
    state = _state(node("n1"), node("n2"), group("g"), pod("p", uid="old", group="g", node="n1"))
    state.apply(pod("p", uid="new", group="g", node="n2"))
    assert set(state.tasks) == {"new"}
    assert recorded(state) == rebuilt(state)
    state.apply(deltas.ObjectGone("Pod", "default", "p", "old"))
    assert set(state.tasks) == {"new"}
    state.apply(deltas.ObjectGone("Pod", "default", "p", "new"))
    assert set(state.tasks) == set()
    assert not state.nodes.used.any()


def test_an_empty_uid_means_whichever_pod_has_the_name() -> None:
    state = _state(group("g"), pod("p", uid="some", group="g"))
    state.apply(deltas.ObjectGone("Pod", "default", "p"))
    assert not state.tasks


def test_pods_of_one_name_in_two_namespaces_are_two() -> None:
    state = _state(pod("p", uid="a", namespace="one"), pod("p", uid="b", namespace="two"))
    state.apply(deltas.ObjectGone("Pod", "one", "p"))
    assert set(state.tasks) == {"b"}


# --- schedulers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scheduler, on_node, known",
    [
        pytest.param("capcard-sched", False, True, id="ours waits"),
        pytest.param("default-scheduler", False, False, id="a waiting pod of others is none of ours"),
        pytest.param("default-scheduler", True, True, id="a bound pod of others uses the node"),
        pytest.param("", False, False, id="no scheduler named means the default one"),
    ],
)
def test_which_pods_are_taken_in(scheduler: str, on_node: bool, known: bool) -> None:
    state = _state(node("n1"), pod("p", scheduler=scheduler, node="n1" if on_node else ""))
    assert ("p-uid" in state.tasks) is known
    assert state.columns.amounts(state.nodes.used[0]) == ({"cpu": 1000, "pods": 1} if on_node else {})


def test_a_pod_of_others_without_group_has_no_job() -> None:
    state = _state(node("n1"), pod("p", scheduler="other", node="n1"))
    assert state.tasks["p-uid"].job is None
    assert not state.jobs


def test_a_pod_of_others_that_loses_its_group_leaves_the_job() -> None:
    state = _state(node("n1"), group("g"), queue("q"), pod("p", scheduler="other", node="n1", group="g"))
    state.apply(pod("p", scheduler="other", node="n1"))
    assert state.tasks["p-uid"].job is None
    assert recorded(state) == rebuilt(state)
    assert _dirty(state, pod("p", scheduler="other", node="n1")) == set()


def test_a_pod_that_changes_group_takes_the_empty_job_without_podgroup_away() -> None:
    state = _state(queue("default"), pod("p"))
    assert list(state.jobs) == ["default/podgroup-p-uid"]
    state.apply(pod("p", group="g"))
    assert list(state.jobs) == ["default/g"]
    assert (dict(state.schedulable), set(state.queues["default"].jobs)) == ({}, set())


# --- bindings and evictions under way ---------------------------------------------------------------------------------


def _bound_by_us() -> ClusterState:
    state = _state(node("n1"), queue("q"), group("g"), pod("p", group="g"))
    job, task = state.jobs["default/g"], state.tasks["p-uid"]
    state.place(job, [task], [state.nodes.by_name["n1"]], TaskStatus.ALLOCATED)
    state.set_binding(job, [task])
    assert recorded(state) == rebuilt(state)
    return state


def test_a_stale_update_does_not_undo_a_binding() -> None:
    state = _bound_by_us()
    state.apply(pod("p", group="g", labels={"new": "label"}))
    task = state.tasks["p-uid"]
    assert (task.status, task.labels) == (TaskStatus.BINDING, {"new": "label"})
    assert task.node is state.nodes.by_name["n1"]
    assert (state.confirmed, recorded(state)) == ([], rebuilt(state))


@pytest.mark.parametrize("phase, status", [("Pending", TaskStatus.BOUND), ("Running", TaskStatus.RUNNING)])
def test_the_watch_confirms_a_binding(phase: str, status: TaskStatus) -> None:
    state = _bound_by_us()
    state.apply(pod("p", group="g", node="n1", phase=phase))
    assert state.confirmed == [state.tasks["p-uid"]]
    assert state.tasks["p-uid"].status is status
    assert recorded(state) == rebuilt(state)


def test_a_binding_by_another_scheduler_is_not_confirmed_as_ours() -> None:
    state = _bound_by_us()
    state.apply(node("n2"))
    state.apply(pod("p", group="g", node="n2", phase="Pending"))
    task = state.tasks["p-uid"]
    assert (task.status, task.node, state.confirmed) == (TaskStatus.BOUND, state.nodes.by_name["n2"], [])
    assert recorded(state) == rebuilt(state)


def test_a_refused_binding_makes_the_pod_pend_again() -> None:
    state = _bound_by_us()
    state.apply(deltas.BindFailed("default", "p", "p-uid", "no"))
    task = state.tasks["p-uid"]
    assert (task.status, task.node, list(state.jobs["default/g"].pending)) == (TaskStatus.PENDING, None, ["p-uid"])
    assert not state.nodes.used.any()
    assert recorded(state) == rebuilt(state)


def test_a_pod_whose_binding_was_refused_for_good_is_left_alone_until_it_may_try_again() -> None:
    state = _bound_by_us()
    state.apply(deltas.BindFailed("default", "p", "p-uid", "no", retry_after=4.0))
    job = state.jobs["default/g"]
    assert (state.tasks["p-uid"].status, list(job.pending), job.valid_tasks) == (TaskStatus.PENDING, [], 1)
    assert recorded(state) == rebuilt(state)
    state.apply(pod("p", group="g", labels={"more": "labels"}))
    assert list(job.pending) == [], "an update of the pod does not let it in"
    state.apply(deltas.BindRetry("default", "p", "p-uid"))
    assert list(job.pending) == ["p-uid"]
    assert _dirty(state, deltas.BindRetry("default", "p", "p-uid")) == set(), "nothing is held any more"
    assert recorded(state) == rebuilt(state)


def test_a_takeover_drops_unconfirmed_assumptions() -> None:
    state = _bound_by_us()
    state.apply(pod("held", group="g"))
    state.place(state.jobs["default/g"], [state.tasks["held-uid"]], [state.nodes.nodes[0]], TaskStatus.ALLOCATED)
    state.set_binding(state.jobs["default/g"], [state.tasks["held-uid"]])
    state.apply(deltas.BindFailed("default", "held", "held-uid", "no", retry_after=4.0))
    running = pod("running", group="g", node="n1", phase="Running")
    state.apply(running)
    state.release(state.tasks["running-uid"])
    state.apply(deltas.Takeover())
    statuses = {task.name: task.status for task in state.tasks.values()}
    assert statuses == {"p": TaskStatus.PENDING, "held": TaskStatus.PENDING, "running": TaskStatus.RUNNING}
    assert state.nodes.used[0].tolist() == state.tasks["running-uid"].cls.request.tolist()
    assert recorded(state) == rebuilt(state)
    state.apply(deltas.Takeover())
    assert recorded(state) == rebuilt(state)


@pytest.mark.parametrize(
    "fact",
    [
        pytest.param(deltas.BindFailed("default", "p", "p-uid", "late"), id="the pod is bound meanwhile"),
        pytest.param(deltas.BindFailed("default", "p", "other-uid", "late"), id="an earlier pod of the name"),
        pytest.param(deltas.EvictFailed("default", "p", "p-uid", "late"), id="no eviction in flight"),
    ],
)
def test_an_outcome_that_comes_too_late_changes_nothing(fact: deltas.Delta) -> None:
    state = _state(node("n1"), queue("q"), group("g"), pod("p", group="g", node="n1"))
    assert _dirty(state, fact) == set()
    assert state.tasks["p-uid"].status is TaskStatus.RUNNING


@pytest.mark.parametrize("phase, status", [("Pending", TaskStatus.BOUND), ("Running", TaskStatus.RUNNING)])
def test_an_evicted_pod_leaves_until_the_eviction_is_refused(phase: str, status: TaskStatus) -> None:
    state = _state(node("n1"), queue("q"), group("g"), pod("p", group="g", node="n1", phase=phase))
    task = state.tasks["p-uid"]
    assert state.release(task) is status
    state.apply(pod("p", group="g", node="n1", phase=phase, labels={"touched": "meanwhile"}))
    assert task.status is TaskStatus.RELEASING
    state.apply(deltas.EvictFailed("default", "p", "p-uid", "disruption budget"))
    assert task.status is status
    assert recorded(state) == rebuilt(state)


def test_an_eviction_that_got_through_is_not_taken_back() -> None:
    state = _state(node("n1"), group("g"), pod("p", group="g", node="n1"))
    state.release(state.tasks["p-uid"])
    state.apply(pod("p", group="g", node="n1", deleting=True))
    state.apply(deltas.EvictFailed("default", "p", "p-uid", "timeout"))
    assert state.tasks["p-uid"].status is TaskStatus.RELEASING


# --- repetition -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fact",
    [
        pytest.param(pod("p", group="g"), id="pending"),
        pytest.param(pod("p", group="g", node="n1"), id="running"),
        pytest.param(pod("p", group="g", node="n1", phase="Succeeded"), id="finished"),
        pytest.param(pod("p", group="g", node="gone"), id="on an unknown node"),
        pytest.param(pod("p"), id="without group"),
        pytest.param(pod("p", queue="other"), id="without group, in a queue of its choice"),
        pytest.param(pod("p", scheduler="other", node="n1"), id="of others"),
    ],
)
def test_the_same_pod_again_changes_nothing(fact: deltas.Delta) -> None:
    state = _state(node("n1"), queue("q"), group("g"), fact)
    before = recorded(state)
    assert _dirty(state, fact) == set()
    assert recorded(state) == before


def test_a_change_marks_exactly_the_affected_objects() -> None:
    state = _state(node("n1"), node("n2"), queue("q"), queue("r"), group("g"), group("h", queue="r"))
    assert _dirty(state, pod("p", group="g")) == {"job:default/g"}
    assert _dirty(state, pod("p", group="g", node="n1")) == {"job:default/g", "queue:q", "node:n1"}
    assert _dirty(state, pod("p", group="g", node="n1", phase="Succeeded")) == {"job:default/g", "queue:q", "node:n1"}
    assert _dirty(state, deltas.ObjectGone("Pod", "default", "p")) == {"job:default/g"}


def test_pods_of_one_template_share_class_and_labels() -> None:
    labels = {"app": "trainer"}
    state = _state(pod("a", group="g", labels=dict(labels)), pod("b", group="h", labels=dict(labels)))
    a, b = state.tasks["a-uid"], state.tasks["b-uid"]
    assert a.cls is b.cls
    assert a.labels is b.labels
    state.apply(pod("c", requests={"cpu": 2}))
    assert state.tasks["c-uid"].cls is not a.cls


def test_classes_and_labels_of_pods_that_are_gone_are_forgotten() -> None:
    state = _state()
    for i in range(3000):
        state.apply(pod("p", uid=str(i), requests={"cpu": f"{i}m"}, labels={"index": str(i)}))
    state.open_session()
    assert len(state.classes) <= 2
    assert len(state._pod_table._labels._sets) < 2000
    before = state.tasks["2999"].cls
    state.apply(pod("q", requests={"cpu": "2999m"}))
    assert state.tasks["q-uid"].cls is before
    state.apply(pod("r", requests={"cpu": "7"}))
    ids = [task.cls.id for task in state.tasks.values()]
    assert len(set(ids)) == 2
    assert max(ids) >= 3000, "ids are not used twice"
