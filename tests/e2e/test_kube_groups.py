"""PodGroups of `scheduling.k8s.io` on an API server that serves them: feature gate and API version are switched on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import Manifest, node, pod, pod_group, queue
from tests.controlplane.preparation import prepare
from tests.controlplane.proxy import Proxy
from tests.e2e.controllers.server_world import ServerWorld
from tests.e2e.daemons import Controllers, Daemon
from tests.e2e.expectations import message, until, until_bound
from tests.scenarios.controllers.scenario_steps import Player, load_scenarios

_GROUPS = "podgroups.scheduling.k8s.io"
_API = "scheduling.k8s.io/v1beta1"
_FLAGS = [
    "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true",
    f"--runtime-config={_API}=true",
]


@pytest.fixture(scope="module")
def serving(programs: Path) -> Iterator[ControlPlane]:
    """An API server with the kind; skipped on a release without it."""
    try:
        with ControlPlane(programs, apiserver_flags=_FLAGS) as running:
            yield running
    except RuntimeError as error:
        pytest.skip(f"this release has no PodGroups of scheduling.k8s.io: {error}")


@pytest_asyncio.fixture
async def cluster(serving: ControlPlane) -> AsyncIterator[Cluster]:
    async with Cluster(serving) as client:
        await prepare(client)
        client.namespace = await client.make_namespace()
        yield client
        await asyncio.to_thread(serving.wipe)  # pending pods of one test would take the nodes of the next


def kube_group(name: str, count: int) -> Manifest:
    spec = {"schedulingPolicy": {"gang": {"minCount": count}}}
    return {"apiVersion": _API, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


def member(name: str, group: str, **more: Any) -> Manifest:
    found = pod(name, requests={"cpu": "1"}, scheduler="capcard-sched", **more)
    found["metadata"].get("annotations", {}).pop("scheduling.k8s.io/group-name", None)
    found["spec"]["schedulingGroup"] = {"podGroupName": group}
    return found


async def bound(cluster: Cluster) -> set[str]:
    return {each["metadata"]["name"] for each in await cluster.list("pods") if each["spec"].get("nodeName")}


@pytest.mark.timeout(240)
async def test_a_gang_starts_whole_and_its_condition_tells(
    cluster: Cluster, serving: ControlPlane, tmp_path: Path
) -> None:
    config = serving.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path) as daemon, Controllers(config, tmp_path):
        await daemon.logged("caches synced")
        await cluster.create_all([node("n1", cpu=8), node("small", cpu=1)])
        # Pods that come before their PodGroup wait for it.
        await cluster.create_all([member("a-0", "a"), member("a-1", "a")])
        await daemon.settled()
        assert await bound(cluster) == set()
        await cluster.create(kube_group("a", 3))
        await until(cluster, _GROUPS, "a", status=condition("False", "Unschedulable"))
        await cluster.create(member("a-2", "a"))
        await until_bound(cluster, 3)
        await until(cluster, _GROUPS, "a", status=condition("True", "Scheduled"))
        assert await cluster.list("podgroups.scheduling.volcano.sh") == []
        # A PodGroup of each kind with one name are two jobs; a gang without room starts no pod.
        await cluster.create_all([queue("q"), pod_group("b", members=2), kube_group("b", 9)])
        await cluster.create_all([member(f"b-{index}", "b") for index in range(9)])
        await until(cluster, _GROUPS, "b", status=condition("False", "Unschedulable"))
        assert await bound(cluster) == {"a-0", "a-1", "a-2"}
        # A lower minimum starts it.
        await cluster.patch(_GROUPS, "b", {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
        await until(cluster, _GROUPS, "b", status=condition("True", "Scheduled"))


@pytest.mark.timeout(240)
async def test_a_gang_with_a_topology_label_starts_in_one_domain_and_pods_of_others_do_not_count(
    cluster: Cluster, serving: ControlPlane, tmp_path: Path
) -> None:
    config = serving.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path) as daemon:
        await daemon.logged("caches synced")
        racks = [node(f"{rack}{index}", cpu=1, labels={"rack": rack}) for rack in "ab" for index in (0, 1)]
        await cluster.create_all([*racks, node("lone", cpu=8)])
        topology = kube_group("t", 3)
        topology["spec"]["schedulingConstraints"] = {"topology": [{"key": "rack"}]}
        created = await cluster.create(topology)
        assert created["spec"]["schedulingConstraints"]["topology"] == [{"key": "rack"}]
        await cluster.create_all([member(f"t-{index}", "t") for index in range(3)])
        await until(cluster, "pods", "t-0", status=message("at most 2 fit, on nodes with rack=a"))
        assert await bound(cluster) == set()
        # A pod of another scheduler does not complete the gang.
        other = member("other", "t")
        other["spec"] |= {"schedulerName": "default-scheduler", "nodeName": "lone"}
        await cluster.create(other)
        await until(cluster, "events", reason="OtherScheduler", involvedObject={"kind": "PodGroup", "name": "t"})
        await cluster.create(node("b2", cpu=1, labels={"rack": "b"}))
        nodes = await until_bound(cluster, 3, "t-.*")
        assert {place[0] for place in nodes.values()} == {"b"}
        await until(cluster, _GROUPS, "t", status=condition("True", "Scheduled"))


def condition(status: str, reason: str) -> Manifest:
    return {"conditions": [{"type": "PodGroupInitiallyScheduled", "status": status, "reason": reason}]}


_PREEMPT = """
actions: "enqueue, allocate, preempt"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""


