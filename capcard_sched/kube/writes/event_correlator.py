"""Event correlation: counts identical events, aggregates similar ones, and limits the rate per object.

The rules of client-go's EventCorrelator, with one difference: when an object's budget is spent, its latest event is
delayed until the budget allows it, so that the last event is never lost.

No I/O; times are unix seconds and come as arguments.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeAlias

from capcard_sched.kube.writes.lru import Lru
from capcard_sched.model.quoting import escaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.model.intents import EmitEvent, ObjectRef

#: Number of remembered objects, kinds of events and single events.
CAPACITY = 4096
#: Number of different messages of one kind and object with an event of their own; later ones share one event.
MAX_SIMILAR = 10
#: Seconds without an event of a kind after which its aggregation starts again.
SIMILAR_SECONDS = 600.0
#: Number of writes per source and object at once, and seconds per further write.
BURST = 25
REFILL_SECONDS = 300.0
#: Bytes of UTF-8 of the longest message.
MAX_MESSAGE = 1024
COMBINED = "(combined from similar events): "

#: Identity: component and object.
Source: TypeAlias = "tuple[str, ObjectRef]"
#: Identity: component, object, type and reason.
Kind: TypeAlias = "tuple[str, ObjectRef, str, str]"
#: Identity: the kind, and the message of a single event; None for an aggregate.
SeriesKey: TypeAlias = "tuple[Kind, str | None]"


class Series:
    """One Event object with its count and latest message. Changed in place, also while it waits."""

    __slots__ = (
        "component", "count", "created", "first", "key", "last", "message", "name", "object", "reason", "type",
    )  # fmt: skip

    def __init__(self, key: SeriesKey, event: EmitEvent, component: str, name: str, now: float) -> None:
        self.key = key
        self.object = event.object
        self.type = event.type
        self.reason = event.reason
        self.component = component
        self.message = event.message
        self.name = name
        self.count = 0
        self.first = self.last = now
        #: The API server has it: further occurrences are patches.
        self.created = False


class _Similar:
    __slots__ = ("last", "messages")

    def __init__(self) -> None:
        self.messages: set[str] = set()
        self.last = 0.0


class _Budget:
    __slots__ = ("at", "delayed", "tokens")

    def __init__(self, now: float) -> None:
        self.tokens = float(BURST)
        self.at = now
        #: The latest event that had no token.
        self.delayed: Series | None = None

    def refill(self, now: float) -> None:
        self.tokens = min(float(BURST), self.tokens + max(0.0, now - self.at) / REFILL_SECONDS)
        self.at = max(self.at, now)


class EventCorrelator:
    """Reduces events to few writes. `name(object_name)` creates a unique name for an Event object."""

    def __init__(self, component: str, name: Callable[[str], str]) -> None:
        self._component = component
        self._name = name
        self._series: Lru[SeriesKey, Series] = Lru(CAPACITY)
        self._similar: Lru[Kind, _Similar] = Lru(CAPACITY)
        self._budgets: Lru[Source, _Budget] = Lru(CAPACITY)
        self._delays: list[tuple[float, int, Source]] = []
        self._sequence = 0
        #: Number of dropped events since the last `drain_lost`.
        self._lost = 0

    def observe(self, event: EmitEvent, now: float) -> Series | None:
        """Count one event. Returns the series to write now, None while its object's budget is spent."""
        component = event.component or self._component
        source = (component, event.object)
        series = self._fold(event, component, now)
        budget = self._budgets.get(source)
        if budget is None:
            budget = _Budget(now)
            gone = self._budgets.put(source, budget)
            self._lost += gone is not None and gone.delayed is not None
        budget.refill(now)
        delayed = budget.delayed
        if budget.tokens < 1.0:
            budget.delayed = series
            if delayed is None:
                self._delay(source, budget, now)
            elif delayed is not series and not delayed.created:
                self._lost += 1
            return None
        budget.tokens -= 1.0
        budget.delayed = None
        self._lost += delayed is not None and delayed is not series and not delayed.created
        return series

    def pop_ready(self, now: float) -> list[Series]:
        """Remove and return the delayed events whose objects have a budget again."""
        found: list[Series] = []
        while self._delays and self._delays[0][0] <= now:
            source = heapq.heappop(self._delays)[2]
            budget = self._budgets.get(source)
            if budget is None or budget.delayed is None:
                continue
            budget.refill(now)
            if budget.tokens < 1.0:
                self._delay(source, budget, now)
                continue
            budget.tokens -= 1.0
            found.append(budget.delayed)
            budget.delayed = None
        return found

    def drain_lost(self) -> int:
        """Number of events dropped since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    def clear(self) -> None:
        """Forget delayed events and budgets; counts continue."""
        self._budgets.clear()
        self._delays.clear()

    def renew(self, series: Series) -> None:
        """The Event object has expired: give it a new name, under which it is created again."""
        series.created = False
        series.name = self._name(series.object.name)

    def _delay(self, source: Source, budget: _Budget, now: float) -> None:
        self._sequence += 1
        # Slightly later than the token, so that rounding does not leave it short.
        at = now + (1.0 - budget.tokens) * REFILL_SECONDS + 0.001
        heapq.heappush(self._delays, (at, self._sequence, source))
        if len(self._delays) > 2 * CAPACITY:
            # Drop entries of objects that were forgotten or written since.
            alive = {line[2]: line for line in self._delays}
            self._delays = [line for key, line in alive.items() if self._has_delayed(key)]
            heapq.heapify(self._delays)

    def _has_delayed(self, source: Source) -> bool:
        budget = self._budgets.get(source)
        return budget is not None and budget.delayed is not None

    def _fold(self, event: EmitEvent, component: str, now: float) -> Series:
        kind = (component, event.object, event.type, event.reason)
        message = cut(escaped(event.message))
        key: SeriesKey = (kind, message)
        series = self._series.get(key)
        if series is None:
            if self._is_one_of_many(kind, message, now):
                message = cut(COMBINED + message)
                key = (kind, None)
                series = self._series.get(key)
            if series is None or (key[1] is None and now - series.last > SIMILAR_SECONDS):
                series = Series(key, event, component, self._name(event.object.name), now)
                self._series.put(key, series)
        else:
            self._is_one_of_many(kind, message, now)
        series.count += 1
        series.last = now
        series.message = message
        return series

    def _is_one_of_many(self, kind: Kind, message: str, now: float) -> bool:
        similar = self._similar.get(kind)
        if similar is None or now - similar.last > SIMILAR_SECONDS:
            similar = _Similar()
            self._similar.put(kind, similar)
        similar.last = now
        if message in similar.messages:
            return False
        if len(similar.messages) >= MAX_SIMILAR:
            return True
        similar.messages.add(message)
        return False


def cut(message: str, limit: int = MAX_MESSAGE) -> str:
    """Truncate to `limit` bytes of UTF-8, at a character, with three dots at the end."""
    if len(message) * 4 <= limit:
        return message
    encoded = message.encode(errors="replace")
    return message if len(encoded) <= limit else encoded[: limit - 3].decode(errors="ignore") + "..."
