"""Checks of annotations, templates and nodes, one row per rule."""

from typing import Any

import pytest

from capcard_sched.validation.checks import (
    check_card_name,
    check_card_quota,
    check_card_request,
    check_choice,
    check_node,
    check_spelling,
)
from capcard_sched.validation.object_checks import check_objects
from tests.scenarios.notation import manifests

H200 = {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.memory": "143771"}


def severities(findings: list[Any]) -> list[str]:
    return [finding.severity for finding in findings]


@pytest.mark.parametrize(
    "text",
    [
        '{"NVIDIA-H200": 8}',
        "{}",
        "",
        "null",
        '{"A": 0, "A/mps-80g*1/2": 2, "A/mig-1g.18gb-mixed": 1}',
        '{"A/shared": 1, "A/vfio": 1, "A/mig-1g.18gb-mixed/shared": 1, "A/vfio/shared": 1}',
    ],
)
def test_a_well_formed_quota_is_not_mentioned(text: str) -> None:
    assert check_card_quota(text) == []


QUOTAS = [
    ("no JSON", "{H200: 1}", "error", "not JSON"),
    ("a fraction", '{"H200": 2.5}', "error", "<H200>: 2.5 is not a whole number"),
    ("an empty name", '{" ": 1}', "error", "empty card name"),
    ("groups that overlap", '{"A|B": 1, "B|C": 1}', "error", "overlap"),
    ("a key twice", '{"A": 1, "A": 2}', "error", "duplicate key"),
    ("white space inside a name", '{"NVIDIA H200": 1}', "warning", "contains white space"),
    ("an MPS card without its g", '{"A/mps-80*1/2": 1}', "warning", "no node can provide card"),
    ("an MPS card that is not shared", '{"A/mps-80g*1/1": 1}', "warning", "no node can provide card"),
    ("a MIG card that is not mixed", '{"A/mig-1g.18gb": 1}', "warning", "no node can provide card"),
    ("a slice of nothing", '{"/mig-1g-mixed": 1}', "warning", "no node can provide card"),
]


@pytest.mark.parametrize(("text", "severity", "message"), [row[1:] for row in QUOTAS], ids=[row[0] for row in QUOTAS])
def test_a_questionable_quota_is_reported(text: str, severity: str, message: str) -> None:
    (finding,) = check_card_quota(text)
    assert finding.severity == severity
    assert finding.field == 'metadata.annotations["volcano.sh/card.quota"]'
    assert message in finding.message
    assert finding.accepted or severity == "warning"


def test_a_request_may_name_alternatives_and_its_severity_is_the_callers() -> None:
    assert check_card_request('{"A|B": 2, "C": 0}') == []
    assert severities(check_card_request('{"A||B": 2}')) == ["error"]
    assert severities(check_card_request('{"A": -2}', severity="warning")) == ["warning"]
    assert "mps-8" in check_card_request('{"A|B/mps-8": 2}')[0].message


#: The card name, the requests in thousandths, then severity and a part of the message of each finding.
CARD_NAMES: dict[str, tuple[str | None, dict[str, int], list[tuple[str, str]]]] = {
    "a whole card": ("H200", {"nvidia.com/gpu": 1000}, []),
    "alternatives": ("A | B", {"nvidia.com/gpu": 1000}, []),
    "an MPS share": ("A/mps-80g*1/2", {"nvidia.com/gpu.shared": 1000}, []),
    "a MIG slice": ("A/mig-1g.18gb-mixed", {"nvidia.com/mig-1g.18gb": 1000}, []),
    "no card at all": (None, {"cpu": 1000}, []),
    "another vendor": ("Ascend910", {"huawei.com/Ascend910": 1000}, []),
    "a request of none, which fits": ("H200", {"nvidia.com/gpu": 0}, []),
    "an empty alternative": ("A||B", {"nvidia.com/gpu": 1000}, [("error", "empty alternative")]),
    "a card twice": ("A|A", {"nvidia.com/gpu": 1000}, [("warning", "names a card twice")]),
    "a card without a name": (None, {"nvidia.com/gpu": 1000}, [("warning", "without volcano.sh/card.name")]),
    "a name without a card": ("H200", {"cpu": 1000}, [("warning", "no container requests a resource")]),
    "a whole name on a share": ("A", {"nvidia.com/gpu.shared": 1000}, [("error", "is counted by nvidia.com/gpu")]),
    "a share on whole cards": ("A/mps-8g*1/2", {"nvidia.com/gpu": 1000}, [("error", "by nvidia.com/gpu.shared")]),
    "the wrong MIG profile": ("A/mig-1g-mixed", {"nvidia.com/mig-2g": 1000}, [("error", "by nvidia.com/mig-1g,")]),
    "alternatives of two kinds": ("A|A/mig-1g-mixed", {"nvidia.com/gpu": 1000},
                                  [("error", "use different resources <a whole card, nvidia.com/mig-1g>")]),
    "two card resources": ("A", {"nvidia.com/gpu": 1000, "nvidia.com/mig-1g": 1000},
                           [("warning", "several card resources")]),
}  # fmt: skip


@pytest.mark.parametrize("name, requests, expected", CARD_NAMES.values(), ids=CARD_NAMES)
def test_a_card_name_is_judged_beside_the_resources_of_the_pod(
    name: str | None, requests: dict[str, int], expected: list[tuple[str, str]]
) -> None:
    annotations = {} if name is None else {"volcano.sh/card.name": name}
    found = check_card_name(annotations, requests, known={"huawei.com/Ascend910"})
    assert severities(found) == [severity for severity, _ in expected]
    assert all(message in finding.message for finding, (_, message) in zip(found, expected, strict=True))


def test_the_old_spelling_of_the_card_name_is_read_and_reported() -> None:
    (finding,) = check_card_name({"volcano.sh/card.card": "A"}, {"nvidia.com/gpu": 1000})
    assert (finding.severity, finding.accepted) == ("warning", "volcano.sh/card.name")
    assert "card.card" in finding.field


def test_a_choice_names_the_accepted_values() -> None:
    assert check_choice("volcano.sh/preemptable", "true", ("true", "false")) == []
    (finding,) = check_choice("volcano.sh/preemptable", "yes", ("true", "false"), at="spec.template.metadata")
    assert finding.field == 'spec.template.metadata.annotations["volcano.sh/preemptable"]'
    assert finding.accepted == '"true" or "false"'


NO_MEMORY = "label nvidia.com/gpu.memory is missing beside nvidia.com/gpu.product"
#: Labels, allocatable amounts in thousandths, and the begin of the field and a part of the message of the finding.
NODES: dict[str, tuple[dict[str, str], dict[str, int], list[tuple[str, str]]]] = {
    "a whole card": (H200, {"nvidia.com/gpu": 8000}, []),
    "no device": ({}, {"cpu": 8000, "rdma/hca": 1000}, []),
    "unhealthy devices": ({}, {"nvidia.com/gpu": 0}, []),
    "no labels": ({}, {"nvidia.com/gpu": 8000}, [("status", "8 x nvidia.com/gpu: no product label")]),
    "no memory label": ({"nvidia.com/gpu.product": "A"}, {"nvidia.com/gpu": 1000},
                        [("status", f"1 x nvidia.com/gpu: {NO_MEMORY}: quotas")]),
    "MPS without replicas": (H200, {"nvidia.com/gpu.shared": 4000},
                             [("status", "4 x nvidia.com/gpu.shared: label nvidia.com/gpu.replicas is missing")]),
    "MIG without memory": ({"nvidia.com/gpu.product": "A"}, {"nvidia.com/mig-1g": 1000}, [("status", NO_MEMORY)]),
    "MIG without a product": ({}, {"nvidia.com/mig-1g": 1000}, [("status", "no product label")]),
    "a label that is no number": ({**H200, "nvidia.com/gpu.replicas": "two"}, {"nvidia.com/gpu": 8000},
                                  [("metadata", "Label nvidia.com/gpu.replicas=two is not a positive integer")]),
}  # fmt: skip


@pytest.mark.parametrize("labels, allocatable, expected", NODES.values(), ids=NODES)
def test_devices_that_form_no_card_are_reported(
    labels: dict[str, str], allocatable: dict[str, int], expected: list[tuple[str, str]]
) -> None:
    found = check_node(labels, allocatable)
    assert severities(found) == ["warning"] * len(expected)
    for finding, (place, message) in zip(found, expected, strict=True):
        assert finding.field.startswith(place)
        assert message in finding.message


# --- several objects ------------------------------------------------------------------------------------------------


Q8 = "queue q cards=NVIDIA-H200:8;"
NODE = "node n 8*NVIDIA-H200;"
PODS = "+ t*3 cpu=1 gpu=2"
JOB = f"{PODS} card=NVIDIA-H200"
DEPLOYMENT = "deployment d*2 queue=p card=NVIDIA-H200 gpu=1 notes=volcano.sh/service.type:online"

#: Objects, and a part of each message.
SETS = {
    "all is well": (f"{Q8}{NODE}job j queue=q request=NVIDIA-H200:6 {JOB}", []),
    "a request that is not the pods'": (f"job j queue=q request=NVIDIA-H200:5 {JOB}",
                                        ["requests 5 x NVIDIA-H200, but the pods use 6"]),
    "a request the pods do not name": (f"job j queue=q request=A:1,NVIDIA-H200:6 {JOB}",
                                       ["requests 1 x A, but the pods use 0"]),
    "a queue without quota for the card": (f"queue q cards=A:1; job j queue=q {JOB}",
                                           ["queue q has no quota for card NVIDIA-H200"]),
    "a queue with a quota of none": (f"queue q cards=NVIDIA-H200:0; job j queue=q {JOB}",
                                     ["queue q has no quota for card"]),
    "a request without quota": (f"queue q cards={{}}; job j queue=q request=A:1 {PODS} card=A||B",
                                ["queue q has no quota for card A", "empty alternative"]),
    "a quota that is void": (f"queue q cards='x'; job j queue=q {JOB}", ["not JSON"]),
    "a queue that is not there": (f"{Q8}job j queue=other {JOB}", ['queue "other" is not among the queues']),
    "the default queue": (f"{Q8}job j queue=default {JOB}", []),
    "no queue at hand": (f"job j queue=other {JOB}", []),
    "a card that no node has": (f"{NODE}job j queue=q {PODS} card=A", ["no node in the input provides card A"]),
    "one alternative is enough": (f"{Q8}{NODE}job j queue=q {PODS} card=A|NVIDIA-H200", []),
    "more quota than cards": (f"{Q8}queue r cards=NVIDIA-H200:4;{NODE}",
                              ["quotas of all queues add up to 12 x NVIDIA-H200, the nodes have 8"]),
    "more quota than cards, beside devices without the label of their memory": (
        ("queue q cards=NVIDIA-H200:8; node n1 cpu=8 nvidia.com/gpu=8 labels=nvidia.com/gpu.product:NVIDIA-H200;"
        " node n2 cpu=8 nvidia.com/gpu=2"),
        [NO_MEMORY, "no product label", ("have 0 (and 2 x nvidia.com/gpu without a product label"
         " and 8 x nvidia.com/gpu without label nvidia.com/gpu.memory)")]),
    "a Deployment": (f"queue p cards={{}};{DEPLOYMENT}",
                     ['"online" is not accepted', "queue p has no quota for card NVIDIA-H200"]),
    "a Deployment of another scheduler": (f"{DEPLOYMENT} scheduler=default-scheduler",
                                          ['"online" is not accepted', 'their scheduler is "default-scheduler"']),
    "annotations with closed sets": (
        f"job j queue=q annotations=volcano.sh/preemptable:no,volcano.sh/service.type:inference {JOB}",
        ['"no" is not accepted']),
    "a misspelt annotation without its consequences": (
        "job j request=H200:2 + w*2 gpu=1 annotations=volcano.sh/card.nmae:H200",
        ['unknown annotation; did you mean "volcano.sh/card.name"?']),
    "a misplaced annotation without its consequences": (
        "job j request=H200:2 annotations=volcano.sh/card.name:H200 + w*2 gpu=1",
        ["has no effect here: it is read from the pod template"]),
    "a misspelt annotation before other mistakes": (
        "job j request=H200:2 + w*2 gpu=1 card=H200 annotations=volcano.sh/card.nmae:H100,volcano.sh/preemptable:yes",
        ['unknown annotation; did you mean "volcano.sh/card.name"?', '"yes" is not accepted']),
    "alternatives in another order": ("job j request=B|A:2 + w*2 gpu=1 card=A|B", []),
    "too many alternatives": ("job j request=B|A:3 + w*2 gpu=1 card=A|B", ["requests 3 x B|A, but the pods use 2"]),
    "pods without a card name, which are charged by their resource": ("job j request='' + w*2 gpu=1", []),
    "a parent that is not there": ("queue q parent=dpt; queue dept parent=''; job j request='' + w*2 gpu=1",
                                   ['queue dpt is not among the queues in the input; did you mean "dept"?']),
    "a quota of a resource": (
        f'queue q cards={{"cpu":8,"nvidia.com/gpu":8,"NVIDIA-H200":8}};{NODE}',
        ["cpu is a resource, not a card: its quota limits nothing",
         "nvidia.com/gpu is a resource, not a card: its quota limits nothing"]),
    "a quota of a resource that is a card for lack of labels": (
        'queue q cards={"nvidia.com/gpu":8};node n1 cpu=8 nvidia.com/gpu=8', ["no product label"]),
    "a quota in lower case, and with a hyphen of another alphabet": (
        f'queue q cards={{"nvidia-h200":1,"NVIDIA\u2011H200":1}};{NODE}',
        ["did you mean NVIDIA-H200?", "card nvidia-h200; did you mean NVIDIA-H200?",
         "quotas of all queues add up to 1 x NVIDIA",
         "quotas of all queues add up to 1 x nvidia-h200"]),
    "parents in a cycle": ("queue q parent=q; job j request='' + w*2 gpu=1", ["the parents form a cycle: q, q"]),
}  # fmt: skip


@pytest.mark.parametrize("objects, messages", SETS.values(), ids=SETS)
def test_objects_are_judged_in_the_light_of_each_other(objects: str, messages: list[str]) -> None:
    found = [finding.message for _, finding in check_objects(manifests(objects))]
    assert len(found) == len(messages), found
    for text, message in zip(found, messages, strict=True):
        assert message in text


def test_a_device_of_another_resource_than_that_of_the_card_is_reported() -> None:
    template = {"metadata": {"annotations": {"volcano.sh/card.name": "NVIDIA-H200"}},
                "spec": {"schedulerName": "volcano",
                         "containers": [{"name": "c", "resources": {"limits": {"amd.com/gpu": 1}}}]}}  # fmt: skip
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": template},
    }
    found = [(one.field, one.message, one.accepted) for _, one in check_objects([*manifests(NODE), deployment])]
    message = "no container requests nvidia.com/gpu, the resource of card NVIDIA-H200: the pod cannot be scheduled"
    assert found == [('spec.template.metadata.annotations["volcano.sh/card.name"]', message, "nvidia.com/gpu")]


