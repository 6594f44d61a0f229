"""NamespaceQueues: queues of a namespace below a Queue that allows the namespace (`spec.allowedNamespaces`).

The id of a NamespaceQueue is `<namespace>/<name>`, that of a Queue its name. A workload names a NamespaceQueue of its
own namespace as `namespace/<name>`. The parent of a NamespaceQueue is `<name>`, in its namespace, or `cluster/<queue>`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.objects import ApiStruct, ObjectMeta, QueueObject, QueueSpec, QueueStatus
from capcard_sched.model.quantity import QuantityError, base_amount, format_amount
from capcard_sched.model.queue import DEFAULT, ROOT
from capcard_sched.model.quoting import escaped
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NAMESPACE_QUEUE: Final = "NamespaceQueue"
#: Prefix of a reference of a workload, and of a reference to a parent that is a Queue.
_LOCAL, _CLUSTER = "namespace/", "cluster/"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
QUEUE_FORM: Final = "NAME, or namespace/NAME for a NamespaceQueue of the namespace"
PARENT_FORM: Final = "NAME of a NamespaceQueue of the namespace, or cluster/NAME of a Queue other than root"
ALLOWED_FORM: Final = 'names of namespaces, or "*" alone'
#: The only entry of `allowedNamespaces` that is no name.
EVERY_NAMESPACE: Final = "*"
#: NamespaceQueues between a Queue and the lowest NamespaceQueue, this included.
MOST_LEVELS: Final = 16
#: Names in a text, at each end of a list.
_NAMED: Final = 4


class NamespaceQueueObject(ApiStruct, frozen=True, tag=NAMESPACE_QUEUE, tag_field="kind"):
    metadata: ObjectMeta = ObjectMeta()
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()


def as_queue(obj: NamespaceQueueObject) -> QueueObject:
    """The Queue that a NamespaceQueue is in the tree: its id as name, and that of its parent. Raises ParentError."""
    meta, spec = obj.metadata, obj.spec
    namespace = meta.namespace or ""
    parent = parent_id(spec.parent or "", namespace)
    return QueueObject(
        msgspec.structs.replace(meta, name=f"{namespace}/{meta.name}", namespace=None),
        msgspec.structs.replace(spec, parent=parent, weight=None, affinity=None),
        obj.status,
    )


def queue_id(reference: str, namespace: str) -> str:
    """The id of the queue that a workload of a namespace names.

    A malformed reference with a slash is returned with a slash before it: no queue has such an id.
    """
    if "/" not in reference:
        return reference
    name = reference.removeprefix(_LOCAL)
    is_valid = name != reference and _NAME.fullmatch(name) is not None
    return f"{namespace}/{name}" if is_valid else f"/{reference}"


def missing_text(queue: str) -> str:
    """Why no queue has the id of a workload's reference."""
    namespace, slash, name = queue.partition("/")
    if not slash:
        return f"Queue <{queue}> does not exist"
    if not namespace:
        return f"<{name}> is no reference to a queue; accepted: {QUEUE_FORM}"
    return f"NamespaceQueue <{name}> of namespace {namespace} does not exist"


def queue_ref(queue: str, uid: str = "") -> ObjectRef:
    """The reference of a queue: a NamespaceQueue for an id `namespace/name`, else a Queue."""
    namespace, slash, name = queue.partition("/")
    return ObjectRef(NAMESPACE_QUEUE, namespace, name, uid) if slash else ObjectRef("Queue", "", queue, uid)


Reason: TypeAlias = Literal[
    "Ready",
    "ParentNotFound",
    "NamespaceNotAllowed",
    "RootParentForbidden",
    "HierarchyCycle",
    "InvalidParentReference",
    "ParentConstraintViolation",
]


