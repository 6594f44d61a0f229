"""A small healthy cluster around one malformed object, and its warning events.

Two queues, a node with eight cards and one without, and gangs of two that must run whatever the malformed object is:
one with cards and one with cpu only in the queue of the malformed object (`q`), one with cards in another queue
(`other`). The malformed object comes first, so that it is looked at first; another gang of `other` comes a session
later, so that the session after it has to work as well.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from capcard_sched.framework.close.podgroups import GRACE_SECONDS
from capcard_sched.framework.session.report import HookError
from capcard_sched.model.intents import UpdatePodGroup
from capcard_sched.testing import Harness
from tests.scenarios.notation import manifests

GPU = "nvidia.com/gpu"
HOST = "kubernetes.io/hostname"
#: Far beyond 64 bits.
BIG = 10**30

CARDS_HERE, CPU_HERE, CARDS_THERE, LATER_THERE = "cards-here", "cpu-here", "cards-there", "later-there"
HERE = frozenset({CARDS_HERE, CPU_HERE})
HEALTHY = HERE | {CARDS_THERE, LATER_THERE}

#: Events that only repeat why pods wait; the reason itself is compared in the condition of the pod.
#: Consequences of another event, or of a scheduler-conf without capacity-card.
_ECHOES = frozenset({"FailedScheduling", "Unschedulable", "LimitNotEnforced"})

NO_NUMBER = "expected a number with an optional suffix, such as 2, 500m, 1.5, 4Gi or 1e3"


def no_suffix(suffix: str) -> str:
    """The message for a quantity with this suffix."""
    known = "n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei and exponents such as e3"
    return f"unknown suffix '{suffix}'; known are {known}"


#: Invalid quantities with their messages.
BAD_QUANTITIES: tuple[tuple[str, str | float, str], ...] = (
    ("a word", "lots", f"'lots' is not a quantity: {NO_NUMBER}"),
    ("a word for infinity", "inf", f"'inf' is not a quantity: {NO_NUMBER}"),
    ("NaN as a number", float("nan"), f"'nan' is not a quantity: {NO_NUMBER}"),
    ("only a point", ".", f"'.' is not a quantity: {NO_NUMBER}"),
    ("negative", "-1", "'-1' is negative"),
    ("an unknown suffix", "1GiB", f"'1GiB' is not a quantity: {no_suffix('GiB')}"),
    ("a blank inside", "1 Gi", f"'1 Gi' is not a quantity: {no_suffix(' Gi')}"),
    ("exponent and suffix", "1e3Ki", f"'1e3Ki' is not a quantity: {no_suffix('e3Ki')}"),
)


#: A node, a queue `q` and a gang of two that gets its cards, for the simulator.
MANIFESTS = "".join(
    f"{json.dumps(found)}\n---\n"
    for found in manifests("""
node good 8*A cpu=8 memory=8Gi
queue q cards=A:8
job gang queue=q min=2 + worker*2 cpu=1 gpu=1 card=A
""")
)


class WarningEvent(NamedTuple):
    """One Warning event."""

    kind: str
    name: str
    reason: str
    message: str


class World:
    """See the module docstring. Change `h` before `run`."""

    def __init__(self, conf: str | None = None) -> None:
        self.h = Harness(conf)
        self.h.queue("q", cards={"A": 8})
        self.h.queue("other", cards={"A": 8})
        self.h.gpu_node("good", card="A", count=8)
        self.h.node("plain")
        self.errors: list[HookError] = []
        #: PodGroup to its last conditions, as (type, status, message).
        self.conditions: dict[str, list[tuple[str, str, str]]] = {}

    def gang(self, name: str, queue: str, cards: int = 1) -> None:
        """Two pods that run together or not at all."""
        self.h.group(name, queue=queue, min_member=2, phase="Pending")
        for index in range(2):
            self.h.pod(f"{name}-{index}", group=name, card="A" if cards else None, cards=cards)

    def run(self) -> None:
        """A session with everything, one with a gang that comes later, and what follows until nothing changes."""
        self.gang(CARDS_HERE, "q")
        self.gang(CPU_HERE, "q", cards=0)
        self.gang(CARDS_THERE, "other")
        self._step()
        self.gang(LATER_THERE, "other")
        self._settle()
        self.h.now += GRACE_SECONDS  # gangs without all their pods are reported
        self._settle()

    def _settle(self) -> None:
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

    # --- results ----------------------------------------------------------------------------------------------------

    def running(self) -> set[str]:
        """The healthy gangs that have a node for both pods."""
        return {name for name in HEALTHY if {f"{name}-0", f"{name}-1"} <= self.h.binds.keys()}

    def events(self, *, about: frozenset[str] | None = None) -> list[WarningEvent]:
        """Warning events about everything but `about`'s gangs, each as often as it was written."""
        return sorted(
            WarningEvent(event.object.kind, event.object.name, event.reason, event.message)
            for event in self.h.all_events
            if event.type == "Warning"
            and event.reason not in _ECHOES
            and "and the nodes have space for" not in event.message  # why pods wait, too
            and event.object.name.removesuffix("-0").removesuffix("-1") not in (about or ())
        )
