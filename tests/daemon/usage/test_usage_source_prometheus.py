"""Node usage from a real Prometheus: pods avoid the busy node."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.controlplane.build import needed
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import node, pod
from tests.controlplane.processes import end, free_port, spawn, tail
from tests.daemon.usage.build import locate
from tests.e2e.daemons import Daemon
from tests.e2e.expectations import until_bound

pytestmark = pytest.mark.processes

#: Node to the used share of its cores and memory.
LOADS = {"a-busy": (0.95, 0.5), "b-idle": (0.1, 0.2)}
#: Resolution of the averages: they are aligned to it, and the first one needs two samples.
STEP = "1s"
#: Seconds: until the first average on a busy machine.
FIRST_AVERAGE = 60.0
_GIB = 2**30
_BEGAN = time.monotonic()


class Exporter(BaseHTTPRequestHandler):
    """A node exporter of machines with two cores and 100 GiB; one page each."""

    def do_GET(self) -> None:
        busy, full = LOADS[self.path.strip("/")]
        seconds = 1000 + time.monotonic() - _BEGAN
        lines = ["# TYPE node_cpu_seconds_total counter"]
        for core in "01":
            for mode, share in (("idle", 1 - busy), ("user", busy / 2), ("system", busy / 2)):
                lines.append(f'node_cpu_seconds_total{{cpu="{core}",mode="{mode}"}} {share * seconds:.6f}')
        lines += [
            "# TYPE node_memory_MemTotal_bytes gauge",
            f"node_memory_MemTotal_bytes {100 * _GIB}",
            "# TYPE node_memory_MemAvailable_bytes gauge",
            f"node_memory_MemAvailable_bytes {(1 - full) * 100 * _GIB:.0f}",
        ]
        content = "\n".join([*lines, ""]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that scrapes the exporter every second."""
    program = needed(locate)
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    config, log = folder / "prometheus.yml", folder / "prometheus.log"
    command: list[str | Path] = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as exporter:
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        lines = ["global: {scrape_interval: 1s}", "scrape_configs:"]
        for name in LOADS:
            target = f"{{targets: ['127.0.0.1:{exporter.server_port}'], labels: {{instance: '{name}:9100'}}}}"
            lines.append(f"- {{job_name: {name}, metrics_path: /{name}, static_configs: [{target}]}}")
        config.write_text("\n".join(lines))
        process = spawn(command, log=log)
        try:
            _wait_ready(f"http://127.0.0.1:{port}/-/ready", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            end(process, gently=5)
            exporter.shutdown()


def _wait_ready(page: str, log: Path) -> None:
    for _ in range(400):
        try:
            with urlopen(page) as answer:
                if answer.status == 200:
                    return
        except URLError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"Prometheus did not become ready:\n{tail(log)}")


def conf(address: str) -> str:
    return (
        'actions: "enqueue, allocate"\n'
        "tiers:\n"
        "- plugins: [{name: gang}, {name: predicates}, {name: usage, arguments: {thresholds: {cpu: 80, mem: 80}}}]\n"
        f"metrics: {{type: prometheus, address: '{address}', interval: 1s}}\n"
    )


@pytest.mark.campaign
async def test_the_daemon_avoids_a_node_that_is_busy_in_prometheus(
    prometheus: str, cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    await cluster.create_all([node(name) for name in LOADS])
    kubeconfig = control_plane.kubeconfig_for("scheduler-a")
    daemon = Daemon(kubeconfig, tmp_path, conf=conf(prometheus))
    daemon.command[:1] = [sys.executable, Path(__file__).with_name("quick_usage.py"), STEP]
    async with daemon:
        await daemon.logged("caches synced")

        async def measured() -> bool:
            # The first averages are over a few scrapes, whose times vary on a busy machine.
            usage = [await daemon.metric("volcano_usage_nodes", state=s) for s in ("measured", "over_threshold")]
            return usage == [len(LOADS), 1]

        await cluster.wait_until(measured, "both nodes to be measured", within=FIRST_AVERAGE)
        await cluster.create_all([pod("p"), pod("p2")])

        assert await until_bound(cluster, 2, within=60) == {"p": "b-idle", "p2": "b-idle"}
        assert await daemon.metric("volcano_usage_nodes", state="over_threshold") == 1
        assert await daemon.metric("volcano_node_usage_polls_total", result="measured") >= 1

        async def recent() -> bool:
            return await daemon.metric("volcano_node_usage_age_seconds") < 30

        await cluster.wait_until(recent, "the gauge to show the measurement", within=60)
        await daemon.stop()
