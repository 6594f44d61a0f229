"""Checks of shared cards in manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.cli.main import run
from capcard_sched.plugins.deviceshare.device_checks import check_devices
from capcard_sched.plugins.deviceshare.device_config import DEFAULT_CONFIG, device_config
from tests.unit.plugins.deviceshare.cluster import CORES, MEMORY, NUMBER, PERCENTAGE, conf

L40S = "A,10,4914,NVIDIA-NVIDIA L40S,true,hami-core:"


def _node(registration: str, offered: Any = 10, **annotations: str) -> Any:
    notes = {"volcano.sh/node-vgpu-register": registration, **annotations}
    return {"kind": "Node", "metadata": {"annotations": notes}, "status": {"allocatable": {"cpu": 8, NUMBER: offered}}}


def _pod(limits: Any, *, scheduler: str = "volcano", init: Any = None, **annotations: str) -> Any:
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    spec: Any = {"schedulerName": scheduler, "containers": [container]}
    if init is not None:
        spec["initContainers"] = [{"name": "setup", "resources": {"limits": init}}]
    return {"kind": "Pod", "metadata": {"name": "p", "annotations": annotations}, "spec": spec}


def _with_sidecars(pod: Any) -> Any:
    for container in pod["spec"]["initContainers"]:
        container["restartPolicy"] = "Always"
    return pod


def _field(place: str) -> str:
    """`note KEY`: an annotation; `offer RESOURCE`: of a node; `init RESOURCE`: of an init container; else a limit."""
    kind, _, name = place.rpartition(" ")
    fields = {
        "note": "metadata.annotations",
        "offer": "status.allocatable",
        "init": "spec.initContainers[0].resources.limits",
        "": "spec.containers[0].resources.limits",
    }
    return f'{fields[kind]}["{name}"]'


SHARE = {NUMBER: 1, MEMORY: 1000}
MODE, POLICY = "volcano.sh/vgpu-mode", "volcano.sh/vgpu-podgroup-policy"
USE, NOUSE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, NOUSE_UUID = "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"
REGISTER, HANDSHAKE = "note volcano.sh/node-vgpu-register", "volcano.sh/node-vgpu-handshake"
#: Objects, then severity, place and a part of the message of each finding.
CASES: dict[str, tuple[list[Any], list[tuple[str, str, str]]]] = {
    "a request": ([_pod({NUMBER: 1, MEMORY: 1000, CORES: 50}), _node(L40S)], []),
    "cores above a card": ([_pod({NUMBER: 1, CORES: 101})], [("error", CORES, "is 101: the pod fits on no node")]),
    "everything at once": (
        [_pod({NUMBER: "1500m", MEMORY: "500m", PERCENTAGE: 101, CORES: -1})],
        [("error", NUMBER, "is 1.5"), ("error", MEMORY, "is 0.5"), ("error", PERCENTAGE, "is 101"),
         ("error", CORES, "is -1")]),
    "memory and percentage": ([_pod({**SHARE, PERCENTAGE: 50})],
                              [("warning", PERCENTAGE, f"is ignored beside {MEMORY}")]),
    "no card": ([_pod({NUMBER: 0, MEMORY: 10})], [("warning", NUMBER, "is 0: the container gets no vGPU")]),
    "cores without number": ([_pod({CORES: 50})], [("warning", CORES, f"has no effect without {NUMBER} or {MEMORY}")]),
    "init container": ([_pod(SHARE, init=SHARE)],
                       [("warning", f"init {name}", "init containers get no vGPUs") for name in SHARE]),
    "sidecar": ([_with_sidecars(_pod(SHARE, init=SHARE))],
                [("error", f"init {name}", "sidecars get no vGPUs") for name in SHARE]),
    "whole cards beside shares": (
        [_pod({**SHARE, "nvidia.com/gpu": 1, "volcano.sh/gpu-memory": 5})],
        [("warning", name, "is requested beside") for name in ("nvidia.com/gpu", "volcano.sh/gpu-memory")]),
    "a mode that no card has": ([_pod(SHARE, **{MODE: "mps"})],
                                [("error", f"note {MODE}", '"mps": no card works in this mode')]),
    "a policy without effect": ([_pod(SHARE, **{POLICY: "pack"})],
                                [("warning", f"note {POLICY}", '"pack" has no effect')]),
    "both type lists": ([_pod(SHARE, **{USE: "A", NOUSE: "B"})],
                        [("warning", f"note {NOUSE}", f"is ignored beside {USE}")]),
    "uuids that exclude each other": ([_pod(SHARE, **{USE_UUID: "A", NOUSE_UUID: "B, A"})],
                                      [("error", f"note {NOUSE_UUID}", "the pod fits on no node")]),
    "more cards than a node has": (
        [_pod({NUMBER: 3}), _node(L40S + L40S.replace("A", "B", 1))],
        [("warning", NUMBER, "requests 3 cards on one node; the largest node of the input registers 2")]),
    "more memory than a card has": (
        [_node(L40S), _pod({MEMORY: 5000})],
        [("warning", MEMORY, "requests 5,000 of each card; the largest card of the input has 4,914")]),
    "another scheduler": ([_pod({NUMBER: 1, CORES: 101}, scheduler="default-scheduler")], []),
    "a model that cannot be cut": ([_node("A,10,100,NVIDIA-X1,true,mig:")],
                                   [("warning", REGISTER, "no MIG geometry for NVIDIA-X1")]),
    "cards of both modes": ([_node(L40S + "B,10,40536,NVIDIA-A100-SXM4-40GB,true,mig:")],
                            [("note", REGISTER, "cards of both modes")]),
    "cards without health": ([_node(L40S.replace("true", "false"))],
                             [("warning", REGISTER, "every card is unhealthy")]),
    "no vGPUs on offer": (
        [_node(L40S, 0), _node(L40S, None), {**_node(L40S), "status": None}, _node("", 0), _node(L40S, "1k")],
        [("warning", f"offer {NUMBER}", "registers cards and offers no vGPUs")] * 3),
    "a handshake without a time": ([_node(L40S, **{HANDSHAKE: "Requesting_soon"})],
                                   [("warning", f"note {HANDSHAKE}", '"Requesting_soon" has no readable time')]),
    "no objects": ([{"kind": "Pod"}, {"kind": "Pod", "spec": {"schedulerName": "volcano", "containers": [1, {}]}}], []),
    "amounts that are none": ([_pod({NUMBER: "one", MEMORY: None, CORES: []})], []),
}  # fmt: skip


@pytest.mark.parametrize("objects, expected", CASES.values(), ids=CASES)
def test_manifests_of_shared_cards_are_checked(objects: list[Any], expected: list[tuple[str, str, str]]) -> None:
    found = [finding for _, finding in check_devices(objects, DEFAULT_CONFIG)]

    assert [(each.severity, each.field) for each in found] == [(row[0], _field(row[1])) for row in expected]
    for finding, row in zip(found, expected, strict=True):
        assert row[2] in finding.message


def test_resource_names_of_the_config_map_are_checked() -> None:
    config = device_config({"nvidia": {"resourceCountName": "a.b/n", "resourceCoreName": "a.b/c"}})

    found = list(check_devices([_pod({"a.b/n": 1, "a.b/c": 200})], config))

    assert [finding.field for _, finding in found] == [_field("a.b/c")]


def test_validate_reports_requests_config_map_and_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = {**_pod({"a.b/n": 1, CORES: 101}), "apiVersion": "v1"}
    data = {"device-config.yaml": "nvidia: {resourceCountName: a.b/n, gpuMemoryFaktor: 10}"}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}
    (tmp_path / "objects.json").write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [pod, config_map]}))
    (tmp_path / "conf.yaml").write_text(conf(GPUSharingEnable=True, SchedulePolicy="binpak"))

    words = ["validate", "-f", str(tmp_path / "objects.json"), "--scheduler-conf", str(tmp_path / "conf.yaml")]
    assert run([*words, "-o", "json"]) == 2

    rows = json.loads(capsys.readouterr().out)["findings"]
    found = {(row["severity"], row["object"], row["message"].partition(":")[0]) for row in rows}
    assert found == {
        ("error", "Pod p", "is 101"),
        ("warning", "ConfigMap c", "unknown key"),
        ("error", "scheduler-conf", "gpu-share and vgpu can't be used together"),
        ("warning", "scheduler-conf", '"binpak" is no policy'),
    }
