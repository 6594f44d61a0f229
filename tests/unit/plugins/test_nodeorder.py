"""The nodeorder plugin score by score, with worked examples."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from capcard_sched.framework.api.node_view import NodeView, PodSignature
from capcard_sched.testing import Harness, hooks_of

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: gang
  - name: predicates
  - name: nodeorder
    arguments: {{{arguments}}}
"""
OFF = {
    "leastrequested.weight": 0,
    "mostrequested.weight": 0,
    "balancedresource.weight": 0,
    "nodeaffinity.weight": 0,
    "imagelocality.weight": 0,
    "podaffinity.weight": 0,
    "tainttoleration.weight": 0,
    "podtopologyspread.weight": 0,
}
MIB = 1024 * 1024
WEB = {"matchLabels": {"app": "web"}}


def cluster(**weights: int) -> Harness:
    """Only the scores named (`least=1` for `leastrequested.weight: 1`)."""
    spelled = {
        "least": "leastrequested",
        "most": "mostrequested",
        "balanced": "balancedresource",
        "node_affinity": "nodeaffinity",
        "image": "imagelocality",
        "pod_affinity": "podaffinity",
        "taint": "tainttoleration",
        "spread": "podtopologyspread",
    }
    return harness(OFF | {f"{spelled[name]}.weight": weight for name, weight in weights.items()})


def harness(arguments: dict[str, int], *, scoring: str = "volcano") -> Harness:
    given: dict[str, int | str] = {"nodeorder.scoring": scoring, **arguments}
    h = Harness(CONF.format(arguments=", ".join(f"{key}: {value}" for key, value in given.items())))
    h.queue("q")
    h.group("g")
    return h


def signature(h: Harness, pod: str) -> PodSignature:
    session = h.last_session
    return session.engine.signature(session.queues["q"], h.task(pod))


def scores(h: Harness, hook: str, pod: str = "p", nodes: str | None = None) -> list[float] | None:
    """The scores of one hook for all nodes in order of name, or for those named."""
    session = h.session()
    names = session.nodes.names
    rows = np.array([names.index(name) for name in (nodes or " ".join(names)).split()], dtype=np.intp)
    plugin, pod_signature, view = h.plugin("nodeorder"), signature(h, pod), NodeView(session.nodes, rows)
    if hook == "compare":
        answer = hooks_of(plugin, pod_signature).comparing_scores(view)
    else:
        answer = getattr(plugin, hook)(pod_signature, view)
    if answer is None:
        return None
    assert answer.dtype == np.float64
    found: list[float] = answer.tolist()
    return found


# --- utilisation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu", "memory", "least", "most"),
    [
        pytest.param("3", "4Gi", 50, 50, id="8.1 and 8.3"),
        pytest.param("5", "4Gi", 37, 62, id="8.2: more than there is"),
        pytest.param(None, None, 97, 1, id="8.5: nothing requested counts as 100m and 200Mi"),
        pytest.param("4", "16Gi", 0, 100, id="exactly full"),
    ],
)
def test_least_and_most_requested(cpu: str | None, memory: str | None, least: int, most: int) -> None:
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    for weights, expected in (
        ({"least": 1}, least),
        ({"most": 1}, most),
        ({"least": 3}, 3 * least),
        ({"most": -2}, -2 * most),
        ({"least": 2, "most": 5}, 2 * least + 5 * most),
    ):
        h = cluster(**weights)
        h.node("n", cpu="4", memory="16Gi")
        h.pod("p", requests=requests)
        assert scores(h, "score_utilization") == [expected]


@pytest.mark.parametrize(("cpu", "memory", "expected"), [("0", "16Gi", 75), ("4", "0", 25), ("0", "0", 0)])
def test_a_node_without_cpu_or_memory_is_scored_by_the_other(cpu: str, memory: str, expected: int) -> None:
    h = cluster(least=1)
    h.node("n", cpu=cpu, memory=memory)
    h.node("whole", cpu="4", memory="16Gi")
    h.pod("p", requests={"cpu": "3", "memory": "4Gi"})
    assert scores(h, "score_utilization") == [expected, 50]


