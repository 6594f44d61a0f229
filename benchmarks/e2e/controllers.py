"""Jobs created at once, scheduled and run to completion by scheduler, controllers and admission; and a resync.

The raw rate is that of a bare client which creates pods of the same body on the same server in the same run, without
webhooks. The controllers have the account and the rights of the manifests.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path

import msgspec

from benchmarks.e2e import objects
from benchmarks.e2e.helper import Helper
from benchmarks.e2e.kubelets import AllEnded, AllRun, KubeletJob, Watching
from benchmarks.e2e.objects import Document
from benchmarks.e2e.pod_requests import RawPods, raw_gangs, raw_pods, send
from benchmarks.e2e.server import CpuSampler, Server, cpu_seconds, peak_mib
from capcard_sched.model import annotations as keys
from tests.controlplane.cluster import Cluster
from tests.e2e.admission.server import Admission
from tests.e2e.daemons import Controllers, Daemon
from tests.e2e.rbac.installed import SYSTEM
from tests.manifests.documents import MANIFESTS

#: Seconds: everything takes less, or something is wrong.
_LIMIT = 900.0
#: Seconds for which the pods run after the last of them has started.
_RUN_SECONDS = 2.0
#: Seconds between reads of counts.
_LOOK = 0.5
_JOBS = "/apis/batch.volcano.sh/v1alpha1"
_GROUPS = "/apis/scheduling.volcano.sh/v1beta1"
_REQUESTS = re.compile(
    r'^volcano_controller_requests_total\{code="(\d+)",resource="([^"]+)",verb="(\w+)"\} (\S+)$', re.MULTILINE
)
_WAITING = re.compile(r'^volcano_controller_queue_length\{controller="[^"]+"\} (\S+)$', re.MULTILINE)
_UID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_WRITES = {"create", "update", "patch", "delete"}
#: The account of the controllers and its rights.
_ACCOUNT = "capcard-sched-controllers"
_RIGHTS = ("serviceaccount.yaml", "rbac-controllers.yaml", "rbac-leader-election.yaml")
#: What is not written about an object of a user.
_ASIDE = ("events", "leases")


class Used(msgspec.Struct, frozen=True):
    """What a process used."""

    cpu_seconds: float
    peak_mib: float


class JobsRun(msgspec.Struct):
    """Jobs that run to completion. Times in seconds since the creation of the first Job began."""

    jobs: int
    pods: int
    connections: int
    #: Of a bare client, before and after.
    raw: list[RawPods] = []
    #: Pod creations per second by the controllers, from the first to the last, while pods are bound and started.
    created_rate: float = 0.0
    jobs_created: float = 0.0
    first_created: float = 0.0
    last_created: float = 0.0
    last_bound: float = 0.0
    last_running: float = 0.0
    completed: float = 0.0
    #: By process, until all Jobs are Completed.
    used: dict[str, Used] = {}
    #: CPU milliseconds by process per pod that was created in the meantime, from the first to the last creation.
    creation_ms: dict[str, float] = {}
    #: Verb and resource to the requests of all clients per pod, until the last pod runs.
    requests: dict[str, float] = {}
    #: CPU seconds of the controllers until the last pod runs.
    cpu_running: float = 0.0
    #: Writes of the controllers per pod, without events, until the last pod runs and until all Jobs are Completed.
    writes_running: float = 0.0
    writes_completed: float = 0.0
    #: Verb and resource to writes per pod, until all Jobs are Completed.
    writes: dict[str, float] = {}
    problems: list[str] = []

    @property
    def bound(self) -> float:
        """The ratio at which creations, bindings and starts of pods alone fill the cores that creations fill."""
        costs = [raw.us for raw in self.raw]
        least = sum(us[name] for us in costs for name in ("create", "bind", "status"))
        return sum(us["create"] for us in costs) / least if least else 0.0

    @property
    def ratio(self) -> float:
        """Rate of pod creation to the raw rate."""
        return self.created_rate * len(self.raw) / sum(raw.rate for raw in self.raw) if self.raw else 0.0


class Resync(msgspec.Struct, frozen=True):
    """Controllers that start before this number of objects. Seconds since the start of the process."""

    jobs: int
    pods: int
    listed: float
    #: Every object is reconciled.
    reconciled: float
    cpu_seconds: float
    #: Of etcd and kube-apiserver.
    server_seconds: float
    peak_mib: float
    writes: dict[str, float]


def vcjobs(gangs: Iterable[objects.Gang]) -> list[Document]:
    """A Job for each gang."""
    found = []
    for gang in gangs:
        pod, name = gang.pods[0], gang.group["metadata"]["name"]
        card = pod["metadata"]["annotations"][keys.CARD_NAME]
        template = {"metadata": {"annotations": {keys.CARD_NAME: card}}, "spec": pod["spec"]}
        task = {"name": "worker", "replicas": len(gang.pods), "template": template}
        spec = {"schedulerName": "capcard-sched", "queue": gang.group["spec"]["queue"], "minAvailable": len(gang.pods)}
        metadata = {"name": name, "namespace": objects.NAMESPACE}
        found.append(
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "metadata": metadata,
                "spec": {**spec, "tasks": [task]},
            }
        )
    return found


async def jobs_run(
    server: Server, jobs: int, *, nodes: int, connections: int, program: Path | None, say: Callable[[str], None]
) -> JobsRun:
    """One measurement on a server that has the nodes and the namespaces."""
    gangs = objects.gangs(jobs * objects.GANG)
    result = JobsRun(jobs, jobs * objects.GANG, connections)
    quota = objects.quotas(gangs)
    say("the raw rate of pod creation")
    result.raw.append(await raw_pods(server, vcjobs(raw_gangs()), nodes, connections))
    with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
        async with Cluster(server.plane) as cluster:
            await server.create([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}])
            admission = Admission(cluster, Path(folder))
            await admission.install()
            await admission.start()
            for file in _RIGHTS:
                await cluster.apply(MANIFESTS / "controllers" / file)
            token = await cluster.token_of(_ACCOUNT, namespace=SYSTEM)
            account = server.plane.kubeconfig_for(token=token, namespace=SYSTEM, name=_ACCOUNT)
            try:
                await _run(server, admission, account, gangs, quota, result, Path(folder), program, say)
            finally:
                admission.stop()
                for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
                    for found in await cluster.list(kind):
                        await cluster.delete(kind, found["metadata"]["name"])
    pods = await server.list(f"/api/v1/namespaces/{objects.NAMESPACE}/pods")
    for pod in pods:
        pod["metadata"]["annotations"][keys.GROUP_NAME] = pod["metadata"]["labels"][keys.JOB_NAME]
    result.problems += objects.violations(pods, gangs, quota)[:20]
    say("the raw rate again")
    result.raw.append(await raw_pods(server, vcjobs(raw_gangs()), nodes, connections))
    return result


async def _run(
    server: Server,
    admission: Admission,
    account: Path,
    gangs: list[objects.Gang],
    quota: dict[str, dict[str, int]],
    result: JobsRun,
    folder: Path,
    program: Path | None,
    say: Callable[[str], None],
) -> None:
    config = server.plane.kubeconfig_for("scheduler-a")
    daemon = Daemon(config, folder, f"--bind-workers={result.connections}", "--schedule-period=1s", conf=objects.CONF)
    controllers = Controllers(account, folder)
    if program is not None:
        daemon.command[0] = controllers.command[0] = program
    target = server.target
    kubelets = KubeletJob(target, objects.NAMESPACE, result.pods, _RUN_SECONDS)
    async with daemon, controllers, Helper("benchmarks.e2e.kubelets", kubelets) as kubelet:
        await kubelet.answer(Watching, _LIMIT)
        await daemon.logged("caches synced", within=_LIMIT)
        await controllers.logged("controllers started")
        await server.create(objects.queues(quota))
        jobs = vcjobs(gangs)
        await _open_queues(server, jobs)
        pids = {"scheduler": daemon.process.pid, "controllers": controllers.process.pid, "admission": admission.pid}
        pids |= {name: server.plane.pid(name) for name in ("etcd", "kube-apiserver")}
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        say(f"{result.jobs} Jobs")
        requests = await server.requests()
        async with CpuSampler(pids | {"kubelets": kubelet.pid}) as sampler:
            began = time.monotonic()
            await _create_jobs(server, jobs)
            result.jobs_created = time.monotonic() - began
            run = await kubelet.answer(AllRun, _LIMIT)
        result.cpu_running = cpu_seconds(pids["controllers"]) - before["controllers"]
        made = await server.requests() - requests
        result.requests = {name: count / result.pods for name, count in made.most_common() if count > result.jobs / 4}
        used = sampler.between(run.created[0], run.created[-1])
        result.creation_ms = {name: 1e3 * seconds / result.pods for name, seconds in used.items()}
        result.writes_running = sum(_writes(await controllers.metrics(), result.pods).values())
        result.created_rate = len(run.created) / max(run.created[-1] - run.created[0], 1e-3)
        result.first_created, result.last_created = run.created[0] - began, run.created[-1] - began
        result.last_bound, result.last_running = run.bound[-1] - began, run.running[-1] - began
        await kubelet.answer(AllEnded, _LIMIT)
        result.completed = await _all_completed(server, result.jobs) - began
        result.writes = _writes(await controllers.metrics(), result.pods)
        result.writes_completed = sum(result.writes.values())
        result.used = {name: Used(cpu_seconds(pid) - before[name], peak_mib(pid)) for name, pid in pids.items()}
        result.problems += [str(line) for line in controllers.lines("reconcile failed")][:10]


async def _open_queues(server: Server, jobs: list[Document]) -> None:
    """Wait until admission accepts Jobs for every queue."""
    path = f"{_JOBS}/namespaces/{objects.NAMESPACE}/jobs"
    deadline = time.monotonic() + _LIMIT
    for job in {job["spec"]["queue"]: job for job in jobs}.values():
        while True:
            try:
                await server.request("POST", path, job, dryRun="All")
                break
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_LOOK)


async def _create_jobs(server: Server, jobs: list[Document]) -> None:
    path = f"{_JOBS}/namespaces/{objects.NAMESPACE}/jobs"
    bodies = [(path, msgspec.json.encode(job).decode()) for job in jobs]
    await send(server, bodies, 16)


async def _all_completed(server: Server, count: int) -> float:
    path = f"{_JOBS}/namespaces/{objects.NAMESPACE}/jobs"
    deadline = time.monotonic() + _LIMIT
    while True:
        states = [job.get("status", {}).get("state", {}) for job in await server.list(path)]  # none at first
        phases = Counter(state.get("phase", "") for state in states)
        now = time.monotonic()
        if phases["Completed"] == count:
            return now
        if now > deadline:
            raise RuntimeError(f"the Jobs are {dict(phases)}")
        await asyncio.sleep(_LOOK)


def _writes(exposition: str, pods: int) -> dict[str, float]:
    counts: dict[str, float] = defaultdict(float)
    for code, resource, verb, count in _REQUESTS.findall(exposition):
        if verb in _WRITES and not resource.startswith(_ASIDE):
            counts[f"{verb} {resource}" + ("" if code.startswith("2") else f" ({code})")] += float(count)
    return {
        name: round(requests / pods, 4) for name, requests in sorted(counts.items(), key=itemgetter(1), reverse=True)
    }


# --- resync -----------------------------------------------------------------------------------------------------------


async def resync(
    server: Server, jobs: int, replicas: int, *, program: Path | None, say: Callable[[str], None]
) -> Resync:
    """Start the controllers before `jobs` Jobs of `replicas` pods which need nothing.

    The controllers make the objects of one Job; the store gets as many copies of them under other names and uids.
    """
    await server.create([_open_queue("root"), _open_queue("default")])
    (gang,) = objects.gangs(objects.GANG, prefix="resync")
    (job,) = vcjobs([gang._replace(pods=gang.pods[:replicas])])
    job["spec"]["queue"] = "default"
    groups, pods = f"{_GROUPS}/namespaces/{objects.NAMESPACE}/podgroups", f"/api/v1/namespaces/{objects.NAMESPACE}/pods"
    with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
        first = Controllers(server.plane.kubeconfig_for("admin"), Path(folder), name="first")
        second = Controllers(server.plane.kubeconfig_for("admin"), Path(folder), name="second")
        if program is not None:
            first.command[0] = second.command[0] = program
        async with first:
            await first.logged("controllers started")
            await _create_jobs(server, [job])
            await _reach(server, groups, 1)
            for group in await server.list(groups):
                await server.merge(f"{groups}/{group['metadata']['name']}", {"status": {"phase": "Inqueue"}})
            await _reach(server, pods, replicas)
            await _calm(first)
        say(f"storing {jobs:,} Jobs with {jobs * replicas:,} pods")
        await asyncio.to_thread(_copy, server, job["metadata"]["name"], jobs)
        await _reach(server, pods, jobs * replicas)
        say("starting the controllers anew")
        began, before = time.monotonic(), server.cpu_seconds()
        async with second:
            await second.logged("controllers started", within=_LIMIT)
            listed = time.monotonic() - began
            await _idle(second)
            reconciled = time.monotonic() - began
            writes = _writes(await second.metrics(), 1)
            pid = second.process.pid
            used, of_server = cpu_seconds(pid), server.cpu_seconds() - before
            return Resync(jobs, jobs * replicas, listed, reconciled, used, of_server, peak_mib(pid), writes)


def _copy(server: Server, name: str, jobs: int) -> None:
    """Store the objects of a Job under other names and uids of the same length."""
    place = f"{objects.NAMESPACE}/{name}"
    kinds = ("batch.volcano.sh/jobs", "scheduling.volcano.sh/podgroups", "pods")
    stored = {key: value for kind in kinds for key, value in server.plane.store.objects(f"{kind}/{place}").items()}
    uids = {uid for value in stored.values() for uid in _UID.findall(value)}
    for number in range(1, jobs):
        changes = {name.encode(): f"{name[:-5]}{number:05d}".encode()}
        changes |= {uid: f"{number:08x}".encode() + uid[8:] for uid in uids}
        server.plane.store.put(
            {_changed(key.encode(), changes).decode(): _changed(value, changes) for key, value in stored.items()}
        )


def _changed(text: bytes, changes: dict[bytes, bytes]) -> bytes:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def _open_queue(name: str) -> Document:
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": {}}


async def _reach(server: Server, path: str, count: int) -> None:
    deadline = time.monotonic() + _LIMIT
    while (found := await server.count(path)) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path}: {found} of {count}")
        await asyncio.sleep(1)


async def _idle(controllers: Controllers) -> None:
    """Wait until nothing is queued."""
    while True:
        if not any(map(float, _WAITING.findall(await controllers.metrics()))):
            return
        await asyncio.sleep(_LOOK)


async def _calm(controllers: Controllers) -> None:
    """Wait until nothing is queued and no status waits."""
    writes: dict[str, float] = {}
    while True:
        text = await controllers.metrics()
        before, writes = writes, _writes(text, 1)
        if before == writes and not sum(map(float, _WAITING.findall(text))):
            return
        await asyncio.sleep(3)
