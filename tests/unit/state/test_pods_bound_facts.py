"""ClusterState: the account of a bound pod does not change with edits of the pod or its PodGroup."""

from __future__ import annotations

import pytest

from capcard_sched.model import annotations as keys
from capcard_sched.model import deltas
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.status import TaskStatus
from capcard_sched.state.invalid_objects import IgnoredEdits
from tests.accounting import CheckedState, gone
from tests.objects import group, node, pod, queue

GROUP = "default/g"
#: A running pod p of group g, as each delta gives it anew.
HELD = {"name": "p", "group": "g", "node": "n"}
ONE = {"cpu": 1000, "pods": 1}


def _held(**changed: object) -> deltas.ObjectChanged:
    return pod(**{**HELD, **changed})  # type: ignore[arg-type]


def _state(*facts: deltas.Delta) -> CheckedState:
    """A state with queues and a node, after its first session."""
    state = CheckedState(queue("q"), queue("other"), queue("default"), node("n"), *facts)
    state.open_session()
    return state


def _usage(state: CheckedState) -> dict[str, dict[str, int]]:
    """Requests of all bound pods by queue, without queues that have none."""
    queues = {**state.queues, **state.deleted_queues}
    found = {name: state.columns.amounts(item.allocated + item.releasing) for name, item in queues.items()}
    return {name: amounts for name, amounts in found.items() if amounts}


def _edits(state: CheckedState) -> dict[str, str]:
    """Kinds and details of the ignored edits."""
    return {ref.kind: detail for ref, detail in state.ignored_edits.details.items()}