@pytest.mark.parametrize(
    ("requests", "gpus", "expected"),
    [
        pytest.param({"cpu": "3", "memory": "4Gi"}, 0, 75, id="8.4: .75 and .25"),
        pytest.param({"cpu": "2", "memory": "8Gi"}, 0, 100, id="8.4: .5 and .5"),
        pytest.param({"cpu": "3", "memory": "4Gi", "nvidia.com/gpu": "4"}, 4, 68, id="8.4: .75, .25 and 1.0"),
        pytest.param({"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "1"}, 4, 94, id="8.4: .25, .125 and .25"),
        pytest.param({"cpu": "3", "memory": "4Gi", "nvidia.com/gpu": "4"}, 0, 75, id="no gpu on the node"),
        pytest.param({"cpu": "3", "memory": "4Gi"}, 4, 75, id="no gpu requested"),
        pytest.param({}, 4, None, id="nothing requested"),
        pytest.param({"example.com/other": "1"}, 4, None, id="none of the three requested"),
        pytest.param({"cpu": "8", "memory": "16Gi"}, 0, 100, id="more than there is counts as full"),
    ],
)
def test_balanced(requests: dict[str, str], gpus: int, expected: int | None) -> None:
    h = cluster(balanced=1)
    h.node("n", cpu="4", memory="16Gi", resources={"nvidia.com/gpu": gpus} if gpus else {})
    h.node("gpu", cpu="4", memory="16Gi", resources={"nvidia.com/gpu": 400})
    h.pod("p", requests=requests)
    assert scores(h, "score_utilization", nodes="n") == (None if expected is None else [expected])


@pytest.mark.parametrize(
    ("cpu", "memory", "gpus", "expected"),
    [("0", "16Gi", 4, 62), ("4", "0", 4, 87), ("4", "16Gi", 0, 75), ("0", "0", 4, 100), ("0", "16Gi", 0, 100)],
)
def test_balanced_allocation_scores_by_allocatable(cpu: str, memory: str, gpus: int, expected: int) -> None:
    h = cluster(balanced=1)
    h.node("n", cpu=cpu, memory=memory, resources={"nvidia.com/gpu": gpus})
    h.node("whole", cpu="4", memory="16Gi", resources={"nvidia.com/gpu": 4})
    h.pod("p", requests={"cpu": "3", "memory": "4Gi", "nvidia.com/gpu": "4"})
    found = scores(h, "score_utilization")
    assert found is not None
    assert found[1] == 68
    # Fractions .75 cpu, .25 memory, 1.0 gpu, less what is missing: |a - b| / 2 of two, 0 of one.
    assert found[0] == expected


def test_planned_pods_are_seen() -> None:
    h = cluster(least=1, balanced=1)
    h.node("n", cpu="4", memory="16Gi")
    h.pod("p", requests={"cpu": "1", "memory": "1Gi"})
    session = h.session()
    table, pod_signature = session.nodes, signature(h, "p")
    ahead, rows = np.arange(3)[:, None], np.zeros(3, dtype=np.intp)
    nonzero = np.array([[pod_signature.cls.nonzero_cpu_milli, pod_signature.cls.nonzero_memory_bytes]])
    answer = h.plugin("nodeorder").score_utilization(
        pod_signature,
        NodeView(
            table,
            rows,
            used=table.used[rows] + ahead * pod_signature.cls.request,
            nonzero_used=table.nonzero_used[rows] + ahead * nonzero,
        ),
    )
    # least (75+93)/2, (50+87)/2, (25+81)/2; balanced 100 - |.25-.0625|/2 ...
    assert answer.tolist() == [84 + 90, 68 + 81, 53 + 71]


# --- node affinity and images ---------------------------------------------------------------------------------------


def preferring(*terms: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    return {
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": weight, "preference": preference} for weight, preference in terms
                ]
            }
        }
    }


