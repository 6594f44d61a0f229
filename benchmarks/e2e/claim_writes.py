"""A helper that allocates claims and binds their pods as fast as the API server takes it, with no scheduling at all.

Per pod it sends what the scheduler sends: it reads the claim, adds the finalizer, writes allocation and reservation,
and binds the pod. Devices are given in turn.
"""

from __future__ import annotations

import asyncio
import resource
import time
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.e2e import objects
from benchmarks.e2e.helper import Helper, Target, read_job, say
from benchmarks.e2e.raw import RawDone
from benchmarks.e2e.watcher import Ready, Seen, WatchJob
from capcard_sched.kube.claims import FINALIZER
from capcard_sched.kube.paths import object_path
from capcard_sched.kube.writes import requests
from capcard_sched.kube.writes.requests import MERGE
from capcard_sched.model.intents import Bind

if TYPE_CHECKING:
    import aiohttp

    from benchmarks.e2e.server import Server

DRIVER = "gpu.example.com"
_KIND = "ResourceClaim"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
#: Seconds: everything takes less, or something is wrong.
_LIMIT = 1_200.0


class ClaimWrites(msgspec.Struct, frozen=True):
    """Send these writes on this number of connections."""

    target: Target
    connections: int
    #: (pod, uid, node, device); the claim has the name of the pod.
    pods: list[tuple[str, str, str, str]]


async def flood(job: ClaimWrites) -> None:
    """Allocate all claims, bind all pods and report."""
    waiting = job.pods[::-1]
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    async with job.target.session(job.connections) as session:

        async def work() -> None:
            while waiting:
                await _write(session, *waiting.pop())

        async with asyncio.TaskGroup() as group:
            for _ in range(job.connections):
                group.create_task(work())
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    say(RawDone(time.monotonic() - began, used))


async def _write(session: aiohttp.ClientSession, pod: str, uid: str, node: str, device: str) -> None:
    space = objects.RAW_NAMESPACE
    path = object_path(_KIND, space, pod)
    version = (await _send(session, "GET", path))["metadata"]["resourceVersion"]
    metadata = {"resourceVersion": version, "finalizers": [FINALIZER]}
    version = (await _send(session, "PATCH", path, {"metadata": metadata}))["metadata"]["resourceVersion"]
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": device}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": selector}
    status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}]}
    patch = {"metadata": {"resourceVersion": version}, "status": status}
    await _send(session, "PATCH", object_path(_KIND, space, pod, "status"), patch)
    binding = requests.binding(Bind(space, pod, uid, node), None)
    await _send(session, "POST", object_path("Pod", space, pod, "binding"), msgspec.Raw(binding))


async def _send(session: aiohttp.ClientSession, method: str, path: str, body: object = None) -> Any:
    data = None if body is None else msgspec.json.encode(body)
    headers = {"Content-Type": MERGE if method == "PATCH" else "application/json"}
    async with session.request(method, path, data=data, headers=headers) as answer:
        content = await answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")
        return msgspec.json.decode(content)


# --- the side of the benchmark ----------------------------------------------------------------------------------------


async def raw_claim_rate(server: Server, pods: list[objects.Document], nodes: int, connections: int) -> float:
    """Pods per second from the first binding to the last, of copies of these pods with a claim of their name each."""
    space = objects.RAW_NAMESPACE
    made = [_in_space(pod, space) for pod in pods]
    await server.create(claim_of(pod) for pod in made)
    uids = await server.create(made)
    work = [
        (pod["metadata"]["name"], uid, f"node-{number % nodes:05d}", f"gpu-{number // nodes}")
        for number, (pod, uid) in enumerate(zip(made, uids, strict=True))
    ]
    async with Helper("benchmarks.e2e.watcher", WatchJob(server.target, space, len(work))) as watcher:
        await watcher.answer(Ready, _LIMIT)
        async with Helper("benchmarks.e2e.claim_writes", ClaimWrites(server.target, connections, work)) as client:
            await client.answer(RawDone, _LIMIT)
            seen = await watcher.answer(Seen, _LIMIT)
    await server.delete_all(f"/api/v1/namespaces/{space}/pods")
    await delete_claims(server, space)
    return len(seen.bound) / max(max(seen.bound.values()) - min(seen.bound.values()), 1e-3)


def _in_space(pod: objects.Document, namespace: str) -> objects.Document:
    meta = {"name": pod["metadata"]["name"], "namespace": namespace}
    return {**pod, "metadata": meta, "spec": {**pod["spec"], "schedulerName": "none"}}


def claim_of(pod: objects.Document) -> objects.Document:
    """The claim of a pod, of its name: one device."""
    meta = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    spec = {"devices": {"requests": [request]}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": _KIND, "metadata": meta, "spec": spec}


async def delete_claims(server: Server, namespace: str) -> None:
    """Delete all claims of a namespace, whose pods are gone: no controller removes their finalizers here."""
    path = _CLAIMS.format(namespace)
    names = [claim["metadata"]["name"] for claim in await server.list(path)]
    await server.merge_all((f"{path}/{name}", {"metadata": {"finalizers": None}}) for name in names)
    await server.delete_all(path)


if __name__ == "__main__":
    asyncio.run(flood(read_job(ClaimWrites)))
