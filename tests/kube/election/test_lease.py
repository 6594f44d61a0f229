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
    "spec, waits",
    [
        ({}, 0.0),
        ({"holderIdentity": ""}, 0.0),
        (held(""), 0.0),
        (held("a"), 0.0),  # our own: no other replica holds it
        (held("b"), 15.0),
        (held("b", duration=40), 40.0),  # the duration in the record counts, not our own
        (held("b", duration=1), 1.0),
        ({"holderIdentity": "b"}, 15.0),
        ({"holderIdentity": "b", "leaseDurationSeconds": 0}, 15.0),
    ],
)
def test_a_lease_may_be_claimed_after_its_duration_without_a_renewal(spec: dict[str, Any], waits: float) -> None:
    one = candidate("a")
    one.observe(lease(**spec), 100.0)
    assert one.wait(100.0) == waits
    assert one.wait(100.0 + waits) == 0.0


def test_a_lease_that_never_was_may_be_claimed_at_once() -> None:
    one = candidate()
    one.observe(None, 5.0)
    assert one.wait(5.0) == 0.0


def test_every_renewal_seen_starts_the_wait_again() -> None:
    one = candidate()
    one.observe(lease(1, **held("b", renewed="t0")), 0.0)
    one.observe(lease(2, **held("b", renewed="t1")), 14.0)
    assert one.wait(15.0) == 14.0


def test_a_change_beside_the_record_is_no_sign_of_life() -> None:
    one = candidate()
    one.observe(lease(1, **held("b")), 0.0)
    one.observe(lease(2, **held("b")), 14.0)
    assert one.wait(15.0) == 0.0


@pytest.mark.parametrize("renewed", ["1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "nonsense", ""])
def test_the_holders_own_time_decides_nothing(renewed: str) -> None:
    one = candidate()
    one.observe(lease(**held("b", renewed=renewed)), 50.0)
    assert one.wait(50.0) == 15.0


def test_a_deleted_lease_is_waited_for_because_its_holder_may_still_believe_in_it() -> None:
    one = candidate()
    one.observe(lease(**held("b")), 0.0)
    one.observe(None, 4.0)
    assert one.wait(4.0) == 11.0
    assert not one.exists


def test_a_lease_deleted_after_its_release_may_be_claimed_at_once() -> None:
    one = candidate()
    one.observe(lease(**held("")), 0.0)
    one.observe(None, 1.0)
    assert one.wait(1.0) == 0.0


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


def test_numbers_go_on_after_the_lease_was_deleted() -> None:
    one = candidate("a")
    one.observe(lease(**held("b", transitions=3)), 0.0)
    one.observe(None, 1.0)
    assert as_json(one.claim("l", "n", NOON))["spec"]["leaseTransitions"] == 4


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


@pytest.mark.parametrize("now, leads", [(101.0, True), (109.9, True), (110.0, False), (1e9, False)])
def test_a_term_lasts_from_when_its_last_renewal_was_sent(now: float, leads: bool) -> None:
    assert leader(started=100.0).is_leader(now) is leads


def test_a_claim_with_a_late_response_makes_no_leader() -> None:
    one = leader(started=100.0, answered=110.0)
    assert not one.leading
    assert one.wait(110.0) == 0.0  # the Lease names us: it may be claimed anew


def test_a_renewal_prolongs_the_term() -> None:
    one = leader(started=100.0)
    one.renewed(one.renewal("l", "n", NOON), 105.0, 106.0)
    assert one.is_leader(114.9)
    assert not one.is_leader(115.0)


def test_a_renewal_with_a_response_after_expiry_does_not_restore_the_term() -> None:
    one = leader(started=100.0)
    one.renewed(one.renewal("l", "n", NOON), 109.0, 110.5)
    assert not one.is_leader(110.5)


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


def test_the_model_above_does_elect_and_replace_leaders() -> None:
    server = Server()
    server.write(0, lease(**held("", transitions=0)))
    replicas = [Replica(candidate(name), 0.0) for name in "ab"]
    now = 0.0
    for one in (replicas[0], replicas[1]):
        for _ in range(3):  # look, look again after the lease, claim
            one.act(now)
            assert one.request is not None
            verb, sent, version, body = one.request
            stored = server.lease if body is None else server.write(version, body)
            one.response = (verb, sent, server.version, stored)
            one.take(now)
            if one.it.leading:
                break
            now += 15.0
        assert one.it.is_leader(now)
        now += 10.0
    assert [one.terms for one in replicas] == [[1], [2]]
