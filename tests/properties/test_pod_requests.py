"""Requests of random pods: one rule, wherever the product counts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.controllers.quota_usage import quota_usage
from capcard_sched.framework.explain.queue_uses import queue_uses
from capcard_sched.insight.estimates.job_runs import shape_of
from capcard_sched.model import annotations as keys
from capcard_sched.model import deltas
from capcard_sched.model.json_pods import valid_pod_amounts
from capcard_sched.model.objects import PodObject
from capcard_sched.model.pod_requests import AmountsReader, pod_amounts
from capcard_sched.model.quantity import format_amount
from capcard_sched.testing import Harness
from tests.controlplane.build import needed
from tests.oracles import pod_requests as oracle

_SCALARS = {oracle.GPU: 1000}


def _in_base_units(amounts: oracle.Amounts) -> dict[str, int]:
    return {name: amount * _SCALARS.get(name, 1) for name, amount in amounts.items()}


def _nonzero(amounts: Any) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}


def _decoded(pod: oracle.Json) -> PodObject:
    return msgspec.convert(pod, PodObject)


@given(pod=oracle.pods())
def test_the_amounts_of_a_pod_follow_the_rule(pod: oracle.Json) -> None:
    stored, decoded = oracle.defaulted(pod), _decoded(pod)
    expected = _in_base_units(oracle.requests_of(stored)), _in_base_units(oracle.limits_of(stored))
    found = pod_amounts(decoded.spec, decoded.status)
    assert (found.requests, found.limits) == expected
    assert oracle.scored_requests_of(stored) == {
        oracle.CPU: found.nonzero_cpu_milli,
        oracle.MEMORY: found.nonzero_memory_bytes,
    }
    again = _decoded(stored)
    assert pod_amounts(again.spec, again.status) == found
    assert valid_pod_amounts(pod) == found


@given(pods=st.lists(oracle.pods(), max_size=4), order=st.lists(st.integers(0, 3), max_size=8))
def test_pods_read_one_after_another_have_their_own_amounts(pods: list[oracle.Json], order: list[int]) -> None:
    reader = AmountsReader()
    for number in order:
        for pod in pods[number : number + 1]:
            decoded = _decoded(pod)
            assert reader.read(decoded) == pod_amounts(decoded.spec, decoded.status)


@pytest.fixture(scope="session")
def kubernetes() -> Path:
    return needed(oracle.program)


@settings(deadline=None)
@given(pods=st.lists(oracle.pods(), min_size=1, max_size=30))
def test_the_rule_is_that_of_kubernetes(kubernetes: Path, pods: list[oracle.Json]) -> None:
    stored = [oracle.defaulted(pod) for pod in pods]
    for pod, found in zip(stored, oracle.by_kubernetes(kubernetes, stored), strict=True):
        assert oracle.requests_of(pod) == found["requests"]
        assert oracle.limits_of(pod) == found["limits"]
        assert oracle.scored_requests_of(pod) == {name: found["scored"].get(name, 0) for name in ("cpu", "memory")}


CONF = """
actions: "allocate, backfill"
tiers:
- plugins: [{name: gang}, {name: predicates}, {name: %s}]
"""
QUOTAS = ("capacity", "proportion", "capacity-card")


def _object(pod: oracle.Json, name: str, node: str = "") -> oracle.Json:
    meta = {"name": name, "namespace": "default", "uid": f"{name}-uid", "annotations": {keys.GROUP_NAME: "g"}}
    spec = {"schedulerName": "capcard-sched", **pod["spec"], **({"nodeName": node} if node else {})}
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running", **pod.get("status", {})}}


@pytest.mark.parametrize("plugin", QUOTAS)
@given(pod=oracle.pods())
def test_node_queue_metrics_and_tables_count_a_bound_pod_by_the_rule(plugin: str, pod: oracle.Json) -> None:
    expected = _nonzero(_in_base_units(oracle.requests_of(oracle.defaulted(pod))))
    h = Harness(CONF % plugin)
    h.node("n", cpu="1000", memory="1Ti", resources={oracle.GPU: 100000, oracle.PAGES: "1Ti"})
    h.queue("q")
    h.group("g", queue="q")
    bound = _object(pod, "p", "n")
    h.apply(deltas.ObjectChanged(_decoded(bound)))
    h.step()
    state = h.state
    assert _nonzero(state.columns.amounts(state.nodes.used[0])) == {**expected, "pods": 1}
    assert _nonzero(state.columns.amounts(state.queues["q"].allocated)) == {**expected, "pods": 1}
    samples = {
        (sample.name, sample.labels.get("resource", "")): int(sample.value)
        for sample in h.plugin(plugin).method("metrics")()
        if sample.name.startswith("queue_allocated_") and sample.labels["queue_name"] == "q"
    }
    assert samples["queue_allocated_milli_cpu", ""] == expected.get(oracle.CPU, 0)
    assert samples["queue_allocated_memory_bytes", ""] == expected.get(oracle.MEMORY, 0)
    row = next(row for row in queue_uses(h.core.snapshot()) if row.name == "q")
    for name in (oracle.CPU, oracle.MEMORY):
        assert row.resources.get(name, (None, 0))[1] == expected.get(name, 0)


@given(pod=oracle.pods(resized=False), short=st.sampled_from(oracle.NAMES))
def test_a_pod_fits_a_node_with_exactly_its_requests_and_none_with_less(pod: oracle.Json, short: str) -> None:
    expected = oracle.requests_of(oracle.defaulted(pod))
    for less in (False, True):
        amounts = {**dict.fromkeys(oracle.NAMES, 0), **expected}
        if less and not amounts[short]:
            continue
        amounts[short] -= less
        h = Harness(CONF % "proportion")
        offered = {name: str(amounts[name]) for name in (oracle.GPU, oracle.PAGES)}
        h.node("n", cpu=f"{amounts[oracle.CPU]}m", memory=str(amounts[oracle.MEMORY]), resources=offered)
        h.node("big", cpu="1000", memory="1Ti", resources={oracle.GPU: 100000, oracle.PAGES: "1Ti"}, unschedulable=True)
        h.queue("q")
        h.group("g", queue="q", phase="Inqueue")
        pending = {**_object(pod, "p"), "status": {"phase": "Pending"}}
        h.apply(deltas.ObjectChanged(_decoded(pending)))
        h.settle()
        assert h.binds.get("p", "") == ("" if less else "n")


@given(pod=oracle.pods(resized=False), count=st.integers(1, 5))
def test_minimum_resources_and_the_shape_of_a_job_follow_the_rule(pod: oracle.Json, count: int) -> None:
    stored = oracle.defaulted(pod)
    expected = {
        f"requests.{name}": amount * count for name, amount in _in_base_units(oracle.requests_of(stored)).items()
    }
    native = {name: amount for name, amount in oracle.limits_of(stored).items() if name in (oracle.CPU, oracle.MEMORY)}
    limits = {f"limits.{name}": amount * count for name, amount in native.items()}
    usage = quota_usage([(pod, count)])
    shown = {key: format_amount(key.partition(".")[2], amount) for key, amount in (expected | limits).items()}
    assert {
        key: usage[key] for key in usage if "." in key.partition("/")[0] and key.startswith(("req", "lim"))
    } == shown
    for name in oracle.requests_of(stored):
        assert usage[name] == usage[f"requests.{name}"]
    cards = oracle.requests_of(stored).get(oracle.GPU, 0)
    assert shape_of([(pod, count)], "q", "default", "j").per_pod == cards
