"""Replays every revision of a cluster and checks properties that no fault may break, without the product's code.

| Property | Checked |
|---|---|
| the pods of a node fit its allocatable, all resources | at each bind |
| the pods of a queue fit its quota, by the card of the node they are bound to | at each bind |
| the card of the node is one that the pod names | at each bind |
| a pod is bound once: its node never changes, and one bind request succeeds per pod | at each change; audit log |
| binds are made by the holder of the Lease | at each bind, with the audit log |
| a gang with bound members had its minimum at some time | at the end |
| a gang that never had its minimum has bound members for the timeout of half gangs at most | at each change of a pod |
| the preemptor of an eviction is bound, deleted, or disturbed by a later fault | at the end |

Queue and card of a bound pod are those of its bind: later edits of the pod or its PodGroup change neither. A pod counts
until it is finished or deleted, also while it terminates. A bind is compared with the largest limit of the last
`grace` seconds, and a deleted PodGroup keeps its queue as long: a decision may precede the change.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

from tests.controlplane.audit import Audited
from tests.controlplane.manifests import Manifest
from tests.e2e.history import Change, Moment

_SUFFIXES: Final[Mapping[str, Decimal]] = {
    **{letter: Decimal(1000) ** power for power, letter in enumerate(["n", "u", "m", "", *"kMGTPE"], start=-3)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_QUANTITY: Final = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([numkKMGTPE]?i?)")

_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_GROUP_KEYS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_EVICTED: Final = re.compile(r"evicted.* for (?P<pod>\S+/\S+) of queue (?P<queue>\S+)", re.DOTALL)
_GPU: Final = "nvidia.com/gpu"
#: Seconds in which a change of nodes or quotas excuses a wasted eviction.
_DISTURBED: Final = 30.0
#: Thousandths of cores, bytes, devices.
Amounts: TypeAlias = Counter[str]


class Violation(NamedTuple):
    """One broken property."""

    revision: int
    text: str


class BoundPod(NamedTuple):
    """Facts of a pod, fixed when it is bound."""

    name: str
    node: str
    queue: str
    #: "" without cards.
    card: str
    cards: int
    request: Amounts


class EvictionSeen(NamedTuple):
    """One eviction with a preemptor."""

    revision: int
    received_at: float
    victim: str
    preemptor: str
    #: uid of the preemptor, "" if it did not exist any more.
    uid: str


class BindSeen(NamedTuple):
    """One bind, and the holder of the Lease at its revision."""

    revision: int
    namespace: str
    name: str
    holder: str


class LimitHistory:
    """Values of limits over time."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        #: Key to (since, value), the oldest first.
        self._values: dict[str, list[tuple[float, Mapping[str, int] | None]]] = {}

    def set(self, key: str, now: float, value: Mapping[str, int] | None) -> None:
        """`value` None: the object is deleted."""
        found = self._values.setdefault(key, [])
        found.append((now, value))
        while len(found) > 1 and found[1][0] < now - self._grace:
            del found[0]

    def largest(self, key: str, now: float) -> Mapping[str, int] | None:
        """The largest limits of the last `grace` seconds; None without the object in that time."""
        found = self._values.get(key, [])
        recent = [
            value
            for index, (_, value) in enumerate(found)
            if index + 1 == len(found) or found[index + 1][0] >= now - self._grace
        ]
        values = [value for value in recent if value is not None]
        if not values:
            return None
        return {name: max(value.get(name, 0) for value in values) for name in set().union(*values)}


