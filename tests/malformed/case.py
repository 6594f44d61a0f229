"""One row of the tables of malformed objects, and the tables of malformed files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from capcard_sched.testing import Harness
from tests.malformed.world import GPU, WarningEvent, World

#: For `Case.bad`: the pod has a node; or it has none and no condition, only an event.
BOUND: Final = "bound"
UNSEEN: Final = "unseen"


class Case(NamedTuple):
    """A malformed object and all its effects."""

    id: str
    #: Adds or replaces the one malformed object.
    setup: Callable[[Harness], object]
    #: All Warning events of the run, but those about held gangs.
    events: tuple[WarningEvent, ...] = ()
    #: State of the pod `bad`: BOUND, UNSEEN or the message of its condition. None: no such pod.
    bad: str | None = None
    #: Gangs of the same queue that the malformed object blocks.
    held: frozenset[str] = frozenset()
    #: The condition message of their pods.
    held_by: str = ""
    #: End of the condition Unschedulable of the PodGroup `bad`, where it has no pod to name.
    condition: str = ""
    #: A fact about the state after the run.
    check: Callable[[World], object] | None = None
    conf: str | None = None


def invalid(kind: str, name: str, detail: str) -> WarningEvent:
    """The event of an invalid object."""
    return WarningEvent(kind, name, "InvalidObject", detail)


def refused(reason: str, message: str) -> tuple[WarningEvent, ...]:
    """The refusal of the job `bad` at enqueue: events on the PodGroup and on its pod."""
    return WarningEvent("Pod", "bad", reason, message), WarningEvent("PodGroup", "bad", reason, message)


def pod(
    id: str,
    bad: str,
    *events: WarningEvent,
    check: Callable[[World], object] | None = None,
    group: str | None = "bad",
    **spec: Any,
) -> Case:
    """A malformed pod in a PodGroup of its own in queue `q`."""

    def setup(h: Harness) -> None:
        if group == "bad":
            h.group("bad", queue="q", phase="Pending")
        h.pod("bad", group=group, **spec)

    return Case(id, setup, events, bad, check=check)


def card_pod(
    id: str, bad: str, *events: WarningEvent, check: Callable[[World], object] | None = None, **annotations: str
) -> Case:
    """A pod that requests one device; of annotations `volcano.sh/...` with `_` for `.` and `__` for `-`."""
    names = {f"volcano.sh/{key.replace('__', '-').replace('_', '.')}": text for key, text in annotations.items()}
    return pod(id, bad, *events, check=check, requests={"cpu": "1", GPU: 1}, annotations=names)


def charge_error(id: str, error: str, **annotations: str) -> Case:
    """A pod without computable charge: it stays pending with the reason."""
    message = f"Get request resource failed, Queue <q>, error: <{error}>"
    return card_pod(id, message, *refused("GetTaskRequestResourceFailed", message), check=None, **annotations)


def group(
    id: str,
    bad: str | None,
    *events: WarningEvent,
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

    return Case(id, setup, events, bad if pods else None, condition=condition, check=check)


def table(name: str, words: Mapping[str, str] | None = None) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Id, text and problems of the cases of a file beside this one, with its words and these expanded."""
    content = yaml.safe_load(Path(__file__).with_name(name).read_text())

    def expanded(text: str) -> str:
        for word, meaning in {**content["words"], **(words or {})}.items():
            text = text.replace(word, meaning)
        return text

    for block in content["blocks"]:
        for key, found in block["cases"].items():
            problems = [found] if isinstance(found, str) else found
            text = expanded(block["text"].replace("$", key))
            yield f"{block['of']}: {key}"[:90], text, tuple(expanded(block.get("place", "") + one) for one in problems)
