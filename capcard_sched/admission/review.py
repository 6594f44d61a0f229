"""Reviews of admission: the verdict, its patch and warnings, and the queues as the rules see them."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from capcard_sched.model import annotations as keys
from capcard_sched.model.decode_errors import field_problem
from capcard_sched.model.namespace_queues import QueueNode, queue_node
from capcard_sched.validation.checks import Finding, capped
from capcard_sched.validation.inventory import Inventory, Json
from capcard_sched.validation.queue_tree import amounts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from capcard_sched.model.namespace_queues import NamespaceQueueObject
    from capcard_sched.model.objects import QueueObject

ROOT_QUEUE: Final = "root"
DEFAULT_QUEUE: Final = "default"


class QueueEntry(NamedTuple):
    """One queue as the API server stores it."""

    name: str
    #: Name of the parent queue; "" for root.
    parent: str
    #: `status.state`; "" until the queue controller has set it.
    state: str
    #: `status.allocated` as written, such as {"pods": "3"}.
    allocated: Mapping[str, object]
    #: Path of `volcano.sh/hierarchy`, "" without one.
    hierarchy: str


class LocalQueue(NamedTuple):
    """One NamespaceQueue as the API server stores it."""

    node: QueueNode
    allocated: Mapping[str, object]

    @property
    def parent(self) -> str:
        """Id of the parent; "" for an invalid reference."""
        return self.node.parent


class ClusterView:
    """Queues and namespaces, kept current by a watch. Reads are O(1) but for `children`, which is O(children)."""

    def __init__(self) -> None:
        self._queues: dict[str, QueueEntry] = {}
        #: Of the Queues.
        self._nodes: dict[str, QueueNode] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._default_queues: dict[str, str] = {}
        self._local: dict[str, LocalQueue] = {}
        #: Unknown queues that the present check looked up.
        self._missing: set[str] = set()
        #: Card quotas of the queues, in the form the shared checks use.
        self.inventory = Inventory(())
        self.inventory.is_cluster = True

    def set_queue(self, obj: QueueObject) -> None:
        """Add or replace a queue."""
        name, annotations = obj.metadata.name, obj.metadata.annotations or {}
        parent = "" if name == ROOT_QUEUE else obj.spec.parent or ROOT_QUEUE
        self.drop_queue(name)
        self._queues[name] = QueueEntry(
            name, parent, obj.status.state or "", obj.status.allocated or {}, annotations.get(keys.HIERARCHY, "")
        )
        self._nodes[name] = queue_node(msgspec.to_builtins(obj), is_local=False)
        if parent:
            self._children.setdefault(parent, {})[name] = None
        amounts = amounts_of(msgspec.to_builtins(obj.spec))
        self.inventory.set_queue(name, annotations.get(keys.CARD_QUOTA, ""), parent, amounts)

    def drop_queue(self, name: str) -> None:
        """Remove a queue; one that is unknown is ignored."""
        known = self._queues.pop(name, None)
        self._nodes.pop(name, None)
        self.inventory.drop_queue(name)
        if known is not None and known.parent:
            siblings = self._children[known.parent]
            del siblings[name]
            if not siblings:
                del self._children[known.parent]

    def set_namespace_queue(self, obj: NamespaceQueueObject) -> None:
        """Add or replace a NamespaceQueue."""
        queue, notes = f"{obj.metadata.namespace or ''}/{obj.metadata.name}", obj.metadata.annotations or {}
        node = queue_node(msgspec.to_builtins(obj), is_local=True)
        self._local[queue] = LocalQueue(node, obj.status.allocated or {})
        self.inventory.set_queue(queue, notes.get(keys.CARD_QUOTA, ""), node.parent)

    def drop_namespace_queue(self, queue: str) -> None:
        """Remove a NamespaceQueue by id, `namespace/name`; one that is unknown is ignored."""
        self._local.pop(queue, None)
        self.inventory.drop_queue(queue)

    def namespace_queue(self, queue: str) -> LocalQueue | None:
        """A NamespaceQueue by id, `namespace/name`."""
        return self._local.get(queue)

    def namespace_queues_below(self, queue: str) -> Sequence[str]:
        """Ids of the NamespaceQueues right below a queue of either kind, sorted. O(NamespaceQueues)."""
        return sorted(name for name, one in self._local.items() if one.parent == queue)

    def amounts_at(self, queue: str) -> dict[str, QueueNode]:
        """A queue of either kind and those right below it; empty for an unknown one. O(NamespaceQueues)."""
        local = self._local.get(queue)
        own = local.node if local is not None else self._nodes.get(queue)
        if own is None:
            return {}
        queues = {name: self._nodes[name] for name in self._children.get(queue, ())}
        return {queue: own, **queues, **{name: one.node for name, one in self._local.items() if one.parent == queue}}

    def set_namespace(self, name: str, queue: str) -> None:
        """Record the queue that a namespace names for its PodGroups; "" for none."""
        if queue:
            self._default_queues[name] = queue
        else:
            self._default_queues.pop(name, None)

    def set_priority_class(self, name: str) -> None:
        known = self.inventory.priority_classes or set()
        self.inventory.priority_classes = known | {name}

    def drop_priority_class(self, name: str) -> None:
        """Remove a PriorityClass. Without any, none is known: every cluster has those of the system."""
        known = (self.inventory.priority_classes or set()) - {name}
        self.inventory.priority_classes = known or None

    @contextmanager
    def including(self, queues: Sequence[QueueObject]) -> Iterator[None]:
        """These queues are known, too, in the context."""
        added = [queue for queue in queues if queue.metadata.name not in self._queues]
        for queue in added:
            self.set_queue(queue)
        try:
            yield
        finally:
            for queue in added:
                self.drop_queue(queue.metadata.name)

    @contextmanager
    def recording(self) -> Iterator[set[str]]:
        """The unknown queues that the checks in the context look up, without those of a check that interrupts them."""
        former, self._missing = self._missing, set()
        try:
            yield self._missing
        finally:
            self._missing = former

    def queue(self, name: str) -> QueueEntry | None:
        """A queue by name."""
        found = self._queues.get(name)
        if found is None:
            self._missing.add(name)
        return found

    def queues(self) -> Sequence[QueueEntry]:
        return list(self._queues.values())

    def children(self, name: str) -> Sequence[str]:
        """Names of the queues directly below a queue, sorted."""
        return sorted(self._children.get(name, ()))

    def default_queue(self, namespace: str) -> str:
        """The queue that a namespace names for PodGroups without one; "" when it names none."""
        return self._default_queues.get(namespace, "")


#: Characters of one warning: the API server cuts longer ones.
_WARNING_CHARACTERS: Final = 256
#: Characters of all warnings of one response: the API server drops what is beyond.
_WARNINGS_CHARACTERS: Final = 4096
#: Characters of one finding in the message of a rejected object.
_FINDING_CHARACTERS: Final = 2048


class ReviewError(ValueError):
    """A body that is no AdmissionReview v1. The text names the field and the accepted form."""


class GroupVersionKind(msgspec.Struct, frozen=True):
    """The type of the object under review."""

    group: str = ""
    version: str = ""
    kind: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """`request` of an AdmissionReview: the fields the webhooks use."""

    uid: str
    kind: GroupVersionKind
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
    name: str = ""
    namespace: str = ""
    object: Json | None = None
    old_object: Json | None = None

    @property
    def subject(self) -> Json:
        """The object to check: the new one, or the old one of a deletion; an empty object when there is neither."""
        return (self.old_object if self.operation == "DELETE" else self.object) or {}


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class ReviewHead(msgspec.Struct, frozen=True, rename="camel"):
    """The part of `request` that is read before a review has its turn."""

    uid: str
    name: str = ""
    namespace: str = ""
    user_info: _User = _User()

    @property
    def tenant(self) -> str:
        """The tenant that a review is charged to: its namespace, else the user."""
        return f"namespace {self.namespace}" if self.namespace else f"user {self.user_info.username}"


class _ReviewHead(msgspec.Struct, frozen=True):
    request: ReviewHead


class PatchOperation(msgspec.Struct, frozen=True):
    """One operation of a JSON patch (RFC 6902)."""

    op: Literal["add", "replace"]
    path: str
    value: Any


class AdmissionResult(msgspec.Struct, frozen=True):
    """What a webhook decided about one object; `verdict` makes one of findings."""

    #: Findings of severity "error" reject the object; all others become warnings.
    findings: tuple[Finding, ...] = ()
    patch: tuple[PatchOperation, ...] = ()

    @property
    def errors(self) -> list[Finding]:
        """The findings that reject the object."""
        return [finding for finding in self.findings if finding.severity == "error"]


def verdict(findings: Iterable[Finding]) -> AdmissionResult:
    """The result of the checks of an object, with a bounded number of findings; lazy checks end after many errors."""
    return AdmissionResult(tuple(capped(findings)))


class JsonPatch:
    """Collects the defaults of an object as JSON patch operations; values that are set stay."""

    def __init__(self, obj: Json) -> None:
        self.operations: list[PatchOperation] = []
        self._obj = obj

    def set(self, value: Any, *path: str | int) -> None:
        """Set the value at `path`. Missing parents are created as objects; an empty parent list stays as it is."""
        parent: Any = self._obj
        for depth, step in enumerate(path[:-1]):
            child = _child(parent, step)
            if child is None:
                child = {}
                self._write({}, path[: depth + 1])
                parent[step] = child
            parent = child
        self._write(value, path)
        parent[path[-1]] = value

    def _write(self, value: Any, path: Iterable[str | int]) -> None:
        pointer = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
        self.operations.append(PatchOperation("add", pointer, value))


def _child(parent: Any, step: str | int) -> Any:
    if isinstance(parent, list):
        return parent[step] if isinstance(step, int) and step < len(parent) else None
    return parent.get(step) if isinstance(parent, dict) else None


_decoder = msgspec.json.Decoder(_Review)


_head_decoder = msgspec.json.Decoder(_ReviewHead)


def decode_head(body: bytes) -> ReviewHead:
    """The identity of a review, without its objects. Raises ReviewError."""
    try:
        return _head_decoder.decode(body).request
    except (msgspec.DecodeError, RecursionError) as error:
        raise ReviewError(f"not an AdmissionReview: {field_problem(error)}") from None


def decode_review(body: bytes) -> AdmissionRequest:
    """The request of an AdmissionReview. Raises ReviewError."""
    try:
        review = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ReviewError(f"not an AdmissionReview: {field_problem(error)}") from None
    if review.api_version != "admission.k8s.io/v1" or review.kind != "AdmissionReview":
        raise ReviewError(
            f'"{review.api_version}" {review.kind or "object"} is not supported; '
            "accepted is an AdmissionReview of admission.k8s.io/v1"
        )
    if review.request is None:
        raise ReviewError("request is required")
    return review.request


def encode_review(request: AdmissionRequest, result: AdmissionResult) -> bytes:
    """The AdmissionReview with the response to `request`."""
    errors = result.errors
    response: Json = {"uid": request.uid, "allowed": not errors}
    if errors:
        response["status"] = _failure("; ".join(finding_text(finding) for finding in errors), HTTPStatus.FORBIDDEN)
    elif result.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(result.patch)).decode()
    warnings = _warnings(finding for finding in result.findings if finding.severity != "error")
    if warnings:
        response["warnings"] = warnings
    return _encode(response)


def encode_refusal(head: ReviewHead, message: str, code: HTTPStatus) -> bytes:
    """The AdmissionReview that refuses a review without a check of its object."""
    return _encode({"uid": head.uid, "allowed": False, "status": _failure(message, code)})


def _failure(message: str, code: HTTPStatus) -> Json:
    reason = "".join(word.capitalize() for word in code.name.split("_"))
    return {"status": "Failure", "reason": reason, "code": code.value, "message": message}


def _encode(response: Json) -> bytes:
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def finding_text(finding: Finding) -> str:
    """`spec.queue: cause (accepted: form)`, shortened."""
    text = f"{finding.field}: {finding.message.strip()}" if finding.field else finding.message.strip()
    text = f"{text.rstrip(';')} (accepted: {finding.accepted})" if finding.accepted else text
    return text if len(text) <= _FINDING_CHARACTERS else f"{text[: _FINDING_CHARACTERS - 3]}..."


def _warnings(findings: Iterable[Finding]) -> list[str]:
    """Each distinct warning once, within the API server's limits on their size."""
    texts: dict[str, None] = {}
    size = 0
    for finding in findings:
        text = finding_text(finding)
        if len(text) > _WARNING_CHARACTERS:
            text = text[: _WARNING_CHARACTERS - 3] + "..."
        if text not in texts:
            size += len(text)
            if size > _WARNINGS_CHARACTERS:
                break
            texts[text] = None
    return list(texts)
