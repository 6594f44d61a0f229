"""What pods with labels of operators cost: memory of pods that are gone, passes and wakes of one tenant's pods."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from capcard_sched.controllers.objects import POD, JsonObject, Key
from capcard_sched.controllers.owner_groups import OwnerGroups
from capcard_sched.controllers.owner_rules import built_in_rules, parse_owner_rules
from capcard_sched.controllers.podgroups import PodGroupController
from capcard_sched.controllers.view import Create, Patch
from capcard_sched.kube.controllers.records import WatchedRecords
from capcard_sched.model.annotations import GROUP_NAME
from capcard_sched.model.intents import EmitEvent
from capcard_sched.simulation.clock import VirtualClock
from capcard_sched.simulation.store import Store
from tests.lines import executed_lines

_JOB_SET = "jobset.sigs.k8s.io/jobset-name"
_RESTART = "jobset.sigs.k8s.io/restart-attempt"


def owners() -> OwnerGroups:
    return OwnerGroups(built_in_rules(), ["capcard-sched"])


def pod(name: str, job_set: str = "j", restart: str = "0", group: str = "", **annotations: str) -> JsonObject:
    notes = {**({GROUP_NAME: group} if group else {}), **annotations}
    labels = {_JOB_SET: job_set, _RESTART: restart} if job_set else {}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": labels, "annotations": notes}
    return {"metadata": metadata, "spec": {"schedulerName": "capcard-sched"}, "status": {}}


def observe(groups: OwnerGroups, old: JsonObject | None, new: JsonObject | None) -> list[Key]:
    return list(groups.observe(old, new))


def test_a_pod_that_changes_its_labels_leaves_the_owner_of_before() -> None:
    groups, former = owners(), None
    for number in range(100):
        present = pod("p", f"j{number}")
        observe(groups, former, present)
        former = present
    assert len(groups) == 1
    observe(groups, former, pod("p", ""))
    assert len(groups) == 0
    observe(groups, pod("p", ""), None)
    assert len(groups) == 0


def test_a_pod_that_changes_its_labels_is_not_waited_for() -> None:
    groups = owners()
    runs = pod("runs", restart="0", group="j")
    observe(groups, None, runs)
    waits = pod("waits", restart="1")
    observe(groups, None, waits)
    found = groups.ruled(waits)
    assert found is not None
    assert groups.must_wait(found, waits, "j")
    assert observe(groups, runs, pod("runs", "other", group="j")) == [Key(POD, "team", "waits")]
    assert not groups.must_wait(found, waits, "j")


def test_pods_of_two_kinds_of_owners_of_one_name_leave_nothing() -> None:
    groups = owners()

    def of(kind: str) -> JsonObject:
        made = pod(kind, "")
        made["metadata"]["labels"] = {"training.kubeflow.org/job-name": "j"}
        reference = {"apiVersion": "kubeflow.org/v1", "kind": kind, "name": "j", "uid": kind, "controller": True}
        made["metadata"]["ownerReferences"] = [reference]
        return made

    for kind in ("PyTorchJob", "TFJob"):
        observe(groups, None, of(kind))
    for kind in ("PyTorchJob", "TFJob"):
        observe(groups, of(kind), None)
    assert len(groups) == 0


def test_a_text_that_is_longer_than_a_name_of_an_object_names_no_owner() -> None:
    groups = owners()
    assert groups.ruled(pod("p", "", **{_JOB_SET: "x" * 254})) is None
    assert groups.ruled(pod("p", "", **{_JOB_SET: "x" * 253})) is not None


def test_an_owner_that_cannot_be_read_is_reported_once_while_it_has_pods() -> None:
    groups, one = owners(), pod("p")
    found = groups.ruled(one)
    assert found is not None
    for _ in range(2):
        observe(groups, None, one)
        assert groups.is_first_report(found)
        assert not groups.is_first_report(found)
        observe(groups, one, None)


def test_a_pass_over_a_pod_costs_the_same_however_many_groups_its_owner_has() -> None:
    def cost(size: int) -> int:
        groups = owners()
        for number in range(size):
            observe(groups, None, pod(f"p{number}", restart=str(number), group=f"g{number}"))
        one = pod("one", restart="x")
        found = groups.ruled(one)
        assert found is not None
        return executed_lines(lambda: (groups.is_plain(found), groups.must_wait(found, one, "absent")))

    assert cost(400) <= cost(4) + 2


def test_labels_of_an_operator_reach_no_object_of_another_namespace() -> None:
    """The JobSet, its PodGroup and its leader are of another tenant: the pod is a gang of its own, with an event."""
    store, controller = Store(VirtualClock()), PodGroupController(["capcard-sched"])
    foreign = {"name": "j", "namespace": "victim"}
    spec = {"replicatedJobs": [{"name": "w", "replicas": 8}]}
    store.create("JobSet.jobset.x-k8s.io/v1alpha2", {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
                 "metadata": foreign, "spec": spec})  # fmt: skip
    theirs = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": foreign,
        "spec": {"minMember": 8},
    }
    store.create("PodGroup", theirs)
    forged = store.create("Pod", pod("p"))
    assert [*controller.keys(POD, None, forged)] == [Key(POD, "team", "p")]
    writes = controller.reconcile(store, Key(POD, "team", "p"), 0.0).writes
    event, made, patch = writes
    assert isinstance(made, Create)
    assert isinstance(event, EmitEvent)
    assert isinstance(patch, Patch)
    assert made.object["metadata"]["namespace"] == "team"
    assert made.object["spec"]["minMember"] == 1
    assert [each["name"] for each in made.object["metadata"]["ownerReferences"]] == ["p"]
    assert event.reason == "OwnerUnreadable"
    assert patch.key == Key(POD, "team", "p")


#: Case to the spec of an owner with a role per pod: each role is a gang.
_STAGES: dict[str, Callable[[list[JsonObject]], JsonObject]] = {
    "in order": lambda roles: {"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": roles},
    "with dependencies": lambda roles: {"replicatedJobs": [{**each, "dependsOn": [{"name": "r0"}]} for each in roles]},
    "with a long one": lambda roles: {
        "replicatedJobs": [*roles, {"name": "long", "dependsOn": [{"name": "r0"}] * len(roles)}]},
}  # fmt: skip


@pytest.mark.parametrize("case", _STAGES)
def test_a_pass_over_an_owner_is_linear_in_its_roles(case: str) -> None:
    api = "jobset.x-k8s.io/v1alpha2"
    kind = "JobSet.jobset.x-k8s.io/v1alpha2"

    def cost(size: int) -> int:
        store = Store(VirtualClock())
        controller = PodGroupController(["capcard-sched"])
        roles = [{"name": f"r{number}", "replicas": 2} for number in range(size)]
        metadata = {"name": "j", "namespace": "team"}
        store.create(kind, {"apiVersion": api, "kind": "JobSet", "metadata": metadata, "spec": _STAGES[case](roles)})
        for number in range(size):
            made = pod(f"p{number}")
            made["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] = f"r{number}"
            found = store.create("Pod", made)
            key = Key(POD, "team", f"p{number}")
            assert [*controller.keys(POD, None, found)] == [key]
            for write in controller.reconcile(store, key, 0.0).writes:
                if isinstance(write, Create):
                    store.create("PodGroup", write.object)
                elif isinstance(write, Patch):
                    changed = store.patch("Pod", "team", f"p{number}", write.patch)
                    assert not [*controller.keys(POD, found, changed)]
        assert len(list(store.list("PodGroup"))) == size
        store.patch(kind, "team", "j", {"spec": _STAGES[case]([{**each, "replicas": 3} for each in roles])})
        result: list[int] = []
        lines = executed_lines(
            lambda: result.append(len(controller.reconcile(store, Key(kind, "team", "j"), 0.0).writes))
        )
        assert result == [size]
        return lines

    small, large = cost(25), cost(100)
    assert large < 6 * small, (small, large)


def test_pods_that_wait_are_woken_when_their_group_has_one_incarnation_at_most() -> None:
    groups = owners()
    running = [pod(f"r{number}", restart=str(number), group="j") for number in range(50)]
    for each in running:
        observe(groups, None, each)
    for number in range(50):
        waits = pod(f"w{number}", restart="x")
        observe(groups, None, waits)
        found = groups.ruled(waits)
        assert found is not None
        assert groups.must_wait(found, waits, "j")
    woken = [len(observe(groups, each, None)) for each in running]
    assert woken == [*[0] * 48, 50, 0], "each waits again, if it has to"


@pytest.mark.parametrize("prefix", ["labels", "annotations"])
def test_forged_labels_make_one_podgroup_per_pod_at_most_with_an_owner_of_the_namespace(prefix: str) -> None:
    """Pods without a controller, with labels of an operator: of a JobSet that exists, and of others that do not."""
    store, controller = Store(VirtualClock()), PodGroupController(["capcard-sched"])
    spec = {"replicatedJobs": [{"name": "w", "replicas": 8}]}
    own = store.create(
        "JobSet.jobset.x-k8s.io/v1alpha2",
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "j", "namespace": "team"},
            "spec": spec,
        },
    )
    uids = {own["metadata"]["uid"]}
    names = dict[str, None]()
    for number in range(60):
        labels = {_JOB_SET: "j" if number % 2 else f"absent-{number}", _RESTART: str(number)}
        forged = pod(f"p{number}", "")
        forged["metadata"][prefix] |= labels
        stored = store.create("Pod", forged)
        uids.add(stored["metadata"]["uid"])
        made = 0
        for key in [*controller.keys(POD, None, stored)]:
            for write in controller.reconcile(store, key, 0.0).writes:
                if isinstance(write, Create):
                    made += 1
                    group = write.object
                    assert group["metadata"]["namespace"] == "team"
                    assert {each["uid"] for each in group["metadata"]["ownerReferences"]} <= uids
                    names[group["metadata"]["name"]] = None
        assert made <= 1
    assert len(names) <= 60


#: A rule of a user for pods with an annotation.
_OF_STATEFUL_SETS = """
ownerGroups:
- name: mine
  when: [example.com/gang]
  group: [{name: 'gang-{example.com/gang}'}]
  owners: [{apiVersion: apps/v1, kind: StatefulSet, resource: statefulsets}]
  ownerName: '{example.com/gang}'
