"""The quotas and cards of all queues and nodes in the input of the checks, and readers of plain JSON objects.

Objects may be malformed; nothing here raises.
"""

from __future__ import annotations

import difflib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from capcard_sched.model import annotations as keys
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.cards import CARD, CardSyntaxError, discover_cards, is_card_quota, parse_card_quota
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.kube_groups import KUBE_GROUP
from capcard_sched.model.namespace_queues import (
    EVERY_NAMESPACE,
    NAMESPACE_QUEUE,
    QUEUE_FORM,
    QueueForest,
    QueueNode,
    Readiness,
    queue_node,
)
from capcard_sched.model.quantity import QuantityError, base_amount
from capcard_sched.model.queue import ROOT, NamespaceRule, namespace_rule
from capcard_sched.model.resources import CPU, MEMORY, VGPU_RESOURCES, similar_resource
from capcard_sched.validation.checks import Finding, annotation_field, listed
from capcard_sched.validation.hint_checks import parent_problem
from capcard_sched.validation.late_members import FirstPods, first_pods
from capcard_sched.validation.queue_tree import NO_AMOUNTS, QueueAmounts, QueueTree, amounts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from capcard_sched.validation.checks import UnnamedCards
    from capcard_sched.validation.hint_checks import QuotaPlugins

Json: TypeAlias = dict[str, Any]

#: Queues that always exist.
BUILT_IN_QUEUES: Final = frozenset({"default", "root"})


