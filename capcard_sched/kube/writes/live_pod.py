"""The current pod on the API server, read to resolve a write with an unknown outcome."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import pod_path
from capcard_sched.model.annotations import GROUP_NAME, GROUP_NAME_ALIAS


class _LivePodMeta(msgspec.Struct, rename="camel", frozen=True):
    uid: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None


class _Gate(msgspec.Struct, frozen=True):
    """Only its presence matters."""


class _LivePodSpec(msgspec.Struct, rename="camel", frozen=True):
    node_name: str = ""
    scheduling_gates: tuple[_Gate, ...] | None = None


class LivePod(msgspec.Struct, frozen=True):
    """The fields that decide the outcome of a write."""

    metadata: _LivePodMeta = _LivePodMeta()
    spec: _LivePodSpec = _LivePodSpec()

    @property
    def deleting(self) -> bool:
        """Whether the pod has a deletion timestamp."""
        return self.metadata.deletion_timestamp is not None

    @property
    def group(self) -> str:
        """Name of its PodGroup, "" without one."""
        notes = self.metadata.annotations or {}
        return notes.get(GROUP_NAME) or notes.get(GROUP_NAME_ALIAS) or ""


_POD = msgspec.json.Decoder(LivePod)


def decode_pod(body: bytes) -> LivePod:
    """Decode a pod. Raises Unreachable (sent) for another body: the outcome is then unknown."""
    try:
        return _POD.decode(body)
    except msgspec.DecodeError as error:
        raise Unreachable(f"the response is not a pod: {error}", sent=True) from error


async def read_pod(client: Client, namespace: str, name: str, uid: str) -> LivePod | None:
    """Read the pod from etcd, not from a cache; None when it is gone or replaced.

    Raises ApiError or Unreachable when it cannot be read.
    """
    try:
        body = await client.request("GET", pod_path(namespace, name))
    except ApiError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
    pod = decode_pod(body)
    return pod if not uid or pod.metadata.uid == uid else None
