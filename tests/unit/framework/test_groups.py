"""Jobs with subgroups: which of their pods start.

A case of `groups.yaml` has lines of text:

    nodes: a=4 b=8-3              cpus of each node, and those that others use
    tree: 's0: a b | t: s0'       HyperNodes of tier 1, then of tier 2; `tiers`: their names
    job: min=4 tasks=t:4 hard=2   minMember, minTaskMember, networkTopology
    policies: [w role=w by=id size=2 min=1 soft=1]   name, selector, keys, subGroupSize, minSubGroups, networkTopology
    pods: [2 role=w id=0 cpu=2 only=a at=b]          their number, labels, request (1 cpu), nodes, the node they run on
    bound: 4                      the number of pods on nodes when nothing changes any more
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from capcard_sched.testing import Harness

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}]
- plugins: [{name: predicates}, {name: nodeorder}, {name: network-topology-aware}]
"""
CASES = yaml.safe_load(Path(__file__).with_name("groups.yaml").read_text())
_OF_PODS = {"cpu", "only", "at"}
_OF_POLICIES = {"by", "size", "min", "hard", "soft"}


def pairs(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


def topology(words: dict[str, str]) -> dict[str, Any] | None:
    for mode in ("hard", "soft"):
        if mode in words:
            tier = words[mode]
            return {
                "mode": mode,
                **({"highestTierAllowed": int(tier)} if tier.isdecimal() else {"highestTierName": tier}),
            }
    return None


def policy_of(text: str) -> dict[str, Any]:
    name, _, rest = text.partition(" ")
    words = pairs(rest)
    found: dict[str, Any] = {
        "name": name,
        "labelSelector": {"matchLabels": {key: word for key, word in words.items() if key not in _OF_POLICIES}},
        "matchLabelKeys": words["by"].split(",") if "by" in words else [],
        "subGroupSize": int(words["size"]),
        "minSubGroups": int(words.get("min", 0)),
    }
    return found if topology(words) is None else {**found, "networkTopology": topology(words)}


def build(case: dict[str, Any], conf: str = CONF) -> Harness:
    h = Harness(conf, run=True)
    h.queue("q")
    for node, amount in pairs(case["nodes"]).items():
        cpu, _, used = amount.partition("-")
        h.node(node, cpu=cpu, labels={"name": node})
        if used:
            h.pod(f"other-{node}", group=None, node=node, requests={"cpu": used})
    tiers = case.get("tiers", "").split()
    for tier, line in enumerate(case["tree"].split(" | ") if "tree" in case else (), 1):
        for entry in line.split("; "):
            name, members = entry.split(": ")
            under: dict[str, Any] = {"nodes" if tier == 1 else "hyper_nodes": members.split()}
            h.hyper_node(name, tier, **under, **({"tier_name": tiers[tier - 1]} if tiers else {}))
    job = pairs(case["job"])
    tasks = (
        {role: int(count) for role, _, count in (entry.partition(":") for entry in job.get("tasks", "").split(","))}
        if "tasks" in job
        else None
    )
    h.group(
        "g", min_member=int(job["min"]), min_task_member=tasks, topology=topology(job),
        policies=[policy_of(text) for text in case["policies"]],
    )  # fmt: skip
    number = 0
    for text in case["pods"]:
        count, _, rest = text.partition(" ")
        words = pairs(rest)
        for _ in range(int(count)):
            add_pod(h, f"p-{number}", words)
            number += 1
    return h


def add_pod(h: Harness, name: str, words: dict[str, str]) -> None:
    more: dict[str, Any] = {}
    if "only" in words:
        terms = [{"key": "name", "operator": "In", "values": words["only"].split(",")}]
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        more["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    h.pod(
        name, labels={key: word for key, word in words.items() if key not in _OF_PODS}, role=words.get("task", ""),
        requests={} if words.get("cpu") == "0" else {"cpu": words.get("cpu", "1")},
        node=words.get("at"), **more,
    )  # fmt: skip


def assert_is_whole(h: Harness, before: Counter[tuple[str, ...]]) -> None:
    """No subgroup has some of its pods on nodes, and fewer than its size, unless it had them before."""
    job = h.job("g")
    assert job.groups is not None
    placed = Counter(job.groups.of(task) for task in job.tasks.values() if task.node is not None)
    for group, count in placed.items():
        assert group is None or count >= job.groups.size_of(group) or count <= before[group.values], group


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"].replace(" ", "-"))
def test_a_job_with_subgroups_starts_whole(case: dict[str, Any]) -> None:
    h = build(case)
    h.step()
    job = h.job("g")
    assert job.groups is not None
    running = [
        task for task in job.tasks.values() if task.node is not None and f"at={task.node.name}" in str(case["pods"])
    ]
    before = Counter(group.values for task in running if (group := job.groups.of(task)) is not None)
    for _ in range(6):
        assert not h.step().report.errors
        assert_is_whole(h, before)
    assert sum(task.node is not None for task in h.job("g").tasks.values()) == case["bound"]
