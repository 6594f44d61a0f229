"""Which events are written: identical ones counted, similar ones gathered, each object on a budget.

The rules of Kubernetes' own Go client (core reference §5.7, W-16), with one difference: when an object's budget is
spent, its latest event is kept and written as soon as the budget allows, so that the last word is never lost.

Pure: no I/O; times are unix seconds and come as arguments.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeAlias

from capcard_sched.kube.writes.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.model.intents import EmitEvent, ObjectRef

#: How many objects, kinds of events and single events are remembered.
CAPACITY = 4096
#: So many different messages of one kind on one object stand alone; later ones share one event.
MAX_SIMILAR = 10
#: A kind of event that was silent for so many seconds starts anew.
SIMILAR_SECONDS = 600.0
#: Writes per source and object: so many at once, then one in so many seconds.
BURST = 25
REFILL_SECONDS = 300.0
#: Longest message, in bytes of UTF-8.
MAX_MESSAGE = 1024
COMBINED = "(combined from similar events): "

#: Component and object.
Source: TypeAlias = "tuple[str, ObjectRef]"
#: Component, object, type and reason.
Kind: TypeAlias = "tuple[str, ObjectRef, str, str]"
#: The kind, and the message of a single event; None where similar ones share one.
SeriesKey: TypeAlias = "tuple[Kind, str | None]"


class Series:
    """One Event object: how often it happened and what it says now. Changed in place, also while it waits."""

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
        #: The API server has it: further occurrences are patched in.
        self.created = False


class _Similar:
    __slots__ = ("last", "messages")

    def __init__(self) -> None:
        self.messages: set[str] = set()
        self.last = 0.0


class _Budget:
    __slots__ = ("at", "held", "tokens")

    def __init__(self, now: float) -> None:
        self.tokens = float(BURST)
        self.at = now
        #: The latest event that had no token.
        self.held: Series | None = None

    def refill(self, now: float) -> None:
        self.tokens = min(float(BURST), self.tokens + max(0.0, now - self.at) / REFILL_SECONDS)
        self.at = max(self.at, now)


class EventCorrelator:
    """Turns events into few writes. `name(object_name)` makes a new, unique name for an Event object."""

    def __init__(self, component: str, name: Callable[[str], str]) -> None:
        self._component = component
        self._name = name
        self._series: Lru[SeriesKey, Series] = Lru(CAPACITY)
        self._similar: Lru[Kind, _Similar] = Lru(CAPACITY)
        self._budgets: Lru[Source, _Budget] = Lru(CAPACITY)
        self._due: list[tuple[float, int, Source]] = []
        self._sequence = 0
        #: Events that will never be written, since the last `drain_lost`.
        self._lost = 0

    def observe(self, event: EmitEvent, now: float) -> Series | None:
        """Take in one event. Returns the series to write now, None while its object's budget is spent."""
        component = event.component or self._component
        source = (component, event.object)
        series = self._fold(event, component, now)
        budget = self._budgets.get(source)
        if budget is None:
            budget = _Budget(now)
            gone = self._budgets.put(source, budget)
            self._lost += gone is not None and gone.held is not None
        budget.refill(now)
        held = budget.held
        if budget.tokens < 1.0:
            budget.held = series
            if held is None:
                self._put_off(source, budget, now)
            elif held is not series and not held.created:
                self._lost += 1
            return None
        budget.tokens -= 1.0
        budget.held = None
        self._lost += held is not None and held is not series and not held.created
        return series

    def due(self, now: float) -> list[Series]:
        """The held events whose objects have a budget again."""
        found: list[Series] = []
        while self._due and self._due[0][0] <= now:
            source = heapq.heappop(self._due)[2]
            budget = self._budgets.get(source)
            if budget is None or budget.held is None:
                continue
            budget.refill(now)
            if budget.tokens < 1.0:
                self._put_off(source, budget, now)
                continue
            budget.tokens -= 1.0
            found.append(budget.held)
            budget.held = None
        return found

    def drain_lost(self) -> int:
        """How many events were given up since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    def clear(self) -> None:
        """Forget what is held back, and what each object has spent; counts go on."""
        self._budgets.clear()
        self._due.clear()

    def renew(self, series: Series) -> None:
        """The API server no longer has it (events expire): it is created again, under a new name."""
        series.created = False
        series.name = self._name(series.object.name)

    def _put_off(self, source: Source, budget: _Budget, now: float) -> None:
        self._sequence += 1
        # A little later than the token, lest rounding leaves it just short.
        at = now + (1.0 - budget.tokens) * REFILL_SECONDS + 0.001
        heapq.heappush(self._due, (at, self._sequence, source))
        if len(self._due) > 2 * CAPACITY:
            # Lines of objects that were forgotten or written to meanwhile.
            alive = {line[2]: line for line in self._due}
            self._due = [line for key, line in alive.items() if self._holds(key)]
            heapq.heapify(self._due)

    def _holds(self, source: Source) -> bool:
        budget = self._budgets.get(source)
        return budget is not None and budget.held is not None

    def _fold(self, event: EmitEvent, component: str, now: float) -> Series:
        """The series an event belongs to, with the event counted in it."""
        kind = (component, event.object, event.type, event.reason)
        message = cut(event.message)
        key: SeriesKey = (kind, message)
        series = self._series.get(key)
        if series is None:
            if self._is_one_of_many(kind, message, now):
                message = cut(COMBINED + event.message)
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
    """At most `limit` bytes of UTF-8, whole characters, three dots where something was cut off."""
    if len(message) * 4 <= limit:
        return message
    encoded = message.encode(errors="replace")
    return message if len(encoded) <= limit else encoded[: limit - 3].decode(errors="ignore") + "..."
