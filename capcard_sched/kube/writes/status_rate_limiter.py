"""How soon a status may be written again of which only numbers changed (W-16).

One more node changes the message of every pod that waits: `0/11 nodes ...` becomes `0/12 nodes ...`. Such a change is
written now and then, less often the longer it goes on; a change of words, phase or counts is written at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.kube.writes.lru import Lru
from capcard_sched.model.intents import UpdatePodCondition, UpdatePodGroup
from capcard_sched.model.reasons import without_numbers

if TYPE_CHECKING:
    from capcard_sched.kube.writes.statuses import StatusIntent, StatusKey

#: Seconds between two writes about one object that differ in numbers only: the first time, and at most. Conditions that
#: wait for a minute are given up: what is held back here must be written before.
FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0
#: How many objects are remembered.
_CAPACITY: Final = 65_536


class _Written(NamedTuple):
    words: object
    at: float
    interval: float


class StatusRateLimiter:
    """Remembers what was written last about each object, and when. Times in seconds of any steady clock."""

    def __init__(self) -> None:
        self._written: Lru[StatusKey, _Written] = Lru(_CAPACITY)
        #: What was put off because it came too soon.
        self._held: set[StatusKey] = set()

    def hold(self, key: StatusKey, intent: StatusIntent, now: float) -> float | None:
        """Until when the write has to wait; None when it may go. Ask right before it is sent."""
        until = self._not_before(key, intent)
        if until > now:
            self._held.add(key)
            return until
        self._held.discard(key)
        return None

    def frees(self, key: StatusKey, intent: StatusIntent, now: float) -> bool:
        """Whether something is held back under this key that need not wait any longer, now that it says this."""
        if key not in self._held or self._not_before(key, intent) > now:
            return False
        self._held.discard(key)
        return True

    def wrote(self, key: StatusKey, intent: StatusIntent, now: float) -> None:
        """It was written."""
        words = _words(intent)
        if words is None:
            return
        last = self._written.get(key)
        goes_on = last is not None and last.words == words and now - last.at <= 2 * last.interval
        interval = min(2 * last.interval, LONGEST_SECONDS) if last is not None and goes_on else FIRST_SECONDS
        self._written.put(key, _Written(words, now, interval))

    def forget(self, key: StatusKey) -> None:
        """Nothing waits under this key any more."""
        self._held.discard(key)

    def clear(self) -> None:
        """Forget everything: others may have written meanwhile."""
        self._written.clear()
        self._held.clear()

    def _not_before(self, key: StatusKey, intent: StatusIntent) -> float:
        last = self._written.get(key)
        return last.at + last.interval if last is not None and last.words == _words(intent) else 0.0


def _words(intent: StatusIntent) -> object:
    """What a status says but for the numbers in its messages; None of what is not held back."""
    if isinstance(intent, UpdatePodCondition):
        return intent.reason, without_numbers(intent.message), intent.nominated_node
    if isinstance(intent, UpdatePodGroup):
        conditions = tuple(
            (row.type, row.status, row.reason, without_numbers(row.message)) for row in intent.conditions
        )
        return intent.uid, intent.phase, intent.running, intent.succeeded, intent.failed, conditions
    return None
