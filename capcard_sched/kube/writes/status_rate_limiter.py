"""Rate-limits statuses of one object that are alike: those whose policy finds the same text in them.

Such a status is written at doubling intervals, any other one at once. The policies of the scheduler ignore the numbers
of a message: one more node changes the message of every pending pod, `0/11 nodes ...` becomes `0/12 nodes ...`. That of
the controllers ignores counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from capcard_sched.kube.writes.lru import Lru
from capcard_sched.model.intents import UpdatePodCondition, UpdatePodGroup
from capcard_sched.model.reasons import without_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from capcard_sched.model.intents import Intent

S = TypeVar("S")

#: Seconds between two writes about one object that are alike: first and longest. Conditions expire after a minute, so
#: the longest delay is shorter.
FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0
#: Number of remembered objects.
_CAPACITY: Final = 65_536


class RatePolicy(NamedTuple, Generic[S]):
    """The rate limit of statuses of a type."""

    #: The part of a status that is written at once when it changes.
    text_of: Callable[[S], object]
    #: Seconds between two statuses with the same text; doubled each time.
    first: float = FIRST_SECONDS
    longest: float = LONGEST_SECONDS


class _Written(NamedTuple):
    text: object
    at: float
    interval: float


class StatusRateLimiter(Generic[S]):
    """Remembers the last write per object while it matters. Times are seconds of any monotonic clock."""

    def __init__(self, policy_of: Callable[[S], RatePolicy[Any] | None]) -> None:
        """`policy_of`: the policy of a status; None without a rate limit."""
        self._policy_of = policy_of
        self._written: Lru[Hashable, _Written] = Lru(_CAPACITY)
        #: Keys of delayed writes.
        self._delayed: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._written)

    def delay_until(self, key: Hashable, status: S, now: float) -> float | None:
        """Time until which the write must wait; None when it may be sent. Called right before sending."""
        until = self.not_before(key, status)
        if until > now:
            self._delayed.add(key)
            return until
        self._delayed.discard(key)
        return None

    def may_advance(self, key: Hashable, status: S, now: float) -> bool:
        """Whether a delayed write of this key may be sent at once, since its text changed."""
        if key not in self._delayed or self.not_before(key, status) > now:
            return False
        self._delayed.discard(key)
        return True

    def record(self, key: Hashable, status: S, now: float) -> None:
        """Record a write."""
        policy = self._policy_of(status)
        if policy is None:
            return
        text, last = policy.text_of(status), self._written.get(key)
        repeats = last is not None and last.text == text and now - last.at <= 2 * last.interval
        interval = min(2 * last.interval, policy.longest) if last is not None and repeats else policy.first
        self._written.put(key, _Written(text, now, interval))
        self._written.drop_oldest(lambda written: now - written.at > 2 * LONGEST_SECONDS)

    def forget(self, key: Hashable) -> None:
        """Drop the delay of this key."""
        self._delayed.discard(key)

    def clear(self) -> None:
        """Forget all writes, after a loss of leadership: another replica may have written."""
        self._written.clear()
        self._delayed.clear()

    def not_before(self, key: Hashable, status: S) -> float:
        """Time from which the status may be written."""
        last, policy = self._written.get(key), self._policy_of(status)
        alike = last is not None and policy is not None and last.text == policy.text_of(status)
        return last.at + last.interval if last is not None and alike else 0.0


def _group_text(status: UpdatePodGroup) -> object:
    conditions = tuple((row.type, row.status, row.reason, without_numbers(row.message)) for row in status.conditions)
    return status.uid, status.phase, status.running, status.succeeded, status.failed, conditions


#: Of pods, whose messages also name single nodes, the whole message may wait.
_OF_SCHEDULER: Final[Mapping[type[Any], RatePolicy[Any]]] = {
    UpdatePodGroup: RatePolicy(_group_text),
    UpdatePodCondition: RatePolicy(lambda status: (status.reason, status.nominated_node), first=LONGEST_SECONDS),
}


def scheduler_policy(status: Intent) -> RatePolicy[Any] | None:
    """The policy of a status of the scheduler; None for one that is never delayed."""
    return _OF_SCHEDULER.get(type(status))
