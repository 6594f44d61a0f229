"""Replays every revision of a cluster with ResourceClaims and checks what no fault may break.

It shares no code with the product.

| Property | Checked |
|---|---|
| a device has one dedicated allocation, or shares, never both | when a claim is allocated |
| the shares of a device fit each of its capacities, and differ | when a claim is allocated |
| the devices in use of a pool fit its counters | when a claim is allocated |
| a device of an allocation was published, and its node is that of the pod | when a claim is allocated; at each bind |
| the claims of a bound pod are allocated and reserved for it until it is finished | at each change of pod or claim |
| the first bound pod of a gang has a minimum of members with all their claims | at each bind |
| the cards of a queue fit its quota, of device plugins and claims together | when they grow |
| an allocated claim has a bound consumer, and a deleted one goes | at the end |

Allocations with `adminAccess` use nothing. A queue without the annotation `volcano.sh/card.quota` has no limit here. A
claim is charged to the queue of its first consumer that is not finished, a pod to that of its bind. Charges are
compared with the largest quota of the last `grace` seconds. A deleted PodGroup keeps its queue as long, and a deleted
pod that had its claims its place in its gang: a decision may precede the change.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from tests.controlplane.manifests import Manifest
from tests.e2e.history import KINDS, Change, Moment
from tests.soak.oracle import LimitHistory, Violation, amounts, request_of

#: The kinds of a history that this oracle reads.
DEVICE_KINDS: Final = (*KINDS, "resourceslices", "resourceclaims")
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_GROUP_KEYS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_GPU: Final = "nvidia.com/gpu"
_NVIDIA: Final = "gpu.nvidia.com"

#: Driver, pool and name of a device.
DeviceId: TypeAlias = tuple[str, str, str]


class Use(NamedTuple):
    """One result of an allocation."""

    claim: str
    #: "" for a dedicated device.
    share: str
    consumed: Mapping[str, int]


class Pools:
    """What drivers published. Devices that are withdrawn stay known: allocations outlive them."""

    def __init__(self) -> None:
        self._slices: dict[str, Manifest] = {}
        self._devices: dict[DeviceId, Manifest] = {}

    def apply(self, change: Change) -> None:
        uid = change.item["metadata"]["uid"]
        self._slices.pop(uid, None)
        if change.after is None:
            return
        self._slices[uid] = change.after
        spec = change.after["spec"]
        for device in spec.get("devices") or ():
            self._devices[spec["driver"], spec["pool"]["name"], device["name"]] = device

    def device(self, key: DeviceId) -> Manifest | None:
        return self._devices.get(key)

    def counters(self, driver: str, pool: str) -> dict[tuple[str, str], int]:
        """Set and name of a counter to its value, in the newest generation of a pool."""
        specs = [each["spec"] for each in self._slices.values()]
        specs = [each for each in specs if (each["driver"], each["pool"]["name"]) == (driver, pool)]
        newest = max((each["pool"]["generation"] for each in specs), default=0)
        found: dict[tuple[str, str], int] = {}
        for spec in specs:
            for counters in (spec.get("sharedCounters") or ()) if spec["pool"]["generation"] == newest else ():
                found.update(
                    ((counters["name"], name), amounts({name: each["value"]})[name])
                    for name, each in counters["counters"].items()
                )
        return found


class Devices:
    """The devices in use."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._uses: defaultdict[DeviceId, list[Use]] = defaultdict(list)
        self._of_pool: defaultdict[tuple[str, str], set[DeviceId]] = defaultdict(set)

    def release(self, claim: str, key: DeviceId) -> None:
        self._uses[key] = [use for use in self._uses[key] if use.claim != claim]
        if not self._uses[key]:
            del self._uses[key]
            self._of_pool[key[:2]].discard(key)

    def use(self, key: DeviceId, use: Use) -> None:
        self._uses[key].append(use)
        self._of_pool[key[:2]].add(key)

    def problems(self, key: DeviceId) -> Iterator[str]:
        """What is wrong with the uses of one device."""
        name, device, uses = "/".join(key), self._pools.device(key), self._uses[key]
        if device is None:
            yield f"device {name} is in no ResourceSlice"
            return
        dedicated = sorted({use.claim for use in uses if not use.share})
        shares = [use for use in uses if use.share]
        if len([use for use in uses if not use.share]) > 1:
            yield f"device {name} has dedicated allocations of {', '.join(dedicated)}"
        if dedicated and shares:
            yield f"device {name} is dedicated to {', '.join(dedicated)} and shared by {_claims(shares)}"
        if bool(shares) != bool(device.get("allowMultipleAllocations")) and not (dedicated and shares):
            yield f"device {name} is {'not ' * bool(shares)}shareable, used by {_claims(uses)}"
        if len({use.share for use in shares}) < len(shares):
            yield f"device {name} has two shares of one ID: {_claims(shares)}"
        for dimension, capacity in (device.get("capacity") or {}).items():
            total = amounts({dimension: capacity["value"]})[dimension]
            used = sum(use.consumed.get(dimension, 0) for use in shares)
            if used > total:
                yield f"device {name} has {used / 1000:g} of {total / 1000:g} {dimension} in use: {_claims(shares)}"

    def overdrawn(self, driver: str, pool: str) -> Iterator[str]:
        """Counters of a pool beyond their value."""
        used: Counter[tuple[str, str]] = Counter()
        for key in self._of_pool[driver, pool]:
            for each in (self._pools.device(key) or {}).get("consumesCounters") or ():
                for name, counter in each["counters"].items():
                    used[each["counterSet"], name] += amounts({name: counter["value"]})[name]
        limits = self._pools.counters(driver, pool) if used else {}
        for (of, name), amount in sorted(used.items()):
            if amount > (limit := limits.get((of, name), 0)):
                yield f"pool {driver}/{pool} has {amount / 1000:g} of {limit / 1000:g} {of}.{name} in use"


