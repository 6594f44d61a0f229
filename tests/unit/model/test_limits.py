"""Amounts and facts of quotas and budgets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.limits import (
    PodDisruptionBudgetObject,
    ResourceQuotaObject,
    budget_facts,
    format_quota_amount,
    quota_amount,
    quota_amounts,
    quota_facts,
)

NAMES = st.sampled_from(
    [
        "cpu", "requests.cpu", "limits.cpu", "memory", "limits.memory", "pods", "count/pods", "requests.storage",
        "requests.nvidia.com/gpu", "requests.ephemeral-storage", "hugepages-2Mi", "services.loadbalancers",
        "gold.storageclass.storage.k8s.io/requests.storage",
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "raw", "amount"),
    [
        ("cpu", "1500m", 1500),
        ("requests.cpu", 2, 2000),
        ("memory", "1Gi", 2**30),
        ("limits.memory", "1Gi", 2**30),
        ("requests.storage", "1Ki", 1024),
        ("gold.storageclass.storage.k8s.io/requests.storage", "1Ki", 1024),
        ("requests.ephemeral-storage", "1Ki", 1024),
        ("requests.nvidia.com/gpu", "8", 8000),
        ("pods", "3", 3000),
        ("count/deployments.apps", "3", 3000),
    ],
)
def test_units_follow_the_name(name: str, raw: str | int, amount: int) -> None:
    assert quota_amount(name, raw) == amount


@given(name=NAMES, amount=st.integers(0, 2**50))
def test_a_printed_amount_parses_to_the_same_value(name: str, amount: int) -> None:
    assert quota_amount(name, format_quota_amount(name, amount)) == amount


def test_equal_lists_share_a_mapping_and_unreadable_amounts_are_nothing() -> None:
    assert quota_amounts({"cpu": "1", "pods": "?"}) == {"cpu": 1000, "pods": 0}
    assert quota_amounts({"cpu": "1"}) is quota_amounts({"cpu": "1"})


@pytest.mark.parametrize(
    ("status", "hard", "used"),
    [
        ({}, {"cpu": 5000}, {"cpu": 0}),
        ({"hard": {"cpu": "4"}, "used": {"cpu": "1", "pods": "7"}}, {"cpu": 4000}, {"cpu": 1000}),
        ({"hard": {}}, {}, {}),
    ],
    ids=["not looked at yet", "as enforced, of what is limited", "limits nothing"],
)
def test_a_quota(status: dict[str, Any], hard: dict[str, int], used: dict[str, int]) -> None:
    obj = {"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hard": {"cpu": "5"}}, "status": status}
    quota = quota_facts(msgspec.convert(obj, ResourceQuotaObject))
    assert (quota.namespace, quota.name, quota.hard, quota.used) == ("ns", "q", hard, used)


def test_a_budget() -> None:
    text = b"""{"metadata": {"name": "b", "namespace": "ns"},
        "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}},
        "status": {"disruptionsAllowed": -1, "disruptedPods": {"p": "2026-01-01T00:00:00Z"}, "currentHealthy": 4}}"""
    budget = budget_facts(msgspec.json.decode(text, type=PodDisruptionBudgetObject))
    assert budget.selector is not None
    assert budget.selector.match_labels == {"a": "b"}
    assert (budget.namespace, budget.name, budget.allowed, budget.disrupted) == ("ns", "b", 0, frozenset({"p"}))
