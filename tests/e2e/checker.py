"""An independent check of the scheduler's writes: it replays the history of objects and uses none of our code.

| Claim | When |
|---|---|
| no node holds more than its allocatable: cpu, memory, pods, devices, whatever a pod names | whenever a pod is bound |
| no queue holds more cards of a model than its quota | whenever a pod is bound |
| a pod that names cards is on a node that has one of them | whenever a pod is bound |
| no gang that never was complete has members bound | at the end: while bindings are on their way some are there first |
| no pod is bound twice: its node never changes, and no more bindings were answered 201 than pods were bound | always |
| the scheduler's cache is the API server's state | at the end, by its own comparison (SIGUSR2) |

A pod holds its node's resources until it ends, and its queue's quota until it is being deleted: a lower bound of what
the scheduler holds. A node or quota that shrinks below its present use is no violation.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

from tests.controlplane.cluster import Manifest
from tests.controlplane.controlplane import Audited, ControlPlane
from tests.e2e.daemons import Daemon
from tests.e2e.history import Change, History, Moment

_SUFFIXES: Final[Mapping[str, Decimal]] = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_QUANTITY: Final = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([numkKMGTPE]?i?)")
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_GROUP_KEYS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_COMPARED: Final = "cache compared with the API server"

#: Thousandths of cores, bytes, devices.
Amounts: TypeAlias = Counter[str]


class Figures(NamedTuple):
    """Findings of a check."""

    moments: int
    gaps: int
    bound: int
    #: Longest time that a gang had some members bound and others not, in seconds between two observations.
    longest_incomplete: float


class ViolationError(AssertionError):
    """Violations."""


async def prove(
    history: History, control_plane: ControlPlane, *daemons: Daemon, quotas: bool = True, gangs: bool = True
) -> Figures:
    """Check all claims. `quotas`: the card quotas counted; `gangs`: nothing is to be waited for any more.

    Raises ViolationError with a line for each.
    """
    await history.caught_up()
    moments = history.moments
    replay = Replay(quotas=quotas)
    for moment in moments:
        replay.take_in(moment)
    found = [*replay.violations, *bound_too_often(moments, control_plane.audit())]
    if gangs:
        found += replay.incomplete()
    for daemon in daemons:
        found += await differences(daemon)
    if found:
        raise ViolationError("\n".join(found))
    return Figures(len(moments), history.gaps, replay.bound, replay.longest_incomplete)


async def differences(daemon: Daemon) -> list[str]:
    """Differences between a daemon's cache and the API server, when its watches are current and its writes are done.

    It counts statuses, too, which are written with a delay.
    """
    for _ in range(2):  # gauges are set every second: a watch that was cut a moment ago is not known to be yet
        await _at_rest(daemon)
        compared, before = len(daemon.lines(_COMPARED)), len(daemon.lines("cache differs"))
        daemon.signal(signal.SIGUSR2)
        answer = await daemon.logged(_COMPARED, times=compared + 1, within=30)
        difference_lines = [str(line["difference"]) for line in daemon.lines("cache differs")[before:]]
        assert len(difference_lines) == min(100, answer["differences"])
        if not difference_lines:
            break
    return [f"{daemon.log_path.stem}: cache differs: {line}" for line in difference_lines]


async def _at_rest(daemon: Daemon, *, within: float = 40.0) -> None:
    """Wait until a daemon watches every kind and has nothing left to write but events."""
    deadline = time.monotonic() + within
    while True:
        age = await daemon.metric("volcano_cache_age_seconds")
        waiting = [await daemon.metric("volcano_api_queue_depth", lane=lane) for lane in ("bind", "evict", "status")]
        if not (age or any(waiting)):
            return
        assert time.monotonic() < deadline, (
            f"{daemon.log_path.stem} is not at rest after {within:g} s: "
            f"a watch is closed for {age:g} s, {waiting} bindings, evictions and statuses wait"
        )
        await asyncio.sleep(0.1)


def bound_too_often(moments: Sequence[Moment], audit: Iterable[Audited]) -> list[str]:
    """Pods whose node changed, and names that were bound more often than there were pods of them that got a node.

    A lost line of the audit log (of a server that was killed) makes it miss nothing else.
    """
    found = []
    bound: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for change in _changes(moments, "pods"):
        was, now = _node_of(change.before), _node_of(change.after)
        item = change.after or change.before
        assert item is not None
        if was and now != was and change.after is not None:
            found.append(f"pod {_name(item)} went from node {was} to {now or 'none'}")
        if was or now:
            bound[item["metadata"]["namespace"], item["metadata"]["name"]].add(item["metadata"]["uid"])
    namespaces = {change.after["metadata"]["namespace"] for change in _changes(moments, "pods") if change.after}
    answers = Counter(
        (row.namespace, row.name)
        for row in audit
        if row.subresource == "binding" and row.code == 201 and row.namespace in namespaces
    )
    for pod, count in sorted(answers.items()):
        if count > len(bound[pod]):
            found.append(f"pod {'/'.join(pod)}: {count} bindings were accepted for {len(bound[pod])} pods of that name")
    return found


class Replay:
    """The state of the cluster, moment by moment, and what was wrong in it."""

    def __init__(self, *, quotas: bool = True) -> None:
        self.violations: list[str] = []
        self.bound = 0
        self.longest_incomplete = 0.0
        self._quotas = quotas
        self._live: dict[str, dict[str, Manifest]] = defaultdict(dict)
        #: By uid of PodGroup: most members that were bound at a time, and since when some but never enough were.
        self._most: Counter[str] = Counter()
        self._incomplete_since: dict[str, float] = {}

    def take_in(self, moment: Moment) -> None:
        """Apply a moment and look at what was bound in it."""
        placed = []
        for change in moment.changes:
            item = change.after or change.before
            assert item is not None
            key = item["metadata"]["uid"] if change.kind == "pods" else _name(item)
            if change.after is None:
                self._live[change.kind].pop(key, None)
            else:
                self._live[change.kind][key] = change.after
            if change.kind == "pods" and _node_of(change.after) and not _node_of(change.before):
                placed.append(item)
        self.bound += len(placed)
        for node in sorted({_node_of(pod) for pod in placed}):
            self._check_node(node, moment.revision)
        if self._quotas:
            for queue in sorted({self._queue_of(pod) for pod in placed if _cards_of(pod)}):
                self._check_queue(queue, moment.revision)
        if any(change.kind in {"pods", "podgroups"} for change in moment.changes):
            self._note_gangs(moment.received_at)

    # --- nodes and queues -------------------------------------------------------------------------------------------

    def _check_node(self, name: str, revision: int) -> None:
        node = self._live["nodes"].get(name)
        if node is None:
            self.violations.append(f"revision {revision}: a pod was bound to node {name}, which is not there")
            return
        here = [pod for pod in self._live["pods"].values() if _node_of(pod) == name and _runs(pod)]
        offered = amounts(node["status"].get("allocatable", {}))
        used: Amounts = Counter({"pods": 1000 * len(here)})
        for pod in here:
            used.update(request_of(pod))
            if _cards_of(pod) and card_on(pod, node) is None:
                self.violations.append(f"revision {revision}: pod {_name(pod)} is on node {name}, which lacks its card")
        for resource in sorted(used):
            if used[resource] > offered[resource]:
                held = f"{used[resource] / 1000:g} of {offered[resource] / 1000:g} {resource}"
                pods = ", ".join(sorted(map(_name, here)))
                self.violations.append(f"revision {revision}: node {name} holds {held}: {pods}")

    def _check_queue(self, name: str, revision: int) -> None:
        queue = self._live["queues"].get(name)
        notes = queue["metadata"].get("annotations", {}) if queue is not None else {}
        quota: dict[str, int] = json.loads(notes.get("volcano.sh/card.quota") or "{}")
        held: Counter[str] = Counter()
        for pod in self._live["pods"].values():
            node = self._live["nodes"].get(_node_of(pod))
            if node is None or not _runs(pod) or "deletionTimestamp" in pod["metadata"] or not _cards_of(pod):
                continue
            landed = card_on(pod, node)
            if landed is not None and self._queue_of(pod) == name:
                card, resource = landed
                held[card] += math.ceil(request_of(pod)[resource] / 1000)
        for card in sorted(held):
            if held[card] > quota.get(card, 0):
                self.violations.append(
                    f"revision {revision}: queue {name} holds {held[card]} of {quota.get(card, 0)} cards {card}"
                )

    def _queue_of(self, pod: Manifest) -> str:
        group = self._live["podgroups"].get(_group_of(pod))
        if group is not None:
            return str(group["spec"].get("queue") or "default")
        return str(_notes(pod).get("scheduling.volcano.sh/queue-name") or "default")

    # --- gangs ------------------------------------------------------------------------------------------------------

    def _note_gangs(self, now: float) -> None:
        bound = self._bound_by_group()
        for name, group in self._live["podgroups"].items():
            uid = group["metadata"]["uid"]
            self._most[uid] = max(self._most[uid], bound[name])
            if bound[name] > 0 and self._most[uid] < group["spec"].get("minMember", 1):
                since = self._incomplete_since.setdefault(uid, now)
                self.longest_incomplete = max(self.longest_incomplete, now - since)
            elif uid in self._incomplete_since:
                self.longest_incomplete = max(self.longest_incomplete, now - self._incomplete_since.pop(uid))

    def _bound_by_group(self) -> Counter[str]:
        return Counter(_group_of(pod) for pod in self._live["pods"].values() if _node_of(pod))

    def incomplete(self) -> list[str]:
        """Gangs with members bound of which there never were enough."""
        bound = self._bound_by_group()
        return [
            f"gang {name} has {bound[name]} members bound and never had its {group['spec'].get('minMember', 1)}"
            for name, group in sorted(self._live["podgroups"].items())
            if bound[name] > 0 and self._most[group["metadata"]["uid"]] < group["spec"].get("minMember", 1)
        ]


# --- pods, nodes and their amounts ------------------------------------------------------------------------------------


def amounts(quantities: Mapping[str, Any]) -> Amounts:
    """Quantities as whole thousandths, rounded up."""
    found: Amounts = Counter()
    for resource, text in quantities.items():
        matched = _QUANTITY.fullmatch(str(text))
        assert matched is not None, f"{resource}: {text!r}"
        found[resource] = math.ceil(Decimal(matched[1]) * _SUFFIXES[matched[2]] * 1000)
    return found


def request_of(pod: Manifest) -> Amounts:
    """A pod's usage of its node: containers and sidecars together, or the largest init step, and the overhead."""
    spec = pod["spec"]
    together: Amounts = Counter()
    largest: Amounts = Counter()
    for container in spec.get("initContainers") or []:
        step = _requested(container)
        if container.get("restartPolicy") == "Always":
            together.update(step)
            step = Counter()
        for resource in {*step, *together}:
            largest[resource] = max(largest[resource], step[resource] + together[resource])
    for container in spec["containers"]:
        together.update(_requested(container))
    total: Amounts = Counter({name: max(together[name], largest[name]) for name in {*together, *largest}})
    total.update(amounts(spec.get("overhead") or {}))
    return total


