"""The rules of the webhooks: every rejected object with its field, cause and accepted form, and every default."""

from __future__ import annotations

import copy
import json
from typing import Any, Final

import msgspec
import pytest

from capcard_sched.admission.jobs import check_job_update, check_new_job, default_job
from capcard_sched.admission.namespace_queues import check_namespace_queue_deletion, check_namespace_queue_object
from capcard_sched.admission.pods import (
    AdmissionConfigError,
    check_new_pod,
    check_new_pod_group,
    check_pod_group_update,
    check_workload,
    default_pod,
    default_pod_group,
    parse_admission_config,
)
from capcard_sched.admission.queues import QueueRules, check_queue_deletion, check_queue_object, default_queue
from capcard_sched.admission.review import AdmissionResult, ClusterView, finding_text
from capcard_sched.model.namespace_queues import NamespaceQueueObject
from capcard_sched.model.objects import Guarantee, ObjectMeta, QueueObject, QueueSpec, QueueStatus
from capcard_sched.model.timestamps import format_timestamp
from tests.unit.admission.objects import Json, changed, vectors, view

JOBS = vectors("jobs.yaml")
QUEUES = vectors("queues.yaml")


def named(cases: list[list[Any]]) -> list[Any]:
    return [pytest.param(*case, id=f"{case[0]}={json.dumps(case[1])[:60]}") for case in cases]


def assert_rejected(result: AdmissionResult, field: str, message: str) -> None:
    fields = {finding.field for finding in result.errors}
    assert field in fields, [finding_text(each) for each in result.findings]
    found = [each for each in result.errors if each.field == field]
    assert message == "~none" or any(message in each.message for each in found), found
    assert all(each.accepted for each in found), found


def patched(obj: Json, result: AdmissionResult) -> Json:
    """The object after its JSON patch, applied from the operations alone."""
    obj = copy.deepcopy(obj)
    for operation in result.patch:
        *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in operation.path.split("/")[1:]]
        parent: Any = obj
        for step in steps:
            parent = parent[int(step)] if isinstance(parent, list) else parent[step]
        parent[last] = operation.value
    return obj


# --- vcjobs ---------------------------------------------------------------------------------------------------------


def test_a_complete_job_is_accepted_without_warnings() -> None:
    assert check_new_job(JOBS["base"], view()).findings == ()


@pytest.mark.parametrize("path, value, field, message", named(JOBS["rejected"]))
def test_a_malformed_job_is_rejected(path: str, value: Any, field: str, message: str) -> None:
    assert_rejected(check_new_job(changed(JOBS["base"], path, value), view()), field, message)


@pytest.mark.parametrize("path, value, field, message", named(JOBS["warned"]))
def test_arguments_without_effect_are_warnings(path: str, value: Any, field: str, message: str) -> None:
    result = check_new_job(changed(JOBS["base"], path, value), view())
    assert result.errors == []
    assert [each.accepted for each in result.findings if each.field == field and message in each.message]


@pytest.mark.parametrize("path, value, field, message", named(JOBS["updates"]))
def test_a_forbidden_update_of_a_job_is_rejected(path: str, value: Any, field: str, message: str) -> None:
    assert_rejected(check_job_update(changed(JOBS["base"], path, value), JOBS["base"], view()), field, message)


@pytest.mark.parametrize("path, value", named(JOBS["allowed_updates"]))
def test_an_allowed_update_of_a_job_is_accepted(path: str, value: Any) -> None:
    assert check_job_update(changed(JOBS["base"], path, value), JOBS["base"], view()).errors == []


def test_a_job_that_is_being_deleted_may_lose_its_finalizers() -> None:
    old = changed(JOBS["base"], "metadata.deletionTimestamp", "2026-01-01T00:00:00Z")
    assert check_job_update(changed(old, "spec.queue", "other"), old, view()).errors == []


def test_the_controller_may_write_the_names_of_the_claims_it_creates() -> None:
    old = changed(JOBS["base"], "spec.volumes", [{"mountPath": "/a", "volumeClaim": {"resources": {}}}])
    assert check_job_update(changed(old, "spec.volumes[0].volumeClaimName", "train-pvc-1"), old, view()).errors == []


