"""A cluster with the manifests on it and one daemon that works there, for many cases one after the other."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Self

from tests.controlplane.cluster import Cluster, RequestError, install_crds
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import gpu_node, pod, queue
from tests.controlplane.proxy import Proxy
from tests.e2e.daemons import Daemon
from tests.e2e.rbac.installed import SYSTEM, Installation, Right, install
from tests.e2e.rbac.volumes import storage_classes
from tests.manifests.documents import MANIFESTS

LEASE: Final = "capcard-sched"
_SHOWN_LINES: Final = 200
_LOUD: Final = frozenset({"warning", "error", "critical"})


class Bench:
    """An async context manager. `daemon` is the one under test; it goes to the API server through `proxy`."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self.cluster = Cluster(control_plane)
        self.proxy = Proxy(control_plane)
        self.installation = Installation(self.cluster, [], set())
        self._folder = folder
        self._numbers = itertools.count(1)
        self._stack = AsyncExitStack()
        self._kubeconfig = Path()
        self._daemon: Daemon | None = None

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.cluster)
        await self._stack.enter_async_context(self.proxy)
        await install_crds(self.cluster)
        self.cluster.namespace = await self.cluster.make_namespace()
        self.installation = await install(self.cluster, MANIFESTS / "base")
        self._kubeconfig = self._folder / "kubeconfig"
        shutil.copy(await self.installation.kubeconfig(self.proxy.url), self._kubeconfig)
        big = gpu_node("n1", "A10", 64, cpu=1000, memory="1000Gi", pods=1000)
        capability = {"cpu": "1000", "memory": "1000Gi"}
        await self.cluster.create_all([big, queue("q", cards={"A10": 4}, capability=capability), *storage_classes()])
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.end()
        await self._stack.aclose()

    # --- the daemon ---------------------------------------------------------------------------------------------------

    @property
    def daemon(self) -> Daemon:
        assert self._daemon is not None, "none runs"
        return self._daemon

    def another(self) -> Daemon:
        """A replica, not started."""
        return self.installation.daemon(self._kubeconfig, self._folder, name=f"daemon-{next(self._numbers)}")

    async def begin(self) -> None:
        """See to it that the daemon runs and leads."""
        if self._daemon is None:
            self._daemon = self.another()
            await self._daemon.start()
            await self._daemon.logged("caches synced")
            await self._daemon.logged("became leader")

    async def end(self) -> None:
        """Stop every daemon and release the Lease."""
        if self._daemon is not None:
            assert await self._daemon.stop() == 0
            self._daemon = None
        if await self.cluster.find("leases", LEASE, namespace=SYSTEM) is not None:
            await self.cluster.delete("leases", LEASE, namespace=SYSTEM)

    async def reported(self, right: Right, daemon: Daemon, since: int = 0) -> None:
        """Wait for a warning or an error, after `since` lines, that names the right in the API server's words."""
        words = re.compile(rf'cannot {right.verb} resource \\*"{re.escape(right.resource)}\\*"')

        def found() -> bool:
            lines = daemon.lines()[since:]
            return any(line["level"] in _LOUD and words.search(str(line)) for line in lines)

        await self.wait_until(found, f"the log line that it cannot {right}")

    async def wait_until(self, check: Callable[[], Any], what: str, *, within: float = 60.0) -> None:
        """Wait until it is so; when it is not, the daemon's last log lines go with the error."""
        try:
            await self.cluster.wait_until(check, what, within=within)
        except AssertionError as error:
            lines = [] if self._daemon is None else self._daemon.lines()
            error.add_note("\n".join(map(str, lines[-_SHOWN_LINES:])))
            raise

    # --- the cluster --------------------------------------------------------------------------------------------------

    def name(self) -> str:
        """One that nothing has yet."""
        return f"c{next(self._numbers)}"

    async def bound(self, *names: str) -> None:
        """Wait until these pods are bound."""

        async def there() -> bool:
            return set(names) <= set(await self.cluster.bound())

        await self.wait_until(there, f"{', '.join(names)} to be bound")

    async def binds(self, **spec: object) -> str:
        """Make a pod and wait until it is bound; returns its name."""
        name = self.name()
        await self.cluster.create(pod(name, **spec))  # type: ignore[arg-type]
        await self.bound(name)
        return name

    async def has_event(self, about: str, reason: str, *, count: int = 1, text: str = "") -> None:
        """Wait for an event."""

        async def there() -> bool:
            return any(
                event["involvedObject"]["name"] == about
                and event["reason"] == reason
                and event["count"] >= count
                and text in event["message"]
                for event in await self.cluster.list("events")
            )

        await self.wait_until(there, f"{count} events {reason} about {about}")

    async def has_condition(self, name: str) -> None:
        """Wait until a pod has the reason why it is not scheduled."""

        async def there() -> bool:
            found = await self.cluster.get("pods", name)
            return any(row["type"] == "PodScheduled" for row in found["status"].get("conditions", []))

        await self.wait_until(there, f"a condition on {name}")

    async def is_gone(self, name: str) -> None:
        """Wait until a pod is gone."""

        async def gone() -> bool:
            try:
                await self.cluster.get("pods", name)
            except RequestError as answer:
                return answer.status == 404
            return False

        await self.wait_until(gone, f"{name} to be gone")
