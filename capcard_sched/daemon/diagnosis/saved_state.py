"""A saved state: the objects that the scheduler reads as one List of manifests, and the settings they were read under.

`capcard-sched snapshot` writes one from a live cluster, the daemon one beside each dump. It is a List of manifests with
the field `savedState`: whatever reads manifests reads it. A snapshot has the Jobs, and events about Jobs and queues, in
its field `explained`: `explain` and the lists read them, and a simulation does not.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, Union

import msgspec

from capcard_sched.input_files import read_input
from capcard_sched.model.decode_errors import field_problem, json_problem
from capcard_sched.model.deltas import ObjectChanged, ObjectGone
from capcard_sched.model.kinds import KIND_BY_NAME, kind_of_object
from capcard_sched.model.kube_groups import KUBE_GROUP
from capcard_sched.model.objects import ApiStruct, ObjectMeta, PodSpec
from capcard_sched.model.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.kinds import Kind

Json: TypeAlias = dict[str, Any]
#: What a file of manifests that is no saved state begins with: JSON is an object.
_OBJECT: Final = b"{"
_FIELD: Final = b'"savedState"'
#: Has the fields of the object, environment variables among them.
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


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
    """A state as changes for a core, and the objects that no core reads."""

    settings: SavedSettings
    deltas: list[Delta]
    explained: list[Delta]


class _Template(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class SavedJob(ApiStruct, frozen=True, tag="Job", tag_field="kind"):
    """A Job (batch.volcano.sh), with the fields of its pod templates that the scheduler reads of pods."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Json = {}
    status: Json = {}


class SavedDeployment(ApiStruct, frozen=True, tag="Deployment", tag_field="kind"):
    """A Deployment, with the fields of its pod template that the scheduler reads of pods."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Json = {}


class SavedEvent(ApiStruct, frozen=True, tag="Event", tag_field="kind"):
    """An event about an object."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: Json = {}
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None


class SavedStateError(ValueError):
    """A saved state with an object that cannot be decoded; the text names it."""


class _SavedDocument(msgspec.Struct, rename="camel"):
    saved_state: SavedSettings | None = None
    kind: str = ""
    explained: list[msgspec.Raw] = []
    items: list[msgspec.Raw] = []


class _Head(msgspec.Struct, rename="camel"):
    saved_state: msgspec.Raw = msgspec.Raw()


def _with_version(kind: Kind, read: type[Any]) -> type[msgspec.Struct]:
    """The type of an object with its API version as last field, which the decoder checks."""
    field = ("api_version", Literal[kind.api_version])
    return msgspec.defstruct(
        kind.name, [field], bases=(read,), tag=kind.name, rename="camel", kw_only=True, frozen=True, gc=False
    )


#: PodGroups of `scheduling.k8s.io` are saved as translated.
_READ: Final = [kind for kind in KIND_BY_NAME.values() if kind.watch is not None and kind.name != KUBE_GROUP]
#: Type in a document to type of the object.
_PLAIN: Final = {_with_version(kind, kind.watch.type): kind.watch.type for kind in _READ if kind.watch is not None}
_decode_item: Final = msgspec.json.Decoder(Union[(*_PLAIN,)]).decode
_decode_explained: Final = msgspec.json.Decoder(SavedJob | SavedDeployment | SavedEvent).decode


def document_of(settings: SavedSettings, items: Iterable[Json]) -> Json:
    return {"apiVersion": "v1", "kind": "List", "savedState": msgspec.to_builtins(settings), "items": list(items)}


def document_text(settings: SavedSettings, items: Iterable[Json], explained: Iterable[Json] = ()) -> bytes:
    """The document of a state as JSON, one object per line: indented, reading it takes twice the time."""
    text = msgspec.json.encode({**document_of(settings, ()), "items": msgspec.Raw(b"[")}).removesuffix(b"}")
    text += b"\n" + b",\n".join(map(msgspec.json.encode, items)) + b"\n]"
    if further := list(map(msgspec.json.encode, explained)):
        text += b',"explained":[\n' + b",\n".join(further) + b"\n]"
    return text + b"}\n"


def saved_job(job: Json) -> SavedJob:
    """A Job of the API server. Of a pod template with fields of a wrong type the task keeps none."""
    body = {**(job.get("spec") or {})}
    if isinstance(body.get("tasks"), list):
        body["tasks"] = [{**task, "template": _saved_template(task.get("template"))} for task in body["tasks"]]
    if isinstance(body.get("plugins"), dict) and "ssh" in body["plugins"]:
        body["plugins"] = {**body["plugins"], "ssh": []}  # its arguments may be a private key
    meta = msgspec.convert(job["metadata"], ObjectMeta)
    return SavedJob(meta, body, job.get("status") or {})


