"""CPU time of `explain` on a full cluster: live, from a file of `snapshot`, and from a cache.

Running gangs of eight, one card per pod, hold every card; a fifth of the pods waits in the same queues. U1: a gang of a
higher priority than the running ones, under a scheduler-conf without `preempt`. N1: a gang without victims. Q1: a gang
beyond the quota of its queue. The program is started anew for each diagnosis, as users do.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.e2e import objects
from benchmarks.e2e.helper import Helper, Target, read_job, say
from benchmarks.e2e.objects import Gang
from benchmarks.e2e.server import Server
from capcard_sched.daemon.diagnosis.saved_state import SavedSettings, as_manifest, document_text
from capcard_sched.kube.decode import PAGE
from capcard_sched.kube.kinds import KINDS
from capcard_sched.kube.paths import object_path
from capcard_sched.model import annotations as keys
from capcard_sched.model.kinds import KIND_BY_NAME

#: Waiting job to the queue it is in.
SCENES: Final = {"U1": objects.QUEUES[0], "N1": objects.QUEUES[1], "Q1": objects.QUEUES[2]}
_URGENT: Final = "urgent"
#: Seconds of one list of everything.
_LIMIT: Final = 120.0

#: The status of a running pod.
_RUNS: Final[objects.Document] = {
    "status": {
        "phase": "Running",
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}],
        "containerStatuses": [
            {
                "name": "main",
                "image": "registry.example/ml/trainer:2026.1",
                "imageID": f"registry.example/ml/trainer@sha256:{0:064x}",
                "containerID": f"containerd://{0:064x}",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:10Z"}},
            }
        ],
    }
}


#: What the API server adds to a pod that the scheduler reads.
_ADMITTED: Final[objects.Document] = {
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
    "terminationGracePeriodSeconds": 30,
    "tolerations": [
        {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for state in ("not-ready", "unreachable")
    ],
}
#: A moment after `_RUNS`.
_SAVED_AT: Final = "2026-01-01T01:00:00Z"


class _FullCluster(NamedTuple):
    """Objects before the gangs; the running gangs, and the waiting ones."""

    first: list[objects.Document]
    running: list[Gang]
    waiting: list[Gang]


class Explained(msgspec.Struct, frozen=True):
    """One diagnosis: CPU seconds of the process with the copies it makes, and of the API server meanwhile.

    From a cache: of the program that the user starts, without the copy of the cache that responds.
    """

    scene: str
    #: `live`, `file` or `cache`.
    source: str
    fix: bool
    seconds: float
    cpu_seconds: float
    server_seconds: float
    peak_mib: float


class ListDone(msgspec.Struct, frozen=True):
    """All lists, read and not decoded: bytes, seconds, CPU seconds of the client."""

    size: int
    seconds: float
    cpu_seconds: float


class Explaining(msgspec.Struct):
    """Every diagnosis at one size."""

    nodes: int
    pods: int
    answers: list[Explained] = []
    #: The lists by themselves, once; CPU seconds of the API server for them.
    lists: ListDone = ListDone(0, 0.0, 0.0)
    lists_server_seconds: float = 0.0
    #: `snapshot`.
    snapshot_cpu_seconds: float = 0.0
    snapshot_bytes: int = 0


class ListJob(msgspec.Struct, frozen=True):
    """List these collections in pages, all at once."""

    target: Target
    paths: list[str]
    page: int


class _ListMeta(msgspec.Struct, frozen=True):
    following: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()


def _full_cluster(nodes: int, pods: int) -> _FullCluster:
    running = objects.gangs(min(objects.CARDS_PER_NODE * nodes, pods * 4 // 5))
    quota: dict[str, dict[str, int]] = {
        queue: dict.fromkeys(objects.MODELS, objects.CARDS_PER_NODE * nodes) for queue in objects.QUEUES
    }
    used = dict.fromkeys(objects.MODELS, objects.GANG // 2)
    for number, gang in enumerate(running):
        card, queue = objects.card_of(number), objects.QUEUES[number // len(objects.MODELS) % len(objects.QUEUES)]
        gang.group["spec"]["queue"] = queue
        _bind(gang, card, number)
        if queue == SCENES["Q1"]:
            used[card] += len(gang.pods)
    quota[SCENES["Q1"]] = used
    waiting = [gang for scene in SCENES for gang in _waiting(scene, (pods - pods * 4 // 5) // len(SCENES))]
    for gangs, phase in ((running, "Running"), (waiting, "Inqueue")):
        for gang in gangs:
            gang.group["status"] = {"phase": phase}
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": _URGENT}, "value": 10}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": objects.NAMESPACE}}
    return _FullCluster([urgent, space, *objects.nodes(nodes), *objects.queues(quota)], running, waiting)


async def fill(server: Server, nodes: int, pods: int) -> None:
    """The nodes, queues and gangs on a new server."""
    (urgent, *first), running, waiting = _full_cluster(nodes, pods)
    await server.create(first)
    await server.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
    await server.create_gangs([*running, *waiting])
    names = (pod["metadata"]["name"] for gang in running for pod in gang.pods)
    await server.merge_all((object_path("Pod", objects.NAMESPACE, name, "status"), _RUNS) for name in names)


def saved(nodes: int, pods: int) -> bytes:
    """The file that `snapshot` writes of `fill`, made without an API server."""
    first, running, waiting = _full_cluster(nodes, pods)
    found = [*first, *(gang.group for gang in (*running, *waiting))]
    found += ({**pod, "spec": {**pod["spec"], **_ADMITTED}} | _RUNS for gang in running for pod in gang.pods)
    found += (
        {**pod, "spec": {**pod["spec"], **_ADMITTED}, "status": {"phase": "Pending"}}
        for gang in waiting
        for pod in gang.pods
    )
    order = {kind.name: number for number, kind in enumerate(KINDS)}
    found.sort(key=lambda obj: (order[obj["kind"]], obj["metadata"]["name"]))
    settings = SavedSettings(_SAVED_AT, ("capcard-sched", "volcano"), "default")
    return document_text(settings, (_as_listed(number, obj) for number, obj in enumerate(found)))


def _as_listed(number: int, obj: objects.Document) -> objects.Document:
    """An object with the identity that an API server adds, and only the fields that the scheduler reads."""
    identity = {
        "uid": f"6f0a1c3e-0000-4b7d-9c0e-{number:012x}",
        "resourceVersion": str(number + 1),
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    kind = KIND_BY_NAME[obj["kind"]]
    assert kind.watch is not None
    return as_manifest(
        kind.name, msgspec.convert({**obj, "metadata": {**obj["metadata"], **identity}}, kind.watch.type)
    )


def _bind(gang: Gang, card: str, node: int) -> None:
    for pod in gang.pods:
        pod["metadata"]["annotations"] = {**pod["metadata"]["annotations"], keys.CARD_NAME: card}
        pod["spec"] = {**pod["spec"], "nodeName": f"node-{node:05d}"}


def _waiting(scene: str, pods: int) -> list[Gang]:
    found = objects.gangs(pods, prefix=scene.lower())
    for gang in found:
        gang.group["spec"]["queue"] = SCENES[scene]
        if scene == "U1":
            gang.group["spec"]["priorityClassName"] = _URGENT
            for pod in gang.pods:
                pod["spec"] = {**pod["spec"], "priorityClassName": _URGENT}
    return found


async def explaining(
    server: Server, nodes: int, pods: int, repeats: int, *, program: Path | None, say: Callable[[str], None]
) -> Explaining:
    """Fill a new server, then measure every scene live and from a file, `repeats` times."""
    say("creating gangs")
    await fill(server, nodes, pods)
    result = Explaining(nodes, pods)
    config = server.plane.kubeconfig_for("scheduler-a", namespace=objects.NAMESPACE)
    command = [str(program or Path(sys.executable).with_name("capcard-sched"))]
    with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
        file = Path(folder, "cluster.json")
        live, saved = ["--kubeconfig", str(config)], ["-n", objects.NAMESPACE, "-f", str(file)]
        taken = await _run(server, [*command, "snapshot", "-o", str(file), *live])
        result.snapshot_cpu_seconds, result.snapshot_bytes = taken.cpu_seconds, await asyncio.to_thread(_size, file)
        for _ in range(repeats):
            say("the cache")
            async with _cache([*command, "cache", *live], Path(folder, "cache.sock")) as cached:
                for scene in SCENES:
                    for fix in (False, True):
                        flags = [f"{scene.lower()}-00000", *live, *cached, *(["--fix"] if fix else [])]
                        run = await _run(server, [*command, "explain", *flags])
                        result.answers.append(Explained(scene, "cache", fix, *run))
            say("the lists")
            before = server.cpu_seconds()
            async with Helper("benchmarks.e2e.explaining", list_job(server.target)) as helper:
                result.lists = await helper.answer(ListDone, _LIMIT)
            result.lists_server_seconds = server.cpu_seconds() - before
            for scene in SCENES:
                for source, flags in (("live", live), ("file", saved)):
                    for fix in (False, True):
                        say(f"{scene}, {source}{', --fix' if fix else ''}")
                        name = f"{scene.lower()}-00000"
                        run = await _run(server, [*command, "explain", name, *(["--fix"] if fix else []), *flags])
                        result.answers.append(Explained(scene, source, fix, *run))
    return result


@asynccontextmanager
async def _cache(command: list[str], path: Path) -> AsyncIterator[list[str]]:
    """A cache in sync; the flags of a verb that reads it."""
    process = await asyncio.create_subprocess_exec(
        *command, "--socket", path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_as_installed()
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_LIMIT):
            await process.stdout.readline()
        yield ["--cache", str(path)]
    finally:
        process.terminate()
        await process.wait()


class _Run(NamedTuple):
    seconds: float
    cpu_seconds: float
    server_seconds: float
    peak_mib: float


async def explaining_file(
    nodes: int, pods: int, repeats: int, *, program: Path | None, file: Path | None, say: Callable[[str], None]
) -> Explaining:
    """Measure every scene from a file, `repeats` times, without an API server. `file`: keep the file here."""
    result = Explaining(nodes, pods)
    command = [str(program or Path(sys.executable).with_name("capcard-sched")), "explain"]
    with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
        path = file or Path(folder, "cluster.json")
        result.snapshot_bytes = await asyncio.to_thread(path.write_bytes, saved(nodes, pods))
        for _ in range(repeats):
            for scene in SCENES:
                for fix in (False, True):
                    say(f"{scene}{', --fix' if fix else ''}")
                    flags = [f"{scene.lower()}-00000", "-n", objects.NAMESPACE, "-f", str(path)]
                    run = await _run(None, [*command, *flags, *(["--fix"] if fix else [])])
                    result.answers.append(Explained(scene, "file", fix, *run))
    return result


async def _run(server: Server | None, command: list[str]) -> _Run:
    """Run a command to its end. Raises RuntimeError when it fails."""

    def of_server() -> float:
        return 0.0 if server is None else server.cpu_seconds()

    before, began = of_server(), time.monotonic()
    status, used = await asyncio.to_thread(_resources_of, command)
    if status:
        raise RuntimeError(f"{' '.join(command)}: status {status}")
    cpu = used.ru_utime + used.ru_stime
    return _Run(time.monotonic() - began, cpu, of_server() - before, used.ru_maxrss / 1024)


def _resources_of(command: list[str]) -> tuple[int, resource.struct_rusage]:
    """Exit status and usage of a process, the copies that it waited for included."""
    process = subprocess.Popen(  # noqa: S603 - ours
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_as_installed()
    )
    _, status, used = os.wait4(process.pid, 0)
    return os.waitstatus_to_exitcode(status), used


def _as_installed() -> dict[str, str]:
    """The environment without the setting by which each start compiles all modules: installed ones are compiled."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _size(file: Path) -> int:
    return file.stat().st_size


def list_job(target: Target) -> ListJob:
    """All kinds that a daemon reads, in its pages."""
    return ListJob(target, [kind.path for kind in KINDS], PAGE)


async def list_everything(job: ListJob) -> None:
    """Read all lists and report."""
    began, used, size = time.monotonic(), time.process_time(), 0
    async with job.target.session() as session:

        async def read(path: str) -> int:
            following, found = "", 0
            while True:
                params = {"limit": str(job.page), **({"continue": following} if following else {})}
                async with session.get(path, params=params) as answer:
                    body = await answer.read()
                if answer.status != 200:
                    return 0  # a kind that is not served
                found += len(body)
                # The metadata come first. Decoding the rest is the reader's part.
                head = body[: body.index(b'"items":')].rstrip(b", ") + b"}"
                following = msgspec.json.decode(head, type=_Page).metadata.following
                if not following:
                    return found

        size = sum(await asyncio.gather(*map(read, job.paths)))
    say(ListDone(size, time.monotonic() - began, time.process_time() - used))


if __name__ == "__main__":
    asyncio.run(list_everything(read_job(ListJob)))
