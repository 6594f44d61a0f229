"""The session deadline: a bound on the time that the attempts of one queue take in one session.

A queue's share is the deadline divided by the number of queues with waiting jobs. A queue beyond its share gets no
further attempt in the session, except one in each action: every action makes progress with every queue. An attempt of a
gang below its minimum is not divided; it ends unfinished when it takes longer than the whole deadline.

Time enters through a timer that the daemon provides. A recording keeps the checks at which the bounds were reached
(`QueueCut`), and a replay reaches them at the same checks, without a timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capcard_sched.model.refusal import Refusal


class QueueCut(msgspec.Struct, frozen=True, omit_defaults=True):
    """The checks of a queue in one session, counted from 1, that found it beyond a bound."""

    #: The first check beyond its share; 0: it stayed within.
    share: int = 0
    #: The checks that ended an attempt longer than the deadline.
    attempts: tuple[int, ...] = ()


class Deferral(NamedTuple):
    """The jobs of a queue that an action did not try for want of time, as of the last session."""

    refusal: Refusal
    #: Keys of tried jobs that still wait, to their position: the one that was tried longest ago first, from 1.
    tried: dict[str, int]
    #: Keys of the jobs that were tried since the last change of the cluster.
    since_change: frozenset[str]


class SessionDeadline:
    """The time used by each queue in one session."""

    def __init__(
        self,
        seconds: float = 0.0,
        timer: Callable[[], float] | None = None,
        *,
        recorded: Mapping[str, QueueCut] | None = None,
        queues: int = 1,
        waiting: Callable[[], int] = lambda: 1,
        ended: Callable[[], bool] | None = None,
    ) -> None:
        """`timer` returns seconds; without it, or with 0 `seconds`, only `recorded` cuts apply.

        `queues`: the number of queues; `waiting` returns the number of queues with waiting jobs, O(waiting jobs).
        `ended` returns whether no queue gets a further attempt.
        """
        self.seconds = seconds
        self._timer = timer if seconds > 0 and recorded is None else None
        self._recorded = recorded or {}
        self._is_enabled = self._timer is not None or bool(self._recorded)
        self._queues, self._waiting = max(1, queues), waiting
        self._ended = ended
        #: Whether `allows_attempt` may ever be false.
        self.may_defer = self._is_enabled or ended is not None
        self._share: float | None = None
        #: The queue whose attempt runs, and when it began by the timer.
        self._running, self._since = "", 0.0
        #: Seconds by queue and of the running attempt, and the number of checks by queue.
        self._used: dict[str, float] = {}
        self._attempt = 0.0
        self._checks: dict[str, int] = {}
        #: Queues with an attempt in the running action.
        self._attempted: set[str] = set()
        #: The bounds that were reached, by queue.
        self.cuts: dict[str, QueueCut] = {}

    def begin_action(self) -> None:
        """Ends the last attempt: time until the next check belongs to no queue. Each queue has one attempt again."""
        if self._is_enabled:
            self._charge("")
            self._attempted.clear()

    def allows_attempt(self, queue: str) -> bool:
        """Whether another job of the queue may be tried now; its attempt begins."""
        if self._ended is not None and self._ended():
            return False
        if not self._is_enabled:
            return True
        over = self.is_over(queue)
        if over and queue in self._attempted:
            return False
        self._attempted.add(queue)
        self._attempt = 0.0
        return True

    def is_over(self, queue: str) -> bool:
        """Whether the queue has used its share."""
        if not self._is_enabled:
            return False
        number, cut = self._check(queue)
        if not cut.share and (
            self._exceeds_share(self._used.get(queue, 0.0))
            if self._timer is not None
            else number == self._recorded.get(queue, _NO_CUT).share
        ):
            cut = self.cuts[queue] = QueueCut(number, cut.attempts)
        return cut.share > 0

    def is_exhausted(self, queue: str) -> bool:
        """Whether the running attempt of the queue takes longer than the whole deadline."""
        if not self._is_enabled:
            return False
        number, cut = self._check(queue)
        if self._timer is not None:
            found = self._attempt > self.seconds
        else:
            found = number in self._recorded.get(queue, _NO_CUT).attempts
        if found:
            self.cuts[queue] = QueueCut(cut.share, (*cut.attempts, number))
        return found

    def _check(self, queue: str) -> tuple[int, QueueCut]:
        """The number of this check of the queue, and the bounds reached before it."""
        self._charge(queue)
        number = self._checks[queue] = self._checks.get(queue, 0) + 1
        return number, self.cuts.get(queue, _NO_CUT)

    def _charge(self, queue: str) -> None:
        """Charges the time since the last check to the queue of that check; time from now on to `queue`."""
        if self._timer is None:
            return
        now = self._timer()
        if self._running:
            self._used[self._running] = self._used.get(self._running, 0.0) + now - self._since
            self._attempt += now - self._since
        self._running, self._since = queue, now

    def _exceeds_share(self, used: float) -> bool:
        if used * self._queues <= self.seconds:  # below any possible share
            return False
        if self._share is None:
            self._share = self.seconds / max(1, self._waiting())
        return used > self._share


_NO_CUT = QueueCut()
