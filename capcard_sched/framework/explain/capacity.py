"""Free and used amounts of a card, or of a resource, on the nodes that provide it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.framework.toolkit.device_cards import device_offers
from capcard_sched.model.cards import CARD
from capcard_sched.model.diagnosis import MOST_LISTED, CardCapacity, FreeBlocks, HolderUse, NodeSummary, NodeUse
from capcard_sched.model.job import offered_amounts
from capcard_sched.model.node_conditions import conditions_of
from capcard_sched.model.quantity import in_units
from capcard_sched.model.selectors import untolerated_taint
from capcard_sched.model.workload import display_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from capcard_sched.framework.core import CoreSnapshot
    from capcard_sched.model.job import Job, Node, Task
    from capcard_sched.model.task_class import TaskClass

#: Holders listed per node.
_MOST_HOLDERS: Final = 8
#: State of an unschedulable node.
CORDONED: Final = "cordoned"
#: Effects of taints that keep pods without a toleration away.
_EXCLUDING: Final = frozenset({"NoSchedule", "NoExecute"})


class NodeCard(NamedTuple):
    """A node that provides a card: amounts in base units."""

    node: Node
    #: The card itself where ResourceSlices provide it.
    resource: str
    total: int
    free: int
    #: Of devices of ResourceSlices: (workload, queue, amount in cards).
    holders: tuple[tuple[str, str, float], ...] | None = None
    #: Of devices of ResourceSlices: the first known pod of each claim, with thousandths.
    tenants: tuple[tuple[Task, int], ...] = ()


def workload_name(task: Task) -> str:
    """`namespace/kind/name` of the workload of a pod; the pod itself outside of any job."""
    return display_name(task.job) if task.job is not None else f"{task.namespace}/pod/{task.name}"


def _holder(task: Task | None, key: str, amount: int) -> tuple[str, str, float]:
    """The workload of a claim with thousandths of cards, by its first pod; the claim itself without a known one."""
    if task is not None:
        return workload_name(task), task.job.queue if task.job is not None else "", amount / CARD
    namespace, _, name = key.partition("/")
    return f"{namespace}/resourceclaim/{name}", "", amount / CARD


def holders(amounts: Iterable[tuple[str, str, float]], most: int = MOST_LISTED) -> tuple[HolderUse, ...]:
    """Sums of (workload, its queue, amount), the largest first."""
    sums: dict[tuple[str, str], float] = {}
    for workload, queue, amount in amounts:
        if amount:
            sums[workload, queue] = sums.get((workload, queue), 0.0) + amount
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:most]
    return tuple(HolderUse(workload=workload, queue=queue, amount=amount) for (workload, queue), amount in ordered)


def held_on(offers: Iterable[NodeCard], attempted: Job | None = None) -> Iterable[tuple[str, str, float]]:
    """(workload, queue, amount) of each pod on some nodes, without those that an attempt of a job placed."""
    names: dict[Job, str] = {}
    for offer in offers:
        resource = offer.resource
        yield from offer.holders or ()
        for task in offer.node.tasks.values():
            amount, job = task.cls.requests.get(resource, 0), task.job
            if not amount or (job is not None and job is attempted and not task.bound):
                continue
            if job is None:
                yield workload_name(task), "", in_units(resource, amount)
                continue
            if job not in names:
                names[job] = display_name(job)
            yield names[job], job.queue, in_units(resource, amount)


def _may_request(cls: TaskClass, offer: NodeCard) -> bool:
    """Whether pods of a class request a card as the node provides it: by ResourceClaims, or of a device plugin."""
    if offer.holders is not None:
        return bool(cls.claims) or any(cls.requests.get(resource) for resource in offer.node.backed)
    return not cls.claims or bool(cls.requests.get(offer.resource))


def _used(offer: NodeCard) -> float:
    """Used cards. Those of ResourceSlices are neither used nor free where a partition of the same device is used."""
    if offer.holders is not None:
        return sum(amount for *_, amount in offer.holders)
    return in_units(offer.resource, offer.total - offer.free)


def _state_of(node: Node) -> str:
    """`cordoned`, the taints that keep pods away, or ""."""
    taints = conditions_of(node.taints) if node.unschedulable else node.taints
    states = [CORDONED] if node.unschedulable else []
    return ",".join([*states, *(taint.text for taint in taints if taint.effect in _EXCLUDING)])


def exclusion(node: Node, cls: TaskClass) -> str:
    """`cordoned`, or the taint that keeps pods of a class away; "" for a candidate."""
    condition = untolerated_taint(conditions_of(node.taints), cls.tolerations)
    if node.unschedulable and condition is None:
        return CORDONED
    taint = condition or untolerated_taint(node.taints, cls.tolerations)
    return "" if taint is None else taint.text


class CapacityReader:
    """Capacity of one state. The cards of the nodes are discovered once: O(nodes)."""

    def __init__(self, snapshot: CoreSnapshot) -> None:
        self._state, self._table, self._columns = snapshot.state, snapshot.state.nodes, snapshot.state.columns
        self._unfit = snapshot.state.device_accounting.unfit
        self._cards: dict[str, list[NodeCard]] = {}
        self._capacities: dict[tuple[str, TaskClass, int, frozenset[str]], CardCapacity] = {}
        self._nodes = [node for _, node in sorted(self._table.by_name.items())]
        for node in self._nodes:
            for card, (_, resource) in self._state.plugin_cards_of(node).items():
                self._cards.setdefault(card, []).append(self._amounts(node, resource))
        for each in device_offers(self._state.devices, self._state.claims):
            of_node = self._table.by_name.get(each.node)
            if of_node is not None and each.card not in self._state.plugin_cards_of(of_node):
                users = [(self._user(key), key, amount) for key, amount in each.claims.items()]
                held = tuple([_holder(*user) for user in users])
                tenants = tuple([(task, amount) for task, _, amount in users if task is not None])
                found = NodeCard(of_node, each.card, each.total, each.free, held, tenants)
                self._cards.setdefault(each.card, []).append(found)

    def _user(self, key: str) -> Task | None:
        """The first known pod of a claim."""
        consumers = sorted(self._state.claims.consumers(key))
        return next((task for uid in consumers if (task := self._state.tasks.get(uid)) is not None), None)

    @cached_property
    def offered(self) -> frozenset[str]:
        """The resources of which some node has any. The first call takes O(nodes)."""
        return frozenset(name for node in self._nodes for name, amount in offered_amounts(node).items() if amount)

    @property
    def cards(self) -> Mapping[str, list[NodeCard]]:
        """Every card to the nodes that provide it, in order of name."""
        return self._cards

    def list_cards(self) -> list[tuple[str, NodeUse]]:
        """Every card of every node, by node and card, with its holders."""
        found = [(card, self._use(offer, _state_of(offer.node))) for card in self._cards for offer in self._cards[card]]
        return sorted(found, key=lambda row: (row[1].name, row[0]))

    def list_nodes(self) -> list[NodeSummary]:
        """Every node, by name, with the sums over its cards."""
        cards: dict[str, list[tuple[str, NodeCard]]] = {}
        for card, offers in self._cards.items():
            for offer in offers:
                cards.setdefault(offer.node.name, []).append((card, offer))
        return [self._summary(node, sorted(cards.get(node.name, ()))) for node in self._nodes]

    def _summary(self, node: Node, cards: list[tuple[str, NodeCard]]) -> NodeSummary:
        cpu, memory, pods = (self._amounts(node, resource) for resource in ("cpu", "memory", "pods"))
        return NodeSummary(
            name=node.name,
            state=_state_of(node),
            cards=tuple(card for card, _ in cards),
            total=sum(in_units(offer.resource, offer.total) for _, offer in cards),
            free=sum(in_units(offer.resource, max(0, offer.free)) for _, offer in cards),
            used=sum(map(_used, (offer for _, offer in cards))),
            free_cpu=in_units("cpu", max(0, cpu.free)),
            free_memory=in_units("memory", max(0, memory.free)),
            pods=len(node.tasks),
            max_pods=pods.total,
        )

    def card_on(self, node: Node, cls: TaskClass) -> str:
        """The card of a node whose resource pods of a class request; "" for none."""
        cards = self._state.cards_of(node)
        return next((card for card, (_, resource) in cards.items() if cls.requests.get(resource)), "")

    def nodes_with(self, card: str) -> list[NodeCard]:
        """The nodes that provide a card; for a resource those that have any of it."""
        if card in self._cards:
            return self._cards[card]
        return [self._amounts(node, card) for node in self._nodes if offered_amounts(node).get(card)]

    def larger_than_nodes(self, cls: TaskClass, *, among: Collection[str] = ()) -> Iterator[str]:
        """The resources of which a pod of a class requests more than any node has. `among`: as of `capacity`.

        Without those that a plugin accounts for: a node need not have them.
        """
        nodes = [node for node in self._nodes if not among or node.name in among]
        for resource, amount in cls.requests.items():
            if resource not in self._unfit and all(amount > offered_amounts(node).get(resource, 0) for node in nodes):
                yield resource

    def capacity(self, card: str, cls: TaskClass, per_pod: int, *, among: Collection[str] = ()) -> CardCapacity:
        """The capacity of a card (or resource) for pods of a class that request `per_pod`, in base units, each.

        `among`: the nodes that count; () for all.
        """
        key = card, cls, per_pod, frozenset(among)
        if key not in self._capacities:
            self._capacities[key] = self._capacity(card, cls, per_pod, among)
        return self._capacities[key]

    def _capacity(self, card: str, cls: TaskClass, per_pod: int, among: Collection[str]) -> CardCapacity:
        offers = [
            offer
            for offer in self.nodes_with(card)
            if (not among or offer.node.name in among) and _may_request(cls, offer)
        ]
        resource = offers[0].resource if offers else card
        candidates: list[NodeCard] = []
        cordoned: list[NodeCard] = []
        tainted: list[tuple[NodeCard, str]] = []
        for offer in offers:
            excluded = exclusion(offer.node, cls)
            if excluded == CORDONED:
                cordoned.append(offer)
            elif excluded:
                tainted.append((offer, excluded))
            else:
                candidates.append(offer)
        bars: dict[int, int] = {}
        for offer in candidates:
            bars[max(0, offer.free)] = bars.get(max(0, offer.free), 0) + 1
        ordered = sorted(candidates, key=lambda offer: (-offer.free, offer.node.name))
        return CardCapacity(
            card=card,
            resource=resource,
            per_pod=in_units(resource, per_pod),
            nodes=len(offers),
            total=in_units(resource, sum(offer.total for offer in offers)),
            free=in_units(resource, sum(max(0, offer.free) for offer in candidates)),
            histogram=tuple(FreeBlocks(free=in_units(resource, free), nodes=bars[free]) for free in sorted(bars)[::-1]),
            largest_free=in_units(resource, max(bars, default=0)),
            largest_node=in_units(resource, max((offer.total for offer in offers), default=0)),
            fits_now=sum(max(0, offer.free) // per_pod for offer in candidates) if per_pod else 0,
            fits_when_empty=sum(offer.total // per_pod for offer in offers) if per_pod else 0,
            cordoned_nodes=len(cordoned),
            tainted_nodes=len(tainted),
            cordoned=tuple(self._use(offer, CORDONED) for offer in cordoned[:MOST_LISTED]),
            tainted=tuple(self._use(offer, taint) for offer, taint in tainted[:MOST_LISTED]),
            candidates=tuple(self._use(offer) for offer in ordered[:MOST_LISTED]),
            holders=holders(held_on(candidates)),
        )

    def _amounts(self, node: Node, resource: str) -> NodeCard:
        total = offered_amounts(node).get(resource, 0)
        if resource not in self._columns.names:
            return NodeCard(node, resource, total, total)
        used = int(self._table.used[node.row, self._columns.column(resource)])
        return NodeCard(node, resource, total, total - used)

    def _use(self, offer: NodeCard, excluded: str = "") -> NodeUse:
        resource = offer.resource
        return NodeUse(
            name=offer.node.name,
            total=in_units(resource, offer.total),
            free=in_units(resource, max(0, offer.free)),
            used=_used(offer),
            excluded=excluded,
            holders=holders(held_on((offer,)), _MOST_HOLDERS),
        )
