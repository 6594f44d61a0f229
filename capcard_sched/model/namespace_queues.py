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


def is_reference(reference: str) -> bool:
    """Whether a workload may name a queue so."""
    return _NAME.fullmatch(reference.removeprefix(_LOCAL)) is not None


def missing_text(queue: str) -> str:
    """Why no queue has the id of a workload's reference."""
    namespace, slash, name = queue.partition("/")
    if not slash:
        return f"Queue <{queue}> does not exist"
    if not namespace:
        return f"<{name}> is no reference to a queue; accepted: {QUEUE_FORM}"
    return f"NamespaceQueue <{name}> of namespace {namespace} does not exist"


def queue_ref(queue: str, uid: str = "") -> ObjectRef:
    """The object of a queue, by id."""
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
        tuple(str(one) for one in allowed) if isinstance(allowed, list) else (),
        _amounts(body.get("capability")),
        _amounts(body.get("deserved")),
        _amounts(guarantee.get("resource") if isinstance(guarantee, dict) else None),
        problem,
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


_READY: Final = Readiness("Ready", "")


class QueueForest:
    """Queues and NamespaceQueues by id, with the readiness of the latter."""

    def __init__(self, nodes: Mapping[str, QueueNode]) -> None:
        """`nodes` must not change while the forest is in use."""
        self._nodes = nodes
        self._children: dict[str, list[str]] = {}
        #: `_excess` by queue, and the sums over the children of a queue by its id and the field: queues of one parent
        #: share them, and those below it.
        self._excesses: dict[str, str] = {}
        self._sums: dict[tuple[str, str], Mapping[str, int]] = {}
        for name, node in nodes.items():
            if node.parent:
                self._children.setdefault(node.parent, []).append(name)

    def readiness(self, queue: str) -> Readiness:
        """The readiness of a NamespaceQueue; the cause nearest to the Queue counts, and the lowest of equal ones."""
        namespace, trail, current = queue.partition("/")[0], dict[str, None](), queue
        while "/" in current:
            node = self._nodes.get(current)
            if current in trail:
                return Readiness("HierarchyCycle", f"{current} is below itself: {' below '.join([*trail, current])}")
            if node is None:
                return Readiness(
                    "ParentNotFound", f"parent {_shown(current)} of {next(reversed(trail))} does not exist"
                )
            if node.problem is not None:
                return Readiness(*node.problem)
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
        return _READY

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
        parent = self._nodes[node.parent]
        for field in ("guarantee", "deserved"):
            limits, sums = getattr(parent, field), self._summed(node.parent, field)
            for name in sorted(limits.keys() & sums.keys()):
                if sums[name] > limits[name]:
                    total, most = format_amount(name, sums[name]), format_amount(name, limits[name])
                    return f"{field} of {name} below {_shown(node.parent)} adds up to {total}, above its {most}"
        return ""

    def _summed(self, parent: str, field: str) -> Mapping[str, int]:
        """The sum of a field over the children of a queue, by resource."""
        found = self._sums.get((parent, field))
        if found is None:
            sums: dict[str, int] = {}
            for child in self._children[parent]:
                for name, amount in getattr(self._nodes[child], field).items():
                    sums[name] = sums.get(name, 0) + amount
            found = self._sums[parent, field] = sums
        return found

    def _capability_above(self, queue: str, resource: str) -> tuple[str, int | None]:
        """The nearest queue above with a capability of a resource."""
        seen, current = {queue}, self._nodes[queue].parent
        while current and current not in seen and current in self._nodes:
            seen.add(current)
            if resource in self._nodes[current].capability:
                return current, self._nodes[current].capability[resource]
            current = self._nodes[current].parent
        return "", None


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
