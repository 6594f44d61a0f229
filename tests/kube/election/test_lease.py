"""Conclusions of one candidate from a Lease: pure logic on a clock of the test's own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.kube.lease import (
    MAX_TRANSITIONS,
    Lease,
    LeaseObservation,
    LeaseSpec,
    decode,
    encode,
    problems,
    process_identity,
)

NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)


def candidate(identity: str = "a", *, lease_duration: float = 15.0, renew_deadline: float = 10.0) -> LeaseObservation:
    return LeaseObservation(identity, lease_duration=lease_duration, renew_deadline=renew_deadline)


def lease(version: int = 1, **spec: Any) -> Lease:
    raw = {"metadata": {"name": "l", "namespace": "n", "resourceVersion": str(version)}, "spec": spec}
    return decode(msgspec.json.encode(raw))


def held(by: str, *, duration: int = 15, renewed: str = "t0", transitions: int = 3) -> dict[str, Any]:
    return {
        "holderIdentity": by,
        "leaseDurationSeconds": duration,
        "acquireTime": "t0",
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }


def as_json(lease: Lease) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(encode(lease))
    return decoded


# --- when it may claim ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "waits"),
    [
        pytest.param([{}], 0.0, id="no holder"),
        pytest.param([{"holderIdentity": ""}], 0.0, id="released"),
        pytest.param([held("")], 0.0, id="released with a duration"),
        pytest.param([held("a")], 0.0, id="our own: no other replica holds it"),
        pytest.param([held("b")], 15.0, id="held by another"),
        pytest.param([held("b", duration=40)], 40.0, id="the duration in the record counts, not our own"),
        pytest.param([held("b", duration=1)], 1.0, id="a short one, too"),
        pytest.param([{"holderIdentity": "b"}], 15.0, id="no duration"),
        pytest.param([{"holderIdentity": "b", "leaseDurationSeconds": 0}], 15.0, id="a duration of zero"),
        pytest.param([None], 0.0, id="a Lease that never was"),
        pytest.param([held("b", renewed="t0"), held("b", renewed="t1")], 15.0, id="a renewal starts the wait again"),
        pytest.param([held("b"), held("b")], 11.0, id="a change beside the record is no sign of life"),
        pytest.param([held("b"), None], 11.0, id="the holder of a deleted Lease may still believe in it"),
        pytest.param([held(""), None], 0.0, id="deleted after its release"),
        *(
            pytest.param([held("b", renewed=time)], 15.0, id=f"the holder's own time decides nothing: {time}")
            for time in ("1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "nonsense", "")
        ),
    ],
)
def test_a_lease_may_be_claimed_after_its_duration_without_a_renewal(
    seen: list[dict[str, Any] | None], waits: float
) -> None:
    one, now = candidate("a"), 100.0
    for version, spec in enumerate(seen):
        now = 100.0 + 4.0 * version
        one.observe(None if spec is None else lease(version, **spec), now)
    assert one.wait(now) == waits
    assert one.wait(now + waits) == 0.0
    assert one.exists is (seen[-1] is not None)


# --- writes -----------------------------------------------------------------------------------------------------------


def test_a_new_lease_has_name_label_and_term_zero() -> None:
    one = candidate("a", lease_duration=2.5, renew_deadline=2.0)
    one.observe(None, 0.0)
    assert as_json(one.claim("l", "n", NOON)) == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l", "namespace": "n", "labels": {"app": "capcard-sched"}},
        "spec": {
            "holderIdentity": "a",
            "leaseDurationSeconds": 3,  # whole seconds, and no less than the duration
            "acquireTime": "2025-06-01T12:00:00.000000Z",
            "renewTime": "2025-06-01T12:00:00.000000Z",
            "leaseTransitions": 0,
        },
    }


@pytest.mark.parametrize(
    "spec, term",
    [
        ({}, 1),
        (held("b", transitions=3), 4),
        (held("", transitions=3), 4),
        (held("a", transitions=3), 4),  # ours from a term that ran out: a term of its own all the same
        (held("b", transitions=MAX_TRANSITIONS - 1), MAX_TRANSITIONS),
        (held("b", transitions=MAX_TRANSITIONS), 0),  # the API server takes no more
        (held("b", transitions=-7), 1),
    ],
)
def test_every_claim_opens_a_term_with_the_next_number(spec: dict[str, Any], term: int) -> None:
    one = candidate("a")
    one.observe(lease(**spec), 0.0)
    assert as_json(one.claim("l", "n", NOON))["spec"]["leaseTransitions"] == term
    one.observe(None, 1.0)
    assert as_json(one.claim("l", "n", NOON))["spec"]["leaseTransitions"] == term, "also after it was deleted"


def test_a_write_carries_the_observed_version_and_keeps_fields_of_other_writers() -> None:
    found = decode(
        b'{"metadata":{"name":"l","resourceVersion":"77","labels":{"x":"y"},"ownerReferences":[{"uid":"u"}]},'
        b'"spec":{"strategy":"OldestEmulationVersion","preferredHolder":"z"}}'
    )
    one = candidate("a")
    one.observe(found, 0.0)
    written = as_json(one.claim("l", "n", NOON))
    assert written["metadata"] == msgspec.json.decode(found.metadata)
    assert (written["spec"]["strategy"], written["spec"]["preferredHolder"]) == ("OldestEmulationVersion", "z")


def test_a_renewal_keeps_term_and_time_of_acquisition() -> None:
    one = candidate("a")
    one.observe(None, 0.0)
    one.acquired(one.claim("l", "n", NOON), 0.0, 0.0)
    later = as_json(one.renewal("l", "n", NOON.replace(hour=13)))["spec"]
    assert (later["acquireTime"][11:13], later["renewTime"][11:13], later["leaseTransitions"]) == ("12", "13", 0)


def test_a_released_lease_has_no_holder_and_the_shortest_duration() -> None:
    one = candidate("a")
    one.observe(lease(**held("a", transitions=5)), 0.0)
    given_back = as_json(one.released("l", "n", NOON))["spec"]
    assert (given_back["holderIdentity"], given_back["leaseDurationSeconds"], given_back["leaseTransitions"]) == (
        "",
        1,
        5,
    )


# --- its own term -----------------------------------------------------------------------------------------------------


def leader(started: float = 100.0, answered: float = 101.0) -> LeaseObservation:
    one = candidate("a")
    one.observe(None, started)
    one.acquired(one.claim("l", "n", NOON), started, answered)
    return one


@pytest.mark.parametrize(
    ("answered", "renewal", "now", "leads"),
    [
        (101.0, None, 101.0, True),
        (101.0, None, 109.9, True),
        (101.0, None, 110.0, False),
        (101.0, None, 1e9, False),
        (110.0, None, 110.0, False),
        (101.0, (105.0, 106.0), 114.9, True),
        (101.0, (105.0, 106.0), 115.0, False),
        (101.0, (109.0, 110.5), 110.5, False),
    ],
)
def test_a_term_lasts_from_when_its_last_renewal_was_sent(
    answered: float, renewal: tuple[float, float] | None, now: float, leads: bool
) -> None:
    one = leader(100.0, answered)
    if renewal is not None:
        one.renewed(one.renewal("l", "n", NOON), *renewal)
    assert one.is_leader(now) is leads
    if answered == 110.0:
        assert one.wait(110.0) == 0.0, "the Lease names us: it may be claimed anew"


def test_a_lost_lease_ends_the_term_at_once() -> None:
    one = leader(started=100.0)
    one.expire()
    assert not one.is_leader(101.0)
    assert one.step_down() is True
    assert one.step_down() is False


# --- odd records and settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec, output",
    [
        (held("b"), []),
        (held(""), []),
        ({}, ["holderIdentity is missing"]),
        ({"holderIdentity": "b"}, ["leaseDurationSeconds is missing: treated as 15"]),
        (held("b", duration=0), ["leaseDurationSeconds is 0, expected"]),
        (held("b", duration=86_400), ["no replica leads for that long"]),
        (held("b", transitions=-1), ["leaseTransitions is -1"]),
        (held("b", transitions=MAX_TRANSITIONS), ["terms restart from 0"]),
        (held("b", duration=-5, transitions=-1), ["leaseDurationSeconds is -5", "leaseTransitions is -1"]),
    ],
)
def test_malformed_records_are_reported(spec: dict[str, Any], output: list[str]) -> None:
    found = problems(lease(**spec).spec or LeaseSpec(), 15.0)
    assert len(found) == len(output)
    assert all(part in sentence for part, sentence in zip(output, found, strict=True))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"spec":{}}',
        b'{"kind":"Status","metadata":{}}',
        b'{"metadata":{},"spec":{"holderIdentity":7}}',
    ],
)
def test_an_object_that_is_no_lease_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(body)


def test_no_two_processes_have_one_identity() -> None:
    one, other = process_identity(), process_identity()
    assert one != other
    assert one.rpartition("_")[0] == other.rpartition("_")[0] != ""


# --- several candidates, one Lease ------------------------------------------------------------------------------------


@dataclass
class Server:
    """Keeps one Lease and refuses writes of any version but the present one."""

    lease: Lease | None = None
    version: int = 0

    def write(self, version: int, new: Lease) -> Lease | None:
        if version != self.version:
            return None
        self.version += 1
        metadata = msgspec.Raw(msgspec.json.encode({"resourceVersion": str(self.version)}))
        self.lease = Lease(metadata, new.spec)
        return self.lease


@dataclass
class Replica:
    """A candidate whose clock shows something of its own, with one request under way at a time."""

    it: LeaseObservation
    offset: float
    knows: int = 0  # version
    request: tuple[str, float, int, Lease | None] | None = None  # verb, sent, version, what
    response: tuple[str, float, int, Lease | None] | None = None
    terms: list[int] = field(default_factory=list)

    def act(self, now: float) -> None:
        """Send what an elector would send next."""
        self.request = self.response = None
        if self.it.leading and not self.it.is_leader(now):
            self.it.step_down()
        if self.it.leading:
            self.request = ("renew", now, self.knows, self.it.renewal("l", "n", NOON.replace(microsecond=self.knows)))
        elif self.it.record is not None and self.it.wait(now) == 0.0:
            self.request = ("claim", now, self.knows, self.it.claim("l", "n", NOON.replace(microsecond=self.knows)))
        else:
            self.request = ("read", now, 0, None)

    def take(self, now: float) -> None:
        """Take in the response."""
        assert self.response is not None
        (verb, sent, version, found), self.response = self.response, None
        if found is None:  # refused: another client wrote, and the next read shows what
            self.it.expire()
            self.it.record = None if verb == "claim" else self.it.record
            return
        self.knows = version
        if verb == "read":
            self.it.observe(found, now)
        elif verb == "renew":
            self.it.renewed(found, sent, now)
        elif self.it.acquired(found, sent, now):
            self.terms.append(self.it.term)


def play(chance: random.Random, steps: int = 500) -> list[Replica]:
    """Replicas that fall asleep, over a network that delays and loses; at every moment at most one leads."""
    server = Server()
    server.write(0, lease(**held("", transitions=0)))
    # Next to no margin between deadline and lease, so that a slip of a second shows.
    replicas = [Replica(candidate(name, lease_duration=11.0), chance.uniform(-1e6, 1e6)) for name in "abc"]
    abandoned: list[tuple[int, Lease]] = []
    now = 0.0
    awake = replicas
    for step in range(steps):
        if step % 20 == 0:
            awake = chance.sample(replicas, chance.choice([1, 2, 3]))
        now += chance.choice([0.0, 0.0, 0.1, 0.3, 1.0, 3.0])
        assert sum(each.it.is_leader(now + each.offset) for each in replicas) <= 1
        one = chance.choice(awake)
        clock = now + one.offset
        if abandoned and chance.random() < 0.1:
            server.write(*abandoned.pop(chance.randrange(len(abandoned))))
        if (one.request or one.response) and chance.random() < 0.1:  # a time-out: what left may still arrive
            if one.request is not None and one.request[3] is not None:
                abandoned.append((one.request[2], one.request[3]))
            one.request = one.response = None
        elif one.response is not None:
            one.take(clock)
        elif one.request is not None:
            (verb, sent, version, body), one.request = one.request, None
            stored = server.lease if body is None else server.write(version, body)
            one.response = (verb, sent, server.version, stored)
        else:
            one.act(clock)
        assert sum(each.it.is_leader(now + each.offset) for each in replicas) <= 1
    return replicas


@settings(max_examples=3 * settings().max_examples)
@given(seed=st.integers(0, 2**32))
def test_with_random_delays_and_losses_no_two_replicas_lead_and_terms_are_unique(seed: int) -> None:
    replicas = play(random.Random(seed))
    terms = [(each.it.identity, term) for each in replicas for term in each.terms]
    assert len(terms) == len(set(terms))


def test_the_model_above_changes_leaders_often() -> None:
    terms = [len(each.terms) for seed in range(20) for each in play(random.Random(seed))]
    assert sum(terms) > 40
    assert sum(count > 0 for count in terms) > 20
