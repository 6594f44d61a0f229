"""ClusterState: pods coming, changing and going, before or after what they refer to."""

from __future__ import annotations

import pytest

from capcard_sched.model import deltas
from capcard_sched.model.status import TaskStatus
from capcard_sched.state.cluster import ClusterState
from tests.accounting import CheckedState, gone, recorded
from tests.objects import group, node, pod, queue

ONE = {"cpu": 1000, "pods": 1}
CLUSTER = (node("n1"), queue("q"), group("g"))


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
    state = CheckedState(*CLUSTER, pod("p", group="g", phase=phase, node="n1" if on_node else "", deleting=deleting))
    assert state.tasks["p-uid"].status is status
    assert state.jobs["default/g"].counts[status] == 1
    assert state.columns.amounts(state.nodes.used[0]) == (ONE if holds_resources else {})
    assert set(state.nodes.nodes[0].tasks) == ({"p-uid"} if holds_resources else set())


def test_a_gated_pod_is_counted_but_not_offered_for_placement() -> None:
    state = CheckedState(queue("q"), group("g"), pod("p", group="g", gated=True))
    job = state.jobs["default/g"]
    assert (job.counts[TaskStatus.PENDING], dict(job.pending)) == (1, {})
    state.apply(pod("p", group="g"))
    assert list(job.pending) == ["p-uid"]


def test_best_effort_means_requesting_nothing() -> None:
    requests: tuple[dict[str, int], ...] = ({}, {"cpu": 0}, {"cpu": 1})
    state = CheckedState(group("g"), *(pod(f"p{i}", group="g", requests=each) for i, each in enumerate(requests)))
    assert state.jobs["default/g"].pending_best_effort == 2


# --- order of arrival -------------------------------------------------------------------------------------------------


def test_a_pod_before_everything_it_names_is_in_place_once_all_is_there() -> None:
    facts = [pod("p", group="g", node="n1"), group("g"), queue("q"), node("n1")]
    state = CheckedState()
    for fact, known in zip(facts, ("neither", "orphan", "schedulable", "schedulable"), strict=True):
        state.apply(fact)
        assert (list(state.orphans), list(state.schedulable)) == (
            ["default/g"] * (known == "orphan"),
            ["default/g"] * (known == "schedulable"),
        )
    assert recorded(state) == recorded(CheckedState(*reversed(facts)))


@pytest.mark.parametrize(
    "uid, left", [("old", {"new"}), ("new", set()), ("", set())], ids=["the earlier pod", "the pod", "any of the name"]
)
def test_a_new_uid_under_a_known_name_is_another_pod(uid: str, left: set[str]) -> None:
    state = CheckedState(node("n1"), node("n2"), group("g"), pod("p", uid="old", group="g", node="n1"))
    state.apply(pod("p", uid="new", group="g", node="n2"))
    assert set(state.tasks) == {"new"}
    state.delete("Pod", "p", uid)
    assert set(state.tasks) == left
    assert state.nodes.used.any() == bool(left)


def test_pods_of_one_name_in_two_namespaces_are_two() -> None:
    state = CheckedState(pod("p", uid="a", namespace="one"), pod("p", uid="b", namespace="two"))
    state.delete("Pod", "p", namespace="one")
    assert set(state.tasks) == {"b"}


# --- schedulers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scheduler, on_node, known, jobs",
    [
        pytest.param("capcard-sched", False, True, ["default/podgroup-p-uid"], id="ours waits"),
        pytest.param("default-scheduler", False, False, [], id="a waiting pod of others is none of ours"),
        pytest.param("default-scheduler", True, True, [], id="a bound pod of others uses the node, and has no job"),
        pytest.param("", False, False, [], id="no scheduler named means the default one"),
    ],
)
def test_which_pods_are_taken_in(scheduler: str, on_node: bool, known: bool, jobs: list[str]) -> None:
    state = CheckedState(node("n1"), pod("p", scheduler=scheduler, node="n1" if on_node else ""))
    assert ("p-uid" in state.tasks, list(state.jobs)) == (known, jobs)
    assert state.columns.amounts(state.nodes.used[0]) == (ONE if on_node else {})


