"""One row of the tables of malformed objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from capcard_sched.testing import Harness
from tests.malformed.world import GPU, Told, World

#: For `Case.bad`: the pod has a node, or it has none and no condition says why (an event does).
BOUND: Final = "bound"
UNSEEN: Final = "unseen"


class Case(NamedTuple):
    """A malformed object and everything that must come of it."""

    id: str
    #: Adds or replaces the one malformed object.
    setup: Callable[[Harness], object]
    #: All Warning events of the run, but those about held gangs.
    told: tuple[Told, ...] = ()
    #: What becomes of the pod `bad`: BOUND, UNSEEN or the message of its condition. None: there is no such pod.
    bad: str | None = None
    #: Gangs of the same queue that the malformed object holds, as the reference says.
    held: frozenset[str] = frozenset()
    #: Why, as the condition of their pods says it.
    held_by: str = ""
    #: How the condition Unschedulable of the PodGroup `bad` ends, where it has no pod to name.
    condition: str = ""
    #: A fact about the state after the run.
    check: Callable[[World], object] | None = None
    conf: str | None = None


def invalid(kind: str, name: str, detail: str) -> Told:
    """The event of an object that cannot be read."""
    return Told(kind, name, "InvalidObject", detail)


def refused(reason: str, message: str) -> tuple[Told, ...]:
    """A refusal that keeps the job `bad` out of the queue: told to the PodGroup and to its pod (R26)."""
    return Told("Pod", "bad", reason, message), Told("PodGroup", "bad", reason, message)


def pod(
    id: str,
    bad: str,
    *told: Told,
    check: Callable[[World], object] | None = None,
    group: str | None = "bad",
    **spec: Any,
) -> Case:
    """A malformed pod in a PodGroup of its own in queue `q`."""

    def setup(h: Harness) -> None:
        if group == "bad":
            h.group("bad", queue="q", phase="Pending")
        h.pod("bad", group=group, **spec)

    return Case(id, setup, told, bad, check=check)


def card_pod(
    id: str, bad: str, *told: Told, check: Callable[[World], object] | None = None, **annotations: str
) -> Case:
    """A pod that asks for one device; of annotations `volcano.sh/...` with `_` for `.` and `__` for `-`."""
    names = {f"volcano.sh/{key.replace('__', '-').replace('_', '.')}": text for key, text in annotations.items()}
    return pod(id, bad, *told, check=check, requests={"cpu": "1", GPU: 1}, annotations=names)


def charge_error(id: str, error: str, **annotations: str) -> Case:
    """A pod whose charge cannot be computed: it waits, and says why (capacity-card reference §2.3)."""
    message = f"Get request resource failed, Queue <q>, error: <{error}>"
    return card_pod(id, message, *refused("GetTaskRequestResourceFailed", message), check=None, **annotations)


def group(
    id: str,
    bad: str | None,
    *told: Told,
    pods: int = 1,
    condition: str = "",
    check: Callable[[World], object] | None = None,
    **spec: Any,
) -> Case:
    """A malformed PodGroup with one pod of one card, or none."""

    def setup(h: Harness) -> None:
        h.group("bad", **{"queue": "q", "phase": "Pending", **spec})
        if pods:
            h.pod("bad", group="bad", card="A", cards=1)

    return Case(id, setup, told, bad if pods else None, condition=condition, check=check)