def saved_deployment(deployment: Json) -> SavedDeployment:
    """A Deployment of the API server: `replicas` and its pod template."""
    body = {**(deployment.get("spec") or {})}
    body = {"replicas": body.get("replicas", 1), "template": _saved_template(body.get("template"))}
    return SavedDeployment(msgspec.convert(deployment["metadata"], ObjectMeta), body)


def saved_event(event: Json) -> SavedEvent:
    """An event of the API server."""
    return msgspec.convert(event, SavedEvent)


def _saved_template(template: Any) -> Json:
    with contextlib.suppress(msgspec.ValidationError):
        found: Json = msgspec.to_builtins(msgspec.convert(template or {}, _Template))
        return found
    return {}


def saved_settings(path: Path) -> SavedSettings | None:
    """The settings of a saved state; None for other files, readable or not. Raises SavedStateError."""
    return _decoded(path).saved_state


def read_saved_state(path: Path) -> SavedState | None:
    """The state of a file; None for other files, readable or not, and with objects that controllers still process.

    Raises SavedStateError.
    """
    document = _decoded(path)
    if document.saved_state is None:
        return None
    try:
        explained: list[Delta] = [ObjectChanged(_decode_explained(item)) for item in document.explained]
    except (msgspec.ValidationError, RecursionError) as error:
        raise SavedStateError(f"{path}: {field_problem(error).within('explained')}") from None
    with contextlib.suppress(msgspec.ValidationError, RecursionError):
        return SavedState(document.saved_state, _changes(document.items), explained)
    found: list[Delta] = []
    for number, text in enumerate(document.items):  # the slow way names the object
        kind = None
        try:
            item = msgspec.json.decode(text, type=Json)
            kind = KIND_BY_NAME.get(str(item.get("kind")))
            if kind is None or kind.watch is None or item.get("apiVersion") != kind.api_version:
                return None
            found.append(ObjectChanged(msgspec.convert(item, kind.watch.type)))
        except msgspec.ValidationError as error:
            name = "" if kind is None else f"{kind.name}: "
            raise SavedStateError(f"{path}: items[{number}]: {name}{field_problem(error, item)}") from None
    return SavedState(document.saved_state, found, explained)


def _bytes(path: Path) -> bytes:
    """The content of a file that may be a JSON object; b"" for others, readable or not, and for a pipe, read once."""
    if not path.is_file():
        return b""
    try:
        with path.open("rb", buffering=0) as file:
            if file.read(1) != _OBJECT:
                return b""
        return read_input(path)
    except OSError:
        return b""  # the reader of manifests reports it


def _is_saved_state(text: bytes) -> bool:
    """Whether this JSON document has the field `savedState`."""
    with contextlib.suppress(msgspec.ValidationError):
        return bool(bytes(msgspec.json.decode(text, type=_Head).saved_state))
    return False


def _changes(items: Iterable[msgspec.Raw]) -> list[Delta]:
    """The objects as changes. Raises msgspec.ValidationError."""
    decoded = map(_decode_item, items)
    return [ObjectChanged(_PLAIN[type(item)](*msgspec.structs.astuple(item)[:-1])) for item in decoded]


def _decoded(path: Path) -> _SavedDocument:
    """The document of a file, without settings if it is no saved state. Raises SavedStateError."""
    text = _bytes(path)
    try:
        document = msgspec.json.decode(text, type=_SavedDocument) if _FIELD in text else _SavedDocument()
    except msgspec.ValidationError as error:
        if _is_saved_state(text):
            raise SavedStateError(f"{path}: {json_problem(error, text)}") from None
        return _SavedDocument()
    except (msgspec.DecodeError, RecursionError):
        return _SavedDocument()  # the reader of manifests reports it
    if document.saved_state is not None and not document.saved_state.now:
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
    """An object as a manifest: the fields that the scheduler reads, without the copy that `kubectl apply` leaves."""
    fields: Json = msgspec.to_builtins(obj)
    ((fields.get("metadata") or {}).get("annotations") or {}).pop(_LAST_APPLIED, None)
    return {"apiVersion": KIND_BY_NAME[kind].api_version, **fields}
