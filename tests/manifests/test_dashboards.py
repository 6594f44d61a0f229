"""Every panel of the Grafana dashboards has series in a Prometheus that scrapes the programs at work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from capcard_sched.model.annotations import CARD_QUOTA
from tests.clock import until
from tests.controlplane.build import needed
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import gang, gpu_node, plain, pod, pod_group, queue
from tests.controlplane.processes import end, free_port, spawn
from tests.daemon.usage.build import locate
from tests.e2e.daemons import Daemon
from tests.e2e.expectations import until_bound
from tests.e2e.test_claims import API, claim, claims_of, slice_of
from tests.manifests.documents import MANIFESTS

pytestmark = pytest.mark.processes

_A10, _REQUESTS = "A10", {"cpu": "1", "nvidia.com/gpu": "1"}
#: Variables of Grafana to their values: everything, and the time of several scrapes.
_VARIABLES: Final = {"$queue": ".*", "$card": ".*", "$namespace": ".*", "$__rate_interval": "30s"}
_CONF: Final = """
actions: "enqueue, allocate, backfill, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: drf}, {name: predicates}, {name: capacity-card}, {name: nodeorder}, {name: fragmentation}]
"""


async def _set_the_scene(cluster: Cluster) -> None:
    """A queue above its quota, one with a malformed quota, devices with claims, and pods to preempt."""
    of_class = {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]}
    await cluster.create_all(
        [
            gpu_node("n1", _A10, 4),
            gpu_node("n2", _A10, 4),
            gpu_node("n3", _A10, 4),
            queue("over", cards={_A10: 2}),
            queue("q", cards={_A10: 4}, capability={"cpu": "32"}),
            queue("malformed", annotations={CARD_QUOTA: "many"}),
            plain("PriorityClass", "high", "scheduling.k8s.io/v1", value=1000),
            plain("DeviceClass", "gpu.example.com", API, spec=of_class),
            slice_of("n1", 1),
            claim("claim"),
        ]
    )
    await cluster.create_all(
        [
            *gang("held", 4, queue="over", cards=_A10, requests=_REQUESTS),
            pod_group("low", queue="q"),
            *(pod(f"low-{member}", group="low", cards=_A10, requests=_REQUESTS) for member in range(4)),
            pod("claims", queue="q", resourceClaims=claims_of("claim")),
        ]
    )
    for member in range(4):
        await cluster.bind(f"held-{member}", "n1")


def _queries() -> list[tuple[str, str, str]]:
    """Dashboard, panel and query of every target."""
    return [
        (path.name, panel["title"], target["expr"])
        for path in sorted((MANIFESTS / "grafana").glob("*.json"))
        for panel in json.loads(path.read_text("utf-8"))["panels"]
        for target in panel.get("targets", ())
    ]


@contextmanager
def _prometheus(folder: Path, port: int) -> Iterator[str]:
    """The address of a Prometheus that scrapes a port each second."""
    program, own = needed(locate), free_port()
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "scheduler", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
    command: list[str | Path] = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    process = spawn(command, log=folder / "prometheus.log")
    try:
        yield f"http://127.0.0.1:{own}"
    finally:
        end(process, gently=5)


def _series(address: str, query: str) -> list[dict[str, Any]]:
    """The series of a query now; none while Prometheus starts. Fails for a query that Prometheus rejects."""
    for name, value in _VARIABLES.items():
        query = query.replace(name, value)
    try:
        with urlopen(f"{address}/api/v1/query?{urlencode({'query': query})}", timeout=60) as response:
            answer = json.load(response)
    except HTTPError as error:
        if error.code == 503:
            return []
        raise
    except URLError:
        return []
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


async def test_every_panel_has_series_in_a_prometheus(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await _set_the_scene(cluster)
    daemon = Daemon(control_plane.kubeconfig_for("scheduler-a"), tmp_path, conf=_CONF)
    with _prometheus(tmp_path, daemon.metrics_port) as address:
        async with Kubelet(control_plane), daemon:
            await daemon.settled()
            await until_bound(cluster, [f"low-{member}" for member in range(4)])
            urgent = gang("urgent", 2, queue="q", cards=_A10, requests=_REQUESTS, priorityClassName="high")
            urgent[0]["spec"]["priorityClassName"] = "high"
            await cluster.create_all([*urgent, *gang("waits", 2, queue="over", cards=_A10, requests=_REQUESTS)])
            missing = _queries()

            async def have_series() -> bool:
                for one in list(missing):
                    if await asyncio.to_thread(_series, address, one[2]):
                        missing.remove(one)
                return not missing

            with suppress(AssertionError):  # the comparison has the queries
                await until(have_series, "series of every panel", within=90)
            assert missing == []
