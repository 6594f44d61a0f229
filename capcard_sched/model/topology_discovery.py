"""The configuration `networkTopologyDiscovery`: HyperNodes from node labels, as in Volcano's `volcano-controller.conf`.

networkTopologyDiscovery:
- source: label
  enabled: true
  config:
    networkTopologyTypes:
      nvl:                                    # a network; its labels from the widest domain down to the node
      - nodeLabel: example.com/block
      - nodeLabel: example.com/rack
      - nodeLabel: kubernetes.io/hostname
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.quoting import quoted
from capcard_sched.model.selectors import label_key_problem
from capcard_sched.model.yaml_reader import YamlError, read_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Key of the configuration in a ConfigMap.
DISCOVERY_KEY: Final = "volcano-controller.conf"
#: The source of HyperNodes from node labels; also the value of the label `DISCOVERED_FROM`.
LABEL_SOURCE: Final = "label"
#: The label of the lowest level: the node itself.
HOST_LABEL: Final = "kubernetes.io/hostname"

_LIST: Final = "networkTopologyDiscovery"
_TYPES: Final = "networkTopologyTypes"
_MOST_TYPES: Final = 16
_MOST_LABELS: Final = 9
#: Characters of the name of a type, as in Volcano.
_MOST_CHARACTERS: Final = 20
_PLAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class TopologyType(NamedTuple):
    """One network: the labels of its domains, from tier 1 up."""

    #: Part of the names of its HyperNodes.
    name: str
    labels: tuple[str, ...]


class DiscoveryConfig(NamedTuple):
    """A configuration. `problems`: it is not used; `notes`: parts without effect. One line each."""

    #: In the order of the text: a node with labels of several types is of the first.
    types: tuple[TopologyType, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _DiscoverySource(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    source: str
    enabled: bool = False
    interval: str | int | None = None
    credentials: dict[str, Any] | None = None
    config: dict[str, Any] | None = None


class _NodeLabel(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    node_label: str


def read_discovery(text: str | bytes) -> DiscoveryConfig:
    """The configuration in a text; without types when it has problems, or enables no source. Raises nothing."""
    try:
        value = read_document(text).value
    except YamlError as error:
        return DiscoveryConfig(problems=(f"line {error.line}: {error}",))
    if value is None:
        return DiscoveryConfig()
    if not isinstance(value, dict) or set(value) != {_LIST}:
        return DiscoveryConfig(problems=(f"expected one key, {_LIST}, with a list of sources",))
    reader = _DiscoveryReader()
    types = tuple(reader.sources(value[_LIST]))
    if reader.problems:
        return DiscoveryConfig(problems=tuple(reader.problems))
    return DiscoveryConfig(types, notes=tuple(reader.notes))


class _DiscoveryReader:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []

    def sources(self, rows: Any) -> Iterator[TopologyType]:
        """The types of the enabled sources."""
        if not isinstance(rows, list | None):
            self.problems.append(f"{_LIST}: expected a list of sources")
            return
        found = False
        for number, row in enumerate(rows or ()):
            place = f"{_LIST}[{number}]"
            try:
                source = msgspec.convert(row, _DiscoverySource)
            except msgspec.ValidationError as error:
                self.problems.append(str(field_problem(error, row).within(place)))
                continue
            if not source.enabled:
                continue
            if source.source != LABEL_SOURCE:
                shown = quoted(source.source)
                self.problems.append(f"{place}.source: {shown} is not supported; accepted: {LABEL_SOURCE}")
            elif found:
                self.problems.append(f"{place}.source: source {LABEL_SOURCE} is enabled above; add the types there")
            else:
                found = True
                if source.interval or source.credentials:
                    self.notes.append(f"{place}: interval and credentials have no effect on source {LABEL_SOURCE}")
                yield from self._types(source.config or {}, f"{place}.config")

    def _types(self, config: Mapping[str, Any], place: str) -> Iterator[TopologyType]:
        rows = config.get(_TYPES)
        if set(config) != {_TYPES} or not isinstance(rows, dict) or not rows:
            self.problems.append(f"{place}: expected one key, {_TYPES}, with a list of labels per type")
            return
        if len(rows) > _MOST_TYPES:
            self.problems.append(f"{place}.{_TYPES}: {len(rows)} types; at most {_MOST_TYPES} are accepted")
            return
        taken: dict[str, str] = {}
        for written, entries in rows.items():
            at = f"{place}.{_TYPES}.{written}"
            name = re.sub(r"[^-.a-z0-9]", "-", written.lower())
            if len(written) > _MOST_CHARACTERS or not _PLAIN.fullmatch(name):
                form = f"1 to {_MOST_CHARACTERS} letters, digits, '-' and '.', the first and the last alphanumeric"
                self.problems.append(f"{at}: {quoted(written)} is no name of a type; accepted: {form}")
            elif re.search(r"-tier\d+$", name):
                self.problems.append(f"{at}: ends like a tier, which is part of the names of HyperNodes")
            elif name in taken:
                self.problems.append(f"{at}: has the same HyperNodes as type {quoted(taken[name])}")
            taken[name] = written
            yield TopologyType(name, tuple(self._labels(entries, at)))

    def _labels(self, entries: Any, place: str) -> Iterator[str]:
        """The labels of the domains, from tier 1 up."""
        try:
            labels = [each.node_label for each in msgspec.convert(entries, list[_NodeLabel])]
        except msgspec.ValidationError as error:
            self.problems.append(f"{field_problem(error, entries).within(place)}; accepted: a list of nodeLabel")
            return
        if not 2 <= len(labels) <= _MOST_LABELS:
            self.problems.append(
                f"{place}: {len(labels)} labels; accepted: 1 to {_MOST_LABELS - 1} labels of domains, the widest "
                f"first, and below them {HOST_LABEL}"
            )
            return
        for number, label in enumerate(labels):
            problem = label_key_problem(label)
            if problem is None and label in labels[:number]:
                problem = f"label {label} is listed above"
            if problem is not None:
                self.problems.append(f"{place}[{number}].nodeLabel: {problem}")
        if labels[-1] != HOST_LABEL:
            self.notes.append(
                f"{place}: the last label, {labels[-1]}, stands for the node and makes no HyperNodes; add {HOST_LABEL} "
                "below it for HyperNodes of its values"
            )
        yield from reversed(labels[:-1])
