"""Hypothesis profiles, and the fixtures that give a test a real API server (tests/controlplane/README.md)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, settings

from capcard_sched.kube.instrumentation import Observer
from tests.controlplane import deprecations
from tests.controlplane.build import needed
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.deprecations import DeprecatedApiError
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.preparation import prepare
from tests.controlplane.proxy import Proxy

if TYPE_CHECKING:
    from _pytest.fixtures import SubRequest

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

#: Folders whose tests run servers, threads and event loops: a race of one of them is no fault of the change.
_CONCURRENT = tuple(Path(__file__).parent / folder for folder in ("web", "daemon", "kube", "unit/extender"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite`: see tests/vectors."""
    parser.addoption("--rewrite", action="store_true", help="write what vectors expect anew, with what the code gives")


def pytest_configure() -> None:
    """Has the programs under test heed SIGINT, which a shell has its background commands and their children ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests on a real API server: `-m 'not controlplane'` leaves them out, and a failed one runs again.

    So does one of the concurrent folders and one with the marker `processes`. A race in a test does not reject a
    change; docs/flaky.md has the rule. A deprecated API is no race.
    """
    for item in items:
        on_server = "programs" in getattr(item, "fixturenames", ())
        if on_server:
            item.add_marker(pytest.mark.controlplane)
        concurrent = any(map(item.path.is_relative_to, _CONCURRENT))
        if on_server or concurrent or item.get_closest_marker("processes"):
            item.add_marker(pytest.mark.flaky(reruns=2, rerun_except=DeprecatedApiError))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ends what the tests of a module share before a test runs again: it gets a state as new as the first time."""
    if isinstance(item, pytest.Function) and getattr(item, "execution_count", 1) > 1:
        for name, definitions in item._fixtureinfo.name2fixturedefs.items():
            for each in definitions:
                if each.scope in {"class", "module", "package"} and not name.startswith("_"):  # pytest's own stay
                    each.finish(cast("SubRequest", item._request))


@pytest.fixture(scope="session", autouse=True)
def verbs_leave_garbage_alone() -> Iterator[None]:
    """A verb that runs in the process of its test does not collect the garbage of all tests, which takes 0.2 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("capcard_sched.gc.settle_memory", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def record_warnings() -> Iterator[None]:
    """Records the warnings of the API server to clients of the product in this process."""
    warned = Observer.warned

    def recorded(self: Observer, text: str) -> None:
        deprecations.record(type(self).__name__, text)
        warned(self, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Observer, "warned", recorded)
        yield


@pytest.fixture(autouse=True)
def no_deprecated_api() -> Iterator[None]:
    """Fails a test in which a client used a deprecated API; it ends after the other fixtures of the test."""
    yield
    if found := deprecations.take():
        raise DeprecatedApiError("the API server reports deprecated APIs:\n" + "\n".join(found))


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the control plane's programs. A test on a real API server uses this fixture, and no other test."""
    return needed()


@pytest.fixture(scope="session")
def control_plane(programs: Path) -> Iterator[ControlPlane]:
    """A running etcd and kube-apiserver, one per process of pytest, started by the first test that uses it."""
    with ControlPlane(programs) as running:
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
