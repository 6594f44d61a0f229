"""The admission policy that refuses bindings of a former leader, on a real API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from capcard_sched.kube.claims import release_claims, reserve_claims
from capcard_sched.kube.client import ApiError, Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.fence import PROBE_POD, Fence, FenceState, may_be_fenced
from capcard_sched.kube.paths import object_path
from capcard_sched.model.annotations import FENCE
from capcard_sched.model.device_objects import AllocatedDevice, AllocatedDevices, Allocation
from capcard_sched.model.intents import Bind, ClaimAllocation
from tests.clock import until
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import binding, node, plain, pod
from tests.controlplane.proxy import Proxy
from tests.kube.election.electors import LEASE, Elector, leader, standby

MANIFEST = Path(__file__).resolve().parents[3] / "manifests" / "base" / "admission-fence.yaml"
NAMESPACE = "fenced"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


def objects_of_manifest() -> list[dict[str, Any]]:
    """The policy for the Lease of these tests. Ours are `scheduler-a`; `scheduler-b` is another client's scheduler."""
    text = MANIFEST.read_text("utf-8").replace("system:serviceaccount:capcard-system:capcard-sched", "scheduler-a")
    policy, binding = yaml.safe_load_all(text)
    binding["spec"]["paramRef"].update(name=LEASE, namespace=NAMESPACE)
    return [policy, binding]


OBJECTS = objects_of_manifest()


@pytest.fixture(scope="module")
def own_control_plane(programs: Path) -> Iterator[ControlPlane]:
    """A control plane of this module: its policies must outlive every test (kubernetes/kubernetes#130887)."""
    with ControlPlane(programs) as running:
        yield running


async def acts(control_plane: ControlPlane) -> bool:
    async with Client(load_connection(str(control_plane.kubeconfig_for("scheduler-a")))) as client:
        with pytest.raises(ApiError) as response:  # of the fence, or for want of the pod
            await bind(client, "nobody", "nobody/0")
    return may_be_fenced(response.value.message)


@pytest_asyncio.fixture
async def cluster(own_control_plane: ControlPlane) -> AsyncIterator[Cluster]:
    """An admin's client of a cluster with the fence and nothing else."""
    async with Cluster(own_control_plane, namespace=NAMESPACE) as client:
        if "fenced" not in own_control_plane.memo:
            await client.make_namespace(NAMESPACE)
            await client.apply(OBJECTS)
            await asyncio.to_thread(own_control_plane.keep_what_is_there)
            # Without a Lease the fence allows every binding.
            await client.create(plain("Lease", LEASE, "coordination.k8s.io/v1", spec={"holderIdentity": "other"}))
            await client.wait_until(lambda: acts(own_control_plane), "the fence to act", within=60)
            await client.delete("leases", LEASE)
            own_control_plane.memo["fenced"] = True
        await client.create(node("n"))
        yield client
        await asyncio.to_thread(own_control_plane.wipe)
        for kind in ("nodes", "pods"):
            await client.list(kind, limit="1")  # the server's cache has caught up


@pytest_asyncio.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[Proxy]:
    async with Proxy(cluster.control_plane) as running:
        yield running


@pytest.fixture
async def one(proxy: Proxy) -> AsyncIterator[Elector]:
    """A leader that may be bound to the fence, behind the proxy."""
    async with leader(proxy.kubeconfig_for("scheduler-a"), NAMESPACE) as elector:
        yield elector


class Reported:
    """Reports of a fence."""

    def __init__(self) -> None:
        self.states: list[FenceState] = []
        self.sentences: list[str] = []

    def __call__(self, state: FenceState, sentence: str) -> None:
        self.states.append(state)
        self.sentences.append(sentence)


def fence(elector: Elector, reported: Reported | None = None, **settings: Any) -> Fence:
    return Fence(elector.client, elector.election, namespace=NAMESPACE, on_change=reported or Reported(), **settings)


async def bind(client: Client, name: str, token: str | None) -> None:
    body = binding(name, "n", annotations={} if token is None else {FENCE: token})
    await client.request("POST", object_path("Pod", NAMESPACE, name, "binding"), body=json.dumps(body).encode())


