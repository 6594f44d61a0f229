"""Controllers that are killed at a write: before it or after it, also between writes that are made together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from capcard_sched.controllers.objects import Key
from capcard_sched.controllers.view import Controller, Create, Delete, Failure, Patch, Result, View, Write
from capcard_sched.model.kinds import kind_of
from capcard_sched.simulation.cluster import SimulatedCluster
from capcard_sched.simulation.workloads.controller_runner import ControllerRunner
from tests.unit.controllers.bench import SCHEDULER, restart_controllers


class KilledError(Exception):
    """The controllers end here."""


class Kill(NamedTuple):
    """The controllers end at their nth write, from 1."""

    nth: int
    #: The write takes effect, and the events and counters after it are lost; otherwise those before it are kept.
    taken: bool
    #: Creations, or deletions, that are made together take effect in the reverse order.
    reverse: bool = False
    #: How many processes end so, one after the other.
    times: int = 1


class KilledCluster(SimulatedCluster):
    """A cluster whose controllers are killed and start again at once: their memory and timers are lost."""

    def __init__(self, kill: Kill) -> None:
        super().__init__((SCHEDULER,), "default")
        self._kill = kill
        #: Processes that ended, and writes of the present one.
        self._kills = self._made = 0
        #: The writes that were counted: controller, verb, kind.
        self.writes: list[tuple[str, str, str]] = []
        for runner in self._controllers:
            if isinstance(runner, ControllerRunner):
                runner._controller = KilledController(runner._controller, self)

    def settle(self) -> None:
        """The store keeps what was written."""
        try:
            super().settle()
        except KilledError:
            self._kills, self._made = self._kills + 1, 0
            restart_controllers(self, SCHEDULER, lambda controller: KilledController(controller, self))

    def sent(self, controller: Controller, writes: Sequence[Write]) -> Iterator[Write]:
        """The writes of a pass, up to the one at which the controllers are killed."""
        kill = self._kill
        for write in _reversed(writes) if kill.reverse else writes:
            if not isinstance(write, Create | Delete | Patch):
                yield write
                continue
            self._made += 1
            self.writes.append((type(controller).__name__, *_words(write)))
            # A write that is refused ends its pass; then the next write is the last one.
            last = self._kills < kill.times and self._made >= kill.nth
            if not last or kill.taken:
                yield write
            if last:
                raise KilledError


def _reversed(writes: Iterable[Write]) -> Iterator[Write]:
    for kind, together in groupby(writes, type):
        found = [*together]
        yield from reversed(found) if kind in (Create, Delete) else found


def _words(write: Create | Patch | Delete) -> tuple[str, str]:
    if isinstance(write, Create):
        return "create", kind_of(write.object)
    if isinstance(write, Delete):
        return "delete", write.key.kind
    return "patch", f"{write.key.kind}/{write.subresource}".rstrip("/")


class KilledController:
    """A controller whose writes end at a kill."""

    def __init__(self, controller: Controller, cluster: KilledCluster) -> None:
        self.controller = controller
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self.controller, name)

    def reconcile(self, view: View, key: Key, now: float) -> Result:
        found = self.controller.reconcile(view, key, now)
        sent: Any = self._cluster.sent(self.controller, found.writes)
        return found._replace(writes=sent)

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        found = self.controller.failed(view, key, now, failure)
        sent: Any = self._cluster.sent(self.controller, found.writes)
        return found._replace(writes=sent)