class Inventory:
    """Quotas and cards of all queues and nodes in the input."""

    def __init__(self, objects: Iterable[Json], plugins: QuotaPlugins | None = None) -> None:
        """`plugins`: those of the scheduler-conf; None if it is unknown."""
        #: Queue name to its card quota in thousandths; None when the annotation is malformed.
        self.quotas: dict[str, dict[str, int] | None] = {}
        #: Queue name to `spec.parent`, and the queues with a card quota: parents among them limit their subtree.
        self._parents: dict[str, str] = {}
        self._children: Counter[str] = Counter()
        self._limiting: set[str] = set()
        #: Queue name to the rule of the namespaces whose jobs it accepts; the labels of the Namespaces.
        self.namespace_rules: dict[str, NamespaceRule] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        #: Namespace to the queue of its workloads that name none.
        self.namespace_queues: dict[str, str] = {}
        #: Queues and NamespaceQueues of the input by id.
        self._nodes: dict[str, QueueNode] = {}
        self._forest: QueueForest | None = None
        #: Amounts of resources of the Queues.
        self.tree = QueueTree()
        #: Card to thousandths over all nodes.
        self.cards: dict[str, int] = {}
        #: Card of a node to the resources that count it there.
        self.card_resources: dict[str, set[str]] = {}
        card_labels = DEFAULT_CARD_LABELS if plugins is None else plugins.card_labels
        #: Resources that count cards on a node, and those that `cardLabels` names.
        self.resources: set[str] = set(card_labels.given)
        #: Device resource to the thousandths whose model no label names, by the label that is missing.
        self.unlabelled: dict[str, Counter[str]] = {}
        #: Resources that nodes or DeviceClasses offer.
        self.offered: set[str] = set()
        self.has_nodes = False
        #: Name of a node to its labels.
        self.node_labels: dict[str, dict[str, str]] = {}
        #: Whether queues without a card quota have no limit of cards.
        self.unlimited_cards = plugins is not None and plugins.unlimited_cards
        #: How pods without a card name are charged.
        self.unnamed_cards: UnnamedCards = "" if plugins is None else plugins.unnamed_cards
        #: Whether devices are allocated to ResourceClaims.
        self.allocates_claims = plugins is None or plugins.allocates_claims
        #: Whether the objects are all those of a cluster, not of files.
        self.is_cluster = False
        #: Names of the PriorityClasses; None when they are unknown.
        self.priority_classes: set[str] | None = None
        #: Names of the DeviceClasses.
        self.device_classes: set[str] = set()
        #: Namespace and name of a PodGroup to the pods of it that exist first.
        self.first_pods: dict[tuple[str, str], FirstPods] = {}
        #: Namespaces and names of the PodGroups.
        self.groups: set[tuple[str, str]] = set()
        #: The same of those of scheduling.k8s.io.
        self.kube_groups: set[tuple[str, str]] = set()
        for obj in objects:
            self.first_pods.update({(namespace, name): first for namespace, name, first in first_pods(obj)})
            if kind_of(obj) == "Queue":
                text = texts(obj, "metadata", "annotations").get(keys.CARD_QUOTA, "")
                amounts = amounts_of(as_map(obj.get("spec")))
                self.set_queue(object_name(obj), text, str(value_at(obj, "spec", "parent") or ROOT), amounts)
                self._nodes[object_name(obj)] = queue_node(obj, is_local=False)
                accepted = texts(obj, "metadata", "annotations").get(keys.QUEUE_NAMESPACES)
                if accepted is not None:
                    self.namespace_rules[object_name(obj)] = namespace_rule(accepted)
            elif kind_of(obj) == "Namespace":
                self.namespaces[object_name(obj)] = texts(obj, "metadata", "labels")
                self.namespace_queues[object_name(obj)] = texts(obj, "metadata", "annotations").get(
                    keys.POD_QUEUE_NAME, ""
                )
            elif kind_of(obj) == NAMESPACE_QUEUE:
                text = texts(obj, "metadata", "annotations").get(keys.CARD_QUOTA, "")
                queue, node = f"{namespace_of(obj)}/{object_name(obj)}", queue_node(obj, is_local=True)
                self.set_queue(queue, text, node.parent, amounts_of(as_map(obj.get("spec"))))
                self._nodes[queue] = node
            elif kind_of(obj) == "Node":
                self.has_nodes = True
                labels = texts(obj, "metadata", "labels")
                self.node_labels[object_name(obj)] = labels
                amounts_of_node = allocatable(obj)
                self.offered.update(name for name, amount in amounts_of_node.items() if amount)
                offered = discover_cards(labels, amounts_of_node, card_labels).cards
                for card, (amount, resource) in offered.items():
                    self.cards[card] = self.cards.get(card, 0) + amount
                    self.resources.add(resource)
                    self.card_resources.setdefault(card, set()).add(resource)
                    if card == resource:
                        label = card_labels.missing(resource, labels)
                        self.unlabelled.setdefault(card, Counter())[label and f"label {label}"] += amount
            elif kind_of(obj) == "PodGroup":
                self.groups.add((namespace_of(obj), object_name(obj)))
            elif kind_of(obj) == KUBE_GROUP:
                self.kube_groups.add((namespace_of(obj), object_name(obj)))
            elif obj.get("kind") == "DeviceClass":
                self.device_classes.add(object_name(obj))
                self.offered.add(str(value_at(obj, "spec", "extendedResourceName") or ""))

    def set_queue(self, name: str, quota: str, parent: str, amounts: QueueAmounts = NO_AMOUNTS) -> None:
        """Add or replace a queue; `quota`: the text of its annotation, "" without one."""
        self.drop_queue(name)
        if "/" not in name:
            self.tree.set_queue(name, parent, amounts)
        self.quotas[name] = _quota(quota)
        if name != ROOT:
            self._parents[name] = parent
            self._children[parent] += 1
        if is_card_quota(quota):
            self._limiting.add(name)

    def drop_queue(self, name: str) -> None:
        """Remove a queue; one that is unknown is ignored."""
        self.quotas.pop(name, None)
        self.tree.drop_queue(name)
        if name in self._parents:
            self._children[self._parents.pop(name)] -= 1
        self._limiting.discard(name)

    def readiness(self, queue: str) -> Readiness:
        """Whether pods of a NamespaceQueue of the input may start. The first call takes O(queues)."""
        if self._forest is None:
            built_in = {name: QueueNode("", (EVERY_NAMESPACE,)) for name in BUILT_IN_QUEUES}
            self._forest = QueueForest({**built_in, **self._nodes})
        return self._forest.readiness(queue)

    def misspelt_resource(self, name: str) -> str:
        """The resource of a node of the input that a name most likely misspells; "" for none."""
        is_known = name in self.offered or name in VGPU_RESOURCES or not self.has_nodes or self.is_cluster
        return "" if is_known else similar_resource(name, self.offered)

    def resources_of_nodes(self) -> set[str]:
        """Resources that nodes offer, cpu and memory included, and no card is named after."""
        return {CPU, MEMORY, *self.offered} - self.cards.keys()

    def is_parent(self, name: str) -> bool:
        """Whether other queues name this one as their parent."""
        return self._children[name] > 0

    def parent_problem(self, name: str) -> Finding | None:
        return parent_problem(name, self._parents, "is not among the queues in the input")

    def has_card_quota(self, name: str) -> bool:
        """Whether a queue has a card quota, malformed ones included."""
        return name in self._limiting

    def limits_above(self, queue: str) -> Iterator[tuple[str, dict[str, int]]]:
        """The ancestors of a queue that have a card quota, nearest first, each with its quota in thousandths."""
        for ancestor in self.ancestors(queue):
            if ancestor in self._limiting:
                yield ancestor, self.quotas[ancestor] or {}

    def ancestors(self, queue: str) -> Iterator[str]:
        """The queues above a queue, nearest first; each once, where their parents form a cycle."""
        seen = {queue}
        while (queue := self._parents.get(queue, "")) and queue not in seen:
            seen.add(queue)
            yield queue

    def overview(self) -> list[Finding]:
        """Notes on card quotas whose sum exceeds the cards of the nodes."""
        if not self.has_nodes:
            return []
        reserved: dict[str, int] = {}
        for quota in self.quotas.values():
            for card, amount in (quota or {}).items():
                reserved[card] = reserved.get(card, 0) + amount
        field = annotation_field(keys.CARD_QUOTA)
        unlabelled = " and ".join(
            f"{amount // CARD} x {resource} without {label or 'a product label'}"
            for resource, amounts in sorted(self.unlabelled.items())
            for label, amount in sorted(amounts.items())
        )
        more = f" (and {unlabelled})" if unlabelled else ""
        return [
            Finding(
                "note",
                field,
                f"quotas of all queues add up to {amount // CARD} x {card}, "
                f"the nodes have {self.cards.get(card, 0) // CARD}{more}",
            )
            for card, amount in sorted(reserved.items())
            if amount > self.cards.get(card, 0) and card not in self.resources_of_nodes()
        ]


