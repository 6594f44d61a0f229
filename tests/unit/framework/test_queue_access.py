"""Rules of namespaces; tests/vectors/framework-queue-access.yaml has the queues that use them."""

from __future__ import annotations

import pytest

from capcard_sched.model.queue import NamespaceRule


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