def test_defaults_of_a_job() -> None:
    job: Json = {
        "metadata": {"name": "j"},
        "spec": {
            "maxRetry": 0,
            "plugins": {"mpi": ["--master=default0"]},
            "tasks": [
                {"replicas": 2, "template": {"spec": {"hostNetwork": True, "containers": []}}},
                {"name": "w", "minAvailable": 1, "maxRetry": -1, "replicas": 4, "template": {"spec": {}}},
            ],
        },
    }
    spec = patched(job, default_job(copy.deepcopy(job), "capcard-sched"))["spec"]
    assert spec["queue"] == "default"
    assert spec["schedulerName"] == "capcard-sched"
    assert spec["maxRetry"] == 3
    assert spec["minAvailable"] == 3
    assert spec["plugins"] == {"mpi": ["--master=default0"], "svc": [], "ssh": []}
    first, second = spec["tasks"]
    assert (first["name"], first["minAvailable"], first["maxRetry"]) == ("default0", 2, 3)
    assert first["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert (second["name"], second["minAvailable"], second["maxRetry"]) == ("w", 1, -1)
    assert "dnsPolicy" not in second["template"]["spec"]


@pytest.mark.parametrize("least, minimum", [(2, 4), (0, 8), (None, 8)])
def test_the_minimum_of_partitions_is_the_default_of_a_task(least: int | None, minimum: int) -> None:
    policy = {"totalPartitions": 4, "partitionSize": 2, **({} if least is None else {"minPartitions": least})}
    job: Json = {"metadata": {"name": "j"}, "spec": {"tasks": [{"replicas": 8, "partitionPolicy": policy}]}}
    spec = patched(job, default_job(copy.deepcopy(job), "capcard-sched"))["spec"]
    assert (spec["tasks"][0]["minAvailable"], spec["minAvailable"]) == (minimum, minimum)


@pytest.mark.parametrize(
    "replicas, total, field",
    [(12, 4, "spec.tasks[0].partitionPolicy"), (12, 6, "spec.tasks[0].partitionPolicy.totalPartitions")],
)
def test_a_task_with_partitions_is_not_scaled(replicas: int, total: int, field: str) -> None:
    old, new = copy.deepcopy(JOBS["base"]), copy.deepcopy(JOBS["base"])
    for job, count, partitions in ((old, 8, 4), (new, replicas, total)):
        policy = {"totalPartitions": partitions, "partitionSize": 2}
        job["spec"]["tasks"] = [{**job["spec"]["tasks"][0], "replicas": count, "partitionPolicy": policy}]
        job["spec"]["minAvailable"] = job["spec"]["tasks"][0]["minAvailable"] = 4
    assert check_job_update(old, old, view()).errors == []
    assert [finding.field for finding in check_job_update(new, old, view()).errors] == [field]


def test_defaults_keep_given_values() -> None:
    assert default_job(copy.deepcopy(JOBS["base"]), "other").patch == ()


@pytest.mark.parametrize(("count", "fewest", "most"), [(50, 50, 150), (1000, 1, 10)])
def test_the_defaults_of_many_tasks_are_one_operation(count: int, fewest: int, most: int) -> None:
    job = changed(JOBS["base"], "spec.tasks", [{"name": f"t{index}", "template": {}} for index in range(count)])
    result = default_job(copy.deepcopy(job), "capcard-sched")
    assert fewest <= len(result.patch) <= most
    assert all(task["maxRetry"] == 3 for task in patched(job, result)["spec"]["tasks"])


@pytest.mark.parametrize("spec", [None, [], "x", {"tasks": "x"}, {"tasks": [1]}, {"tasks": [{"template": 1}]}])
def test_defaults_leave_fields_of_a_wrong_type_to_the_checks(spec: Any) -> None:
    obj = {"metadata": {"name": "j"}, "spec": spec}
    result = default_job(obj, "capcard-sched")
    assert isinstance(result, AdmissionResult)
    assert check_new_job(obj, view()).errors


@pytest.mark.parametrize(
    "cpu, accepted",
    [
        ("2", True),
        (4, True),
        (20.0, True),
        ("2000m", True),
        ("2k", True),
        ("1500m", False),
        ("0.5", False),
        ("x", False),
    ],
)
@pytest.mark.parametrize("side", ["requests", "limits"])
def test_a_topology_policy_requires_whole_cpus(cpu: object, accepted: bool, side: str) -> None:
    job = changed(JOBS["base"], "spec.tasks[0].topologyPolicy", "restricted")
    container = "spec.tasks[0].template.spec.containers[0].resources"
    result = check_new_job(changed(job, container, {side: {"cpu": cpu}}), view())
    fields = {finding.field for finding in result.errors}
    assert (f"{container}.requests.cpu" in fields) is not accepted


def test_a_topology_policy_requires_cpus() -> None:
    job = changed(JOBS["base"], "spec.tasks[0].topologyPolicy", "restricted")
    container = "spec.tasks[0].template.spec.containers[0].resources"
    result = check_new_job(changed(job, container, {"limits": {"memory": "1Gi"}}), view())
    assert [finding.field for finding in result.errors] == [f"{container}.requests.cpu"]


@pytest.mark.parametrize(
    "changes, fields, message", [pytest.param(*case, id=str(case[0])) for case in JOBS["doubtful"]]
)
def test_a_doubtful_job_is_accepted_with_warnings(changes: Json, fields: list[str], message: str) -> None:
    job = JOBS["base"]
    for path, value in changes.items():
        job = changed(job, path, value)
    result = check_new_job(job, view())
    assert result.errors == []
    assert [(finding.severity, finding.field) for finding in result.findings] == [("warning", each) for each in fields]
    assert all(message in finding.message for finding in result.findings)


def test_there_are_at_least_two_hundred_malformed_objects() -> None:
    cases = [
        *(("Job", *case) for case in JOBS["rejected"]),
        *(("update of a Job", *case) for case in JOBS["updates"]),
        *(("Queue", *case) for case in QUEUES["rejected"]),
    ]
    assert len({json.dumps(case) for case in cases}) == len(cases) >= 200


# --- queues ---------------------------------------------------------------------------------------------------------


def test_a_complete_queue_is_accepted_without_warnings() -> None:
    assert check_queue_object(QUEUES["base"], None, view()).findings == ()


@pytest.mark.parametrize("path, value, field, message", named(QUEUES["rejected"]))
def test_a_malformed_queue_is_rejected(path: str, value: Any, field: str, message: str) -> None:
    assert_rejected(check_queue_object(changed(QUEUES["base"], path, value), None, view()), field, message)


@pytest.mark.parametrize("path, value, field", named(QUEUES["warned"]))
def test_a_doubtful_queue_is_accepted_with_a_warning(path: str, value: Any, field: str) -> None:
    result = check_queue_object(changed(QUEUES["base"], path, value), None, view())
    assert result.errors == []
    assert [finding.field for finding in result.findings] == [field]


def test_an_update_does_not_check_the_state() -> None:
    stored = changed(QUEUES["base"], "status", {"state": "Closing"})
    assert check_queue_object(stored, stored, view()).errors == []


def test_a_queue_below_a_busy_parent_may_change_otherwise() -> None:
    stored = changed(QUEUES["base"], "spec.parent", "busy")
    assert check_queue_object(changed(stored, "spec.weight", 2), stored, view()).errors == []


def test_defaults_of_a_queue() -> None:
    obj: Json = {"metadata": {"name": "q"}}
    assert patched(obj, default_queue(copy.deepcopy(obj)))["spec"] == {"reclaimable": True, "weight": 1}
    assert default_queue(copy.deepcopy(QUEUES["base"])).patch == ()
    root: Json = {"metadata": {"name": "root"}, "spec": {"weight": 1}}
    assert default_queue(root).patch == ()


def test_hierarchy_paths_get_their_root() -> None:
    annotations = {"volcano.sh/hierarchy": "eng/dev", "volcano.sh/hierarchy-weights": "2/3"}
    obj = changed(QUEUES["base"], "metadata.annotations", annotations)
    found = patched(obj, default_queue(copy.deepcopy(obj)))["metadata"]["annotations"]
    assert found == {"volcano.sh/hierarchy": "root/eng/dev", "volcano.sh/hierarchy-weights": "1/2/3"}


@pytest.mark.parametrize(
    "name, message",
    [
        ("default", "`default` queue can not be deleted"),
        ("root", "`root` queue can not be deleted"),
        ("parent", "queue parent can not be deleted because it has 1 child queues: child"),
        ("research", ""),
        ("missing", ""),
    ],
)
def test_deletion_of_a_queue(name: str, message: str) -> None:
    assert [finding.message for finding in check_queue_deletion(name, view()).errors] == ([message] if message else [])


# --- PodGroups ------------------------------------------------------------------------------------------------------


def test_a_queue_with_allocated_pods_is_kept_on_request() -> None:
    assert check_queue_deletion("busy", view()).errors == []
    (found,) = check_queue_deletion("busy", view(), QueueRules(keeps_used_queues=True)).errors
    assert found.message == "queue busy cannot be deleted because it has allocated Pods: 3"
    assert check_queue_deletion("research", view(), QueueRules(keeps_used_queues=True)).errors == []


@pytest.mark.parametrize("depth, is_rejected", [(1, True), (2, True), (3, False)])
def test_the_depth_of_a_queue_is_limited(depth: int, is_rejected: bool) -> None:
    """`child` is at level 2 below root."""
    new = changed(QUEUES["base"], "spec.parent", "child")
    rules, message = QueueRules(max_depth=depth), f"queue team exceeds the maximum allowed depth of {depth}"
    messages = [finding.message for finding in check_queue_object(new, None, view(), rules).errors]
    assert messages == ([message] if is_rejected else [])
    assert check_queue_object(new, new, view(), rules).errors == [], "a stored queue may change otherwise"
    moved = check_queue_object(new, changed(new, "spec.parent", "root"), view(), rules).errors
    assert [finding.message for finding in moved] == messages


@pytest.mark.parametrize(
    "path, value, is_rejected",
    [
        ("spec.capability", {"cpu": "8000m", "memory": "8192Mi"}, False),
        ("spec.capability", {"cpu": 8, "memory": "8Gi", "x.y/z": 0}, True),
        ("spec.capability", None, True),
        ("spec.deserved.cpu", 3, True),
        ("spec.guarantee", {"resource": {"cpu": "2"}}, False),
        ("spec.guarantee", {}, True),
        ("spec.weight", 7, False),
    ],
)
def test_the_amounts_of_root_are_protected(path: str, value: Any, is_rejected: bool) -> None:
    old = changed(changed(QUEUES["base"], "metadata.name", "root"), "spec.parent", "~delete")
    new = changed(old, path, value)
    messages = [finding.message for finding in check_queue_object(new, old, view()).errors]
    assert any("cannot be modified" in message for message in messages) is is_rejected
    assert not any(
        "cannot be modified" in finding.message
        for finding in check_queue_object(new, old, view(), QueueRules(protects_root=False)).errors
    )
    assert check_queue_object(new, None, view()).errors == []


def pod_group(queue: str, **annotations: str) -> Json:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "annotations": annotations},
        "spec": {"queue": queue, "minMember": 1},
    }


