from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.plugins.deviceshare.device_config import (
    DEFAULT_CONFIG,
    DeviceConfigError,
    device_config,
    unknown_keys,
)
from capcard_sched.plugins.deviceshare.geometry import DEFAULT_GEOMETRIES, Slice, find_slice, geometry_of

GEOMETRY = {
    "models": ["X1"],
    "allowedGeometries": [{"group": "g1", "geometries": [{"name": "small", "memory": 100, "count": 4}]}],
}


@pytest.mark.parametrize(
    "document", [None, {}, {"nvidia": None}, {"nvidia": {}}, {"other": 1}, {"nvidia": {"knownMigGeometries": []}}]
)
def test_omitted_settings_get_their_defaults(document: Any) -> None:
    assert device_config(document) == DEFAULT_CONFIG


def test_every_setting_is_read() -> None:
    found = device_config(
        {
            "nvidia": {
                "resourceCountName": "a.b/n",
                "resourceMemoryName": "a.b/m",
                "resourceMemoryPercentageName": "a.b/p",
                "resourceCoreName": "a.b/c",
                "gpuMemoryFactor": 10,
                "deviceSplitCount": 5,
                "knownMigGeometries": [GEOMETRY],
            }
        }
    )

    assert found.resources.number == "a.b/n"
    assert found.resources.cores == "a.b/c"
    assert found.factor == 10
    assert [group.name for group in found.geometries[0].groups] == ["g1"]


def test_an_empty_name_has_its_default() -> None:
    assert device_config({"nvidia": {"resourceMemoryPercentageName": ""}}) == DEFAULT_CONFIG


def _group(*kinds: Any) -> Any:
    return {"group": "g1", "geometries": list(kinds)}


@pytest.mark.parametrize(
    "field, value, path",
    [
        ("resourceMemoryName", ["x"], "nvidia.resourceMemoryName"),
        ("gpuMemoryFactor", True, "nvidia.gpuMemoryFactor"),
        ("models", [""], r"knownMigGeometries\[0\].models\[0\]"),
        ("allowedGeometries", [3], r"allowedGeometries\[0\]: expected a map"),
        ("allowedGeometries", [{"geometries": []}], r"allowedGeometries\[0\].group"),
        ("allowedGeometries", [_group(), _group()], "groups of different names"),
        ("allowedGeometries", [_group({"name": "s", "memory": 1, "count": 1 << 40})], r"geometries\[0\].count"),
    ],
)
def test_a_document_that_cannot_be_used_is_refused_with_its_path(field: str, value: Any, path: str) -> None:
    """`tests/malformed/test_shared_cards.py` has the other forms."""
    settings = {"knownMigGeometries": [{**GEOMETRY, field: value}]} if field in GEOMETRY else {field: value}
    with pytest.raises(DeviceConfigError, match=path):
        device_config({"nvidia": settings})


def test_everything_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(DeviceConfigError) as error:
        device_config({"nvidia": {"gpuMemoryFactor": 0, "resourceCountName": 1, "knownMigGeometries": 2}})

    assert str(error.value).count("expected") == 3


def test_keys_that_no_component_reads_are_found() -> None:
    assert unknown_keys({"nvidia": {"gpuMemoryFaktor": 1, "deviceSplitCount": 2}}) == ["gpuMemoryFaktor"]
    assert unknown_keys([]) == []


# --- slices -----------------------------------------------------------------------------------------------------------

A100 = geometry_of("NVIDIA-NVIDIA A100-SXM4-40GB", DEFAULT_GEOMETRIES)


@pytest.mark.parametrize(
    "need, group, taken, expected",
    [
        (8000, "", (), Slice("group2", 0, 10240)),
        (3000, "group2", (0,), Slice("group2", 3, 5120)),
        (3000, "group2", (0, 3), Slice("group2", 1, 10240)),
        (3000, "group1", (0, 2), Slice("group1", 1, 5120)),
        (8000, "group1", (), None),
        (3000, "group1", tuple(range(7)), None),
        (3000, "no such group", (), None),
        (40961, "", (), None),
    ],
)
def test_the_smallest_free_slice_of_the_first_group_is_found(need: Any, group: Any, taken: Any, expected: Any) -> None:
    assert A100 is not None
    assert find_slice(A100, need, group=group, taken=taken) == expected


@pytest.mark.parametrize("type, expected", [("NVIDIA-NVIDIA L40S", None), ("NVIDIA-NVIDIA A30", "A30")])
def test_a_geometry_is_known_by_a_part_of_the_type(type: Any, expected: Any) -> None:
    found = geometry_of(type, DEFAULT_GEOMETRIES)

    assert (found.models[0] if found else None) == expected


@pytest.mark.parametrize("group, position, memory", [("group2", 0, 10240), ("group2", 3, 5120), ("group2", 4, None)])
def test_a_position_counts_over_the_whole_group(group: Any, position: Any, memory: Any) -> None:
    assert A100 is not None
    found = A100.group(group)
    assert found is not None
    assert found.memory_at(position) == memory
    assert found.memory_at(-1) is None
