"""One tenant's expensive jobs do not delay another tenant's job by more than a share of a session."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import node, pod, queue
from tests.e2e.card.stage import eventually
from tests.e2e.daemons import Daemon

pytestmark = [pytest.mark.asyncio, pytest.mark.campaign]

_PODS: Final = 150
#: Attempts for the pods of queue `hostile` take 0.2 s each, and are counted in a file.
_PLUGIN: Final = """
import time
from capcard_sched.framework.api.plugin import Plugin

class Costly(Plugin):
    name = "costly"

    def allocatable(self, queue, task):
        if queue.name == "hostile":
            time.sleep(0.2)
            with open({path!r}, "a") as file:
                file.write(task.name + "\\n")
"""
_CONF: Final = """
actions: "allocate"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: costly}, {name: predicates}]
"""


async def test_a_healthy_job_is_bound_before_another_queue_was_tried_to_its_end(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    tried = tmp_path / "tried"
    tried.touch()
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "costly.py").write_text(_PLUGIN.format(path=str(tried)))
    await cluster.create_all([node("n", cpu="8"), queue("hostile"), queue("healthy")])
    await cluster.create_all(
        [pod(f"hostile-{number}", queue="hostile", requests={"cpu": "100"}) for number in range(_PODS)]
    )
    flags = (f"--plugins-dir={plugins}", "--session-deadline=1s", f"--record={tmp_path / 'day.jsonl'}")
    async with Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, *flags, conf=_CONF) as daemon:

        async def count() -> int:
            return len(tried.read_text().splitlines())

        await eventually(count, "the first attempts", lambda number: number > 0)
        await cluster.create_all([pod("healthy", queue="healthy", requests={"cpu": "1"})])
        await eventually(cluster.bound, "the healthy pod to be bound", lambda bound: "healthy" in bound)
        assert await count() < _PODS

        name = "volcano_queue_deadline_sessions_total"
        await eventually(lambda: daemon.metric(name, queue_name="hostile"), "a cut", lambda found: found >= 1)
        assert await daemon.metric(name, queue_name="healthy") == 0
        line = await daemon.logged("queue used its share of the session deadline")
        assert line["queue"] == "hostile"
        await daemon.stop()
    assert '"cuts":{"hostile":{"share":' in (tmp_path / "day.jsonl").read_text()
