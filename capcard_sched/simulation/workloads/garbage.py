"""The garbage collector: deletes the dependents of deleted objects, and the content of deleted namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import key_of, meta
from capcard_sched.simulation.kinds import NAMESPACE, kind_of

if TYPE_CHECKING:
    from capcard_sched.simulation.store import Change, Store


class GarbageCollector:
    """Background deletion. An object with several owners is deleted with the last of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gone: dict[str, None] = {}
        self._namespaces: dict[str, None] = {}
        self._alive: set[str] = set()

    def observe(self, change: Change) -> None:
        """Queue removed objects."""
        uid = meta(change.object)["uid"]
        if change.verb == "removed":
            self._alive.discard(uid)
            self._gone[uid] = None
            if change.kind == NAMESPACE:
                self._namespaces[change.key[1]] = None
        else:
            self._alive.add(uid)

    def reconcile(self) -> bool:
        """Delete the dependents of removed objects; whether there were any."""
        worked = bool(self._gone or self._namespaces)
        while self._gone:
            uid = next(iter(self._gone))
            del self._gone[uid]
            for obj in self._store.owned(uid):
                owners = [owner.get("uid") for owner in meta(obj).get("ownerReferences") or ()]
                if not any(owner in self._alive for owner in owners):
                    self._store.delete(kind_of(obj), *key_of(obj))
        while self._namespaces:
            name = next(iter(self._namespaces))
            del self._namespaces[name]
            for kind in list(self._store.kinds()):
                for obj in list(self._store.list(kind)):
                    if meta(obj).get("namespace") == name and self._store.get(kind, *key_of(obj)) is not None:
                        self._store.delete(kind, *key_of(obj))
        return worked