@pytest.mark.parametrize("scale", [1, 20])
def test_kube_scheduler_normalizes_preferred_node_affinity_over_the_candidates(scale: int) -> None:
    h = harness(OFF | {"nodeaffinity.weight": 2}, scoring="kube-scheduler")
    h.node("a", labels={"disk": "ssd", "zone": "z"})
    h.node("b", labels={"disk": "ssd"})
    h.node("c")
    ssd, zone = ({"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in ("disk", "zone"))
    terms = [(3 * scale, ssd), (scale, zone)]
    h.pod("p", **preferring(*terms))
    assert scores(h, "score_spec") is None
    assert scores(h, "compare") == [200, 150, 0]
    assert scores(h, "compare", nodes="b c") == [200, 0]
    assert scores(h, "compare", nodes="b") is None


@pytest.mark.parametrize(
    ("size", "holders", "containers", "expected"),
    [
        pytest.param(500, 2, 1, 23, id="8.6: one container"),
        pytest.param(500, 2, 2, 11, id="8.6: two containers"),
        pytest.param(10, 2, 1, 0, id="8.6: a small image"),
        pytest.param(2000, 4, 1, 100, id="8.6: a big image everywhere"),
    ],
)
def test_image_locality(size: int, holders: int, containers: int, expected: int) -> None:
    h = cluster(image=1)
    for index in range(4):
        images = [{"names": ["repo/app:latest"], "sizeBytes": size * MIB}] if index < holders else []
        h.node(f"n{index}", images=images)
    specs = [{"name": "c0", "image": "repo/app"}, *({"name": f"c{n}", "image": "x"} for n in range(1, containers))]
    h.pod("p", containers=specs)
    assert scores(h, "score_spec") == ([expected] * holders + [0.0] * (4 - holders) if expected else None)


@pytest.mark.parametrize(
    ("image", "found"),
    [("registry:5000/app", True), ("registry:5000/app:latest", True), ("registry:5000/app:1", False), ("app", False)],
)
def test_an_image_without_a_tag_is_the_latest(image: str, found: bool) -> None:
    h = cluster(image=1)
    h.node("a", images=[{"names": ["registry:5000/app:latest"], "sizeBytes": 2000 * MIB}])
    h.pod("p", containers=[{"name": "main", "image": image}])
    assert scores(h, "score_spec") == ([100.0] if found else None)


# --- taints ---------------------------------------------------------------------------------------------------------


def prefer_not(*keys: str) -> list[dict[str, str]]:
    return [{"key": key, "value": "1", "effect": "PreferNoSchedule"} for key in keys]


@pytest.mark.parametrize("effect", ["", "PreferNoSchedule"])
def test_tolerated_preferences_do_not_count(effect: str) -> None:
    h = cluster(taint=1)
    h.node("a", taints=prefer_not("x"))
    h.node("b", taints=prefer_not("y"))
    h.pod("p", tolerations=[{"key": "x", "operator": "Exists", "effect": effect}])
    h.pod("other", tolerations=[{"key": "x", "operator": "Exists", "effect": "NoSchedule"}])
    assert scores(h, "compare") == [100, 0]
    assert scores(h, "compare", pod="other") is None


# --- pod affinity ---------------------------------------------------------------------------------------------------


def weighted(weight: int, selector: dict[str, Any], key: str = "zone") -> dict[str, Any]:
    return {"weight": weight, "podAffinityTerm": {"topologyKey": key, "labelSelector": selector}}


def preferred(*, near: tuple[dict[str, Any], ...] = (), apart: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    kind = "preferredDuringSchedulingIgnoredDuringExecution"
    return {"affinity": {"podAffinity": {kind: list(near)}, "podAntiAffinity": {kind: list(apart)}}}


def zones(h: Harness, **by_node: str | None) -> None:
    for name, zone in by_node.items():
        h.node(name, labels={} if zone is None else {"zone": zone})


def test_without_weight_preferences_of_pods_make_no_profile() -> None:
    h = cluster(pod_affinity=0, spread=0)
    zones(h, a="a")
    h.pod("p", **preferred(near=(weighted(10, WEB),)))
    h.session()
    assert signature(h, "p").context("nodeorder") is None


# --- topology spread ------------------------------------------------------------------------------------------------


def soft(key: str = "zone", skew: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "topologySpreadConstraints": [
            {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": WEB, **more}
        ]
    }


def web_pods(h: Harness, **counts: int) -> None:
    for node, count in counts.items():
        for index in range(count):
            h.pod(f"{node}-{index}", group=None, node=node, labels={"app": "web"})


@pytest.mark.parametrize(
    ("nodes", "counts", "expected"),
    [
        pytest.param({"a": "a", "b": "b", "c": "c"}, {"a": 3, "b": 1}, [0, 60, 100], id="8.9"),
        pytest.param({"a": "1", "b": "1", "c": "2"}, {"a": 4, "c": 2}, [50, 50, 100], id="8.10"),
        pytest.param({"a": "a", "b": "b", "c": None}, {"a": 1}, [0, 100, 0], id="a node without the key scores 0"),
        pytest.param({"a": "a", "b": "b"}, {}, None, id="no pods yet"),
    ],
)
def test_soft_spread_over_zones(
    nodes: dict[str, str | None], counts: dict[str, int], expected: list[float] | None
) -> None:
    h = cluster(spread=1)
    zones(h, **nodes)
    web_pods(h, **counts)
    h.pod("p", labels={"app": "web"}, **soft())
    assert scores(h, "compare") == expected


def test_a_handful_of_rows_and_many_are_scored_alike_to_the_last_bit() -> None:
    for conf, gpus in ((None, 8), ({"mostrequested.weight": 3, "leastrequested.weight": 2}, 0)):
        arguments = "" if conf is None else "\n    arguments: " + json.dumps(conf)
        h = Harness(f"actions: allocate\ntiers:\n- plugins:\n  - name: nodeorder{arguments}\n")
        h.queue("q")
        for index in range(40):
            resources = {"nvidia.com/gpu": gpus} if gpus and index % 3 else {}
            h.node(f"n{index:02d}", cpu=str(index % 7 * 5), memory=f"{index % 5 * 13}Gi", resources=resources)
            h.pod(
                f"old{index}",
                group=None,
                node=f"n{index:02d}",
                requests={"cpu": f"{index * 311}m", "memory": f"{index * 97}Mi", "nvidia.com/gpu": index % 4},
            )
        h.group("g")
        requests: list[dict[str, str]] = [
            {"cpu": "1700m", "memory": "3001Mi", "nvidia.com/gpu": "3"},
            {"cpu": "333m"},
            {},
        ]
        for index, wanted in enumerate(requests):
            h.pod(f"p{index}", requests=wanted)
        session = h.session()
        plugin = h.plugin("nodeorder")
        everything = np.arange(40)
        for index in range(len(requests)):
            pod_signature = session.engine.signature(session.queues["q"], h.task(f"p{index}"))
            many = plugin.score_utilization(pod_signature, session.rows(everything))
            few = np.concatenate(
                [plugin.score_utilization(pod_signature, session.rows(part)) for part in np.split(everything, 8)]
            )
            assert many.tolist() == few.tolist()


def test_taints_that_are_the_same_everywhere_do_not_slow_placement_down() -> None:
    h = cluster(taint=3)
    h.node("a", taints=prefer_not("x"))
    h.node("b", taints=prefer_not("x"))
    h.node("c")
    h.pod("p")
    assert scores(h, "compare", nodes="a b") is None
    assert scores(h, "compare", nodes="c") is None