async def refused(client: Client, name: str, token: str | None) -> str:
    with pytest.raises(ApiError) as response:
        await bind(client, name, token)
    assert "'capcard-sched-fence'" in response.value.message
    assert may_be_fenced(response.value.message)
    return f"{response.value.status} {response.value.message}"


@pytest.mark.compat
async def test_the_api_server_finds_nothing_wrong_with_the_manifest(cluster: Cluster) -> None:
    for document in yaml.safe_load_all(MANIFEST.read_text("utf-8")):
        path = POLICIES if document["kind"] == "ValidatingAdmissionPolicy" else BINDINGS
        document["metadata"]["name"] = "trial"
        response = await cluster.request(
            "POST", path, params={"dryRun": "All", "fieldValidation": "Strict"}, body=document
        )
        assert not response.get("status", {}).get("typeChecking", {}).get("expressionWarnings")


@pytest.mark.compat
async def test_a_deposed_leaders_binding_is_refused_and_the_new_leaders_passes(cluster: Cluster, one: Elector) -> None:
    await cluster.create_all([pod("p1"), pod("p2"), pod("p3")])
    async with standby(cluster.control_plane.kubeconfig_for("scheduler-a"), NAMESPACE) as two:
        old, new = fence(one), fence(two)
        assert await old.probe() is FenceState.ACTIVE
        assert old.token() == "a/0"
        await bind(one.client, "p1", old.token())
        await refused(two.client, "p2", new.token())
        await one.election.release()
        await until(lambda: two.leads, "the next leader")
        assert await new.probe() is FenceState.ACTIVE
        output = await refused(one.client, "p2", old.token())
        assert output.startswith("403")
        assert output.endswith("bound by a replica that does not lead: a/0")
        assert await cluster.bound() == {"p1": "n"}
        await bind(two.client, "p2", new.token())
        assert (await cluster.get("pods", "p2"))["metadata"]["annotations"][FENCE] == "b/1"
        await two.election.release()
        await asyncio.sleep(0.5)  # the policy has seen the Lease
        for token in ("b/1", "a/0", "/0", "/"):
            await refused(one.client, "p3", token)
        assert await cluster.bound() == {"p1": "n", "p2": "n"}


async def test_a_binding_that_left_in_time_and_arrives_after_the_takeover_is_refused(
    cluster: Cluster, proxy: Proxy, one: Elector
) -> None:
    await cluster.create(pod("p"))
    late = proxy.delay("POST", "pods/p/binding", 8.0)
    assert one.election.is_leader()
    binding = asyncio.create_task(refused(one.client, "p", fence(one).token()))
    await late.struck()
    proxy.reset("PUT", LEASE, times=None)  # cut off: its renewals do not arrive, its binding does
    async with Elector(cluster.control_plane.kubeconfig_for("scheduler-a"), NAMESPACE, "b") as two:
        await until(lambda: two.leads, "the next leader")
        assert not binding.done()
        assert "does not lead: a/0" in await binding
        assert await cluster.bound() == {}
        await bind(two.client, "p", fence(two).token())


async def test_a_binding_of_an_earlier_term_of_the_same_replica_is_refused(
    cluster: Cluster, proxy: Proxy, one: Elector
) -> None:
    await cluster.create(pod("p"))
    token = fence(one).token()
    proxy.reset("PUT", LEASE, times=None)
    await until(lambda: not one.leads, "its end")
    proxy.mend()
    await until(lambda: one.leads, "a new term")
    assert await fence(one).probe() is FenceState.ACTIVE
    assert "does not lead: a/0" in await refused(one.client, "p", token)
    await bind(one.client, "p", fence(one).token())


async def test_other_users_and_bindings_without_a_token_pass(cluster: Cluster, one: Elector) -> None:
    await cluster.create_all([pod("p1"), pod("p2"), pod("p3")])
    await refused(one.client, "p1", "somebody/7")
    async with Client(load_connection(str(cluster.control_plane.kubeconfig_for("scheduler-b")))) as other:
        await bind(other, "p1", None)
        await bind(other, "p2", "somebody/7")
    await bind(one.client, "p3", None)  # a replica of a version, or with a setting, without the fence
    assert set(await cluster.bound()) == {"p1", "p2", "p3"}