class BoundPods:
    """The pods on nodes, by uid, and those that a check of one node, queue or gang needs."""

    def __init__(self) -> None:
        self._pods: dict[str, BoundPod] = {}
        self._of: defaultdict[tuple[str, ...], dict[str, BoundPod]] = defaultdict(dict)
        #: uid to the gang that it counts for now, and whether it terminates.
        self._gangs: dict[str, tuple[str, bool]] = {}
        self.members: Counter[str] = Counter()
        self.staying: Counter[str] = Counter()

    def add(self, uid: str, pod: BoundPod) -> None:
        self._pods[uid] = pod
        for key in self._keys(pod):
            self._of[key][uid] = pod

    def drop(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        for key in self._keys(pod) if pod is not None else ():
            del self._of[key][uid]

    def count(self, uid: str, pod: Manifest | None) -> set[str]:
        """Counts a pod for its gang as it is now; the gangs whose counts may have changed."""
        before = self._gangs.pop(uid, None)
        if before is not None:
            self.members[before[0]] -= 1
            self.staying[before[0]] -= not before[1]
        if pod is not None and uid in self._pods:
            now = self._gangs[uid] = _group_of(pod), "deletionTimestamp" in pod["metadata"]
            self.members[now[0]] += 1
            self.staying[now[0]] += not now[1]
        return {each[0] for each in (before, self._gangs.get(uid)) if each is not None}

    def on_node(self, name: str) -> list[BoundPod]:
        return [*self._of["node", name].values()]

    def charged(self, queue: str, card: str) -> list[BoundPod]:
        """Those with this card in a queue."""
        return [*self._of["queue", queue, card].values()]

    @staticmethod
    def _keys(pod: BoundPod) -> tuple[tuple[str, ...], ...]:
        return ("node", pod.node), ("queue", pod.queue, pod.card)


class Oracle:
    """Apply all moments in order of their revision, then `finish`."""

    def __init__(self, *, grace: float = 0.0, half_gang: float = math.inf) -> None:
        """`grace`: seconds, at least the longest pause of a watch where limits change.

        `half_gang`: seconds, the timeout of half gangs, with the time that faults and grace periods may add.
        """
        self.violations: list[Violation] = []
        self.binds: list[BindSeen] = []
        self.evictions: list[EvictionSeen] = []
        self._bound = BoundPods()
        self._pods: dict[str, Manifest] = {}
        self._uids: dict[str, str] = {}
        self._nodes: dict[str, Manifest] = {}
        self._node_limits = LimitHistory(grace)
        self._quotas = LimitHistory(grace)
        self._groups: dict[str, Manifest] = {}
        #: Deleted PodGroups with the time of their deletion.
        self._deleted_groups: dict[str, tuple[float, Manifest]] = {}
        self._grace = grace
        #: By uid of a PodGroup: the largest number of bound members, and its minimum.
        self._most: Counter[str] = Counter()
        self._half_gang = half_gang
        #: Name of a PodGroup to its uid, and seconds since which it has bound members and never had its minimum.
        self._half_since: dict[str, tuple[str, float]] = {}
        self._evicted: set[str] = set()
        #: Seconds at which nodes, queues or the leader changed.
        self._changes: list[float] = []
        self._ever_bound: set[str] = set()
        self._holder = ""

    # --- replay -----------------------------------------------------------------------------------------------------

    def apply(self, moment: Moment) -> None:
        """Apply the changes of one revision."""
        others = {"nodes": self._node, "queues": self._queue, "leases": self._lease, "podgroups": self._group}
        placed = []
        for change in moment.changes:
            if change.kind != "pods":
                others[change.kind](change, moment.received_at)
            elif self._pod(change, moment):
                placed.append(change.item)
        for pod in placed:
            self._check_bind(pod, moment)
        touched = {_name(change.item) for change in moment.changes if change.kind == "podgroups"}
        for change in moment.changes:
            if change.kind == "pods":
                touched |= self._bound.count(change.item["metadata"]["uid"], change.after)
        for name in touched & self._groups.keys():
            uid = self._groups[name]["metadata"]["uid"]
            self._most[uid] = max(self._most[uid], self._bound.members[name])
        if any(change.kind in {"pods", "podgroups"} for change in moment.changes):
            self._check_halves(moment, touched)

    def _check_halves(self, moment: Moment, touched: set[str]) -> None:
        """Checks gangs that changed, or were partial. Terminating pods do not count: their kubelet ends them."""
        before, self._half_since = self._half_since, {}
        for name in sorted((touched | before.keys()) & self._groups.keys()):
            group = self._groups[name]
            uid, minimum = group["metadata"]["uid"], group["spec"].get("minMember", 1)
            known, since = before.get(name, ("", 0.0))
            if known != uid:
                since = moment.received_at
            if moment.received_at - since > self._half_gang:
                text = f"gang {name} had bound members for {moment.received_at - since:.0f} s without its minimum"
                self._violated(moment.revision, text)
                since = math.inf  # once
            if self._bound.staying[name] and self._most[uid] < minimum:
                self._half_since[name] = uid, since

    def _node(self, change: Change, now: float) -> None:
        name = change.item["metadata"]["name"]
        before = self._nodes.pop(name, None)
        if change.after is not None:
            self._nodes[name] = change.after
        allocatable = None if change.after is None else amounts(change.after["status"].get("allocatable", {}))
        self._node_limits.set(name, now, allocatable)
        if before is None or change.after is None or _capacity(before) != _capacity(change.after):
            self._changes.append(now)

    def _queue(self, change: Change, now: float) -> None:
        old, new = _quota(change.before), _quota(change.after)
        if change.before is None or old != new:
            self._changes.append(now)
            self._quotas.set(change.item["metadata"]["name"], now, new if change.after is not None else None)

    def _lease(self, change: Change, now: float) -> None:
        if change.after is not None and change.after["metadata"]["name"] == "capcard-sched":
            holder = change.after["spec"].get("holderIdentity") or ""
            if holder != self._holder:
                self._changes.append(now)
            self._holder = holder

    def _group(self, change: Change, now: float) -> None:
        name = _name(change.item)
        if change.after is None:
            self._groups.pop(name, None)
            self._deleted_groups[name] = now, change.item
        else:
            self._groups[name] = change.after

    def _pod(self, change: Change, moment: Moment) -> bool:
        """Record a pod; whether it was bound in this change."""
        item, after, uid = change.item, change.after, change.item["metadata"]["uid"]
        was, node = _node_of(change.before), _node_of(after)
        if was and after is not None and node != was:
            self._violated(moment.revision, f"pod {_name(item)} moved from node {was} to {node or 'none'}")
        if after is None or "deletionTimestamp" in after["metadata"]:
            self._note_eviction(item, moment)
        if after is None:
            self._pods.pop(uid, None)
            self._bound.drop(uid)
            return False
        self._pods[uid] = after
        self._uids[_name(after)] = uid
        if after.get("status", {}).get("phase") in _FINISHED:
            self._bound.drop(uid)
            return False
        return bool(node and not was)

    def _check_bind(self, pod: Manifest, moment: Moment) -> None:
        uid, node_name = pod["metadata"]["uid"], _node_of(pod)
        self._ever_bound.add(uid)
        self.binds.append(
            BindSeen(moment.revision, pod["metadata"]["namespace"], pod["metadata"]["name"], self._holder)
        )
        queue = self._queue_of(pod, moment.received_at)
        request = request_of(pod)
        node = self._nodes.get(node_name)
        card = _card(node) if node is not None and request.get(_GPU) else ""
        cards = math.ceil(request.get(_GPU, 0) / 1000)
        self._bound.add(uid, BoundPod(_name(pod), node_name, queue, card, cards, request))
        self._check_node(node_name, moment)
        if card:
            self._check_quota(queue, card, moment)
        named = [each.strip() for each in _annotations(pod).get("volcano.sh/card.name", "").split("|")]
        if node is not None and any(named) and _card(node) not in named and not _claimed(pod):
            self._violated(moment.revision, f"pod {_name(pod)} is on node {node_name}, which lacks its card")

    def _check_node(self, name: str, moment: Moment) -> None:
        limits = self._node_limits.largest(name, moment.received_at)
        if limits is None:
            self._violated(moment.revision, f"bind to node {name}, which does not exist")
            return
        here = self._bound.on_node(name)
        used: Amounts = Counter({"pods": 1000 * len(here)})
        for bound in here:
            used.update(bound.request)
        for resource, amount in sorted(used.items()):
            if amount > limits.get(resource, 0):
                pods = ", ".join(sorted(bound.name for bound in here))
                self._violated(
                    moment.revision,
                    f"node {name} has {amount / 1000:g} of {limits.get(resource, 0) / 1000:g} {resource}: {pods}",
                )

    def _check_quota(self, queue: str, card: str, moment: Moment) -> None:
        quota = self._quotas.largest(queue, moment.received_at) or {}
        charged = self._bound.charged(queue, card)
        total = sum(bound.cards for bound in charged)
        if total > quota.get(card, 0):
            pods = ", ".join(sorted(bound.name for bound in charged))
            self._violated(moment.revision, f"queue {queue} has {total} of {quota.get(card, 0)} {card}: {pods}")

    def _note_eviction(self, pod: Manifest, moment: Moment) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._evicted:
            return
        for condition in pod.get("status", {}).get("conditions") or ():
            matched = _EVICTED.search(condition.get("message") or "")
            if matched is not None:
                self._evicted.add(uid)
                preemptor = matched["pod"]
                found = self._uids.get(preemptor, "")
                self.evictions.append(EvictionSeen(moment.revision, moment.received_at, _name(pod), preemptor, found))
                return

    # --- end --------------------------------------------------------------------------------------------------------

    def incomplete(self) -> list[str]:
        """Gangs with bound members that never had their minimum."""
        bound = self._bound.members
        return [
            f"gang {name} has {bound[name]} bound members, at most {self._most[group['metadata']['uid']]} at a time, "
            f"of {group['spec'].get('minMember', 1)}"
            for name, group in sorted(self._groups.items())
            if bound[name] and self._most[group["metadata"]["uid"]] < group["spec"].get("minMember", 1)
        ]

    def unserved(self) -> list[EvictionSeen]:
        """Evictions whose preemptor is still pending."""
        return [
            eviction
            for eviction in self.evictions
            if eviction.uid in self._pods and eviction.uid not in self._ever_bound
        ]

    def finish(
        self,
        audit: Iterable[Audited],
        identities: Mapping[str, str],
        namespaces: Collection[str],
        *,
        gangs: bool = True,
    ) -> None:
        """Check what needs the whole history. `identities`: holder of the Lease to user; `gangs`: all have ended."""
        for text in self.incomplete() if gangs else ():
            self._violated(0, text)
        for eviction in self.unserved():
            disturbed = any(eviction.received_at - 1 <= at <= eviction.received_at + _DISTURBED for at in self._changes)
            if not disturbed:
                self._violated(
                    eviction.revision, f"pod {eviction.victim} evicted for {eviction.preemptor}, which is pending"
                )
        users: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for row in audit:
            if row.subresource == "binding" and row.code == 201 and row.namespace in namespaces:
                users[row.namespace, row.name].append(row.user)
        pods = Counter((bind.namespace, bind.name) for bind in self.binds)
        for bind in self.binds:
            made, seen = users.get((bind.namespace, bind.name), []), pods[bind.namespace, bind.name]
            if len(made) > seen:
                text = f"pod {bind.namespace}/{bind.name}: {len(made)} binds succeeded for {seen} pods of that name"
                self._violated(bind.revision, text)
            holder = identities.get(bind.holder, "")
            if len(made) == 1 and holder and made[0] != holder:
                self._violated(
                    bind.revision, f"pod {bind.namespace}/{bind.name} bound by {made[0]}, the leader is {holder}"
                )

    def _violated(self, revision: int, text: str) -> None:
        self.violations.append(Violation(revision, text))

    def _queue_of(self, pod: Manifest, now: float) -> str:
        group = self._groups.get(_group_of(pod))
        deleted_at, deleted = self._deleted_groups.get(_group_of(pod), (0.0, None))
        if group is None and now - deleted_at <= self._grace:
            group = deleted  # the decision may precede the deletion
        if group is not None:
            return str(group["spec"].get("queue") or "default")
        return str(_annotations(pod).get("scheduling.volcano.sh/queue-name") or "default")


def amounts(quantities: Mapping[str, Any]) -> Amounts:
    """Quantities as whole thousandths, rounded up."""
    found: Amounts = Counter()
    for resource, text in quantities.items():
        matched = _QUANTITY.fullmatch(str(text))
        assert matched is not None, f"{resource}: {text!r}"
        found[resource] = math.ceil(Decimal(matched[1]) * _SUFFIXES[matched[2]] * 1000)
    return found


def request_of(pod: Manifest) -> Amounts:
    """A pod's usage of its node: containers and sidecars together, or the largest init step, and the overhead.

    Extended resources for which the pod has a claim are devices of that.
    """
    spec = pod["spec"]
    together: Amounts = Counter()
    largest: Amounts = Counter()
    for container in spec.get("initContainers") or []:
        step = _requested(container)
        if container.get("restartPolicy") == "Always":
            together.update(step)
            step = Counter()
        largest |= step + together
    for container in spec["containers"]:
        together.update(_requested(container))
    found = (together | largest) + amounts(spec.get("overhead") or {})
    return Counter({resource: amount for resource, amount in found.items() if resource not in _claimed(pod)})


def _claimed(pod: Manifest) -> set[str]:
    """The extended resources of a pod that devices of its claim provide."""
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return {each["resourceName"] for each in extended.get("requestMappings") or ()}


def _requested(container: Manifest) -> Amounts:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _annotations(item: Manifest) -> Mapping[str, str]:
    found: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return found


def _name(item: Manifest) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def _node_of(pod: Manifest | None) -> str:
    return str(pod["spec"].get("nodeName") or "") if pod is not None else ""


def _group_of(pod: Manifest) -> str:
    group = next((_annotations(pod)[key] for key in _GROUP_KEYS if _annotations(pod).get(key)), "")
    return f"{pod['metadata']['namespace']}/{group}" if group else ""


def _card(node: Manifest) -> str:
    return str((node["metadata"].get("labels") or {}).get("nvidia.com/gpu.product", ""))


def _capacity(node: Manifest) -> tuple[object, ...]:
    spec = node["spec"]
    return node["status"].get("allocatable"), spec.get("unschedulable", False), spec.get("taints")


def _quota(queue: Manifest | None) -> dict[str, int]:
    text = "{}" if queue is None else _annotations(queue).get("volcano.sh/card.quota", "{}")
    found: dict[str, int] = json.loads(text)
    return found
