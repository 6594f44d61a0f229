"""Which containers get CPUs of their own: the QoS class Guaranteed and whole CPUs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capcard_sched.model.objects import PodSpec
from capcard_sched.model.pod_template import own_cpus

Json = dict[str, Any]


def _c(name: str = "c", requests: Json | None = None, limits: Json | None = None, **more: Any) -> Json:
    return {"name": name, "resources": {"requests": requests, "limits": limits}, **more}


def _whole(name: str, cpu: Any, **more: Any) -> Json:
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return _c(name, amounts, amounts, **more)


AMOUNTS = {"cpu": "2", "memory": "1Gi"}
CASES = [
    pytest.param({"containers": [_whole("a", "2")]}, (("a", 2),), id="whole CPUs"),
    pytest.param({"containers": [_whole("a", 2)]}, (("a", 2),), id="a number"),
    pytest.param({"containers": [_whole("a", "2000m")]}, (("a", 2),), id="in thousandths"),
    pytest.param({"containers": [_whole("a", "1500m")]}, (), id="fractions"),
    pytest.param({"containers": [_c("a", None, AMOUNTS)]}, (("a", 2),), id="limits are requests"),
    pytest.param({"containers": [_c("a", {"cpu": "2.0"}, AMOUNTS)]}, (("a", 2),), id="the same amount otherwise"),
    pytest.param(
        {"containers": [_c("a", {**AMOUNTS, "x.io/y": 1}, {**AMOUNTS, "x.io/y": 1})]}, (("a", 2),), id="with devices"
    ),
    pytest.param(
        {"containers": [_whole("a", "1"), _whole("b", "500m"), _whole("c", "3")]},
        (("a", 1), ("c", 3)),
        id="several, in order",
    ),
    pytest.param({"containers": [_whole("a", "2"), {"name": "b"}]}, None, id="one requests nothing"),
    pytest.param({"containers": [_c("a", {"cpu": "1", "memory": "1Gi"}, AMOUNTS)]}, None, id="burstable"),
    pytest.param({"containers": [_c("a", AMOUNTS)]}, None, id="no limits"),
    pytest.param({"containers": [_c("a", None, {"cpu": "2"})]}, None, id="no memory"),
    pytest.param({"containers": [_c("a", None, {"cpu": "0", "memory": "1"})]}, None, id="a limit of nothing"),
    pytest.param({"containers": [_c("a", None, {"cpu": "x", "memory": "1"})]}, None, id="unreadable"),
    pytest.param({"containers": []}, None, id="no container"),
    pytest.param(
        {"containers": [_whole("a", "2")], "initContainers": [_whole("i", "8")]}, (("a", 2),), id="init containers end"
    ),
    pytest.param({"containers": [_whole("a", "2")], "initContainers": [_c("i")]}, None, id="init containers count"),
    pytest.param(
        {
            "containers": [_whole("a", "2")],
            "initContainers": [_whole("i", "8"), _whole("s", "1", restartPolicy="Always")],
        },
        (("s", 1), ("a", 2)),
        id="sidecars last",
    ),
    pytest.param({"containers": [_c("a")], "resources": {"limits": AMOUNTS}}, (), id="for the whole pod"),
    pytest.param(
        {"containers": [_whole("a", "2")], "resources": {"requests": {"cpu": "1"}, "limits": AMOUNTS}},
        None,
        id="burstable as a whole",
    ),
    pytest.param(
        {"containers": [_whole("a", "2")], "resources": {"limits": {"hugepages-2Mi": "4Mi"}}},
        (("a", 2),),
        id="huge pages of the pod decide nothing",
    ),
]


@pytest.mark.parametrize(("spec", "expected"), CASES)
def test_own_cpus(spec: Json, expected: tuple[tuple[str, int], ...] | None) -> None:
    assert own_cpus(msgspec.convert(spec, PodSpec)) == expected
