"""The Lease record, and what one candidate may conclude from it by its own clock alone. No I/O.

Two replicas never lead together, because a leader gives up `renew_deadline` after it *sent* its last successful
renewal, and another may claim only `lease_duration` after it *saw* the record change last: later than it was sent, on a
clock of its own. No timestamp of another machine is compared with anything; those in the record are for people
(controllers reference §7.2, core reference W-33).
"""

import math
import re
import socket
import uuid
from datetime import datetime
from typing import Final

import msgspec

#: `spec.leaseTransitions` is a 32-bit integer, and the API server refuses a negative one.
MAX_TRANSITIONS: Final = 2**31 - 1
#: Put on a Lease we create, as on all that is ours; one that exists keeps its own metadata.
LABELS: Final = {"app": "capcard-sched"}

#: The renew deadline leaves time for a retry period and some.
_RETRY_MARGIN: Final = 1.2
_MAX_NAME: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def process_identity() -> str:
    """`<hostname>_<uuid>`: one per process, never used again (controllers reference §7.2)."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


def check_settings(
    namespace: str, name: str, identity: str, lease_duration: float, renew_deadline: float, retry_period: float
) -> None:
    """Raise `ValueError`, naming the setting, for names no Lease can have and durations (seconds) that cannot work."""
    for setting, value in (("namespace", namespace), ("name", name)):
        if len(value) > _MAX_NAME or not _NAME.fullmatch(value):
            raise ValueError(
                f"{setting} of the Lease {value!r}: expected 1 to {_MAX_NAME} lower-case letters, digits, '-' and '.'"
            )
    if not identity:
        raise ValueError("identity is empty: expected a text unique to this process")
    if not (math.isfinite(lease_duration) and lease_duration >= 1.0):
        raise ValueError(f"lease duration {lease_duration:g} s: expected 1 s or more")
    if not renew_deadline < lease_duration:
        raise ValueError(
            f"renew deadline {renew_deadline:g} s: expected less than the lease duration, {lease_duration:g} s"
        )
    if not 0.0 < retry_period * _RETRY_MARGIN < renew_deadline:
        raise ValueError(
            f"retry period {retry_period:g} s: expected more than 0 s, and less than the renew deadline, "
            f"{renew_deadline:g} s, divided by {_RETRY_MARGIN:g}"
        )


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The record (`coordination.k8s.io/v1`). Times are kept as text: they are shown, never computed with."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", tag="Lease"):
    """A Lease. Metadata passes through as it came: its resourceVersion is the lock, the rest belongs to others."""

    metadata: msgspec.Raw
    spec: LeaseSpec | None = None
    api_version: str = "coordination.k8s.io/v1"


_decoder: Final = msgspec.json.Decoder(Lease)
_encoder: Final = msgspec.json.Encoder()


def decode(body: bytes) -> Lease:
    """Read a Lease. Raises `msgspec.ValidationError` or `msgspec.DecodeError` with the field at fault."""
    return _decoder.decode(body)


def encode(lease: Lease) -> bytes:
    """Write a Lease the way the API server takes it."""
    return _encoder.encode(lease)


def timestamp(now: datetime) -> str:
    """Kubernetes MicroTime of a UTC time."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def problems(record: LeaseSpec, own_duration: float) -> list[str]:
    """What is odd about somebody else's record, one sentence each; empty when nothing is."""
    found = []
    duration = record.lease_duration_seconds
    if record.holder_identity is None:
        found.append("spec.holderIdentity is missing: taken as free")
    elif record.holder_identity and duration is None:
        found.append(f"spec.leaseDurationSeconds is missing: taken as {own_duration:g}")
    if duration is not None and duration <= 0:
        found.append(f"spec.leaseDurationSeconds is {duration}, expected a number above 0: taken as {own_duration:g}")
    elif record.holder_identity and duration is not None and duration > 4 * own_duration:
        found.append(f"spec.leaseDurationSeconds is {duration}: if its holder is gone, nobody leads for that long")
    transitions = record.lease_transitions
    if transitions is not None and not 0 <= transitions < MAX_TRANSITIONS:
        found.append(f"spec.leaseTransitions is {transitions}: counted from 0 again")
    return found


