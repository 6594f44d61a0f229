"""What was written last about each object, so that two who see things differently do not overwrite each other for ever.

Statuses of PodGroups and queues may have several writers: two schedulers on one cluster do not know the same pods and
both are right. Who finds its words overwritten may put them back once; after that it leaves the others theirs for a
while, unless it has something new to say.
"""

from __future__ import annotations

from typing import Final

#: How long somebody else's words stand, in seconds.
BACKOFF_SECONDS: Final = 60.0
#: Equal words written within that time: the first, and once more in case it was overwritten by chance.
_TIMES: Final = 2


class WriteConflictBackoff:
    """The last words about objects of one kind, by key. Times in Unix seconds."""

    def __init__(self) -> None:
        #: Words, when they were first written, and how often since.
        self._written: dict[str, tuple[object, float, int]] = {}
        #: Objects on which we hold back, and until when.
        self._held: dict[str, float] = {}

    def may_write(self, key: str, words: object, now: float) -> bool:
        """Whether to write these words, which are not those on the object; True means that it is done."""
        last = self._written.get(key)
        self._held.pop(key, None)
        if last is None or last[0] != words or not 0.0 <= now - last[1] < BACKOFF_SECONDS:
            self._written[key] = words, now, 1
            return True
        _, first, times = last
        if times < _TIMES:
            self._written[key] = words, first, times + 1
            return True
        self._held[key] = first + BACKOFF_SECONDS
        return False

    def confirm(self, key: str) -> None:
        """The object says what we want it to say."""
        self._held.pop(key, None)

    @property
    def next_wakeup(self) -> float | None:
        """When an object on which we hold back is to be looked at again; None when there is none."""
        return min(self._held.values(), default=None)

    def pop_expired(self, now: float) -> list[str]:
        """Those on which we need not hold back any longer."""
        taken = [key for key, until in self._held.items() if until <= now]
        for key in taken:
            del self._held[key]
        return taken

    def prune(self, now: float) -> None:
        """Forget words of long ago: they would be written again anyway."""
        self._written = {key: value for key, value in self._written.items() if now - value[1] < BACKOFF_SECONDS}
