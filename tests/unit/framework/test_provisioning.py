"""ProvisioningRequests of gangs: demands, names, and what a request of the API server states."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capcard_sched.model.autoscaling import AutoscalingOptions
from capcard_sched.model.deltas import ObjectChanged
from capcard_sched.model.intents import RequestCapacity
from capcard_sched.model.provisioning import (
    MOST_PENDING_REQUESTS,
    MOST_POD_SETS,
    CapacityRequest,
    ProvisioningRequestObject,
    capacity_request,
    next_step,
    request_name,
    template_name,
)
from tests.vectors.notation import VectorHarness

CHECK = "check-capacity.autoscaling.x-k8s.io"
CONF = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: predicates}, {name: capacity-card}]
"""


def _gang(pods: str, provisioning_class: str = CHECK) -> VectorHarness:
    h = VectorHarness(CONF, autoscaling=AutoscalingOptions(provisioning_class=provisioning_class))
    h.do(f"gpu_node n1 1*A; queue q cards=A:999; {pods}")
    return h


def _requests(h: VectorHarness) -> list[RequestCapacity]:
    return [intent for intent in h.step().intents if isinstance(intent, RequestCapacity)]


@pytest.mark.parametrize("templates", [MOST_POD_SETS, MOST_POD_SETS + 1])
def test_a_gang_with_more_templates_than_a_request_may_have_is_unschedulable(templates: int) -> None:
    pods = "; ".join(f"pod g/p{number} 2*A cpu={number + 1}m" for number in range(templates))
    h = _gang(f"group g min={templates}; {pods}")
    made = _requests(h)
    assert [len(one.pod_sets) for one in made] == [templates] * (templates == MOST_POD_SETS)
    reason = "ProvisioningPending" if made else "Unschedulable"
    assert {found for found, _ in h.reasons.values()} == {reason}
    assert [code for code, _ in h.event_messages("PodGroup", "g")].count("TooManyPodSets") == (not made)


def test_a_demand_has_the_same_digest_in_every_process_and_another_for_each_class() -> None:
    def digest(pods: str, provisioning_class: str = CHECK) -> str:
        [made] = _requests(_gang(pods, provisioning_class))
        return made.annotations["capcard-sched.io/provisioning-demand"]

    two = "group g min=2; pod g/p0..1 2*A"
    other = "group g min=2; pod g/x0..1 2*A"  # other names of pods: the same demand
    assert digest(two) == digest(other)
    differing = [digest(two), digest("group g min=2; pod g/p0..1 3*A"), digest("group g min=3; pod g/p0..2 2*A"),
                 digest("group g min=2; pod g/p0..1 2*A nodeSelector=pool:b"),
                 digest(two, "best-effort-atomic-scale-up.autoscaling.x-k8s.io")]  # fmt: skip
    assert len(set(differing)) == len(differing)


#: Names of objects as the API server accepts them, also near the longest ones.
_LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
_NAMES = st.lists(_LABEL, min_size=1, max_size=120).map(".".join).map(lambda name: name[:253].rstrip("-."))
_ACCEPTED = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@example("a" * 215 + ".b", 1)
@example("a" * 253, 10**9)
@given(_NAMES, st.integers(1, 10**9))
def test_names_are_accepted_by_the_api_server_and_distinct(group: str, number: int) -> None:
    name = request_name(group, number)
    template = template_name(name, MOST_POD_SETS - 1)
    assert len(template) <= 253
    assert _ACCEPTED.fullmatch(template)
    assert name != request_name(f"{group}x", number)
    found = capacity_request(msgspec.convert({"kind": "ProvisioningRequest", "metadata": {"name": name}},
                                             ProvisioningRequestObject))  # fmt: skip
    assert found.number == (number if number < 10**9 else 0)


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ([], "pending"),
        ([("Accepted", "True")], "pending"),
        ([("Provisioned", "False"), ("Failed", "False")], "pending"),
        ([("Accepted", "True"), ("Provisioned", "True")], "provisioned"),
        ([("Provisioned", "True"), ("BookingExpired", "True")], "expired"),
        ([("Provisioned", "True"), ("CapacityRevoked", "True")], "revoked"),
        ([("Provisioned", "False"), ("Failed", "True")], "failed"),
    ],
)
def test_the_state_follows_from_the_conditions(conditions: list[tuple[str, str]], state: str) -> None:
    rows = [{"type": kind, "status": status} for kind, status in conditions]
    body = {"kind": "ProvisioningRequest", "metadata": {"name": "x"}, "status": {"conditions": rows}}
    assert capacity_request(msgspec.convert(body, ProvisioningRequestObject)).state == state


