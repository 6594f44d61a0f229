"""The cache from which controllers read: what the watches delivered, and what the API server returned to our writes.

A response is applied at once, so that a controller never reads the state before its own write; the watch event that
follows is recognized by its resourceVersion. What only a response showed is confirmed by the watch, or read again.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from capcard_sched.controllers.objects import COMMAND, POD_GROUP, JsonObject, Key, identity, key_of, meta
from capcard_sched.controllers.queues import queue_and_phase
from capcard_sched.controllers.view import COMMANDS_AT_ONCE, command_age, target_of
from capcard_sched.kube.controllers.records import BUILT_IN, RecordChanged, WatchedRecords
from capcard_sched.model.deltas import ObjectGone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from capcard_sched.model.ownership import Owner

#: Uids of deleted objects that are remembered, so that a late response does not bring one back.
_TOMBSTONES: Final = 20_000
#: Seconds for which an owner that was read is believed.
_FETCHED_SECONDS: Final = 60.0
#: Bytes of these owners, and the latest ones that are kept beyond: as many as are read at a time.
_FETCHED_BYTES: Final = 16 * 2**20
_LATEST_FETCHED: Final = 64
#: Seconds within which the watch is to show what a response showed.
_CONFIRM_SECONDS: Final = 30.0

#: Kinds whose changes the cache itself reads.
_INDEXED: Final = frozenset({COMMAND, POD_GROUP})

_encode: Final = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class NotFetchedError(LookupError):
    """An object that is not watched must be read first."""

    def __init__(self, key: Key) -> None:
        super().__init__(str(key))
        self.key = key


class _CachedObject:
    __slots__ = ("controller", "data", "deleted", "uid", "version")

    def __init__(self, change: RecordChanged) -> None:
        self.uid = change.uid
        self.version = change.version
        self.controller = change.controller
        self.data = change.data
        #: Since when the object is deleted by us, "" when it is not.
        self.deleted = ""


class ObjectCache:
    """Objects by kind, namespace and name. Belongs to one event loop."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_change: Callable[[str, JsonObject | None, JsonObject | None], None],
        records: WatchedRecords = BUILT_IN,
    ) -> None:
        """`clock` in seconds. `on_change(kind, old, new)` is called after each change while `observed`."""
        self._clock = clock
        self._on_change = on_change
        self._records = records
        #: Whether `on_change` is called: objects are decoded for it.
        self.observed = True
        self._entries: dict[str, dict[tuple[str, str], _CachedObject]] = {}
        self._owned: dict[Owner, dict[tuple[str, str, str], None]] = {}
        self._phases: dict[str, Counter[str]] = {}
        #: Target to the namespaces and names of its commands that are not being deleted, and their age.
        self._targets: dict[Key, dict[tuple[str, str], tuple[str, int, str]]] = {}
        self._tombstones: OrderedDict[str, None] = OrderedDict()
        self._unconfirmed: dict[Key, tuple[str, float]] = {}
        #: The oldest first: when it was read, and its JSON, b"" for none.
        self._fetched: OrderedDict[Key, tuple[float, bytes]] = OrderedDict()
        self._fetched_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def get(self, kind: str, namespace: str, name: str) -> JsonObject | None:
        """The object, or None. Raises NotFetchedError for a kind that is read on demand."""
        entry = self._entries.get(kind, {}).get((namespace, name))
        if entry is not None:
            return self._object(kind, entry)
        if kind in self._records.fetched:
            key = Key(kind, namespace, name)
            found = self._fetched.get(key)
            if found is None or self._clock() - found[0] > _FETCHED_SECONDS:
                raise NotFetchedError(key)
            return _decode(found[1]) if found[1] else None
        return None

    def owned(self, owner: JsonObject, kind: str) -> Sequence[JsonObject]:
        """Objects of a kind whose controller is `owner`, in order of their appearance."""
        entries = self._entries.get(kind, {})
        return [
            self._object(kind, entries[namespace, name])
            for each, namespace, name in self._owned.get(identity(owner), ())
            if each == kind
        ]

    def targeting(self, key: Key) -> Sequence[JsonObject]:
        """Commands for an object, the oldest ones."""
        entries, ages = self._entries.get(COMMAND, {}), self._targets.get(key, {})
        live = (each for each in ages if not entries[each].deleted)
        oldest = heapq.nsmallest(COMMANDS_AT_ONCE, live, key=ages.__getitem__)
        return [self._object(COMMAND, entries[each]) for each in oldest]

    def group_phases(self, queue: str) -> Mapping[str, int]:
        """Number of PodGroups of a queue by phase; empty for a queue without any."""
        return self._phases.get(queue, {})

    def all(self, kind: str) -> Iterator[JsonObject]:
        """All objects that a kind has when the iteration begins."""
        for entry in list(self._entries.get(kind, {}).values()):
            yield self._object(kind, entry)

    def kinds(self) -> list[str]:
        """Kinds of which there are objects."""
        return [kind for kind, entries in self._entries.items() if entries]

    def apply(self, change: RecordChanged | ObjectGone, *, confirmed: bool = True) -> None:
        """A change from a watch, or with `confirmed=False` from a response."""
        if isinstance(change, ObjectGone):
            self._remove(change)
            return
        key = Key(change.kind, change.namespace, change.name)
        if confirmed:
            self._unconfirmed.pop(key, None)
        if change.uid in self._tombstones:
            return
        entries = self._entries.setdefault(change.kind, {})
        old = entries.get(key[1:])
        if old is not None and old.uid == change.uid and change.version <= old.version:
            return
        if old is not None and old.uid != change.uid and not confirmed and change.version < old.version:
            return
        new = _CachedObject(change)
        if old is not None:
            if old.uid == new.uid:
                new.deleted = old.deleted
            else:
                self._bury(old.uid)
            self._unlink(key, old)
        entries[key[1:]] = new
        if new.controller is not None:
            self._owned.setdefault(new.controller, {})[key] = None
        if not confirmed:
            self._unconfirmed[key] = (change.uid, self._clock() + _CONFIRM_SECONDS)
        self._changed(change.kind, old, new)

    def deleted(self, key: Key, uid: str, stamp: str) -> None:
        """The API server accepted our deletion: the object counts as terminating until the watch removes it."""
        entry = self._entries.get(key.kind, {}).get(key[1:])
        if entry is not None and (not uid or entry.uid == uid) and not entry.deleted:
            entry.deleted = stamp
            self._unconfirmed[key] = (entry.uid, self._clock() + _CONFIRM_SECONDS)

    def fetched(self, key: Key, obj: JsonObject | None) -> None:
        """An object that is not watched was read."""
        now, data = self._clock(), b"" if obj is None else _encode(obj)
        _, former = self._fetched.pop(key, (now, b""))
        self._fetched[key] = now, data
        self._fetched_bytes += len(data) - len(former)
        while self._is_to_drop(now):
            _, (_, dropped) = self._fetched.popitem(last=False)
            self._fetched_bytes -= len(dropped)

    def _is_to_drop(self, now: float) -> bool:
        """Whether the oldest owner that was read is believed no more, or is one too many."""
        read, _ = next(iter(self._fetched.values()))
        if len(self._fetched) <= 1 or now - read > _FETCHED_SECONDS:
            return len(self._fetched) > 1
        is_large = self._fetched_bytes > _FETCHED_BYTES and len(self._fetched) > _LATEST_FETCHED
        return is_large or len(self._fetched) > _TOMBSTONES

    def unconfirmed(self) -> list[Key]:
        """Objects that the watch did not show in time: to be read again."""
        now = self._clock()
        return [key for key, (_, until) in self._unconfirmed.items() if until <= now]

    def confirm(self, key: Key, change: RecordChanged | None) -> None:
        """An unconfirmed object was read again; None when it does not exist."""
        known = self._unconfirmed.pop(key, None)
        entry = self._entries.get(key.kind, {}).get(key[1:])
        if change is None:
            if known is not None and entry is not None and entry.uid == known[0]:
                self._remove(ObjectGone(*key, entry.uid))
            return
        if entry is not None and entry.uid == change.uid:
            entry.deleted = ""
        self.apply(change)

    def _remove(self, gone: ObjectGone) -> None:
        key = Key(gone.kind, gone.namespace, gone.name)
        if gone.uid:
            self._bury(gone.uid)
        entry = self._entries.get(gone.kind, {}).get(key[1:])
        if entry is None or (gone.uid and entry.uid != gone.uid):
            return
        self._bury(entry.uid)
        self._unconfirmed.pop(key, None)
        del self._entries[gone.kind][key[1:]]
        self._unlink(key, entry)
        self._changed(gone.kind, entry, None)

    def _bury(self, uid: str) -> None:
        self._tombstones[uid] = None
        if len(self._tombstones) > _TOMBSTONES:
            self._tombstones.popitem(last=False)

    def _unlink(self, key: Key, entry: _CachedObject) -> None:
        owner = entry.controller
        owned = self._owned.get(owner) if owner is not None else None
        if owner is not None and owned is not None:
            owned.pop(key, None)
            if not owned:
                del self._owned[owner]

    def _changed(self, kind: str, old: _CachedObject | None, new: _CachedObject | None) -> None:
        if not self.observed and kind not in _INDEXED:
            return
        before = self._object(kind, old) if old is not None else None
        after = self._object(kind, new) if new is not None else None
        if kind == COMMAND:
            for command, present in ((before, False), (after, True)):
                if command is not None:
                    self._index_command(command, present=present)
        elif kind == POD_GROUP:
            for group, step in ((before, -1), (after, 1)):
                place = queue_and_phase(group)
                if place is not None:
                    counts = self._phases.setdefault(place[0], Counter())
                    counts[place[1]] += step
                    if not any(counts.values()):
                        del self._phases[place[0]]
        if self.observed:
            self._on_change(kind, before, after)

    def _object(self, kind: str, entry: _CachedObject) -> JsonObject:
        found: JsonObject = _decode(entry.data)
        found["apiVersion"] = self._records.resources[kind].api_version
        found["kind"] = kind
        if entry.deleted:
            found["metadata"].setdefault("deletionTimestamp", entry.deleted)
        return found

    def _index_command(self, command: JsonObject, *, present: bool) -> None:
        key = target_of(command)
        if key is None:
            return
        if present and not meta(command).get("deletionTimestamp"):
            self._targets.setdefault(key, {})[key_of(command)] = command_age(command)
        elif key in self._targets:
            self._targets[key].pop(key_of(command), None)
            if not self._targets[key]:
                del self._targets[key]
