from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.model import annotations as keys
from capcard_sched.model.task_class import ContainerAmounts
from capcard_sched.plugins.deviceshare.vgpu_request import (
    DEFAULT_RESOURCES,
    ContainerRequest,
    Share,
    VgpuResources,
    vgpu_request,
)

NUMBER, MEMORY = DEFAULT_RESOURCES.number, DEFAULT_RESOURCES.memory
PERCENTAGE, CORES = DEFAULT_RESOURCES.percentage, DEFAULT_RESOURCES.cores


def _request(limits: Any, requests: Any = None, **annotations: Any) -> Any:
    return vgpu_request([ContainerAmounts("main", tuple(limits.items()), tuple((requests or {}).items()))], annotations)


@pytest.mark.parametrize(
    "limits, requests, expected",
    [
        ({NUMBER: 1000}, {}, (1, Share(0, 100, 0))),
        ({MEMORY: 5_000}, {}, (1, Share(5, 0, 0))),
        ({NUMBER: 2000, MEMORY: 5_000, CORES: 10_000}, {}, (2, Share(5, 0, 10))),
        ({NUMBER: 1000}, {MEMORY: 7_000, CORES: 3_000}, (1, Share(7, 0, 3))),
        ({NUMBER: 1000}, {PERCENTAGE: 50_000}, (1, Share(0, 50, 0))),
        ({NUMBER: 1000, MEMORY: 5_000, PERCENTAGE: 50_000}, {}, (1, Share(5, 0, 0))),
        ({NUMBER: 1000, MEMORY: 0}, {}, (1, Share(0, 100, 0))),
        ({NUMBER: 1000, MEMORY: 0, PERCENTAGE: 50_000}, {}, (1, Share(0, 50, 0))),
        ({NUMBER: 1000, PERCENTAGE: 0}, {}, (1, Share(0, 0, 0))),
        ({NUMBER: 1000, CORES: 100_000}, {CORES: 1_000}, (1, Share(0, 100, 100))),
    ],
)
def test_a_container_requests_shares_of_cards(limits: Any, requests: Any, expected: Any) -> None:
    found = _request(limits, requests)

    assert found is not None
    assert found.problem == ""
    assert found.containers == (ContainerRequest(*expected),)


@pytest.mark.parametrize("limits", [{}, {PERCENTAGE: 50_000}, {CORES: 50_000}, {"nvidia.com/gpu": 1000}])
def test_without_number_and_memory_there_is_no_request(limits: Any) -> None:
    assert _request(limits, {NUMBER: 1000}) is None


def test_a_container_without_a_card_request_takes_none() -> None:
    found = _request({NUMBER: 0, MEMORY: 5_000})

    assert found is not None
    assert found.containers == (None,)


@pytest.mark.parametrize(
    "limits, shown",
    [
        ({NUMBER: -1000}, "volcano.sh/vgpu-number is -1"),
        ({NUMBER: 1000, MEMORY: -5_000}, "volcano.sh/vgpu-memory is -5"),
        ({NUMBER: 1000, CORES: 500}, "volcano.sh/vgpu-cores is 0.5"),
        ({NUMBER: 1000, PERCENTAGE: -1_000}, "volcano.sh/vgpu-memory-percentage is -1"),
    ],
)
def test_an_amount_without_meaning_is_named_with_its_container(limits: Any, shown: Any) -> None:
    found = _request(limits)

    assert found is not None
    assert found.problem.startswith(f"container main: {shown}: expected an integer")
    assert found.containers == ()


@pytest.mark.parametrize(
    "annotations, type, accepted",
    [
        ({}, "NVIDIA-NVIDIA L40S", True),
        ({}, "nvidia-l40s", False),
        ({keys.USE_GPU_TYPE: "l40s"}, "NVIDIA-NVIDIA L40S", True),
        ({keys.USE_GPU_TYPE: " T4 , L40S "}, "NVIDIA-NVIDIA L40S", True),
        ({keys.USE_GPU_TYPE: "T4,,"}, "NVIDIA-NVIDIA L40S", False),
        ({keys.USE_GPU_TYPE: "L40S", keys.NOUSE_GPU_TYPE: "L40S"}, "NVIDIA-NVIDIA L40S", True),
        ({keys.NOUSE_GPU_TYPE: "l40"}, "NVIDIA-NVIDIA L40S", False),
        ({keys.NOUSE_GPU_TYPE: ", ,"}, "NVIDIA-NVIDIA L40S", True),
    ],
)
def test_type_annotations_accept_and_refuse_cards(annotations: Any, type: Any, accepted: Any) -> None:
    found = _request({NUMBER: 1000}, **annotations)

    assert found is not None
    assert found.containers[0] is not None
    assert found.containers[0].share.accepts(type) is accepted


def test_a_request_by_uuid_or_by_pod_group_is_bound_to_cards() -> None:
    by_uuid = _request({NUMBER: 1000}, **{keys.VGPU_USE_UUID: " G1,,G2 ", keys.VGPU_NOUSE_UUID: "G3"})
    by_group = _request({NUMBER: 1000}, **{keys.VGPU_PODGROUP_POLICY: "spread"})
    plain = _request({NUMBER: 1000}, **{keys.VGPU_PODGROUP_POLICY: "binpack", keys.VGPU_MODE: "mig"})

    assert by_uuid is not None
    assert by_uuid.use_uuids == {"G1", "G2"}
    assert by_uuid.avoid_uuids == {"G3"}
    assert by_uuid.is_bound_to_cards
    assert by_group is not None
    assert by_group.spreads
    assert by_group.is_bound_to_cards
    assert plain is not None
    assert not plain.is_bound_to_cards
    assert plain.mode == "mig"


def test_resources_may_have_other_names() -> None:
    names = VgpuResources(number="example.com/gpus", memory="example.com/gpumem")

    found = vgpu_request([ContainerAmounts("c", (("example.com/gpus", 1000),), ())], {}, names)

    assert found is not None
    assert vgpu_request([ContainerAmounts("c", ((NUMBER, 1000),), ())], {}, names) is None


@pytest.mark.parametrize(
    "memory, percentage, units", [(4914, 33, 1621), (10000, 50, 5000), (7, 1, 0), (4914, 100, 4914)]
)
def test_a_percentage_is_of_each_card_and_rounded_down(memory: Any, percentage: Any, units: Any) -> None:
    assert Share(0, percentage, 0).memory_on(memory) == units