# --- ResourceClaims ---------------------------------------------------------------------------------------------------


async def test_a_deposed_leader_neither_allocates_nor_releases_a_claim(cluster: Cluster, one: Elector) -> None:
    """Its first write to a claim has the token of its term, its next ones come after the end of that term."""
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
    result = AllocatedDevice(request="r", driver="d", pool="n", device="g0")
    binds = []
    for name in ("c1", "c2"):
        made = await cluster.create(plain("ResourceClaim", name, "resource.k8s.io/v1", spec=spec))
        wanted = ClaimAllocation(name, made["metadata"]["uid"], Allocation(AllocatedDevices((result,))))
        binds.append(Bind(NAMESPACE, f"p-{name}", f"{name}-uid", "n", claims=(wanted,)))
    async with standby(cluster.control_plane.kubeconfig_for("scheduler-a"), NAMESPACE) as two:
        old, new = fence(one), fence(two)
        token = old.token()
        await reserve_claims(one.client, binds[0], fence=lambda: token)
        await one.election.release()
        await until(lambda: two.leads, "the next leader")
        assert await new.probe() is FenceState.ACTIVE
        with pytest.raises(ApiError, match="written by a replica that does not lead: a/0") as refusal:
            await reserve_claims(one.client, binds[1], fence=lambda: token)
        assert refusal.value.status == 403
        assert may_be_fenced(refusal.value.message)
        await release_claims(one.client, binds[0], fence=lambda: token)
        assert not (await cluster.get("resourceclaims", "c2"))["metadata"].get("finalizers")
        found = await cluster.get("resourceclaims", "c1")
        assert found["status"]["allocation"]
        assert {each["manager"] for each in found["metadata"]["managedFields"]} >= {f"{FENCE}=a/0"}
        await reserve_claims(two.client, binds[1], fence=new.token)
        await release_claims(two.client, binds[0], fence=new.token)
        assert not (await cluster.get("resourceclaims", "c1"))["status"].get("allocation")
        assert (await cluster.get("resourceclaims", "c2"))["status"]["allocation"]


async def test_other_users_and_claims_without_a_token_pass(cluster: Cluster, one: Elector) -> None:
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
    made = await cluster.create(plain("ResourceClaim", "c", "resource.k8s.io/v1", spec=spec))
    result = AllocatedDevice(request="r", driver="d", pool="n", device="g0")
    wanted = ClaimAllocation("c", made["metadata"]["uid"], Allocation(AllocatedDevices((result,))))
    async with Client(load_connection(str(cluster.control_plane.kubeconfig_for("scheduler-b")))) as other:
        await reserve_claims(other, Bind(NAMESPACE, "a", "a-uid", "n", claims=(wanted,)), fence=lambda: "none/7")
    again = ClaimAllocation("c", made["metadata"]["uid"])
    await reserve_claims(one.client, Bind(NAMESPACE, "b", "b-uid", "n", claims=(again,)))  # without the flag
    long = "x" * 128  # of a long host name
    await reserve_claims(one.client, Bind(NAMESPACE, "c", "c-uid", "n", claims=(again,)), fence=lambda: long)
    found = await cluster.get("resourceclaims", "c")
    assert [each["uid"] for each in found["status"]["reservedFor"]] == ["a-uid", "b-uid", "c-uid"]


# --- the probe --------------------------------------------------------------------------------------------------------


async def test_a_probe_changes_nothing_even_if_its_pod_exists(cluster: Cluster, one: Elector) -> None:
    reported = Reported()
    it = fence(one, reported)
    assert await it.probe() is FenceState.ACTIVE
    await cluster.create(pod(PROBE_POD))
    assert await it.probe() is FenceState.ACTIVE
    assert await cluster.bound() == {}
    await cluster.bind(PROBE_POD, "n")  # and when it is bound already
    assert await it.probe() is FenceState.ACTIVE
    assert reported.states == [FenceState.ACTIVE]