"""


def test_what_is_kept_of_objects_suffices_for_the_rules_of_a_user() -> None:
    """Pods that only an annotation selects keep their containers in a group, StatefulSets the status of their pods."""
    records = WatchedRecords(parse_owner_rules(_OF_STATEFUL_SETS))

    def kept(kind: str, **body: object) -> JsonObject:
        change = records.decode_change(kind, msgspec.json.encode(body))
        assert change is not None
        found: JsonObject = msgspec.json.decode(change.data)
        return found

    metadata = {"name": "a", "namespace": "team", "uid": "1", "resourceVersion": "5"}
    containers = [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]
    for notes, requests in (({"example.com/gang": "a"}, ["2"]), ({"other": "a"}, [])):
        found = kept("Pod", metadata={**metadata, "annotations": {GROUP_NAME: "g", **notes}},
                     spec={"schedulerName": "capcard-sched", "containers": containers})  # fmt: skip
        assert [each["resources"]["requests"]["cpu"] for each in found["spec"].get("containers", [])] == requests
    found = kept("StatefulSet", metadata=metadata, spec={"replicas": 2}, status={"updateRevision": "r"})
    assert (found["spec"], found["status"]) == ({"replicas": 2}, {"updateRevision": "r"})


def test_an_owner_of_a_rule_may_be_a_stateful_set_and_others_have_their_groups() -> None:
    """The PodGroup of the one without the label follows its annotation, as without rules."""
    rule = f"{_OF_STATEFUL_SETS}  min: [{{role: all, count: spec.replicas}}]\n"
    store = Store(VirtualClock())
    controller = PodGroupController(["capcard-sched"], rules=parse_owner_rules(rule, built_in_rules()))

    def reconcile(key: Key) -> None:
        for write in controller.reconcile(store, key, 0.0).writes:
            if isinstance(write, Create):
                store.create("PodGroup", write.object)
            elif isinstance(write, Patch):
                store.patch(write.key.kind, write.key.namespace, write.key.name, write.patch)

    for name in ("ruled", "plain"):
        meta = {"name": name, "namespace": "team", "annotations": {"scheduling.volcano.sh/group-min-member": "4"}}
        if name == "ruled":
            del meta["annotations"]
        body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": {"replicas": 3}}
        owner = store.create("StatefulSet", body)
        made = pod(f"{name}-0", "")
        made["metadata"]["labels"] = {"example.com/gang": "ruled"} if name == "ruled" else {}
        reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": owner["metadata"]["uid"]}
        made["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
        for key in [*controller.keys(POD, None, store.create("Pod", made))]:
            reconcile(key)
        assert [*controller.keys(POD, None, store.get("Pod", "team", f"{name}-0"))] == []
    plain = next(
        each["metadata"]["name"] for each in store.list("PodGroup") if each["metadata"]["name"] != "gang-ruled"
    )

    def minimums() -> dict[str, int]:
        return {each["metadata"]["name"]: each["spec"]["minMember"] for each in store.list("PodGroup")}

    assert minimums() == {"gang-ruled": 3, plain: 3}, "an annotated minimum is at most the replicas"
    for name in ("ruled", "plain"):
        before = store.get("StatefulSet", "team", name)
        after = store.patch("StatefulSet", "team", name, {"spec": {"replicas": 4}})
        for key in [*controller.keys("StatefulSet", before, after)]:
            reconcile(key)
    assert minimums() == {"gang-ruled": 4, plain: 4}
