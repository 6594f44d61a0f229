"""The annotations and labels that are read again of bound pods are those that the admission policy protects."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.model import annotations as keys
from capcard_sched.model.objects import ObjectMeta, PodObject
from capcard_sched.model.pod_facts import FactsReader, PodFacts

#: Facts of a bound pod that its binding fixes: `ClusterState` keeps them although the pod is edited.
_FIXED = ("group_name", "queue_name", "bound_queue", "assigned_card", "device_notes", "class_annotations")
#: Read by device plugins, kubelets and the controller of plain pods.
_BY_OTHERS = {keys.VGPU_DEVICES_TO_ALLOCATE, keys.NUMA_TOPOLOGY_DECISION, keys.CARD_REQUEST}
ALL_KEYS = sorted({value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)})


def _facts(**meta: Any) -> PodFacts:
    return FactsReader().read(PodObject(metadata=ObjectMeta(name="p", **meta)))


def _fixed(**meta: Any) -> list[Any]:
    return [getattr(_facts(**meta), field) for field in _FIXED]


@pytest.mark.parametrize(
    "place, listed",
    [
        ("annotations", keys.BOUND_ANNOTATIONS - _BY_OTHERS),
        ("labels", keys.BOUND_LABELS - {keys.PREEMPTABLE}),
    ],
)
def test_what_is_read_of_bound_pods_is_protected(place: str, listed: frozenset[str]) -> None:
    plain = _fixed()
    read = {key for key in ALL_KEYS if _fixed(**{place: {key: "x"}}) != plain}
    assert read == listed


def test_a_label_that_stands_for_a_protected_annotation_is_protected() -> None:
    assert keys.PREEMPTABLE in keys.BOUND_ANNOTATIONS & keys.BOUND_LABELS
    assert _facts(labels={keys.PREEMPTABLE: "true"}).preemptable