async def test_a_fence_that_has_not_seen_the_lease_is_found_active_once_it_has(proxy: Proxy, one: Elector) -> None:
    proxy.answer("POST", "binding", 409, times=4)  # as after an admission of two tokens, twice
    reported = Reported()
    assert await fence(one, reported, propagation=60).probe() is FenceState.ACTIVE
    assert reported.states == [FenceState.ACTIVE]


@pytest.mark.compat
async def test_the_probe_of_an_unfenced_user_finds_the_fence_absent_and_names_the_remedy(cluster: Cluster) -> None:
    async with leader(cluster.control_plane.kubeconfig_for("scheduler-b"), NAMESPACE) as one:
        reported = Reported()
        it = fence(one, reported)
        assert await it.probe() is FenceState.ABSENT
        assert "Apply manifests/base/admission-fence.yaml" in reported.sentences[0]
        assert it.token() == "a/0"  # so that it acts as soon as it is there


async def test_a_fence_on_another_lease_blocks_and_is_passed_by(cluster: Cluster) -> None:
    await cluster.create(pod("p"))
    kubeconfig = cluster.control_plane.kubeconfig_for("scheduler-a")
    async with Elector(kubeconfig, NAMESPACE, "a") as holder, Elector(kubeconfig, "default", "b") as one:
        await until(lambda: holder.leads and one.leads, "a leader of each Lease")
        reported = Reported()
        it = fence(one, reported, propagation=0.2)
        assert await it.probe() is FenceState.BLOCKING
        assert "rejects the current leader" in reported.sentences[0]
        assert it.token() is None
        await bind(one.client, "p", it.token())


async def test_a_probe_without_a_lease_of_ours_finds_nothing_out(one: Elector) -> None:
    await one.election.release()
    reported = Reported()
    assert await fence(one, reported).probe() is FenceState.UNKNOWN
    assert not reported.states


@pytest.mark.parametrize("status", [0, 403, 429, 500])
async def test_a_probe_without_a_conclusive_response_reports_it(status: int, proxy: Proxy, one: Elector) -> None:
    it = fence(one, reported := Reported())
    assert await it.probe() is FenceState.ACTIVE
    if status:
        proxy.answer("POST", "binding", status, times=None)
    else:
        proxy.reset("POST", "binding", times=None)
    assert await it.probe() is FenceState.UNKNOWN
    assert reported.states == [FenceState.ACTIVE, FenceState.UNKNOWN]
    assert "the probe was inconclusive: " in reported.sentences[1]
    assert it.token() == "a/0"


@pytest.mark.campaign
async def test_a_fence_whose_binding_was_made_again_is_found_blocking_until_the_api_server_restarts(
    cluster: Cluster, one: Elector
) -> None:
    reported = Reported()
    it = fence(one, reported)
    assert await it.probe() is FenceState.ACTIVE
    await cluster.request("DELETE", f"{BINDINGS}/capcard-sched-fence")
    await asyncio.sleep(2.5)  # the API server looks after its policies every second
    assert await it.probe() is FenceState.ABSENT
    await cluster.apply(OBJECTS[1])
    await cluster.delete("leases", LEASE)
    await cluster.wait_until(lambda: cluster.find("leases", LEASE), "the Lease made again by its leader")
    await cluster.patch("leases", LEASE, {"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 1}})
    await until(lambda: one.leads and one.election.transitions > 0, "a new term")
    await asyncio.sleep(1.0)
    assert await it.probe() is FenceState.BLOCKING
    assert it.token() is None
    await cluster.create(pod("p"))
    await bind(one.client, "p", it.token())
    await asyncio.to_thread(cluster.control_plane.restart_apiserver)
    await until(lambda: one.leads, "a leader")

    async def acts_again() -> bool:
        return await it.probe() is FenceState.ACTIVE

    await until(acts_again, "the fence to act")
    assert reported.states[:3] == [FenceState.ACTIVE, FenceState.ABSENT, FenceState.BLOCKING]
