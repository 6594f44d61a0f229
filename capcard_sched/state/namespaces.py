"""Labels and default queues of namespaces, and the changes of them that affect a pod's `namespaceSelector`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.model.objects import NamespaceObject
from capcard_sched.model.selectors import matches_labels, namespace_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.state.changes import Changes
    from capcard_sched.state.classes import ClassTable


class NamespaceTable:
    """Applies namespace deltas. A change opens a session only when it changes the result of a pod's selector."""

    def __init__(self, classes: ClassTable, changes: Changes, set_default_queue: Callable[[str, str], None]) -> None:
        """`set_default_queue(namespace, queue)` applies a changed default queue; "" for none."""
        #: By name of the namespace.
        self.labels: dict[str, Mapping[str, str]] = {}
        #: The queue of PodGroups that name none, by namespace; only namespaces with one.
        self.default_queues: dict[str, str] = {}
        self._set_default_queue = set_default_queue
        self._classes = classes
        self._changes = changes
        self.handlers: dict[type | str, Callable[[Any], None]] = {
            NamespaceObject: self._apply,
            "Namespace": lambda gone: self._put(gone.name, None, ""),
        }

    def _apply(self, namespace: NamespaceObject) -> None:
        self._put(namespace.metadata.name, namespace.metadata.labels or {}, namespace.default_queue)

    def _put(self, name: str, labels: Mapping[str, str] | None, default_queue: str) -> None:
        if self.default_queues.get(name, "") != default_queue:
            self.default_queues[name] = default_queue
            if not default_queue:
                del self.default_queues[name]
            self._set_default_queue(name, default_queue)
        before = self.labels.get(name)
        if before == labels:
            return
        if labels is None:
            del self.labels[name]
        else:
            self.labels[name] = labels
        changes = self._changes
        if changes.everything:
            return  # the next session considers everything
        changes.namespaces.setdefault(name, before)
        if not changes.selectors_changed:
            old, new = namespace_labels(name, before), namespace_labels(name, labels)
            changes.selectors_changed = any(
                matches_labels(selector, old) != matches_labels(selector, new)
                for selector in self._classes.namespace_selectors()
            )
