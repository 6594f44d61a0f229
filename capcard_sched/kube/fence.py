"""The fence: the API server rejects bindings of a former leader (docs/decisions/0010).

A leader checks `Election.is_leader` before every write, but a request on its way can arrive after the next leader took
over. With the fence, every Binding carries its writer's token, `holder/leaseTransitions`. A ValidatingAdmissionPolicy
with the Lease as its parameter rejects a token that is not the current holder's. It applies to bindings of the
scheduler's user that carry a token.
"""

import asyncio
import contextlib
import enum
from collections.abc import Callable
from typing import Final

from capcard_sched.kube.client import Client, RequestError
from capcard_sched.kube.election import Election
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes import requests
from capcard_sched.model.intents import Bind

#: Name of the pod that the probe binds, in the namespace of the Lease. It need not exist: admission precedes that
#: check. The probe is a dry run.
PROBE_POD: Final = "capcard-sched-fence-probe"
#: A token of no leader: holders are `<hostname>_<uuid>`, and terms count from 0.
STALE_TOKEN: Final = "none/-1"  # noqa: S105 -- no secret

#: Seconds between dry runs until the API server's policy sees the new holder.
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.25


class FenceState(enum.StrEnum):
    """Result of the last probe."""

    #: Not probed, or the response was inconclusive.
    UNKNOWN = "unknown"
    #: The API server rejects a former leader's binding and accepts the current one's.
    ACTIVE = "active"
    #: The API server accepts a former leader's binding: no policy applies to the scheduler's user and Lease.
    ABSENT = "absent"
    #: The API server rejects the current leader's binding: the policy reads another Lease, or an outdated copy of it.
    BLOCKING = "blocking"


#: Seconds: interval of probes of a policy that is not active.
_PROBE_SECONDS: Final = 60.0
#: Seconds: pause after a probe, so that a burst of failed binds causes one probe.
_PAUSE_SECONDS: Final = 1.0


def may_be_fenced(message: str) -> bool:
    """Whether the fence may have rejected a binding, by the server's message: then a probe follows."""
    return "ValidatingAdmissionPolicy" in message


class Fence:
    """Issues the token of bindings and probes whether the policy is in effect.

    Args:
        client: its user writes the bindings.
        election: of this replica.
        namespace: of the Lease.
        on_change: called on the event loop with the new state and a log message.
        propagation: seconds granted to the API server until its policy sees a new holder; it takes milliseconds.
    """

    def __init__(
        self,
        client: Client,
        election: Election,
        *,
        namespace: str,
        on_change: Callable[[FenceState, str], None],
        propagation: float = 2.0,
    ) -> None:
        self._client = client
        self._election = election
        self._namespace = namespace
        self._on_change = on_change
        self._propagation = propagation
        self.state = FenceState.UNKNOWN
        #: A probe is in progress.
        self.probing = False
        #: Set by a failed bind that the policy may have rejected.
        self._doubt = asyncio.Event()

    def token(self) -> str | None:
        """The annotation `annotations.FENCE` of a Binding; None while the fence rejects the leader itself.

        An absent fence changes nothing: the policy takes effect as soon as it is installed.
        """
        if self.state is FenceState.BLOCKING:
            return None
        return self._leader_token()

    def _leader_token(self) -> str:
        return f"{self._election.identity}/{self._election.transitions}"

    def bind_failed(self, message: str) -> None:
        """Have `run` probe if the policy may have rejected a bind with this message."""
        if may_be_fenced(message):
            self._doubt.set()

    async def run(self) -> None:
        """Probe after doubtful failures, and at an interval while the policy is not active, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_SECONDS):
                    await self._doubt.wait()
            doubtful = self._doubt.is_set() or self.state is not FenceState.ACTIVE
            self._doubt.clear()
            if doubtful and self._election.is_leader():
                await self.probe()
                await asyncio.sleep(_PAUSE_SECONDS)

    async def probe(self) -> FenceState:
        """Probe by dry runs: at takeover before the first binding, and after a suspicious rejection.

        Keeps the state on a replica that does not lead.
        """
        self.probing = True
        try:
            return await self._probe()
        finally:
            self.probing = False

    async def _probe(self) -> FenceState:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._propagation
        pause = _FIRST_PAUSE
        while self._election.is_leader():
            allowed, why = await self._dry_run(self._leader_token())
            # A policy with an outdated Lease rejects every token; one that has not seen a Lease accepts every token.
            stale_allowed, why = (await self._dry_run(STALE_TOKEN)) if allowed else (False, why)
            if allowed is None or stale_allowed is None:
                return self._set_state(FenceState.UNKNOWN, why)
            if allowed and not stale_allowed:
                return self._set_state(FenceState.ACTIVE, "")
            known_absent = allowed and self.state is FenceState.ABSENT
            if known_absent or loop.time() + pause > deadline:
                return self._set_state(FenceState.ABSENT if allowed else FenceState.BLOCKING, why)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return self.state

    async def _dry_run(self, token: str) -> tuple[bool | None, str]:
        """Whether a binding with this token is accepted, None when inconclusive; and the server's message."""
        body = requests.binding(Bind(self._namespace, PROBE_POD, uid="", node=PROBE_POD), token)
        path = object_path("Pod", self._namespace, PROBE_POD, "binding")
        try:
            await self._client.request("POST", path, params={"dryRun": "All"}, body=body, throttled=False)
        except RequestError as error:
            if may_be_fenced(error.text):
                return False, error.text
            if error.status == 409 or (error.status == 404 and error.details.name == PROBE_POD):
                return True, ""
            return None, str(error)
        return True, ""

    def _set_state(self, state: FenceState, why: str) -> FenceState:
        if state is not self.state:
            self.state = state
            self._on_change(state, _MESSAGES[state] + (f": {why}" if why else ""))
        return state


_MESSAGES: Final = {
    FenceState.UNKNOWN: "fencing policy UNKNOWN: the probe was inconclusive",
    FenceState.ACTIVE: "fencing policy active: the API server rejects bindings of a former leader",
    FenceState.ABSENT: (
        "fencing policy NOT active: the API server accepts bindings of a former leader. Apply "
        "manifests/base/admission-fence.yaml (Kubernetes 1.30) with the Lease and the account of this scheduler; "
        "until then a new leader relies on the deadlines of the former one"
    ),
    FenceState.BLOCKING: (
        "fencing policy NOT active: it rejects the current leader, so bindings carry no token. Its parameter must be "
        "the Lease of this scheduler; an API server that no longer watches the Lease (the policy's binding was deleted "
        "and created again) needs a restart"
    ),
}
