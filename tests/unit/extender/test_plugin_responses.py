"""Meaning of responses, verb by verb, and of a missing response."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from capcard_sched.framework.api.dispatch import HookFailed
from capcard_sched.framework.api.node_view import Diagnosis, PodSignature
from capcard_sched.framework.session.session import Session
from capcard_sched.model.refusal import Code, Refusal
from capcard_sched.model.status import Vote
from capcard_sched.testing import Harness, hooks_of
from capcard_sched_extender.client import url_of
from capcard_sched_extender.nodes import ScoringFailed
from tests.unit.extender.webhook import Raw, Webhook, cluster, conf

pytestmark = pytest.mark.processes

BROKEN = Raw(b"no", 500)


def judged(h: Harness, session: Session, name: str = "p") -> dict[str, tuple[int, str]]:
    """Code and reasons per node, as the plugin gives them when every node has to be sent."""
    queue, task = session.queues["q"], h.task(name)
    signature = session.engine.signature(queue, task)
    found = {}
    for row, node in enumerate(session.nodes.nodes):
        verdict = Diagnosis(1)
        h.plugin("extender").filter_by_webhook(signature, session.rows(np.array([row])), verdict)
        found[node.name] = int(verdict.codes[0]), ", ".join(verdict.reasons)
    return found


def profile_of(h: Harness, session: Session, name: str = "p") -> PodSignature:
    return session.engine.signature(session.queues["q"], h.task(name))


# --- predicate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer, code, reason",
    [
        pytest.param({"status": "", "code": 3}, Code.SUCCESS, "", id="16.1"),
        pytest.param({"status": "no", "code": 0}, Code.ERROR, "no", id="16.2"),
        pytest.param({"status": "no", "code": 2}, Code.UNSCHEDULABLE, "no", id="16.3"),
        pytest.param({"status": "no", "code": 1}, Code.ERROR, "no", id="error"),
        pytest.param({"status": "no", "code": 3}, Code.UNRESOLVABLE, "no", id="unresolvable"),
        pytest.param({"status": "no", "code": 4}, Code.WAIT, "no", id="wait"),
        pytest.param({"status": "no", "code": 5}, Code.SKIP, "no", id="skip"),
        pytest.param({"status": "no"}, Code.ERROR, "no", id="no code"),
        pytest.param({}, Code.SUCCESS, "", id="empty object"),
        pytest.param({"status": "", "code": 0, "more": [1]}, Code.SUCCESS, "", id="unknown field"),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
def test_a_predicate_passes_when_its_status_is_empty(
    webhook: Webhook, batch: bool, answer: dict[str, Any], code: Code, reason: str
) -> None:
    webhook.replies = {
        "predicate": answer,
        "batch": lambda received: {"results": {node["Name"]: answer for node in received["nodes"]}},
    }
    h = cluster(conf(webhook.url, "batch" if batch else "predicate"), nodes=1)
    assert judged(h, h.session()) == {"n0": (code, reason)}
    assert webhook.verbs() == ["batch" if batch else "predicate"]


def test_the_message_of_a_pending_pod_counts_the_responses(webhook: Webhook) -> None:
    webhook.replies = {
        "predicate": lambda received: {"status": "hot" if received["node"]["Name"] == "n0" else "old", "code": 3}
    }
    h = cluster(conf(webhook.url, "predicate"))
    h.step()
    assert h.binds == {}
    assert "0/3 nodes are unavailable: 1 hot, 2 old." in h.pod_message("p")


def test_a_batch_response_without_a_node_rejects_the_node(webhook: Webhook) -> None:
    webhook.replies = {"batch": {"results": {"n1": {}}}}
    h = cluster(conf(webhook.url, "batch"))
    h.step()
    assert h.binds == {"p": "n1"}
    h = cluster(conf(webhook.url, "batch"), nodes=1)
    h.step()
    assert "the response to batch has nothing about the node in results" in h.pod_message("p")


# --- switches and managed resources -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix, url",
    [
        pytest.param("http://h:80//", "http://h:80/predicate", id="16.5"),
        pytest.param("https://h/v1/", "https://h/v1/predicate", id="path"),
    ],
)
def test_16_5_slashes_at_the_end_of_the_prefix_do_not_matter(prefix: str, url: str) -> None:
    assert url_of(prefix, "predicate") == url


def test_16_5_a_prefix_with_slashes_reaches_the_webhook(webhook: Webhook) -> None:
    webhook.replies = {"v1/predicate": {}}
    h = cluster(conf(f"{webhook.url}/v1//", "predicate"))
    h.step()
    assert webhook.verbs() == ["v1/predicate"] * 3
    assert h.binds == {"p": "n0"}


def test_requests_have_the_field_names_of_the_extender_protocol(webhook: Webhook) -> None:
    webhook.replies = {"predicate": {}, "allocate": {}}
    h = cluster(
        conf(webhook.url, "predicate", "allocate"), nodes=1, labels={"app": "x"}, role="worker",
        requests={"cpu": "2", "memory": "1Gi"},
    )  # fmt: skip
    h.pod("other", node="n0", requests={"cpu": "1"})
    h.step()
    (received,) = webhook.requests("predicate")
    amounts = {"MilliCPU": 2000, "Memory": 1 << 30, "ScalarResources": {"pods": 1}}
    created = received["task"].pop("CreationTimestamp")
    assert created > 0
    assert received["task"] == {
        "UID": "default-p-uid", "Job": "default/g", "Name": "p", "Namespace": "default", "TaskRole": "worker",
        "Resreq": amounts, "InitResreq": amounts, "NodeName": "", "Status": "Pending", "Priority": 1,
        "Preemptable": True, "BestEffort": False, "Labels": {"app": "x"}, "Annotations": {}, "NodeSelector": {},
    }  # fmt: skip
    node = received["node"]
    assert node["Name"] == "n0"
    assert node["Idle"] == {"MilliCPU": 63000, "Memory": 256 << 30, "ScalarResources": {"pods": 109}}
    assert node["Used"] == {"MilliCPU": 1000, "Memory": 0, "ScalarResources": {"pods": 1}}
    assert node["Tasks"]["default-other-uid"]["Name"] == "other"
    (sent,) = webhook.requests("allocate")
    assert (sent["task"]["Name"], sent["task"]["NodeName"], sent["task"]["Status"]) == ("p", "n0", "Allocated")


# --- managed resources ------------------------------------------------------------------------------------------------

#: (requests, limits), and whether the webhook that manages x/y is called.
MANAGED = [
    ({"cpu": "1"}, {}, False),
    ({"cpu": "1", "x/y": "2"}, {"x/y": "2"}, True),
    ({"cpu": "1"}, {"x/y": "2"}, True),
    ({"cpu": "1", "x/z": "2"}, {"x/z": "2"}, False),
]
EVERY_NODE_VERB = ("predicate", "prioritize", "preemptable", "reclaimable", "allocate", "deallocate")


@pytest.mark.parametrize("requests, limits, received", MANAGED)
@pytest.mark.parametrize("starting", [False, True])
def test_16_4_pods_without_a_managed_resource_are_none_of_its_business(
    webhook: Webhook, starting: bool, requests: dict[str, str], limits: dict[str, str], received: bool
) -> None:
    webhook.replies = {
        "predicate": {}, "prioritize": {"nodeScore": {}}, "preemptable": {"status": 1, "victims": []},
        "reclaimable": {"status": 1, "victims": []}, "allocate": {}, "deallocate": {},
    }  # fmt: skip
    text = conf(webhook.url, *EVERY_NODE_VERB, managedResources=["a/b", "x/y"])
    h = Harness(text)
    h.node("n0", resources={"x/y": 4, "x/z": 4})
    h.queue("q")
    h.group("g")
    container = {"name": "first", "resources": {"requests": requests, "limits": limits}}
    if starting:
        h.pod("p", initContainers=[container])
    else:
        h.pod("p", requests=requests, limits=limits)
    session = h.session()
    plugin, task = h.plugin("extender"), h.task("p")
    assert plugin.preemptable(task, [task]) == ([] if received else None)
    assert plugin.reclaimable(task, [task]) == ([] if received else None)
    signature = profile_of(h, session)
    hooks = hooks_of(plugin, signature)
    assert (hooks.comparing_scores(session.all_rows()) is not None) == received
    assert hooks.reads_other_nodes == received
    webhook.received.clear()
    h.core.resync()
    h.step()
    assert h.binds == {"p": "n0"}
    assert sorted(webhook.verbs()) == (["allocate", "predicate", "prioritize"] if received else [])


def test_job_and_queue_verbs_ignore_managed_resources(webhook: Webhook) -> None:
    webhook.replies = {"ready": {"status": True}, "enqueueable": {"status": 1}, "overused": {}, "enqueued": {}}
    text = conf(
        webhook.url, "ready", "enqueueable", "overused", "enqueued", actions="enqueue, allocate",
        managedResources=["x/y"],
    )  # fmt: skip
    h = cluster(text)
    h.group("g", phase="Pending")
    h.settle()
    assert {"ready", "enqueueable", "overused", "enqueued"} == set(webhook.verbs())
    assert h.binds == {"p": "n0"}


# --- no answer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb, ignorable, expected",
    [
        ("enqueueable", True, Vote.PERMIT),  # 16.6
        ("enqueueable", False, "rejected"),
        ("overused", True, False),
        ("overused", False, True),
        ("ready", True, True),
        ("ready", False, False),
        ("preemptable", True, []),
        ("preemptable", False, []),
        ("reclaimable", True, []),
        ("reclaimable", False, []),
        ("predicate", True, {"n0": (0, "")}),
        ("predicate", False, "error"),
        ("batch", True, {"n0": (0, "")}),
        ("batch", False, "error"),
        ("prioritize", True, None),
        ("prioritize", False, "fails"),
    ],
)
def test_16_6_a_failed_call_counts_by_ignorable(webhook: Webhook, verb: str, ignorable: bool, expected: Any) -> None:
    webhook.replies = {verb: BROKEN}
    h = cluster(conf(webhook.url, verb, ignorable=ignorable), nodes=1)
    session = h.session()
    plugin, task, job, queue = h.plugin("extender"), h.task("p"), h.job("g"), session.queues["q"]
    message = f"failed {verb} with extender at URL {webhook.url}/{verb}, code 500"
    match verb:
        case "enqueueable":
            found = plugin.job_enqueueable(job)
            if isinstance(found, Refusal):
                assert found.message == f"rejected by the extender: {message}"
                found = "rejected"
        case "overused":
            found = plugin.overused(queue)
        case "ready":
            found = plugin.job_ready(job)
        case "preemptable" | "reclaimable":
            found = getattr(plugin, verb)(task, [task])
        case "predicate" | "batch":
            found = judged(h, session)
            if found == {"n0": (Code.ERROR, message)}:
                found = "error"
        case _:
            with nullcontext() if ignorable else pytest.raises(ScoringFailed, match=re.escape(message)):
                found = "fails"
                found = plugin.score_by_webhook(profile_of(h, session), session.all_rows())
    assert found == expected


@pytest.mark.parametrize("ignorable", [True, False])
def test_a_session_that_the_webhook_does_not_open_goes_on_without_it_or_as_if_nothing_had_happened(
    webhook: Webhook, ignorable: bool
) -> None:
    everything = ("open", "close", "predicate", "prioritize", "ready", "overused", "allocate")
    webhook.replies = dict.fromkeys(everything, BROKEN)
    h = cluster(conf(webhook.url, *everything, ignorable=ignorable, breakerFailures=0))
    result = h.step()
    assert h.binds == {"p": "n0"}
    assert result.report.errors == []
    # Not ignorable: no callback takes part at all (as in Volcano), but the close verb is still called.
    assert (set(webhook.verbs()) == {"open", "close"}) == (not ignorable)


def test_the_opening_call_gets_the_whole_cluster(webhook: Webhook) -> None:
    webhook.replies = {"open": Raw(b"whatever"), "close": Raw(b"")}
    h = cluster(conf(webhook.url, "open", "close"))
    h.node("lent", labels={"volcano.sh/revocable-zone": "z"})
    h.step()
    ((_, opened), (_, closed)) = webhook.received
    assert set(opened) == {"Jobs", "Nodes", "Queues", "NamespaceInfo", "RevocableNodes", "NodeList"}
    assert (list(opened["Jobs"]), list(opened["Queues"])) == (["default/g"], ["q"])
    assert list(opened["Nodes"]) == ["lent", "n0", "n1", "n2"]
    assert (list(opened["RevocableNodes"]), opened["NodeList"]) == (["lent"], [])
    assert opened["Jobs"]["default/g"]["Tasks"]["default-p-uid"]["Name"] == "p"
    assert closed == {}


# --- jobs and queues --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status, admitted", [(1, True), (0, True), (-1, False)])
def test_the_vote_on_admission(webhook: Webhook, status: int, admitted: bool) -> None:
    webhook.replies = {"enqueueable": {"status": status, "message": "not today"}, "enqueued": {}}
    h = cluster(conf(webhook.url, "enqueueable", "enqueued", actions="enqueue"))
    h.group("g", phase="Pending")
    h.step()
    assert h.job("g").phase.value == ("Inqueue" if admitted else "Pending")
    events = h.event_messages("PodGroup", "g")
    assert (("Unschedulable", "rejected by the extender: not today") in events) == (not admitted)
    assert len(webhook.requests("enqueued")) == int(admitted)
    (received,) = webhook.requests("enqueueable")
    assert (received["job"]["UID"], received["job"]["Queue"], received["job"]["MinAvailable"]) == ("default/g", "q", 1)


def test_an_overused_queue_gets_nothing(webhook: Webhook) -> None:
    webhook.replies = {"overused": lambda received: {"overused": received["queue"]["Name"] == "q"}}
    h = cluster(conf(webhook.url, "overused"))
    h.queue("free")
    h.group("g2", queue="free")
    h.pod("p2", group="g2")
    h.step()
    assert list(h.binds) == ["p2"]


# --- scores -----------------------------------------------------------------------------------------------------------


def test_scores_are_added_to_those_of_others(webhook: Webhook) -> None:
    webhook.replies = {"prioritize": {"nodeScore": {"n1": 0.5, "n2": 7, "a stranger": 99}}}
    h = cluster(conf(webhook.url, "prioritize"))
    h.step()
    assert h.binds == {"p": "n2"}
    (received,) = webhook.requests("prioritize")
    assert [node["Name"] for node in received["nodes"]] == ["n0", "n1", "n2"]


@pytest.mark.parametrize("ignorable", [True, False])
@pytest.mark.parametrize(
    "answer, message",
    [
        ({"nodeScore": {"n1": 1}, "errorMessage": "broken"}, "broken"),
        ({"nodeScore": None}, "nodeScore: expected a map"),
        ({}, "nodeScore: expected a map"),
    ],
)
def test_scores_need_a_map_and_no_message(webhook: Webhook, answer: Any, message: str, ignorable: bool) -> None:
    webhook.replies = {"prioritize": answer}
    h = cluster(conf(webhook.url, "prioritize", ignorable=ignorable))
    session = h.session()
    signature = profile_of(h, session)
    with pytest.raises(HookFailed, match=message):
        session.engine.choose(signature, session.engine.candidates(signature, future=False))