class Charges:
    """Thousandths of cards per queue: of pods, by device plugins, and of claims."""

    def __init__(self) -> None:
        self._each: dict[str, tuple[str, Counter[str]]] = {}
        self._total: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def set(self, holder: str, queue: str, cards: Counter[str]) -> bool:
        """Whether the queue has more of a card now."""
        before, had = self._each.pop(holder, ("", Counter[str]()))
        self._total[before].subtract(had)
        if cards:
            self._each[holder] = queue, cards
            self._total[queue].update(cards)
        return any(count > (had[card] if before == queue else 0) for card, count in cards.items())

    def excess(self, queue: str, quota: Mapping[str, int]) -> Iterator[str]:
        """Cards of a queue beyond its quota."""
        used = {card: count for card, count in self._total[queue].items() if count}
        keys = {key: key.split("|") for key in quota}
        for key, cards in sorted(keys.items()):
            if (held := sum(used.get(card.strip(), 0) for card in cards)) > 1000 * quota[key]:
                yield f"queue {queue} has {held / 1000:g} of {quota[key]} {key}"
        named = {card.strip() for cards in keys.values() for card in cards}
        for card in sorted(used.keys() - named):
            yield f"queue {queue} has {used[card] / 1000:g} of 0 {card}"


class DeviceOracle:
    """Apply all moments in order of their revision, then `finish`."""

    def __init__(self, *, grace: float = 0.0) -> None:
        self.violations: list[Violation] = []
        self._grace = grace
        self._now = 0.0
        self._quotas = LimitHistory(grace)
        #: Deleted PodGroups with the time of their deletion.
        self._deleted_groups: dict[str, tuple[float, Manifest]] = {}
        #: uid of a bound pod to the queue of its bind.
        self._queue_at_bind: dict[str, str] = {}
        self._pools = Pools()
        self._devices = Devices(self._pools)
        self._charges = Charges()
        self._objects: dict[str, dict[str, Manifest]] = {kind: {} for kind in ("nodes", "queues", "podgroups")}
        self._pods: dict[str, Manifest] = {}
        self._claims: dict[str, Manifest] = {}
        #: Name of a claim to the uids of pods that use it.
        self._users: defaultdict[str, set[str]] = defaultdict(set)
        self._members: defaultdict[str, set[str]] = defaultdict(set)
        #: uid of a pod that is gone to the time when it last had its claims: its end, or a later reservation.
        self._gone: dict[str, float] = {}
        #: uids of PodGroups with a member that was bound.
        self._begun: set[str] = set()
        #: Numbers of allocations and of devices in them.
        self.totals: Counter[str] = Counter()

    # --- replay -----------------------------------------------------------------------------------------------------

    def apply(self, moment: Moment) -> None:
        """Apply the changes of one revision, then check what they concern."""
        claims: dict[str, Change] = {}
        pods: dict[str, Change] = {}
        self._now = moment.received_at
        for change in moment.changes:
            key = change.item["metadata"]["uid"]
            if change.kind == "resourceslices":
                self._pools.apply(change)
            elif change.kind == "resourceclaims":
                claims[_name(change.item)] = change
                _set(self._claims, _name(change.item), change.after)
                self._gone |= {uid: self._now for uid in _consumers(change.after or {}) if uid not in self._pods}
            elif change.kind == "pods":
                pods[key] = change
                self._know(key, change)
            else:
                name = _name(change.item) if change.kind == "podgroups" else change.item["metadata"]["name"]
                _set(self._objects[change.kind], name, change.after)
                if change.kind == "queues":
                    self._quotas.set(name, self._now, _quota(change.after))
                elif change.kind == "podgroups" and change.after is None:
                    self._deleted_groups[name] = self._now, change.item
        found = [*self._allocated(claims.values())]
        touched = pods.keys() | {uid for name in claims for uid in self._users[name]}
        for uid in sorted(touched):
            found += self._checked(uid, pods.get(uid))
        found += self._charged(claims, pods)
        self.violations += [Violation(moment.revision, text) for text in dict.fromkeys(found)]

    def finish(self) -> None:
        """Everything has come to rest."""
        self.violations += [Violation(0, text) for text in self.unused()]

    def unused(self) -> list[str]:
        """The claims that nothing uses any more, and that are still there."""
        found = []
        for name, claim in sorted(self._claims.items()):
            if "deletionTimestamp" in claim["metadata"]:
                found.append(f"claim {name} is deleted and stays")
            elif _results(claim) and not any(self._is_active(uid) for uid in _consumers(claim)):
                found.append(f"claim {name} is allocated without a bound consumer")
        return found

    # --- inside -----------------------------------------------------------------------------------------------------

    def _know(self, uid: str, change: Change) -> None:
        _set(self._pods, uid, change.after)
        if change.before is not None and change.after is None and not self._missing(change.before):
            self._gone[uid] = self._now
        for item in filter(None, (change.before, change.after)):
            for name in _claims_of(item):
                self._users[name or ""].add(uid)
            self._members[_group_of(item)].add(uid)

    def _is_active(self, uid: str) -> bool:
        """Whether a pod is bound and not finished."""
        pod = self._pods.get(uid)
        return pod is not None and bool(_node_of(pod)) and not _is_finished(pod)

    def _allocated(self, changes: Iterable[Change]) -> Iterator[str]:
        touched: dict[DeviceId, None] = {}
        for change in changes:
            name, before, after = _name(change.item), _results(change.before), _results(change.after)
            if before == after:
                continue
            for result in before:
                self._devices.release(name, _device_of(result))
            self.totals.update({"allocations": bool(after), "devices": len(after)})
            for result in after:
                if not result.get("adminAccess"):
                    consumed = amounts(result.get("consumedCapacity") or {})
                    self._devices.use(_device_of(result), Use(name, result.get("shareID") or "", consumed))
                    touched[_device_of(result)] = None
        for device in touched:
            yield from self._devices.problems(device)
        for driver, pool in sorted({device[:2] for device in touched}):
            yield from self._devices.overdrawn(driver, pool)

    def _checked(self, uid: str, change: Change | None) -> Iterator[str]:
        if not self._is_active(uid):
            return
        pod = self._pods[uid]
        problem = self._missing(pod)
        if problem:
            verb = "runs" if pod.get("status", {}).get("phase") == "Running" else "is bound"
            yield f"pod {_name(pod)} {verb}, but {problem}"
        if change is None or (change.before is not None and _node_of(change.before)):
            return
        yield from self._begins(pod)

    def _begins(self, pod: Manifest) -> Iterator[str]:
        """The first bind of a gang."""
        group = self._objects["podgroups"].get(_group_of(pod))
        if group is None or group["metadata"]["uid"] in self._begun:
            return
        self._begun.add(group["metadata"]["uid"])
        ready = [uid for uid in self._members[_group_of(pod)] if self._has_claims(uid)]
        minimum = group["spec"].get("minMember", 1)
        if len(ready) < minimum:
            yield f"pod {_name(pod)} is bound when {len(ready)} of {minimum} members of its gang have their claims"

    def _has_claims(self, uid: str) -> bool:
        """Whether a member has its claims, or may have had them when the scheduler bound the others."""
        pod = self._pods.get(uid)
        if pod is not None:
            return not self._missing(pod)
        return uid in self._gone and self._now - self._gone[uid] <= self._grace

    def _missing(self, pod: Manifest) -> str:
        """What a pod lacks of its claims; "" for nothing."""
        for name in _claims_of(pod):
            claim = None if name is None else self._claims.get(name)
            if claim is None:
                return f"claim {name or 'of a template'} does not exist"
            if not (claim.get("status") or {}).get("allocation"):
                return f"claim {name} is not allocated"
            if pod["metadata"]["uid"] not in _consumers(claim):
                return f"claim {name} is not reserved for it"
            if _node_of(pod) and not self._fits(claim, _node_of(pod)):
                return f"claim {name} is allocated on another node"
        return ""

    def _fits(self, claim: Manifest, node_name: str) -> bool:
        terms = (claim["status"]["allocation"].get("nodeSelector") or {}).get("nodeSelectorTerms")
        labels = self._objects["nodes"].get(node_name, {"metadata": {}})["metadata"].get("labels") or {}
        fields = {"metadata.name": node_name}
        return terms is None or any(
            _matches(term.get("matchFields"), fields) and _matches(term.get("matchExpressions"), labels)
            for term in terms
        )

    def _charged(self, claims: Mapping[str, Change], pods: Mapping[str, Change]) -> Iterator[str]:
        grown: set[str] = set()
        names = {*claims, *(name for change in pods.values() for name in _claims_of(change.item) if name)}
        for name in sorted(names):
            queue, cards = self._claim_cards(name)
            if self._charges.set(f"claim {name}", queue, cards):
                grown.add(queue)
        for uid, change in sorted(pods.items()):
            queue, cards = self._plugin_cards(uid)
            was_bound = change.before is not None and bool(_node_of(change.before))
            if self._charges.set(f"pod {uid}", queue, cards) and not was_bound:
                grown.add(queue)
        for queue in sorted(grown):
            quota = self._quotas.largest(queue, self._now)
            if quota is not None:
                yield from self._charges.excess(queue, quota)

    def _claim_cards(self, name: str) -> tuple[str, Counter[str]]:
        claim = self._claims.get(name)
        consumers = [self._pods[uid] for uid in _consumers(claim) if uid in self._pods] if claim is not None else []
        consumers = [pod for pod in consumers if not _is_finished(pod)]
        found: Counter[str] = Counter()
        if not consumers:
            return "", found
        for result in _results(claim):
            device = self._pools.device(_device_of(result))
            card = _card_of(result["driver"], device)
            if device is not None and card and not result.get("adminAccess"):
                found[card] += _thousandths(result, device)
        return self._queue_of(consumers[0]), found

    def _plugin_cards(self, uid: str) -> tuple[str, Counter[str]]:
        if not self._is_active(uid):
            return "", Counter()
        pod = self._pods[uid]
        node = self._objects["nodes"].get(_node_of(pod), {"metadata": {}, "status": {}})
        offered = amounts(node["status"].get("allocatable") or {})[_GPU]
        card = (node["metadata"].get("labels") or {}).get("nvidia.com/gpu.product", "")
        cards = request_of(pod)[_GPU] if offered and card else 0
        queue = self._queue_at_bind.setdefault(uid, self._queue_of(pod))
        return queue, Counter({card: cards}) if cards else Counter()

    def _queue_of(self, pod: Manifest) -> str:
        group = self._objects["podgroups"].get(_group_of(pod))
        deleted_at, deleted = self._deleted_groups.get(_group_of(pod), (0.0, None))
        if group is None and self._now - deleted_at <= self._grace:
            group = deleted
        if group is not None:
            return str(group["spec"].get("queue") or "default")
        return _annotations(pod).get("scheduling.volcano.sh/queue-name") or "default"


