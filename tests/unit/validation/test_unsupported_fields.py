"""Fields and annotations that a plugin alone reads, without that plugin in the scheduler-conf."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.validation.hint_checks import QuotaPlugins
from capcard_sched.validation.object_checks import BUILT_IN_PLUGINS, check_objects
from tests.scenarios.notation import manifests

W = "+ w*1 cpu=1"
READ: list[tuple[str, str, str]] = [
    (f"job j annotations=sla-waiting-time:1h {W}", 'metadata.annotations["sla-waiting-time"]', "sla"),
    (f"job j annotations=volcano.sh/sla-waiting-time:1h {W}",
     'metadata.annotations["volcano.sh/sla-waiting-time"]', "sla"),
    (f"job j annotations=volcano.sh/task-topology-affinity:w {W}",
     'metadata.annotations["volcano.sh/task-topology-affinity"]', "task-topology"),
    (f"job j {W} annotations=volcano.sh/revocable-zone:*",
     'spec.tasks[0].template.metadata.annotations["volcano.sh/revocable-zone"]', "tdm"),
    ("pod p cpu=1 annotations=volcano.sh/cooldown-time:10m", 'metadata.annotations["volcano.sh/cooldown-time"]', "cdp"),
    ("pod p cpu=1 annotations=volcano.sh/numa-topology-policy:restricted",
     'metadata.annotations["volcano.sh/numa-topology-policy"]', "numa-aware"),
]  # fmt: skip


def findings(objects: list[dict[str, Any]], plugin: str = "") -> list[tuple[str, str, str]]:
    plugins = QuotaPlugins(BUILT_IN_PLUGINS.names | {plugin}, unnamed_cards="infer")
    return [(one.severity, one.field, one.message) for _, one in check_objects(objects, plugins)]


@pytest.mark.parametrize(("objects", "field", "plugin"), READ)
def test_an_annotation_that_no_plugin_reads_is_reported(objects: str, field: str, plugin: str) -> None:
    message = f"has no effect: the scheduler-conf has no plugin {plugin}"
    assert findings(manifests(objects)) == [("warning", field, message)]
    assert findings(manifests(objects), plugin) == []


def test_a_field_that_no_plugin_reads_is_reported() -> None:
    group = {"nodeGroupAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ["g"]}}
    queue = {"kind": "Queue", "metadata": {"name": "q"}, "spec": {"affinity": group}}
    tasks = [
        {"name": name, "topologyPolicy": policy, "template": {}}
        for name, policy in (("a", "none"), ("b", "best-effort"))
    ]
    job = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"tasks": tasks},
    }
    lacks = "has no effect: the scheduler-conf has no plugin"
    assert findings([queue]) == [("warning", "spec.affinity", f"{lacks} nodegroup")]
    assert findings([queue], "nodegroup") == []
    assert findings([job]) == [("warning", "spec.tasks[1].topologyPolicy", f"{lacks} numa-aware")]
    assert findings([job], "numa-aware") == []


def test_annotations_of_pods_of_other_schedulers_are_not_reported() -> None:
    (pod,) = manifests("pod p cpu=1 scheduler=default-scheduler annotations=volcano.sh/cooldown-time:10m")
    assert findings([pod]) == []
