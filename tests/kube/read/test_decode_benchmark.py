"""The benchmark of decoding runs, and its objects are what an API server sends."""

from __future__ import annotations

import json

import msgspec

from benchmarks.api_objects import event, node, pod
from benchmarks.decode import lines, measure_decoding
from capcard_sched.model.objects import NodeObject, PodObject


def test_every_figure_is_measured_and_printed() -> None:
    found = measure_decoding(pods=64, nodes=8, repeats=1)
    assert all(getattr(found, name) > 0 for name in found.__struct_fields__)
    assert found.pods_per_second > 0
    assert [text.split(":")[0] for text in lines(found)] == [
        f"64 pods of {found.pod_bytes:,.0f} bytes",
        "the same, unchanged",
        f"heartbeats of nodes of {found.node_bytes:,.0f} bytes",
    ]


def test_the_objects_are_of_the_size_of_real_ones() -> None:
    assert 2_500 <= len(event("ADDED", pod(7))) <= 3_500
    assert 5_000 <= len(event("ADDED", node(7))) <= 10_000
    assert json.loads(event("ADDED", pod(7)))["type"] == "ADDED"


def test_the_objects_contain_the_fields_that_the_scheduler_reads() -> None:
    bound = msgspec.convert(pod(9, node="n"), PodObject)
    assert (bound.spec.node_name, bound.status.phase, bound.spec.scheduler_name) == ("n", "Running", "capcard-sched")
    assert bound.spec.containers[0].resources is not None
    assert bound.spec.containers[0].resources.requests == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    first, later = (msgspec.convert(node(3, beat), NodeObject) for beat in (0, 1))
    assert first.metadata.resource_version != later.metadata.resource_version
    assert (first.spec, first.status.allocatable) == (later.spec, later.status.allocatable)