def test_a_pod_of_others_that_loses_its_group_leaves_the_job() -> None:
    state = CheckedState(*CLUSTER, pod("p", scheduler="other", node="n1", group="g"), pod("p", scheduler="other"))
    state.apply(pod("p", scheduler="other", node="n1"))
    assert state.tasks["p-uid"].job is None
    assert state.marked(pod("p", scheduler="other", node="n1")) == set()


def test_a_pod_that_changes_group_takes_the_empty_job_without_podgroup_away() -> None:
    state = CheckedState(queue("default"), pod("p"))
    assert list(state.jobs) == ["default/podgroup-p-uid"]
    state.apply(pod("p", group="g"))
    assert (list(state.jobs), dict(state.schedulable), state.queues["default"].jobs) == (["default/g"], {}, {})


# --- bindings and evictions under way ---------------------------------------------------------------------------------


def _bound_by_us(*names: str) -> CheckedState:
    """Pods in status Binding on n1."""
    state = CheckedState(*CLUSTER, *(pod(name, group="g") for name in names or ("p",)))
    job, tasks = state.jobs["default/g"], list(state.tasks.values())
    state.place(job, tasks, [state.nodes.by_name["n1"]] * len(tasks), TaskStatus.ALLOCATED)
    state.set_binding(job, tasks)
    return state


@pytest.mark.parametrize(
    "update, status, on, confirmed",
    [
        pytest.param(pod("p", group="g", node="n1", phase="Pending"), TaskStatus.BOUND, "n1", True, id="bound"),
        pytest.param(pod("p", group="g", node="n1"), TaskStatus.RUNNING, "n1", True, id="running"),
        pytest.param(
            pod("p", group="g", node="n2", phase="Pending"), TaskStatus.BOUND, "n2", False, id="by another scheduler"
        ),
    ],
)
def test_the_watch_confirms_a_binding(update: deltas.Delta, status: TaskStatus, on: str, confirmed: bool) -> None:
    state = _bound_by_us()
    state.apply(node("n2"), update)
    task = state.tasks["p-uid"]
    assert (task.status, task.node) == (status, state.nodes.by_name[on])
    assert state.confirmed == [task] * confirmed


def test_a_confirmed_binding_marks_its_objects_and_puts_its_pod_behind_the_others() -> None:
    state = _bound_by_us("p", "q")
    confirmed = pod("p", group="g", node="n1", phase="Pending", labels={"new": "label"})
    assert state.marked(confirmed) == {"job:default/g", "queue:q", "node:n1"}
    job, host = state.jobs["default/g"], state.nodes.nodes[0]
    assert [list(job.tasks), list(host.tasks)] == [["q-uid", "p-uid"]] * 2, "as any pod that changes"
    assert state.tasks["p-uid"].labels == {"new": "label"}


def test_a_confirmed_pod_counts_in_the_subgroup_of_its_present_labels() -> None:
    policy = {"name": "s", "subGroupSize": 1, "minSubGroups": 1, "matchLabelKeys": ["zone"]}
    old = pod("p", group="g", labels={"zone": "old"})
    state = CheckedState(node("n1"), queue("q"), group("g", subGroupPolicy=[policy]), old)
    job, tasks = state.jobs["default/g"], list(state.tasks.values())
    state.place(job, tasks, [state.nodes.by_name["n1"]], TaskStatus.ALLOCATED)
    state.set_binding(job, tasks)
    state.apply(pod("p", group="g", node="n1", phase="Pending", labels={"zone": "new"}))
    assert (tasks[0].status, state.confirmed) == (TaskStatus.BOUND, tasks)
    assert job.groups is not None
    found = job.groups.of(tasks[0])
    assert found is not None
    assert found.values == ("new",)


def test_a_stale_update_does_not_undo_a_binding() -> None:
    state = _bound_by_us()
    state.apply(pod("p", group="g", labels={"new": "label"}))
    task = state.tasks["p-uid"]
    assert (task.status, task.labels, task.node) == (TaskStatus.BINDING, {"new": "label"}, state.nodes.nodes[0])
    assert state.confirmed == []


