"""Queues accept jobs of the namespaces they name; `root` and parents with a card quota accept none."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.model.queue import NamespaceRule
from capcard_sched.testing import Harness
from tests import objects

NAMESPACES = "capcard-sched.io/namespaces"
CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: gang
  - name: capacity-card
"""


@pytest.mark.parametrize(
    ("text", "accepted", "rejected"),
    [
        ("team-a", ["team-a"], ["team-b", "team-ab"]),
        ("team-a, ml-*", ["team-a", "ml-1"], ["ml", "other"]),
        ("*", ["team-a", "x"], []),
        ("team=a", ["labelled"], ["team-a"]),
        ("team in (a, b), tier!=test", ["labelled"], ["team-a"]),
        ("team notin (a)", ["team-a"], ["labelled"]),
        ("!team, tier!=x", ["team-a"], ["labelled"]),
        ("kubernetes.io/metadata.name=team-a", ["team-a"], ["labelled"]),
        ("", [], ["team-a"]),
        ("Team_A", [], ["Team_A", "team-a"]),
        ("team in (a", [], ["labelled"]),
        ("team-a,", [], ["team-a"]),
        ("=a", [], ["labelled"]),
    ],
)
def test_a_rule_accepts_names_globs_or_a_selector(text: str, accepted: list[str], rejected: list[str]) -> None:
    rule = NamespaceRule(text)
    labels = {"labelled": {"team": "a", "tier": "prod"}}
    assert [name for name in accepted if not rule.accepts(name, labels.get(name))] == []
    assert [name for name in rejected if rule.accepts(name, labels.get(name))] == []
    assert bool(rule.problem) == (not accepted)


def world(*, own: str | None = None, parent: str | None = None) -> Harness:
    h = Harness(CONF)
    h.gpu_node("n1")
    h.queue("root")
    h.queue("org", annotations={NAMESPACES: parent} if parent is not None else None)
    h.queue("q", parent="org", cards={"NVIDIA-H200": 8}, annotations={NAMESPACES: own} if own is not None else None)
    return h


def submit(h: Harness, namespace: str, queue: str = "q", **group: Any) -> None:
    h.group("g", namespace=namespace, queue=queue, phase=group.pop("phase", "Pending"), **group)
    h.pod("p", namespace=namespace, card="NVIDIA-H200", cards=1)


@pytest.mark.parametrize(
    ("own", "parent", "bound"),
    [
        (None, None, True),
        ("team-a", None, True),
        ("team-b", None, False),
        (None, "team-b", False),
        (None, "team-*", True),
        ("team-a", "team-b", False),
    ],
)
@pytest.mark.parametrize("phase", ["Pending", "Inqueue"])
def test_the_annotation_holds_at_enqueue_and_allocate_and_is_inherited(
    own: str | None, parent: str | None, bound: bool, phase: str
) -> None:
    h = world(own=own, parent=parent)
    submit(h, "team-a", phase=phase)
    h.settle()
    assert bool(h.binds) == bound
    if not bound:
        owner = "q" if own == "team-b" else "org"
        message = (
            "Queue <q> does not accept jobs of namespace <team-a> "
            f"(annotation capcard-sched.io/namespaces of Queue <{owner}>)"
        )
        assert ("QueueNamespaceDenied", message) in h.event_messages("PodGroup", "g")
        assert message in h.pod_message("p")


def test_labels_of_a_namespace_are_followed() -> None:
    h = world(own="team=a")
    submit(h, "ns")
    h.settle()
    assert h.binds == {}
    h.apply(objects.namespace("ns", {"team": "a"}))
    h.settle()
    assert h.binds == {"p": "n1"}


@pytest.mark.parametrize("phase", ["Pending", "Inqueue"])
def test_root_accepts_no_jobs(phase: str) -> None:
    h = world()
    submit(h, "team-a", "root", phase=phase)
    h.settle()
    assert h.binds == {}
    message = "Queue <root> accepts no jobs: it is the root of all queues"
    assert ("QueueAcceptsNoJobs", message) in h.event_messages("PodGroup", "g")


@pytest.mark.parametrize(("quota", "bound"), [({"NVIDIA-H200": 8}, False), (None, True)])
def test_a_parent_with_a_card_quota_accepts_no_jobs(quota: dict[str, int] | None, bound: bool) -> None:
    h = world()
    h.queue("org", cards=quota)
    h.group("g", queue="org")
    h.pod("p")
    h.settle()
    assert bool(h.binds) == bound


# --- default queue of a namespace -------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["", "default"])
def test_a_group_without_a_queue_gets_the_default_queue_of_its_namespace(named: str) -> None:
    h = world()
    h.queue("default")
    h.apply(objects.namespace("team-a", {}, "q"))
    submit(h, "team-a", named)
    h.group("other", namespace="team-b", queue=named)
    h.settle()
    assert h.binds == {"p": "n1"}
    assert h.job("g", namespace="team-a").queue == "q"
    assert h.job("other", namespace="team-b").queue == "default"


def test_a_named_queue_wins_over_the_default_queue() -> None:
    h = world()
    h.queue("default")
    h.apply(objects.namespace("team-a", {}, "default"))
    submit(h, "team-a")
    h.settle()
    assert h.job("g", namespace="team-a").queue == "q"


def test_a_group_that_names_a_queue_later_no_longer_follows_the_default_queue() -> None:
    h = world()
    h.queue("other")
    h.group("g", namespace="team-a", queue="")
    h.settle()
    h.group("g", namespace="team-a", queue="q")
    h.apply(objects.namespace("team-a", {}, "other"))
    h.settle()
    assert h.job("g", namespace="team-a").queue == "q"


def test_pending_groups_follow_a_changed_default_queue_and_bound_ones_stay() -> None:
    h = world()
    for name in ("default", "other"):
        h.queue(name, cards={"NVIDIA-H200": 8})
    submit(h, "team-a", "")
    h.settle()
    h.apply(objects.namespace("team-a", {}, "other"))
    h.group("late", namespace="team-a", queue="")
    h.settle()
    assert h.job("late", namespace="team-a").queue == "other"
    assert h.job("g", namespace="team-a").queue == "default"
    assert "QuotaEvasionIgnored" not in [event.reason for event in h.all_events]
    h.delete_pod("p", namespace="team-a")
    h.settle()
    assert h.job("g", namespace="team-a").queue == "other"
