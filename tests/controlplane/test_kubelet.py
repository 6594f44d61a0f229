"""The fake kubelets."""

from __future__ import annotations

import asyncio

from tests.controlplane.cluster import Cluster
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import gpu_node, pod


async def test_a_pod_that_finishes_while_it_starts_does_not_run_again(cluster: Cluster, kubelet: Kubelet) -> None:
    kubelet.start_delay = 0.5
    await cluster.create_all([gpu_node("n", "A10", 4), pod("short")])
    await cluster.bind("short", "n")
    await kubelet.finish("short", namespace=cluster.namespace)
    await asyncio.sleep(1.5)
    found = await cluster.find("pods", "short")
    assert found is not None
    assert found["status"]["phase"] == "Succeeded"
