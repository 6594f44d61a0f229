"""Gangs of operators on an API server with the rights of the installation: by built-in rules and a row of a user."""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from capcard_sched.controllers.owner_rules import parse_owner_rules
from capcard_sched.model.annotations import GROUP_NAME, TASK_SPEC
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest
from tests.controlplane.preparation import prepare
from tests.e2e.controllers.definitions import open_kind
from tests.e2e.daemons import QUICK_ELECTION, Controllers
from tests.e2e.expectations import until
from tests.e2e.rbac.installed import SYSTEM, account, flags_of, install
from tests.manifests.documents import MANIFESTS

_ACCOUNT = "capcard-sched-controllers"
_LIMIT = 60.0
_GROUP = "jobset.x-k8s.io"


def _job_set(replicas: int) -> Manifest:
    jobs = [{"name": "w", "replicas": replicas}]
    metadata = {"name": "j"}
    return {
        "apiVersion": f"{_GROUP}/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {"replicatedJobs": jobs},
    }


def _pod(name: str, labels: dict[str, str]) -> Manifest:
    spec = {"schedulerName": "capcard-sched", "containers": [{"name": "main", "image": "main:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


async def _eventually(check: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    deadline = time.monotonic() + _LIMIT
    while (found := await check()) != wanted:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)


@asynccontextmanager
async def _running(
    control_plane: ControlPlane, folder: Path, definition: Manifest, owner: Manifest, *flags: str, rights: bool = True
) -> AsyncIterator[Cluster]:
    """The installed controllers on an API server that has a kind and one object of it. `rights`: to read the kind."""
    async with Cluster(control_plane) as admin:
        await prepare(admin)
        await admin.wipe()
        await admin.make_namespace(SYSTEM)
        await install(admin, MANIFESTS / "controllers")
        if not rights:
            await _withdraw(admin, definition["spec"]["group"])
        given = [*await flags_of(admin, _ACCOUNT), *QUICK_ELECTION, *flags]
        controllers = Controllers(await account(admin, _ACCOUNT), folder, *given, name="controllers")
        admin.namespace = await admin.make_namespace()

        async def served() -> bool:
            try:
                await admin.create(owner)
            except Exception:  # noqa: BLE001 - the API server serves a new kind a moment later
                return False
            return True

        try:
            await admin.create(definition)
            await _eventually(served, True)
            async with controllers:
                yield admin
        finally:
            await admin.delete("customresourcedefinitions", definition["metadata"]["name"], grace=None)
            await admin.wipe()


async def _withdraw(admin: Cluster, group: str) -> None:
    """No role grants the controllers anything of an API group."""
    for role in await admin.list("clusterroles"):
        if role["metadata"]["name"].startswith("capcard-sched"):
            rules = [rule for rule in role["rules"] if group not in rule["apiGroups"]]
            if rules != role["rules"]:
                await admin.patch("clusterroles", role["metadata"]["name"], {"rules": rules})


async def _specs(admin: Cluster, *fields: str) -> dict[str, Any]:
    """Fields of PodGroups by name; of one field its value."""
    found = await admin.list("podgroups.scheduling.volcano.sh")
    rows = {each["metadata"]["name"]: [each["spec"].get(field) for field in fields] for each in found}
    return {name: row[0] if len(row) == 1 else row for name, row in rows.items()}


async def _annotations(admin: Cluster, key: str) -> list[str]:
    return sorted(each["metadata"].get("annotations", {}).get(key, "") for each in await admin.list("pods"))


async def _owner_kinds(admin: Cluster) -> list[str]:
    groups = await admin.list("podgroups.scheduling.volcano.sh")
    return [owner["kind"] for group in groups for owner in group["metadata"]["ownerReferences"]]


async def _follow_job_set(control_plane: ControlPlane, folder: Path) -> None:
    labels = {f"jobset.sigs.k8s.io/{key}": value for key, value in (("jobset-name", "j"), ("replicatedjob-name", "w"))}
    definition = open_kind(_GROUP, "JobSet", "v1alpha2")
    async with _running(control_plane, folder, definition, _job_set(2)) as admin:
        await admin.create_all([_pod("j-0", labels), _pod("j-1", labels)])
        await _eventually(partial(_specs, admin, "minMember"), {"j": 2})
        assert await _owner_kinds(admin) == ["JobSet"]
        await admin.patch(f"jobsets.{_GROUP}", "j", {"spec": _job_set(5)["spec"]})
        await _eventually(partial(_specs, admin, "minMember"), {"j": 5})
        await _eventually(partial(_annotations, admin, GROUP_NAME), ["j", "j"])


@pytest.mark.timeout(300)
def test_a_job_set_is_a_gang_that_follows_it(control_plane: ControlPlane, tmp_path: Path) -> None:
    asyncio.run(_follow_job_set(control_plane, tmp_path))


async def _lose_the_owner(control_plane: ControlPlane, folder: Path) -> None:
    async with _running(
        control_plane, folder, open_kind(_GROUP, "JobSet", "v1alpha2"), _job_set(5), rights=False
    ) as admin:
        labels = {"jobset.sigs.k8s.io/jobset-name": "j", "jobset.sigs.k8s.io/replicatedjob-name": "w"}
        await admin.create_all([_pod("j-0", labels), _pod("j-1", labels)])
        # By the labels alone: a gang of one pod, and by the annotation of LeaderWorkerSet one of the size.
        replica = {f"leaderworkerset.sigs.k8s.io/{key}": value for key, value in _REPLICA.items()}
        leader = _pod("l-0", replica)
        leader["metadata"]["annotations"] = {"leaderworkerset.sigs.k8s.io/size": "3"}
        await admin.create(leader)
        await _eventually(partial(_specs, admin, "minMember"), {"j": 1, "l-0-r1": 3})
        text = "JobSet.jobset.x-k8s.io/v1alpha2 */j cannot be read: the gang of j-* has minMember 1"
        await until(admin, "events", reason="OwnerUnreadable", type="Warning", message=text, count=1)
        await _eventually(partial(_annotations, admin, GROUP_NAME), ["j", "j", "l-0-r1"])


_REPLICA = {"name": "l", "group-index": "0", "worker-index": "0", "template-revision-hash": "r1"}


@pytest.mark.timeout(300)
def test_a_gang_whose_owner_may_not_be_read_has_the_numbers_of_its_labels(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    asyncio.run(_lose_the_owner(control_plane, tmp_path))


#: A row of a user: the one that the documentation has.
_ROW = """
ownerGroups:
- name: my-trainer
  when: [example.com/trainer]
  group: [{name: 'trainer-{example.com/trainer}'}]
  owners: [{apiVersion: example.com/v1, kind: Trainer, resource: trainers}]
  ownerName: '{example.com/trainer}'
  role: example.com/role
  min:
  - {role: master, template: spec.master.template}
  - {at: 'spec.workers[]', role: '{name}', count: replicas|1 * hosts|1, template: template}
"""


def test_the_row_of_a_user_is_that_of_the_documentation() -> None:
    page = (MANIFESTS.parent / "docs" / "controllers.md").read_text("utf-8")
    example = page.split("    ownerGroups:\n")[1].split("\n\n")[0]
    assert parse_owner_rules("ownerGroups:\n" + textwrap.dedent(example)) == parse_owner_rules(_ROW)


def _trainer(replicas: int) -> Manifest:
    template = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
    workers = [{"name": "worker", "replicas": replicas, "template": template}, {"name": "ps", "hosts": 2}]
    return {
        "apiVersion": "example.com/v1",
        "kind": "Trainer",
        "metadata": {"name": "t", "annotations": {"scheduling.volcano.sh/queue-name": "q"}},
        "spec": {"master": {"template": template}, "workers": workers},
    }


async def _follow_trainer(control_plane: ControlPlane, folder: Path) -> None:
    file = folder / "owner-groups.yaml"
    file.write_text(_ROW)
    right = {"apiGroups": ["example.com"], "resources": ["trainers"], "verbs": ["get", "list", "watch"]}
    labels = {"example.com/trainer": "t", "example.com/role": "worker"}
    flag = f"--owner-groups={file}"
    async with _running(control_plane, folder, open_kind("example.com", "Trainer", "v1"), _trainer(3), flag) as admin:
        # Without the right to read the kind, a gang has one pod, and an event has the cause.
        await admin.create(_pod("early", {**labels, "example.com/trainer": "unread"}))
        await until(admin, "events", reason="OwnerUnreadable", message="*Trainer*unread*")
        await admin.allow(f"system:serviceaccount:{SYSTEM}:{_ACCOUNT}", [right], everywhere=True)
        await admin.create_all([_pod("t-master", {**labels, "example.com/role": "master"}), _pod("t-0", labels)])
        roles = {"master": 1, "worker": 3, "ps": 2}
        fields = ("minMember", "minTaskMember", "queue")
        wanted = {"trainer-t": [6, roles, "q"], "trainer-unread": [1, None, "default"]}
        await _eventually(partial(_specs, admin, *fields), wanted)
        assert sorted(await _owner_kinds(admin)) == ["Pod", "Trainer"]
        await _eventually(partial(_annotations, admin, GROUP_NAME), ["trainer-t", "trainer-t", "trainer-unread"])
        await _eventually(partial(_annotations, admin, TASK_SPEC), ["master", "worker", "worker"])
        await admin.patch("trainers.example.com", "t", {"spec": _trainer(1)["spec"]})
        wanted["trainer-t"] = [4, {**roles, "worker": 1}, "q"]
        await _eventually(partial(_specs, admin, *fields), wanted)


@pytest.mark.timeout(300)
def test_a_row_of_a_user_makes_gangs_of_a_kind_of_its_own(control_plane: ControlPlane, tmp_path: Path) -> None:
    asyncio.run(_follow_trainer(control_plane, tmp_path))


async def test_controllers_with_a_bad_row_do_not_start(control_plane: ControlPlane, tmp_path: Path) -> None:
    file = tmp_path / "owner-groups.yaml"
    file.write_text(_ROW.replace("count: replicas|1 * hosts|1", "count: replicas x hosts"))
    program = Controllers(
        control_plane.kubeconfig_for("admin"), tmp_path, "--leader-elect=false", f"--owner-groups={file}"
    )
    async with program:
        status = await asyncio.to_thread(program.process.wait, 60)
    assert status == 2
    place = f"--owner-groups: {file}: ownerGroups[0].min[1].count"
    assert f"{place}: 'replicas x hosts' is no count; accepted: " in program.text
