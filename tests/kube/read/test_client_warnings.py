"""Warning headers of the API server: the product logs them, and a deprecated API fails the test that uses it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from capcard_sched.kube import instrumentation
from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
from capcard_sched.kube.errors import warnings_of
from tests.clock import until
from tests.controlplane import deprecations
from tests.controlplane.cluster import Cluster
from tests.controlplane.processes import end, output, spawn
from tests.controlplane.proxy import Proxy

STATUSES = "/api/v1/componentstatuses"
ENDPOINTS = "/api/v1/namespaces/default/endpoints"
DEPRECATED = "v1 ComponentStatus is deprecated in v1.19+"


@pytest.fixture
def nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrumentation, "_logged_warnings", set())


async def test_a_warning_is_logged_once_per_text(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, nothing_logged: None
) -> None:
    connection = load_connection(str(cluster.control_plane.kubeconfig))
    for _ in range(2):  # two clients, as of the scheduler and of its Lease
        async with Client(connection) as client:
            await client.request("GET", STATUSES)
            await client.request("GET", ENDPOINTS)
            async with client.stream(ENDPOINTS, {"watch": "true"}):
                pass
    logged = [row for row in caplog.records if row.name == instrumentation.__name__]
    assert {row.levelno for row in logged} == {logging.WARNING}
    endpoints = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
    assert [row.getMessage() for row in logged] == [f"API server warning: {text}" for text in (DEPRECATED, endpoints)]
    assert deprecations.take() == [f"Observer: {DEPRECATED}", f"Observer: {endpoints}"]


def test_the_number_of_logged_warnings_is_limited(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, nothing_logged: None
) -> None:
    monkeypatch.setattr(instrumentation, "_MAX_WARNINGS", 2)
    for text in "abcab":
        instrumentation.Observer().warned(text)
    assert [row.getMessage()[-1] for row in caplog.records] == ["a", "b"]


PROGRAM = f"""
import asyncio, sys, time
from capcard_sched.kube.client import Client
from capcard_sched.kube.connection import load_connection
async def main():
    async with Client(load_connection(sys.argv[1])) as client:
        await client.request("GET", "{STATUSES}")
asyncio.run(main())
time.sleep(600)
"""


async def test_deprecations_are_recorded_from_every_client(cluster: Cluster, proxy: Proxy, tmp_path: Path) -> None:
    direct, proxied = cluster.control_plane.kubeconfig, proxy.kubeconfig_for()
    await cluster.request("GET", STATUSES)
    assert deprecations.take() == [f'GET {STATUSES}: 299 - "{DEPRECATED}"']
    kubectl = cluster.control_plane.programs / "kubectl"
    await output(kubectl, f"--kubeconfig={direct}", "get", "componentstatuses")
    assert deprecations.take() == [f"{kubectl}: {DEPRECATED}"]
    await output(kubectl, f"--kubeconfig={proxied}", "get", "componentstatuses")
    assert deprecations.take() == [f'GET {STATUSES}: 299 - "{DEPRECATED}"', f"{kubectl}: {DEPRECATED}"]
    log = tmp_path / "program.log"
    process = spawn([sys.executable, "-c", PROGRAM, str(direct)], log=log)
    try:
        assert await until(deprecations.take, "the log to have a warning", within=60) == [f"program.log: {DEPRECATED}"]
    finally:
        end(process)


@pytest.mark.parametrize(
    "values, texts",
    [
        ([], []),
        (['299 - "v1 A is deprecated"'], ["v1 A is deprecated"]),
        (['299 - "a, \\"b\\" and \\\\"', '299 host:1 "c" "Wed, 21 Oct 2015 07:28:00 GMT"'], ['a, "b" and \\', "c"]),
        (['299 - "one", 299 - "two"'], ["one", "two"]),
        (['110 - "Response is stale"', "299 - no quotes", '299 - "unfinished'], []),
    ],
)
def test_texts_of_warning_headers(values: list[str], texts: list[str]) -> None:
    headers = [(b"retry-after", '299 - "1"'), *((b"warning", value) for value in values)]
    assert warnings_of(headers) == texts
