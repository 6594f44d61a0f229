"""The HyperNode controller: HyperNodes from node labels.

Node labels are grouped into domains, which form trees: the domains of a tier are the values of one label. HyperNodes
that the controller did not make are never changed.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from capcard_sched.controllers.objects import HYPER_NODE, NODE, Key, is_terminating, labels_of, merge_diff, meta, spec
from capcard_sched.controllers.view import Create, Delete, Patch, Result, delete, event_on
from capcard_sched.model.annotations import DISCOVERED_FROM
from capcard_sched.model.hyper_nodes import HyperNodeObject, hyper_node_facts
from capcard_sched.model.kinds import KIND_BY_NAME
from capcard_sched.model.quoting import plural
from capcard_sched.model.topology_discovery import LABEL_SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.controllers.view import Failure, View, Write
    from capcard_sched.model.hyper_nodes import Member
    from capcard_sched.model.topology_discovery import TopologyType

#: The one key: a change of a label may move members between HyperNodes.
_ALL: Final = Key(HYPER_NODE, "", "*")
#: Hexadecimal digits of a hash in a name. A name without a hash has no dot behind its tier.
_DIGITS: Final = 16
_VALUE: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
#: Names that an event lists.
_MOST_NAMES: Final = 5
#: Highest tier at which a HyperNode of a user keeps its nodes out of the discovery. One above may contain HyperNodes.
_LOWEST_TIER: Final = 1


class TopologyDomain(NamedTuple):
    """A HyperNode as the labels of the nodes make it."""

    name: str
    tier: int
    label: str
    value: str
    #: Names of nodes in tier 1, of HyperNodes above; sorted.
    members: tuple[str, ...]

    def labels(self) -> dict[str, str]:
        return {DISCOVERED_FROM: LABEL_SOURCE, self.label: self.value}

    def spec(self) -> JsonObject:
        """`spec` of the HyperNode."""
        kind = NODE if self.tier == 1 else HYPER_NODE
        members = [{"type": kind, "selector": {"exactMatch": {"name": name}}} for name in self.members]
        return {"tier": self.tier, "tierName": self.label, "members": members}


class TopologyConflict(NamedTuple):
    """A HyperNode or node that the discovery leaves as it is, and the reason."""

    kind: Literal["Node", "HyperNode"]
    name: str
    message: str


class DiscoveredTopology(NamedTuple):
    """The domains by name, tiers ascending, and the conflicts."""

    domains: dict[str, TopologyDomain]
    conflicts: tuple[TopologyConflict, ...]


def discover(
    types: Sequence[TopologyType], nodes: Mapping[str, Mapping[str, str]], hyper_nodes: Iterable[JsonObject]
) -> DiscoveredTopology:
    """The HyperNodes that follow from the labels of nodes (by node name). O(nodes x labels).

    A node without the label of tier 1 is in no domain, and a label counts only where all those below it exist. A value
    below several values of the next label is a domain per each. A node with labels of several types is of the first
    type; one in a HyperNode of a user of tier 0 or 1 is in none.
    """
    own: dict[str, JsonObject] = {}
    foreign: dict[str, JsonObject] = {}
    for obj in hyper_nodes:
        (own if labels_of(obj).get(DISCOVERED_FROM) == LABEL_SOURCE else foreign)[meta(obj)["name"]] = obj
    conflicts = _Conflicts()
    free = conflicts.without_claimed(types, nodes, foreign.values())
    domains: dict[str, TopologyDomain] = {}
    for kind in types:
        chains = {name: chain for name, labels in free.items() if (chain := _chain(kind, labels))}
        for name in chains:
            others = [other.name for other in types if other.name != kind.name and _chain(other, free[name])]
            if others:
                conflicts.add(
                    NODE,
                    name,
                    f"has labels of the network topology types {kind.name} and {others[0]}; "
                    f"it is in the HyperNodes of {kind.name}",
                )
            del free[name]
        for domain in _DomainNames(kind, own).domains(chains):
            domains[domain.name] = domain
            if domain.name in foreign:
                conflicts.add(
                    HYPER_NODE,
                    domain.name,
                    f"is not made by the discovery (label {DISCOVERED_FROM}: {LABEL_SOURCE}) and stays as it is; "
                    f"{domain.label}={domain.value} gets no HyperNode of its own",
                )
    ordered = sorted(domains.values(), key=lambda each: (each.tier, each.name))
    return DiscoveredTopology({each.name: each for each in ordered if each.name not in foreign}, tuple(conflicts.found))


def _chain(kind: TopologyType, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The values of a node from tier 1 up, until one is missing or empty."""
    found: list[str] = []
    for label in kind.labels:
        value = labels.get(label)
        if not value:
            break
        found.append(value)
    return tuple(found)


