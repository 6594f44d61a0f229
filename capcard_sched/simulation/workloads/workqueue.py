"""The work queue of a stand-in controller: changed objects and the owners of changed objects; generated names."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from capcard_sched.controllers.objects import controller_of
from capcard_sched.model.kinds import kind_of

if TYPE_CHECKING:
    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.simulation.store import Change, Store


class WorkloadController:
    """Base: keeps the changed objects of a kind in order, and the owners of changed objects of another kind."""

    kind: ClassVar[str]
    #: The kind of the dependents.
    owned: ClassVar[str]

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Namespace and name of queued objects, in order, each once. A dict would pass the places of removed ones.
        self._queued: OrderedDict[tuple[str, str], None] = OrderedDict()

    def observe(self, change: Change) -> None:
        """Queue a changed object, or the owner of a changed dependent."""
        if change.kind == self.kind and change.new is not None:
            self._queued[change.key] = None
        elif change.kind == self.owned:
            owner = controller_of(change.object)
            if owner is not None and kind_of(owner) == self.kind:
                self._queued[change.key[0], owner["name"]] = None

    def reconcile(self) -> bool:
        """Keep the queued objects, including those queued meanwhile; whether there were any."""
        progressed = bool(self._queued)
        while self._queued:
            key, _ = self._queued.popitem(last=False)
            found = self._store.get(self.kind, *key)
            if found is not None:
                self._keep(found)
        return progressed

    def _keep(self, found: JsonObject) -> None:
        raise NotImplementedError


#: The alphabet of generated names: no vowels, so no words; no 0, 1 or 3.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
POD_TEMPLATE_HASH = "pod-template-hash"


def spelled(number: int, length: int) -> str:
    """A number in the alphabet of names, `length` characters, lowest digit last, modulo the range."""
    letters = []
    for _ in range(length):
        number, digit = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[digit])
    return "".join(reversed(letters))


def digest(value: Any) -> str:
    """A digest of a JSON value in the alphabet of names."""
    encoded = msgspec.json.encode(value, order="deterministic")
    return spelled(int.from_bytes(hashlib.sha256(encoded).digest()[:8], "big"), 10)