def _requested(container: Manifest) -> Amounts:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def card_on(pod: Manifest, node: Manifest) -> tuple[str, str] | None:
    """The card a pod has on a node, and the resource it is counted by; None when the node has none that it accepts.

    Of several that the node has it is the one written on the pod, else the first of the pod's own order.
    """
    offered = _cards_of_node(node)
    wanted = [card for card in _cards_of(pod) if card in offered]
    assigned = _notes(pod).get("volcano.sh/card.assigned", "")
    if assigned in wanted:
        return assigned, offered[assigned]
    return (wanted[0], offered[wanted[0]]) if wanted else None


def _cards_of_node(node: Manifest) -> dict[str, str]:
    """Card to resource, by the labels of a node and what it offers."""
    found: dict[str, str] = {}
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    offered = node["status"].get("allocatable", {})
    for key, product in labels.items():
        if not key.endswith(".product") or f"{key.removesuffix('.product')}.memory" not in labels:
            continue
        base = key.removesuffix(".product")
        found[product] = base
        if not base.startswith("nvidia.com/"):
            continue
        for resource in offered:
            if resource.startswith("nvidia.com/mig-"):
                found[f"{product}/{resource.removeprefix('nvidia.com/')}-mixed"] = resource
        if "nvidia.com/gpu.shared" in offered:
            gib = int(int(labels[f"{base}.memory"]) / 1024 + 0.5)
            found[f"{product}/mps-{gib}g*1/{labels.get('nvidia.com/gpu.replicas', '')}"] = "nvidia.com/gpu.shared"
    return found


def _cards_of(pod: Manifest) -> list[str]:
    notes = _notes(pod)
    named = notes.get("volcano.sh/card.name") or notes.get("volcano.sh/card.card") or ""
    return [card.strip() for card in named.split("|") if card.strip()]


def _group_of(pod: Manifest) -> str:
    notes = _notes(pod)
    group = next((notes[key] for key in _GROUP_KEYS if notes.get(key)), "")
    return f"{pod['metadata']['namespace']}/{group}" if group else ""


def _notes(item: Manifest) -> Mapping[str, str]:
    notes: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return notes


def _node_of(pod: Manifest | None) -> str:
    return str(pod["spec"].get("nodeName") or "") if pod is not None else ""


def _runs(pod: Manifest) -> bool:
    return pod.get("status", {}).get("phase") not in _ENDED


def _name(item: Manifest) -> str:
    meta = item["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def _changes(moments: Iterable[Moment], kind: str) -> Iterator[Change]:
    for moment in moments:
        for change in moment.changes:
            if change.kind == kind:
                yield change
