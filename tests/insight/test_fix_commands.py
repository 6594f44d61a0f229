"""Lines of fixes: printed, parsed, and executed."""

from __future__ import annotations

import json
import shlex
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.controllers.objects import POD, POD_GROUP, QUEUE, Key, merge_diff
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.insight.fixes.commands import RECREATE, FixStep, parse, render, set_at
from capcard_sched.insight.fixes.kinds.repair_queue import repaired_quota
from capcard_sched.insight.fixes.scene import Scene
from capcard_sched.insight.fixes.search import suggest_fixes
from capcard_sched.insight.sources.changes import UnknownObjectError, annotate, set_spec
from capcard_sched.insight.sources.object_view import DeltaObjects
from capcard_sched.simulation.store import merged
from capcard_sched.testing import Harness

JOB = Key("Job", "ml", "train")
H200 = "NVIDIA-H200"

LINES: dict[str, list[FixStep]] = {
    "kubectl annotate queue q --overwrite 'volcano.sh/card.quota={\"A\": 8}'": [
        FixStep("patch", Key("Queue", "", "q"), {"metadata": {"annotations": {"volcano.sh/card.quota": '{"A": 8}'}}})
    ],
    "kubectl -n ml annotate pod a b --overwrite x/y=1 x/z-": [
        FixStep("patch", Key("Pod", "ml", name), {"metadata": {"annotations": {"x/y": "1", "x/z": None}}})
        for name in "ab"
    ],
    'kubectl -n ml patch vcjob train --type merge -p \'{"spec": {"minAvailable": 1}}\'': [
        FixStep("patch", JOB, {"spec": {"minAvailable": 1}})
    ],
    "kubectl uncordon n1": [FixStep("uncordon", Key("Node", "", "n1"))],
    "kubectl taint node n1 a=b:NoSchedule-": [FixStep("untaint", Key("Node", "", "n1"), "a=b:NoSchedule")],
    "kubectl -n ml scale deployment chat --replicas=2": [FixStep("scale", Key("Deployment", "ml", "chat"), 2)],
    "kubectl -n ml delete pod a b": [FixStep("delete", Key("Pod", "ml", name)) for name in "ab"],
    "capcard-sched queue open q": [FixStep("open", Key("Queue", "", "q"))],
    "capcard-sched job suspend hog -n ml": [FixStep("suspend", Key("Job", "ml", "hog"))],
    "spec.queue: q (delete and create the Job)": [FixStep("recreate", JOB, ("spec.queue", "q"))],
    'actions: "enqueue, allocate, preempt"': [FixStep("actions", value=("enqueue", "allocate", "preempt"))],
    "- name: priority  # in the first tier of the scheduler-conf": [FixStep("plugin", value="priority")],
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_parsed_to_its_steps(line: str) -> None:
    assert parse(line, JOB) == LINES[line]


@pytest.mark.parametrize("line", ["kubectl delete", "rm -rf /", "spec.queue: q", "kubectl uncordon 'n1"])
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


# --- names that a shell would split or expand -------------------------------------------------------------------------

NAMES = st.one_of(
    st.sampled_from(
        ["o'brien", 'a"b', "a b", "$(id)", "a\\", "`id`", "a;b", "a && b", "*", "-n", "--overwrite", "a\nb", "]", ": "]
    ),
    st.text(min_size=1, max_size=8),
)


class NamedCluster(Harness):
    """A queue without quota, and a pod of it with a card; the objects are readable."""

    def __init__(self, queue: str, pod: str) -> None:
        super().__init__()
        self.gpu_node("n1", "A", 8)
        self.queue(queue, cards={"A": 0})
        self.group(pod, queue=queue)
        self.pod(pod, group=pod, card="A", cards=1)
        self.view = DeltaObjects(list(self._deltas))
        self.step()

    def scene(self, name: str) -> Scene:
        return Scene(self.core, self.view, self.job(name), None)


@cache
def plain_cluster() -> NamedCluster:
    """One for all examples, which edit copies of its objects."""
    return NamedCluster("q", "a")


@settings(max_examples=settings().max_examples // 3)
@given(NAMES, NAMES, NAMES, NAMES)
def test_edits_are_parsed_from_their_commands_whatever_their_names_are(
    queue: str, pod: str, key: str, value: str
) -> None:
    scene = NamedCluster(queue, pod).scene(pod)
    annotate(scene.edit(QUEUE, "", queue), key, value)
    annotate(scene.edit(POD, "default", pod), key, value)
    annotate(scene.edit(POD_GROUP, "default", pod), key, value)
    set_spec(scene.edit(POD_GROUP, "default", pod), "queue", value)
    applied = {key: scene.edits.original(*key) for key in map(Key._make, scene.edits.changed)}
    for line in (line for lines in render(scene).values() for line in lines):
        assert shlex.split(line)[0] == "kubectl"
        for step in parse(line):
            assert step.key is not None
            applied[step.key] = merged(applied[step.key] or {}, step.value)
    expressible = [key for key in applied if not key.name.startswith("-")]
    assert [applied[key] for key in expressible] == [scene.edits.changed[key] for key in expressible]


@given(st.lists(NAMES, min_size=2, max_size=2), NAMES, NAMES)
def test_changes_of_a_new_job_are_parsed_whatever_the_names_of_its_containers_are(
    containers: list[str], key: str, value: str
) -> None:
    metadata = {"name": "train", "namespace": "default"}
    before: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"template": {"spec": {"containers": [{"name": name, "resources": {}} for name in containers]}}},
    }
    scene = plain_cluster().scene("a")
    scene.edits.know(before)
    job = Key("Job.batch/v1", "default", "train")
    after = scene.edit(*job)
    for container in after["spec"]["template"]["spec"]["containers"]:
        container["resources"] = {"limits": {key: value}}
    lines = render(scene)[job]
    assert all(line.endswith(RECREATE) for line in lines)
    found = json.loads(json.dumps(before))
    for line in lines:
        for step in parse(line, job):
            set_at(found, *step.value)
    assert merge_diff(found, after) == {}


@pytest.mark.parametrize("name", ["o'brien", 'a"b', "a b", "$(id)", "a\nb", "]", "-n", "--overwrite"])
def test_fixes_are_searched_for_objects_with_malformed_names(name: str) -> None:
    cluster = NamedCluster(name, name)
    job = cluster.job(name)
    found = diagnose_job(cluster.core.snapshot(), job)
    search = suggest_fixes(cluster.core, cluster.view, job, found, cluster.now)
    assert search is not None
    texts = [change.text for fix in search.fixes for change in fix.changes]
    assert texts == ([] if name.startswith("-") else [f"quota of A in queue {name}: 0 → 1 (+1)"])
    assert all(parse(line) for fix in search.fixes for line in fix.lines)


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
