"""The raw rate of pod creation, and what each request on a pod's way to Running costs the API server and its client.

Pods of the body that the controllers make, from a bare client, without webhooks and without watches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import UUID

import msgspec

from benchmarks.e2e import objects
from benchmarks.e2e.creations import CreateDone, CreateJob
from benchmarks.e2e.helper import Helper
from benchmarks.e2e.objects import Document
from benchmarks.e2e.server import Server
from capcard_sched.controllers.jobs.job_spec import job_pod, job_spec
from capcard_sched.kube.paths import collection_path, object_path
from capcard_sched.kube.writes import requests
from capcard_sched.model import annotations as keys
from capcard_sched.model.intents import Bind

#: Seconds: everything takes less, or something is wrong.
_LIMIT = 900.0
_PODS = 2_000


class RawPods(msgspec.Struct, frozen=True):
    """Pods of a bare client."""

    #: Creations per second.
    rate: float
    #: Microseconds of CPU per request, of client and server: create, bind, status, event.
    us: dict[str, float]


async def raw_pods(server: Server, vcjobs: Iterable[Document], nodes: int, connections: int) -> RawPods:
    """Create the pods of these Jobs, bind and start them, with an event each; delete them."""
    path = f"/api/v1/namespaces/{objects.RAW_NAMESPACE}/pods"
    found: dict[str, float] = {}

    async def measure(name: str, bodies: list[tuple[str, str]], *, patch: bool = False) -> float:
        before = server.cpu_seconds()
        done = await send(server, bodies, connections, patch=patch)
        found[name] = (server.cpu_seconds() - before + done.cpu_seconds) / len(bodies) * 1e6
        return len(bodies) / done.seconds

    rate = await measure("create", [(path, msgspec.json.encode(pod).decode()) for pod in _pods(vcjobs)])
    pods = [(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in await server.list(path)]
    await measure("bind", list(_bindings(pods, nodes)))
    started = {"phase": "Running", "conditions": objects.READY}
    status = msgspec.json.encode({"status": started}).decode()
    await measure(
        "status", [(object_path("Pod", objects.RAW_NAMESPACE, name, "status"), status) for name, _ in pods], patch=True
    )
    await measure("event", [(collection_path("Event", objects.RAW_NAMESPACE), _event(name, uid)) for name, uid in pods])
    await server.delete_all(path)
    await server.delete_all(collection_path("Event", objects.RAW_NAMESPACE))
    return RawPods(rate, found)


async def send(server: Server, bodies: list[tuple[str, str]], connections: int, *, patch: bool = False) -> CreateDone:
    """Send bodies (path, JSON) from a process of its own."""
    async with Helper("benchmarks.e2e.creations", CreateJob(server.target, connections, bodies, patch)) as client:
        return await client.answer(CreateDone, _LIMIT)


def raw_gangs() -> list[objects.Gang]:
    """Gangs that name no running scheduler."""
    return objects.gangs(_PODS, prefix="raw", scheduler="none")


def _pods(vcjobs: Iterable[Document]) -> Iterator[Document]:
    for number, job in enumerate(vcjobs):
        job["metadata"] |= {"namespace": objects.RAW_NAMESPACE, "uid": str(UUID(int=number))}
        desired = job_spec(job, "none")
        for task in desired.tasks:
            for index in range(task.replicas):
                yield job_pod(job, desired, task, index, desired.group_name)


def _bindings(pods: Iterable[tuple[str, str]], nodes: int) -> Iterator[tuple[str, str]]:
    for number, (name, uid) in enumerate(pods):
        chosen = {keys.CARD_NAME: objects.card_of(number)}
        bind = Bind(objects.RAW_NAMESPACE, name, uid, f"node-{number % nodes:05d}", chosen)
        yield object_path("Pod", objects.RAW_NAMESPACE, name, "binding"), requests.binding(bind, None).decode()


def _event(pod: str, uid: str) -> str:
    about = {"kind": "Pod", "namespace": objects.RAW_NAMESPACE, "name": pod, "uid": uid, "apiVersion": "v1"}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod}.1", "namespace": objects.RAW_NAMESPACE},
        "involvedObject": about,
        "type": "Normal",
        "reason": "Scheduled",
        "message": f"Successfully assigned {objects.RAW_NAMESPACE}/{pod} to node-00000",
        "count": 1,
        "source": {"component": "none"},
    }
    return msgspec.json.encode(event).decode()
