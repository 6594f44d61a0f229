"""Annotations of task topology, resource strategy and cool-down, as `validate` checks them."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.model.annotations import (
    COOLDOWN_TIME,
    RESOURCE_STRATEGY_SCORING_TYPE,
    RESOURCE_STRATEGY_WEIGHT,
    RUNNING_ESTIMATE,
    TASK_TOPOLOGY_AFFINITY,
    TASK_TOPOLOGY_ANTI_AFFINITY,
    TASK_TOPOLOGY_TASK_ORDER,
)
from capcard_sched.validation.hint_checks import QuotaPlugins
from capcard_sched.validation.object_checks import check_objects

PLUGINS = QuotaPlugins(frozenset({"capacity-card", "task-topology", "resource-strategy-fit", "cdp"}))


def found(*objects: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Severity, field, and message with the accepted form."""
    return [
        (finding.severity, finding.field, f"{finding.message}; {finding.accepted}")
        for _, finding in check_objects(objects, PLUGINS)
    ]


def job(notes: dict[str, str], **template: dict[str, str]) -> dict[str, Any]:
    tasks: list[dict[str, Any]] = [{"name": name, "replicas": 1, "template": {}} for name in ("ps", "worker")]
    tasks[1]["template"] = {"metadata": template}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "j", "annotations": notes},
        "spec": {"tasks": [*tasks, {"replicas": 1}]},
    }


def pod(scheduler: str = "volcano", **meta: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **meta}, "spec": {"schedulerName": scheduler}}


GOOD = [
    job(
        {TASK_TOPOLOGY_AFFINITY: "ps,worker;worker", TASK_TOPOLOGY_ANTI_AFFINITY: "ps", TASK_TOPOLOGY_TASK_ORDER: "ps"}
    ),
    job({TASK_TOPOLOGY_AFFINITY: "default2,ps;"}),
    job({}, annotations={RESOURCE_STRATEGY_SCORING_TYPE: "MostAllocated", RESOURCE_STRATEGY_WEIGHT: '{"cpu": 0}'}),
    pod(labels={COOLDOWN_TIME: "10m"}),
    job({RUNNING_ESTIMATE: "2h"}, annotations={RUNNING_ESTIMATE: "90m"}),
    pod(annotations={COOLDOWN_TIME: "0"}),
    pod("default-scheduler", annotations={COOLDOWN_TIME: "x"}),
    {"kind": "PodGroup", "metadata": {"name": "g", "annotations": {TASK_TOPOLOGY_AFFINITY: "absent"}}},
]


@pytest.mark.parametrize("obj", GOOD)
def test_well_formed_hints_are_not_reported(obj: dict[str, Any]) -> None:
    assert found(obj) == []


def field(key: str, at: str = "metadata", kind: str = "annotations") -> str:
    return f'{at}.{kind}["{key}"]'


WORKER = "spec.tasks[1].template.metadata"
WRONG = [
    (job({TASK_TOPOLOGY_AFFINITY: "ps,chief"}), "error", field(TASK_TOPOLOGY_AFFINITY),
     "<chief> is not a task of the job;", "tasks of the job: default2, ps, worker"),
    (job({TASK_TOPOLOGY_TASK_ORDER: "ps,ps"}), "error", field(TASK_TOPOLOGY_TASK_ORDER), "<ps> occurs twice in <ps,ps>",
     "the first to be placed first"),
    ({"kind": "PodGroup", "metadata": {"name": "g", "annotations": {TASK_TOPOLOGY_ANTI_AFFINITY: ",a"}}}, "error",
     field(TASK_TOPOLOGY_ANTI_AFFINITY), "<,a> contains an empty name", 'such as "ps,worker;chief"'),
    ({"kind": "Deployment", "metadata": {"name": "d", "annotations": {TASK_TOPOLOGY_AFFINITY: "a,a"}}}, "warning",
     field(TASK_TOPOLOGY_AFFINITY), "<a> occurs twice", "names of tasks"),
    (job({}, annotations={RESOURCE_STRATEGY_SCORING_TYPE: "most", RESOURCE_STRATEGY_WEIGHT: "{}"}), "error",
     field(RESOURCE_STRATEGY_SCORING_TYPE, WORKER), '"most" is not accepted', '"LeastAllocated" or "MostAllocated"'),
    (pod(annotations={RESOURCE_STRATEGY_SCORING_TYPE: "MostAllocated"}), "warning", field(RESOURCE_STRATEGY_WEIGHT),
     "is missing beside volcano.sh/resource-strategy-scoring-type", "a JSON object"),
    (pod(annotations={RESOURCE_STRATEGY_SCORING_TYPE: "MostAllocated", RESOURCE_STRATEGY_WEIGHT: '{"cpu": "1"}'}),
     "error", field(RESOURCE_STRATEGY_WEIGHT), 'cpu: expected an integer, got the string "1"',
     "whole numbers from 0 on"),
    (pod(annotations={RESOURCE_STRATEGY_WEIGHT: '{"cpu": 1}'}), "warning", field(RESOURCE_STRATEGY_WEIGHT),
     "is not read without", '"LeastAllocated" or "MostAllocated"'),
    (job({}, annotations={COOLDOWN_TIME: "10"}), "error", field(COOLDOWN_TIME, WORKER), "missing unit",
     "a duration such as 600s"),
    (pod(labels={COOLDOWN_TIME: "-5m"}, annotations={COOLDOWN_TIME: "5m"}), "error",
     field(COOLDOWN_TIME, kind="labels"), "'-5m' is below 0; the pods are not protected", "a duration such as 600s"),
    (job({RUNNING_ESTIMATE: "2 h"}), "warning", field(RUNNING_ESTIMATE), "'2 h' is ignored", "such as 90m or 2h30m"),
    (job({}, annotations={RUNNING_ESTIMATE: "0s"}), "warning", field(RUNNING_ESTIMATE, WORKER), "'0s' is ignored",
     "a Go duration above 0"),
    ({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "j"},
      "spec": {"runningEstimate": "soon"}}, "warning", "spec.runningEstimate", "'soon' is ignored", "a Go duration"),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "severity", "where", "message", "accepted"), WRONG)
def test_a_mistake_is_reported_with_object_field_and_accepted_form(
    obj: dict[str, Any], severity: str, where: str, message: str, accepted: str
) -> None:
    ((found_severity, found_field, text),) = found(obj)
    assert (found_severity, found_field) == (severity, where)
    assert message in text
    assert accepted in text
