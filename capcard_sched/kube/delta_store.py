"""Fingerprints of the delivered objects of one kind, so that reflectors emit only changed objects."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from capcard_sched.kube.decode import UndecodableObject
from capcard_sched.kube.kinds import WatchSpec
from capcard_sched.model.objects import ObjectMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capcard_sched.kube.instrumentation import Observer
    from capcard_sched.kube.kinds import WatchedKind
    from capcard_sched.model.deltas import Delta

T = TypeVar("T", bound=WatchSpec)

_ENCODER = msgspec.msgpack.Encoder()
#: Fingerprint of no object: `hash` never returns it.
_INVALID = -1


class DeltaStore(Generic[T]):
    """Fingerprints of the objects of one kind. Costs about 130 bytes an object and 3 microseconds an update.

    Methods append deltas to `out`. Objects that do not occur between `begin_list` and `end_list` are gone.
    """

    def __init__(self, kind: WatchedKind[T], observer: Observer) -> None:
        self._kind = kind
        self._observer = observer
        self._read_fields = _read_fields(kind)
        #: Namespace to name to fingerprint of the last delivered version. 64 bits: a collision of two versions of an
        #: object occurs once in 10^19 updates.
        self._fingerprints: dict[str, dict[str, int]] = {}
        self._listed: dict[str, set[str]] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._fingerprints.values()))

    def begin_list(self) -> None:
        """Begin a list; abort the one in progress."""
        self._listed = {}

    def abort_list(self) -> None:
        """Abort the list in progress, if any: objects missing from it are not gone."""
        self._listed = None

    def end_list(self, out: list[Delta]) -> None:
        """Complete the list: objects missing from it are gone."""
        listed, self._listed = self._listed or {}, None
        for namespace, names in list(self._fingerprints.items()):
            here = listed.get(namespace, ())
            for name in [name for name in names if name not in here]:
                self.gone(ObjectMeta(name=name, namespace=namespace or None), out)

    def invalidate(self) -> None:
        """Deliver every object again at its next occurrence, since the receiver may have changed its copy."""
        for names in self._fingerprints.values():
            names.update(dict.fromkeys(names, _INVALID))

    def items(self, items: Iterable[T | UndecodableObject], out: list[Delta]) -> None:
        """Process items of a list."""
        for item in items:
            if isinstance(item, UndecodableObject):
                self.undecodable(item, out)
            else:
                self.changed(item, out)

    def changed(self, item: T, out: list[Delta]) -> None:
        """Process an added or modified object."""
        meta = item.metadata
        kind = self._kind
        if kind.selects is not None and not kind.selects(item):
            self.gone(meta, out)
        elif self._differs(meta, hash(_ENCODER.encode(self._read_fields(item)))):
            out.append(kind.changed(item))

    def undecodable(self, item: UndecodableObject, out: list[Delta]) -> None:
        """Process an object that cannot be decoded; reported again only when its problem changes."""
        meta, kind = item.metadata, self._kind
        if self._differs(meta, hash((meta.uid, item.problem, item.node))):
            shown = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
            self._observer.watch(kind.resource, "undecodable", f"{kind.name} {shown}: {item.problem}")
            delta = kind.undecodable(meta, item.problem, item.node)
            if delta is not None:
                out.append(delta)

    def gone(self, meta: ObjectMeta, out: list[Delta]) -> None:
        """Process an object that was deleted or is no longer selected."""
        namespace = meta.namespace or ""
        names = self._fingerprints.get(namespace)
        if names is None or names.pop(meta.name, None) is None:
            return
        if not names:
            del self._fingerprints[namespace]
        out.append(self._kind.gone(meta))

    def _differs(self, meta: ObjectMeta, fingerprint: int) -> bool:
        """Record the object and its fingerprint; whether the fingerprint changed."""
        namespace, name = meta.namespace or "", meta.name
        if self._listed is not None:
            self._listed.setdefault(namespace, set()).add(name)
        names = self._fingerprints.get(namespace)
        if names is None:
            names = self._fingerprints[namespace] = {}
        if names.get(name) == fingerprint:
            return False
        names[name] = fingerprint
        return True


def _read_fields(kind: WatchedKind[T]) -> Callable[[T], object]:
    """Reads the compared parts of an object: its identity, and the attributes in its kind's row."""
    meta = [f"metadata.{name}" for name in ObjectMeta.__struct_fields__ if name != "resource_version"]
    fields = [name for name in kind.type.__struct_fields__ if name != "metadata"]  # type: ignore[attr-defined]
    read, derives = attrgetter(*meta, *(fields if kind.reads is None else kind.reads)), kind.derives
    return read if derives is None else lambda item: (read(item), derives(item))
