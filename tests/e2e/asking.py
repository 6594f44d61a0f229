"""Commands about a live cluster, run in the process of a test."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from capcard_sched.cli.main import run
from capcard_sched.cli.sources.source import INSTALLED_CONF
from capcard_sched.model import annotations as keys
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import gang, gpu_node, pod_group, queue

A10, H200 = "A10", "NVIDIA-H200"
CARD: Final = {"cpu": "1", "nvidia.com/gpu": "1"}
NO_CONF: Final = f"note: ConfigMap {INSTALLED_CONF}: not found; using the built-in scheduler-conf\n"


class Answer(NamedTuple):
    """Exit code and output of a command."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class LiveCommand:
    """Commands about the cluster, run in this process."""

    def __init__(self, kubeconfig: Path, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self._capsys = capsys

    async def __call__(self, *words: str, kubeconfig: Path | None = None) -> Answer:
        return await self.without(*words, f"--kubeconfig={kubeconfig or self.kubeconfig}")

    async def without(self, *words: str) -> Answer:
        """A command that reads files."""
        self._capsys.readouterr()
        status = await asyncio.to_thread(run, [*words])
        return Answer(status, *self._capsys.readouterr())

    async def explain(self, name: str, *words: str) -> Answer:
        return await self("explain", name, "-n", self.namespace, *words)


async def set_the_scene(cluster: Cluster) -> None:
    """`runs` holds 4 of 4 cards, `waits` requests 2 more, and `fits` of another queue is not scheduled yet."""
    await cluster.create_all(
        [
            gpu_node("n1", A10, 8),
            gpu_node("n2", H200, 2),
            queue("q", cards={A10: 4, "X": 1}, capability={"cpu": "32"}),
            queue("other", cards={A10: 2, H200: 2}),
        ]
    )
    await cluster.create_all(
        [
            *gang("runs", 4, queue="q", cards=A10, requests=CARD),
            *gang("waits", 2, queue="q", cards=A10, requests=CARD),
            *gang("fits", 2, queue="other", cards=A10, requests=CARD),
            pod_group("early", queue="other", members=1, annotations={keys.CARD_REQUEST: f'{{"{H200}":2}}'}),
        ]
    )
    for member in range(4):
        await cluster.bind(f"runs-{member}", "n1")
    for name, phase in {"runs": "Running", "early": "Inqueue"}.items():
        await cluster.patch("podgroups", name, {"status": {"phase": phase}})
