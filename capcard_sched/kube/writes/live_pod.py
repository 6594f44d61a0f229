"""The pod as the API server holds it now: what settles a write whose outcome is not known."""

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
    """Its name does not matter."""


class _LivePodSpec(msgspec.Struct, rename="camel", frozen=True):
    node_name: str = ""
    scheduling_gates: tuple[_Gate, ...] | None = None


class LivePod(msgspec.Struct, frozen=True):
    """The few fields that decide what became of a write."""

    metadata: _LivePodMeta = _LivePodMeta()
    spec: _LivePodSpec = _LivePodSpec()

    @property
    def deleting(self) -> bool:
        """It has been told to go."""
        return self.metadata.deletion_timestamp is not None

    @property
    def group(self) -> str:
        """The PodGroup it names, "" when none."""
        notes = self.metadata.annotations or {}
        return notes.get(GROUP_NAME) or notes.get(GROUP_NAME_ALIAS) or ""


_POD = msgspec.json.Decoder(LivePod)


def decode_pod(body: bytes) -> LivePod:
    """A pod in an answer. Raises Unreachable (sent) for an answer that is no pod: nothing is known then."""
    try:
        return _POD.decode(body)
    except msgspec.DecodeError as error:
        raise Unreachable(f"the answer is no pod: {error}", sent=True) from error


async def read_pod(client: Client, namespace: str, name: str, uid: str) -> LivePod | None:
    """The pod, from the API server's own storage and not a cache of it; None when it is gone or another one.

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