def _quota(text: str) -> dict[str, int] | None:
    try:
        return parse_card_quota(text)
    except CardSyntaxError:
        return None


def allocatable(node: Json) -> dict[str, int]:
    """`status.allocatable` (else `status.capacity`) in base units; invalid quantities count as 0."""
    raw = as_map(value_at(node, "status", "allocatable") or value_at(node, "status", "capacity"))
    return {name: base_amount_of(name, quantity) for name, quantity in raw.items()}


def texts(obj: Json, *path: str) -> dict[str, str]:
    """The entries below `path` with string values."""
    found = value_at(obj, *path)
    if not found or not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def base_amount_of(name: str, raw: Any) -> int:
    """The quantity in base units; 0 for an invalid one."""
    try:
        return base_amount(name, raw) or 0 if isinstance(raw, (str, int, float)) else 0
    except QuantityError:
        return 0


def value_at(value: Any, *path: str) -> Any:
    """The value at a path of keys; None if a key is missing."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def as_map(value: Any) -> Json:
    """The value, when it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_maps(value: Any) -> list[Json]:
    """The mappings of a list; none when it is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def namespace_of(obj: Json) -> str:
    """`metadata.namespace`, `default` without one."""
    return str(value_at(obj, "metadata", "namespace") or "default")


def object_name(obj: Json) -> str:
    """`metadata.name`, "" without one."""
    return str(value_at(obj, "metadata", "name") or "")


def check_queue(queue: str, field: str, inventory: Inventory) -> Iterator[Finding]:
    """An error about a malformed reference, or a warning about a missing queue; none without any queue in the input.

    `queue`: an id, as of `queue_id`.
    """
    if queue.startswith("/"):
        yield Finding("error", field, f"{queue[1:]} is no reference to a queue", QUEUE_FORM)
        return
    if queue and inventory.quotas and queue not in inventory.quotas and queue not in BUILT_IN_QUEUES:
        missing = "does not exist" if inventory.is_cluster else "is not among the queues in the input"
        namespace, slash, name = queue.partition("/")
        subject = f"NamespaceQueue {name} of namespace {namespace}" if slash else f'queue "{queue}"'
        known = [one for one in inventory.quotas if "/" not in one or one.startswith(f"{namespace}/")]
        yield Finding("warning", field, f"{subject} {missing}{meant(queue, known)}", listed(known))


def meant(name: str, known: Collection[str]) -> str:
    """The end of a sentence about an unknown name: the closest known one, or ""."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