@pytest.mark.parametrize(
    "queue, message",
    [
        ("research", ""),
        ("default", ""),
        ("namespace/local", ""),  # a warning, as long as it does not exist
        ("research/local", "research/local is no reference to a queue"),
        ("cluster/research", "cluster/research is no reference to a queue"),
        ("missing", "unable to find queue: missing"),
        ("closed", "can only submit PodGroup to queue with state `Open`, queue `closed` status is `Closed`"),
        ("closing", "can only submit PodGroup to queue with state `Open`, queue `closing` status is `Closing`"),
    ],
)
def test_queue_of_a_new_pod_group(queue: str, message: str) -> None:
    found = check_new_pod_group(pod_group(queue), view()).errors
    assert [finding.message for finding in found] == ([message] if message else [])


_TWO_TIERS: Final = {"highestTierAllowed": 1, "highestTierName": "rack"}


@pytest.mark.parametrize(
    "old, new, fields",
    [
        (None, [{"name": "a"}, {"name": "a"}], ["spec.subGroupPolicy[1].name"]),
        (None, [{"name": "a", "subGroupSize": 0}], ["spec.subGroupPolicy[0].subGroupSize"]),
        (None, [{"name": "a", "minSubGroups": "1"}], ["spec.subGroupPolicy[0].minSubGroups"]),
        (None, "a", ["spec.subGroupPolicy[0]"]),
        ([{"name": "a"}], [{"name": "a", "networkTopology": _TWO_TIERS}], ["spec.subGroupPolicy[0].networkTopology"]),
        ([{"name": "a"}], [{"name": "a", "subGroupSize": 2}], []),
        ([{}], [{}], []),
        ([{}], None, []),
    ],
)
def test_a_changed_subgroup_policy_is_checked(old: Any, new: Any, fields: list[str]) -> None:
    stored, fresh = pod_group("research"), pod_group("research")
    for group, policies in ((stored, old), (fresh, new)):
        group["spec"] |= {} if policies is None else {"subGroupPolicy": policies}
    fresh["spec"]["queue"] = "missing"
    assert [finding.field for finding in check_pod_group_update(fresh, stored).errors] == fields


