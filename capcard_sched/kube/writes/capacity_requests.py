"""ProvisioningRequests with their PodTemplates: created for a gang, and deleted with it."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from capcard_sched.kube.client import ApiError, Client, get
from capcard_sched.kube.errors import RetryClass
from capcard_sched.kube.paths import collection_path, object_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.leadership_gate import GatedClient
from capcard_sched.kube.writes.write_call import DONE, CallWriter, WriteCall, WriteOutcome, WriteResult
from capcard_sched.model.deltas import CapacityRequestRefused
from capcard_sched.model.intents import RequestCapacity, WithdrawRequest
from capcard_sched.model.objects import ApiStruct, ObjectMeta
from capcard_sched.model.provisioning import (
    DEMAND_DIGEST,
    MOST_POD_SETS,
    POD_TEMPLATE,
    PROVISIONING_REQUEST,
    owning_group,
    provisioning_bodies,
    template_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.kube.errors import RequestError

CapacityIntent: TypeAlias = RequestCapacity | WithdrawRequest
#: Attempts of a request whose PodTemplates are replaced, one in each.
_MOST_REPLACEMENTS: Final = MOST_POD_SETS + 8
_POD: Final = msgspec.json.Decoder(dict[str, Any]).decode


#: In the response to a request without the right to it, as every authorizer words it.
_NO_RIGHT: Final = re.compile(r" cannot (create|get) resource ")


class _Owned(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_OWNED: Final = msgspec.json.Decoder(_Owned).decode


class CapacityCall(WriteCall):
    """The creation or deletion of one request with its PodTemplates; the later of the two wins."""

    __slots__ = ("intent", "is_unavailable")

    def __init__(self, writer: CallWriter[CapacityCall], intent: CapacityIntent, term: int) -> None:
        super().__init__(writer, term)
        self.intent = intent
        #: Whether the kind is not served, or the right to it is missing.
        self.is_unavailable = False

    @property
    def kind(self) -> str:
        return PROVISIONING_REQUEST

    @property
    def key(self) -> tuple[str, str, str]:
        return PROVISIONING_REQUEST, self.intent.namespace, self.intent.name


class CapacityRequests(CallWriter[CapacityCall]):
    """Sends them. The core learns of a request that was not created by a CapacityRequestRefused.

    An object of the same name with another owner is neither used nor changed.
    """

    async def attempt(self, call: CapacityCall) -> WriteOutcome:
        """Send the requests of one call. Raises LeadershipLost, ApiError, Unreachable and DecodeError."""
        client = cast("Client", GatedClient(self.client, self.gate, call.term))
        intent = call.intent
        if isinstance(intent, WithdrawRequest):
            await self._delete(client, PROVISIONING_REQUEST, intent.namespace, intent.name, intent.owner)
            for index in range(intent.pod_sets):
                await self._delete(
                    client, POD_TEMPLATE, intent.namespace, template_name(intent.name, index), intent.owner
                )
            return DONE
        return await self._create(client, call, intent)

    async def _create(self, client: Client, call: CapacityCall, intent: RequestCapacity) -> WriteOutcome:
        """The PodTemplates, then the request: an autoscaler reads them once it sees the request."""
        pods: list[Mapping[str, Any]] = []
        for each in intent.pod_sets:
            pod = await get(client, object_path("Pod", intent.namespace, each.pod), _POD)
            if pod is None:
                return WriteOutcome(WriteResult.REFUSED, HTTPStatus.NOT_FOUND, f"pod {each.pod} does not exist")
            pods.append(pod)
        *templates, request = provisioning_bodies(intent, pods)
        for body in templates:
            taken = await self._post(client, POD_TEMPLATE, intent, body)
            if taken is not None:
                # What an interrupted attempt left, or an earlier request of the name: its content is unknown.
                return await self._replace(client, intent, body["metadata"]["name"], taken, call.attempts)
        try:
            taken = await self._post(client, PROVISIONING_REQUEST, intent, request)
        except ApiError as error:
            # Without its namespace, no template would have been created.
            call.is_unavailable = error.status == HTTPStatus.NOT_FOUND and error.details.kind != "namespaces"
            raise
        if taken is None:
            return DONE
        notes, wanted = taken.metadata.annotations or {}, intent.annotations[DEMAND_DIGEST]
        if _owner(taken) == intent.uid and notes.get(DEMAND_DIGEST) == wanted:
            return DONE  # its response was lost
        message = f"{PROVISIONING_REQUEST} {intent.name} exists, and another object owns it"
        return WriteOutcome(WriteResult.REFUSED, HTTPStatus.CONFLICT, message)

    async def _post(self, client: Client, kind: str, intent: RequestCapacity, body: Mapping[str, Any]) -> _Owned | None:
        """Create an object; returns the one that has its name, None without one."""
        try:
            await client.request("POST", collection_path(kind, intent.namespace), body=msgspec.json.encode(body))
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return await get(client, object_path(kind, intent.namespace, body["metadata"]["name"]), _OWNED)
        return None

    async def _replace(
        self, client: Client, intent: RequestCapacity, name: str, taken: _Owned, attempts: int
    ) -> WriteOutcome:
        if _owner(taken) != intent.uid:
            message = f"{POD_TEMPLATE} {name} exists, and another object owns it"
            return WriteOutcome(WriteResult.REFUSED, HTTPStatus.CONFLICT, message)
        if attempts > _MOST_REPLACEMENTS:  # finalizers keep it, or another client creates it again
            message = f"{POD_TEMPLATE} {name} exists, and is not deleted"
            return WriteOutcome(WriteResult.REFUSED, HTTPStatus.CONFLICT, message)
        await self._delete(client, POD_TEMPLATE, intent.namespace, name, intent.uid)
        return WriteOutcome(WriteResult.AGAIN, HTTPStatus.CONFLICT, f"{POD_TEMPLATE} {name} is replaced")

    @staticmethod
    async def _delete(client: Client, kind: str, namespace: str, name: str, owner: str) -> None:
        """Delete an object that the PodGroup owns; one that is gone, or of another owner, stays as it is."""
        path = object_path(kind, namespace, name)
        found = await get(client, path, _OWNED)
        if found is None or _owner(found) != owner:
            return
        try:
            await client.request("DELETE", path, body=requests.deletion(found.metadata.uid))
        except ApiError as error:
            if error.retry_class not in {RetryClass.ABSENT, RetryClass.CONFLICT}:
                raise

    async def classify(self, call: CapacityCall, error: RequestError) -> WriteOutcome:
        """As the base; a missing right makes requests unavailable. A quota of the namespace refuses with 403, too."""
        outcome = await super().classify(call, error)
        if outcome.code == HTTPStatus.FORBIDDEN and _NO_RIGHT.search(outcome.message):
            call.is_unavailable = True
        return outcome

    def end(self, call: CapacityCall, outcome: WriteOutcome) -> None:
        """Let the core know of a request that does not exist."""
        intent = call.intent
        if outcome.result in {WriteResult.DONE, WriteResult.AGAIN} or not isinstance(intent, RequestCapacity):
            return
        refused = CapacityRequestRefused(
            intent.namespace, intent.name, intent.group, outcome.message, call.is_unavailable
        )
        self.context.deliver(0.0, refused)


def _owner(found: _Owned) -> str:
    owner = owning_group(found.metadata)
    return "" if owner is None else owner.uid
