"""The nodeorder plugin: what `tests/vectors/nodeorder.yaml` does not show."""

from __future__ import annotations

import json

import numpy as np

from capcard_sched.framework.api.node_view import NodeView
from capcard_sched.testing import Harness


def cluster(**weights: int) -> Harness:
    """nodeorder with the default weights but these."""
    arguments = json.dumps({f"{name}.weight": weight for name, weight in weights.items()})
    h = Harness(f"actions: allocate\ntiers: [{{plugins: [{{name: nodeorder, arguments: {arguments}}}]}}]\n")
    h.queue("q")
    h.group("g")
    return h


def test_planned_pods_are_seen() -> None:
    h = cluster()
    h.node("n", cpu="4", memory="16Gi")
    h.pod("p", requests={"cpu": "1", "memory": "1Gi"})
    session = h.session()
    table, pod_signature = session.nodes, session.engine.signature(session.queues["q"], h.task("p"))
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


def test_without_weight_preferences_of_pods_make_no_signature() -> None:
    h = cluster(podaffinity=0, podtopologyspread=0)
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    preferred = [{"weight": 10, "podAffinityTerm": term}]
    h.pod("p", affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}})
    session = h.session()
    assert session.engine.signature(session.queues["q"], h.task("p")).context("nodeorder") is None


def test_a_handful_of_rows_and_many_are_scored_alike_to_the_last_bit() -> None:
    for h, gpus in ((cluster(), 8), (cluster(mostrequested=3, leastrequested=2), 0)):
        for index in range(40):
            resources = {"nvidia.com/gpu": gpus} if gpus and index % 3 else {}
            h.node(f"n{index:02d}", cpu=str(index % 7 * 5), memory=f"{index % 5 * 13}Gi", resources=resources)
            h.pod(
                f"old{index}",
                group=None,
                node=f"n{index:02d}",
                requests={"cpu": f"{index * 311}m", "memory": f"{index * 97}Mi", "nvidia.com/gpu": index % 4},
            )
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
