"""Computes a cluster overview from its objects: jobs, queues, cards.

Reads Kubernetes JSON as listed by an API server, from the end of a simulation or from a live cluster.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.controllers.objects import (
    JsonObject,
    annotations_of,
    controller_key,
    identity,
    job_phase,
    key_of,
    labels_of,
    meta,
    spec,
    status,
)
from capcard_sched.model.annotations import (
    CARD_ASSIGNED,
    CARD_NAME,
    CARD_NAME_ALIAS,
    CARD_QUOTA,
)
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.cards import CARD, CardSyntaxError, discover_cards, parse_card_name, parse_card_quota
from capcard_sched.model.json_pods import valid_pod_amounts
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.pod_facts import group_of
from capcard_sched.model.quantity import format_amount
from capcard_sched.model.queue import ROOT
from capcard_sched.model.resources import VGPU_RESOURCES
from capcard_sched.reports.shared_cards import (
    amounts_of,
    is_charged,
    is_pending,
    moment_of,
    origin_of,
    pod_reason,
    scheduled_at,
    shared_cards,
)
from capcard_sched.reports.terminal import format_base_amount

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.explanation import CardUse
    from capcard_sched.model.ownership import Owner
    from capcard_sched.reports.shared_cards import SharedCardRow

#: Prefix of cards among the charges of a queue.
_CARD: Final = "card "
#: Event reasons whose text repeats a condition.
_ECHOES = frozenset({"FailedScheduling", "Unschedulable", "Scheduled", "Evict"})


class JobRow(NamedTuple):
    """One job: a workload, or a bare PodGroup."""

    namespace: str
    name: str
    kind: str
    queue: str
    phase: str
    scheduled: int
    pods: int
    minimum: int
    #: Seconds from its creation until its minimum was scheduled, or until now; None when unknown.
    waited: float | None
    #: Why pods are pending; "" when none is.
    reason: str


class Use(NamedTuple):
    """Usage of one limit, as text and as a fraction; `share` is None without a limit."""

    name: str
    used: str
    limit: str
    share: float | None


class QueueRow(NamedTuple):
    """One queue and the usage of its pods."""

    name: str
    state: str
    jobs: int
    uses: tuple[Use, ...]


class CardRow(NamedTuple):
    """One card model over all nodes, in cards."""

    card: str
    nodes: int
    total: float
    used: float
    #: Free cards of each node together: pods on a node that lost cards take none of other nodes.
    free: float


class EvictionRow(NamedTuple):
    """One evicted pod."""

    #: Seconds since the start.
    at: float
    pod: str
    node: str
    reason: str


class Overview(NamedTuple):
    """Contents of all tables."""

    #: Seconds from the start to now.
    elapsed: float
    jobs: tuple[JobRow, ...]
    queues: tuple[QueueRow, ...]
    cards: tuple[CardRow, ...]
    evictions: tuple[EvictionRow, ...]
    #: Pods without a node.
    pending: int
    shared_cards: tuple[SharedCardRow, ...] = ()


def survey(
    items: Iterable[JsonObject],
    now: float,
    start: float,
    evictions: Sequence[EvictionRow] = (),
    shares: Collection[str] = (),
    card_labels: CardLabels = DEFAULT_CARD_LABELS,
    accounts: Mapping[str, Sequence[CardUse]] | None = None,
) -> Overview:
    """The overview of all objects of a cluster.

    `now` and `start` in Unix seconds; `shares`: resources of shared devices, VGPU_RESOURCES when empty; `accounts`:
    queue to its cards with quota and usage, None where no plugin keeps accounts.
    """
    by_kind: dict[str, list[JsonObject]] = {}
    for item in items:
        by_kind.setdefault(kind_of(item), []).append(item)
    cluster = _Cluster(by_kind, card_labels)
    pending = sum(map(is_pending, by_kind.get("Pod", ())))
    shared = shared_cards(by_kind.get("Node", ()), by_kind.get("Pod", ()), shares)
    queues = cluster.queues(shares or VGPU_RESOURCES, accounts)
    return Overview(now - start, cluster.jobs(now), queues, cluster.cards(), tuple(evictions), pending, shared)


class _Cluster:
    def __init__(self, by_kind: Mapping[str, list[JsonObject]], card_labels: CardLabels) -> None:
        self._kinds = by_kind
        self._members: dict[tuple[str, str], list[JsonObject]] = {}
        for pod in by_kind.get("Pod", ()):
            group = group_of(annotations_of(pod))
            if group:
                self._members.setdefault((key_of(pod)[0], group), []).append(pod)
        self._events: dict[tuple[str, str, str], list[JsonObject]] = {}
        for event in by_kind.get("Event", ()):
            about = event.get("involvedObject") or {}
            key = (about.get("kind", ""), about.get("namespace", ""), about.get("name", ""))
            self._events.setdefault(key, []).append(event)
        self._owned: dict[Owner | None, list[JsonObject]] = {}
        for pod in by_kind.get("Pod", ()):
            self._owned.setdefault(controller_key(pod), []).append(pod)
        self._replica_sets = {identity(one): one for one in by_kind.get("ReplicaSet", ())}
        #: Node to card to (milli-cards, resource).
        self._node_cards: dict[str, dict[str, tuple[int, str]]] = {}
        #: Card to (resource, milli-cards, nodes).
        self._cards: dict[str, tuple[str, int, int]] = {}
        for node in by_kind.get("Node", ()):
            found = discover_cards(labels_of(node), amounts_of(status(node).get("allocatable")), card_labels)
            self._node_cards[meta(node)["name"]] = found.cards
            for card, (amount, resource) in found.cards.items():
                _, total, nodes = self._cards.get(card, (resource, 0, 0))
                self._cards[card] = (resource, total + amount, nodes + 1)

    def jobs(self, now: float) -> tuple[JobRow, ...]:
        rows = []
        with_group: set[Owner | None] = set()
        for group in self._kinds.get("PodGroup", ()):
            owner = controller_key(group)
            with_group.add(owner)
            rows.append(self._group_row(group, owner, now))
        rows += [
            self._finished_row(job)
            for job in self._kinds.get("Job", ())
            if "tasks" in spec(job) and identity(job) not in with_group
        ]
        return tuple(sorted(rows, key=lambda row: (row.namespace, row.name, row.kind)))

    def _group_row(self, group: JsonObject, owner: Owner | None, now: float) -> JobRow:
        namespace = key_of(group)[0]
        kind, name = self._workload(group, owner)
        pods = self._members.get((namespace, meta(group)["name"]), [])
        scheduled = sorted(filter(None, map(scheduled_at, pods)))
        minimum = int(spec(group).get("minMember") or 0)
        created = moment_of(meta(group).get("creationTimestamp"))
        ready = len(scheduled) >= minimum
        until = scheduled[max(minimum, 1) - 1] if ready and scheduled else now
        waited = None if created is None else max(0.0, until - created)
        phase = status(group).get("phase") or "Pending"
        pending = not ready or any(map(is_pending, pods))
        reason = self._reason(group, pods) if pending and phase != "Completed" else ""
        queue = spec(group).get("queue", "")
        return JobRow(namespace, name, kind, queue, phase, len(scheduled), len(pods), minimum, waited, reason)

    def _finished_row(self, job: JsonObject) -> JobRow:
        """A Job without a PodGroup: finished, or restarting."""
        pods = self._owned.get(identity(job), ())
        scheduled = sorted(filter(None, map(scheduled_at, pods)))
        phase = job_phase(job)
        minimum = int(spec(job).get("minAvailable") or 0)
        created = moment_of(meta(job).get("creationTimestamp"))
        waited = None
        if created is not None and minimum and len(scheduled) >= minimum:
            waited = max(0.0, scheduled[minimum - 1] - created)
        queue = spec(job).get("queue", "")
        return JobRow(*key_of(job), "Job", queue, phase, len(scheduled), len(pods), minimum, waited, "")

    def _workload(self, group: JsonObject, owner: Owner | None) -> tuple[str, str]:
        """Kind and name of the workload: the owner of the group, or the owner of its ReplicaSet."""
        if owner is None:
            return "PodGroup", meta(group)["name"]
        replica_set = self._replica_sets.get(owner)
        above = controller_key(replica_set) if replica_set is not None else None
        return (above or owner).kind, (above or owner).name

    def _reason(self, group: JsonObject, pods: Sequence[JsonObject]) -> str:
        """The most frequent condition message of pending pods, else that of the group, else its last warning event."""
        reasons = Counter(filter(None, map(pod_reason, sorted(pods, key=key_of))))
        if reasons:
            return reasons.most_common(1)[0][0]
        for condition in status(group).get("conditions") or ():
            if condition.get("type") == "Unschedulable" and condition.get("status") == "True":
                return origin_of(condition.get("message") or condition.get("reason") or "")
        events = self._events.get(("PodGroup", *key_of(group)), [])
        events = [event for event in events if event.get("reason") not in _ECHOES and event.get("type") == "Warning"]
        last = max(events, key=lambda event: str(event.get("lastTimestamp", "")), default=None)
        return str(last.get("message", "")) if last is not None else ""

    def _charges(self) -> dict[str, Counter[str]]:
        """Queue to card or resource to the usage of its scheduled pods: milli-cards, base units of cpu and memory."""
        queue_of = {key_of(group): spec(group).get("queue", "") for group in self._kinds.get("PodGroup", ())}
        usage: dict[str, Counter[str]] = {}
        for (namespace, group), pods in self._members.items():
            queue = queue_of.get((namespace, group), "")
            for pod in pods:
                if is_charged(pod):
                    usage.setdefault(queue, Counter()).update(self._charge(pod))
        return usage

    def _subtree_charges(self) -> dict[str, Counter[str]]:
        """`_charges`, those of parents with the queues below them."""
        parents = {meta(queue)["name"]: spec(queue).get("parent") or ROOT for queue in self._kinds.get("Queue", ())}
        parents[ROOT] = ""
        sums: dict[str, Counter[str]] = {}
        for queue, charge in self._charges().items():
            chain = [queue]
            while (above := parents.get(chain[-1])) and above not in chain:
                chain.append(above)
            for name in chain:
                sums.setdefault(name, Counter()).update(charge)
        return sums

    def _charge(self, pod: JsonObject) -> dict[str, int]:
        """Cards by the pod's node and requests, which the owner of the pod cannot edit; else by its annotations."""
        requests = valid_pod_amounts(pod).requests
        is_device = DEFAULT_CARD_LABELS.is_device
        charge = {name: amount for name, amount in requests.items() if name in ("cpu", "memory") or is_device(name)}
        provided = self._node_cards.get(spec(pod).get("nodeName") or "") or {}
        held = {card: requests[resource] for card, (_, resource) in provided.items() if requests.get(resource)}
        if not held:
            card = self._card_of(pod)
            amount = requests.get(self._cards.get(card, ("", 0, 0))[0])
            held = {card: amount} if amount else {}
        return charge | {f"{_CARD}{card}": amount for card, amount in held.items()}

    def _card_of(self, pod: JsonObject) -> str:
        notes = annotations_of(pod)
        if notes.get(CARD_ASSIGNED):
            return str(notes[CARD_ASSIGNED])
        try:
            names = parse_card_name(notes.get(CARD_NAME) or notes.get(CARD_NAME_ALIAS))
        except CardSyntaxError:
            return ""
        return names[0] if len(names) == 1 else ""

    def queues(self, shares: Collection[str], accounts: Mapping[str, Sequence[CardUse]] | None) -> tuple[QueueRow, ...]:
        charges = self._subtree_charges()
        jobs = Counter(spec(group).get("queue", "") for group in self._kinds.get("PodGroup", ()))
        rows = []
        for queue in sorted(self._kinds.get("Queue", ()), key=key_of):
            charge = charges.get(meta(queue)["name"], Counter())
            cards = {key.removeprefix(_CARD): used / CARD for key, used in charge.items() if key.startswith(_CARD)}
            quota = _quota_of(queue)
            if accounts is not None:
                charged = [use for use in accounts.get(meta(queue)["name"], ()) if use.card not in shares]
                cards = {use.card: use.allocated for use in charged if use.allocated}
                # A card that a quota does not list has the quota 0, unless nothing limits the queue.
                quota |= {use.card: use.quota for use in charged if use.allocated and use.quota is not None}
            # Where no plugin has quotas of cards, one may limit devices by their resource.
            devices = [] if accounts is None or accounts else sorted(amounts_of(spec(queue).get("capability")))
            devices = [name for name in devices if DEFAULT_CARD_LABELS.is_device(name) and name not in shares]
            uses = (*_uses(queue, charge, cards, quota, devices), *_share_uses(queue, shares))
            rows.append(
                QueueRow(meta(queue)["name"], status(queue).get("state") or "Open", jobs[meta(queue)["name"]], uses)
            )
        return tuple(rows)

    def cards(self) -> tuple[CardRow, ...]:
        held: dict[str, Counter[str]] = {}
        for pod in self._kinds.get("Pod", ()):
            node = spec(pod).get("nodeName") or ""
            if node in self._node_cards and is_charged(pod):
                held.setdefault(node, Counter()).update(valid_pod_amounts(pod).requests)
        used: Counter[str] = Counter()
        free: Counter[str] = Counter()
        for node, provided in self._node_cards.items():
            requests = held.get(node, Counter())
            for card, (amount, resource) in provided.items():
                used[card] += requests[resource]
                free[card] += max(0, amount - requests[resource])
        return tuple(
            CardRow(card, count, total / CARD, used[card] / CARD, free[card] / CARD)
            for card, (_, total, count) in sorted(self._cards.items())
        )


