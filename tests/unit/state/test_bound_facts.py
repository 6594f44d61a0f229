"""ClusterState: the account of a bound pod does not change with edits of the pod or its PodGroup."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from capcard_sched.model import annotations as keys
from capcard_sched.model import deltas
from capcard_sched.model.status import TaskStatus
from capcard_sched.state.cluster import ClusterState
from tests.accounting import rebuilt, recorded
from tests.objects import group, node, pod, queue

GROUP = "default/g"


def _state(*facts: deltas.Delta) -> ClusterState:
    """A state with two queues and a node, after its first session."""
    state = ClusterState(("capcard-sched",), "default")
    for fact in (queue("q"), queue("other"), queue("default"), node("n"), *facts):
        state.apply(fact)
    state.open_session()
    return state


def _usage(state: ClusterState) -> dict[str, dict[str, int]]:
    """Requests of all bound pods by queue, without queues that have none."""
    queues = {**state.queues, **state.deleted_queues}
    found = {name: state.columns.amounts(item.allocated + item.releasing) for name, item in queues.items()}
    return {name: amounts for name, amounts in found.items() if amounts}


ONE = {"cpu": 1000, "pods": 1}

EDITS: dict[str, Callable[[], list[deltas.Delta]]] = {
    "spec.queue": lambda: [group("g", queue="other")],
    "the PodGroup deleted": lambda: [deltas.ObjectGone("PodGroup", "default", "g", "g-group")],
    "the PodGroup deleted and created in another queue": lambda: [
        deltas.ObjectGone("PodGroup", "default", "g", "g-group"),
        group("g", uid="second", queue="other"),
    ],
    "another group annotation": lambda: [group("h", queue="other"), pod("p", group="h", node="n")],
    "no group annotation": lambda: [pod("p", node="n")],
    "a deletion timestamp": lambda: [pod("p", group="g", node="n", deleting=True)],
    "deleted together with its PodGroup": lambda: [
        pod("p", group="g", node="n", deleting=True),
        deltas.ObjectGone("PodGroup", "default", "g", "g-group"),
    ],
    "an unknown phase": lambda: [pod("p", group="g", node="n", phase="Unknown")],
    "another owner": lambda: [pod("p", group="g", node="n", owner="else")],
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_bound_pod_stays_accounted_to_its_job_and_queue(edit: str) -> None:
    state = _state(group("g"), pod("p", group="g", node="n"))
    assert _usage(state) == {"q": ONE}
    for delta in EDITS[edit]():
        state.apply(delta)
    task = state.tasks["p-uid"]
    assert (task.job.key if task.job else "", state.jobs[GROUP].queue) == (GROUP, "q")
    assert _usage(state) == {"q": ONE}
    assert GROUP in state.schedulable
    assert recorded(state) == rebuilt(state)


@pytest.mark.parametrize("edit", EDITS)
def test_a_finished_or_deleted_pod_is_no_usage_after_any_edit(edit: str) -> None:
    ends: list[deltas.Delta] = [
        pod("p", group="g", node="n", phase="Succeeded"),
        deltas.ObjectGone("Pod", "default", "p"),
    ]
    for end in ends:
        state = _state(group("g"), pod("p", group="g", node="n"))
        for delta in (*EDITS[edit](), end):
            state.apply(delta)
        assert _usage(state) == {}
        assert recorded(state) == rebuilt(state)


def test_the_queue_of_a_bare_bound_pod_is_fixed() -> None:
    state = _state(pod("p", queue="q", node="n"))
    state.apply(pod("p", queue="other", node="n"))
    assert _usage(state) == {"q": ONE}
    state.apply(pod("p", node="n"))
    assert _usage(state) == {"q": ONE}


def test_the_queue_of_an_implicit_job_is_fixed_while_one_of_its_pods_is_bound() -> None:
    state = _state(pod("a", owner="rs", queue="q", node="n", created=1), pod("b", owner="rs", queue="other", created=2))
    state.apply(pod("b", owner="rs", queue="other", node="n", created=2))
    state.apply(deltas.ObjectGone("Pod", "default", "a"))
    assert _usage(state) == {"q": ONE}
    state.apply(deltas.ObjectGone("Pod", "default", "b"))
    assert _usage(state) == {}


def test_an_edited_queue_takes_effect_when_no_pod_is_bound() -> None:
    state = _state(group("g"), pod("p", group="g", node="n"), pod("w", group="g"))
    state.apply(group("g", queue="other"))
    state.apply(pod("w2", group="g"))
    assert state.jobs[GROUP].queue == "q", "pending pods of the job belong to the same queue"
    state.apply(pod("p", group="g", node="n", phase="Succeeded"))
    assert state.jobs[GROUP].queue == "other"
    assert set(state.queues["other"].jobs) == {GROUP}
    assert recorded(state) == rebuilt(state)


def test_an_unchanged_object_after_an_ignored_edit_is_no_change() -> None:
    state = _state(group("g"), pod("p", group="g", node="n"))
    for delta in (group("g", queue="other"), pod("p", group="h", node="n")):
        state.apply(delta)
        state.open_session()
        state.apply(delta)
        assert not state.open_session()


def test_pods_of_a_deleted_podgroup_are_not_scheduled_and_keep_their_account() -> None:
    state = _state(group("g"), pod("p", group="g", node="n"), pod("w", group="g"))
    state.apply(deltas.ObjectGone("PodGroup", "default", "g", "g-group"))
    state.open_session()
    assert (list(state.active), list(state.groups_missing), state.jobs[GROUP].uid) == ([], [GROUP], "")
    assert state.jobs[GROUP].queue == "q"
    assert state.columns.amounts(state.queues["q"].allocated) == {"cpu": 1000, "pods": 1}
    state.apply(deltas.ObjectGone("Pod", "default", "p"))
    assert (GROUP in state.schedulable, state.jobs[GROUP].queue) == (False, "")
    assert recorded(state) == rebuilt(state)


def test_annotations_that_decide_the_charge_are_fixed_when_a_pod_is_bound() -> None:
    state = _state(
        group("g"), pod("p", group="g", node="n", annotations={keys.CARD_NAME: "A|B", keys.CARD_ASSIGNED: "A"})
    )
    task = state.tasks["p-uid"]
    for notes in ({}, {keys.CARD_NAME: "C", keys.CARD_ASSIGNED: "C"}, {keys.CARD_NAME: "||"}):
        state.apply(pod("p", group="g", node="n", annotations=notes))
        assert (task.cls.annotations, task.assigned_card) == ({keys.CARD_NAME: "A|B"}, "A")


def test_edits_during_a_binding_take_effect_only_if_it_fails() -> None:
    def binding() -> ClusterState:
        state = _state(group("g"), pod("p", group="g", annotations={keys.CARD_NAME: "A"}))
        job, task = state.jobs[GROUP], state.tasks["p-uid"]
        state.place(job, [task], [state.nodes.by_name["n"]], TaskStatus.ALLOCATED)
        state.set_binding(job, [task])
        state.apply(pod("p", group="h"))
        assert (task.job, task.cls.annotations) == (job, {keys.CARD_NAME: "A"})
        return state

    state = binding()
    state.apply(pod("p", group="h", node="n", annotations={keys.CARD_ASSIGNED: "A"}))
    task = state.tasks["p-uid"]
    assert (task.job, task.cls.annotations, task.assigned_card) == (state.jobs[GROUP], {keys.CARD_NAME: "A"}, "A")
    assert state.confirmed == [task]

    state = binding()
    state.apply(deltas.BindFailed("default", "p", "p-uid", "conflict"))
    task = state.tasks["p-uid"]
    assert (task.job, task.cls.annotations, task.status) == (state.jobs["default/h"], {}, TaskStatus.PENDING)
    assert recorded(state) == rebuilt(state)


def test_before_the_first_session_objects_arrive_in_any_order() -> None:
    facts: list[deltas.Delta] = [queue("q"), queue("default"), node("n"), group("podgroup-p-uid"), pod("p", node="n")]
    for order in (facts, facts[::-1]):
        state = ClusterState(("capcard-sched",), "default")
        for fact in order:
            state.apply(fact)
        assert _usage(state) == {"q": ONE}


def test_a_standby_fixes_accounts_without_a_session() -> None:
    state = ClusterState(("capcard-sched",), "default")
    listed: list[deltas.Delta] = [queue("q"), queue("other"), node("n"), group("g"), pod("p", group="g", node="n")]
    for fact in listed:
        state.apply(fact)
    state.fix_accounts()
    for edit in (group("g", queue="other"), pod("p", group="h", node="n"), deltas.Takeover()):
        state.apply(edit)
    assert _usage(state) == {"q": ONE}


def test_an_ignored_edit_is_recorded_once_per_object_until_the_object_is_deleted() -> None:
    state = _state(group("g"), pod("p", group="g", node="n", annotations={keys.CARD_NAME: "A"}))
    edits = state.ignored_edits
    state.apply(pod("p", group="g", node="n"))
    state.apply(pod("p", group="h", node="n"))
    state.apply(group("g", queue="other"))
    assert {ref.kind: (ref.name, detail) for ref, detail in edits.details.items()} == {
        "Pod": ("p", f"annotation {keys.CARD_NAME} changed from <A> to <>"),
        "PodGroup": ("g", "spec.queue changed to <other>"),
    }
    assert edits.total == 2
    state.apply(deltas.ObjectGone("Pod", "default", "p"))
    assert [ref.kind for ref in edits.details] == ["PodGroup"]
    state.apply(deltas.ObjectGone("PodGroup", "default", "g"))
    assert (edits.details, edits.total) == ({}, 2)


def test_an_edited_queue_of_a_bare_bound_pod_is_recorded_with_both_names() -> None:
    state = _state(pod("p", queue="q", node="n"))
    state.apply(pod("p", queue="other", node="n"))
    assert list(state.ignored_edits.details.values()) == ["queue changed from <q> to <other>"]


def test_a_long_annotation_is_shortened_in_the_record() -> None:
    state = _state(group("g"), pod("p", group="g", node="n"))
    state.apply(pod("p", group="g", node="n", annotations={keys.CARD_NAME: "x" * 9999}))
    (detail,) = state.ignored_edits.details.values()
    assert len(detail) < 200


def test_an_edit_without_effect_on_the_account_is_not_recorded() -> None:
    state = _state(group("g"), pod("p", group="g", node="n"))
    state.apply(pod("p", group="g", node="n", labels={"a": "b"}, annotations={keys.PREEMPTABLE: "true"}))
    task = state.tasks["p-uid"]
    assert (task.labels, task.preemptable, state.ignored_edits.total) == ({"a": "b"}, True, 0)


def test_a_deleted_queue_keeps_the_usage_of_its_bound_pods() -> None:
    state = _state(group("g"), pod("p", group="g", node="n"), pod("w", group="g"))
    state.apply(deltas.ObjectGone("Queue", "", "q"))
    assert list(state.deleted_queues) == ["q"]
    assert (_usage(state), state.deleted_queues["q"].state) == ({"q": ONE}, "Deleted")
    state.apply(pod("p", group="g", node="n", deleting=True))
    assert _usage(state) == {"q": ONE}
    state.apply(queue("q"))
    assert (_usage(state), state.deleted_queues) == ({"q": ONE}, {})
    assert recorded(state) == rebuilt(state)
    state.apply(deltas.ObjectGone("Queue", "", "q"))
    state.apply(deltas.ObjectGone("Pod", "default", "p"))
    assert (_usage(state), state.deleted_queues) == ({}, {})
    assert recorded(state) == rebuilt(state)


def test_a_queue_that_never_existed_has_the_usage_of_its_bound_pods() -> None:
    state = _state(group("g", queue="lost"), pod("p", group="g", node="n"))
    assert _usage(state) == {"lost": ONE}


# --- after a restart --------------------------------------------------------------------------------------------------


BOUND = {keys.BOUND_QUEUE: "q"}
HELD = pod("p", group="g", node="n", annotations=BOUND)

#: Objects after a restart, and kinds of the ignored edits.
RESTARTS: dict[str, tuple[list[deltas.Delta], list[str]]] = {
    "nothing edited": ([group("g"), HELD], []),
    "spec.queue": ([group("g", queue="other"), HELD], ["PodGroup"]),
    "the pod listed before the PodGroup": ([HELD, group("g", queue="other")], ["PodGroup"]),
    "the PodGroup deleted": ([HELD], []),
    "the PodGroup deleted and created in another queue": (
        [group("g", uid="second", queue="other"), HELD],
        ["PodGroup"],
    ),
    "deleted together with its PodGroup": ([pod("p", group="g", node="n", deleting=True, annotations=BOUND)], []),
    "spec.queue, and a pending pod": ([pod("w", group="g"), group("g", queue="other"), HELD], ["PodGroup"]),
}


@pytest.mark.parametrize("objects, ignored", RESTARTS.values(), ids=list(RESTARTS))
def test_a_bound_pod_stays_accounted_to_the_queue_of_its_binding_after_a_restart(
    objects: list[deltas.Delta], ignored: list[str]
) -> None:
    state = _state(*objects)
    assert _usage(state) == {"q": ONE}
    assert state.jobs[GROUP].queue == "q"
    assert recorded(state) == rebuilt(state)
    assert [ref.kind for ref in state.ignored_edits.details] == ignored


def test_an_edited_queue_takes_effect_when_no_pod_is_bound_also_after_a_restart() -> None:
    state = _state(group("g", queue="other"), HELD, pod("w", group="g"))
    state.apply(pod("p", group="g", node="n", phase="Succeeded", annotations=BOUND))
    assert (state.jobs[GROUP].queue, set(state.queues["other"].jobs)) == ("other", {GROUP})
    assert (_usage(state), recorded(state)) == ({}, rebuilt(state))


def test_a_standby_accounts_a_bound_pod_to_the_queue_of_its_binding() -> None:
    state = _state(group("g", queue="other"), pod("p", group="g"))
    state.apply(HELD)
    assert _usage(state) == {"q": ONE}
    assert recorded(state) == rebuilt(state)


def test_the_queue_of_a_binding_in_memory_precedes_the_annotation() -> None:
    state = _state(group("g"), pod("p", group="g", node="n"))
    state.apply(pod("r", group="g", node="n", annotations={keys.BOUND_QUEUE: "other"}))
    assert state.jobs[GROUP].queue == "q"
    state.apply(deltas.ObjectGone("Pod", "default", "r"))
    state.apply(pod("p", group="g", node="n", annotations={keys.BOUND_QUEUE: "other"}))
    assert state.jobs[GROUP].queue == "q", "an edit of a bound pod"


def test_the_oldest_bound_pod_of_a_job_fixes_its_queue_after_a_restart() -> None:
    young = pod("a", group="g", node="n", created=2, annotations={keys.BOUND_QUEUE: "other"})
    old = pod("b", group="g", node="n", created=1, annotations=BOUND)
    for order in ((young, old), (old, young)):
        assert set(_usage(_state(group("g"), *order))) == {"q"}


def test_the_annotation_of_a_pending_finished_or_foreign_pod_has_no_effect() -> None:
    notes = {keys.BOUND_QUEUE: "other"}
    for each in (
        pod("w", group="g", annotations=notes),
        pod("w", group="g", node="n", phase="Succeeded", annotations=notes),
        pod("w", group="g", node="n", scheduler="default-scheduler", annotations=notes),
    ):
        state = _state(group("g"), each)
        assert state.jobs[GROUP].queue == "q"


def test_a_deleted_queue_keeps_the_usage_of_its_pods_after_a_restart() -> None:
    state = _state(group("g"), pod("p", group="g", node="n", annotations={keys.BOUND_QUEUE: "gone"}))
    assert (_usage(state), list(state.deleted_queues)) == ({"gone": ONE}, ["gone"])
    state.apply(queue("gone"))
    assert (_usage(state), list(state.deleted_queues)) == ({"gone": ONE}, [])
    state.apply(deltas.ObjectGone("Pod", "default", "p"))
    assert (state.jobs[GROUP].queue, recorded(state)) == ("q", rebuilt(state))
