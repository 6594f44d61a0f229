"""`namespaceSelector` of pod (anti-)affinity terms: the labels that namespaces have now decide."""

from __future__ import annotations

from typing import Any

import pytest

from capcard_sched.framework.toolkit.pod_selectors import PodSelector
from capcard_sched.model.deltas import ObjectGone
from capcard_sched.model.objects import LabelSelector
from capcard_sched.testing import Harness
from tests import objects

CONF = """
actions: "allocate"
tiers:
- plugins: [{name: gang}, {name: predicates}]
"""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TEAM_A = {"namespaceSelector": {"matchLabels": {"team": "a"}}}


def term(**more: Any) -> dict[str, Any]:
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}, **more}


def away(**more: Any) -> dict[str, Any]:
    return {"podAntiAffinity": {REQUIRED: [term(**more)]}}


def cluster(**labels: dict[str, str]) -> Harness:
    """One node with a web pod of namespace `other` on it; `p` of namespace `default` wants to go there."""
    h = Harness(CONF)
    h.queue("q")
    h.group("g")
    h.node("n")
    for name, each in labels.items():
        h.apply(objects.namespace(name, each))
    h.pod("web", group=None, node="n", namespace="other", labels={"app": "web"})
    return h


@pytest.mark.parametrize(
    ("labels", "selector", "meant"),
    [
        pytest.param({"team": "a"}, {"matchLabels": {"team": "a"}}, True, id="the required label"),
        pytest.param({"team": "b"}, {"matchLabels": {"team": "a"}}, False, id="another value"),
        pytest.param(
            {"team": "b"},
            {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]},
            True,
            id="expressions",
        ),
        pytest.param(None, {"matchLabels": {"team": "a"}}, False, id="not seen yet: no labels"),
        pytest.param(
            None, {"matchLabels": {"kubernetes.io/metadata.name": "other"}}, True, id="not seen yet: its name is known"
        ),
        pytest.param(
            {"kubernetes.io/metadata.name": "forged"},
            {"matchLabels": {"kubernetes.io/metadata.name": "other"}},
            True,
            id="the name label is the name",
        ),
    ],
)
def test_labels_decide(labels: dict[str, str] | None, selector: dict[str, Any], meant: bool) -> None:
    h = cluster(**({} if labels is None else {"other": labels}))
    h.pod("p", affinity=away(namespaceSelector=selector))
    h.step()
    assert h.binds == ({} if meant else {"p": "n"})


def test_a_pod_that_waits_is_tried_when_a_label_lets_it_in() -> None:
    h = cluster(other={"team": "a"})
    h.pod("p", affinity=away(**TEAM_A))
    h.settle()
    assert h.binds == {}
    h.apply(objects.namespace("other", {"team": "b"}))
    h.step()
    assert h.binds == {"p": "n"}


def test_a_deleted_namespace_has_no_labels() -> None:
    h = cluster(other={"team": "a"})
    h.pod("p", affinity=away(**TEAM_A))
    h.settle()
    h.apply(ObjectGone("Namespace", "", "other"))
    h.step()
    assert h.binds == {"p": "n"}


def test_a_term_of_an_existing_pod_selects_incoming_pods_by_the_labels_of_their_namespace() -> None:
    h = cluster(default={"team": "a"})
    h.pod("guard", group=None, node="n", namespace="other", affinity=away(**TEAM_A))
    h.pod("p", labels={"app": "web"})
    h.settle()
    assert h.binds == {}
    h.apply(objects.namespace("default", {}))
    h.step()
    assert h.binds == {"p": "n"}


def test_several_changes_between_two_sessions_count_as_one() -> None:
    h = cluster(other={"team": "b"})
    h.pod("p", affinity={"podAffinity": {REQUIRED: [term(**TEAM_A)]}})
    h.settle()
    for labels in ({"team": "a"}, {"team": "c"}, {"team": "a", "more": "1"}):
        h.apply(objects.namespace("other", labels))
    h.step()
    assert h.binds == {"p": "n"}


def test_a_change_that_no_selector_looks_at_costs_no_session() -> None:
    h = cluster(other={"team": "a"})
    h.pod("p", affinity=away(**TEAM_A))
    h.settle()
    h.apply(objects.namespace("other", {"team": "a", "purpose": "test"}), objects.namespace("third", {"team": "b"}))
    assert h.step().idle
    h.apply(objects.namespace("third", {"team": "a"}))
    assert not h.step().idle


def test_only_counts_that_a_change_affects_are_computed_again() -> None:
    h = cluster(other={"team": "a"})
    h.pod("p", affinity=away(**TEAM_A))
    h.pod("p2", affinity=away(namespaceSelector={"matchLabels": {"tier": "x"}}))
    h.settle()
    counts = h.plugin("predicates")._rules.counters._pods.values()
    by_label = {count.selectors[0].namespace_selector.match_expressions[0].key: count for count in counts}
    assert [count.sum for count in by_label.values()] == [1, 0]

    def loaded() -> set[str]:
        return {label for label, count in by_label.items() if count._sum is not None}

    h.apply(objects.namespace("other", {"team": "a", "purpose": "x"}))
    h.session()
    assert loaded() == {"team", "tier"}
    h.apply(objects.namespace("other", {"purpose": "x"}))
    h.session()
    assert loaded() == {"tier"}
    assert [count.sum for count in by_label.values()] == [0, 0]


def test_a_missing_selector_selects_no_pod_and_an_empty_one_every_pod() -> None:
    assert not PodSelector(None, None).selects("default", {"app": "web"}, {})
    assert PodSelector(LabelSelector(), None).selects("default", {"app": "web"}, {})
