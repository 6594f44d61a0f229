"""The part of the cluster that the checks look at: queues by name, and the default queues of namespaces."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.model import annotations as keys
from capcard_sched.validation.inventory import Inventory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


class ClusterView:
    """Queues and namespaces, kept current by a watch. Reads are O(1) but for `children`, which is O(children)."""

    def __init__(self) -> None:
        self._queues: dict[str, QueueEntry] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._default_queues: dict[str, str] = {}
        #: Queues that a check looked up and that are unknown. The caller of the check empties it.
        self.missing: set[str] = set()
        #: Card quotas of the queues, in the form the shared checks use.
        self.inventory = Inventory(())

    def set_queue(self, obj: QueueObject) -> None:
        """Add or replace a queue."""
        name, annotations = obj.metadata.name, obj.metadata.annotations or {}
        parent = "" if name == ROOT_QUEUE else obj.spec.parent or ROOT_QUEUE
        self.drop_queue(name)
        self._queues[name] = QueueEntry(
            name, parent, obj.status.state or "", obj.status.allocated or {}, annotations.get(keys.HIERARCHY, "")
        )
        if parent:
            self._children.setdefault(parent, {})[name] = None
        self.inventory.set_queue(name, annotations.get(keys.CARD_QUOTA, ""), parent)

    def drop_queue(self, name: str) -> None:
        """Remove a queue; one that is unknown is ignored."""
        known = self._queues.pop(name, None)
        self.inventory.drop_queue(name)
        if known is not None and known.parent:
            siblings = self._children[known.parent]
            del siblings[name]
            if not siblings:
                del self._children[known.parent]

    def set_namespace(self, name: str, queue: str) -> None:
        """Record the queue that a namespace names for its PodGroups; "" for none."""
        if queue:
            self._default_queues[name] = queue
        else:
            self._default_queues.pop(name, None)

    def drop_namespace(self, name: str) -> None:
        """Remove a namespace."""
        self._default_queues.pop(name, None)

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

    def queue(self, name: str) -> QueueEntry | None:
        """A queue by name."""
        found = self._queues.get(name)
        if found is None:
            self.missing.add(name)
        return found

    def queues(self) -> Sequence[QueueEntry]:
        """All queues."""
        return list(self._queues.values())

    def children(self, name: str) -> Sequence[str]:
        """Names of the queues directly below a queue, sorted."""
        return sorted(self._children.get(name, ()))

    def default_queue(self, namespace: str) -> str:
        """The queue that a namespace names for PodGroups without one; "" when it names none."""
        return self._default_queues.get(namespace, "")