_SELECTOR = {"podGroupSelector": {"matchLabels": {"a": "b"}}}


@pytest.mark.parametrize(
    "side, term, field, message",
    [
        ("required", {**_SELECTOR, "topologyTier": 1}, None, ""),
        ("required", {**_SELECTOR, "topologyTierName": "rack"}, None, ""),
        ("preferred", {**_SELECTOR, "topologyTier": 0, "weight": 100}, None, ""),
        ("required", {"podGroupSelector": {}, "topologyTier": 1}, None, ""),
        ("required", {"topologyTier": 1}, ".podGroupSelector", "is required"),
        ("required", {**_SELECTOR}, "", "has none of topologyTierName and topologyTier"),
        ("required", {**_SELECTOR, "topologyTier": 1, "topologyTierName": "r"}, "", "has both of topologyTierName"),
        ("required", {**_SELECTOR, "topologyTier": "rack"}, ".topologyTier", 'expected a tier, got the string "rack"'),
        ("required", {**_SELECTOR, "topologyTier": 1, "weight": 5}, ".weight", "is not accepted in a required term"),
        ("preferred", {**_SELECTOR, "topologyTier": 1}, ".weight", "is required in a preferred term"),
        (
            "preferred",
            {**_SELECTOR, "topologyTier": 1, "weight": 101},
            ".weight",
            "expected a weight, got the number 101",
        ),
        ("preferred", 5, "", "expected a term, got the number 5"),
    ],
)
def test_a_malformed_affinity_between_groups_is_rejected(side: str, term: Any, field: str | None, message: str) -> None:
    """As in Volcano, also while no plugin reads the field."""
    fresh = pod_group("research")
    fresh["spec"]["topologyAffinity"] = {"podGroupAntiAffinity": {side: [term]}}
    place = f"spec.topologyAffinity.podGroupAntiAffinity.{side}[0]{field}"
    for errors in (
        check_new_pod_group(fresh, view()).errors,
        check_pod_group_update(fresh, pod_group("research")).errors,
    ):
        assert [found.field for found in errors] == ([] if field is None else [place])
        assert all(message in found.message for found in errors)
    assert check_pod_group_update(fresh, fresh).errors == [], "a stored term is kept"


