"""The order in which keys are served: first in, first out within a group, and groups in turn.

One group with many keys does not delay the keys of the others. Without groups, all keys are one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")


class ReadyKeys(Generic[K]):
    """Keys in order. A key may be in it several times."""

    def __init__(self, group_of: Callable[[K], Hashable] | None = None) -> None:
        self._group_of = group_of
        #: Keys that precede all others.
        self._first: deque[K] = deque()
        #: Groups with keys; the first one is next.
        self._groups: OrderedDict[Hashable, deque[K]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, key: K) -> None:
        """Add a key as the last one of its group."""
        group = self._group_of(key) if self._group_of is not None else None
        keys = self._groups.get(group)
        if keys is None:
            keys = self._groups[group] = deque()
        keys.append(key)
        self._length += 1

    def appendleft(self, key: K) -> None:
        """Add a key before all others."""
        self._first.appendleft(key)
        self._length += 1

    def pop(self, *, admits: Callable[[Hashable], bool] | None = None) -> K | None:
        """Remove and return the next key of a group that is admitted; None without one. O(groups refused)."""
        if self._first:
            self._length -= 1
            return self._first.popleft()
        for group, keys in self._groups.items():
            if admits is not None and not admits(group):
                continue
            key = keys.popleft()
            self._length -= 1
            if not keys:
                del self._groups[group]
            elif len(self._groups) > 1:
                self._groups.move_to_end(group)
            return key
        return None

    def retain(self, is_kept: Callable[[K], bool]) -> None:
        """Drop repeated keys, and those that are not to be kept. O(n)."""
        first, groups = list(dict.fromkeys(self._first)), list(self._groups.values())
        self.clear()
        self._first.extend(key for key in first if is_kept(key))
        self._length = len(self._first)
        for keys in groups:
            for key in dict.fromkeys(keys):
                if is_kept(key):
                    self.append(key)

    def heads(self) -> list[K]:
        """The first key of all, and that of each group."""
        heads = [keys[0] for keys in self._groups.values()]
        return [self._first[0], *heads] if self._first else heads

    def clear(self) -> None:
        """Remove all keys."""
        self._first.clear()
        self._groups.clear()
        self._length = 0
