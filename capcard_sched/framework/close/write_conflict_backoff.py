"""Backs off when another writer keeps overwriting the same status.

Statuses of PodGroups and queues may have several writers: two schedulers on one cluster own different pods, and both
are right. An overwritten status is restored once; after that it is left alone for a while, unless its content changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

#: Seconds during which an overwritten status is left alone.
BACKOFF_SECONDS: Final = 60.0
#: Maximum number of equal writes within that time: the first, and one after a chance overwrite.
_MAX_WRITES: Final = 2


class WriteConflictBackoff:
    """The last writes about objects of one kind, by key. Times in Unix seconds."""

    def __init__(self) -> None:
        #: Content, time of its first write, and number of writes, by uid where there is one.
        self._written: dict[str, tuple[Hashable, float, int]] = {}
        #: The first writes at one time by content, and that time. Objects with equal content share one record.
        self._equal: dict[Hashable, tuple[Hashable, float, int]] = {}
        self._equal_at = 0.0
        #: Objects in backoff, with its end.
        self._backoffs: dict[str, float] = {}

    def may_write(self, key: str, content: Hashable, now: float, uid: str = "") -> bool:
        """Whether to write this content, which differs from the object's; True records the write.

        `uid`: of the object, when another one may have its key later.
        """
        name = uid or key
        last = self._written.get(name)
        self._backoffs.pop(key, None)
        if last is None or last[0] != content or not 0.0 <= now - last[1] < BACKOFF_SECONDS:
            if self._equal_at != now:
                self._equal, self._equal_at = {}, now
            self._written[name] = self._equal.setdefault(content, (content, now, 1))
            return True
        _, first, count = last
        if count < _MAX_WRITES:
            self._written[name] = content, first, count + 1
            return True
        self._backoffs[key] = first + BACKOFF_SECONDS
        return False

    def confirm(self, key: str) -> None:
        """The object has the wanted content: ends its backoff."""
        self._backoffs.pop(key, None)

    @property
    def next_wakeup(self) -> float | None:
        """Unix seconds of the end of the next backoff; None for none."""
        return min(self._backoffs.values(), default=None)

    def pop_expired(self, now: float) -> list[str]:
        """Removes and returns the objects whose backoff ended."""
        taken = [key for key, until in self._backoffs.items() if until <= now]
        for key in taken:
            del self._backoffs[key]
        return taken

    def prune(self, now: float) -> None:
        """Drops writes that no longer cause a backoff."""
        self._written = {key: value for key, value in self._written.items() if now - value[1] < BACKOFF_SECONDS}
        self._equal = {}