class LeaseObservation:
    """One candidate: what it saw of the Lease, when, and the term it holds itself.

    Every `now` and `started` is seconds of one clock of this process that never goes back.

    Attributes:
        record: the last record seen. It stays when the Lease is deleted, because its holder may still believe in it.
        term: `spec.leaseTransitions` of our own current or last term; -1 before the first.
        leading: our term is open. It may have run out: `is_leader` tells.
        renewed_at: when the last successful renewal of our term was sent.
        claimed: a claim was sent, so that the record may name us whatever the answers were.
    """

    __slots__ = (
        "_duration",
        "_lease",
        "_renew_deadline",
        "_seen_at",
        "claimed",
        "identity",
        "leading",
        "record",
        "renewed_at",
        "term",
    )

    def __init__(self, identity: str, *, lease_duration: float, renew_deadline: float) -> None:
        self.identity = identity
        # Whole seconds: the record has no fractions, and others must not wait less than we promise.
        self._duration = math.ceil(lease_duration)
        self._renew_deadline = renew_deadline
        self._lease: Lease | None = None
        self._seen_at = -math.inf
        self.record: LeaseSpec | None = None
        self.term = -1
        self.leading = False
        self.renewed_at = -math.inf
        self.claimed = False

    # --- what was seen ------------------------------------------------------------------------------------------------

    def saw(self, lease: Lease | None, now: float) -> None:
        """Take in the Lease as the API server has just answered; None when there is none."""
        self._lease = lease
        if lease is None:
            return
        record = lease.spec or LeaseSpec()
        if record != self.record:  # a new label is no sign of life: only the record counts
            self.record = record
            self._seen_at = now

    @property
    def exists(self) -> bool:
        """Whether the Lease existed when last seen: a write is an update, else a creation."""
        return self._lease is not None

    @property
    def holder(self) -> str:
        """Whom the last record seen names; "" when it is free or none was seen."""
        return (self.record.holder_identity or "") if self.record is not None else ""

    def wait(self, now: float) -> float:
        """Seconds until this candidate may claim the Lease; 0.0 when it may at once."""
        if self.record is None or self.holder in {"", self.identity}:
            return 0.0
        promised = self.record.lease_duration_seconds
        duration = promised if promised is not None and promised > 0 else self._duration
        return max(0.0, self._seen_at + duration - now)

    # --- what to write ------------------------------------------------------------------------------------------------

    def claim(self, name: str, namespace: str, now: datetime) -> Lease:
        """The Lease that opens a term of ours, with a number of its own.

        Other electors count a transition when the holder changes. We count one more when we take up again a Lease that
        still names us, so that a write of the term before can be told from one of this.
        """
        self.claimed = True
        before = self._transitions_seen()
        spec = self._spec(
            self.identity, self._duration, timestamp(now), now, before + 1 if before < MAX_TRANSITIONS else 0
        )
        return self._with(spec, name, namespace)

    def renewal(self, name: str, namespace: str, now: datetime) -> Lease:
        """The Lease of our open term with a new time."""
        acquired = (self.record.acquire_time if self.record is not None else None) or timestamp(now)
        return self._with(self._spec(self.identity, self._duration, acquired, now, self.term), name, namespace)

    def surrender(self, name: str, namespace: str, now: datetime) -> Lease:
        """The Lease, free for anyone at once. The API server takes no duration below 1."""
        spec = self._spec("", 1, timestamp(now), now, max(0, self._transitions_seen()))
        return self._with(spec, name, namespace)

    def _transitions_seen(self) -> int:
        """Transitions of the last record seen; -1 when none was."""
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

    # --- the own term -------------------------------------------------------------------------------------------------

    def won(self, lease: Lease, started: float, now: float) -> bool:
        """Our claim, sent at `started`, was written. False when the answer took so long that the term is over."""
        self.saw(lease, now)
        self.term = self._transitions_seen()
        self.renewed_at = started
        self.leading = True
        if not self.is_leader(now):
            self.leading = False
        return self.leading

    def renewed(self, lease: Lease, started: float, now: float) -> None:
        """Our renewal, sent at `started`, was written.

        A term that ran out before the answer came stays over: somebody may have been told that we do not lead.
        """
        self.saw(lease, now)
        if self.is_leader(now):
            self.renewed_at = started

    def forfeit(self) -> None:
        """Our term is over whatever its age: the record names somebody else."""
        self.renewed_at = -math.inf

    def left(self, now: float) -> float:
        """Seconds of our term that are left unless it is renewed; 0.0 or less when it is over."""
        return self.renewed_at + self._renew_deadline - now

    def is_leader(self, now: float) -> bool:
        """Whether our last successful renewal, counted from when it was sent, is younger than the renew deadline."""
        return self.leading and self.left(now) > 0.0

    def step_down(self) -> bool:
        """Close our term. False when none was open."""
        was, self.leading = self.leading, False
        return was
