"""The Lease record and its observation by one replica. No I/O.

Two replicas never lead at the same time. A leader stops leading `renew_deadline` after it *sent* its last successful
renewal. Another replica claims the Lease at the earliest `lease_duration` after it *observed* the last change of the
record, which is later, on a clock of its own. Timestamps of other machines are for display only.
"""

import math
import socket
import uuid
from datetime import datetime
from typing import Final

import msgspec

#: `spec.leaseTransitions` is a 32-bit integer; the API server rejects a negative one.
MAX_TRANSITIONS: Final = 2**31 - 1
#: Labels of a Lease created here; an existing one keeps its metadata.
LABELS: Final = {"app": "capcard-sched"}

#: Seconds of the longest server-side timeout of bindings: a failover waits for it.
_SERVER_SECONDS: Final = 3.0
#: Share of the time between renew deadline and lease duration in which no write is in flight.
_MARGIN: Final = 0.1


def process_identity() -> str:
    """`<hostname>_<uuid>`: unique per process, never reused."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The record (`coordination.k8s.io/v1`). Times stay text: they are displayed, never computed with."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", tag="Lease"):
    """A Lease. Metadata passes through unchanged; its resourceVersion is the optimistic lock."""

    metadata: msgspec.Raw
    spec: LeaseSpec | None = None
    api_version: str = "coordination.k8s.io/v1"


_decoder: Final = msgspec.json.Decoder(Lease)
_encoder: Final = msgspec.json.Encoder()


def decode(body: bytes) -> Lease:
    """Decode a Lease. Raises `msgspec.ValidationError` or `msgspec.DecodeError` with the field at fault."""
    return _decoder.decode(body)


def encode(lease: Lease) -> bytes:
    return _encoder.encode(lease)


def timestamp(now: datetime) -> str:
    """Kubernetes MicroTime of a UTC time."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def problems(record: LeaseSpec, own_duration: float) -> list[str]:
    """Problems of another client's record, one message each."""
    found = []
    duration = record.lease_duration_seconds
    if record.holder_identity is None:
        found.append("spec.holderIdentity is missing: treated as free")
    elif record.holder_identity and duration is None:
        found.append(f"spec.leaseDurationSeconds is missing: treated as {own_duration:g}")
    if duration is not None and duration <= 0:
        found.append(f"spec.leaseDurationSeconds is {duration}, expected a number above 0: treated as {own_duration:g}")
    elif record.holder_identity and duration is not None and duration > 4 * own_duration:
        found.append(f"spec.leaseDurationSeconds is {duration}: without its holder, no replica leads for that long")
    transitions = record.lease_transitions
    if transitions is not None and not 0 <= transitions < MAX_TRANSITIONS:
        found.append(f"spec.leaseTransitions is {transitions}: terms restart from 0")
    return found