@pytest.mark.parametrize(
    "key, value",
    [
        ("volcano.sh/card.request", '{"NVIDIA-H200": "1"}'),
        ("volcano.sh/service.type", "batch"),
        ("volcano.sh/preemptable", "True"),
    ],
)
def test_a_malformed_annotation_of_a_pod_group_is_rejected(key: str, value: str) -> None:
    assert_rejected(
        check_new_pod_group(pod_group("research", **{key: value}), view()), f'metadata.annotations["{key}"]', ""
    )


@pytest.mark.parametrize(
    "namespace, queue, expected",
    [("lab", "default", "research"), ("lab", "", "research"), ("lab", "team", "team"), ("other", "default", "default")],
)
def test_the_namespace_names_the_queue_of_groups_in_the_default_queue(
    namespace: str, queue: str, expected: str
) -> None:
    obj = pod_group(queue)
    assert patched(obj, default_pod_group(copy.deepcopy(obj), namespace, view()))["spec"]["queue"] == expected


# --- pods -----------------------------------------------------------------------------------------------------------


def pod(**annotations: str) -> Json:
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"volcano.sh/card.name": "NVIDIA-H200", **annotations}},
        "spec": {"schedulerName": "capcard-sched", "containers": [container]},
    }


MIN, MAX = "volcano.sh/jdb-min-available", "volcano.sh/jdb-max-unavailable"


@pytest.mark.parametrize("value", ["1", "12", "1%", "99%"])
@pytest.mark.parametrize("key", [MIN, MAX])
def test_a_disruption_annotation_is_accepted(key: str, value: str) -> None:
    assert check_new_pod(pod(**{key: value}), view()).findings == ()


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "0%", "100%", "x", "%", "50 %", "01"])
@pytest.mark.parametrize("key", [MIN, MAX])
def test_a_malformed_disruption_annotation_is_rejected(key: str, value: str) -> None:
    assert_rejected(check_new_pod(pod(**{key: value}), view()), f'metadata.annotations["{key}"]', "is not accepted")


def test_disruption_annotations_that_pods_of_a_job_get_are_checked_with_the_job() -> None:
    """The controllers create its pods without the webhook of pods."""
    for path in ("metadata", "spec.tasks[1].template.metadata"):
        bad = changed(JOBS["base"], f"{path}.annotations", {MIN: "100%"})
        assert_rejected(check_new_job(bad, view()), f'{path}.annotations["{MIN}"]', "is not accepted")
        bad = changed(JOBS["base"], f"{path}.annotations", {MIN: "1", MAX: "1"})
        assert_rejected(check_new_job(bad, view()), f'{path}.annotations["{MAX}"]', "must not be set")


@pytest.mark.parametrize(
    "annotations",
    [
        {"volcano.sh/card.name": "A||B"},
        {"volcano.sh/card.name": "A/mps-80g*1/8"},
        {"volcano.sh/card.name": "A/mig-1g.10gb-mixed"},
        {"volcano.sh/preemptable": "yes"},
        {MIN: "0"},
        {MIN: "1", MAX: "1"},
    ],
    ids=str,
)
def test_a_job_is_rejected_for_every_error_of_its_pod_template(annotations: dict[str, str]) -> None:
    """The controllers create pods of Jobs without the webhook of pods."""
    template = "spec.tasks[1].template"
    bad = changed(JOBS["base"], f"{template}.metadata.annotations", annotations)
    spec = {**bad["spec"]["tasks"][1]["template"]["spec"], "schedulerName": "capcard-sched"}
    of_pod = check_new_pod({"kind": "Pod", "metadata": {"annotations": annotations}, "spec": spec}, view())
    of_job = check_new_job(bad, view())
    wanted = {(f"{template}.{finding.field}", finding.message) for finding in of_pod.errors}
    assert wanted
    assert wanted <= {(finding.field, finding.message) for finding in of_job.errors}


def test_both_disruption_annotations_are_rejected() -> None:
    assert_rejected(
        check_new_pod(pod(**{MIN: "1", MAX: "1"}), view()), f'metadata.annotations["{MAX}"]', "must not be set"
    )


