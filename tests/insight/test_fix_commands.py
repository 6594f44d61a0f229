"""Lines of fixes: printed, parsed, and executed."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.controllers.objects import Key
from capcard_sched.insight.changes import UnknownObjectError
from capcard_sched.insight.fixes.commands import Step, parse, set_at
from capcard_sched.insight.fixes.kinds.repair_queue import repaired_quota

JOB = Key("Job", "ml", "train")
H200 = "NVIDIA-H200"

LINES: dict[str, list[Step]] = {
    "kubectl annotate queue q --overwrite 'volcano.sh/card.quota={\"A\": 8}'": [
        Step("patch", Key("Queue", "", "q"), {"metadata": {"annotations": {"volcano.sh/card.quota": '{"A": 8}'}}})
    ],
    "kubectl -n ml annotate pod a b --overwrite x/y=1 x/z-": [
        Step("patch", Key("Pod", "ml", name), {"metadata": {"annotations": {"x/y": "1", "x/z": None}}}) for name in "ab"
    ],
    'kubectl -n ml patch vcjob train --type merge -p \'{"spec": {"minAvailable": 1}}\'': [
        Step("patch", JOB, {"spec": {"minAvailable": 1}})
    ],
    "kubectl uncordon n1": [Step("uncordon", Key("Node", "", "n1"))],
    "kubectl taint node n1 a=b:NoSchedule-": [Step("untaint", Key("Node", "", "n1"), "a=b:NoSchedule")],
    "kubectl -n ml scale deployment chat --replicas=2": [Step("scale", Key("Deployment", "ml", "chat"), 2)],
    "kubectl -n ml delete pod a b": [Step("delete", Key("Pod", "ml", name)) for name in "ab"],
    "capcard-sched queue open q": [Step("open", Key("Queue", "", "q"))],
    "capcard-sched job suspend hog -n ml": [Step("suspend", Key("Job", "ml", "hog"))],
    "spec.queue: q (delete and create the Job)": [Step("recreate", JOB, ("spec.queue", "q"))],
    'actions: "enqueue, allocate, preempt"': [Step("actions", value=("enqueue", "allocate", "preempt"))],
    "- name: priority  # in the first tier of the scheduler-conf": [Step("plugin", value="priority")],
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_parsed_to_its_steps(line: str) -> None:
    assert parse(line, JOB) == LINES[line]


@pytest.mark.parametrize("line", ["kubectl delete", "rm -rf /", "spec.queue: q"])
def test_another_line_is_refused(line: str) -> None:
    with pytest.raises(UnknownObjectError):
        parse(line, JOB)


PATHS: list[tuple[str, Any, dict[str, Any]]] = [
    ("spec.queue", "q", {"spec": {"tasks": [{"name": "w"}], "queue": "q"}}),
    ("spec.tasks[0].minAvailable", 2, {"spec": {"tasks": [{"name": "w", "minAvailable": 2}]}}),
    (
        'spec.tasks[name=w].template.metadata.annotations["volcano.sh/card.name"]',
        "A|B",
        {
            "spec": {
                "tasks": [{"name": "w", "template": {"metadata": {"annotations": {"volcano.sh/card.name": "A|B"}}}}]
            }
        },
    ),
    ("spec.tasks[name=w].name", None, {"spec": {"tasks": [{}]}}),
]


@pytest.mark.parametrize("path, value, expected", PATHS, ids=[path for path, _, _ in PATHS])
def test_a_path_sets_a_field(path: str, value: object, expected: dict[str, Any]) -> None:
    job: dict[str, Any] = {"spec": {"tasks": [{"name": "w"}]}}
    set_at(job, path, value)
    assert job == expected


QUOTAS: dict[str, tuple[dict[str, str], dict[str, int] | None]] = {
    "a correct one": ({"volcano.sh/card.quota": '{"NVIDIA-H200": 8}'}, None),
    "none": ({}, None),
    "a card of another cluster": ({"volcano.sh/card.quota": '{"NVIDIA-B300": 8}'}, None),
    "other models": ({"volcano.sh/card.quota": '{"NVIDIA-H100": 8, "NVIDIA-H200-NVL": 1, "A100-40GB": 1}'}, None),
    "a missing vendor": ({"volcano.sh/card.quota": '{"h200": 8}'}, {H200: 8}),
    "a missing letter": ({"volcano.sh/card.quota": '{"NVDIA-A100-80GB": 1}'}, {"NVIDIA-A100-80GB": 1}),
    "a misspelt card": ({"volcano.sh/card.quota": '{"NVIDIA-H2OO": 8, "B300": 1}'}, {H200: 8, "B300": 1}),
    "a misspelt card beside the correct one": ({"volcano.sh/card.quota": '{"NVIDIA-H2OO": 8, "NVIDIA-H200": 1}'}, None),
    "a text for a number": ({"volcano.sh/card.quota": '{"NVIDIA-H200": "8"}'}, {H200: 8}),
    "a fraction that is whole": ({"volcano.sh/card.quota": '{"NVIDIA-H200": 8.0}'}, {H200: 8}),
    "an amount that is none": ({"volcano.sh/card.quota": '{"NVIDIA-H200": -1, "A": true, "B": 2}'}, {"B": 2}),
    "single quotes": ({"volcano.sh/card.quota": "{'NVIDIA-H200': 8}"}, {H200: 8}),
    "YAML": ({"volcano.sh/card.quota": "NVIDIA-H200: 8"}, {H200: 8}),
    "encoded twice": ({"volcano.sh/card.quota": '"{\\"NVIDIA-H200\\": 8}"'}, {H200: 8}),
    "no map": ({"volcano.sh/card.quota": "eight"}, {}),
    "a misspelt annotation": ({"volcano.sh/card-quota": '{"NVIDIA-H200": 8}'}, {H200: 8}),
}


@pytest.mark.parametrize("notes, expected", QUOTAS.values(), ids=QUOTAS)
def test_a_quota_becomes_the_one_that_is_meant(notes: dict[str, str], expected: dict[str, int] | None) -> None:
    assert repaired_quota({"metadata": {"name": "q", "annotations": notes}}, {H200, "NVIDIA-A100-80GB"}) == expected
