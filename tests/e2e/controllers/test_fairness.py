"""One namespace with large and many objects does not hold up the Jobs of another.

`FAIRNESS=full pytest -n 0 -m campaign --log-cli-level=INFO tests/e2e/controllers/test_fairness.py` measures it
with more of them, on an idle machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.controlplane.cluster import ALL, Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest, job, plain
from tests.e2e.controllers.conftest import BATCH
from tests.e2e.daemons import Controllers

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1200 if os.environ.get("FAIRNESS") == "full" else 400)]

#: Replicas of a Job, tasks of another, CronJobs that start each minute, and Commands for Jobs that do not exist.
_IS_FULL: Final = os.environ.get("FAIRNESS") == "full"
_REPLICAS, _TASKS, _CRONS, _COMMANDS = (5000, 1000, 100, 10_000) if _IS_FULL else (3000, 300, 100, 1000)
_PARALLEL: Final = 16
#: Seconds: 5 on an idle machine, more on a busy one.
_BOUND: Final = 60


def _hostile() -> list[Manifest]:
    one = job("x", 1)["spec"]
    template = one["tasks"][0]["template"]
    tasks = [{"name": f"t{number}", "replicas": 1, "template": template} for number in range(_TASKS)]
    target = {"apiVersion": BATCH, "kind": "Job", "name": "absent", "uid": "absent"}
    return [
        job("replicas", _REPLICAS),
        {**job("tasks", 1), "spec": {**one, "tasks": tasks, "minAvailable": 1}},
        *(
            plain("CronJob", f"c{number}", BATCH, spec={"schedule": "* * * * *", "jobTemplate": {"spec": one}})
            for number in range(_CRONS)
        ),
        *(
            plain("Command", f"c{number}", "bus.volcano.sh/v1alpha1", action="AbortJob", target=target)
            for number in range(_COMMANDS)
        ),
    ]


async def _has_pods(cluster: Cluster, namespace: str, count: int) -> bool:
    return len(await cluster.list("pods", namespace=namespace, limit="50")) >= count


async def _admit(cluster: Cluster) -> None:
    """The part of a scheduler: admit every PodGroup."""
    while True:
        for group in await cluster.list("podgroups", namespace=ALL):
            if not (group.get("status") or {}).get("phase"):
                metadata = group["metadata"]
                body = {"status": {"phase": "Inqueue"}}
                with suppress(RequestError):  # it is gone
                    await cluster.patch("podgroups", metadata["name"], body, namespace=metadata["namespace"])
        await asyncio.sleep(0.2)


async def test_healthy_jobs_start_beside_a_namespace_full_of_work(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    other = await cluster.make_namespace()
    objects = _hostile()
    for first in range(0, len(objects), _PARALLEL):
        await asyncio.gather(*(cluster.create(each) for each in objects[first : first + _PARALLEL]))
    admitting = asyncio.create_task(_admit(cluster))
    slowest = 0.0
    async with Controllers(control_plane.kubeconfig_for("admin"), tmp_path) as running:
        await running.logged("controllers started")
        await cluster.wait_until(partial(_has_pods, cluster, cluster.namespace, 1), "pods of the namespace", within=120)
        for number in range(5):
            began = time.monotonic()
            made = job(f"healthy-{number}", 4)
            await cluster.create({**made, "metadata": {**made["metadata"], "namespace": other}})
            check = partial(_has_pods, cluster, other, 4 * (number + 1))
            await cluster.wait_until(check, "pods of the healthy Job", within=_BOUND)
            slowest = max(slowest, time.monotonic() - began)
        left = len(await cluster.list("commands", limit="1"))
        assert left or len(await cluster.list("pods")) < _REPLICAS + _TASKS, "nothing competed any more"
    admitting.cancel()
    await asyncio.gather(admitting, return_exceptions=True)
    logging.getLogger(__name__).info("slowest healthy Job: %.1f s", slowest)
