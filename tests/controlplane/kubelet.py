"""Fake kubelets: they move bound pods to Running, and end pods that are deleted.

Like the real ones they start no pod whose ResourceClaims are not allocated and reserved for it: they try again, with an
event FailedPrepareDynamicResources.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import aiohttp

from tests.controlplane.cluster import ALL, Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.manifests import Manifest

_T = TypeVar("_T")
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_BOUND: Final = "spec.nodeName!="


class Kubelet:
    """The kubelets of all nodes, as user `kubelet`.

    Attributes:
        start_delay: Seconds from binding to Running, for pods seen from now on. `inf` leaves them Pending.
        stop_delay: Seconds from a pod's deletion to its end, if its grace period is not over before.
        refused: Pods that were bound without a claim that they need, with the reason.
    """

    def __init__(self, control_plane: ControlPlane, *, start_delay: float = 0.0, stop_delay: float = 0.0) -> None:
        self.start_delay = start_delay
        self.stop_delay = stop_delay
        self._cluster = Cluster(control_plane, user="kubelet")
        self.refused: list[tuple[str, str]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        #: Tasks per pod, by uid.
        self._starting: set[str] = set()
        self._ending: set[str] = set()
        self._slots = asyncio.Semaphore(16)

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        self._go(self._follow())
        return self

    async def __aexit__(self, _type: type[BaseException] | None, _value: object, _trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.__aexit__(None, None, None)
        if self._failures:
            raise self._failures[0]

    async def finish(self, name: str, *, namespace: str, phase: str = "Succeeded") -> None:
        """Ends a pod by itself: `phase` is Succeeded or Failed."""
        await self._patch(namespace, name, {"phase": phase, "conditions": _conditions(ready=False, why="PodCompleted")})

    # --- inside -------------------------------------------------------------------------------------------------------

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failures.append(failure)

    async def _follow(self) -> None:
        """Lists and watches bound pods, afresh whenever a watch ends or fails."""
        path = await self._cluster.path("pods", namespace=ALL)
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                listed = await self._cluster.request("GET", path, params={"fieldSelector": _BOUND})
                for pod in listed["items"]:
                    self._note(pod)
                await self._watch(listed["metadata"]["resourceVersion"])
            await asyncio.sleep(0.1)

    async def _watch(self, version: str) -> None:
        with contextlib.suppress(RequestError):
            async for event in self._cluster.watch("pods", fieldSelector=_BOUND, resourceVersion=version):
                if event["type"] == "ERROR":
                    break
                if event["type"] != "DELETED":
                    self._note(event["object"])

    def _note(self, pod: Manifest) -> None:
        meta, phase = pod["metadata"], pod["status"].get("phase")
        uid = meta["uid"]
        if "deletionTimestamp" in meta:
            if uid not in self._ending:
                self._ending.add(uid)
                self._go(self._end(pod))
        elif phase == "Pending" and uid not in self._starting:
            self._starting.add(uid)
            self._go(self._start(pod))

    async def _start(self, pod: Manifest) -> None:
        meta = pod["metadata"]
        await asyncio.sleep(self.start_delay)
        extended = pod["status"].get("extendedResourceClaimStatus")
        if (pod["spec"].get("resourceClaims") or extended) and not await self._prepared(pod):
            return
        now = _now()
        running = {"imageID": "", "ready": True, "restartCount": 0, "started": True}
        containers = [
            {"name": each["name"], "image": each["image"], "state": {"running": {"startedAt": now}}, **running}
            for each in pod["spec"]["containers"]
        ]
        status = {
            "phase": "Running",
            "startTime": now,
            "hostIP": "127.0.0.1",
            "podIP": "127.0.0.1",
            "conditions": _conditions(ready=True),
            "containerStatuses": containers,
        }
        current: Manifest | None = pod
        # In the version that was read: a pod that finished meanwhile does not run again.
        while current is not None and meta["uid"] not in self._ending and current["status"].get("phase") == "Pending":
            identity = {key: current["metadata"][key] for key in ("uid", "resourceVersion")}
            if await self._patch(meta["namespace"], meta["name"], status, identity):
                return
            current = await self._send(lambda: self._cluster.find("pods", meta["name"], namespace=meta["namespace"]))
            if current is not None and current["metadata"]["uid"] != meta["uid"]:
                return

    async def _prepared(self, pod: Manifest) -> bool:
        """Wait until the claims of a pod are allocated and reserved for it; False if the pod is gone before."""
        meta, reported = pod["metadata"], ""
        while meta["uid"] not in self._ending:
            missing = ""
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                current = await self._cluster.find("pods", meta["name"], namespace=meta["namespace"])
                if current is None or current["metadata"]["uid"] != meta["uid"]:
                    return False
                missing = await self._unprepared(current)
                if not missing:
                    return True
            if missing and missing != reported:
                reported = missing
                self.refused.append((meta["name"], missing))
                await self._cluster.create(_refusal(pod, missing))
            await asyncio.sleep(0.5)
        return False

    async def _unprepared(self, pod: Manifest) -> str:
        """What the first claim of a pod lacks; "" if none lacks anything."""
        meta = pod["metadata"]
        made = {row["name"]: row.get("resourceClaimName") for row in pod["status"].get("resourceClaimStatuses") or ()}
        wanted = [
            (each["name"], each.get("resourceClaimName") or made.get(each["name"], ""))
            for each in pod["spec"].get("resourceClaims") or ()
        ]
        if extended := pod["status"].get("extendedResourceClaimStatus"):
            wanted.append(("extended resources", extended["resourceClaimName"]))
        for entry, name in wanted:
            if name is None:
                continue
            claim = await self._cluster.find("resourceclaims", name, namespace=meta["namespace"]) if name else None
            if claim is None:
                return f"ResourceClaim {name or entry} not found"
            if not claim.get("status", {}).get("allocation"):
                return f"ResourceClaim {name} is not allocated"
            if meta["uid"] not in [consumer["uid"] for consumer in claim["status"].get("reservedFor") or ()]:
                return f"ResourceClaim {name} is not reserved for the pod"
        return ""

    async def _end(self, pod: Manifest) -> None:
        meta = pod["metadata"]
        grace = meta.get("deletionGracePeriodSeconds") or 0
        await asyncio.sleep(min(grace, self.stop_delay))
        if grace and pod["status"].get("phase") not in _ENDED:
            # Like the real one since 1.27: a pod is seen to end before it is gone.
            status = {"phase": "Failed", "conditions": _conditions(ready=False, why="PodFailed")}
            await self._patch(meta["namespace"], meta["name"], status, {"uid": meta["uid"]})
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        path = await self._cluster.path("pods", meta["name"], namespace=meta["namespace"])
        with _gone_is_fine():
            await self._send(lambda: self._cluster.request("DELETE", path, body=body))

    async def _patch(self, namespace: str, name: str, status: Manifest, identity: Manifest | None = None) -> bool:
        """Whether the pod is that of `identity`: its uid, and its version."""
        # A strategic merge leaves the conditions of others, the scheduler's among them, as they are.
        patch: Manifest = {"status": status, **({"metadata": identity} if identity else {})}
        with _gone_is_fine() if identity else contextlib.nullcontext():
            await self._send(
                lambda: self._cluster.patch(
                    "pods", name, patch, namespace=namespace, subresource="status", strategy="strategic-merge"
                )
            )
            return True
        return False

    async def _send(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Send a request until the API server processes it, as a kubelet does. Returns its response."""
        while True:
            try:
                async with self._slots:
                    return await request()
            except (TimeoutError, OSError, aiohttp.ClientError):
                pass
            except RequestError as error:
                if error.status < 500:
                    raise
            await asyncio.sleep(0.2)


def _refusal(pod: Manifest, message: str) -> Manifest:
    meta = pod["metadata"]
    about = {"kind": "Pod", **{key: meta[key] for key in ("name", "namespace", "uid")}}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
        "involvedObject": about,
        "reason": "FailedPrepareDynamicResources",
        "message": f"Failed to prepare dynamic resources: {message}",
        "type": "Warning",
        "source": {"component": "kubelet"},
    }


@contextlib.contextmanager
def _gone_is_fine() -> Any:
    """The object was deleted, or replaced by another one of its name, in the meantime."""
    try:
        yield
    except RequestError as answer:
        if answer.status not in {404, 409}:
            raise


def _conditions(*, ready: bool, why: str = "") -> list[Manifest]:
    status = "True" if ready else "False"
    reason = {"reason": why} if why else {}
    conditions: list[Manifest] = [
        {"type": row, "status": status, "lastTransitionTime": _now(), **reason} for row in ("Ready", "ContainersReady")
    ]
    if ready:
        conditions.append({"type": "Initialized", "status": "True", "lastTransitionTime": _now()})
    return conditions


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