def _set(store: dict[str, Manifest], key: str, item: Manifest | None) -> None:
    store.pop(key, None)
    if item is not None:
        store[key] = item


def _name(item: Manifest) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def _annotations(item: Manifest) -> Mapping[str, str]:
    found: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return found


def _quota(queue: Manifest | None) -> dict[str, int] | None:
    """None without a limit."""
    text = None if queue is None else _annotations(queue).get("volcano.sh/card.quota")
    found: dict[str, int] | None = json.loads(text) if text else None
    return found


def _node_of(pod: Manifest) -> str:
    return str(pod["spec"].get("nodeName") or "")


def _is_finished(pod: Manifest) -> bool:
    return pod.get("status", {}).get("phase") in _FINISHED


def _group_of(pod: Manifest) -> str:
    group = next((_annotations(pod)[key] for key in _GROUP_KEYS if _annotations(pod).get(key)), "")
    return f"{pod['metadata']['namespace']}/{group}" if group else ""


def _claims_of(pod: Manifest) -> list[str | None]:
    """Names of the claims of a pod; None: made of a template, and not yet there."""
    space, status = pod["metadata"].get("namespace", ""), pod.get("status") or {}
    made = {each["name"]: each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or ()}
    found: list[str | None] = []
    for each in pod["spec"].get("resourceClaims") or ():
        if each.get("resourceClaimName"):
            found.append(f"{space}/{each['resourceClaimName']}")
        elif each["name"] not in made:
            found.append(None)
        elif made[each["name"]]:
            found.append(f"{space}/{made[each['name']]}")
    extended = (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    return [*found, f"{space}/{extended}"] if extended else found


def _results(claim: Manifest | None) -> list[Manifest]:
    allocation = ((claim or {}).get("status") or {}).get("allocation") or {}
    found: list[Manifest] = (allocation.get("devices") or {}).get("results") or []
    return found


def _consumers(claim: Manifest | None) -> list[str]:
    return [each["uid"] for each in ((claim or {}).get("status") or {}).get("reservedFor") or ()]


def _device_of(result: Manifest) -> DeviceId:
    return result["driver"], result["pool"], result["device"]


def _claims(uses: Iterable[Use]) -> str:
    return ", ".join(sorted({use.claim for use in uses}))


def _matches(expressions: Iterable[Manifest] | None, values: Mapping[str, str]) -> bool:
    for each in expressions or ():
        assert each["operator"] == "In", each
        if values.get(each["key"]) not in each["values"]:
            return False
    return True


def _card_of(driver: str, device: Manifest | None) -> str:
    """The card of a device of NVIDIA's driver, "" for another one."""
    if driver != _NVIDIA or device is None:
        return ""
    attributes: dict[str, Any] = {key: next(iter(value.values())) for key, value in device["attributes"].items()}
    card = "-".join(str(attributes["productName"]).split(" "))
    if attributes["type"] == "mig":
        card += f"/mig-{attributes['profile']}-mixed"
    return card + ("/shared" if device.get("allowMultipleAllocations") else "")


def _thousandths(result: Manifest, device: Manifest) -> int:
    """1000 for a whole device; for a share the largest part of a capacity, rounded up."""
    if not result.get("shareID"):
        return 1000
    consumed = amounts(result.get("consumedCapacity") or {})
    totals = amounts({name: each["value"] for name, each in (device.get("capacity") or {}).items()})
    return max([1, *(-(-1000 * consumed[name] // total) for name, total in totals.items() if total)])
