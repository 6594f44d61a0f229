"""Configurations of HyperNodes from node labels: what is read, refused, and without effect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capcard_sched.model.topology_discovery import TopologyType, read_discovery

_HOST = "kubernetes.io/hostname"


def source(**types: list[str]) -> dict[str, Any]:
    rows = {name.replace("_", "-"): [{"nodeLabel": label} for label in labels] for name, labels in types.items()}
    return {"source": "label", "enabled": True, "config": {"networkTopologyTypes": rows}}


def text(*sources: Any) -> str:
    return json.dumps({"networkTopologyDiscovery": sources})


@pytest.mark.parametrize(
    "written, types",
    [
        (text(source(t=["zone", "rack", _HOST])), [("t", ("rack", "zone"))]),
        (text(source(NVL_A=["rack", _HOST], b=["leaf", _HOST])), [("nvl-a", ("rack",)), ("b", ("leaf",))]),
        (text({**source(t=["rack", _HOST]), "enabled": False}), []),
        (text({"source": "ufm", "config": {"endpoint": "https://x"}}, source(t=["rack", _HOST])), [("t", ("rack",))]),
        (text(), []),
        ("", []),
        ("networkTopologyDiscovery:", []),
    ],
)
def test_types_are_read_from_tier_1_up(written: str, types: list[tuple[str, tuple[str, ...]]]) -> None:
    assert read_discovery(written) == (tuple(TopologyType(*each) for each in types), (), ())


@pytest.mark.parametrize(
    "written, problem",
    [
        ("a: [", "line 1: not valid YAML"),
        ("5", "expected one key, networkTopologyDiscovery"),
        ("other: []", "expected one key, networkTopologyDiscovery"),
        ("networkTopologyDiscovery: 5", "networkTopologyDiscovery: expected a list of sources"),
        (text({"enabled": True}), "networkTopologyDiscovery[0].source: is required"),
        (
            text({"source": "label", "enable": True}),
            "networkTopologyDiscovery[0].enable: unknown field",
        ),
        (text({"source": "ufm", "enabled": True}), "[0].source: 'ufm' is not supported; accepted: label"),
        (text(source(t=["r", _HOST]), source(u=["r", _HOST])), "[1].source: source label is enabled above"),
        (text({"source": "label", "enabled": True}), "[0].config: expected one key, networkTopologyTypes"),
        (text(source()), "[0].config: expected one key, networkTopologyTypes"),
        (text(source(**{f"t{n}": ["r", _HOST] for n in range(17)})), "17 types; at most 16 are accepted"),
        (text(source(t=[_HOST])), "t: 1 labels; accepted: 1 to 8 labels of domains"),
        (text(source(t=[f"l{n}" for n in range(10)])), "t: 10 labels; accepted: 1 to 8 labels"),
        (text(source(t=["a b", _HOST])), "t[0].nodeLabel: label key 'a b' is not a name"),
        (text(source(t=["r", "r", _HOST])), "t[1].nodeLabel: label r is listed above"),
        (text(source(t_tier1=["r", _HOST])), "t-tier1: ends like a tier"),
        (text(source(T=["r", _HOST], t=["q", _HOST])), "t: has the same HyperNodes as type 'T'"),
        (text(source(**{"x" * 21: ["r", _HOST]})), "is no name of a type; accepted: 1 to 20 letters"),
        (text(source(**{"-x": ["r", _HOST]})), "'-x' is no name of a type"),
        (
            text({"source": "label", "enabled": True, "config": {"networkTopologyTypes": {"t": [{"label": "r"}]}}}),
            "networkTopologyTypes.t[0].label: unknown field; accepted: a list of nodeLabel",
        ),
    ],
)
def test_an_invalid_configuration_is_refused_with_its_place(written: str, problem: str) -> None:
    found = read_discovery(written)
    assert found.types == ()
    assert problem in found.problems[0], found.problems


def test_parts_without_effect_are_noted() -> None:
    found = read_discovery(text({**source(t=["zone", "rack"]), "interval": "10m"}))
    assert found.types == (TopologyType("t", ("zone",)),)
    assert [note.partition(": ")[2].partition(";")[0] for note in found.notes] == [
        "interval and credentials have no effect on source label",
        "the last label, rack, stands for the node and makes no HyperNodes",
    ]
