"""A scheduler without optimizations: every rule for each pod and each node.

It is the oracle of the property tests, and the baseline of the benchmark for the engine's arrays and signatures. It
shares no code with the engine and implements the common subset:

* gangs (`minMember`), queues and their card quotas with one or several alternatives, cpu and memory limits;
* predicates: unschedulable, node selector, required node affinity, taints, card of the node, free capacity;
* scores: least requested, balanced, bin packing, order of the alternatives.

Not implemented, and not allowed in its input: roles, init containers, preemption, pipelining, pod affinity,
spreading, ports, volumes, images, preferences and PreferNoSchedule taints.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import combinations
from typing import TYPE_CHECKING, Any

from benchmarks.plain_objects import ENDED, PlainGroup, PlainNode, PlainPod, PlainQueue, Raw, add, amounts
from benchmarks.plain_rules import balanced, binpack, fits, least_requested, matches

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Weights:
    """Weights of the scores (the defaults of the built-in conf) and what else the conf decides."""

    least: int = 1
    balanced: int = 1
    binpack: float = 1.0
    card: float = 1.0
    card_unlimited_cpu_memory: bool = False
    #: How many pods beyond its minimum a ready group may place before the queues are compared again.
    elastic_batch: int = 1


DEFAULT_WEIGHTS = Weights()


def schedule(
    nodes: Iterable[Raw],
    queues: Iterable[Raw],
    groups: Iterable[Raw],
    pods: Iterable[Raw],
    priority_classes: Iterable[Raw] = (),
    weights: Weights = DEFAULT_WEIGHTS,
) -> dict[str, str]:
    """One session over Kubernetes-like dicts: `namespace/name` of each newly placed pod to its node's name."""
    return PlainScheduler(nodes, queues, groups, pods, priority_classes, weights).run()


