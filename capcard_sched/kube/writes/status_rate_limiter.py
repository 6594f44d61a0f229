"""Rate-limits status updates that differ from the last one only in numbers, and of pods only in the message.

One more node changes the message of every pending pod: `0/11 nodes ...` becomes `0/12 nodes ...`. Such updates of
PodGroups are written at doubling intervals, those of pods at the longest one; a change of the reason of a pod, or of
text, phase or counts of a PodGroup is written at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from capcard_sched.kube.writes.lru import Lru
from capcard_sched.model.intents import UpdatePodCondition, UpdatePodGroup
from capcard_sched.model.reasons import without_numbers

if TYPE_CHECKING:
    from collections.abc import Hashable

    from capcard_sched.model.intents import Intent

#: Seconds between two writes about one object that differ in numbers only: first and longest. Conditions expire after a
#: minute, so the longest delay is shorter.
FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0
#: Number of remembered objects.
_CAPACITY: Final = 65_536


class _Written(NamedTuple):
    text: object
    at: float
    interval: float


class StatusRateLimiter:
    """Remembers the last write per object while it matters. Times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._written: Lru[Hashable, _Written] = Lru(_CAPACITY)
        #: Keys of delayed writes.
        self._delayed: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._written)

    def delay_until(self, key: Hashable, intent: Intent, now: float) -> float | None:
        """Time until which the write must wait; None when it may be sent. Called right before sending."""
        until = self._not_before(key, intent)
        if until > now:
            self._delayed.add(key)
            return until
        self._delayed.discard(key)
        return None

    def may_advance(self, key: Hashable, intent: Intent, now: float) -> bool:
        """Whether a delayed write of this key may be sent at once, since its text changed."""
        if key not in self._delayed or self._not_before(key, intent) > now:
            return False
        self._delayed.discard(key)
        return True

    def record(self, key: Hashable, intent: Intent, now: float) -> None:
        """Record a write."""
        text = _without_counts(intent)
        if text is None:
            return
        last = self._written.get(key)
        repeats = last is not None and last.text == text and now - last.at <= 2 * last.interval
        interval = min(2 * last.interval, LONGEST_SECONDS) if last is not None and repeats else FIRST_SECONDS
        if isinstance(intent, UpdatePodCondition):
            interval = LONGEST_SECONDS
        self._written.put(key, _Written(text, now, interval))
        self._written.drop_oldest(lambda written: now - written.at > 2 * LONGEST_SECONDS)

    def forget(self, key: Hashable) -> None:
        """Drop the delay of this key."""
        self._delayed.discard(key)

    def clear(self) -> None:
        """Forget all writes, after a loss of leadership: another replica may have written."""
        self._written.clear()
        self._delayed.clear()

    def _not_before(self, key: Hashable, intent: Intent) -> float:
        last = self._written.get(key)
        return last.at + last.interval if last is not None and last.text == _without_counts(intent) else 0.0


def _without_counts(intent: Intent) -> object:
    """The status without its messages, or without their numbers; None for a status without rate limit."""
    if isinstance(intent, UpdatePodCondition):
        return intent.reason, intent.nominated_node
    if isinstance(intent, UpdatePodGroup):
        conditions = tuple(
            (row.type, row.status, row.reason, without_numbers(row.message)) for row in intent.conditions
        )
        return intent.uid, intent.phase, intent.running, intent.succeeded, intent.failed, conditions
    return None
