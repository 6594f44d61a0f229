"""A saved state: the objects that the scheduler reads as one List of manifests, and the settings they were read under.

`capcard-sched snapshot` writes one from a live cluster, the daemon one beside each dump. It is a List of manifests with
a further field, `savedState`: whatever reads manifests reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.kinds import KIND_BY_NAME, kind_of_object
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from capcard_sched.model.deltas import Delta

Json: TypeAlias = dict[str, Any]
#: What a file of manifests that is no saved state begins with: JSON is an object.
_OBJECT: Final = b"{"


class SavedSettings(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The time of a state, and the settings of its scheduler."""

    #: As in Kubernetes, to the second.
    time: str
    scheduler_names: tuple[str, ...]
    default_queue: str
    #: Text of the scheduler-conf; "" for the built-in one.
    scheduler_conf: str = ""
    #: Resources that were not readable.
    unreadable: tuple[str, ...] = ()

    @property
    def now(self) -> float:
        """Unix seconds."""
        return parse_time(self.time)


class SavedState(NamedTuple):
    """A state as changes for a core."""

    settings: SavedSettings
    deltas: list[Delta]


class SavedStateError(ValueError):
    """A saved state with an object that cannot be decoded; the text names it."""


class _Document(msgspec.Struct, rename="camel"):
    kind: str = ""
    saved_state: SavedSettings | None = None
    items: list[Json] = []


class _Head(msgspec.Struct, rename="camel"):
    saved_state: msgspec.Raw = msgspec.Raw()


def document_of(settings: SavedSettings, items: Iterable[Json]) -> Json:
    """The document of a state."""
    return {"apiVersion": "v1", "kind": "List", "savedState": msgspec.to_builtins(settings), "items": list(items)}


def document_text(settings: SavedSettings, items: Iterable[Json]) -> bytes:
    """The document of a state as JSON."""
    return msgspec.json.format(msgspec.json.encode(document_of(settings, items)), indent=1)


def saved_settings(path: Path) -> SavedSettings | None:
    """The settings of a saved state; None for other files, readable or not. Raises SavedStateError."""
    text = _content(path)
    return None if text is None else _decoded(path, text).saved_state


def read_saved_state(path: Path) -> SavedState | None:
    """The state of a file; None for other files, readable or not, and with objects that controllers still process.

    Raises SavedStateError.
    """
    text = _content(path)
    if text is None:
        return None
    document = _decoded(path, text)
    assert document.saved_state is not None
    found: list[Delta] = []
    for number, item in enumerate(document.items):
        kind = KIND_BY_NAME.get(str(item.get("kind")))
        if kind is None or kind.watch is None or item.get("apiVersion") != kind.api_version:
            return None
        try:
            found.append(ObjectChanged(msgspec.convert(item, kind.watch.type)))
        except msgspec.ValidationError as error:
            raise SavedStateError(f"{path}: items[{number}]: {kind.name}: {error}") from None
    return SavedState(document.saved_state, found)


def _content(path: Path) -> bytes | None:
    """The bytes of a JSON document with the field `savedState`."""
    try:
        with path.open("rb") as file:
            first = file.read(1)
            text = first + file.read() if first == _OBJECT else b""
        return text if text and bytes(msgspec.json.decode(text, type=_Head).saved_state) else None
    except (OSError, msgspec.DecodeError, RecursionError):
        return None  # the reader of manifests reports it


def _decoded(path: Path, text: bytes) -> _Document:
    try:
        document = msgspec.json.decode(text, type=_Document)
    except msgspec.ValidationError as error:
        raise SavedStateError(f"{path}: {error}") from None
    if document.saved_state is None or not document.saved_state.now:
        raise SavedStateError(f"{path}: savedState.time: expected a time such as 2026-01-01T00:00:00Z")
    return document


def manifests_of(found: Iterable[Delta]) -> list[Json]:
    """The last version of every object that the scheduler reads, as manifests."""
    kept: dict[tuple[str, str, str], msgspec.Struct] = {}
    for delta in found:
        match delta:
            case ObjectChanged(obj) if KIND_BY_NAME[kind_of_object(obj)].watch is not None:
                kind = kind_of_object(obj)
                namespace = obj.metadata.namespace or "default" if KIND_BY_NAME[kind].namespaced else ""
                kept[kind, namespace, obj.metadata.name] = obj
            case ObjectGone(kind, namespace, name):
                kept.pop((kind, namespace, name), None)
            case _:
                pass
    return [as_manifest(kind, obj) for (kind, _, _), obj in kept.items()]


def as_manifest(kind: str, obj: msgspec.Struct) -> Json:
    """An object as a manifest: the fields that the scheduler reads."""
    fields: Json = msgspec.to_builtins(obj)
    return {"apiVersion": KIND_BY_NAME[kind].api_version, **fields}
