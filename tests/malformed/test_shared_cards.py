"""Malformed registrations, device annotations, requests and ConfigMaps of shared cards.

Each gives its warning once, and all other pods are scheduled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from capcard_sched.model import annotations as keys
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.objects import ConfigMapObject
from tests.unit.plugins.deviceshare.cluster import CORES, MEMORY, NUMBER, PERCENTAGE, VgpuHarness

L40S, A100 = "NVIDIA-NVIDIA L40S", "NVIDIA-NVIDIA A100-SXM4-40GB"
SETTINGS = "volcano-vgpu-device-config"
LONG = "x" * 5000


class Case(NamedTuple):
    id: str
    value: Any
    #: Part of the one warning.
    words: str


FORM = "expected uuid,count,memory,type,health,mode: for each card"
FIELDS = "has {} fields: expected uuid,count,memory,type,health,mode:"
COUNT = "expected a positive integer"
REGISTRATIONS = [
    Case("no card", "", f'no card in "": {FORM}'),
    Case("a word", "cards", f'no card in "cards": {FORM}'),
    Case("no last colon", f"A,10,100,{L40S},true,hami-core", "no card in"),
    Case("long", LONG, f'no card in "{"x" * 64}...'),
    Case("one field", "A,:", 'card 0 "A," ' + FIELDS.format(2)),
    Case("an old plugin", "A,10,100,NVIDIA,true:", 'card 0 "A,10,100,NVIDIA,true" ' + FIELDS.format(5)),
    Case("the second card is short", f"A,10,100,{L40S},true,x:B,1:", 'card 1 "B,1" ' + FIELDS.format(2)),
    Case("count is a word", "A,ten,100,NVIDIA,true,x:", f'count is "ten": {COUNT}'),
    Case("count is negative", "A,-1,100,NVIDIA,true,x:", f'count is "-1": {COUNT}'),
    Case("count is a fraction", "A,1.5,100,NVIDIA,true,x:", f'count is "1.5": {COUNT}'),
    Case("count is zero", "A,0,100,NVIDIA,true,x:", f'count is "0": {COUNT}'),
    Case("count is empty", "A,,100,NVIDIA,true,x:", f'count is "": {COUNT}'),
    Case("count is beyond 64 bits", f"A,{10**30},100,NVIDIA,true,x:", "count is"),
    Case("count in other digits", "A,\u0661\u0660,100,NVIDIA,true,x:", f'count is "\u0661\u0660": {COUNT}'),
    Case("memory is a quantity", "A,10,100Mi,NVIDIA,true,x:", f'memory is "100Mi": {COUNT}'),
    Case("memory is zero", "A,10,0,NVIDIA,true,x:", f'memory is "0": {COUNT}'),
    Case("no uuid", ",10,100,NVIDIA,true,x:", "its uuid is empty"),
    Case("a uuid that names a slice", "A[g-0],10,100,NVIDIA,true,x:", "its uuid has a character"),
    Case("a uuid with a separator", "A;B,10,100,NVIDIA,true,x:", "its uuid has a character"),
    Case("a uuid twice", "A,10,100,NVIDIA,true,x:A,10,100,NVIDIA,true,x:", "an earlier card has the same uuid"),
    Case("a MIG card of no known model", "A,10,100,NVIDIA-X,true,mig:", "no MIG geometry for NVIDIA-X"),
    Case("every card is unhealthy", f"A,10,100,{L40S},false,hami-core:", "health is ignored"),
]

LEFT_OUT = "of container 0 is left out: expected uuid,NVIDIA,memory,cores: with integers"
ABSENT = "is not on the node of the pod"
SLICE = "cannot be had on its card"
DEVICES = [
    Case("three fields", "A,NVIDIA,100:", f'share "A,NVIDIA,100" {LEFT_OUT}'),
    Case("one comma", ",:", f'share "," {LEFT_OUT}'),
    Case("no uuid", ",NVIDIA,100,0:", LEFT_OUT),
    Case("memory is a word", "A,NVIDIA,much,0:", LEFT_OUT),
    Case("memory is negative", "A,NVIDIA,-5,0:", LEFT_OUT),
    Case("memory is a fraction", "A,NVIDIA,1.5,0:", LEFT_OUT),
    Case("memory is beyond 64 bits", f"A,NVIDIA,{10**30},0:", LEFT_OUT),
    Case("memory is empty", "A,NVIDIA,,0:", LEFT_OUT),
    Case("cores is a word", "A,NVIDIA,100,all:", LEFT_OUT),
    Case("cores is negative", "A,NVIDIA,100,-1:", LEFT_OUT),
    Case("a bad share in the second container", "A,NVIDIA,1,0:;A,NVIDIA,x,0:", "of container 1 is left out"),
    Case("a slice without an end", "M[group1-0,NVIDIA,100,0:", LEFT_OUT),
    Case("a slice without a position", "M[group1],NVIDIA,100,0:", LEFT_OUT),
    Case("a slice with a word", "M[group1-x],NVIDIA,100,0:", LEFT_OUT),
    Case("a slice of no card", "[group1-0],NVIDIA,100,0:", LEFT_OUT),
    Case("a long share", f"{LONG},NVIDIA,x,0:", LEFT_OUT),
    Case("a card of another node", "Z,NVIDIA,100,0:", f"card Z {ABSENT}"),
    Case("a part of a uuid", "AA,NVIDIA,100,0:", f"card AA {ABSENT}"),
    Case("a position beyond the group", "M[group1-9],NVIDIA,100,0:", SLICE),
    Case("an unknown group", "M[group77-0],NVIDIA,100,0:", SLICE),
    Case("a slice of a card that is not cut", "A[group1-0],NVIDIA,100,0:", SLICE),
    Case("a slice twice", "M[group1-0],NVIDIA,100,0:;M[group1-0],NVIDIA,100,0:", SLICE),
    Case("two groups on one card", "M[group1-0],NVIDIA,100,0:;M[group2-0],NVIDIA,100,0:", SLICE),
]

WHOLE, PERCENT = "expected an integer of 0 or more", "expected an integer from 0 to 100"
REQUESTS = [
    Case("half a card", {NUMBER: "500m"}, f"{NUMBER} is 0.5: {WHOLE}"),
    Case("a card and a half", {NUMBER: "1.5"}, f"{NUMBER} is 1.5: {WHOLE}"),
    Case("memory in thousandths", {MEMORY: "1500m"}, f"{MEMORY} is 1.5: {WHOLE}"),
    Case("101 cores", {NUMBER: 1, CORES: 101}, f"{CORES} is 101: {PERCENT}"),
    Case("very many cores", {NUMBER: 1, CORES: "1Gi"}, f"{CORES} is 1073741824: {PERCENT}"),
    Case("101 percent", {NUMBER: 1, PERCENTAGE: 101}, f"{PERCENTAGE} is 101: {PERCENT}"),
    Case("everything at once", {NUMBER: "1.5", MEMORY: "0.5", CORES: 200}, f"{NUMBER} is 1.5: {WHOLE}"),
    Case(
        "a number beyond every node",
        {NUMBER: 10**22},
        f"{NUMBER} is more than {1 << 40}: expected an integer from 0 to {1 << 40}",
    ),
    Case("memory and a bad percentage", {NUMBER: 1, MEMORY: 5, PERCENTAGE: 200}, f"{PERCENTAGE} is 200: {PERCENT}"),
]


def _config(text: str) -> str:
    return f"nvidia: {{{text}}}"


def _geometry(text: str) -> str:
    return _config(f"knownMigGeometries: [{{{text}}}]")


def _groups(text: str) -> str:
    return _geometry(f"models: [X], allowedGeometries: [{text}]")


def _kind(text: str) -> str:
    return _groups(f"{{group: g, geometries: [{{{text}}}]}}")


CONFIGS = [
    Case("no YAML", "nvidia: [", "not valid YAML"),
    Case("a tab", "nvidia:\n\tx: 1", "not valid YAML"),
    Case("an unknown alias", "nvidia: *x", ""),
    Case("a list", "[]", "document: expected a map"),
    Case("the section is a list", "nvidia: []", "nvidia: expected a map"),
    Case("a name is a number", _config("resourceCountName: 7"), "nvidia.resourceCountName: expected a text"),
    Case(
        "a name of no device", _config("resourceMemoryName: memory"), "nvidia.resourceMemoryName: expected a name with"
    ),
    Case("a name twice", _config("resourceMemoryName: volcano.sh/vgpu-number"), "four different resource names"),
    Case("a name is a list", _config("resourceCoreName: [x]"), "nvidia.resourceCoreName: expected a text"),
    Case("a negative factor", _config("gpuMemoryFactor: -10"), "nvidia.gpuMemoryFactor"),
    Case("factor 0", _config("gpuMemoryFactor: 0"), "nvidia.gpuMemoryFactor: expected a positive integer"),
    Case("half a factor", _config("gpuMemoryFactor: 0.5"), "nvidia.gpuMemoryFactor"),
    Case("a factor as text", _config("gpuMemoryFactor: '10'"), "nvidia.gpuMemoryFactor"),
    Case("a factor beyond 64 bits", _config(f"gpuMemoryFactor: {10**30}"), "nvidia.gpuMemoryFactor"),
    Case("geometries are a map", _config("knownMigGeometries: {}"), "nvidia.knownMigGeometries: expected a list"),
    Case("a geometry is a word", _config("knownMigGeometries: [x]"), "knownMigGeometries[0]: expected a map"),
    Case("no models", _geometry("allowedGeometries: []"), "models: expected a list"),
    Case("a model is a number", _geometry("models: [1], allowedGeometries: []"), "models[0]: expected a text"),
    Case("no groups", _geometry("models: [X]"), "allowedGeometries: expected a list"),
    Case("a group without slices", _geometry("models: [X], allowedGeometries: [{group: g}]"), "geometries: expected"),
    Case("a group with brackets", _groups("{group: 'g]', geometries: []}"), "group: expected letters"),
    Case("a group with a separator", _groups("{group: 'a:b', geometries: []}"), "group: expected letters"),
    Case("very many slices", _kind("name: s, memory: 5, count: 10000"), "geometries: expected at most 9999 slices"),
    Case("a slice of nothing", _kind("name: s, memory: 0, count: 1"), "geometries[0].memory"),
    Case("a slice with a quantity", _kind("name: s, memory: 5Gi, count: 1"), "geometries[0].memory"),
    Case("no slices", _kind("name: s, memory: 5, count: 0"), "geometries[0].count"),
    Case("a slice without a name", _kind("memory: 5, count: 1"), "geometries[0].name"),
]


def _healthy() -> VgpuHarness:
    h = VgpuHarness(run=True)
    cards = f"A,10,10000,{L40S},true,hami-core:M,10,40536,{A100},true,mig:"
    h.cards("n1", register=cards, offered=20)
    return h


def _check(h: VgpuHarness, kind: str, name: str, reason: str, words: str) -> None:
    """Two gangs, one of them a session later, run; the warning comes once, whatever is repeated."""
    for number in range(2):
        h.group(f"g{number}", min_member=2)
        for index in range(2):
            h.share(f"p{number}{index}", 100, group=f"g{number}")
        for _ in range(3):
            result = h.step()
            assert result.report.errors == []
        h.node("plain")  # a change that has nothing to do with it
    assert {f"p{number}{index}" for number in range(2) for index in range(2)} <= set(h.binds)
    found = [text for each, text in h.event_messages(kind, name) if each == reason]
    assert len(found) == 1, found
    assert words in found[0]


def _ask(h: VgpuHarness, value: Any) -> None:
    h.group("bad")
    h.pod("bad", group="bad", limits=value)


#: Kind and reason of the warning, how an object gets the value, and the values.
OBJECTS: list[tuple[str, str, Callable[[VgpuHarness, Any], object], list[Case]]] = [
    ("Node", "InvalidDeviceRegistration", lambda h, value: h.cards("bad", register=value, offered=10), REGISTRATIONS),
    ("Pod", "InvalidDeviceAnnotation",
     lambda h, value: h.pod("bad", node="n1", limits={NUMBER: 1}, annotations={keys.VGPU_IDS: value}), DEVICES),
    ("Pod", "InvalidDeviceRequest", _ask, REQUESTS),
]  # fmt: skip


@pytest.mark.parametrize(
    "kind, reason, change, case",
    [pytest.param(*row, case, id=f"{row[1]}: {case.id}") for *row, cases in OBJECTS for case in cases],
)
def test_a_malformed_value_gives_one_warning_on_its_object(
    kind: str, reason: str, change: Callable[[VgpuHarness, Any], object], case: Case
) -> None:
    h = _healthy()
    change(h, case.value)

    _check(h, kind, "bad", reason, case.words)
    assert "bad" not in h.binds


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CONFIGS])
def test_a_config_map_gives_one_warning_and_the_last_valid_one_stays_in_force(case: Case) -> None:
    h = _healthy()
    for text in ("nvidia: {gpuMemoryFactor: 10}", case.value):
        meta = {"name": SETTINGS, "namespace": "kube-system"}
        h.apply(
            ObjectChanged(msgspec.convert({"metadata": meta, "data": {"device-config.yaml": text}}, ConfigMapObject))
        )
        h.step()

    _check(h, "ConfigMap", SETTINGS, "InvalidDeviceConfig", case.words)
    plugin = h.plugin("deviceshare")
    assert plugin.types[0].config.factor == 10
    assert {sample.name: sample.value for sample in plugin.metrics()}["vgpu_device_config_invalid"] == 1


def test_there_are_at_least_eighty_cases() -> None:
    cases = [(kind, case.id) for kind in (REGISTRATIONS, DEVICES, REQUESTS, CONFIGS) for case in kind]
    values = {repr(case.value) for kind in (REGISTRATIONS, DEVICES, REQUESTS, CONFIGS) for case in kind}
    assert len(values) == len(cases) >= 80
