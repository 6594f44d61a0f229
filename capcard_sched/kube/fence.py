"""The fence: the API server itself refuses bindings of a former leader (docs/decisions/0010).

A leader asks `Election.is_leader` before every write, but a request that has left can arrive late: after the next
leader took over. With the fence, every Binding carries its writer's token, `holder/leaseTransitions`, and a
ValidatingAdmissionPolicy with the Lease as its parameter refuses one that is not the present holder's. It concerns
bindings of our own user that carry a token, nobody else's.
"""

import asyncio
import enum
from collections.abc import Callable
from typing import Any, Final

import msgspec

from capcard_sched.kube.client import ApiError, Client, Unreachable
from capcard_sched.kube.election import Election
from capcard_sched.kube.paths import pod_path
from capcard_sched.model.annotations import FENCE

#: The pod the probe binds, in the namespace of the Lease. It need not exist: admission comes before that is noticed.
#: Should one exist, a dry run changes nothing.
PROBE_POD: Final = "capcard-sched-fence-probe"
#: No leader's token: holders are `<hostname>_<uuid>`, and terms count from 0.
STALE_TOKEN: Final = "nobody/-1"  # noqa: S105 -- no secret

#: Seconds between questions while the API server has not heard of the new holder yet.
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.25
_API_VERSION: Final = "admissionregistration.k8s.io/v1"


class FenceState(enum.StrEnum):
    """What the last probe found."""

    #: Not probed, or the API server gave no answer that tells.
    UNKNOWN = "unknown"
    #: A former leader's binding is refused, and the present one's is not.
    ACTIVE = "active"
    #: A former leader's binding is not refused: no policy, or it is not about our user and Lease.
    ABSENT = "absent"
    #: The present leader's binding is refused: the policy looks at another Lease, or at an outdated copy of ours.
    BLOCKING = "blocking"


def may_be_fenced(message: str) -> bool:
    """Whether a refused binding may be the fence's doing, by the server's message: then a probe tells more."""
    return "ValidatingAdmissionPolicy" in message


class Fence:
    """Gives bindings their token and watches that the policy acts.

    Args:
        client: the one whose user writes the bindings.
        namespace: of the Lease.
        on_change: told on the event loop when a probe finds another state than the last, with a sentence for people.
        patience: seconds the API server is given to hear of a new holder; it takes milliseconds.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        on_change: Callable[[FenceState, str], None],
        patience: float = 2.0,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._on_change = on_change
        self._patience = patience
        self.state = FenceState.UNKNOWN
        #: A probe is under way.
        self.probing = False

    def token(self, election: Election) -> str | None:
        """What a Binding carries under `annotations.FENCE`; None when bindings must go without.

        Also while the fence is absent: it then acts from the moment it is installed. Only a fence that refuses the
        leader itself is passed by.
        """
        if self.state is FenceState.BLOCKING:
            return None
        return f"{election.identity}/{election.transitions}"

    async def probe(self, election: Election) -> FenceState:
        """Find out, by dry runs, whether the fence acts: at takeover, before the first binding, and when in doubt.

        Leaves the state as it is when we do not lead.
        """
        self.probing = True
        try:
            return await self._probe(election)
        finally:
            self.probing = False

    async def _probe(self, election: Election) -> FenceState:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        pause = _FIRST_PAUSE
        while election.is_leader():
            passes, why = await self._ask(f"{election.identity}/{election.transitions}")
            if passes:
                # Not sooner: a policy that has not seen a new Lease yet refuses everybody.
                outdated, why = await self._ask(STALE_TOKEN)
                if outdated is None:
                    return self._found(FenceState.UNKNOWN, why)
                return self._found(FenceState.ABSENT if outdated else FenceState.ACTIVE, "")
            if passes is None or loop.time() + pause > deadline:
                return self._found(FenceState.UNKNOWN if passes is None else FenceState.BLOCKING, why)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return self.state

    async def _ask(self, token: str) -> tuple[bool | None, str]:
        """Whether a binding with this token passes; None when the answer does not tell. With the server's words."""
        body = msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": PROBE_POD, "namespace": self._namespace, "annotations": {FENCE: token}},
                "target": {"apiVersion": "v1", "kind": "Node", "name": PROBE_POD},
            }
        )
        path = pod_path(self._namespace, PROBE_POD, "binding")
        try:
            await self._client.request("POST", path, params={"dryRun": "All"}, body=body, throttled=False)
        except Unreachable as error:
            return None, str(error)
        except ApiError as error:
            if may_be_fenced(error.message):
                return False, error.message
            if error.status == 409 or (error.status == 404 and error.details.name == PROBE_POD):
                return True, ""
            return None, str(error)
        return True, ""

    def _found(self, state: FenceState, why: str) -> FenceState:
        if state is not self.state:
            self.state = state
            self._on_change(state, _SENTENCES[state] + (f": {why}" if why else ""))
        return state


_SENTENCES: Final = {
    FenceState.UNKNOWN: "whether the fence acts cannot be told",
    FenceState.ACTIVE: "the fence acts: the API server refuses bindings of a former leader",
    FenceState.ABSENT: (
        "the fence does not act: bindings of a former leader are not refused. Apply manifests/fence with the Lease and "
        "the service account of this scheduler; until then a check before every write is all there is"
    ),
    FenceState.BLOCKING: (
        "the fence refuses the present leader, so bindings go without a token: those of a former leader are not "
        "refused. Its parameter must be the Lease of this scheduler; an API server that lost sight of the Lease (the "
        "policy's binding was deleted and made again) needs a restart"
    ),
}


def policy_objects(
    *,
    name: str = "capcard-sched-fence",
    namespace: str = "capcard-system",
    lease: str = "capcard-sched",
    user: str = "system:serviceaccount:capcard-system:capcard-sched",
) -> list[dict[str, Any]]:
    """The policy, and its binding to one Lease, for one user: manifests/fence. No user can be fenced by two Leases."""
    token = f"object.metadata.annotations['{FENCE}']"
    policy = {
        "apiVersion": _API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name, "labels": {"app": "capcard-sched"}},
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"},
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
                ]
            },
            "matchConditions": [
                {"name": "ours", "expression": f"request.userInfo.username == '{user}'"},
                {
                    "name": "with-a-token",
                    "expression": f"has(object.metadata.annotations) && '{FENCE}' in object.metadata.annotations",
                },
            ],
            "validations": [
                {
                    "expression": (
                        "has(params.spec.holderIdentity) && params.spec.holderIdentity != '' && "
                        "has(params.spec.leaseTransitions) && "
                        f"{token} == params.spec.holderIdentity + '/' + string(params.spec.leaseTransitions)"
                    ),
                    "messageExpression": f"'bound by a replica that does not lead: ' + {token}",
                    "reason": "Forbidden",
                }
            ],
        },
    }
    binding = {
        "apiVersion": _API_VERSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name, "labels": {"app": "capcard-sched"}},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "paramRef": {"name": lease, "namespace": namespace, "parameterNotFoundAction": "Deny"},
        },
    }
    return [policy, binding]
