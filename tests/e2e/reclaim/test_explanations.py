"""`explain` about a live cluster: who was considered as a victim, and what protected them."""

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
from tests.e2e.reclaim.tide import Told, conf, furnish, make, running, service, until_running, until_told, work


@pytest.mark.asyncio
async def test_a_pod_that_gets_no_room_names_what_protected_whom(
    cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked of another process, which takes nothing from the daemon but what the API server knows."""
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
        everybody = {"safe-w-0", "chat-w-0", "small-w-0", "rank-w-0", "rank-w-1"}
        await until_running(cluster, everybody)
        # On n1 nobody may go; on n2 somebody may, and is not enough.
        await make(cluster, service("r", 4, ""))
        why = "0/2 nodes can be reclaimed: 3 service-type, 1 not enough, 1 not-preemptable"
        await until_told(cluster, [Told("Pod", "r-w-0", "Warning", "ReclaimFailed", why)])

        said = await explain("r")
        assert "reclaim: no preemption victims for r-w-0 on 2 nodes" in said
        assert re.search(r"^ *3 +service-type *$", said, re.MULTILINE), said
        assert re.search(r"^ *1 +not-preemptable *$", said, re.MULTILINE), said
        assert "on 1 node evicting every possible victim frees too little" in said
        found = json.loads(await explain("r", "--output=json"))
        assert [(item["action"], item["pod"], item["nodes"], item["notEnough"]) for item in found["victims"]] == [
            ("reclaim", "r-w-0", 2, 1)
        ]
        assert found["victims"][0]["kept"] == [["service-type", 3], ["not-preemptable", 1]]
        assert set(await running(cluster)) == everybody, "asking moves nobody"

        # Who may go after all goes, and nothing is left to explain.
        await cluster.patch("pods", "safe-w-0", {"metadata": {"annotations": {"volcano.sh/preemptable": "true"}}})
        await until_running(cluster, everybody - {"safe-w-0"} | {"r-w-0"})
        assert "no preemption victims" not in await explain("r")
        taker = f"reclaim: 1 pods evicted for {cluster.namespace}/r-w-0 of queue"
        assert f"Evicted earlier: {taker}" in await explain("safe")
        assert await daemon.stop() == 0