class _Conflicts:
    def __init__(self) -> None:
        self.found: list[TopologyConflict] = []

    def add(self, kind: Literal["Node", "HyperNode"], name: str, message: str) -> None:
        self.found.append(TopologyConflict(kind, name, message))

    def without_claimed(
        self, types: Sequence[TopologyType], nodes: Mapping[str, Mapping[str, str]], foreign: Iterable[JsonObject]
    ) -> dict[str, Mapping[str, str]]:
        """The nodes that are in no low HyperNode of a user."""
        free = dict(sorted(nodes.items()))
        for obj in sorted(foreign, key=lambda each: str(meta(each)["name"])):
            try:
                facts, _ = hyper_node_facts(msgspec.convert({**obj, "kind": HYPER_NODE}, HyperNodeObject, strict=False))
            except msgspec.ValidationError:  # the scheduler reports it
                continue
            if facts is None or facts.tier > _LOWEST_TIER:
                continue
            members = {name for member in facts.members if member.of == NODE for name in _selected(member, nodes)}
            labeled = [
                name for name in sorted(members & free.keys()) if any(_chain(kind, free[name]) for kind in types)
            ]
            if labeled:
                listed = ", ".join([*labeled[:_MOST_NAMES], *(["..."] if len(labeled) > _MOST_NAMES else [])])
                self.add(
                    HYPER_NODE,
                    facts.name,
                    f"has {plural(len(labeled), 'node')} with labels of the discovery: {listed}; nodes of a HyperNode "
                    f"of tier {_LOWEST_TIER} or below are in no discovered one",
                )
            for name in members:
                free.pop(name, None)
        return free


