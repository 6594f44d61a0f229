"""The current pod on the API server, read to resolve a write with an unknown outcome."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.paths import pod_path
from capcard_sched.model.objects import PodObject

_POD = msgspec.json.Decoder(PodObject)


def decode_pod(body: bytes) -> PodObject:
    """Decode a pod. Raises Unreachable (sent) for another body: the outcome is then unknown."""
    try:
        return _POD.decode(body)
    except msgspec.DecodeError as error:
        raise Unreachable(f"the response is not a pod: {error}", sent=True) from error


async def read_pod(client: Client, namespace: str, name: str, uid: str) -> PodObject | None:
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
