"""Queues and NamespaceQueues in one table, by id, with the NamespaceQueues that may not start pods."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.namespace_queues import (
    EVERY_NAMESPACE,
    NAMESPACE_QUEUE,
    NamespaceQueueObject,
    ParentError,
    QueueForest,
    QueueNode,
    allowed_problem,
    as_queue,
)
from capcard_sched.model.objects import QueueObject
from capcard_sched.model.queue import DEFAULT, ROOT, Queue
from capcard_sched.state.decode import assign, differs, queue_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.model.namespace_queues import Readiness, Reason
    from capcard_sched.model.resources import ResourceColumns
    from capcard_sched.state.changes import Changes
    from capcard_sched.state.invalid_objects import InvalidObjects
    from capcard_sched.state.jobs import JobTable

#: Resources of a queue's limits that get a column before a node offers them.
_MOST_NAMES: Final = 128


#: Amounts of NamespaceQueues that count only as far as the queues above have them.
_BOUNDED: Final = ("deserved", "guarantee")


class _WrittenAmounts(NamedTuple):
    """The fields of a NamespaceQueue that depend on other queues. `parent`: id, "" for an invalid reference."""

    parent: str
    deserved: Mapping[str, int]
    guarantee: Mapping[str, int]


class QueueTable:
    """Applies the deltas of queues; `refresh` recomputes `Queue.blocked` after a change of its inputs."""

    def __init__(
        self,
        queues: dict[str, Queue],
        *,
        columns: ResourceColumns,
        jobs: JobTable,
        changes: Changes,
        invalid: InvalidObjects,
        offer: Callable[[Iterable[str]], None],
    ) -> None:
        """`offer` adds columns of resources."""
        self._queues = queues
        self._columns = columns
        self._jobs = jobs
        self._changes = changes
        self._invalid = invalid
        self._offer = offer
        #: Allowed namespaces, or the problem of the parent, by id.
        self._allowed: dict[str, tuple[str, ...]] = {}
        self._problems: dict[str, tuple[Reason, str]] = {}
        #: NamespaceQueues by id, as written; the queues in the table have what counts of it.
        self._local: dict[str, _WrittenAmounts] = {}
        #: The last Queue above a NamespaceQueue that had a place in the tree.
        self._homes: dict[str, str] = {}
        self._stale = False
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            QueueObject: self._apply,
            "Queue": lambda gone: self._drop(ObjectRef("Queue", "", gone.name), gone.name),
            NamespaceQueueObject: self._apply_local,
            NAMESPACE_QUEUE: lambda gone: self._drop(
                ObjectRef(NAMESPACE_QUEUE, gone.namespace, gone.name), f"{gone.namespace}/{gone.name}"
            ),
        }

    def _apply(self, obj: QueueObject) -> None:
        name, allowed = obj.metadata.name, obj.spec.allowed_namespaces
        if allowed is None and name == DEFAULT:
            allowed = (EVERY_NAMESPACE,)
        problem = allowed_problem(allowed or ())
        self._note_allowed(name, allowed or ())
        self._put(ObjectRef("Queue", "", name), name, obj, f"spec.allowedNamespaces: {problem}" if problem else "")

    def _apply_local(self, obj: NamespaceQueueObject) -> None:
        meta = obj.metadata
        name = f"{meta.namespace}/{meta.name}"
        former = self._problems.pop(name, None)
        try:
            queue = as_queue(obj)
        except ParentError as error:
            self._problems[name] = error.reason, str(error)
            queue = QueueObject(meta, msgspec.structs.replace(obj.spec, parent=""), obj.status)
        if self._problems.get(name) != former:
            self._stale = True
            self._changes.queues.add(name)
        self._put(ObjectRef(NAMESPACE_QUEUE, meta.namespace or "", meta.name), name, queue, "")

    def _note_allowed(self, name: str, allowed: tuple[str, ...]) -> None:
        if self._allowed.get(name) != allowed:
            self._allowed[name] = allowed
            self._stale = True
            self._changes.queues.add(name)  # a session opens only after a change

    def _put(self, ref: ObjectRef, name: str, obj: QueueObject, problem: str) -> None:
        facts, problems = queue_facts(obj)
        self._invalid.note(ref, "; ".join(filter(None, (problems, problem))))
        if ref.kind != NAMESPACE_QUEUE:  # tenants choose the names in theirs, and each column costs every node
            limits = (facts["capability"], facts["deserved"], facts["guarantee"])
            self._offer(islice(dict.fromkeys(chain.from_iterable(limit or () for limit in limits)), _MOST_NAMES))
        known = self._queues.get(name)
        if ref.kind == NAMESPACE_QUEUE:
            written = _WrittenAmounts(facts["parent"], facts["deserved"] or {}, facts["guarantee"] or {})
            if self._local.get(name) != written:
                self._local[name] = written
                self._stale = True
                self._changes.queues.add(name)
            elif known is not None:  # what `refresh` found holds
                facts |= {"parent": known.parent, "deserved": known.deserved, "guarantee": known.guarantee}
        if known is None:
            self._queues[name] = Queue(name, self._columns.zeros(), self._columns.zeros(), **facts)
            self._jobs.adopt(name)
        elif differs(known, facts):
            assign(known, facts)
        else:
            return
        self._stale = True
        self._changes.queues.add(name)

    def _drop(self, ref: ObjectRef, name: str) -> None:
        queue = self._queues.pop(name, None)
        self._invalid.note(ref, "")
        self._allowed.pop(name, None)
        self._problems.pop(name, None)
        self._local.pop(name, None)
        self._homes.pop(name, None)
        if queue is None:
            return
        self._stale = True
        self._jobs.orphan(queue)
        self._changes.queues.add(name)

    def refresh(self) -> None:
        """Set what depends on other queues, of NamespaceQueues. O(queues) after a change of one, if there are any."""
        if not self._stale:
            return
        self._stale = False
        if not self._local:
            return
        nodes = {name: self._node(queue) for name, queue in self._queues.items()}
        forest = QueueForest(nodes)
        for name, written in self._local.items():
            found = forest.readiness(name)
            queue, facts = self._queues[name], dict[str, Any]()
            facts["blocked"] = "" if found.is_ready else f"{found.reason}: {found.message}"
            facts["parent"] = self._parent(name, written, found, nodes)
            for field in _BOUNDED:
                facts[field] = (forest.counted(name, field) or None) if found.is_ready else None
            if differs(queue, facts):
                assign(queue, facts)
                self._changes.queues.add(name)

    def _node(self, queue: Queue) -> QueueNode:
        name, written = queue.name, self._local.get(queue.name)
        return QueueNode(
            written.parent if written is not None else queue.parent or ("" if name == ROOT else ROOT),
            self._allowed.get(name, ()),
            queue.capability or {},
            written.deserved if written is not None else queue.deserved or {},
            written.guarantee if written is not None else queue.guarantee or {},
            self._problems.get(name),
            queue.created,
        )

    def _parent(self, name: str, written: _WrittenAmounts, found: Readiness, nodes: Mapping[str, QueueNode]) -> str:
        """The queue above a NamespaceQueue: without a place in the tree, its pods count for the last Queue above it."""
        if not found.has_place:
            return self._homes.get(name, "")
        above = written.parent
        while "/" in above:
            above = nodes[above].parent
        self._homes[name] = above
        return written.parent
