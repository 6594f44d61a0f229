"""The NamespaceQueue controller: the state of NamespaceQueues, and the conditions Authorized and Ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from capcard_sched.controllers.objects import QUEUE, JsonObject, Key, meta, status
from capcard_sched.controllers.queues import CLOSED, OPEN, state_of
from capcard_sched.controllers.view import Patch, Result
from capcard_sched.model.namespace_queues import (
    MOST_LEVELS,
    NAMESPACE_QUEUE,
    QueueForest,
    QueueNode,
    Readiness,
    queue_node,
    shares_a_sum,
)
from capcard_sched.model.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from capcard_sched.controllers.view import Failure, View

_AUTHORIZED, _READY = "Authorized", "Ready"
_ALLOWED: Final = "NamespaceAllowed"
#: The reason of a NamespaceQueue without conditions.
_NOT_READY: Final = "NotReady"


class NamespaceQueueController:
    """Keeps `status.state` and the conditions of every NamespaceQueue."""

    watches = frozenset({QUEUE, NAMESPACE_QUEUE})
    replays = frozenset({QUEUE, NAMESPACE_QUEUE})

    def __init__(self) -> None:
        #: Queues and NamespaceQueues by id, and by parent.
        self._nodes: dict[str, QueueNode] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._local: dict[str, Key] = {}
        self._closed: set[str] = set()
        #: Of `_nodes`; None after a change.
        self._forest: QueueForest | None = None

    def keys(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> Iterator[Key]:
        """The changed NamespaceQueue, and those whose readiness may follow from the changed queue."""
        obj = new if new is not None else old
        assert obj is not None
        name, namespace = meta(obj)["name"], meta(obj).get("namespace") or ""
        queue = f"{namespace}/{name}" if kind == NAMESPACE_QUEUE else name
        before, was_closed = self._nodes.pop(queue, None), queue in self._closed
        self._closed.discard(queue)
        after = None if new is None else queue_node(new, is_local=kind == NAMESPACE_QUEUE)
        if new is None:
            self._local.pop(queue, None)
        else:
            if kind == NAMESPACE_QUEUE:
                self._local[queue] = Key(kind, namespace, name)
            if state_of(new) != OPEN:
                self._closed.add(queue)
        if after is not None:
            self._nodes[queue] = after
        if (before, was_closed) != (after, queue in self._closed):
            self._forest = None
            self._move(queue, before, after)
            for each in self._affected(queue, before, after):
                if each in self._local:
                    yield self._local[each]
        elif queue in self._local:
            yield self._local[queue]

    def _move(self, queue: str, before: QueueNode | None, after: QueueNode | None) -> None:
        if before is not None and before.parent:
            siblings = self._children[before.parent]
            del siblings[queue]
            if not siblings:
                del self._children[before.parent]
        if after is not None and after.parent:
            self._children.setdefault(after.parent, {})[queue] = None

    def _affected(self, queue: str, before: QueueNode | None, after: QueueNode | None) -> Iterable[str]:
        """The queue, those that share a limited sum with it, and those below these. O(these)."""
        found = {queue: None}
        for node in (before, after):
            above = self._nodes.get(node.parent) if node is not None else None
            if node is not None and above is not None and shares_a_sum(node, above):
                found.update(self._children.get(node.parent, {}))
        level = list(found)
        for _ in range(MOST_LEVELS):  # further below, the number of levels is the cause
            level = [child for name in level for child in self._children.get(name, ()) if child not in found]
            found.update(dict.fromkeys(level))
        return found

    def reconcile(self, view: View, key: Key, now: float) -> Result:
        """Write the state and the conditions where they differ."""
        queue = view.get(NAMESPACE_QUEUE, key.namespace, key.name)
        name = f"{key.namespace}/{key.name}"
        if queue is None or name not in self._nodes:
            return Result()
        if self._forest is None:
            self._forest = QueueForest(self._nodes, self._children)
        found = self._forest.readiness(name)
        state = CLOSED if state_of(queue) != OPEN else OPEN
        wanted = {"state": state, "conditions": _conditions(status(queue).get("conditions"), found, now)}
        changed = {field: value for field, value in wanted.items() if status(queue).get(field) != value}
        if not changed:
            return Result()
        return Result([Patch(key, {"status": changed}, uid=meta(queue)["uid"], subresource="status")])

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        """Nothing: the next change of a queue repeats the write."""
        return Result()


def blocked_reason(queue: JsonObject) -> str:
    """Why a NamespaceQueue accepts no pods: the reason of its condition Ready, or its state; "" if it accepts some."""
    rows = status(queue).get("conditions") or ()
    ready = next((row for row in rows if isinstance(row, dict) and row.get("type") == _READY), {})
    if ready.get("status") != "True":
        return str(ready.get("reason") or _NOT_READY)
    state = state_of(queue)
    return "" if state == OPEN else f"Queue{state}"


def _conditions(present: Any, found: Readiness, now: float) -> list[JsonObject]:
    """Both conditions, with the time of the last change of their status."""
    known = {row.get("type"): row for row in present or () if isinstance(row, dict)}
    authorized = found.is_authorized
    reason, message = (_ALLOWED, "") if authorized else (found.reason, found.message)
    rows = []
    for kind, is_true, why, text in (
        (_AUTHORIZED, authorized, reason, message),
        (_READY, found.is_ready, found.reason, found.message),
    ):
        row = known.get(kind, {})
        value = "True" if is_true else "False"
        since = row.get("lastTransitionTime") if row.get("status") == value else None
        rows.append(
            {
                "type": kind,
                "status": value,
                "reason": why,
                "message": text,
                "lastTransitionTime": since or format_timestamp(now),
            }
        )
    return rows
