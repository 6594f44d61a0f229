"""The admission server of the soak: it is killed and restarted while requests check the refusals of the API server.

Documented (docs/security.md, failures): while no replica serves, PodGroups and vcjobs of our scheduler are refused and
its pods pass; objects of other schedulers always pass. The requests are trials (`dryRun`); the admission policies apply
to their user.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aiohttp

from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import job, pod, pod_group, queue
from tests.e2e.admission.server import Admission
from tests.e2e.rbac.installed import SYSTEM
from tests.manifests.test_foreign_objects import Attempt, create, foreign, response
from tests.soak.tenant import TENANT

FOREIGN_NAMESPACE: Final = "foreign"
_OTHER: Final = "other-scheduler"
_NODE: Final = "a10-0"
#: The server is down, or did not respond.
_UNSERVED: Final = "failed calling webhook"
#: Texts of refusals by webhooks and policies; other errors are those of an API server that restarts.
_REFUSED: Final = (_UNSERVED, "denied the request", "ValidatingAdmissionPolicy")
#: Seconds between two rounds of requests.
_STEP: Final = 0.5


def foreign_attempts() -> list[Attempt]:
    """Requests about objects of another scheduler, by a user whom no policy exempts."""
    return [attempt if attempt.user else attempt._replace(user=TENANT) for attempt in foreign(_OTHER)]


def own_attempts() -> list[tuple[Attempt, bool]]:
    """Valid objects of our scheduler, and whether they pass while no replica serves."""
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "100m"}}}
    tasks = [{"name": "w", "replicas": 1, "template": {"spec": {"containers": [container]}}}]
    return [
        (create("podgroup", pod_group("new", queue="batch"), "podgroups"), False),
        (create("vcjob", job("new", 1, queue="batch", tasks=tasks), "jobs.batch.volcano.sh"), False),
        (create("pod", pod("new"), "pods"), True),
    ]


def violation(name: str, text: str, *, is_foreign: bool, serves: bool, passes_unserved: bool) -> str:
    """The violation that the response to a request is; "" for none.

    `text`: the error, empty for an accepted request; `serves`: True if the server was ready all the time, False if it
    was down.
    """
    refused = any(each in text for each in _REFUSED)
    if is_foreign:
        return f"{name} of another scheduler is refused: {text}" if refused else ""
    if serves or passes_unserved:
        return (
            f"{name} is refused while the admission server {'serves' if serves else 'is down'}: {text}"
            if refused
            else ""
        )
    if text == "":
        return f"{name} passes unchecked while the admission server is down"
    return f"{name} is refused by another rule: {text}" if refused and _UNSERVED not in text else ""


class AdmissionFaults:
    """The server, its ends, and the requests."""

    def __init__(self, cluster: Cluster, control_plane: ControlPlane, folder: Path) -> None:
        self._cluster = cluster
        self._server = Admission(cluster, folder)
        self._client = Cluster(control_plane, namespace=FOREIGN_NAMESPACE)
        self._lock = asyncio.Lock()
        #: None while it starts or ends.
        self._serves: bool | None = None
        #: Changes of `_serves`.
        self._changes = 0
        self.starts = 0
        #: Requests by kind and state of the server.
        self.requests: Counter[str] = Counter()
        self.violations: list[str] = []

    async def start(self) -> None:
        """The installed webhooks, the server, and two pods of another scheduler."""
        await self._client.__aenter__()
        for name in (SYSTEM, FOREIGN_NAMESPACE):
            await self._cluster.make_namespace(name)
        for name in ("root", "default"):
            await self._cluster.create(queue(name))
        await self._client.create_all([pod("there", scheduler=_OTHER), pod("bound", scheduler=_OTHER)])
        await self._client.bind("bound", _NODE)
        await self._server.install()
        await self._begin()

        async def refuses() -> bool:
            return "nowhere not found" in str(await self._cluster.rejection(queue("probe", parent="nowhere")))

        await self._cluster.wait_until(refuses, "the webhooks", within=60)
        self._set(True)

    async def stop(self) -> None:
        """End the server."""
        await self._client.__aexit__(None, None, None)
        await asyncio.to_thread(self._server.kill)

    def running(self) -> Iterator[tuple[str, int]]:
        """Name and pid of the server."""
        if self.starts:
            yield f"admission-{self.starts}", self._server.pid

    async def _begin(self) -> None:
        self._set(None)
        await self._server.start()
        self.starts += 1

    def _set(self, serves: bool | None) -> None:
        self._serves = serves
        self._changes += 1

    async def kill(self, seconds: float) -> bool:
        """Kill the server; it runs again after some time."""
        async with self._lock:
            self._set(None)
            await asyncio.to_thread(self._server.kill)
            self._set(False)
            await asyncio.sleep(seconds)
            await self._begin()
            self._set(True)
        return True

    async def heal(self) -> None:
        """The server runs."""
        async with self._lock:
            if not self._serves:
                await self._begin()
                self._set(True)

    async def run(self) -> None:
        """Send requests until cancelled.

        Those during which the server starts or ends are checked for other schedulers only.
        """
        while True:
            for attempt in foreign_attempts():
                await self._attempt(attempt, is_foreign=True)
            for attempt, passes_unserved in own_attempts():
                await self._attempt(attempt, is_foreign=False, passes_unserved=passes_unserved)
            await asyncio.sleep(_STEP)

    async def _attempt(self, attempt: Attempt, *, is_foreign: bool, passes_unserved: bool = False) -> None:
        serves, changes = self._serves, self._changes
        try:
            async with asyncio.timeout(20):
                text = await response(self._client, attempt)
        except (OSError, TimeoutError, aiohttp.ClientError):
            return  # the API server restarts
        if not is_foreign and (serves is None or changes != self._changes):
            return
        self.requests[f"{'foreign' if is_foreign else 'own'}, {'served' if serves else 'not served'}"] += 1
        found = violation(
            attempt.name, text, is_foreign=is_foreign, serves=bool(serves), passes_unserved=passes_unserved
        )
        if found:
            self.violations.append(found)
