"""Pods with very many affinity terms or spread constraints: they stay pending, and others bind in bounded memory."""

from __future__ import annotations

import multiprocessing
import resource
from typing import TYPE_CHECKING, Any

import pytest

from capcard_sched.model.term_limits import TermLimits
from capcard_sched.testing import Harness

if TYPE_CHECKING:
    from collections.abc import Callable

_CONF = """
actions: "enqueue, allocate, backfill"
tiers: [{plugins: [{name: gang}]}, {plugins: [{name: predicates}, {name: nodeorder}]}]
"""
_MIB = 1024 * 1024
_MOST_GROWTH = 600 * _MIB
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def term(value: str, key: str = "kubernetes.io/hostname", **more: Any) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": value}}, "topologyKey": key, **more}


def preferred(terms: list[dict[str, Any]]) -> dict[str, Any]:
    return {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": each} for each in terms]}}


def constraint(value: str) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": value}},
    }


def cluster(nodes: int) -> Harness:
    h = Harness(_CONF)
    for i in range(nodes):
        h.node(f"n{i}", labels={"kubernetes.io/hostname": f"n{i}"})
    for queue in ("hostile", "healthy"):
        h.queue(queue)
    return h


def reason_of(h: Harness, pod: str) -> str:
    (event,) = [each for each in h.all_events if each.object.name == pod and each.reason == "FailedScheduling"]
    return event.message


# --- the limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param({"affinity": preferred([term(str(i)) for i in range(64)])}, "", id="64 preferred terms"),
        pytest.param(
            {"affinity": preferred([term(str(i)) for i in range(65)])},
            "pod has 65 affinity terms, the limit is 64",
            id="65 preferred terms",
        ),
        pytest.param(
            {
                "affinity": {
                    "nodeAffinity": {
                        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]}
                    },
                    "podAffinity": {REQUIRED: [term("a")] * 32},
                    "podAntiAffinity": {REQUIRED: [term("a")] * 32},
                }
            },
            "pod has 65 affinity terms, the limit is 64",
            id="all kinds of terms together",
        ),
        pytest.param(
            {"affinity": preferred([{"labelSelector": {"matchExpressions": [
                {"key": f"k{i}", "operator": "NotIn", "values": ["a", "b"]} for i in range(513)
            ]}, "topologyKey": "zone"}])},
            "pod has 1026 label requirements in affinity terms and spread constraints, the limit is 1024",
            id="one term with very many requirements",
        ),
        pytest.param({"topologySpreadConstraints": [constraint(str(i)) for i in range(16)]}, "", id="16 constraints"),
        pytest.param(
            {"topologySpreadConstraints": [constraint(str(i)) for i in range(17)]},
            "pod has 17 topology spread constraints, the limit is 16",
            id="17 constraints",
        ),
    ],
)  # fmt: skip
def test_a_pod_beyond_a_limit_is_unschedulable_with_its_reason(spec: dict[str, Any], reason: str) -> None:
    h = cluster(2)
    h.group("g", queue="hostile")
    h.pod("p", group="g", requests={"cpu": "1"}, **spec)
    h.step()
    assert ("p" in h.binds) == (not reason)
    if reason:
        assert reason in reason_of(h, "p")


def test_the_limits_are_settings_of_the_core() -> None:
    h = Harness(_CONF, term_limits=TermLimits(affinity_terms=2, spread_constraints=1))
    h.node("n")
    h.queue("q")
    h.group("g")
    h.pod("two", group="g", requests={"cpu": "1"}, affinity=preferred([term("a"), term("b")]))
    h.pod("three", group="g", requests={"cpu": "1"}, affinity=preferred([term("a"), term("b"), term("c")]))
    h.pod("spread", group="g", requests={"cpu": "1"}, topologySpreadConstraints=[constraint("a"), constraint("b")])
    h.step()
    assert set(h.binds) == {"two"}


def test_a_running_pod_beyond_the_limit_keeps_its_first_anti_affinity_terms() -> None:
    h = cluster(2)
    h.group("g", queue="hostile")
    h.pod("running", group="g", node="n0", affinity={"podAntiAffinity": {REQUIRED: [term(str(i)) for i in range(70)]}})
    for i in (0, 63, 69):
        h.pod(
            f"p{i}",
            group="g",
            requests={"cpu": "1"},
            labels={"app": str(i)},
            nodeSelector={"kubernetes.io/hostname": "n0"},
        )
    h.step()
    assert set(h.binds) == {"p69"}


# --- the attack -------------------------------------------------------------------------------------------------------


def growth(attack: Callable[[Harness], None], nodes: int, send: Any) -> None:
    """Runs in a process of its own: the growth of its memory in bytes, and the healthy pods that were bound."""
    h = cluster(nodes)
    h.step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    attack(h)
    h.group("healthy", queue="healthy", namespace="team", min_member=4)
    for i in range(4):
        h.pod(f"healthy-{i}", group="healthy", namespace="team", labels={"app": "0"}, requests={"cpu": "1"})
    h.step()
    send.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before, sorted(h.binds)))


def huge_pods(h: Harness) -> None:
    """30 pods of 400 kB."""
    for i in range(30):
        h.group(f"g{i}", queue="hostile")
        terms = [term(f"{i}-{j}-{'x' * 40}") for j in range(2000)]
        h.pod(f"p{i}", group=f"g{i}", requests={"cpu": "1"}, labels={"app": f"{i}"}, affinity=preferred(terms))


def many_pods_within_the_limit(h: Harness) -> None:
    """500 pods of 64 different terms, each of which selects running pods on 500 nodes."""
    for i in range(500):
        h.pod(f"r{i}", group=None, node=f"n{i}", labels={"app": "0"})
    for i in range(500):
        h.group(f"g{i}", queue="hostile")
        terms = [
            {
                "labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["0", f"{i}-{j}"]}]},
                "topologyKey": "kubernetes.io/hostname",
            }
            for j in range(64)
        ]
        h.pod(f"p{i}", group=f"g{i}", requests={"cpu": "100"}, labels={"app": f"{i}"}, affinity=preferred(terms))


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("attack", [huge_pods, many_pods_within_the_limit])
def test_a_healthy_job_binds_in_bounded_memory_beside_pods_with_very_many_terms(
    attack: Callable[[Harness], None],
) -> None:
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=growth, args=(attack, 1000, send))
    process.start()
    send.close()
    grown, bound = receive.recv()
    process.join()
    assert [name for name in bound if name.startswith("healthy")] == [f"healthy-{i}" for i in range(4)]
    assert grown < _MOST_GROWTH, f"{grown // _MIB} MiB"
