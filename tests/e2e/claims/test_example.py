"""The example of docs/dra.md on a real cluster: the same devices, cards and reason as on the page."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from tests.controlplane.cluster import Cluster
from tests.controlplane.kubelet import Kubelet
from tests.docs.pages import ROOT, commands_of
from tests.e2e.claims.scenes import PATIENCE, held, prove
from tests.e2e.daemons import Controllers, Daemon
from tests.e2e.expectations import message, until
from tests.e2e.history import History

pytestmark = pytest.mark.campaign

_EXAMPLE = ROOT / "config/examples/dra"


def _page(begin: str, end: str) -> list[str]:
    """The lines between two others of what the first command of the page prints."""
    lines = (next(commands_of(ROOT / "docs/dra.md")).output or "").splitlines()
    return lines[lines.index(begin) + 1 : next(at for at, line in enumerate(lines) if line.startswith(end))]


def _quotas(lines: list[str]) -> list[list[str]]:
    """The rows of cards in a list of queues, without their graphs."""
    return [[word for word in line.split() if word[0] not in "█░"] for line in lines if "NVIDIA" in line]


async def _ask(cluster: Cluster, *words: str) -> list[str]:
    """The lines that a verb prints."""
    program = Path(sys.executable).with_name("capcard-sched")
    command = [str(program), *words, f"--kubeconfig={cluster.control_plane.kubeconfig}"]
    printed = await asyncio.to_thread(subprocess.check_output, command, text=True, timeout=120)
    return str(printed).splitlines()


async def test_the_example_of_the_page_runs_on_a_cluster(
    cluster: Cluster, kubelet: Kubelet, claim_controllers: None, device_history: History, tmp_path: Path
) -> None:
    cluster.namespace = "default"
    kubeconfig = cluster.control_plane.kubeconfig_for("scheduler-a")
    documents = [
        each
        for name in ("cluster", "jobs")
        for each in yaml.safe_load_all((_EXAMPLE / f"{name}.yaml").read_text("utf-8"))
    ]
    (serve,) = (each for each in documents if each["metadata"]["name"] == "serve")
    controllers = Controllers(cluster.control_plane.kubeconfig_for("scheduler-b"), tmp_path)
    async with controllers, Daemon(kubeconfig, tmp_path) as daemon:
        for each in documents:
            if each is not serve:
                await cluster.create(each)
        await until(cluster, "pods", count=5, within=PATIENCE, status={"phase": "Running"})
        # Its pods need no claims that another program makes first: created at once, both might get a card.
        await cluster.create(serve)
        await until(cluster, "pods", count=6, within=PATIENCE, status={"phase": "Running"})
        refused = "Queue research has no quota left: 4 of 4 NVIDIA-H200 used; 1 pending pod needs 1 NVIDIA-H200"
        assert any(refused in line for line in _page("Jobs", "Queues"))
        await until(cluster, "pods", "serve-server-*", within=PATIENCE, status=message("quota"))
        devices = await held(cluster)
        assert [len(devices[f"train-worker-{index}"]) for index in range(3)] == [1, 1, 1]
        partitions = [devices[f"notebooks-notebook-{index}"] for index in range(2)]
        assert sorted(partitions) == [["mig-1/gpu-0-mig-0"], ["mig-1/gpu-0-mig-1"]]
        sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for _, card, *amounts in [line.split() for line in await _ask(cluster, "card", "list")][1:]:
            sums[card] = [known + int(each) for known, each in zip(sums[card], amounts[:3], strict=True)]
        cards = [line.split() for line in _page("Cards", "After")][1:]
        assert sums == {card: [int(each) for each in amounts] for card, _, *amounts in cards}
        assert _quotas(await _ask(cluster, "queue", "list")) == _quotas(_page("Queues", "Cards"))
        jobs = {
            name: line for line in await _ask(cluster, "job", "list") for name in ("serve", "train") if name in line
        }
        assert refused in jobs["serve"]
        assert "3/3" in jobs["train"]
        await prove(device_history, kubelet, daemon)
        assert await daemon.stop() == 0
        assert await controllers.stop() == 0