def _quota_of(queue: JsonObject) -> dict[str, float]:
    """The card quota in cards; none of a malformed annotation."""
    try:
        quota = parse_card_quota(annotations_of(queue).get(CARD_QUOTA))
    except CardSyntaxError:
        return {}
    return {card: amount / CARD for card, amount in quota.items()}


def _uses(
    queue: JsonObject,
    charge: Counter[str],
    cards: Mapping[str, float],
    quota: Mapping[str, float],
    devices: Sequence[str],
) -> tuple[Use, ...]:
    """The uses of a queue: `charge` of cpu, memory and `devices` in base units, `cards` and `quota` in cards."""
    capability = amounts_of(spec(queue).get("capability"))
    uses = []
    for card in sorted({*quota, *cards}):
        used, limit = cards.get(card, 0.0), quota.get(card)
        uses.append(Use(card, f"{used:g}", "-" if limit is None else f"{limit:g}", _share(used, limit)))
    for name in ("cpu", "memory", *devices):
        used, limit = charge.get(name, 0), capability.get(name)
        if used or limit is not None:
            shown = "-" if limit is None else format_amount(name, limit)
            uses.append(Use(name, format_amount(name, used), shown, _share(used, limit)))
    return tuple(uses)


def _share_uses(queue: JsonObject, shares: Collection[str]) -> Iterator[Use]:
    """Limits of shared devices, with the charges that the scheduler writes: they depend on the cards of the pods."""
    charged = amounts_of(status(queue).get("allocated"))
    for name, limit in sorted(amounts_of(spec(queue).get("capability")).items()):
        if name in shares:
            used = charged.get(name, 0)
            yield Use(name, format_base_amount(name, used), format_base_amount(name, limit), _share(used, limit))


def _share(used: float, limit: float | None) -> float | None:
    if limit is None:
        return None
    return used / limit if limit else (1.0 if used else 0.0)
