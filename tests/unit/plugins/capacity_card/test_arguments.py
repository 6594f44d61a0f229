"""Arguments of the plugin."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.framework.quota.limits import scaled
from capcard_sched.plugins.capacity_card.arguments import CapacityCardArguments
from capcard_sched.testing import registry

CONF = 'actions: "allocate"\ntiers:\n- plugins:\n  - name: capacity-card\n    arguments: '


def parse(arguments: str) -> tuple[CapacityCardArguments, list[str]]:
    result = parse_conf(CONF + arguments, registry=registry())
    assert result.conf is not None, result.problems
    (option,) = result.conf.tiers[0]
    assert isinstance(option.arguments, CapacityCardArguments)
    return option.arguments, [problem.message for problem in result.problems]


def test_everything_may_be_set() -> None:
    written: dict[str, Any] = {
        "cardUnlimitedCpuMemory": True,
        "nodeOrderWeight": 2,
        "overCommitFactor": 1.5,
        "podOwnerReferenceToServiceType": {"ReplicaSet": "inference", "Job": "training"},
        "cardMinimum": "allPods",
        "multiCardJobMode": "single",
        "cardNodeFilter": False,
        "unnamedCards": "deny",
        "strictServiceType": True,
        "reclaimRequiresHigherPriority": True,
        "reclaimElastic": False,
        "gangEviction": "policy",
        "publishCardUsage": True,
    }
    found, problems = parse(json.dumps(written))
    assert problems == []
    assert found == CapacityCardArguments(
        card_unlimited_cpu_memory=True,
        node_order_weight=2.0,
        over_commit_factor=1.5,
        pod_owner_reference_to_service_type={"ReplicaSet": "inference", "Job": "training"},
        card_minimum="allPods",
        multi_card_job_mode="single",
        card_node_filter=False,
        unnamed_cards="deny",
        strict_service_type=True,
        reclaim_requires_higher_priority=True,
        reclaim_elastic=False,
        gang_eviction="policy",
        publish_card_usage=True,
    )


def test_defaults_are_those_of_volcano() -> None:
    assert parse("{}") == (CapacityCardArguments(), [])
    default = CapacityCardArguments()
    assert (default.node_order_weight, default.over_commit_factor, default.card_minimum) == (1.0, 1.0, "minMember")
    assert (default.strict_service_type, default.reclaim_requires_higher_priority) == (False, False)
    assert (default.reclaim_elastic, default.gang_eviction) == (True, "whole")
    assert (default.multi_card_job_mode, default.unnamed_cards, default.card_node_filter) == ("sum", "ignore", True)


@pytest.mark.parametrize(
    "argument",
    [
        'cardUnlimitedCpuMemory: "true"', "cardUnlimitedCpuMemory: 1", "cardUnlimitedCpuMemory: [true]",
        "nodeOrderWeight: 0", "nodeOrderWeight: -1", "nodeOrderWeight: .nan", "nodeOrderWeight: .inf",
        "nodeOrderWeight: true", 'nodeOrderWeight: "2"', "nodeOrderWeight: {}",
        "overCommitFactor: 0.9", "overCommitFactor: x", "overCommitFactor: .inf", "overCommitFactor: false",
        "podOwnerReferenceToServiceType: inference", "podOwnerReferenceToServiceType: [Job]",
        "cardMinimum: some", "cardMinimum: 3", "multiCardJobMode: both", "cardNodeFilter: 0",
        "unnamedCards: [deny]", "strictServiceType: yep", "reclaimRequiresHigherPriority: 1", "publishCardUsage: 1.0",
        "reclaimElastic: no thanks", "gangEviction: half",
    ],
)  # fmt: skip
def test_a_wrong_value_is_a_warning_and_the_default_stays(argument: str) -> None:
    found, problems = parse("{" + argument + "}")
    assert found == CapacityCardArguments()
    assert len(problems) == 1


def test_wrong_service_types_are_dropped_one_by_one() -> None:
    found, problems = parse("{podOwnerReferenceToServiceType: {Job: training, DaemonSet: batch, Foo: 3}}")
    assert found.pod_owner_reference_to_service_type == {"Job": "training"}
    assert len(problems) == 2


def test_an_unknown_key_names_the_nearest_known_one() -> None:
    result = parse_conf(CONF + "{overCommitfactor: 2}", registry=registry())
    (problem,) = result.problems
    assert "overCommitFactor" in problem.message + problem.hint


@pytest.mark.parametrize(
    ("factor", "limit", "promised"),
    [(1.0, 7, 7), (2.0, 8000, 16000), (1.15, 100, 115), (1.1, 9, 9), (1.0, 2**60 + 1, 2**60 + 1)],
)
def test_the_factor_is_exact_and_rounds_down(factor: float, limit: int, promised: int) -> None:
    assert scaled(limit, factor) == promised
