"""The fence of its manifest, with the rights of the manifests: a binding of a former leader that comes late."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.preparation import install_crds
from tests.controlplane.proxy import Proxy
from tests.e2e.checker import prove
from tests.e2e.daemons import CARD_CONF, QUICK_ELECTION, Daemon
from tests.e2e.expectations import until_bound
from tests.e2e.faults.workloads import create_gangs, furnish
from tests.e2e.history import History

_MANIFESTS = Path(__file__).resolve().parents[3] / "manifests"
_NAMESPACE = "capcard-system"
_FENCE = "capcard-sched.io/fence"


@pytest.fixture(scope="module")
def fenced(programs: Path) -> Iterator[ControlPlane]:
    """A control plane of this module: its policy must outlive every other test (kubernetes/kubernetes#130887)."""
    with ControlPlane(programs) as running:
        yield running


@pytest.fixture
async def cluster(fenced: ControlPlane) -> AsyncIterator[Cluster]:
    """A cluster in which the scheduler is installed with the fence, and does not run."""
    async with Cluster(fenced) as client:
        await install_crds(client)
        await client.apply(_MANIFESTS / "base" / "namespace.yaml")
        for manifest in ("serviceaccount", "rbac-leader-election", "rbac-scheduling", "rbac-volumes"):
            await client.apply(_MANIFESTS / "base" / f"{manifest}.yaml")
        await client.apply(_MANIFESTS / "base" / "admission-fence.yaml")
        client.namespace = await client.make_namespace()
        yield client


async def _leadership(cluster: Cluster) -> str:
    """Holder and term of the Lease, as a binding states them for the fence."""
    lease = (await cluster.get("leases", "capcard-sched", namespace=_NAMESPACE))["spec"]
    return f"{lease['holderIdentity']}/{lease['leaseTransitions']}"


@pytest.mark.campaign
async def test_a_binding_of_the_former_leader_that_was_on_its_way_is_refused(
    cluster: Cluster, history: History, proxy: Proxy, second_proxy: Proxy, tmp_path: Path
) -> None:
    token = await cluster.token_of("capcard-sched", namespace=_NAMESPACE)
    flags = (*QUICK_ELECTION, f"--leader-elect-resource-namespace={_NAMESPACE}", "--fence")
    one, two = (
        Daemon(
            cluster.control_plane.kubeconfig_for(token=token, server=way.url),
            tmp_path,
            *flags,
            conf=CARD_CONF,
            name=name,
        )
        for way, name in ((proxy, "one"), (second_proxy, "two"))
    )
    await furnish(cluster, cards=8)
    async with one:
        assert (await one.logged("fencing policy active", within=60))["state"] == "active"
        async with two:
            await two.logged("caches synced", within=60)
            late = proxy.hold("POST", "/binding$", nth=3, outlive=True)
            await create_gangs(cluster, ["g"], 8)
            await cluster.wait_until(lambda: late.held == 6, "six bindings on their way", within=60)
            former = await _leadership(cluster)
            # Its bindings are on their way, and its renewals do not arrive.
            for verb in ("GET", "PUT"):
                proxy.reset(verb, "/leases/", times=None)
            busy = second_proxy.hold("POST", "/pods/g-[0-9]+/binding$")
            await two.logged("became leader", within=60)
            assert (await two.logged("fencing policy active", within=60))["state"] == "active"
            await cluster.wait_until(lambda: busy.held == 6, "the next leader's bindings", within=60)
            late.release()
            await cluster.wait_until(lambda: late.statuses == [403] * 6, "the refusals", within=60)
            assert len(await cluster.bound()) == 2
            busy.release()
            await until_bound(cluster, 8)
            pods = await cluster.list("pods")
            tokens = Counter(pod["metadata"]["annotations"][_FENCE] for pod in pods)
            assert tokens.pop(former) == 2
            # On a slow machine the successor may lose the Lease between two bindings, and acquire it again.
            assert sum(tokens.values()) == 6
            holder, _, term = former.rpartition("/")
            later = [token.rpartition("/") for token in tokens]
            assert all(other != holder and int(number) > int(term) for other, _, number in later), tokens
            assert await _leadership(cluster) in tokens
            proxy.mend()
            await prove(history, one, two)
