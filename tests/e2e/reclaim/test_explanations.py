"""`explain` about a live cluster: the considered victims, and the reasons that protected them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from capcard_sched.cli.main import run
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.e2e.daemons import Daemon
from tests.e2e.reclaim.tide import (
    ObjectEvent,
    conf,
    furnish,
    make,
    running,
    service,
    until_emitted,
    until_running,
    work,
)


@pytest.mark.asyncio
async def test_explain_names_the_reason_that_protects_each_candidate(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process answers, which takes nothing from the daemon and reads the API server alone."""
    await furnish(cluster, nodes=2)
    config = control_plane.kubeconfig_for("scheduler-b")

    async def explain(name: str, *words: str) -> str:
        capsys.readouterr()
        command = ["explain", name, "-n", cluster.namespace, f"--kubeconfig={config}", *words]
        assert await asyncio.to_thread(run, [*command, f"--scheduler-conf={daemon.conf_path}"]) == 0
        return capsys.readouterr().out

    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=conf()) as daemon:
        protected = {"volcano.sh/preemptable": "false"}
        await make(
            cluster,
            work("safe", 4, "n1", annotations=protected),
            service("chat", 4, "n1", queue="qj"),
            work("small", 2, "n2"),
            service("rank", 3, "n2", "n2", queue="qj"),
        )
        all_pods = {"safe-w-0", "chat-w-0", "small-w-0", "rank-w-0", "rank-w-1"}
        await until_running(cluster, all_pods)
        # On n1 no pod may be evicted; on n2 one may, and is not enough.
        await make(cluster, service("r", 4, ""))
        why = "0/2 nodes can be reclaimed: 3 service-type, 1 not enough, 1 not-preemptable"
        await until_emitted(cluster, [ObjectEvent("Pod", "r-w-0", "Warning", "ReclaimFailed", why)])

        output = await explain("r")
        assert "reclaim: no preemption victims for r-w-0 on 2 nodes" in output
        assert re.search(r"^ *3 +service-type *$", output, re.MULTILINE), output
        assert re.search(r"^ *1 +not-preemptable *$", output, re.MULTILINE), output
        assert "on 1 node evicting every possible victim frees too little" in output
        found = json.loads(await explain("r", "--output=json"))
        assert [(item["action"], item["pod"], item["nodes"], item["notEnough"]) for item in found["victims"]] == [
            ("reclaim", "r-w-0", 2, 1)
        ]
        assert found["victims"][0]["kept"] == [["service-type", 3], ["not-preemptable", 1]]
        assert set(await running(cluster)) == all_pods, "explain evicts no pod"

        # The pod that may be evicted after all is evicted, and nothing is left to explain.
        await cluster.patch("pods", "safe-w-0", {"metadata": {"annotations": {"volcano.sh/preemptable": "true"}}})
        await until_running(cluster, all_pods - {"safe-w-0"} | {"r-w-0"})
        assert "no preemption victims" not in await explain("r")
        taker = f"reclaim: 1 pods evicted for {cluster.namespace}/r-w-0 of queue"
        assert f"Evicted earlier: {taker}" in await explain("safe")
        assert await daemon.stop() == 0