EDITS: dict[str, list[deltas.Delta]] = {
    "spec.queue": [group("g", queue="other")],
    "the PodGroup deleted": [gone("PodGroup", "g", "g-group")],
    "the PodGroup deleted and created in another queue": [
        gone("PodGroup", "g", "g-group"),
        group("g", uid="second", queue="other"),
    ],
    "another group annotation": [group("h", queue="other"), _held(group="h")],
    "no group annotation": [_held(group="")],
    "a deletion timestamp": [_held(deleting=True)],
    "deleted together with its PodGroup": [_held(deleting=True), gone("PodGroup", "g", "g-group")],
    "an unknown phase": [_held(phase="Unknown")],
    "another owner": [_held(owner="else")],
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_bound_pod_stays_accounted_to_its_job_and_queue(edit: list[deltas.Delta]) -> None:
    state = _state(group("g"), _held())
    assert _usage(state) == {"q": ONE}
    state.apply(*edit)
    task = state.tasks["p-uid"]
    assert (task.job.key if task.job else "", state.jobs[GROUP].queue) == (GROUP, "q")
    assert _usage(state) == {"q": ONE}
    assert GROUP in state.schedulable


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("end", [_held(phase="Succeeded"), gone("Pod", "p")], ids=["finished", "deleted"])
def test_a_finished_or_deleted_pod_is_no_usage_after_any_edit(end: deltas.Delta, edit: list[deltas.Delta]) -> None:
    assert _usage(_state(group("g"), _held(), *edit, end)) == {}


def test_the_queue_of_a_bare_bound_pod_is_fixed_and_the_edit_recorded_with_both_names() -> None:
    state = _state(pod("p", queue="q", node="n"))
    state.apply(pod("p", queue="other", node="n"))
    assert (_usage(state), _edits(state)) == ({"q": ONE}, {"Pod": "queue changed from <q> to <other>"})
    state.apply(pod("p", node="n"))
    assert _usage(state) == {"q": ONE}


def test_a_change_of_the_podgroup_of_a_bound_pod_is_recorded_with_both_names() -> None:
    state = _state(group("g"), _held())
    state.apply(_held(group="h"))
    assert _edits(state) == {"Pod": "PodGroup changed from <default/g> to <default/h>"}


def test_the_queue_of_an_implicit_job_is_fixed_while_one_of_its_pods_is_bound() -> None:
    state = _state(pod("a", owner="rs", queue="q", node="n", created=1), pod("b", owner="rs", queue="other", created=2))
    state.apply(pod("b", owner="rs", queue="other", node="n", created=2), gone("Pod", "a"))
    assert _usage(state) == {"q": ONE}
    state.delete("Pod", "b")
    assert _usage(state) == {}


def test_an_edited_queue_takes_effect_when_no_pod_is_bound() -> None:
    state = _state(group("g"), _held(), pod("w", group="g"))
    state.apply(group("g", queue="other"), pod("w2", group="g"))
    assert state.jobs[GROUP].queue == "q", "pending pods of the job belong to the same queue"
    state.apply(_held(phase="Succeeded"))
    assert (state.jobs[GROUP].queue, set(state.queues["other"].jobs)) == ("other", {GROUP})


def test_an_unchanged_object_after_an_ignored_edit_is_no_change() -> None:
    state = _state(group("g"), _held())
    for delta in (group("g", queue="other"), _held(group="h")):
        state.apply(delta)
        assert state.marked(delta) == set()


def test_pods_of_a_deleted_podgroup_are_not_scheduled_and_keep_their_account() -> None:
    state = _state(group("g"), _held(), pod("w", group="g"))
    state.delete("PodGroup", "g", "g-group")
    state.open_session()
    assert (list(state.active), list(state.groups_missing), state.jobs[GROUP].uid) == ([], [GROUP], "")
    assert (state.jobs[GROUP].queue, _usage(state)) == ("q", {"q": ONE})
    state.delete("Pod", "p")
    assert (GROUP in state.schedulable, state.jobs[GROUP].queue) == (False, "")


def test_annotations_that_decide_the_charge_are_fixed_when_a_pod_is_bound() -> None:
    state = _state(group("g"), _held(annotations={keys.CARD_NAME: "A|B", keys.CARD_ASSIGNED: "A"}))
    task = state.tasks["p-uid"]
    for notes in ({}, {keys.CARD_NAME: "C", keys.CARD_ASSIGNED: "C"}, {keys.CARD_NAME: "||"}):
        state.apply(_held(annotations=notes))
        assert (task.cls.annotations, task.assigned_card) == ({keys.CARD_NAME: "A|B"}, "A")


@pytest.mark.parametrize("fails", [False, True])
def test_edits_during_a_binding_take_effect_only_if_it_fails(fails: bool) -> None:
    state = _state(group("g"), pod("p", group="g", annotations={keys.CARD_NAME: "A"}))
    job, task = state.jobs[GROUP], state.tasks["p-uid"]
    state.place(job, [task], [state.nodes.by_name["n"]], TaskStatus.ALLOCATED)
    state.set_binding(job, [task])
    state.assume_device_notes(task, {keys.VGPU_IDS: "first"})
    state.apply(pod("p", group="h"))
    assert (task.job, task.cls.annotations) == (job, {keys.CARD_NAME: "A"})
    if fails:
        state.apply(deltas.BindFailed("default", "p", "p-uid", "conflict"))
        assert (task.job, task.cls.annotations, task.status) == (state.jobs["default/h"], {}, TaskStatus.PENDING)
    else:
        state.apply(_held(group="h", annotations={keys.CARD_ASSIGNED: "A", keys.VGPU_IDS: "second"}))
        assert (task.job, task.cls.annotations, task.assigned_card) == (job, {keys.CARD_NAME: "A"}, "A")
        assert task.device_notes == {keys.VGPU_IDS: "first"}
        assert state.confirmed == [task]


def test_before_the_first_session_objects_arrive_in_any_order() -> None:
    facts = [queue("q"), queue("default"), node("n"), group("podgroup-p-uid"), pod("p", node="n")]
    for order in (facts, facts[::-1]):
        assert _usage(CheckedState(*order)) == {"q": ONE}


def test_a_standby_fixes_accounts_without_a_session() -> None:
    state = CheckedState(queue("q"), queue("other"), node("n"), group("g"), _held())
    state.fix_accounts()
    state.apply(group("g", queue="other"), _held(group="h"), deltas.Takeover())
    assert _usage(state) == {"q": ONE}


def test_an_ignored_edit_is_recorded_once_per_object_until_the_object_is_deleted() -> None:
    state = _state(group("g"), _held(annotations={keys.CARD_NAME: "A"}))
    state.apply(_held(), _held(group="h"), group("g", queue="other"))
    card = f"annotation {keys.CARD_NAME} changed from <A> to <>"
    assert _edits(state) == {"Pod": card, "PodGroup": "spec.queue changed to <other>"}
    state.delete("Pod", "p")
    assert list(_edits(state)) == ["PodGroup"]
    state.delete("PodGroup", "g")
    assert (_edits(state), state.ignored_edits.total) == ({}, 2)


def test_the_edit_of_a_new_pod_replaces_that_of_an_earlier_pod_of_the_name() -> None:
    edits = IgnoredEdits()
    first, second, other = (ObjectRef("Pod", "a", "x", "1"), ObjectRef("Pod", "a", "x", "2"),
                            ObjectRef("PodGroup", "a", "x", "3"))  # fmt: skip
    for ref in (other, first, second, second):
        edits.note(ref, ref.uid)
    assert (edits.details, edits.total) == ({other: "3", second: "2"}, 3)


def test_a_long_annotation_is_shortened_in_the_record() -> None:
    state = _state(group("g"), _held())
    state.apply(_held(annotations={keys.CARD_NAME: "x" * 9999}))
    assert len(_edits(state)["Pod"]) < 200


def test_an_edit_without_effect_on_the_account_is_not_recorded() -> None:
    state = _state(group("g"), _held())
    state.apply(_held(labels={"a": "b"}, annotations={keys.PREEMPTABLE: "true"}))
    task = state.tasks["p-uid"]
    assert (task.labels, task.preemptable, state.ignored_edits.total) == ({"a": "b"}, True, 0)


def test_a_deleted_queue_keeps_the_usage_of_its_bound_pods() -> None:
    state = _state(group("g"), _held(), pod("w", group="g"))
    state.delete("Queue", "q")
    assert [(name, one.state) for name, one in state.deleted_queues.items()] == [("q", "Deleted")]
    assert _usage(state) == {"q": ONE}
    state.apply(_held(deleting=True))
    assert _usage(state) == {"q": ONE}
    state.apply(queue("q"))
    assert (_usage(state), state.deleted_queues) == ({"q": ONE}, {})
    state.apply(gone("Queue", "q"), gone("Pod", "p"))
    assert (_usage(state), state.deleted_queues) == ({}, {})


def test_a_queue_that_never_existed_has_the_usage_of_its_bound_pods() -> None:
    assert _usage(_state(group("g", queue="lost"), _held())) == {"lost": ONE}


# --- after a restart --------------------------------------------------------------------------------------------------


BOUND = {keys.BOUND_QUEUE: "q"}
BOUND_ELSEWHERE = {keys.BOUND_QUEUE: "other"}

#: Objects after a restart, and kinds of the ignored edits.
RESTARTS: dict[str, tuple[list[deltas.Delta], list[str]]] = {
    "nothing edited": ([group("g"), _held(annotations=BOUND)], []),
    "spec.queue": ([group("g", queue="other"), _held(annotations=BOUND)], ["PodGroup"]),
    "the pod listed before the PodGroup": ([_held(annotations=BOUND), group("g", queue="other")], ["PodGroup"]),
    "the PodGroup deleted": ([_held(annotations=BOUND)], []),
    "deleted together with its PodGroup": ([_held(deleting=True, annotations=BOUND)], []),
    "spec.queue, and a pending pod": (
        [pod("w", group="g"), group("g", queue="other"), _held(annotations=BOUND)],
        ["PodGroup"],
    ),
}


@pytest.mark.parametrize("objects, ignored", RESTARTS.values(), ids=list(RESTARTS))
def test_a_bound_pod_stays_accounted_to_the_queue_of_its_binding_after_a_restart(
    objects: list[deltas.Delta], ignored: list[str]
) -> None:
    state = _state(*objects)
    assert (_usage(state), state.jobs[GROUP].queue, list(_edits(state))) == ({"q": ONE}, "q", ignored)


def test_an_edited_queue_takes_effect_when_no_pod_is_bound_also_after_a_restart() -> None:
    state = _state(group("g", queue="other"), _held(annotations=BOUND), pod("w", group="g"))
    state.apply(_held(phase="Succeeded", annotations=BOUND))
    assert (state.jobs[GROUP].queue, set(state.queues["other"].jobs), _usage(state)) == ("other", {GROUP}, {})


def test_a_standby_accounts_a_bound_pod_to_the_queue_of_its_binding() -> None:
    state = _state(group("g", queue="other"), pod("p", group="g"))
    state.apply(_held(annotations=BOUND))
    assert _usage(state) == {"q": ONE}


def test_the_queue_of_a_binding_in_memory_precedes_the_annotation() -> None:
    state = _state(group("g"), _held())
    state.apply(_held(name="r", annotations=BOUND_ELSEWHERE))
    assert state.jobs[GROUP].queue == "q"
    state.apply(gone("Pod", "r"), _held(annotations=BOUND_ELSEWHERE))
    assert state.jobs[GROUP].queue == "q", "an edit of a bound pod"


def test_the_oldest_bound_pod_of_a_job_fixes_its_queue_after_a_restart() -> None:
    pods = [_held(name="a", created=2, annotations=BOUND_ELSEWHERE), _held(name="b", created=1, annotations=BOUND)]
    for order in (pods, pods[::-1]):
        assert set(_usage(_state(group("g"), *order))) == {"q"}


@pytest.mark.parametrize(
    "changed",
    [{"node": ""}, {"phase": "Succeeded"}, {"scheduler": "default-scheduler"}],
    ids=["pending", "finished", "of another scheduler"],
)
def test_the_annotation_of_a_pod_without_a_binding_of_ours_has_no_effect(changed: dict[str, str]) -> None:
    state = _state(group("g"), _held(annotations=BOUND_ELSEWHERE, **changed))
    assert state.jobs[GROUP].queue == "q"


def test_a_deleted_queue_keeps_the_usage_of_its_pods_after_a_restart() -> None:
    state = _state(group("g"), _held(annotations={keys.BOUND_QUEUE: "gone"}))
    assert (_usage(state), list(state.deleted_queues)) == ({"gone": ONE}, ["gone"])
    state.apply(queue("gone"))
    assert (_usage(state), list(state.deleted_queues)) == ({"gone": ONE}, [])
    state.delete("Pod", "p")
    assert state.jobs[GROUP].queue == "q"