@pytest.mark.timeout(240)
async def test_a_group_that_is_evicted_as_a_whole_has_the_condition_before_its_pods_are_deleted(
    cluster: Cluster, serving: ControlPlane, tmp_path: Path
) -> None:
    config = serving.kubeconfig_for("scheduler-a")
    async with Daemon(config, tmp_path, conf=_PREEMPT) as daemon:
        await daemon.logged("caches synced")
        high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9}
        whole = kube_group("w", 2)
        whole["spec"]["disruptionMode"] = {"all": {}}
        await cluster.create_all([node("n1", cpu=2), high, whole])
        await cluster.create_all([member("w-0", "w", grace=30), member("w-1", "w", grace=30)])
        await until_bound(cluster, 2)
        await until(cluster, _GROUPS, "w", status=condition("True", "Scheduled"))
        await cluster.create(pod("p", requests={"cpu": "1"}, priorityClassName="high"))
        target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        await until(cluster, _GROUPS, "w", status={"conditions": [target]})
        await until(cluster, "pods", "w-0", status={"conditions": [target]})
        found = await cluster.get(_GROUPS, "w")
        rows = {row["type"]: row for row in found["status"]["conditions"]}
        assert rows["PodGroupInitiallyScheduled"]["status"] == "True", "it started once"
        assert rows["DisruptionTarget"]["message"] == "capcard-sched: preempting to accommodate a higher priority pod"