@pytest.mark.parametrize("junk", [None, 5, "x", [], {}, [None], {"a": None}])
@pytest.mark.parametrize("place", ["metadata", "spec", "status"])
@pytest.mark.parametrize("kind", ["Queue", "Node", "Pod", "Job", "Deployment", "PodGroup", "Other", None])
def test_objects_of_any_form_are_survived(kind: str | None, place: str, junk: object) -> None:
    assert isinstance(check_objects([{"kind": kind, "apiVersion": "batch.volcano.sh/v1alpha1", place: junk}]), list)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("volcano.sh/card.qouta", "volcano.sh/card.quota"),
        ("volcano.sh/cardname", "volcano.sh/card.name"),
        ("volcano.sh/card-request", "volcano.sh/card.request"),
        ("scheduling.volcano.sh/queuename", "scheduling.volcano.sh/queue-name"),
        ("simulation.capcard-sched.io/durations", "simulation.capcard-sched.io/duration"),
        ("volcano.sh/card.quota", None),
        ("volcano.sh/something-of-a-plugin", None),
        ("example.com/card.qouta", None),
        ("volcano.sh/" + "card.quota" * 20, None),
    ],
)
def test_a_misspelt_annotation_is_reported_with_the_correct_spelling(key: str, meant: str | None) -> None:
    found = [(finding.field, finding.message) for finding in check_spelling({key: "x"})]
    if meant is None:
        assert found == []
    else:
        message = f'unknown annotation; did you mean "{meant}"?'
        assert found == [(f'metadata.annotations["{key}"]', message)]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("G,10,4914,NVIDIA-NVIDIA L40S,true,hami-core:", []),
        ("G,10,4914,NVIDIA,true:", ["error"]),
        ("nothing", ["error"]),
        ("G,ten,4914,NVIDIA,true,x:H,10,4914,NVIDIA,true,x:", ["warning"]),
    ],
)
def test_a_registration_of_shared_cards_is_checked(text: str, expected: list[str]) -> None:
    node = {"kind": "Node", "metadata": {"name": "n", "annotations": {"volcano.sh/node-vgpu-register": text}}}

    findings = [finding for _, finding in check_objects([node])]

    assert severities(findings) == expected
    assert {finding.accepted for finding in findings} <= {"uuid,count,memory,type,health,mode:"}
    assert all(finding.field == 'metadata.annotations["volcano.sh/node-vgpu-register"]' for finding in findings)


@pytest.mark.parametrize(
    "kind, key, is_read",
    [
        ("Deployment", "volcano.sh/card.request", True),
        ("Job", "volcano.sh/card.request", False),
        ("Deployment", "scheduling.volcano.sh/group-min-member", False),
    ],
)
def test_a_template_annotation_is_reported_where_only_the_workload_is_read(kind: str, key: str, is_read: bool) -> None:
    template = {"metadata": {"annotations": {key: '{"H200": 1}'}}, "spec": {"schedulerName": "volcano"}}
    job = {"apiVersion": "batch.volcano.sh/v1alpha1", "spec": {"tasks": [{"template": template}]}}
    body = job if kind == "Job" else {"apiVersion": "apps/v1", "spec": {"template": template}}
    found = [finding.message for _, finding in check_objects([{**body, "kind": kind, "metadata": {"name": "w"}}])]
    assert any("has no effect here: it is read from the workload" in message for message in found) is not is_read
