"""A mapping of bounded size that evicts the least recently used entry."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class Lru(Generic[K, V]):
    """At most `capacity` entries; reading or writing one makes it the newest."""

    __slots__ = ("_capacity", "_entries")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return an entry and make it the newest; None when it is absent."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> V | None:
        """Store an entry. Returns the evicted one, if any."""
        entries = self._entries
        entries[key] = value
        entries.move_to_end(key)
        return entries.popitem(last=False)[1] if len(entries) > self._capacity else None

    def pop(self, key: K) -> V | None:
        """Remove an entry and return it; None when it is absent."""
        return self._entries.pop(key, None)

    def drop_oldest(self, expired: Callable[[V], bool]) -> None:
        """Remove the least recently used entries, up to the first one that is not expired."""
        entries = self._entries
        while entries and expired(next(iter(entries.values()))):
            entries.popitem(last=False)

    def clear(self) -> None:
        self._entries.clear()