class LeaseObservation:
    """A replica's observation of the Lease and its own term.

    Every `now` and `started` is seconds of one monotonic clock of this process.

    Attributes:
        record: the last observed record. It stays when the Lease is deleted, because its holder may still lead.
        term: `spec.leaseTransitions` of this replica's current or last term; -1 before the first.
        leading: the term is open. `is_leader` checks its expiry, too.
        renewed_at: time at which the last successful renewal of the term was sent.
        claimed: a claim was sent, so the record may name this replica whatever the responses were.
    """

    def __init__(self, identity: str, *, lease_duration: float, renew_deadline: float) -> None:
        self.identity = identity
        # Whole seconds: the record has no fractions, and others must not wait for less than the duration.
        self._duration = math.ceil(lease_duration)
        self._renew_deadline = renew_deadline
        self._lease: Lease | None = None
        self._seen_at = -math.inf
        self.record: LeaseSpec | None = None
        self.term = -1
        self.leading = False
        self.renewed_at = -math.inf
        self.claimed = False

    def observe(self, lease: Lease | None, now: float) -> None:
        """Record the Lease of the last response; None when there is none."""
        self._lease = lease
        if lease is None:
            return
        record = lease.spec or LeaseSpec()
        if record != self.record:  # only a change of the record is a renewal, not one of labels
            self.record = record
            self._seen_at = now

    @property
    def exists(self) -> bool:
        """Whether the Lease existed when last observed: a write is an update, else a creation."""
        return self._lease is not None

    @property
    def holder(self) -> str:
        """Holder in the last observed record; "" when it is free or none was observed."""
        return (self.record.holder_identity or "") if self.record is not None else ""

    def wait(self, now: float) -> float:
        """Seconds until this replica may claim the Lease; 0.0 when it may at once."""
        if self.record is None or self.holder in {"", self.identity}:
            return 0.0
        declared = self.record.lease_duration_seconds
        duration = declared if declared is not None and declared > 0 else self._duration
        return max(0.0, self._seen_at + duration - now)

    def claim(self, name: str, namespace: str, now: datetime) -> Lease:
        """The Lease that opens a term of this replica, with a number of its own.

        client-go counts a transition when the holder changes. This elector also counts one when it claims a Lease that
        still names it, so that writes of the previous term differ from those of the new one.
        """
        self.claimed = True
        before = self._transitions_seen()
        spec = self._spec(
            self.identity, self._duration, timestamp(now), now, before + 1 if before < MAX_TRANSITIONS else 0
        )
        return self._with(spec, name, namespace)

    def renewal(self, name: str, namespace: str, now: datetime) -> Lease:
        """The Lease of the open term with a new renew time."""
        acquired = (self.record.acquire_time if self.record is not None else None) or timestamp(now)
        return self._with(self._spec(self.identity, self._duration, acquired, now, self.term), name, namespace)

    def released(self, name: str, namespace: str, now: datetime) -> Lease:
        """The released Lease. The API server accepts no duration below 1."""
        spec = self._spec("", 1, timestamp(now), now, max(0, self._transitions_seen()))
        return self._with(spec, name, namespace)

    def _transitions_seen(self) -> int:
        """Transitions of the last observed record; -1 when none was."""
        if self.record is None:
            return -1
        return min(max(0, self.record.lease_transitions or 0), MAX_TRANSITIONS)

    def _spec(self, holder: str, duration: int, acquired: str, now: datetime, transitions: int) -> LeaseSpec:
        seen = self.record or LeaseSpec()
        return LeaseSpec(
            holder_identity=holder,
            lease_duration_seconds=duration,
            acquire_time=acquired,
            renew_time=timestamp(now),
            lease_transitions=transitions,
            strategy=seen.strategy,
            preferred_holder=seen.preferred_holder,
        )

    def _with(self, spec: LeaseSpec, name: str, namespace: str) -> Lease:
        if self._lease is not None:
            return Lease(self._lease.metadata, spec)
        metadata = {"name": name, "namespace": namespace, "labels": LABELS}
        return Lease(msgspec.Raw(_encoder.encode(metadata)), spec)

    def acquired(self, lease: Lease, started: float, now: float) -> bool:
        """Open the term: the claim sent at `started` was written. False when the term expired before the response."""
        self.observe(lease, now)
        self.term = self._transitions_seen()
        self.renewed_at = started
        self.leading = True
        if not self.is_leader(now):
            self.leading = False
        return self.leading

    def renewed(self, lease: Lease, started: float, now: float) -> None:
        """Extend the term: the renewal sent at `started` was written.

        A term that expired before the response stays closed: its end may have been reported already.
        """
        self.observe(lease, now)
        if self.is_leader(now):
            self.renewed_at = started

    def expire(self) -> None:
        """End the term at once: the record names another holder."""
        self.renewed_at = -math.inf

    def remaining(self, now: float) -> float:
        """Seconds until the term expires unless it is renewed; 0.0 or less afterwards."""
        return self.renewed_at + self._renew_deadline - now

    def time_left(self, now: float) -> float:
        """Seconds until another replica can claim the Lease at the earliest, less a margin; 0.0 for a standby."""
        if not self.is_leader(now):
            return 0.0
        return self.renewed_at + self._duration - _MARGIN * (self._duration - self._renew_deadline) - now

    def handover_seconds(self) -> float:
        """Seconds in which the API server ends bindings of the former holder that arrived in time; 0.0 if released.

        Before the claim. The server-side timeout of bindings has this length, too.
        """
        return 0.0 if self.holder == "" else self.server_seconds

    @property
    def server_seconds(self) -> float:
        """Server-side timeout of bindings in seconds."""
        return min(_SERVER_SECONDS, self._duration - self._renew_deadline)

    def is_leader(self, now: float) -> bool:
        """Whether the last successful renewal, counted from its sending, is younger than the renew deadline."""
        return self.leading and self.remaining(now) > 0.0

    def step_down(self) -> bool:
        """Close the term. False when none was open."""
        was, self.leading = self.leading, False
        return was
