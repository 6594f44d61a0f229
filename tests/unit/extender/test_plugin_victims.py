"""Victims that the extender keeps, and placements that it receives."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.testing import Harness
from tests.unit.extender.webhook import Raw, Webhook, cluster, conf

pytestmark = pytest.mark.processes

BROKEN = Raw(b"no", 500)


# --- victims ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer, expected",
    [
        ({"status": 0, "victims": [{"UID": "default-v0-uid"}]}, None),
        ({"status": 1, "victims": [{"UID": "default-v1-uid", "Name": "v1"}]}, ["v1"]),
        ({"status": -1, "victims": [{"UID": "default-v1-uid"}]}, ["v1"]),
        ({"status": 1, "victims": None}, []),
        ({"status": 1}, []),
        ({"status": 1, "victims": [{"UID": "a stranger"}]}, []),
        ({"status": 1, "victims": [{"UID": "default-v1-uid"}, {"UID": "default-v0-uid"}]}, ["v0", "v1"]),
    ],
)
def test_victims_that_the_webhook_allows(webhook: Webhook, answer: Any, expected: list[str] | None) -> None:
    webhook.replies = {"preemptable": answer, "reclaimable": answer}
    h = cluster(conf(webhook.url, "preemptable", "reclaimable"))
    for number in range(2):
        h.pod(f"v{number}", node="n0")
    h.session()
    candidates = [h.task("v0"), h.task("v1")]
    for verb in ("preemptable", "reclaimable"):
        found = getattr(h.plugin("extender"), verb)(h.task("p"), candidates)
        assert (None if found is None else [task.name for task in found]) == expected
        (received,) = webhook.requests(verb)
        assert received["evictor"]["Name"] == "p"
        assert [task["Name"] for task in received["evictees"]] == ["v0", "v1"]


def test_preemption_takes_the_pod_that_the_webhook_names(webhook: Webhook) -> None:
    def choose(received: Any) -> Any:
        return {"status": 1, "victims": [task for task in received["evictees"] if task["Name"] == "low-1"]}

    webhook.replies = {"preemptable": choose, "predicate": {}}
    h = Harness(conf(webhook.url, "preemptable", "predicate", actions="allocate, preempt", others="priority"), run=True)
    h.priority_class("high", 1000)
    h.queue("q")
    for number in range(2):
        h.node(f"n{number}", cpu="4")
        h.group(f"low-{number}")
        h.pod(f"low-{number}", group=f"low-{number}", node=f"n{number}", requests={"cpu": "4"}, priority=1)
    h.group("g", priority_class="high")
    h.pod("p", requests={"cpu": "4"}, priority=1000)
    evicted = [h.state.tasks[uid].name for uid in h.step().report.evicted]
    assert evicted == ["low-1"]


# --- events -----------------------------------------------------------------------------------------------------------


def test_a_placement_that_the_webhook_does_not_agree_with_is_undone(webhook: Webhook) -> None:
    webhook.replies = {"allocate": {"errorMessage": "no licence"}, "deallocate": {}}
    h = cluster(conf(webhook.url, "allocate", "deallocate"))
    result = h.step()
    assert h.binds == {}
    assert [(error.plugin, error.hook) for error in result.report.errors] == [("extender", "on_allocate")]
    assert "no licence" in result.report.errors[0].error
    assert webhook.verbs() == ["allocate", "deallocate"]  # the sent placement is undone
    assert h.task("p").node is None


@pytest.mark.parametrize(
    ("reply", "ignorable", "placed"),
    [(BROKEN, True, True), (BROKEN, False, False), ({"errorMessage": "no"}, True, False)],
)
def test_a_failed_event_counts_by_ignorable_and_a_message_counts_always(
    webhook: Webhook, reply: Any, ignorable: bool, placed: bool
) -> None:
    webhook.replies = {"allocate": reply}
    h = cluster(conf(webhook.url, "allocate", ignorable=ignorable))
    h.step()
    assert bool(h.binds) == placed


def test_deallocate_is_sent_for_the_pods_of_an_undone_gang(webhook: Webhook) -> None:
    webhook.replies = {"allocate": {}, "deallocate": {}}
    h = Harness(conf(webhook.url, "allocate", "deallocate"))
    h.node("n0", cpu="2")
    h.queue("q")
    h.group("g", min_member=3)
    for number in range(3):
        h.pod(f"p-x-{number}")
    h.step()
    assert h.binds == {}
    sent = {
        verb: sorted(received["task"]["Name"] for received in webhook.requests(verb))
        for verb in ("allocate", "deallocate")
    }
    assert sent["allocate"] == sent["deallocate"]
    assert sent["allocate"] == ["p-x-0", "p-x-1"]
