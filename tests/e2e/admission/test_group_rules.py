"""Rules of subgroups, partitions and queues on a real API server: what the webhooks reject, with the field."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.model.annotations import OVERCOMMIT_FACTOR
from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.manifests import Manifest, plain, pod_group, queue
from tests.e2e.admission.server import Admission, serving

BOTH = {"mode": "hard", "highestTierAllowed": 1, "highestTierName": "rack"}


@pytest.fixture(autouse=True)
async def admission(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Admission]:
    async with serving(cluster, tmp_path) as server:
        yield server


def job(name: str, replicas: int, partitions: Manifest | None = None, **fields: Any) -> Manifest:
    """A Job with one task `w` in partitions; `fields` of the task."""
    template = {"spec": {"containers": [{"name": "c", "image": "train:1"}], "restartPolicy": "Never"}}
    task = {"name": "w", "replicas": replicas, "template": template, **fields}
    if partitions is not None:
        task["partitionPolicy"] = partitions
    spec = {"schedulerName": "capcard-sched", "tasks": [task]}
    return plain("Job", name, "batch.volcano.sh/v1alpha1", spec=spec)


async def test_partitions_and_subgroups(cluster: Cluster) -> None:
    four = {"totalPartitions": 4, "partitionSize": 2}
    selector = {"matchExpressions": [{"key": "a", "operator": "Foo", "values": ["b"]}]}
    rejected: list[tuple[Manifest, str]] = [
        (job("j", 7, four), "spec.tasks[0].partitionPolicy"),
        (job("j", 8, {**four, "minPartitions": 2}, minAvailable=3), "minPartitions x partitionSize"),
        (job("j", 8, {**four, "networkTopology": BOTH}), "networkTopology"),
        (pod_group("g", networkTopology=BOTH), "spec.networkTopology"),
        (pod_group("g", subGroupPolicy=[{"name": "a", "networkTopology": BOTH}]), "subGroupPolicy[0].networkTopology"),
        (pod_group("g", subGroupPolicy=[{"name": "a"}, {"name": "a"}]), "spec.subGroupPolicy[1]"),
        (pod_group("g", subGroupPolicy=[{"name": "a", "labelSelector": selector}]), "subGroupPolicy[0].labelSelector"),
        (pod_group("g", queue="a/b/c"), "spec.queue"),
        (pod_group("g", queue="cluster/default"), "spec.queue"),
    ]
    for manifest, part in rejected:
        assert part in str(await cluster.rejection(manifest) or "accepted"), manifest
    stored = await cluster.create(job("train", 8, {**four, "minPartitions": 2}))
    assert (stored["spec"]["minAvailable"], stored["spec"]["tasks"][0]["minAvailable"]) == (4, 4)
    tasks = stored["spec"]["tasks"]
    for change in ({"replicas": 12}, {"partitionPolicy": {**four, "totalPartitions": 6, "minPartitions": 2}}):
        with pytest.raises(RequestError) as caught:
            await cluster.patch("jobs.batch.volcano.sh", "train", {"spec": {"tasks": [{**tasks[0], **change}]}})
        assert caught.value.status in (400, 403, 422)


async def test_a_list_of_namespaces_is_no_list_of_tenants(cluster: Cluster) -> None:
    await cluster.create(queue("research", weight=1, allowedNamespaces=["another-team"]))

    async def is_accepted() -> bool:
        made = job("train", 1)
        made["spec"]["queue"] = "research"
        return await cluster.rejection(made) is None

    await cluster.wait_until(is_accepted, "the queue to be known")


@pytest.mark.parametrize(("factor", "deserved"), [("abc", {"cpu": "4"}), ("0.5", {"cpu": "4"}), ("1.5", None)])
async def test_a_factor_of_overcommit(cluster: Cluster, factor: str, deserved: Any) -> None:
    spec = {} if deserved is None else {"deserved": deserved}
    text = str(await cluster.rejection(queue("q", weight=1, annotations={OVERCOMMIT_FACTOR: factor}, **spec)) or "")
    assert OVERCOMMIT_FACTOR in text
    assert (
        await cluster.rejection(queue("q", weight=1, annotations={OVERCOMMIT_FACTOR: "1.5"}, deserved={"cpu": "4"}))
        is None
    )