def test_a_pod_without_a_card_name_is_a_warning() -> None:
    result = check_new_pod(pod(**{"volcano.sh/card.name": ""}), view())
    assert result.errors == []
    assert "without volcano.sh/card.name; the argument unnamedCards" in result.findings[0].message


def test_a_pod_with_an_unsupported_feature_is_a_warning() -> None:
    obj = pod(**{"volcano.sh/card.name": ""})
    obj["spec"] |= {"workloadRef": {"name": "w"}, "schedulingGroup": {}}
    result = check_new_pod(obj, view())
    assert result.errors == []
    assert {"spec.workloadRef", "spec.schedulingGroup"} <= {finding.field for finding in result.findings}


CONFIG = """
resourceGroups:
- resourceGroup: management
  object: {key: namespace, value: [mng]}
  schedulerName: default
  labels: {node: mng}
- resourceGroup: cpu
  object: {key: annotation, value: ["kind: cpu"]}
  tolerations: [{key: cpu, operator: Exists}]
  affinity: '{"nodeAffinity": {}}'
- resourceGroup: gpu
  labels: {node: gpu}
"""


def test_resource_groups_set_placement() -> None:
    groups = parse_admission_config(CONFIG).resource_groups

    def spec(namespace: str, **annotations: str) -> Json:
        obj = {"metadata": {"annotations": annotations}, "spec": {"nodeSelector": {"zone": "a"}}}
        found: Json = patched(obj, default_pod(copy.deepcopy(obj), namespace, groups))["spec"]
        return found

    assert spec("mng") == {"nodeSelector": {"zone": "a", "node": "mng"}, "schedulerName": "default"}
    assert spec("x", kind="cpu") == {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    }
    assert spec("x", **{"volcano.sh/resource-group": "gpu"}) == {"nodeSelector": {"zone": "a", "node": "gpu"}}
    assert spec("x") == {"nodeSelector": {"zone": "a"}}


@pytest.mark.parametrize(
    "text, message",
    [
        ("resourceGroups: x", "resourceGroups"),
        ("resourceGroup: []", "resourceGroup"),
        ("resourceGroups: [{}]", "resourceGroup"),
        ("resourceGroups: [{resourceGroup: a, object: {key: label}}]", "accepted: namespace, annotation"),
        ("resourceGroups: [{resourceGroup: a, affinity: '[1]'}]", "accepted: a Kubernetes affinity"),
        ("resourceGroups: [", "admission configuration"),
    ],
)
def test_a_malformed_admission_configuration_is_an_error(text: str, message: str) -> None:
    with pytest.raises(AdmissionConfigError, match=message):
        parse_admission_config(text)


def test_a_workload_is_never_rejected() -> None:
    template = pod()
    template["metadata"]["annotations"]["volcano.sh/card.name"] = "A||B"
    obj = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "annotations": {"volcano.sh/card.request": "{", "volcano.sh/preemptable": "x"}},
        "spec": {"replicas": 1, "template": template},
    }
    result = check_workload(obj, view())
    assert result.errors == []
    assert len(result.findings) >= 3


def test_queues_that_the_watch_has_not_delivered_are_reported_and_may_be_supplied() -> None:
    known = view()
    job = changed(JOBS["base"], "spec.queue", "fresh")
    with known.recording() as missing:
        assert check_new_job(job, known).errors
        with known.recording() as others:  # a review that interrupts this one
            assert check_new_job(changed(JOBS["base"], "spec.queue", "other"), known).errors
    assert (missing, others) == ({"fresh"}, {"other"})
    fresh = QueueObject(metadata=ObjectMeta(name="fresh"))
    with known.including([fresh]):
        assert check_new_job(job, known).errors == []
    assert check_new_job(job, known).errors, "the watch decides what is known for good"
    with known.including([QueueObject(metadata=ObjectMeta(name="research"))]):
        assert known.inventory.quotas["research"], "a queue that is known stays as it is"
    assert known.queue("research")


def stored(name: str, parent: str, **amounts: str) -> QueueObject:
    spec = {field: {"cpu": amount} for field, amount in amounts.items() if field != "guarantee"}
    guarantee = {"guarantee": {"resource": {"cpu": amounts["guarantee"]}}} if "guarantee" in amounts else {}
    return msgspec.convert({"metadata": {"name": name}, "spec": {"parent": parent, **spec, **guarantee}}, QueueObject)


