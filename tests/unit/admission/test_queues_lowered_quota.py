"""Warnings about updates that set a card quota below what is allocated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capcard_sched.admission.queues import check_queue_object
from capcard_sched.admission.review import ClusterView

GPU, MIG, AMD = "nvidia.com/gpu", "nvidia.com/mig-1g.18gb", "amd.com/gpu"
SLICE = "H200/mig-1g.18gb-mixed"

#: Name, quota before, quota after (None: no annotation), status.allocated, usage per card that is published, warnings.
CASES: list[tuple[str, dict[str, int] | None, dict[str, int] | None, dict[str, str], dict[str, int], list[str]]] = [
    ("usage per card", {"H200": 8, "A100": 8}, {"H200": 4, "A100": 2}, {GPU: "8"}, {"H200": 6, "A100": 2},
     ["quota of H200 is 4, 6 are allocated"]),
    ("a card that is dropped", {"H200": 8, "A100": 8}, {"A100": 8}, {GPU: "8"}, {"H200": 6},
     ["quota of H200 is 0, 6 are allocated"]),
    ("enough quota", {"H200": 8}, {"H200": 6}, {GPU: "6"}, {"H200": 6}, []),
    ("usage per resource", {"H200": 8, "A100": 4}, {"H200": 4, "A100": 1}, {GPU: "6"}, {},
     ["quotas of A100, H200 add up to 5, 6 x nvidia.com/gpu are allocated"]),
    ("enough quota of a resource", {"H200": 8, "A100": 4}, {"H200": 2, "A100": 4}, {GPU: "6"}, {}, []),
    ("slices", {"H200": 8, SLICE: 8}, {"H200": 8, SLICE: 2}, {GPU: "8", MIG: "3"}, {},
     ["quotas of H200/mig-1g.18gb-mixed add up to 2, 3 x nvidia.com/mig-1g.18gb are allocated"]),
    ("slices without a quota", {"H200": 8, SLICE: 8}, {"H200": 8}, {GPU: "8", MIG: "3"}, {},
     ["no card has a quota, 3 x nvidia.com/mig-1g.18gb are allocated"]),
    ("several vendors", {"H200": 4, "MI300X": 4}, {"H200": 4, "MI300X": 1}, {GPU: "4", AMD: "2"}, {},
     ["quotas of H200, MI300X add up to 5, 6 x amd.com/gpu, nvidia.com/gpu are allocated"]),
    ("no annotation left", {"H200": 8}, None, {GPU: "8", "cpu": "4"}, {},
     ["queue team has no card quota (annotation volcano.sh/card.quota), 8 x nvidia.com/gpu are allocated"]),
    ("an update of something else", {"H200": 4}, {"H200": 4}, {GPU: "8"}, {"H200": 8}, []),
    ("other resources", {"H200": 8}, {"H200": 0}, {"cpu": "4", "rdma/hca": "8"}, {}, []),
    ("an invalid amount", {"H200": 8}, {"H200": 0}, {GPU: "many"}, {}, []),
]  # fmt: skip


def _queue(quota: dict[str, int] | None, allocated: dict[str, str], published: dict[str, int]) -> dict[str, Any]:
    annotations = {} if quota is None else {"volcano.sh/card.quota": json.dumps(quota)}
    if published:
        annotations["volcano.sh/card.allocated"] = json.dumps(published)
    metadata = {"name": "team", "annotations": annotations}
    return {"kind": "Queue", "metadata": metadata, "spec": {"weight": 1}, "status": {"allocated": allocated}}


@pytest.mark.parametrize(
    "before, after, allocated, published, warnings", [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
def test_a_quota_below_the_usage_is_a_warning_with_figures(
    before: dict[str, int] | None,
    after: dict[str, int] | None,
    allocated: dict[str, str],
    published: dict[str, int],
    warnings: list[str],
) -> None:
    old, new = _queue(before, allocated, published), _queue(after, allocated, published)
    result = check_queue_object(new, old, ClusterView())
    assert result.errors == []
    assert [finding.message for finding in result.findings] == warnings
    assert {finding.field for finding in result.findings} <= {'metadata.annotations["volcano.sh/card.quota"]'}


def test_a_new_queue_uses_nothing() -> None:
    assert check_queue_object(_queue({"H200": 0}, {GPU: "8"}, {}), None, ClusterView()).findings == ()
