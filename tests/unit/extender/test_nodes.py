"""Nodes of the requests to the webhook, their number, and their order."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.testing import Harness
from tests.unit.extender.test_plugin_responses import profile_of
from tests.unit.extender.webhook import Raw, Webhook, cluster, conf

REFUSED = {"status": "no", "code": 2}


def sent_nodes(webhook: Webhook) -> list[str]:
    """Names of nodes in the order of their requests, those of one batch in its order."""
    found = []
    for verb, request in webhook.received:
        if verb == "predicate":
            found.append(request["node"]["Name"])
        elif verb == "batch":
            found += [node["Name"] for node in request["nodes"]]
    return found


def only(*names: str) -> Any:
    """A predicate, single or in batches, that lets only these nodes pass."""

    def answer(received: Any) -> Any:
        if "nodes" in received:
            return {"results": {node["Name"]: {} if node["Name"] in names else REFUSED for node in received["nodes"]}}
        return {} if received["node"]["Name"] in names else REFUSED

    return answer


def test_the_best_nodes_are_sent_first_and_no_more_than_needed(webhook: Webhook) -> None:
    h = cluster(conf(webhook.url, "predicate", "prioritize", predicateNodes=2), nodes=40)
    webhook.replies["prioritize"] = {"nodeScore": {"n7": 3, "n31": 2, "n5": 1}}
    h.step()
    assert h.binds == {"p": "n7"}
    assert sorted(sent_nodes(webhook)) == ["n31", "n7"]


def test_when_the_best_nodes_fail_twice_as_many_are_sent(webhook: Webhook) -> None:
    webhook.replies = {"batch": only("n29")}
    h = cluster(conf(webhook.url, "batch", predicateNodes=4), nodes=40)
    h.step()
    assert h.binds == {"p": "n29"}
    assert [len(request["nodes"]) for request in webhook.requests("batch")] == [4, 8, 16]
    assert len(set(sent_nodes(webhook))) == 28


def test_nodes_that_other_plugins_filter_out_are_not_sent(webhook: Webhook) -> None:
    h = Harness(conf(webhook.url, "predicate", others="gang predicates"))
    h.node("closed", unschedulable=True)
    h.node("small", cpu="1")
    h.node("tainted", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
    h.node("good")
    h.queue("q")
    h.group("g")
    h.pod("p", requests={"cpu": "2"})
    h.step()
    assert h.binds == {"p": "good"}
    assert sent_nodes(webhook) == ["good"]


def test_a_pod_that_every_node_rejects_costs_one_request_per_node(webhook: Webhook) -> None:
    webhook.replies = {"predicate": only()}
    h = cluster(conf(webhook.url, "predicate", predicateNodes=2), nodes=7)
    h.step()
    assert "0/7 nodes are unavailable: 7 no." in h.pod_message("p")
    assert sorted(sent_nodes(webhook)) == [f"n{number}" for number in range(7)]


def test_every_pod_of_a_gang_is_sent_under_its_own_name(webhook: Webhook) -> None:
    h = Harness(conf(webhook.url, "predicate", predicateNodes=1, others="gang priority"))
    h.node("n0")
    h.node("n1")
    h.queue("q")
    h.group("g", min_member=3)
    for number in range(3):
        h.pod(f"p-x-{number}")
    h.step()
    assert sorted(h.binds) == ["p-x-0", "p-x-1", "p-x-2"]
    names = [request["task"]["Name"] for request in webhook.requests("predicate")]
    assert names == ["p-x-0", "p-x-1", "p-x-2"]
    used = [request["node"]["Used"]["MilliCPU"] for request in webhook.requests("predicate")]
    assert used == [0, 1000, 2000]  # the node as the session would leave it


@pytest.mark.parametrize("switch", ["enableBestNode: false", "enablePredicate: false"])
def test_switches_turn_off_the_verbs_they_name(webhook: Webhook, switch: str) -> None:
    webhook.replies = {"predicate": only("n2")}
    h = cluster(conf(webhook.url, "predicate", switches=f", {switch}"))
    h.step()
    if switch == "enableBestNode: false":  # without the last word all nodes must be known before
        assert h.binds == {"p": "n2"}
        assert sorted(sent_nodes(webhook)) == ["n0", "n1", "n2"]
    else:
        assert h.binds == {"p": "n0"}
        assert webhook.received == []


def test_releasing_capacity_is_pipelined_only_where_the_webhook_allows_it(webhook: Webhook) -> None:
    webhook.replies = {"predicate": only("n1")}
    h = Harness(conf(webhook.url, "predicate"), run=True)
    h.queue("q")
    for number in range(2):
        h.node(f"n{number}", cpu="2")
        h.pod(f"old-{number}", group=None, node=f"n{number}", requests={"cpu": "2"})
        h.terminate(f"old-{number}")
    h.group("g")
    h.pod("p", requests={"cpu": "2"})
    h.step()
    outcome = h.last_session.results.outcomes[h.task("p").uid]
    assert (outcome.kind, outcome.node) == ("pipelined", "n1")


def test_explain_makes_no_request_and_repeats_the_recorded_reasons(webhook: Webhook) -> None:
    webhook.replies = {"predicate": only()}
    h = cluster(conf(webhook.url, "predicate"))
    h.step()
    before = len(webhook.received)
    (pending,) = diagnose_job(h.core.snapshot(), h.job("g")).pending
    assert [(found.reason, found.nodes, found.plugin) for found in pending.nodes] == [("no", 3, "extender")]
    assert len(webhook.received) == before


def test_a_node_that_is_scored_more_than_once_is_sent_once(webhook: Webhook) -> None:
    webhook.replies = {"prioritize": {"nodeScore": {"n0": 1, "n1": 2}}}
    h = cluster(conf(webhook.url, "prioritize"), nodes=2)
    session = h.session()
    rows = session.rows(np.array([1, 1, 0, 1]))
    assert h.plugin("extender").score_by_webhook(profile_of(h, session), rows).tolist() == [2, 2, 1, 2]
    assert [node["Name"] for node in webhook.requests("prioritize")[0]["nodes"]] == ["n1", "n0"]


@pytest.mark.parametrize("judged", [True, False])
def test_only_the_best_by_other_scores_are_scored_if_configured(webhook: Webhook, judged: bool) -> None:
    """Binpack ranks n2, n1, n0 by what is used; the webhook sees the first two."""
    webhook.replies = {"predicate": only("n0", "n1", "n2"), "prioritize": {"nodeScore": {"n0": 1000, "n1": 50}}}
    verbs = ("prioritize", "predicate") if judged else ("prioritize",)
    h = Harness(conf(webhook.url, *verbs, prioritizeNodes=2, others="gang binpack"))
    h.queue("q")
    for number in range(3):
        h.node(f"n{number}", cpu="10")
        h.pod(f"used-{number}", group=None, node=f"n{number}", requests={"cpu": str(number + 1)})
    h.group("g")
    h.pod("p")
    h.step()
    assert h.binds == {"p": "n1"}
    (received,) = webhook.requests("prioritize")
    assert [node["Name"] for node in received["nodes"]] == ["n1", "n2"]


@pytest.mark.parametrize("switch", ["enableBestNode: false", "enableNodeOrder: false"])
def test_without_the_last_word_all_nodes_are_scored_and_without_node_order_none(webhook: Webhook, switch: str) -> None:
    webhook.replies = {"prioritize": {"nodeScore": {"n2": 1}}}
    h = cluster(conf(webhook.url, "prioritize", prioritizeNodes=1, switches=f", {switch}"))
    h.step()
    scored = [[node["Name"] for node in request["nodes"]] for request in webhook.requests("prioritize")]
    assert (scored, h.binds) == (([["n0", "n1", "n2"]], {"p": "n2"}) if "Best" in switch else ([], {"p": "n0"}))


def test_the_batch_size_does_not_change_the_chosen_node() -> None:
    """Neither do batches, a switch that takes the last word away, or answers that hold."""
    with Webhook() as webhook:

        @given(
            scores=st.lists(st.integers(0, 3), min_size=1, max_size=12),
            data=st.data(),
            width=st.integers(1, 13),
            verb=st.sampled_from(["predicate", "batch"]),
            switches=st.sampled_from(["", ", enableBestNode: false"]),
            held=st.sampled_from(["0s", "1h"]),
            scored=st.sampled_from([0, 12]),
        )
        @settings(max_examples=settings().max_examples // 2)
        def chosen(
            scores: list[int], data: st.DataObject, width: int, verb: str, switches: str, held: str, scored: int
        ) -> None:
            names = [f"n{number}" for number in range(len(scores))]
            allowed = [name for name in names if data.draw(st.booleans())]
            worth = dict(zip(names, scores, strict=True))
            webhook.replies = {verb: only(*allowed), "prioritize": {"nodeScore": worth}}
            text = conf(
                webhook.url, verb, "prioritize", predicateNodes=width, prioritizeNodes=scored, cachePeriod=held,
                switches=switches,
            )  # fmt: skip
            h = cluster(text, nodes=len(names))
            h.step()
            expected = min(allowed, key=lambda name: (-worth[name], name), default=None)
            assert h.binds == ({} if expected is None else {"p": expected})
            h.plugin("extender")._client.close()

        chosen()


# --- an open breaker --------------------------------------------------------------------------------------------------


def down(webhook: Webhook, ignorable: bool = False, nodes: int = 3, **more: Any) -> Harness:
    """A cluster whose webhook fails once and is left alone then."""
    webhook.replies = {"predicate": Raw(b"", 500)}
    options = {"ignorable": ignorable, "breakerFailures": 1, "breakerPeriod": "1h", "predicateNodes": 1, **more}
    return cluster(conf(webhook.url, "predicate", **options), nodes=nodes)


def test_without_a_required_webhook_no_pod_is_placed_and_every_pod_shows_the_reason(webhook: Webhook) -> None:
    h = down(webhook)
    h.group("g2")
    h.pod("p2", group="g2")
    h.step()
    assert h.binds == {}
    assert len(webhook.received) == 1
    unasked = "the circuit breaker is open after repeated failures"
    assert f"1 failed predicate with extender at URL {webhook.url}/predicate, code 500, 2 {unasked}." in h.pod_message(
        "p"
    )
    assert f"0/3 nodes are unavailable: 3 {unasked}." in h.pod_message("p2")


def test_without_a_webhook_that_can_be_ignored_pods_go_where_they_may(webhook: Webhook) -> None:
    h = down(webhook, ignorable=True)
    h.group("g2")
    h.pod("p2", group="g2")
    h.step()
    assert set(h.binds) == {"p", "p2"}
    assert len(webhook.received) == 1


def test_many_pods_cost_little_while_the_breaker_is_open(webhook: Webhook) -> None:
    h = down(webhook, nodes=1000)
    for number in range(200):
        h.group(f"g{number}")
        h.pod(f"p{number}", group=f"g{number}")
    plugin = h.plugin("extender")
    h.step()
    assert len(webhook.received) == 1
    assert len(plugin._objects._nodes) == 1  # no request was written without a reader


@pytest.mark.parametrize("ignorable", [True, False])
def test_cached_responses_count_while_the_breaker_is_open(webhook: Webhook, ignorable: bool) -> None:
    webhook.replies = {"predicate": only("n1")}
    held: dict[str, Any] = {"cachePeriod": "1h", "ignorable": ignorable}
    h = cluster(conf(webhook.url, "predicate", breakerFailures=1, breakerPeriod="1h", predicateNodes=1, **held))
    h.step()
    assert h.binds == {"p": "n1"}
    webhook.replies = {"predicate": Raw(b"", 500)}
    h.group("other")
    h.pod("breaks", group="other", requests={"cpu": "3"})
    h.step()
    before = len(webhook.received)
    h.group("again")
    h.pod("again", group="again")
    h.step()
    assert len(webhook.received) == before
    assert h.binds["again"] == "n1"


def test_a_session_past_its_wait_budget_makes_no_more_requests(webhook: Webhook) -> None:
    webhook.replies = {"predicate": Raw(b'{"status": "no", "code": 2}', delay=0.3)}
    h = cluster(conf(webhook.url, "predicate", predicateNodes=1, connections=1, sessionTimeout="500ms"), nodes=50)
    result = h.step()
    assert h.binds == {}
    assert len(webhook.received) == 2
    assert "1 no, 49 the session's budget of 0.5 s is used up." in h.pod_message("p")
    assert result.next_wakeup is not None


# --- another session --------------------------------------------------------------------------------------------------


def test_a_pod_that_the_webhook_refused_is_tried_again_although_nothing_changed(webhook: Webhook) -> None:
    webhook.replies = {"predicate": only()}
    h = cluster(conf(webhook.url, "predicate", retryPeriod="20s"))
    result = h.step()
    assert result.next_wakeup == h.now + 20
    webhook.received.clear()
    while not (idle := h.step()).idle:
        pass  # statuses settle
    assert idle.next_wakeup is not None
    webhook.received.clear()
    h.step(idle.next_wakeup - 1)
    assert webhook.received == []
    webhook.replies = {"predicate": {}}
    h.step(idle.next_wakeup)
    assert h.binds == {"p": "n0"}


def test_a_webhook_that_blocks_no_job_is_no_reason_for_a_session(webhook: Webhook) -> None:
    h = cluster(conf(webhook.url, "predicate"))
    h.settle()
    webhook.received.clear()
    result = h.step(h.now + 3600)
    assert (result.idle, result.next_wakeup, webhook.received) == (True, None, [])


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("held", "requests"), [("0s", 4), ("1h", 1)])
def test_responses_are_cached_only_if_configured(webhook: Webhook, held: str, requests: int) -> None:
    webhook.replies["prioritize"] = {"nodeScore": {"n1": 1}}
    h = cluster(conf(webhook.url, "predicate", "prioritize", predicateNodes=1, cachePeriod=held))
    for number in range(3):
        h.pod(f"p-x-{number}")
    h.settle()
    assert set(h.binds.values()) == {"n1"}
    assert (len(webhook.requests("predicate")), len(webhook.requests("prioritize"))) == (requests, requests)


def test_cached_responses_expire_with_the_node_facts_their_period_and_the_template(webhook: Webhook) -> None:
    h = Harness(conf(webhook.url, "predicate", cachePeriod="1m"))
    h.node("n0")
    h.queue("q")

    def place(name: str, **pod: Any) -> int:
        """Number of requests to the webhook for one more pod."""
        webhook.received.clear()
        h.group(name)
        h.pod(name, group=name, **pod)
        h.step()
        assert h.binds[name] == "n0"
        return len(webhook.received)

    assert place("a") == 1
    assert place("b") == 0
    assert place("other-template", requests={"cpu": "2"}) == 1
    h.node("n0", labels={"new": "label"})
    assert place("c") == 1
    assert place("d") == 0
    h.now += 60
    assert place("e") == 1


@pytest.mark.parametrize(("reply", "held"), [(Raw(b"", 500), False), (only(), True)], ids=["a failure", "a refusal"])
def test_refusals_are_held_and_failures_are_not(webhook: Webhook, reply: Any, held: bool) -> None:
    webhook.replies = {"predicate": reply}
    h = cluster(conf(webhook.url, "predicate", cachePeriod="1h"))
    h.step()
    webhook.received.clear()
    webhook.replies = {"predicate": {}}
    session = h.session()
    signature = profile_of(h, session)
    row = session.engine.choose(signature, session.engine.candidates(signature, future=False))
    assert (row == -1, not webhook.received) == (held, held)
