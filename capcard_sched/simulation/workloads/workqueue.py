"""The work queue of a stand-in controller: changed objects, and the owners of changed objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.controllers.objects import controller_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.simulation.store import Change, Store


class Worklist:
    """Keys (namespace, name) in the order in which they were queued, each once."""

    def __init__(self, store: Store, kind: str, owned: str) -> None:
        """`kind` is reconciled, `owned` is the kind of its dependents."""
        self._store = store
        self._kind = kind
        self._owned = owned
        self._keys: dict[tuple[str, str], None] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def note(self, key: tuple[str, str]) -> None:
        """Queue a key."""
        self._keys[key] = None

    def observe(self, change: Change) -> None:
        """Queue a changed object, or the owner of a changed dependent."""
        if change.kind == self._kind and change.new is not None:
            self.note(change.key)
        elif change.kind == self._owned:
            owner = controller_of(change.object)
            if owner is not None and owner.get("kind") == self._kind:
                self.note((change.key[0], owner["name"]))

    def drain(self) -> Iterator[JsonObject]:
        """Yields the queued objects that exist, including those queued meanwhile."""
        while self._keys:
            key = next(iter(self._keys))
            del self._keys[key]
            found = self._store.get(self._kind, *key)
            if found is not None:
                yield found