class PlainScheduler:
    """The objects of one session and the rules over them."""

    def __init__(
        self,
        nodes: Iterable[Raw],
        queues: Iterable[Raw],
        groups: Iterable[Raw],
        pods: Iterable[Raw],
        priority_classes: Iterable[Raw] = (),
        weights: Weights = DEFAULT_WEIGHTS,
    ) -> None:
        self.weights = weights
        self.nodes = sorted((PlainNode(raw) for raw in nodes), key=lambda node: node.name)
        self.by_name = {node.name: node for node in self.nodes}
        self.resources: dict[str, str] = {}
        self.total: dict[str, int] = {}
        for node in self.nodes:
            add(self.total, node.allocatable)
            self.resources |= {card: resource for card, (_, resource) in node.cards.items()}
        self.queues = {queue.name: queue for queue in map(PlainQueue, queues)}
        guaranteed: dict[str, int] = {}
        for queue in self.queues.values():
            add(guaranteed, queue.guarantee)
        for queue in self.queues.values():
            queue.set_limits(self.total, guaranteed)
        classes = list(priority_classes)
        priorities = {raw["metadata"]["name"]: raw.get("value", 0) for raw in classes}
        priorities[""] = next((raw.get("value", 0) for raw in classes if raw.get("globalDefault")), 0)
        self.groups = {group.name: group for group in (PlainGroup(raw, priorities) for raw in groups)}
        for group in self.groups.values():
            if group.queue in self.queues:
                self.queues[group.queue].groups.append(group)
        self.decisions: dict[str, str] = {}
        for pod in map(PlainPod, pods):
            self._add_pod(pod)

    def _add_pod(self, pod: PlainPod) -> None:
        group = self.groups.get(pod.group)
        if pod.phase in ENDED:
            if group is not None and pod.phase == "Succeeded":
                group.done += 1
        elif pod.node:
            node = self.by_name.get(pod.node)
            if node is not None:
                node.take(pod)
            if group is not None and not pod.deleting and group.queue in self.queues:
                pod.charge = self.charge(pod, node) or {}
                add(self.queues[group.queue].allocated, pod.charge)
                group.placed.append(pod)
                add(group.held, pod.request)
        elif pod.waiting and group is not None:
            group.waiting.append(pod)

    # --- what a pod costs its queue ---------------------------------------------------------------------------------

    def known(self, pod: PlainPod) -> tuple[str, ...]:
        """The pod's alternatives that some node offers; the others play no part."""
        return tuple(card for card in pod.alternatives if card in self.resources)

    def charge(self, pod: PlainPod, node: PlainNode | None = None, card: str = "") -> dict[str, int] | None:
        """Charge by card, cpu and memory; a choice still open is charged as `A|B`. None: no valid charge exists."""
        cards: dict[str, int] = {}
        if pod.alternatives:
            known = self.known(pod)
            if not known or "" in pod.alternatives or len({self.resources[name] for name in known}) > 1:
                return None
            resource = self.resources[known[0]]
            count = pod.limits.get(resource, pod.request.get(resource))
            if count is None:
                return None
            if not card and node is not None and len(known) > 1:
                offered = [name for name in known if name in node.cards]
                card = pod.assigned if pod.assigned in pod.alternatives else (offered or known)[0]
            cards = {card or "|".join(known): count}
        uses_cards = bool(cards) or any(pod.request.get(resource) for resource in self.resources.values())
        if uses_cards and self.weights.card_unlimited_cpu_memory:
            return cards
        return {"cpu": pod.request.get("cpu", 0), "memory": pod.request.get("memory", 0), **cards}

    # --- admission --------------------------------------------------------------------------------------------------

    def minimum(self, group: PlainGroup) -> list[PlainPod]:
        """The pods that make up the group's minimum: placed ones first."""
        return [*sorted(group.placed, key=_task_key), *sorted(group.waiting, key=_task_key)][: group.minimum]

    def demand(self, group: PlainGroup, members: list[PlainPod]) -> dict[str, int]:
        """Requested amounts of the group: cards of `members`, cpu and memory of minResources or else of its minimum."""
        asked: dict[str, int] = {}
        for pod in members:
            charge = pod.charge or self.charge(pod) or {}
            add(asked, {name: n for name, n in charge.items() if name not in ("cpu", "memory")})
        if len(group.placed) + len(group.waiting) < group.minimum:
            asked = {
                card: max(asked.get(card, 0), group.card_request.get(card, 0)) for card in asked | group.card_request
            }
        unlimited = self.weights.card_unlimited_cpu_memory and any(asked.values())
        if group.min_resources is not None and not unlimited:
            add(asked, {k: n for k, n in amounts(group.min_resources).items() if k in ("cpu", "memory")})
        else:
            for pod in self.minimum(group):
                charge = pod.charge or self.charge(pod) or {}
                add(asked, {name: charge.get(name, 0) for name in ("cpu", "memory")})
        return asked

    def reserve(self, queue: PlainQueue, group: PlainGroup, members: list[PlainPod]) -> None:
        """Reserve the requested amounts of the group that are not allocated yet; none that empty nodes do not hold."""
        if self.oversized(group):
            return
        held: dict[str, int] = {}
        for pod in group.placed:
            add(held, pod.charge)
        for name, amount in self.demand(group, members).items():
            reached = sum(held.get(part, 0) for part in name.split("|"))
            add(queue.inqueue, {name: max(0, amount - reached)})

    def oversized(self, group: PlainGroup) -> bool:
        """Whether the group needs more pods of a kind than all nodes hold together when they are empty."""
        if group.ready or not group.waiting:
            return False
        alive = [*group.placed, *group.waiting]
        for pod in alive:
            alike = sum(other.alike == pod.alike for other in alive)
            needed, places = group.minimum - group.done - (len(alive) - alike), self.places(pod)
            if needed > 0 and places is not None and places < needed:
                return True
        return False

    def places(self, pod: PlainPod) -> int | None:
        """The pods like this one that empty nodes hold together; None without a node that has their cards."""
        known = set(self.known(pod))
        nodes = [node for node in self.nodes if not pod.alternatives or known & node.cards.keys()]
        wanted = {name: amount for name, amount in pod.request.items() if amount > 0}
        held = [min(node.allocatable.get(name, 0) // amount for name, amount in wanted.items()) for node in nodes]
        return sum(held) if nodes else None

    def admit(self, queue: PlainQueue) -> None:
        """Admit pending groups, best first, within the queue's limits including reservations."""
        firm = dict(queue.allocated)
        for group in queue.groups:
            unready = len(group.placed) + group.done < group.minimum
            if group.phase == "Inqueue" and unready and self.exceeds(queue, group):
                group.phase = "Pending"
            minimum = self.minimum(group)
            held: dict[str, int] = {}
            for pod in group.placed:
                add(held, pod.charge)
            base: dict[str, int] = {}
            for pod in group.placed:
                if pod in minimum:
                    add(base, {name: n for name, n in pod.charge.items() if name not in ("cpu", "memory")})
            need = self.demand(group, minimum)
            base |= {name: need.get(name, 0) for name in ("cpu", "memory")}
            add(firm, {name: -max(0, n - base.get(name, 0)) for name, n in held.items()})
            if group.phase == "Inqueue":
                self.reserve(queue, group, group.placed + group.waiting)
            elif group.phase == "Running":
                self.reserve(queue, group, minimum)
        firm = {name: max(0, n) for name, n in firm.items()}
        for group in sorted(queue.groups, key=self.group_key):
            if group.phase == "Pending" and queue.open and self.admissible(queue, group, firm):
                group.phase = "Inqueue"
                self.reserve(queue, group, group.placed + group.waiting)

    def admissible(self, queue: PlainQueue, group: PlainGroup, firm: dict[str, int]) -> bool:
        """Whether the group's minimum fits the limits beside allocated and reserved amounts."""
        if any(self.charge(pod) is None for pod in self.minimum(group)):
            return False
        return self.fits(queue, self.demand(group, self.minimum(group)), queue.inqueue, firm)

    def exceeds(self, queue: PlainQueue, group: PlainGroup) -> bool:
        """Whether the group's minimum exceeds a limit by itself."""
        members = self.minimum(group)
        valid = all(self.charge(pod) is not None for pod in members)
        return valid and not self.fits(queue, self.demand(group, members))

    def fits(self, queue: PlainQueue, need: dict[str, int], *others: dict[str, int]) -> bool:
        """Whether `need` and the `others` together are within the queue's limits."""
        total = dict(need)
        for amounts_of in others:
            add(total, amounts_of)
        for name in ("cpu", "memory"):
            if need.get(name, 0) > 0 and total[name] > queue.limit[name]:
                return False
        wanted = {card for card, n in need.items() if n > 0 and card not in ("cpu", "memory")}
        if any("|" not in card and total[card] > queue.limit.get(card, 0) for card in wanted):
            return False
        claims = {frozenset(key.split("|")): 0 for key, n in total.items() if "|" in key and n > 0}
        for key, n in total.items():
            if "|" in key and n > 0:
                claims[frozenset(key.split("|"))] += n
        touched = {part for card in wanted for part in card.split("|")}
        for size in range(1, len(claims) + 1):
            for chosen in combinations(claims, size):
                union = frozenset().union(*chosen)
                if union & touched:
                    used = sum(min(total.get(card, 0), queue.limit.get(card, 0)) for card in union)
                    reserved = sum(n for key, n in claims.items() if key <= union)
                    if used + reserved > sum(queue.limit.get(card, 0) for card in union):
                        return False
        return True

    # --- placement --------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, str]:
        """Admit, then place group by group; returns what was placed."""
        heaps: dict[str, list[tuple[Any, PlainGroup]]] = {}
        for queue in self.queues.values():
            self.admit(queue)
            groups = [group for group in queue.groups if group.phase != "Pending" and self.valid(group)]
            heaps[queue.name] = sorted((self.group_key(group), group) for group in groups)
        while heaps := {name: heap for name, heap in heaps.items() if heap}:
            queue = min((self.queues[name] for name in heaps), key=_queue_key)
            _, group = heappop(heaps[queue.name])
            if self.place_group(queue, group):
                heappush(heaps[queue.name], (self.group_key(group), group))
        return self.decisions

    def group_key(self, group: PlainGroup) -> tuple[int, bool, bool, float, float, str]:
        """Priority, degraded gangs, gangs that are not ready, the smaller dominant share, age, name."""
        shares = (amount / self.total[name] for name, amount in group.held.items() if self.total.get(name))
        share = max(shares, default=0.0)
        return (-group.priority, group.ready, not group.degraded, share, group.created, group.name)

    def valid(self, group: PlainGroup) -> bool:
        """Whether the group has enough members alive to reach its minimum at all."""
        return len(group.placed) + len(group.waiting) + group.done >= group.minimum

    def place_group(self, queue: PlainQueue, group: PlainGroup) -> bool:
        """One visit: all up to the minimum or nothing, beyond it a batch. Returns whether another visit may help."""
        was_ready = group.ready
        placed: list[PlainPod] = []
        todo = sorted((pod for pod in group.waiting if not pod.best_effort and not pod.failed), key=_task_key)
        budget = self.weights.elastic_batch if was_ready else len(todo)
        while todo and budget and (was_ready or not group.ready):
            pod = todo.pop(0)
            budget -= 1
            found = self.find_node(queue, pod)
            if found is None:
                pod.failed = True
                alive = sum(not other.failed for other in group.waiting)
                if len(group.placed) + group.done + alive < group.minimum:
                    break
            else:
                self.put(queue, group, pod, *found)
                placed.append(pod)
        if not group.ready:
            for pod in placed:
                self.take_back(queue, group, pod)
            return False
        return bool(todo)

    def put(self, queue: PlainQueue, group: PlainGroup, pod: PlainPod, node: PlainNode, card: str) -> None:
        """Place a pod and charge its queue."""
        node.take(pod)
        pod.charge = self.charge(pod, node, card) or {}
        add(queue.allocated, pod.charge)
        group.waiting.remove(pod)
        group.placed.append(pod)
        add(group.held, pod.request)
        self.decisions[pod.name] = node.name

    def take_back(self, queue: PlainQueue, group: PlainGroup, pod: PlainPod) -> None:
        """Undo `put`."""
        self.by_name[self.decisions.pop(pod.name)].take(pod, -1)
        add(queue.allocated, pod.charge, -1)
        pod.charge = {}
        group.placed.remove(pod)
        add(group.held, pod.request, -1)
        group.waiting.append(pod)

    def find_node(self, queue: PlainQueue, pod: PlainPod) -> tuple[PlainNode, str] | None:
        """The best node that passes every rule, and the card charged there; the first by name among equals."""
        charge = self.charge(pod)
        if charge is None or not self.quota_allows(queue, charge):
            return None
        best: tuple[PlainNode, str] | None = None
        best_score = 0.0
        for node in self.nodes:
            if not fits(pod, node) or not matches(pod, node):
                continue
            card = self.card_on(queue, pod, node, charge)
            if card is None:
                continue
            score = self.score(pod, node, card)
            if best is None or score > best_score:
                best, best_score = (node, card), score
        return best

    def quota_allows(self, queue: PlainQueue, charge: dict[str, int]) -> bool:
        """Whether cpu, memory and one of the cards still fit the queue's limits."""
        for name, amount in charge.items():
            rooms = [queue.limit.get(part, 0) - queue.allocated.get(part, 0) for part in name.split("|")]
            if amount > 0 and max(rooms) < amount:
                return False
        return True

    def card_on(self, queue: PlainQueue, pod: PlainPod, node: PlainNode, charge: dict[str, int]) -> str | None:
        """The card the pod would get here; "" when it needs none, None when this node has none for it."""
        known = self.known(pod)
        if len(known) < 2:
            return (known[0] if known[0] in node.cards else None) if known else ""
        count = charge["|".join(known)]
        for card in known:
            if card in node.cards and (not count or queue.allocated.get(card, 0) + count <= queue.limit.get(card, 0)):
                return card
        return None

    def score(self, pod: PlainPod, node: PlainNode, card: str) -> float:
        """The sum of all scores."""
        weights = self.weights
        score = weights.least * least_requested(pod, node) + weights.balanced * balanced(pod, node)
        total = score + binpack(pod, node, weights.binpack)
        if len(self.known(pod)) > 1:
            total += 100 * 0.5 ** pod.alternatives.index(card) * weights.card
        return total


def _task_key(pod: PlainPod) -> tuple[int, int, float, str]:
    return pod.key


def _queue_key(queue: PlainQueue) -> tuple[int, float, float, str]:
    return (-queue.priority, queue.share, queue.created, queue.name)
