"""Releases of ResourceClaims whose pod was not bound after all: by a former leader, or after a failed undo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from capcard_sched.kube.writes.leadership_gate import GatedClient
from capcard_sched.kube.writes.write_call import DONE, CallWriter, WriteCall, WriteOutcome, WriteResult, read_pod
from capcard_sched.model.deltas import BindRetry

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from capcard_sched.kube.client import Client
    from capcard_sched.kube.writes.write_call import WriterContext
    from capcard_sched.model.intents import Bind, ReleaseClaims


class UndoPreBind(Protocol):
    """Undoes the writes of a PreBind for a pod."""

    def __call__(self, client: Client, pod: Bind | ReleaseClaims, /) -> Awaitable[None]:
        """Undo the writes as far as the API server accepts it. Raises only LeadershipLost."""


class ReleaseCall(WriteCall):
    """The release of the claims of one pod."""

    __slots__ = ("pod",)

    def __init__(self, writer: CallWriter[ReleaseCall], pod: ReleaseClaims, term: int) -> None:
        super().__init__(writer, term)
        self.pod = pod


class ClaimReleaser(CallWriter[ReleaseCall]):
    """Sends releases. The core schedules the pod again when its release has ended, whatever the outcome."""

    def __init__(self, context: WriterContext, undo: UndoPreBind | None) -> None:
        super().__init__(context)
        self._undo = undo

    async def attempt(self, call: ReleaseCall) -> WriteOutcome:
        """Release the claims, unless the pod is bound. Raises LeadershipLost, ApiError and Unreachable."""
        client = cast("Client", GatedClient(self.client, self.gate, call.term))
        pod = await read_pod(client, call.pod.namespace, call.pod.name, call.pod.uid)
        if self._undo is not None and pod is not None and not pod.spec.node_name:
            await self._undo(client, call.pod)
        return DONE

    def observe(self, call: ReleaseCall, outcome: WriteOutcome) -> None:
        """The writes to claims are counted where they are sent."""

    def end(self, call: ReleaseCall, outcome: WriteOutcome) -> None:
        """Let the core schedule the pod again."""
        if outcome.result is not WriteResult.AGAIN:
            self.context.deliver(0.0, BindRetry(call.pod.namespace, call.pod.name, call.pod.uid))
