"""A small healthy cluster around one malformed object, and what everybody in it is told.

Two queues, one node with eight cards, and gangs of two that must run whatever the malformed object is: one with cards
and one with cpu only in the queue of the malformed object (`q`), one with cards in another queue (`other`). The
malformed object comes first, so that it is looked at first; a second gang in `other` comes later, so that the session
after it has to work as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from capcard_sched.model.intents import UpdatePodGroup
from capcard_sched.testing import Harness

GPU = "nvidia.com/gpu"
CARD_GANG, CPU_GANG, OTHER_GANG, LATER_GANG = "cards-here", "cpu-here", "cards-there", "later-there"

#: Events that only repeat why pods wait; the reason itself is compared in the pod's condition.
ECHOES = frozenset({"FailedScheduling", "Unschedulable"})


class Told(NamedTuple):
    """One Warning event."""

    kind: str
    name: str
    reason: str
    message: str


class World:
    """See the module docstring. Replace `q`, `good` or `bad` before `run`."""

    def __init__(self, conf: str | None = None) -> None:
        self.h = Harness(conf)
        self.h.queue("q", cards={"A": 8})
        self.h.queue("other", cards={"A": 8})
        self.h.gpu_node("good", card="A", count=8)
        self.errors: list[Any] = []
        self.conditions: dict[str, list[tuple[str, str, str]]] = {}

    def gang(self, name: str, queue: str, cards: int = 1) -> None:
        """Two pods that run together or not at all."""
        self.h.group(name, queue=queue, min_member=2, phase="Pending")
        for index in range(2):
            self.h.pod(f"{name}-{index}", group=name, card="A" if cards else None, cards=cards)

    def run(self) -> None:
        """A session with everything, one with a gang that comes later, and what follows until nothing changes."""
        self.gang(CARD_GANG, "q")
        self.gang(CPU_GANG, "q", cards=0)
        self.gang(OTHER_GANG, "other")
        self._step()
        self.gang(LATER_GANG, "other")
        for _ in range(8):
            if self._step():
                return
        raise AssertionError("still busy after 8 sessions")

    def _step(self) -> bool:
        result = self.h.step()
        self.errors += result.report.errors
        for intent in result.intents:
            if isinstance(intent, UpdatePodGroup):
                self.conditions[intent.name] = [(c.type, c.status, c.message) for c in intent.conditions]
        return result.idle

    # --- answers ----------------------------------------------------------------------------------------------------

    def bound(self, *gangs: str) -> set[str]:
        """Those of the gangs (all healthy ones by default) of which every pod has a node."""
        names = gangs or (CARD_GANG, CPU_GANG, OTHER_GANG, LATER_GANG)
        return {name for name in names if {f"{name}-0", f"{name}-1"} <= self.h.binds.keys()}

    def told(self) -> list[Told]:
        """All Warning events, each as often as it was written, without those that only repeat why pods wait."""
        return sorted(
            Told(event.object.kind, event.object.name, event.reason, event.message)
            for event in self.h.all_events
            if event.type == "Warning" and event.reason not in ECHOES
        )
