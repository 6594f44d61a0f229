"""Unused claims: ResourceClaims that are allocated, but reserved for pods that wait unbound, or for none.

A scheduler that ends between the allocation and the binding leaves the former, and so does a release that failed. The
latter have lost their finalizer, or were allocated by another writer: a pod that names one may not fit its node. The
next sessions bind the pods where their devices are. Claims that are still unused after `UNUSED_SECONDS` are released,
so that other pods get the devices; at once if another claim keeps one of the devices. Everything follows from objects:
a restart only starts the time again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.framework.session.doubled_devices import keeper
from capcard_sched.model.intents import ClaimAllocation, ExtendedClaim, ReleaseClaims
from capcard_sched.model.pod_claims import named_claims
from capcard_sched.model.reasons import CLAIMS_RELEASED
from capcard_sched.model.status import COMPLETED_STATUSES, PHASE_PENDING, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capcard_sched.devices.claims import Claim
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Task

#: Seconds for which a claim may be unused.
UNUSED_SECONDS: Final = 30.0


class UnusedClaims:
    """The unused claims of all sessions, with the time since which each is unused."""

    def __init__(self) -> None:
        #: Key of the claim to its uid and the Unix seconds since which it is unused.
        self._since: dict[str, tuple[str, float]] = {}
        self._term = 0
        #: Unix seconds of the next release; None for none.
        self.next_wakeup: float | None = None

    def release(self, session: Session) -> list[ReleaseClaims]:
        """The releases that are due, after the actions. Their pods are held until a BindRetry.

        O(changed claims, and pods of changed jobs).
        """
        if self._term != session.state.terms:
            self._term = session.state.terms
            self._since.clear()
        known, self._since, self.next_wakeup = self._since, {}, None
        if not session.snapshot.claims.claims:
            return []
        due: dict[str, tuple[Task, list[Claim]]] = {}
        claims = session.snapshot.claims.claims
        keys = sorted(known.keys() | _candidates(session))
        users = _users_of(session, {key for key in keys if key in claims and _has_no_consumer(claims[key])})
        for key in keys:
            claim = claims.get(key)
            pods = _waiting_pods(session, claim, users) if claim is not None else []
            if claim is None or not pods:
                continue
            uid, since = known.get(key, ("", 0.0))
            since = min(since, session.now) if uid == claim.uid else session.now
            lost = keeper(claim, session.snapshot.claims, session.snapshot.tasks_by_uid) is not None
            # One for extended resources fits one node: it is created anew with the next placement.
            end = session.now if lost or claim.extended else since + UNUSED_SECONDS
            if end > session.now:
                self._since[key] = claim.uid, since
                self.next_wakeup = end if self.next_wakeup is None else min(self.next_wakeup, end)
                continue
            for task in pods:
                due.setdefault(task.uid, (task, []))[1].append(claim)
        return [_released(session, task, claims) for task, claims in due.values()]


def _candidates(session: Session) -> set[str]:
    """Keys of the claims that may have become unused."""
    claims, changed = session.snapshot.claims.claims, session.changed
    if changed.everything:
        return set(claims)
    found = {key for key in changed.devices if key in claims}.union(*session.snapshot.claims.doubled.devices.values())
    for name in changed.jobs:
        job = session.jobs.get(name)
        for task in job.pending.values() if job is not None else ():
            found.update(named_claims(task.namespace, task.cls.claims))
            if (key := session.snapshot.claims.extended.get((task.namespace, task.uid))) is not None:
                found.add(key)
    return found


def _waiting_pods(session: Session, claim: Claim, users: Mapping[str, list[Task]]) -> list[Task]:
    """The pods of an unused claim; none for a claim that a bound, nominated, held, foreign or unknown pod has.

    `users`: by key of a claim without a consumer, the pods that name it.
    """
    if claim.key in session.snapshot.claims.assumed:
        return []
    consumers = sorted(claim.consumers) if claim.allocation is not None else []
    if claim.extended and claim.owner is not None:
        consumers = [claim.owner.uid]
    elif _has_no_consumer(claim):
        consumers = _naming(users.get(claim.key, []))
    found: list[Task] = []
    for uid in consumers:
        task = session.snapshot.tasks_by_uid.get(uid)
        if (
            task is None
            or task.status is not TaskStatus.PENDING
            or not task.ours
            or task.deleting
            or task.held
            or (uid in session.carry_over.nominations and not claim.extended)
            or (claim.extended and (claim.deleting or task.namespace != claim.namespace))
        ):
            return []
        found.append(task)
    return found


def _has_no_consumer(claim: Claim) -> bool:
    return claim.allocation is not None and not claim.consumers and not (claim.extended and claim.owner is not None)


def _users_of(session: Session, keys: set[str]) -> dict[str, list[Task]]:
    """The pods that name these claims. O(pods) where there are any."""
    found: dict[str, list[Task]] = {}
    for task in session.snapshot.tasks_by_uid.values() if keys else ():
        for key in keys.intersection(named_claims(task.namespace, task.cls.claims)):
            found.setdefault(key, []).append(task)
    return found


def _naming(users: list[Task]) -> list[str]:
    """The uid of our first pod that names a claim and may be placed; none while another one has it."""
    if any(not task.ours or task.status not in (TaskStatus.PENDING, *COMPLETED_STATUSES) for task in users):
        return []
    waiting = [task.uid for task in users if task.status is TaskStatus.PENDING and _may_be_placed(task)]
    return sorted(waiting)[:1]


def _may_be_placed(task: Task) -> bool:
    """Whether sessions try a pod: its job is admitted, and nothing holds it back."""
    is_admitted = task.job is not None and task.job.phase is not PHASE_PENDING
    return is_admitted and not (task.gated or task.deleting or task.held)


def _released(session: Session, task: Task, claims: list[Claim]) -> ReleaseClaims:
    session.state.hold(task, held=True)
    names = ", ".join(claim.name for claim in claims)
    kept = [
        found
        for claim in claims
        if (found := keeper(claim, session.snapshot.claims, session.snapshot.tasks_by_uid)) is not None
    ]
    cause = f"the pod was not bound for {UNUSED_SECONDS:g} s"
    if any(claim.extended for claim in claims):
        cause = "an earlier attempt to bind the pod failed"
    if kept:
        cause = f"ResourceClaim {kept[0].claim.key} has device {'/'.join(kept[0].device)}, too"
    session.results.notice(task, CLAIMS_RELEASED, CLAIMS_RELEASED.render(claims=names, cause=cause))
    wanted = tuple(
        ClaimAllocation(
            claim.name, claim.uid, claim.allocation, extended=ExtendedClaim() if claim.extended else msgspec.UNSET
        )
        for claim in claims
    )
    return ReleaseClaims(task.namespace, task.name, task.uid, wanted)
