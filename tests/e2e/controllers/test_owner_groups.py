"""Gangs of an operator on an API server that serves one kind of the rules, with the rights of the installation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest
from tests.controlplane.preparation import prepare
from tests.e2e.daemons import QUICK_ELECTION, Controllers
from tests.e2e.rbac.installed import SYSTEM, account, flags_of, install
from tests.manifests.documents import MANIFESTS

_ACCOUNT = "capcard-sched-controllers"
_LIMIT = 60.0
_GROUP = "jobset.x-k8s.io"
_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_CRD: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"jobsets.{_GROUP}",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/jobset"},
    },
    "spec": {
        "group": _GROUP,
        "scope": "Namespaced",
        "names": {"plural": "jobsets", "singular": "jobset", "kind": "JobSet", "listKind": "JobSetList"},
        "versions": [{"name": "v1alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": _OPEN}}],
    },
}


def _job_set(replicas: int) -> Manifest:
    jobs = [{"name": "w", "replicas": replicas}]
    metadata = {"name": "j"}
    return {
        "apiVersion": f"{_GROUP}/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {"replicatedJobs": jobs},
    }


def _pod(name: str) -> Manifest:
    labels = {f"jobset.sigs.k8s.io/{key}": value for key, value in (("jobset-name", "j"), ("replicatedjob-name", "w"))}
    spec = {"schedulerName": "capcard-sched", "containers": [{"name": "main", "image": "main:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


async def _eventually(check: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    deadline = time.monotonic() + _LIMIT
    while (found := await check()) != wanted:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)


async def _play(control_plane: ControlPlane, folder: Path) -> None:
    async with Cluster(control_plane) as admin:
        await prepare(admin)
        await admin.wipe()
        await admin.make_namespace(SYSTEM)
        await install(admin, MANIFESTS / "controllers")
        flags = [*await flags_of(admin, _ACCOUNT), *QUICK_ELECTION]
        controllers = Controllers(await account(admin, _ACCOUNT), folder, *flags, name="controllers")
        admin.namespace = await admin.make_namespace()

        async def minimums() -> dict[str, Any]:
            found = await admin.list("podgroups.scheduling.volcano.sh")
            return {each["metadata"]["name"]: each["spec"]["minMember"] for each in found}

        async def served() -> bool:
            try:
                await admin.create(_job_set(2))
            except Exception:  # noqa: BLE001 - the API server serves a new kind a moment later
                return False
            return True

        try:
            await admin.create(_CRD)
            await _eventually(served, True)
            await controllers.start()
            await admin.create(_pod("j-0"))
            await admin.create(_pod("j-1"))
            await _eventually(minimums, {"j": 2})
            group = (await admin.list("podgroups.scheduling.volcano.sh"))[0]
            assert [owner["kind"] for owner in group["metadata"]["ownerReferences"]] == ["JobSet"]
            await admin.patch(f"jobsets.{_GROUP}", "j", {"spec": _job_set(5)["spec"]})
            await _eventually(minimums, {"j": 5})

            async def groups() -> list[str]:
                found = await admin.list("pods")
                notes = [each["metadata"].get("annotations", {}) for each in found]
                return sorted(each.get("scheduling.k8s.io/group-name", "") for each in notes)

            await _eventually(groups, ["j", "j"])
        finally:
            if controllers._process is not None:
                await controllers.stop()
            await admin.delete("customresourcedefinitions", f"jobsets.{_GROUP}", grace=None)
            await admin.wipe()


@pytest.mark.timeout(300)
def test_a_job_set_is_a_gang_that_follows_it(control_plane: ControlPlane, tmp_path: Path) -> None:
    asyncio.run(_play(control_plane, tmp_path))
