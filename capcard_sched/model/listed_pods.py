"""Pods of a list, distinguished by their texts: the pods of a workload follow one another and differ in few fields."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from capcard_sched.model.objects import ApiStruct, ObjectMeta, PodObject, PodSpec, PodStatus, Volume
from capcard_sched.model.pod_requests import is_settled, reports_resize
from capcard_sched.model.pod_template import inline_volumes

if TYPE_CHECKING:
    from collections.abc import Callable


class _OwnMeta(ApiStruct, frozen=True):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None


class _OwnSpec(ApiStruct, frozen=True):
    node_name: str | None = None
    volumes: tuple[Volume, ...] | None = None


class _OwnStatus(ApiStruct, frozen=True):
    start_time: msgspec.Raw = msgspec.Raw()
    conditions: msgspec.Raw = msgspec.Raw()
    container_statuses: msgspec.Raw = msgspec.Raw()


#: Fields in which the pods of a workload differ.
OWN_SPEC: Final = frozenset(_OwnSpec.__struct_fields__)
OWN_STATUS: Final = frozenset(_OwnStatus.__struct_fields__)


def _with_texts(whole: type[Any], own: type[Any]) -> tuple[type[Any], Callable[[Any], object]]:
    """`own` with the other fields of `whole` as texts, and the getter of these texts."""
    names = dict(zip(whole.__struct_fields__, whole.__struct_encode_fields__, strict=True))
    others = [name for name in names if name not in own.__struct_fields__]
    fields = [(name, msgspec.Raw, msgspec.Raw()) for name in others]
    found = msgspec.defstruct(whole.__name__, fields, bases=(own,), rename=names, frozen=True, gc=False)
    return found, attrgetter(*others)


_META, _meta_texts = _with_texts(ObjectMeta, _OwnMeta)
_SPEC, _spec_texts = _with_texts(PodSpec, _OwnSpec)
_STATUS, _status_texts = _with_texts(PodStatus, _OwnStatus)
if TYPE_CHECKING:
    _Meta: TypeAlias = _OwnMeta
    _Spec: TypeAlias = _OwnSpec
    _Status: TypeAlias = _OwnStatus
else:
    _Meta, _Spec, _Status = _META, _SPEC, _STATUS


class ListedPod(ApiStruct, frozen=True, tag="Pod", tag_field="kind"):
    """A pod with texts in the place of most fields."""

    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class AlikePod(msgspec.Struct, frozen=True, gc=False):
    """A pod that is alike to another one: what a task needs to know of it, and the whole pod as JSON."""

    name: str
    uid: str
    creation_timestamp: str | None
    node_name: str | None
    text: msgspec.Raw


decode_pod: Final = msgspec.json.Decoder(PodObject).decode
_decode_own: Final = {
    field.name: msgspec.json.Decoder(field.type).decode
    for field in msgspec.structs.fields(PodStatus)
    if field.name in OWN_STATUS
}


class ListedPodReader:
    """Reads the pods of a list one after another."""

    def __init__(self) -> None:
        #: The last pod that was returned whole, the texts that others are compared with, and its plain volumes.
        self._first = ListedPod()
        self._texts: tuple[object, ...] = ()
        self._volumes: object = None

    def read(self, pod: ListedPod, text: msgspec.Raw) -> PodObject | AlikePod:
        """The pod; an AlikePod when it is alike to the last one that was returned whole.

        Alike pods differ only in name, uid, node and creation time, and in fields of no consequence to a task. Raises
        msgspec.ValidationError.
        """
        if self._volumes is not None and self._is_alike(pod):
            meta = pod.metadata
            return AlikePod(meta.name, meta.uid, meta.creation_timestamp, pod.spec.node_name, text)
        whole = decode_pod(text)
        self._first, self._volumes = pod, None
        if not whole.metadata.deletion_timestamp and is_settled(whole):
            self._texts = _meta_texts(pod.metadata), _spec_texts(pod.spec), _status_texts(pod.status)
            self._volumes = plain_volumes(pod.spec.volumes)
        return whole

    def _is_alike(self, pod: ListedPod) -> bool:
        first, spec, status = self._first, pod.spec, pod.status
        meta_texts, spec_texts, status_texts = self._texts
        return (
            _meta_texts(pod.metadata) == meta_texts
            and (
                spec == first.spec
                or (
                    _spec_texts(spec) == spec_texts
                    and bool(spec.node_name) is bool(first.spec.node_name)
                    and plain_volumes(spec.volumes) == self._volumes
                )
            )
            and (
                status == first.status or (_status_texts(status) == status_texts and _is_settled(status, first.status))
            )
        )


def _is_settled(status: _OwnStatus, first: _OwnStatus) -> bool:
    """Whether no resize is in progress, as at `first`. Raises msgspec.ValidationError for an invalid text."""
    for name, decode in _decode_own.items():
        text = getattr(status, name)
        if text and text != getattr(first, name):
            value = decode(text)
            if reports_resize(name, value):
                return False
    return True


def plain_volumes(volumes: tuple[Volume, ...] | None) -> object:
    """The volumes of a pod as its class has them; None with claims, which may contain the pod's name."""
    if not volumes:
        return ()
    if any(volume.persistent_volume_claim or volume.ephemeral for volume in volumes):
        return None
    return inline_volumes(volumes)
