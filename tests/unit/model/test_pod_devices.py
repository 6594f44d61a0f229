from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.model.pod_devices import Device, decode_devices, encode_devices


@pytest.mark.parametrize(
    "text, containers",
    [
        ("GPU-a,NVIDIA,1024,0:", [[Device("GPU-a", 1024, 0)]]),
        ("GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:", [[Device("GPU-a", 3000, 50), Device("GPU-b", 3000, 50)]]),
        ("GPU-a,NVIDIA,3000,0:;GPU-a,NVIDIA,5000,0:", [[Device("GPU-a", 3000, 0)], [Device("GPU-a", 5000, 0)]]),
        ("GPU-m[group2-3],NVIDIA,3000,0:", [[Device("GPU-m", 3000, 0, "group2", 3)]]),
        ("G1,NVIDIA,3000,10:;;G2,NVIDIA,5000,0:", [[Device("G1", 3000, 10)], [], [Device("G2", 5000, 0)]]),
        ("", []),
    ],
)
def test_devices_are_read_by_container_and_written_alike(text: Any, containers: Any) -> None:
    found = decode_devices(text)

    assert [list(devices) for devices in found.containers] == containers
    assert found.problems == ()
    assert encode_devices(containers) == text


def test_empty_segments_at_the_end_are_not_written() -> None:
    assert encode_devices([[], [Device("G", 1, 2)], [], []]) == ";G,NVIDIA,1,2:"
    assert encode_devices([[], []]) == ""


@pytest.mark.parametrize(
    "text, devices, problems",
    [
        ("G1,NVIDIA,3000:G2,NVIDIA,1,2:", [Device("G2", 1, 2)], 1),
        ("G1:", [], 0),
        (":::", [], 0),
        ("null", [], 0),
        ("G1[-1],NVIDIA,1,0:", [], 1),
        ("G1[g-99999],NVIDIA,1,0:", [], 1),
        ("G1,OTHER,1,0:", [Device("G1", 1, 0)], 0),
        ("G1,NVIDIA,1,0,more:", [Device("G1", 1, 0)], 0),
    ],
)
def test_an_entry_that_is_no_share_is_left_out_with_a_problem(text: Any, devices: Any, problems: Any) -> None:
    found = decode_devices(text)

    assert [device for segment in found.containers for device in segment] == devices
    assert len(found.problems) == problems
    assert all("container 0" in problem for problem in found.problems)
