"""Leadership of one replica: Lease, takeover, and supervision of the fencing policy."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from capcard_sched.kube.election import RELEASED, Election, ElectionEvent
from capcard_sched.kube.fence import Fence, FenceState
from capcard_sched.kube.lease import process_identity

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from capcard_sched.daemon.common_options import LeaderOptions
    from capcard_sched.kube.client import Client

#: Election events that are logged as info, as the release at a shutdown; the others are warnings.
_EXPECTED: Final = frozenset({ElectionEvent.HOLDER, ElectionEvent.RELEASED, ElectionEvent.RECOVERED})


class LeadershipHandler(Protocol):
    """The part of a service that works while its replica leads."""

    def leads(self, leading: bool) -> None:
        """This replica became or stopped being leader."""

    async def take_over(self) -> None:
        """Begin to work, from fresh lists. Runs as a task; cancelled when leadership is lost."""

    def stand_by(self) -> None:
        """Drop queued writes and stop working."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a background task; errors are logged."""


class Leadership:
    """Runs the election, if enabled, and the takeover of a new leader."""

    def __init__(
        self,
        options: LeaderOptions,
        client: Client,
        namespace: str,
        name: str,
        handler: LeadershipHandler,
        fenced: Client | None = None,
    ) -> None:
        """`namespace`, `name`: of the Lease; `fenced`: sends bindings, which the fencing policy checks.

        `client` has no other use: renewals must not wait for a free connection.
        """
        self._handler = handler
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        self._election: Election | None = None
        if options.leader_elect:
            self._election = Election(
                client,
                namespace=namespace,
                name=name,
                identity=process_identity(),
                lease_duration=options.leader_elect_lease_duration,
                renew_deadline=options.leader_elect_renew_deadline,
                retry_period=options.leader_elect_retry_period,
                on_change=self._changed,
                on_report=self._report,
            )
        self.fence: Fence | None = None
        if fenced is not None and self._election is not None:
            self.fence = Fence(fenced, self._election, namespace=namespace, on_change=self._fence_changed)
        self._takeover: asyncio.Task[None] | None = None
        self._stopping = False

    def is_leader(self) -> bool:
        """Whether writes are allowed now; always without leader election."""
        return self._election is None or self._election.is_leader()

    def time_left(self) -> float:
        """Seconds until the Lease can change hands, 0.0 for a standby; infinite without leader election."""
        return math.inf if self._election is None else self._election.time_left()

    @property
    def server_seconds(self) -> float | None:
        """Seconds for which the API server may process a binding; None without leader election."""
        return None if self._election is None else self._election.server_seconds

    async def wait_for_former_leader(self) -> bool:
        """Wait until no binding of the former leader can land any more; whether there was a wait."""
        seconds = 0.0 if self._election is None else self._election.handover_wait()
        if seconds <= 0.0:
            return False
        self._log.info("waiting for bindings of the former leader", seconds=round(seconds, 3))
        await asyncio.sleep(seconds)
        return True

    def fence_token(self) -> str | None:
        """The token that the fencing policy compares with the Lease; None without fencing."""
        return None if self.fence is None else self.fence.token()

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        """Coroutines to run until shutdown. Without leader election, leads from now on."""
        if self._election is None:
            self._changed(True)
            return []
        return [self._election.run()] if self.fence is None else [self._election.run(), self.fence.run()]

    def stop(self) -> None:
        """Cancel a takeover in progress."""
        self._stopping = True
        if self._takeover is not None:
            self._takeover.cancel()

    async def release(self, within: float, *, binds_in_flight: int) -> None:
        """Release the Lease within this number of seconds, unless bindings are in flight.

        They could land after the next leader began: it then waits for the expiry of the Lease.
        """
        if binds_in_flight and self._election is not None:
            self._log.warning("Lease not released: bindings are in flight", count=binds_in_flight)
        elif self._election is not None:
            await self._election.release(within)

    def _changed(self, leading: bool) -> None:
        self._handler.leads(leading)
        if self._takeover is not None:
            self._takeover.cancel()
            self._takeover = None
        if leading:
            self._log.info("became leader", identity=self._election.identity if self._election is not None else "")
            self._takeover = self._handler.spawn(self._handler.take_over())
        else:
            self._handler.stand_by()
            (self._log.info if self._stopping else self._log.warning)("standing by")

    def _report(self, event: ElectionEvent, detail: str) -> None:
        if event is ElectionEvent.LEADING:
            return  # "became leader" is the line
        log = self._log.info if event in _EXPECTED or detail == RELEASED else self._log.warning
        log("leader election", event_type=event.value, detail=detail)

    def _fence_changed(self, state: FenceState, sentence: str) -> None:
        if state is FenceState.ACTIVE:
            self._log.info("fencing policy active", state=state.value, detail=sentence)
        else:
            self._log.error("fencing policy NOT active", state=state.value, detail=sentence)