def test_a_deletion_during_a_binding_takes_effect() -> None:
    state = _bound_by_us()
    state.apply(pod("p", group="g", deleting=True))
    assert state.tasks["p-uid"].status is TaskStatus.RELEASING


def test_a_refused_binding_makes_the_pod_pend_again() -> None:
    state = _bound_by_us()
    state.apply(deltas.BindFailed("default", "p", "p-uid", "no"))
    task = state.tasks["p-uid"]
    assert (task.status, task.node, list(state.jobs["default/g"].pending)) == (TaskStatus.PENDING, None, ["p-uid"])
    assert not state.nodes.used.any()


def test_a_pod_whose_binding_was_refused_for_good_is_left_alone_until_it_may_try_again() -> None:
    state = _bound_by_us()
    state.apply(deltas.BindFailed("default", "p", "p-uid", "no", retry_after=4.0))
    job = state.jobs["default/g"]
    assert (state.tasks["p-uid"].status, list(job.pending), job.valid_tasks) == (TaskStatus.PENDING, [], 1)
    state.apply(pod("p", group="g", labels={"more": "labels"}))
    assert list(job.pending) == [], "an update of the pod does not let it in"
    state.apply(deltas.BindRetry("default", "p", "p-uid"))
    assert list(job.pending) == ["p-uid"]
    assert state.marked(deltas.BindRetry("default", "p", "p-uid")) == set(), "nothing is held any more"


def test_a_takeover_drops_unconfirmed_assumptions() -> None:
    state = _bound_by_us("p", "held")
    state.apply(deltas.BindFailed("default", "held", "held-uid", "no", retry_after=4.0))
    state.apply(pod("running", group="g", node="n1", phase="Running"))
    state.release(state.tasks["running-uid"])
    state.apply(deltas.Takeover())
    statuses = {task.name: task.status for task in state.tasks.values()}
    assert statuses == {"p": TaskStatus.PENDING, "held": TaskStatus.PENDING, "running": TaskStatus.RUNNING}
    assert state.columns.amounts(state.nodes.used[0]) == ONE
    state.apply(deltas.Takeover())


@pytest.mark.parametrize(
    "fact",
    [
        pytest.param(deltas.BindFailed("default", "p", "p-uid", "late"), id="the pod is bound meanwhile"),
        pytest.param(deltas.BindFailed("default", "p", "other-uid", "late"), id="an earlier pod of the name"),
        pytest.param(deltas.EvictFailed("default", "p", "p-uid", "late"), id="no eviction in flight"),
    ],
)
def test_an_outcome_that_comes_too_late_changes_nothing(fact: deltas.Delta) -> None:
    state = CheckedState(*CLUSTER, pod("p", group="g", node="n1"))
    assert state.marked(fact) == set()
    assert state.tasks["p-uid"].status is TaskStatus.RUNNING


@pytest.mark.parametrize("phase, status", [("Pending", TaskStatus.BOUND), ("Running", TaskStatus.RUNNING)])
@pytest.mark.parametrize("deleted", [False, True], ids=["is refused", "was carried out"])
def test_an_evicted_pod_leaves_until_the_eviction_is_refused(deleted: bool, phase: str, status: TaskStatus) -> None:
    state = CheckedState(*CLUSTER, pod("p", group="g", node="n1", phase=phase))
    task = state.tasks["p-uid"]
    assert state.release(task) is status
    state.apply(pod("p", group="g", node="n1", phase=phase, labels={"touched": "meanwhile"}, deleting=deleted))
    assert task.status is TaskStatus.RELEASING
    state.apply(deltas.EvictFailed("default", "p", "p-uid", "disruption budget"))
    assert task.status is (TaskStatus.RELEASING if deleted else status)


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
    state = CheckedState(*CLUSTER, fact)
    before = recorded(state)
    assert state.marked(fact) == set()
    assert recorded(state) == before


