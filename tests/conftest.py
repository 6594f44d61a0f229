"""Hypothesis profiles, and the fixtures that give a test a real API server (tests/controlplane/README.md)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, settings

from tests.controlplane.build import needed
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.preparation import prepare
from tests.controlplane.proxy import Proxy

# `make test` tries a quarter of the examples of `make campaign`; both repeat the same ones. `dev` searches on.
# A test that needs more or fewer has a multiple or a part of these counts.
settings.register_profile(
    "campaign",
    max_examples=80,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("test", settings.get_profile("campaign"), max_examples=20)
# A random mutant needs a failure, not the simplest one.
settings.register_profile("mutation", settings.get_profile("test"), phases=(Phase.explicit, Phase.generate))
settings.register_profile("dev", max_examples=300, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite`: see tests/vectors."""
    parser.addoption("--rewrite", action="store_true", help="write what vectors expect anew, with what the code gives")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that use the control plane, so that `-m 'not controlplane'` leaves them all out."""
    for item in items:
        if "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.controlplane)


@pytest.fixture(scope="session", autouse=True)
def verbs_leave_garbage_alone() -> Iterator[None]:
    """A verb that runs in the process of its test does not collect the garbage of all tests, which takes 0.2 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capcard_sched.gc.settle_memory", lambda: None)
        yield


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A running etcd and kube-apiserver, one per process of pytest, started by the first test that uses it."""
    with ControlPlane(needed()) as running:
        yield running


@pytest_asyncio.fixture
async def cluster(control_plane: ControlPlane) -> AsyncIterator[Cluster]:
    """A client of the API server as its admin, with our CRDs, an empty cluster and a new namespace."""
    async with Cluster(control_plane) as client:
        await prepare(client)
        client.namespace = await client.make_namespace()
        yield client
        control_plane.start()
        await client.wipe()


@pytest_asyncio.fixture
async def kubelet(cluster: Cluster) -> AsyncIterator[Kubelet]:
    """Fake kubelets: pods that are bound run, pods that are deleted go."""
    async with Kubelet(cluster.control_plane) as running:
        yield running


@pytest_asyncio.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[Proxy]:
    """A proxy before the API server that injects the configured faults."""
    async with Proxy(cluster.control_plane) as running:
        yield running