@pytest.mark.timeout(240)
async def test_a_group_takes_no_pods_owners_and_claims_of_another_namespace(
    cluster: Cluster, serving: ControlPlane, tmp_path: Path
) -> None:
    """A tenant names the group, the Job and the uid of a peer."""
    config, peer = serving.kubeconfig_for("scheduler-a"), await cluster.make_namespace()
    async with Daemon(config, tmp_path) as daemon, Controllers(config, tmp_path):
        await daemon.logged("caches synced")
        theirs = await cluster.create({**kube_group("g", 2), "metadata": {"name": "g", "namespace": peer}})
        await cluster.create_all([node("n1", cpu=8), _in(peer, member("first", "g")), member("forged", "g")])
        await daemon.settled()
        assert await bound(cluster) == set()
        own = kube_group("g", 2)
        reference = {"apiVersion": _API, "kind": "PodGroup", "name": "g", "uid": theirs["metadata"]["uid"]}
        own["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
        await cluster.create(own)
        claimed = kube_group("claimed", 1)
        claimed["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "of-a-peer"}]
        stored = await cluster.create(claimed)
        await cluster.create(member("with-claims", "claimed"))
        await daemon.settled()
        assert await bound(cluster) == (set() if stored["spec"].get("resourceClaims") else {"with-claims"})
        assert await cluster.find("pods", "first", namespace=peer) is not None
        found = await cluster.get(_GROUPS, "g", namespace=peer)
        assert found["metadata"].get("annotations") == theirs["metadata"].get("annotations")
        await cluster.create(_in(peer, member("second", "g")))

        async def is_whole() -> bool:
            pods = await cluster.list("pods", namespace=peer)
            return len(pods) == 2 and all(each["spec"].get("nodeName") for each in pods)

        await cluster.wait_until(is_whole, "the gang of the peer starts")
        assert "forged" not in await bound(cluster)


def _in(namespace: str, manifest: Manifest) -> Manifest:
    manifest["metadata"]["namespace"] = namespace
    return manifest


_SCENARIOS = load_scenarios(Path(__file__).parent / "kube_groups")
_PLAYED = """
actions: "enqueue, allocate, preempt, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}]
- plugins: [{name: predicates}, {name: capacity-card}, {name: nodeorder}]
"""


async def _play_all(control_plane: ControlPlane, folder: Path) -> dict[str, str]:
    """The trouble of each scenario, "" for none: all at once, each in its namespace."""

    async def play(name: str) -> str:
        async with Cluster(control_plane) as client:
            client.namespace = await client.make_namespace()
            try:
                await Player(ServerWorld(client, _no_restart)).run(_SCENARIOS[name])
            except Exception as error:  # noqa: BLE001 - one scenario does not end the others
                return "\n".join((f"{name}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ())))
            return ""

    async with Cluster(control_plane) as admin:
        await prepare(admin)
    config = control_plane.kubeconfig_for("scheduler-a")
    daemon = Daemon(config, folder, "--wait-for-podgroups", conf=_PLAYED)
    async with daemon, Controllers(config, folder), Kubelet(control_plane, stop_delay=1):
        return dict(zip(_SCENARIOS, await asyncio.gather(*map(play, _SCENARIOS)), strict=True))


async def _no_restart() -> None:
    raise AssertionError("the controllers are shared")


@pytest.fixture(scope="module")
def troubles(serving: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    try:
        return asyncio.run(_play_all(serving, tmp_path_factory.mktemp("kube-groups")))
    finally:
        serving.wipe()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", _SCENARIOS)
def test_scenario(troubles: dict[str, str], name: str) -> None:
    assert not troubles[name], troubles[name]


@pytest.mark.timeout(400)
async def test_a_gang_whose_leader_is_killed_between_its_bindings_is_completed_before_other_jobs(
    cluster: Cluster, serving: ControlPlane, tmp_path: Path
) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9}
    await cluster.create_all([node("n1", cpu=3), high, kube_group("g", 3)])
    async with Proxy(serving) as proxy:
        held = proxy.delay("POST", r"/pods/g-\d+/binding$", 600.0, nth=2, times=None)
        former = Daemon(proxy.kubeconfig_for("scheduler-a"), tmp_path, "--bind-workers=1", name="former")
        async with former:
            await cluster.create_all([member(f"g-{index}", "g") for index in range(3)])
            await cluster.wait_until(lambda: held.strikes == 1, "the second binding", within=60)
            assert len(await until_bound(cluster, 1)) == 1
            await cluster.create(pod("newcomer", requests={"cpu": "1"}, priorityClassName="high"))
            await former.kill()
    config = serving.kubeconfig_for("scheduler-b")
    async with Daemon(config, tmp_path, name="next") as daemon, Controllers(config, tmp_path):
        assert set(await until_bound(cluster, 3)) == {"g-0", "g-1", "g-2"}
        await until(cluster, _GROUPS, "g", status=condition("True", "Scheduled"))
        await daemon.settled()
        assert "newcomer" not in await bound(cluster)


@pytest.mark.timeout(400)
async def test_groups_that_are_served_no_longer_keep_their_running_pods_and_pending_ones_wait(
    programs: Path, tmp_path: Path
) -> None:
    with ControlPlane(programs, apiserver_flags=_FLAGS) as plane:
        async with Cluster(plane) as client:
            await prepare(client)
            client.namespace = await client.make_namespace()
            config = plane.kubeconfig_for("scheduler-a")
            await client.create_all([node("n1", cpu=8), kube_group("g", 2)])
            await client.create_all([member("g-0", "g"), member("g-1", "g"), member("late", "other")])
            async with Daemon(config, tmp_path, name="before"):
                await until_bound(client, 2)
            await asyncio.to_thread(plane.kill_apiserver)
            plane.apiserver_flags = []
            plane.memo.pop("resources")
            await asyncio.to_thread(plane.start)
            async with Daemon(config, tmp_path, name="after") as daemon:
                text = "waiting for PodGroup other of scheduling.k8s.io"
                await until(client, "pods", "late", status=message(text))
                await daemon.settled()
                assert await bound(client) == {"g-0", "g-1"}
                # The API server drops the field of new pods: they are pods without a group.
                plain_pod = await client.create(member("new", "g"))
                assert "schedulingGroup" not in plain_pod["spec"]
