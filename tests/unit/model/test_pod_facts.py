"""Facts of a pod: status, role, priority, group."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model import annotations as keys
from capcard_sched.model.objects import PodObject
from capcard_sched.model.pod_facts import (
    FactsReader,
    PodFacts,
    group_of,
    name_index,
    preemptable_of,
    role_of,
    task_status,
)
from capcard_sched.model.status import TaskStatus

Json = dict[str, Any]


def _pod(*, metadata: Json | None = None, status: Json | None = None, **spec: Any) -> PodObject:
    return msgspec.convert({"metadata": metadata or {}, "spec": spec, "status": status or {}}, PodObject)


def facts_of(pod: PodObject) -> PodFacts:
    """The facts of a pod that follows no other."""
    return FactsReader().read(pod)


@pytest.mark.parametrize(
    "phase, deleted, node, expected",
    [
        ("Running", False, "n1", TaskStatus.RUNNING),
        ("Running", True, "n1", TaskStatus.RELEASING),
        ("Pending", True, None, TaskStatus.RELEASING),
        ("Pending", True, "n1", TaskStatus.RELEASING),
        ("Pending", False, None, TaskStatus.PENDING),
        ("Pending", False, "", TaskStatus.PENDING),
        ("Pending", False, "n1", TaskStatus.BOUND),
        (None, False, None, TaskStatus.PENDING),
        ("", False, "n1", TaskStatus.BOUND),
        ("Unknown", False, "n1", TaskStatus.UNKNOWN),
        ("Unknown", True, "n1", TaskStatus.UNKNOWN),
        ("Succeeded", False, "n1", TaskStatus.SUCCEEDED),
        ("Succeeded", True, "n1", TaskStatus.SUCCEEDED),
        ("Failed", True, "n1", TaskStatus.FAILED),
        ("Sleeping", False, "n1", TaskStatus.UNKNOWN),
    ],
)
def test_status_follows_phase_deletion_and_node(
    phase: str | None, deleted: bool, node: str | None, expected: TaskStatus
) -> None:
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    assert task_status(_pod(metadata=metadata, status={"phase": phase}, nodeName=node)) is expected


@pytest.mark.parametrize(
    "name, expected",
    [
        ("job-worker-3", 3),
        ("a-b-c-12", 12),
        ("job-worker-007", 7),
        ("worker-3", -1),
        ("worker", -1),
        ("", -1),
        ("job-worker-", -1),
        ("job-worker-x3", -1),
        ("job-worker--3", 3),
        ("-3", -1),
        ("job-worker-٣", -1),
        ("job-worker-" + "9" * 30, -1),
    ],
)
def test_the_index_is_the_last_part_of_a_name_of_three(name: str, expected: int) -> None:
    assert name_index(name) == expected


KEY = "volcano.sh/preemptable"


@pytest.mark.parametrize(
    "annotations, labels, expected",
    [
        ({}, {}, None),
        ({KEY: "true"}, {}, True),
        ({KEY: "True"}, {}, True),
        ({KEY: "1"}, {}, True),
        ({KEY: "false"}, {}, False),
        ({KEY: "yes"}, {}, False),
        ({KEY: ""}, {}, False),
        ({KEY: " true"}, {}, False),
        ({}, {KEY: "true"}, True),
        ({}, {KEY: "no idea"}, False),
        ({KEY: "false"}, {KEY: "true"}, False),
        ({KEY: "nonsense"}, {KEY: "true"}, False),
    ],
)
def test_preemptable_is_read_from_annotation_then_label(
    annotations: dict[str, str], labels: dict[str, str], expected: bool | None
) -> None:
    assert preemptable_of(annotations, labels) is expected


@pytest.mark.parametrize(
    "priority, text, expected",
    [
        (None, None, 1),
        (0, None, 0),
        (2000, None, 2000),
        (2000, "5", 5),
        (2000, "-5", -5),
        (2000, "+5", 5),
        (None, "2147483647", 2147483647),
        (7, "2147483648", 7),
        (7, "-2147483649", 7),
        (7, "5.0", 7),
        (7, "high", 7),
        (7, "", 7),
        (7, " 5", 7),
        (7, "1_0", 7),
        (7, "9" * 10_000, 7),
    ],
)
def test_task_priority_overrides_when_it_is_a_32_bit_integer(
    priority: int | None, text: str | None, expected: int
) -> None:
    annotations = {} if text is None else {"volcano.sh/task-priority": text}
    assert facts_of(_pod(metadata={"annotations": annotations}, priority=priority)).priority == expected


def test_role_and_group_have_their_fallbacks() -> None:
    spec, group = "volcano.sh/task-spec", "scheduling.k8s.io/group-name"
    assert role_of({spec: "worker"}, {spec: "master"}) == "worker"
    assert role_of({}, {spec: "master"}) == "master"
    assert role_of({}, {}) == ""
    assert group_of({group: "g", "scheduling.volcano.sh/group-name": "h"}) == "g"
    assert group_of({"scheduling.volcano.sh/group-name": "h"}) == "h"
    assert group_of({}) == ""


def test_facts_of_a_full_pod() -> None:
    pod = _pod(
        metadata={
            "name": "job-worker-2",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {
                "scheduling.k8s.io/group-name": "g",
                "scheduling.volcano.sh/queue-name": "q",
                "volcano.sh/task-spec": "worker",
                "volcano.sh/task-index": "2",
                "volcano.sh/card.name": "A|B",
                "volcano.sh/card.assigned": "B",
                "capcard-sched.io/queue": "team",
                "volcano.sh/revocable-zone": "*",
            },
            "labels": {KEY: "false"},
            "ownerReferences": [
                {"kind": "Queue", "uid": "u0"},
                {"kind": "Job", "name": "j", "uid": "u1", "controller": True},
            ],
        },
        status={
            "phase": "Running",
            "startTime": "2026-01-01T00:01:00Z",
            "nominatedNodeName": "n9",
            "extendedResourceClaimStatus": {"resourceClaimName": "c"},
        },
        nodeName="n1",
        priority=9,
        schedulingGates=[{"name": "wait"}],
    )
    facts = facts_of(pod)
    assert msgspec.structs.asdict(facts) == {
        "status": TaskStatus.RUNNING,
        "extended_claim": "c",
        "group_name": "g",
        "other_group": "",
        "queue_name": "q",
        "role": "worker",
        "priority": 9,
        "preemptable": False,
        "gates": ("wait",),
        "unsupported": "",
        "failure": "",
        "ends": 0.0,
        "deleting": False,
        "index": 2,
        "nominated_node": "n9",
        "bound_queue": "team",
        "assigned_card": "B",
        "grace": 30,
        "created": 1767225600.0,
        "cooldown": None,
        "device_notes": {},
        "owner_kind": "Queue",
        "controller_uid": "u1",
        "class_annotations": {"volcano.sh/card.name": "A|B", "volcano.sh/revocable-zone": "*"},
    }
    assert list(facts.class_annotations) == sorted(facts.class_annotations)


def test_facts_of_an_empty_pod_are_silence() -> None:
    facts = facts_of(PodObject())
    assert (facts.status, facts.group_name, facts.preemptable, facts.priority) == (TaskStatus.PENDING, "", None, 1)
    assert (facts.created, facts.owner_kind, facts.class_annotations) == (0.0, "", {})


def test_unreadable_times_do_not_hide_a_pod() -> None:
    pod = _pod(metadata={"creationTimestamp": "yesterday"}, status={"startTime": "25:00"})
    assert facts_of(pod).created == 0.0


_TEXTS = st.sampled_from(["a", "b", "3", "true", "30s"])
_NOTES = (keys.GROUP_NAME, keys.QUEUE_NAME, keys.TASK_PRIORITY, keys.PREEMPTABLE, keys.COOLDOWN_TIME, keys.CARD_NAME,
          keys.CARD_ASSIGNED, keys.BOUND_QUEUE, keys.GPU_INDEX)  # fmt: skip
_OWNER = {"kind": st.sampled_from(["Job", "ReplicaSet"]), "uid": _TEXTS, "controller": st.booleans()}
_LABELS = st.sampled_from([keys.TASK_SPEC, keys.COOLDOWN_TIME, keys.PREEMPTABLE])
_METADATA = st.fixed_dictionaries(
    {"name": st.sampled_from(["job-worker-1", "job-worker-2"])},
    optional={
        "annotations": st.dictionaries(st.sampled_from(_NOTES), _TEXTS, max_size=2),
        "labels": st.dictionaries(_LABELS, _TEXTS, max_size=1),
        "ownerReferences": st.lists(st.fixed_dictionaries(_OWNER), max_size=1),
        "deletionTimestamp": st.just("2026-01-01T00:00:00Z"),
    },
)
_SCHEDULED = {"type": st.just("PodScheduled"), "status": st.just("True"),
              "lastTransitionTime": st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"])}  # fmt: skip
_STATUS = {"phase": st.sampled_from(["Pending", "Running"]), "conditions": st.tuples(st.fixed_dictionaries(_SCHEDULED))}
_PODS = st.builds(
    _pod, metadata=_METADATA, status=st.fixed_dictionaries(_STATUS), priority=st.sampled_from([None, 0, 7])
)


@given(st.lists(_PODS, max_size=8))
def test_the_facts_of_a_pod_do_not_depend_on_the_pods_before_it(pods: list[PodObject]) -> None:
    reader = FactsReader()
    assert [reader.read(pod) for pod in pods] == [facts_of(pod) for pod in pods]
