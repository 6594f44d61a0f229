"""The Queue controller: the state of queues, their counts, and the closing and opening of subtrees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.objects import (
    COMMAND,
    POD_GROUP,
    QUEUE,
    ROOT_QUEUE,
    JsonObject,
    Key,
    annotations_of,
    merge_diff,
    meta,
    spec,
    status,
)
from capcard_sched.controllers.view import (
    Delete,
    Patch,
    Result,
    Write,
    delete,
    event_on,
    ignored_command,
    is_for,
    rest_at,
    target_of,
    unmatched_commands,
)
from capcard_sched.model.annotations import CLOSED_BY_PARENT
from capcard_sched.model.namespace_queues import queue_id
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capcard_sched.controllers.view import Failure, View

PHASES: Final = ("Pending", "Inqueue", "Running", "Completed", "Unknown")
OPEN, CLOSED, CLOSING, UNKNOWN = "Open", "Closed", "Closing", "Unknown"
OPEN_QUEUE, CLOSE_QUEUE = "OpenQueue", "CloseQueue"
_SHUT: Final = (CLOSED, CLOSING)
#: Seconds for which an OpenQueue command waits for the parent queue to open.
_OPEN_SECONDS: Final = 180.0


def next_state(state: str, action: str, groups: int) -> str:
    """The state after OpenQueue, CloseQueue or a sync (any other action) of a queue with this many PodGroups."""
    if action == OPEN_QUEUE:
        return OPEN
    if action == CLOSE_QUEUE:
        return CLOSED if state == CLOSED or not groups else CLOSING
    if state == CLOSING:
        return CLOSING if groups else CLOSED
    return state or OPEN


class QueueController:
    """Keeps `status.state` of every queue, and its counts of PodGroups with `write_counts`."""

    watches = frozenset({QUEUE, POD_GROUP, COMMAND})
    replays = frozenset({QUEUE, COMMAND})

    def __init__(self, *, write_counts: bool) -> None:
        self._write_counts = write_counts
        self._children: dict[str, dict[str, None]] = {}
        #: Uids of commands that were reported to wait for the parent.
        self._refused: set[str] = set()

    def keys(self, kind: str, old: JsonObject | None, new: JsonObject | None) -> Iterator[Key]:
        """The queue and its children, the queues of a PodGroup, the target of a Command."""
        if kind == QUEUE:
            yield from self._queue_keys(old, new)
        elif kind == POD_GROUP:
            before, after = queue_and_phase(old), queue_and_phase(new)
            if before != after:
                for place in dict.fromkeys((before, after)):
                    if place is not None and "/" not in place[0]:
                        yield Key(QUEUE, "", place[0])
        elif new is not None:
            target = target_of(new)
            if target is not None and target.kind == QUEUE:
                yield target
        elif old is not None:
            self._refused.discard(meta(old)["uid"])

    def _queue_keys(self, old: JsonObject | None, new: JsonObject | None) -> Iterator[Key]:
        for queue, present in ((old, False), (new, True)):
            if queue is None:
                continue
            parent, name = parent_of(queue), meta(queue)["name"]
            siblings = self._children.setdefault(parent, {})
            siblings.pop(name, None)
            if present:
                siblings[name] = None
            elif not siblings:
                del self._children[parent]
        found = new if new is not None else old
        assert found is not None
        name = meta(found)["name"]
        yield Key(QUEUE, "", name)
        if old is None or new is None or state_of(old) != state_of(new):
            for child in self._children.get(name, ()):
                yield Key(QUEUE, "", child)

    def reconcile(self, view: View, key: Key, now: float) -> Result:
        """Apply the commands, follow the parent, write the state and the counts."""
        queue = view.get(QUEUE, "", key.name)
        if queue is None:
            return unmatched_commands(view, key, now)
        commands = view.targeting(key)
        counts = view.group_phases(key.name)
        groups = sum(counts.values())
        parent = view.get(QUEUE, "", parent_of(queue)) if key.name != ROOT_QUEUE else None
        state, mark = state_of(queue), annotations_of(queue).get(CLOSED_BY_PARENT)
        writes: list[Write] = []
        action, at = "", None
        for command in commands:
            if not is_for(command, key, meta(queue)["uid"]):
                deletion, (reason, text, warning) = ignored_command(QUEUE, queue, command)
                writes += [event_on(QUEUE, queue, reason, text, warning=warning), deletion]
                continue
            wanted = str(command.get("action") or "")
            if wanted == CLOSE_QUEUE and key.name != ROOT_QUEUE:
                action, mark = CLOSE_QUEUE, None if mark is None else "false"
            elif wanted == OPEN_QUEUE:
                if parent is not None and state_of(parent) in _SHUT and state in _SHUT:
                    waiting = self._refuse(queue, command, meta(parent)["name"], now)
                    writes += waiting.writes
                    at = waiting.at
                    continue
                action, mark = OPEN_QUEUE, None if mark is None else "false"
            writes.append(delete(COMMAND, command))
        rest = rest_at(commands, now)
        if rest is not None and any(isinstance(write, Delete) for write in writes):
            at = rest
        state = next_state(state, action, groups)
        if parent is not None and not action:
            if state_of(parent) in _SHUT and state == OPEN:
                action, mark, state = CLOSE_QUEUE, "true", next_state(state, CLOSE_QUEUE, groups)
            elif state_of(parent) == OPEN and mark == "true":
                action, mark, state = OPEN_QUEUE, "false", OPEN
        changes = self._changes(queue, state, mark, counts if self._write_counts else None)
        if action == CLOSE_QUEUE and state_of(queue) not in _SHUT:
            changes.append(event_on(QUEUE, queue, CLOSE_QUEUE, "Close queue succeed"))
        return Result([*changes, *writes], at)

    def _refuse(self, queue: JsonObject, command: JsonObject, parent: str, now: float) -> Result:
        """The parent is shut: the command waits for some time."""
        uid = meta(command)["uid"]
        until = parse_time(meta(command).get("creationTimestamp")) + _OPEN_SECONDS
        text = f"Update queue status from {state_of(queue)} to {OPEN} failed for queue {parent} is not open: "
        text += "Open the parent queue first"
        writes: list[Write] = []
        if now >= until:
            self._refused.discard(uid)
            text = f"{OPEN_QUEUE} queue failed for queue {parent} is not open: Open the parent queue first"
            return Result([event_on(QUEUE, queue, OPEN_QUEUE, text, warning=True), delete(COMMAND, command)])
        if uid not in self._refused:
            self._refused.add(uid)
            writes.append(event_on(QUEUE, queue, OPEN_QUEUE, text, warning=True))
        return Result(writes, until)

    def _changes(self, queue: JsonObject, state: str, mark: str | None, counts: object) -> list[Write]:
        """The mark is written before a queue closes and after it opens: one that is closed without it stays closed."""
        key, uid = Key(QUEUE, "", meta(queue)["name"]), meta(queue)["uid"]
        writes: list[Write] = []
        patch: JsonObject = {}
        if mark is not None and annotations_of(queue).get(CLOSED_BY_PARENT) != mark:
            patch["metadata"] = {"annotations": {CLOSED_BY_PARENT: mark}}
        if key.name != ROOT_QUEUE and not spec(queue).get("parent"):
            patch["spec"] = {"parent": ROOT_QUEUE}
        if patch:
            writes.append(Patch(key, patch, uid=uid))
        wanted: JsonObject = {"state": state}
        if isinstance(counts, dict):
            wanted.update({phase.lower(): counts[phase] for phase in PHASES if counts.get(phase)})
        fields = {"state", *(phase.lower() for phase in PHASES if counts is not None)}
        present = {field: status(queue)[field] for field in fields if field in status(queue)}
        changed = merge_diff(present, wanted)
        if changed:
            lazy = "state" not in changed
            write = Patch(key, {"status": changed}, uid=uid, subresource="status", lazy=lazy)
            writes.insert(0 if state == OPEN else len(writes), write)
        return writes

    def failed(self, view: View, key: Key, now: float, failure: Failure) -> Result:
        """An event at the retry limit."""
        queue = view.get(QUEUE, "", key.name)
        if queue is None or not failure.last:
            return Result()
        action = CLOSE_QUEUE if state_of(queue) in _SHUT else "SyncQueue"
        return Result([event_on(QUEUE, queue, action, f"{action} queue failed for {failure.error}", warning=True)])


def parent_of(queue: JsonObject) -> str:
    """The name of the parent queue; every queue but the root has one."""
    return spec(queue).get("parent") or ROOT_QUEUE


def state_of(queue: JsonObject) -> str:
    """`status.state`; a queue that has none is open."""
    return status(queue).get("state") or OPEN


def queue_and_phase(group: JsonObject | None) -> tuple[str, str] | None:
    """Id of the queue and phase of a PodGroup, None for none."""
    if group is None:
        return None
    phase = status(group).get("phase") or "Pending"
    queue = queue_id(str(spec(group).get("queue") or "default"), str(meta(group).get("namespace") or ""))
    return queue, phase if phase in PHASES else "Unknown"