def _with_local_queues(*queues: tuple[str, str, str, str]) -> ClusterView:
    """Queues q (all namespaces) and closed (none), and NamespaceQueues: namespace, name, parent, allocated pods."""
    found = view()
    for name, allowed in (("q", ("*",)), ("closed", ())):
        found.set_queue(QueueObject(ObjectMeta(name=name), QueueSpec(allowed_namespaces=allowed)))
    for namespace, name, parent, pods in queues:
        status = QueueStatus(allocated={"pods": pods} if pods else None)
        meta = ObjectMeta(name=name, namespace=namespace)
        found.set_namespace_queue(NamespaceQueueObject(meta, QueueSpec(parent=parent), status))
    return found


@pytest.mark.parametrize(
    "parent, message",
    [
        ("cluster/q", ""),
        ("up", ""),
        ("cluster/none", ""),  # its condition Ready names the cause
        ("cluster/root", "cluster/root"),
        ("namespace/up", "is no reference"),
        ("t", "a/t would be below itself: a/t below a/t"),
        ("down", "a/t would be below itself: a/t below a/down below a/t"),
        ("cluster/closed", "NamespaceQueue a/up is below queue closed: a namespace has one subtree there"),
    ],
)
def test_parent_of_a_namespace_queue(parent: str, message: str) -> None:
    known = _with_local_queues(("a", "up", "cluster/closed", ""), ("a", "down", "t", ""), ("b", "x", "cluster/q", ""))
    obj = {"metadata": {"name": "t", "namespace": "a"}, "spec": {"parent": parent}}
    result = check_namespace_queue_object(obj, None, known)
    if message:
        assert_rejected(result, "spec.parent", message)
    else:
        assert result.findings == ()


def test_a_namespace_queue_with_pods_keeps_its_parent() -> None:
    known = _with_local_queues(("a", "up", "cluster/q", ""), ("a", "t", "up", "2"))
    old = {"metadata": {"name": "t", "namespace": "a"}, "spec": {"parent": "up"}}
    moved = changed(old, "spec.parent", "cluster/none")
    assert_rejected(
        check_namespace_queue_object(moved, old, known), "spec.parent", "the queue has allocated pods: 2, which count"
    )
    assert check_namespace_queue_object(changed(old, "spec.capability", {"cpu": 1}), old, known).findings == ()


def test_namespace_queues_have_sixteen_levels() -> None:
    known = _with_local_queues(
        *(("a", f"q{level}", f"q{level - 1}" if level else "cluster/q", "") for level in range(16))
    )
    obj = {"metadata": {"name": "t", "namespace": "a"}, "spec": {"parent": "q14"}}
    assert check_namespace_queue_object(obj, None, known).findings == ()
    below = changed(obj, "spec.parent", "q15")
    assert_rejected(check_namespace_queue_object(below, None, known), "spec.parent", "16 or more NamespaceQueues above")


def _divided(**deserved: tuple[str, float]) -> ClusterView:
    """Queue q deserves 8 cpu and guarantees 4; NamespaceQueues `<namespace>/t` below it: deserved, and when created."""
    found = view()
    spec = QueueSpec(allowed_namespaces=("*",), deserved={"cpu": "8"}, guarantee=Guarantee({"cpu": "4"}))
    found.set_queue(QueueObject(ObjectMeta(name="q"), spec))
    for namespace, (amount, created) in deserved.items():
        meta = ObjectMeta(name="t", namespace=namespace, creation_timestamp=format_timestamp(created))
        below = QueueSpec(parent="cluster/q", deserved={"cpu": amount}, guarantee=Guarantee({"cpu": "1"}))
        found.set_namespace_queue(NamespaceQueueObject(meta, below))
    return found


def _shared(amount: str, guarantee: str = "1", *, created: float = 0.0, name: str = "t", **more: str) -> Json:
    meta = {"name": name, "namespace": "a", **({"creationTimestamp": format_timestamp(created)} if created else {})}
    spec = {"parent": "cluster/q", "deserved": {"cpu": amount, **more}, "guarantee": {"resource": {"cpu": guarantee}}}
    return {"metadata": meta, "spec": spec}


@pytest.mark.parametrize("created", [1.0, 2e9], ids=["the oldest namespace", "the youngest"])
@pytest.mark.parametrize(
    "before, after, field",
    [
        (_shared("4"), _shared("5"), "spec.deserved"),
        (_shared("4"), _shared("4", "4"), "spec.guarantee.resource"),
        (_shared("4"), _shared("4", "3"), ""),
        (_shared("2"), _shared("4"), ""),
        (_shared("4"), _shared("4", memory="8Gi"), ""),  # the Queue has no amount of it
        (_shared("9"), _shared("7"), ""),  # lower than before, if still above what is left
        (_shared("9"), _shared("9"), ""),
    ],
)
def test_a_namespace_queue_takes_no_amounts_of_other_namespaces(
    before: Json, after: Json, field: str, created: float
) -> None:
    known = _divided(a=(before["spec"]["deserved"]["cpu"], created), b=("4", 1e9))
    for each in (before, after):
        each["metadata"]["creationTimestamp"] = format_timestamp(created)
    result = check_namespace_queue_object(after, before, known)
    if not field:
        assert result.findings == ()
        return
    assert_rejected(result, field, "below cluster/q adds up to")
    assert "b" not in {word for each in result.findings for word in each.message.split()}, "no names of others"


