"""The Queue controller: state, counts of PodGroups, and the closing and opening of subtrees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capcard_sched.model.annotations import CLOSED_BY_PARENT
from capcard_sched.simulation.admission import ROOT_QUEUE
from capcard_sched.simulation.kinds import (
    COMMAND,
    POD_GROUP,
    QUEUE,
    SCHEDULING_API,
    JsonObject,
    annotations_of,
    meta,
    spec,
    status,
)
from capcard_sched.simulation.store import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capcard_sched.simulation.store import Change, Store

_PHASES = ("Pending", "Inqueue", "Running", "Completed", "Unknown")


class QueueController:
    """Keeps `status.state` and the counts of every queue; obeys OpenQueue and CloseQueue commands."""

    def __init__(self, store: Store, default_queue: str) -> None:
        self._store = store
        self._default_queue = default_queue
        self._queues: dict[str, None] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._commands: dict[tuple[str, str], None] = {}

    def ensure_queues(self, taken: Iterable[str]) -> None:
        """Create `root` and the default queue unless they are among `taken`, the queues that users bring."""
        for name, reclaimable in ((ROOT_QUEUE, False), (self._default_queue, True)):
            if name not in taken:
                self._store.create(
                    QUEUE,
                    {
                        "apiVersion": SCHEDULING_API,
                        "kind": QUEUE,
                        "metadata": {"name": name},
                        "spec": {"weight": 1, "reclaimable": reclaimable},
                    },
                )

    def observe(self, change: Change) -> None:
        """Take note of queues, of PodGroups that change queue or phase, and of commands."""
        if change.kind == QUEUE:
            self._queues[change.key[1]] = None
        elif change.kind == POD_GROUP:
            before, after = _place(change.old), _place(change.new)
            if before != after:
                for place, step in ((before, -1), (after, 1)):
                    if place is not None:
                        counts = self._counts.setdefault(place[0], dict.fromkeys(_PHASES, 0))
                        counts[place[1]] += step
                        self._queues[place[0]] = None
        elif change.kind == COMMAND and change.verb == "added":
            self._commands[change.key] = None

    def reconcile(self) -> bool:
        """Bring queues in line; whether there was anything to look at."""
        worked = bool(self._queues or self._commands)
        while self._commands:
            key = next(iter(self._commands))
            del self._commands[key]
            self._obey(key)
        while self._queues:
            name = next(iter(self._queues))
            del self._queues[name]
            queue = self._store.get(QUEUE, "", name)
            if queue is None:
                continue
            self._keep(queue)
            for child in self._children(name):
                self._follow_parent(queue, child)
        return worked

    def _obey(self, key: tuple[str, str]) -> None:
        command = self._store.get(COMMAND, *key)
        target = (command or {}).get("target") or {}
        if command is None or target.get("kind") != QUEUE:
            return
        self._store.delete(COMMAND, *key)
        queue = self._store.get(QUEUE, "", target.get("name", ""))
        if queue is None:
            return
        if command.get("action") == "CloseQueue" and target["name"] != ROOT_QUEUE:
            self._set_state(queue, self._closing(queue))
        elif command.get("action") == "OpenQueue":
            parent = self._store.get(QUEUE, "", spec(queue).get("parent") or "")
            if parent is None or _state(parent) not in ("Closed", "Closing"):
                self._set_state(queue, "Open")
                if annotations_of(queue).get(CLOSED_BY_PARENT):
                    self._mark(queue, "false")

    def _keep(self, queue: JsonObject) -> None:
        name = meta(queue)["name"]
        counts = self._counts.get(name, {})
        shown = {phase.lower(): counts.get(phase, 0) or None for phase in _PHASES}
        patch: JsonObject = {**shown}
        if _state(queue) == "Closing":
            patch["state"] = self._closing(queue)
        self._store.patch(QUEUE, "", name, {"status": patch})

    def _follow_parent(self, parent: JsonObject, child: JsonObject) -> None:
        if _state(parent) in ("Closed", "Closing"):
            if _state(child) not in ("Closed", "Closing"):
                self._mark(child, "true")
                self._set_state(child, self._closing(child))
        elif _state(child) in ("Closed", "Closing") and annotations_of(child).get(CLOSED_BY_PARENT) == "true":
            self._mark(child, "false")
            self._set_state(child, "Open")

    def _closing(self, queue: JsonObject) -> str:
        """Closed once no PodGroup, in whatever phase, is left."""
        return "Closing" if sum(self._counts.get(meta(queue)["name"], {}).values()) else "Closed"

    def _children(self, name: str) -> list[JsonObject]:
        return [queue for queue in self._store.list(QUEUE) if spec(queue).get("parent") == name]

    def _set_state(self, queue: JsonObject, state: str) -> None:
        self._store.patch(QUEUE, *key_of(queue), {"status": {"state": state}})

    def _mark(self, queue: JsonObject, value: str) -> None:
        self._store.patch(QUEUE, *key_of(queue), {"metadata": {"annotations": {CLOSED_BY_PARENT: value}}})


def _place(group: JsonObject | None) -> tuple[str, str] | None:
    """Queue and phase of a PodGroup."""
    if group is None:
        return None
    phase = status(group).get("phase") or "Pending"
    return spec(group).get("queue", ""), phase if phase in _PHASES else "Unknown"


def _state(queue: JsonObject) -> str:
    return status(queue).get("state") or "Open"
