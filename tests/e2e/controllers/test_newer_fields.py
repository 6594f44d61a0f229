"""The scheduler and the controllers write to objects of newer versions of Volcano and keep their fields."""

from __future__ import annotations

from typing import Any

from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import Manifest, gang, queue
from tests.e2e.controllers.conftest import JOBS, Jobs
from tests.e2e.daemons import Controllers
from tests.e2e.expectations import until

NEWER = {"a": ["b"], "c": {"d": 1}}
AFFINITY = {"podGroupAntiAffinity": {"required": [{"podGroupSelector": {}, "topologyTier": 1, "newer": NEWER}]}}


async def test_fields_that_the_schemas_lack_stay_while_objects_run(
    cluster: Cluster, controllers: Controllers, jobs: Jobs
) -> None:
    del controllers
    made = queue("q", allowedNamespaces=["team-a"], newer=NEWER, capability={"cpu": "64", "memory": "64Gi"})
    await cluster.create(made)
    await cluster.patch("queues", "q", {"status": {"newer": NEWER}}, subresource="status")
    group, *pods = gang("g", 2, queue="q")
    group["spec"] |= {"topologyAffinity": AFFINITY, "newer": NEWER}
    group["status"] = {"newer": NEWER}
    await cluster.create_all([group, *pods])
    await jobs.create("j", queue="q", newer=NEWER)
    await jobs.phase("j", "Running")
    await until(cluster, "podgroups", "g", status={"phase": "Running"})
    await until(cluster, "queues", "q", status={"allocated": {"cpu": "4"}})
    found: dict[str, Any] = {
        name: await cluster.get(kind, name) for kind, name in (("queues", "q"), ("podgroups", "g"))
    }
    job: Manifest = await cluster.get(JOBS, "j")
    assert found["q"]["spec"]["parent"] == "root", "written by the controllers"
    assert (found["q"]["spec"]["allowedNamespaces"], found["q"]["spec"]["newer"]) == (["team-a"], NEWER)
    assert found["g"]["spec"]["topologyAffinity"] == AFFINITY
    assert [each["newer"] for each in (found["g"]["spec"], found["g"]["status"], found["q"]["status"])] == [NEWER] * 3
    assert job["spec"]["newer"] == NEWER