class ParentError(ValueError):
    """A reference to a parent that is none."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


def parent_id(reference: str, namespace: str) -> str:
    """The id of the parent of a NamespaceQueue. Raises ParentError."""
    if not reference:
        return DEFAULT
    name = reference.removeprefix(_CLUSTER)
    if _NAME.fullmatch(name) is None:
        message = f"spec.parent: {escaped(reference[:256])} is no reference; accepted: {PARENT_FORM}"
        raise ParentError("InvalidParentReference", message)
    if name == reference:
        return f"{namespace}/{name}"
    if name == ROOT:
        raise ParentError("RootParentForbidden", f"spec.parent: cluster/root; accepted: {PARENT_FORM}")
    return name


class QueueNode(NamedTuple):
    """What decides on the NamespaceQueues at and below one queue."""

    #: Id of the parent; "" for root, and for an invalid reference.
    parent: str
    allowed: Sequence[str] = ()
    capability: Mapping[str, int] = {}
    deserved: Mapping[str, int] = {}
    guarantee: Mapping[str, int] = {}
    #: Of an invalid reference.
    problem: tuple[Reason, str] | None = None
    #: Unix seconds.
    created: float = 0.0


def queue_node(obj: Mapping[str, Any], *, is_local: bool) -> QueueNode:
    """The node of a Queue, or with `is_local` of a NamespaceQueue, as JSON; invalid amounts count as absent."""
    meta, body, problem = obj["metadata"], obj.get("spec") or {}, None
    name, allowed, reference = str(meta.get("name")), body.get("allowedNamespaces"), str(body.get("parent") or "")
    if is_local:
        try:
            parent = parent_id(reference, str(meta.get("namespace") or "default"))
        except ParentError as error:
            parent, problem = "", (error.reason, str(error))
    else:
        parent = "" if name == ROOT else reference or ROOT
        allowed = [EVERY_NAMESPACE] if allowed is None and name == DEFAULT else allowed
    guarantee = body.get("guarantee")
    return QueueNode(
        parent,
        tuple(str(one) for one in allowed) if isinstance(allowed, list | tuple) else (),
        _amounts(body.get("capability")),
        _amounts(body.get("deserved")),
        _amounts(guarantee.get("resource") if isinstance(guarantee, dict) else None),
        problem,
        parse_time(str(meta.get("creationTimestamp") or "")),
    )


def _amounts(raw: Any) -> dict[str, int]:
    found = {}
    for name, quantity in raw.items() if isinstance(raw, dict) else ():
        try:
            amount = base_amount(name, quantity)
        except (QuantityError, TypeError, AttributeError):
            continue
        if amount is not None:
            found[name] = amount
    return found


class Readiness(NamedTuple):
    """Whether pods of a NamespaceQueue may start."""

    reason: Reason
    message: str

    @property
    def is_ready(self) -> bool:
        """Whether it is ready."""
        return self.reason == "Ready"

    @property
    def is_authorized(self) -> bool:
        """Whether a Queue allows its namespace."""
        return self.reason in ("Ready", "ParentConstraintViolation")

    @property
    def has_place(self) -> bool:
        """Whether the queues above it end at a Queue."""
        return self.is_authorized or self.reason == "NamespaceNotAllowed"


class QueueForest:
    """Queues and NamespaceQueues by id, with the readiness of the latter."""

    def __init__(self, nodes: Mapping[str, QueueNode], children: Mapping[str, Iterable[str]] | None = None) -> None:
        """Neither may change while the forest is in use. `children`: by parent, those of `nodes`; None: to be found."""
        self._nodes = nodes
        self._children = _children(nodes) if children is None else children
        #: `_excess` by queue, and `sums_below` by parent: queues of one parent share them, and those below it.
        self._excesses: dict[str, str] = {}
        self._sums: dict[str, Mapping[str, str]] = {}

    def readiness(self, queue: str) -> Readiness:
        """The readiness of a NamespaceQueue; the cause nearest to the Queue counts, and the lowest of equal ones."""
        namespace, trail, current = queue.partition("/")[0], dict[str, None](), queue
        while "/" in current:
            node = self._nodes.get(current)
            if current in trail:
                return Readiness("HierarchyCycle", f"{current} is below itself: {circle([*trail, current])}")
            if node is None:
                return Readiness(
                    "ParentNotFound", f"parent {_shown(current)} of {next(reversed(trail))} does not exist"
                )
            if node.problem is not None:
                return Readiness(*node.problem)
            if len(trail) == MOST_LEVELS:
                return Readiness(
                    "InvalidParentReference", f"{queue} has {MOST_LEVELS} or more NamespaceQueues above it"
                )
            trail[current] = None
            current = node.parent
        top = self._nodes.get(current)
        if top is None:
            return _without_parent(current, trail)
        if not allows(top.allowed, namespace):
            message = f"spec.allowedNamespaces of queue {current} does not contain namespace {namespace}"
            return Readiness("NamespaceNotAllowed", message)
        for name in reversed(trail):
            if name not in self._excesses:
                self._excesses[name] = self._excess(name)
            if self._excesses[name]:
                return Readiness("ParentConstraintViolation", self._excesses[name])
        return Readiness("Ready", self._left_out(queue))

    def counted(self, queue: str, field: Literal["deserved", "guarantee"]) -> Mapping[str, int]:
        """Amounts of a NamespaceQueue that is ready, of resources that all queues above it have in the field."""
        amounts: Mapping[str, int] = getattr(self._nodes[queue], field)
        current = queue
        while amounts and "/" in current:
            current = self._nodes[current].parent
            above = getattr(self._nodes[current], field)
            amounts = {name: amount for name, amount in amounts.items() if name in above}
        return amounts

    def _left_out(self, queue: str) -> str:
        """Which amounts of a queue do not count; "" for none."""
        found = []
        for field in ("guarantee", "deserved"):
            left = getattr(self._nodes[queue], field).keys() - self.counted(queue, field).keys()
            if left:
                found.append(f"{field} of {', '.join(sorted(left)[:_NAMED])}")
        text = " and ".join(found)
        return f"{text} has no effect: not every queue above {queue} has it" if found else ""

    def _excess(self, queue: str) -> str:
        """The amounts of a queue that contradict each other or those above it; "" for none."""
        node = self._nodes[queue]
        own: tuple[tuple[str, Mapping[str, int], str, Mapping[str, int]], ...] = (
            ("guarantee", node.guarantee, "deserved", node.deserved),
            ("deserved", node.deserved, "capability", node.capability),
            ("guarantee", node.guarantee, "capability", node.capability),
        )
        for less, amounts, more, limits in own:
            for name in sorted(amounts.keys() & limits.keys()):
                if amounts[name] > limits[name]:
                    return f"{less} of {name} of {queue} is above its {more}"
        for name in sorted(node.capability):
            owner, limit = self._capability_above(queue, name)
            if limit is not None and node.capability[name] > limit:
                return f"capability of {name} of {queue} is above that of {_shown(owner)}, {format_amount(name, limit)}"
        if node.parent not in self._sums:
            self._sums[node.parent] = self.sums_below(node.parent)
        sums = self._sums[node.parent]
        return sums.get("") or sums.get(queue.partition("/")[0], "")

    def sums_below(self, parent: str) -> Mapping[str, str]:
        """By namespace, the sum that exceeds the amount of a queue; by "" that of the Queues below it alone.

        Queues count first, then the namespaces in the order of their oldest NamespaceQueue there: a namespace that
        exceeds what is left does not stop those before it, and does not count for those after it.
        """
        groups: dict[str, list[QueueNode]] = {}
        for child in self._children.get(parent, ()):
            if shares_a_sum(self._nodes[child], self._nodes[parent]):
                groups.setdefault(child.partition("/")[0] if "/" in child else "", []).append(self._nodes[child])
        order = sorted(groups, key=lambda one: (one != "", min(each.created for each in groups[one]), one))
        found: dict[str, str] = {}
        for field in ("guarantee", "deserved"):
            limits: Mapping[str, int] = getattr(self._nodes[parent], field)
            totals = dict.fromkeys(limits, 0)
            for namespace in order:
                if namespace in found or ("/" not in parent and not self._counts(parent, namespace)):
                    continue
                sums = dict(totals)
                for node in groups[namespace]:
                    for name, amount in getattr(node, field).items():
                        if name in sums:
                            sums[name] += amount
                beyond = min((name for name, amount in sums.items() if amount > limits[name]), default="")
                if beyond:
                    total, most = format_amount(beyond, sums[beyond]), format_amount(beyond, limits[beyond])
                    what = f"{field} of {beyond} below {_shown(parent)}"
                    found[namespace] = f"{what} adds up to {total}, above its {most}"
                else:
                    totals = sums
        return found

    def _counts(self, queue: str, namespace: str) -> bool:
        return not namespace or allows(self._nodes[queue].allowed, namespace)

    def _capability_above(self, queue: str, resource: str) -> tuple[str, int | None]:
        """The nearest queue above with a capability of a resource."""
        seen, current = {queue}, self._nodes[queue].parent
        while current and current not in seen and current in self._nodes:
            seen.add(current)
            if resource in self._nodes[current].capability:
                return current, self._nodes[current].capability[resource]
            current = self._nodes[current].parent
        return "", None


def shares_a_sum(node: QueueNode, above: QueueNode) -> bool:
    """Whether the amounts of a queue count in a sum that the queue above it limits."""
    return not (node.deserved.keys().isdisjoint(above.deserved) and node.guarantee.keys().isdisjoint(above.guarantee))


def _children(nodes: Mapping[str, QueueNode]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, node in nodes.items():
        if node.parent:
            found.setdefault(node.parent, []).append(name)
    return found


def circle(names: Sequence[str], separator: str = " below ") -> str:
    """Names of queues, each below the next; those in the middle of a long list are counted."""
    if len(names) > 2 * _NAMED:
        names = [*names[:_NAMED], f"{len(names) - 2 * _NAMED} more", *names[-_NAMED:]]
    return separator.join(names)


def _without_parent(parent: str, trail: Mapping[str, None]) -> Readiness:
    """The readiness of queues below a parent that does not exist. `trail`: ids, that of its child last."""
    return Readiness("ParentNotFound", f"parent {_shown(parent)} of {[*trail][-1]} does not exist")


def _shown(queue: str) -> str:
    return queue if "/" in queue else f"cluster/{queue}"


def allows(allowed: Iterable[str], namespace: str) -> bool:
    """Whether `allowedNamespaces` has a namespace; an invalid list has none."""
    entries = tuple(allowed)
    return not allowed_problem(entries) and (entries == (EVERY_NAMESPACE,) or namespace in entries)


def allowed_problem(allowed: Sequence[str]) -> str:
    """What is wrong with `allowedNamespaces`; "" for nothing."""
    if EVERY_NAMESPACE in allowed and len(allowed) > 1:
        return '"*" stands beside names'
    wrong = next((one for one in allowed if one != EVERY_NAMESPACE and not _NAME.fullmatch(one)), None)
    return "" if wrong is None else f"{escaped(wrong[:64])!r} is no name of a namespace"
