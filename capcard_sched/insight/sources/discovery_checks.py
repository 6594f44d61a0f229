"""Findings about HyperNodes from node labels in manifests: the configuration, and what it does not change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.controllers.hyper_nodes import discover
from capcard_sched.controllers.objects import HYPER_NODE, NODE
from capcard_sched.model.annotations import DISCOVERED_FROM
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.topology_discovery import DISCOVERY_KEY, LABEL_SOURCE, read_discovery
from capcard_sched.validation.checks import Finding
from capcard_sched.validation.inventory import value_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.model.topology_discovery import TopologyType

    Json = dict[str, Any]

_SOURCE_FIELD: Final = f'metadata.labels["{DISCOVERED_FROM}"]'
_STAY: Final = "the members stay as they are when nodes come and go"


def check_discovery(objects: Sequence[Json]) -> Iterator[tuple[int, Finding]]:
    """The findings, each with the index of its object."""
    types: tuple[TopologyType, ...] = ()
    is_configured = False
    for index, obj in enumerate(objects):
        text = value_at(obj, "data", DISCOVERY_KEY) if kind_of(obj) == "ConfigMap" else None
        if isinstance(text, str):
            found = read_discovery(text)
            types, is_configured = types or found.types, True
            field = f'data["{DISCOVERY_KEY}"]'
            yield from ((index, Finding("error", field, problem)) for problem in found.problems)
            yield from ((index, Finding("warning", field, note)) for note in found.notes)
    for index, obj in enumerate(objects):
        source = value_at(obj, "metadata", "labels", DISCOVERED_FROM) if kind_of(obj) == HYPER_NODE else None
        if source is not None and source != LABEL_SOURCE:
            text = f"has no effect: no controller discovers HyperNodes of this source: {_STAY}"
            yield index, Finding("warning", _SOURCE_FIELD, text, "members by labelMatch, without the label")
        elif source is not None and not is_configured:
            text = f"no controller updates it without --network-topology-discovery: {_STAY}"
            yield index, Finding("warning", _SOURCE_FIELD, text, f"a ConfigMap with {DISCOVERY_KEY} in the input")
    if types:
        yield from _conflicts(objects, types)


def _conflicts(objects: Sequence[Json], types: Sequence[TopologyType]) -> Iterator[tuple[int, Finding]]:
    """Nodes and HyperNodes that the discovery leaves as they are."""
    places: dict[tuple[str, str], int] = {}
    for index, obj in enumerate(objects):
        name = value_at(obj, "metadata", "name")
        if isinstance(name, str) and kind_of(obj) in (NODE, HYPER_NODE):
            places.setdefault((kind_of(obj), name), index)
    nodes = {name: _labels(objects[index]) for (kind, name), index in places.items() if kind == NODE}
    hyper_nodes = [
        {**objects[index], "metadata": {"name": name, "labels": _labels(objects[index])}}
        for (kind, name), index in places.items()
        if kind == HYPER_NODE
    ]
    for conflict in discover(types, nodes, hyper_nodes).conflicts:
        yield places[conflict.kind, conflict.name], Finding("warning", "", conflict.message)


def _labels(obj: Json) -> dict[str, str]:
    found = value_at(obj, "metadata", "labels")
    return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}