@pytest.mark.parametrize("notes", [{"capcard-sched.io/provisioning-failures": "9" * 40}, {}, None])
def test_annotations_of_any_form_are_read(notes: dict[str, str] | None) -> None:
    body = {"kind": "ProvisioningRequest", "metadata": {"name": f"x-{'9' * 99}", "annotations": notes}}
    found = capacity_request(msgspec.convert(body, ProvisioningRequestObject))
    assert (found.number, found.failures) == (0, 0)


@given(st.integers(0, 99), st.floats(0, 4000), st.sampled_from(["pending", "provisioned", "failed", "expired"]))
def test_a_failure_is_followed_by_a_request_after_one_to_thirty_minutes(
    failures: int, elapsed: float, state: str
) -> None:
    request = msgspec.convert({"namespace": "a", "name": "x", "digest": "d", "failures": failures, "state": state},
                              CapacityRequest)  # fmt: skip
    step = next_step(request, "d", elapsed)
    assert next_step(request, "other", elapsed) == next_step(None, "d", elapsed)
    if state == "failed":
        assert (step.action == "new") == (elapsed >= min(60 * 2**failures, 1800))
        assert step.failures == (failures + 1) * (step.action == "new")
    elif state == "expired":
        assert (step.action == "new") == (elapsed >= 60)
    else:
        assert step.action == "keep"


@pytest.mark.parametrize("ahead", [30.0, 10.0**9])
def test_a_failure_in_the_future_does_not_silence_a_gang(ahead: float) -> None:
    """A clock that is little ahead keeps the backoff; otherwise it starts with the request."""
    now = 10_000.0
    request = msgspec.convert({"namespace": "a", "name": "x", "digest": "d", "state": "failed", "since": now + ahead,
                               "created": now - 40}, CapacityRequest)  # fmt: skip
    assert next_step(request, "d", now).action == "wait"
    assert next_step(request, "d", now + 30).action == ("wait" if ahead == 30 else "new")
    assert next_step(request, "d", now + ahead + 90).action == "new"


def test_a_namespace_has_a_bound_of_pending_requests() -> None:
    h = _gang("")
    for number in range(MOST_PENDING_REQUESTS + 8):
        h.group(f"g{number:02}", namespace="many", queue="q", min_member=2)
        for index in range(2):
            h.pod(f"p{number}-{index}", namespace="many", group=f"g{number:02}", card="A", cards=2)
    h.group("other", namespace="few", queue="q", min_member=2)
    for index in range(2):
        h.pod(f"o{index}", namespace="few", group="other", card="A", cards=2)
    made = [one for _ in range(3) for one in _requests(h)]
    assert len([one for one in made if one.namespace == "many"]) == MOST_PENDING_REQUESTS
    assert [one.group for one in made if one.namespace == "few"] == ["other"]
    delayed = {one.group for one in made if one.namespace == "many"}
    last = next(f"g{number:02}" for number in range(MOST_PENDING_REQUESTS + 8) if f"g{number:02}" not in delayed)
    assert [code for code, _ in h.event_messages("PodGroup", last)].count("ProvisioningDelayed") == 1
    first = next(one for one in made if one.namespace == "many")
    body = {"kind": "ProvisioningRequest", "metadata": {
        "name": first.name, "namespace": first.namespace, "uid": "x", "annotations": dict(first.annotations),
        "ownerReferences": [{"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "name": first.group,
                             "uid": first.uid, "controller": True}]},
        "status": {"conditions": [{"type": "Provisioned", "status": "True"}]}}  # fmt: skip
    h.apply(ObjectChanged(msgspec.convert(body, ProvisioningRequestObject)))
    assert [one.namespace for one in _requests(h)] == ["many"], "a decision makes place for the next"