def _selected(member: Member, nodes: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    if member.name:
        yield from (name for name in (member.name,) if name in nodes)
    else:
        matches = member.matcher()
        yield from (name for name, labels in nodes.items() if matches(name, labels))


class _DomainNames:
    """Domains of one type. A value keeps the HyperNode that a discovery gave it before, Volcano's too."""

    def __init__(self, kind: TopologyType, own: Mapping[str, JsonObject]) -> None:
        self._kind = kind
        self._present: dict[tuple[int, str], str] = {}
        for name in sorted(own, reverse=True):
            labels = labels_of(own[name])
            for tier, label in enumerate(kind.labels, 1):
                if label in labels and name.startswith(self._prefix(tier)):
                    self._present[tier, labels[label]] = name

    def _prefix(self, tier: int) -> str:
        return f"hypernode-{self._kind.name}-tier{tier}-"

    def domains(self, chains: Mapping[str, tuple[str, ...]]) -> Iterator[TopologyDomain]:
        """The domains of the nodes with these values, tier by tier."""
        below: list[tuple[str, tuple[str, ...]]] = list(chains.items())
        for tier, label in enumerate(self._kind.labels, 1):
            groups: dict[str, dict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
            for name, chain in below:
                if chain:
                    groups[chain[0]][chain].append(name)
            below = []
            for value in sorted(groups):
                merged = _extended(groups[value])
                for chain in sorted(merged):
                    name = self._name(tier, value, chain if len(merged) > 1 else ())
                    yield TopologyDomain(name, tier, label, value, tuple(sorted(merged[chain])))
                    below.append((name, chain[1:]))

    def _name(self, tier: int, value: str, chain: tuple[str, ...]) -> str:
        """`chain`: of one of several domains with the value, else empty."""
        if not chain and (present := self._present.get((tier, value))) is not None:
            return present
        if not chain and _VALUE.fullmatch(value):
            return f"{self._prefix(tier)}{value}"
        digest = hashlib.sha256("\0".join(chain or (value,)).encode()).hexdigest()[:_DIGITS]
        readable = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
        return f"{self._prefix(tier)}{readable}.{digest}"


def _extended(groups: Mapping[tuple[str, ...], list[str]]) -> dict[tuple[str, ...], list[str]]:
    """Members by chain; those of a chain without its upper values join the one chain that continues it."""
    longest = [
        chain for chain in groups if not any(other != chain and other[: len(chain)] == chain for other in groups)
    ]
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for chain, members in groups.items():
        heirs = [other for other in longest if other[: len(chain)] == chain]
        found[heirs[0] if len(heirs) == 1 else chain].extend(members)
    return found


class HyperNodeController:
    """Keeps the HyperNodes of the types in line with the labels of the nodes."""

    watches = frozenset({NODE, HYPER_NODE})
    replays = frozenset({NODE, HYPER_NODE})

    def __init__(self, types: Sequence[TopologyType]) -> None:
        self.types = tuple(types)
        self._labels = frozenset(label for kind in self.types for label in kind.labels)
        self._nodes: dict[str, Mapping[str, str]] = {}
        self._hyper_nodes: dict[str, None] = {}
        #: HyperNodes whose last write failed: they are written last.
        self._failed: set[str] = set()
        #: Conflicts with an event.
        self._reported: frozenset[TopologyConflict] = frozenset()

    def keys(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> Iterator[Key]:
        """The one key of all HyperNodes, after a change that counts."""
        obj = new if new is not None else old
        assert obj is not None
        name = meta(obj)["name"]
        if kind == HYPER_NODE:
            if new is None:
                self._hyper_nodes.pop(name, None)
            else:
                self._hyper_nodes[name] = None
            yield _ALL
            return
        before = self._nodes.pop(name, None)
        if new is not None and not is_terminating(new):
            self._nodes[name] = labels_of(new)
        if before != self._nodes.get(name):
            yield _ALL

    def reconcile(self, view: View, key: Key, now: float) -> Result:
        """Create, patch and delete HyperNodes; events for new conflicts."""
        if not self._nodes:
            return Result()  # without the right to list nodes, HyperNodes stay, too
        read = ((name, view.get(HYPER_NODE, "", name)) for name in self._hyper_nodes)
        present = {name: obj for name, obj in read if obj is not None}
        found = discover(self.types, self._nodes, present.values())
        ranked = [
            (name in self._failed, rank, tier, name, write)
            for rank, tier, name, write in _writes(found.domains, present)
        ]
        self._failed.clear()
        events = [write for each in found.conflicts if each not in self._reported for write in _event(view, each)]
        self._reported = frozenset(found.conflicts)
        return Result([*events, *(row[4] for row in sorted(ranked, key=lambda row: row[:4]))])

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        """Nothing; the next pass makes the other writes first."""
        write = failure.write
        if isinstance(write, Create):
            self._failed.add(meta(write.object)["name"])
        elif isinstance(write, Patch | Delete):
            self._failed.add(write.key.name)
        return Result()


def _writes(
    domains: Mapping[str, TopologyDomain], present: Mapping[str, JsonObject]
) -> Iterator[tuple[int, int, str, Write]]:
    """Writes with their rank, tier and name. Members leave one HyperNode before they join another."""
    for name, domain in domains.items():
        at = present.get(name)
        if at is None:
            body = {
                "apiVersion": KIND_BY_NAME[HYPER_NODE].api_version,
                "kind": HYPER_NODE,
                "metadata": {"name": name, "labels": domain.labels()},
                "spec": domain.spec(),
            }
            yield 1, domain.tier, name, Create(body)
        elif not is_terminating(at) and (patch := _patch(at, domain)):
            yield (
                int(not _only_leave(at, domain)),
                domain.tier,
                name,
                Patch(Key(HYPER_NODE, "", name), patch, uid=meta(at)["uid"]),
            )
    for name, at in present.items():
        if labels_of(at).get(DISCOVERED_FROM) == LABEL_SOURCE and name not in domains and not is_terminating(at):
            yield 2, 0, name, delete(HYPER_NODE, at)


def _patch(present: JsonObject, domain: TopologyDomain) -> JsonObject:
    """The merge patch that a HyperNode needs; other labels and fields stay."""
    labels = {key: value for key, value in domain.labels().items() if labels_of(present).get(key) != value}
    changed = merge_diff(spec(present), {**spec(present), **domain.spec()})
    return {**({"metadata": {"labels": labels}} if labels else {}), **({"spec": changed} if changed else {})}


def _only_leave(present: JsonObject, domain: TopologyDomain) -> bool:
    members = spec(present).get("members") or []
    return all(member in members for member in domain.spec()["members"])


def _event(view: View, conflict: TopologyConflict) -> Iterator[Write]:
    obj = view.get(conflict.kind, "", conflict.name)
    if obj is not None:
        yield event_on(conflict.kind, obj, "TopologyConflict", conflict.message, warning=True)