@pytest.mark.parametrize("amount, is_accepted", [("4", True), ("5", False)])
def test_a_new_namespace_queue_takes_what_is_left(amount: str, is_accepted: bool) -> None:
    known = _divided(b=("4", 1e9))
    result = check_namespace_queue_object(_shared(amount), None, known)
    assert (result.findings == ()) == is_accepted


def test_a_namespace_beyond_its_part_holds_up_no_other() -> None:
    """Of amounts that were written without the webhook."""
    known = _divided(b=("4", 1e9), c=("100", 2e9))
    assert check_namespace_queue_object(_shared("4"), None, known).findings == ()


def test_namespace_queues_do_not_bound_the_amounts_of_queues() -> None:
    known = _with_local_queues()
    spec = QueueSpec(parent="cluster/q", deserved={"cpu": 1000}, capability={"cpu": 1000})
    known.set_namespace_queue(NamespaceQueueObject(ObjectMeta(name="t", namespace="a"), spec))
    old = {"metadata": {"name": "q"}, "spec": {"allowedNamespaces": ["*"]}}
    for field in ("deserved", "capability"):
        assert not check_queue_object(changed(old, f"spec.{field}", {"cpu": 1}), old, known).errors


def test_deletion_of_queues_with_namespace_queues() -> None:
    known = _with_local_queues(("a", "up", "cluster/q", ""), ("a", "down", "up", "2"), ("b", "x", "cluster/q", ""))
    for result, message in (
        (check_queue_deletion("q", known), "because it has 2 child queues: a/up, b/x"),
        (check_namespace_queue_deletion("a", "up", known), "has 1 queue below it: a/down"),
        (check_namespace_queue_deletion("a", "down", known), "has allocated pods: 2"),
    ):
        assert_rejected(result, "", message)
    assert check_namespace_queue_deletion("b", "x", known).findings == ()


@pytest.mark.parametrize(
    "allowed, message",
    [
        (["a", "b"], ""),
        (["*"], ""),
        (["a"], "NamespaceQueue b/x is below the queue, and namespace b is missing"),
        ([], "namespace a is missing"),
        (["*", "a"], "stands beside names"),
        (["Not A Name"], "is no name of a namespace"),
    ],
)
def test_allowed_namespaces_of_a_queue(allowed: list[str], message: str) -> None:
    known = _with_local_queues(("a", "up", "cluster/q", ""), ("b", "x", "cluster/q", ""))
    old = {"metadata": {"name": "q"}, "spec": {"allowedNamespaces": ["a", "b", "c"]}}
    result = check_queue_object(changed(old, "spec.allowedNamespaces", allowed), old, known)
    if message:
        assert_rejected(result, "spec.allowedNamespaces", message)
    else:
        assert result.errors == []


@pytest.mark.parametrize(
    ("name", "spec", "field"),
    [
        ("new", {"parent": "up", "deserved": {"cpu": 2}}, 'spec.deserved["cpu"]'),
        ("new", {"parent": "up", "guarantee": {"resource": {"cpu": 2}}}, 'spec.guarantee.resource["cpu"]'),
        ("new", {"parent": "down", "capability": {"cpu": 9}}, 'spec.capability["cpu"]'),
        ("up", {"deserved": {"cpu": 2}}, 'spec.deserved["cpu"]'),
        ("up", {"capability": {"cpu": 5}}, 'spec.capability["cpu"]'),
        ("new", {"parent": "up", "deserved": {"cpu": 1}, "guarantee": {"resource": {"cpu": 1}}}, ""),
        ("new", {"parent": "up", "capability": {"cpu": 8}}, ""),
        ("new", {"deserved": {"cpu": 100}, "capability": {"cpu": 100}}, ""),
    ],
)
def test_amounts_fit_those_of_the_queues_above_and_below(name: str, spec: dict[str, Any], field: str) -> None:
    known = ClusterView()
    known.set_queue(stored("up", "root", capability="8", deserved="4", guarantee="2"))
    known.set_queue(stored("down", "up", deserved="3", guarantee="1"))
    known.set_queue(stored("leaf", "down", capability="6"))
    queue = {"metadata": {"name": name}, "spec": spec}
    assert {finding.field for finding in check_queue_object(queue, None, known).errors} == ({field} if field else set())
    # An update of other fields is not held up, and the check leaves no trace.
    assert not check_queue_object(queue, queue, known).errors
    assert {finding.field for finding in check_queue_object(queue, None, known).errors} == ({field} if field else set())
