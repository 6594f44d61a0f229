"""Controllers under hostile annotations and labels of pods, PodGroups and owners: every Job keeps its passes."""

from __future__ import annotations

import pytest

from capcard_sched.model import annotations as keys
from tests.unit.controllers.bench import ClusterBench, task
from tests.unit.model.test_numbers import HOSTILE

KEYS = sorted({*keys.known_keys(), keys.PARTITION_ID, keys.JOB_VERSION, keys.JOB_RETRY_COUNT, keys.TASK_INDEX})


@pytest.mark.parametrize("text", [text for text in HOSTILE if text.isprintable()], ids=lambda text: ascii(text[:20]))
def test_hostile_annotations_of_a_pod_do_not_end_the_passes_of_its_job(text: str) -> None:
    bench = ClusterBench()
    bench.running_job("j", task("w", 2), policies=[{"event": "PodFailed", "action": "RestartJob"}])
    job = bench.get("Job", "j")
    pod, _ = bench.store.owned(job, "Pod")
    hostile = dict.fromkeys((key for key in KEYS if key not in {keys.TASK_SPEC, keys.GROUP_NAME}), text)
    bench.patch("Pod", pod["metadata"]["name"], {"metadata": {"annotations": hostile, "labels": hostile}})
    group, *_ = bench.store.owned(job, "PodGroup")
    bench.patch("PodGroup", group["metadata"]["name"], {"metadata": {"annotations": hostile}})
    bench.patch("Job", "j", {"spec": {"minAvailable": 1}})
    bench.cluster.settle()
    assert bench.phase() in {"Running", "Restarting", "Pending"}


@pytest.mark.parametrize("text", [text for text in HOSTILE if text.isprintable()], ids=lambda text: ascii(text[:20]))
def test_hostile_annotations_of_an_owner_do_not_end_the_passes_of_its_pods(text: str) -> None:
    bench = ClusterBench()
    notes = dict.fromkeys((key for key in KEYS if key != keys.POD_QUEUE_NAME), text)
    template = {"metadata": {"annotations": {key: text for key in KEYS if "topology" in key}},
                "spec": {"schedulerName": "volcano", "containers": []}}  # fmt: skip
    bench.create("ReplicaSet", "r", metadata={"annotations": notes}, spec={"replicas": 1, "template": template})
    bench.cluster.settle()
    assert len(bench.all("Pod")) == 1
    assert len(bench.all("PodGroup")) == 1
