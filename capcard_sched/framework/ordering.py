"""Heaps of jobs and queues by sort keys (architecture D6).

Keys are computed when an element is pushed. One that depends on shares is fresh again after the element was pushed
back; between pushes it is as old as the push, as in the reference (core reference §3.5).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Item = TypeVar("Item")


class KeyHeap(Generic[Item]):
    """A heap of items by key; equal keys keep their order of pushing (keys end in a name, so they differ)."""

    __slots__ = ("_entries", "_key", "_pushes")

    def __init__(self, key: Callable[[Item], tuple[Any, ...]]) -> None:
        self._key = key
        self._entries: list[tuple[tuple[Any, ...], int, Item]] = []
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, item: Item) -> None:
        """Add an item under its present key. O(log n)."""
        self._pushes += 1
        heappush(self._entries, (self._key(item), self._pushes, item))

    def __iter__(self) -> Iterator[Item]:
        """The items, in no particular order."""
        return (entry[2] for entry in self._entries)

    def pop(self) -> Item:
        """Take the first item. O(log n). IndexError when empty."""
        return heappop(self._entries)[2]