def test_a_change_marks_exactly_the_affected_objects() -> None:
    state = CheckedState(*CLUSTER, node("n2"), queue("r"), group("h", queue="r"))
    assert state.marked(pod("p", group="g")) == {"job:default/g"}
    assert state.marked(pod("p", group="g", node="n1")) == {"job:default/g", "queue:q", "node:n1"}
    assert state.marked(pod("p", group="g", node="n1", phase="Succeeded")) == {"job:default/g", "queue:q", "node:n1"}
    assert state.marked(gone("Pod", "p")) == {"job:default/g"}


def test_pods_of_one_template_share_class_and_labels() -> None:
    labels = {"app": "trainer"}
    state = CheckedState(pod("a", group="g", labels=dict(labels)), pod("b", group="h", labels=dict(labels)))
    a, b = state.tasks["a-uid"], state.tasks["b-uid"]
    assert a.cls is b.cls
    assert a.labels is b.labels
    state.apply(pod("c", requests={"cpu": 2}))
    assert state.tasks["c-uid"].cls is not a.cls


def test_classes_and_labels_of_pods_that_are_gone_are_forgotten() -> None:
    state = ClusterState(("capcard-sched",), "default")
    for i in range(3000):
        state.apply(pod("p", uid=str(i), requests={"cpu": f"{i}m"}, labels={"index": str(i)}))
    state.open_session()
    assert len(state.classes) <= 2
    assert len(state._pod_table._labels._sets) < 2000
    before = state.tasks["2999"].cls
    for name, cpu in (("q", "2999m"), ("r", "7")):
        state.apply(pod(name, requests={"cpu": cpu}))
    assert state.tasks["q-uid"].cls is before
    ids = {task.cls.id for task in state.tasks.values()}
    assert len(ids) == 2
    assert max(ids) >= 3000, "ids are not used twice"


# --- shared mappings and sums ----------------------------------------------------------------------------------------


def test_waiting_pods_are_the_tasks_of_their_job_until_some_do_not_wait() -> None:
    state = CheckedState(*CLUSTER, pod("a", group="g"), pod("b", group="g"))
    job = state.jobs["default/g"]
    assert job.pending is job.tasks
    assert list(job.pending) == ["a-uid", "b-uid"]
    state.apply(pod("a", group="g", node="n1"))
    assert (list(job.pending), list(job.tasks)) == (["b-uid"], ["b-uid", "a-uid"])
    state.apply(pod("c", group="g", gated=True))
    state.apply(pod("b", group="g", node="n1"))
    assert (dict(job.pending), list(job.gated)) == ({}, ["c-uid"])
    state.apply(pod("c", group="g"))
    assert (list(job.pending), dict(job.gated)) == (["c-uid"], {})
    assert state.jobs["default/g"].pending is not job.tasks


def test_a_gated_pod_beside_waiting_ones_does_not_wait() -> None:
    state = CheckedState(*CLUSTER, pod("a", group="g"), pod("b", group="g", gated=True))
    job = state.jobs["default/g"]
    assert (list(job.pending), list(job.gated)) == (["a-uid"], ["b-uid"])


def test_jobs_with_equal_pods_share_their_sums() -> None:
    pods = [pod(f"{job}{index}", group=job, node="n1") for index in range(3) for job in ("g", "h")]
    state = CheckedState(*CLUSTER, group("h"), *pods)
    one, other = state.jobs["default/g"], state.jobs["default/h"]
    assert one.allocated is other.allocated is one.total_request
    state.delete("Pod", "h1")
    state.apply(pod("h3", group="h", node="n1", requests={"cpu": 2}))
    assert state.columns.amounts(other.allocated) == {"cpu": 4000, "pods": 3}
    assert state.columns.amounts(one.allocated) == {"cpu": 3000, "pods": 3}


def test_pods_with_equal_labels_share_them_whatever_came_in_between() -> None:
    labels = [{"app": "a"}, {"app": "b", "x": ""}, {"x": "", "app": "b"}, {"app": "a"}, {}]
    state = CheckedState(*CLUSTER, *(pod(f"p{i}", group="g", labels=each) for i, each in enumerate(labels)))
    found = [state.tasks[f"p{i}-uid"].labels for i in range(5)]
    assert [dict(each) for each in found] == labels
    assert found[0] is found[3]
    assert found[1] is found[2]
