"""The admission server as its manifests install it; webhooks reach it by URL, as no proxy serves the Service here."""

from __future__ import annotations

import asyncio
import base64
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import Manifest, queue
from tests.controlplane.processes import end, free_port, spawn, tail
from tests.e2e.rbac.installed import SYSTEM, account
from tests.manifests.documents import MANIFESTS, arguments, kustomized

NAME = "capcard-sched-admission"


class Admission:
    """One admission server with the rights and flags of the manifests; webhooks reach it by URL."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.port, self.health = free_port(), free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._command: list[str | Path] = []

    async def install(self, folder: Path = MANIFESTS / "admission", authorities: str = "") -> None:
        """Apply a kustomization; with `authorities`, PEM, in the place of cert-manager."""
        kubectl = self.cluster.control_plane.programs / "kubectl"
        for manifest in await asyncio.to_thread(kustomized, kubectl, folder):
            if manifest["apiVersion"].startswith("cert-manager.io/"):
                continue
            self._call_by_url(manifest)
            if authorities and manifest["kind"].endswith("WebhookConfiguration"):
                for hook in manifest["webhooks"]:
                    hook["clientConfig"]["caBundle"] = base64.b64encode(authorities.encode()).decode()
            await self.cluster.apply(manifest)

    async def redirect(self) -> None:
        """Call the webhooks that are installed by URL."""
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            for manifest in await self.cluster.list(kind):
                manifest |= {"kind": kind, "apiVersion": "admissionregistration.k8s.io/v1"}
                self._call_by_url(manifest)
                await self.cluster.update(manifest)

    def _call_by_url(self, manifest: Manifest) -> None:
        if manifest["kind"].endswith("WebhookConfiguration"):
            for hook in manifest["webhooks"]:
                path = hook["clientConfig"].pop("service")["path"]
                hook["clientConfig"]["url"] = f"https://127.0.0.1:{self.port}{path}"

    async def start(self, *flags: str) -> None:
        """Start a process, on the same ports as the former one, and wait until it is ready. `flags`: further ones."""
        self._command = [*(self._command or await self._words()), *flags]
        self._process = spawn(self._command, log=self._folder / "admission.log")
        await self.cluster.wait_until(self._ready, "the admission server to be ready", within=90)

    async def _words(self) -> list[str | Path]:
        flags = arguments(await self.cluster.get("deployments", NAME, namespace=SYSTEM))
        kubeconfig = await account(self.cluster, NAME)
        own = ("--port=", "--webhook-namespace=")
        return [
            Path(sys.executable).with_name("capcard-sched"),
            *(flag.replace("/certificates/", f"{self._folder}/") for flag in flags if not flag.startswith(own)),
            f"--kubeconfig={kubeconfig}",
            f"--webhook-namespace={SYSTEM}",
            "--webhook-host=127.0.0.1",
            f"--port={self.port}",
            f"--healthz-address=127.0.0.1:{self.health}",
        ]

    async def _ready(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.health}/readyz") as response,
            ):
                return response.status == 200
        except aiohttp.ClientError:
            assert self._process is not None
            assert self._process.poll() is None, tail(self._folder / "admission.log")
            return False

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            end(self._process)

    def stop(self) -> None:
        if self._process is not None:
            end(self._process, gently=5)
            assert self._process.returncode == 0, tail(self._folder / "admission.log")

    def certificate(self) -> str:
        """The serving certificate that a new connection sees, PEM."""
        return ssl.get_server_certificate(("127.0.0.1", self.port))


@asynccontextmanager
async def serving(cluster: Cluster, folder: Path) -> AsyncIterator[Admission]:
    """The installed admission server, which the API server calls, beside the queues that exist everywhere."""
    await cluster.make_namespace(SYSTEM)
    await cluster.apply([queue("root"), queue("default")])
    server = Admission(cluster, folder)

    async def ready() -> bool:  # the API server has seen webhooks and caBundle when the server rejects something
        return "denied the request" in str(await cluster.rejection(queue("probe", weight=1, parent="nowhere")))

    try:
        await server.install()
        await server.start()
        await cluster.wait_until(ready, "the webhooks", within=60)
        yield server
    finally:
        server.stop()
