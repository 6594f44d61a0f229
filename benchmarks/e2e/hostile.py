"""`python -m benchmarks.e2e.hostile`: the worst objects of every kind under review, 20 at once, beside another tenant.

A real API server has our webhooks, with one admission server, and our policies. Each shape of an object is as large as
the API server stores it; 20 of it arrive at once, as trials. Meanwhile another tenant creates PodGroups, which the
webhooks review, and ConfigMaps, which nothing reviews: their latency is that of the API server on this machine.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import aiohttp
import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from benchmarks import measure
from benchmarks.e2e.helper import Helper, Target
from benchmarks.e2e.objects import Document
from benchmarks.e2e.probes import Probe, ProbeJob
from benchmarks.e2e.server import Server, cpu_seconds, peak_mib
from tests.controlplane.cluster import Cluster
from tests.controlplane.manifests import pod
from tests.e2e.admission.server import Admission
from tests.e2e.rbac.installed import SYSTEM
from tests.manifests.documents import MANIFESTS
from tests.unit.admission.worst import WORST

app = App(name="bench-hostile", help="Measure the latency of other tenants under the worst objects.")

#: Users: the hostile one, and the other tenant.
_HOSTILE, _HEALTHY = "somebody", "nobody"
_AT_ONCE: Final = 20
#: Bytes: etcd stores up to 1.5 MiB, and 256 KiB of annotations.
MOST_BYTES: Final = 1_400_000
#: Halvings of an object that the API server does not store.
_HALVINGS: Final = 8
#: Seconds between two probes of a kind, and before and after each burst.
_INTERVAL, _REST = 0.1, 0.3
_LIMIT: Final = 120.0
_POLICIES = ("base/admission-tenants.yaml", "controllers/admission-commands.yaml")
_PATHS: Final = {
    "Job": "/apis/batch.volcano.sh/v1alpha1/namespaces/hostile/jobs",
    "CronJob": "/apis/batch.volcano.sh/v1alpha1/namespaces/hostile/cronjobs",
    "Command": "/apis/bus.volcano.sh/v1alpha1/namespaces/hostile/commands",
    "PodGroup": "/apis/scheduling.volcano.sh/v1beta1/namespaces/hostile/podgroups",
    "NamespaceQueue": "/apis/scheduling.volcano.sh/v1beta1/namespaces/hostile/namespacequeues",
    "Queue": "/apis/scheduling.volcano.sh/v1beta1/queues",
    "Pod": "/api/v1/namespaces/hostile/pods",
    "Deployment": "/apis/apps/v1/namespaces/hostile/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/hostile/statefulsets",
    "DaemonSet": "/apis/apps/v1/namespaces/hostile/daemonsets",
    "ReplicaSet": "/apis/apps/v1/namespaces/hostile/replicasets",
    "batch Job": "/apis/batch/v1/namespaces/hostile/jobs",
}
_WORKLOADS = ("StatefulSet", "DaemonSet", "ReplicaSet", "batch Job")


class WorstShape(NamedTuple):
    """One shape of an object: `build` makes it with a number of entries."""

    name: str
    kind: str
    build: Callable[[int], Document]


class Burst(msgspec.Struct):
    """Objects of one shape, all at once."""

    shape: str
    #: Of one object.
    bytes: int
    #: The response to one object that is to be stored.
    first: str
    #: Responses to the trials, with their number.
    outcomes: dict[str, int]
    #: Until the last response.
    seconds: float
    #: CPU seconds of the admission server and of kube-apiserver in the meantime.
    admission_cpu: float
    server_cpu: float
    #: Milliseconds of the probes that were due in the meantime, by name.
    probes: dict[str, list[float]]
    #: Probes without a success.
    failed: int


class HostileReport(msgspec.Struct):
    """Everything one run found, as written by `--json`."""

    machine: dict[str, str]
    #: Load average over the last minute, at start and end.
    load: list[float]
    bursts: list[Burst] = []
    peak_mib: float = 0.0


def shapes() -> list[WorstShape]:
    """Those of the tests of the rules, and of the kinds that share them or have policies only."""
    found = [WorstShape(name, worst.kind, worst.build) for name, worst in WORST.items()]
    for name, worst in WORST.items():
        label = name.partition(": ")[2]
        for kind in _WORKLOADS if worst.kind == "Deployment" else ():
            found += [WorstShape(f"{kind}: {label}", kind, _workload(kind, worst.build))]
        if name in ("Job: tasks of one name", "Job: annotations of templates", "Job: resources"):
            found.append(WorstShape(f"CronJob: {label}", "CronJob", _cron_job(worst.build)))
    return [*found, WorstShape("Command: a message", "Command", _command)]


def _workload(kind: str, build: Callable[[int], Document]) -> Callable[[int], Document]:
    def made(count: int) -> Document:
        found = build(count)
        found |= {"kind": kind.removeprefix("batch "), "apiVersion": "batch/v1" if kind == "batch Job" else "apps/v1"}
        if kind == "StatefulSet":
            found["spec"]["serviceName"] = "x"
        if kind == "batch Job":
            found["spec"].pop("selector", None)
            found["spec"]["template"]["spec"]["restartPolicy"] = "Never"
        return found

    return made


def _cron_job(build: Callable[[int], Document]) -> Callable[[int], Document]:
    def made(count: int) -> Document:
        found = build(count)
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": found["spec"]}}
        return {**found, "kind": "CronJob", "spec": spec}

    return made


def _command(count: int) -> Document:
    target = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "name": "default", "uid": "x"}
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": "x"},
        "action": "CloseQueue",
        "target": target,
        "message": "x" * 20 * count,
    }


def _body(shape: WorstShape, count: int, name: str) -> bytes:
    """The object with the names of the cluster, of our scheduler, and valid for the API server besides."""
    found: Any = msgspec.json.decode(
        msgspec.json.encode(shape.build(count)).replace(
            b'"schedulerName":"volcano"', b'"schedulerName":"capcard-sched"'
        )
    )
    meta = found["metadata"]
    meta["name"] = name
    if shape.kind != "Queue":
        meta["namespace"] = "hostile"
    template = found["spec"].get("template") if isinstance(found.get("spec"), dict) else None
    if template is not None and shape.kind != "batch Job":
        template["metadata"]["labels"] = {"app": "x"}
        found["spec"]["selector"] = {"matchLabels": {"app": "x"}}
    return msgspec.json.encode(found)


def _count(shape: WorstShape, size: int) -> int:
    per_entry = (len(_body(shape, 1_000, "x")) - len(_body(shape, 100, "x"))) / 900
    return max(1, int(size / max(per_entry, 0.001)))


def sized(shape: WorstShape, size: int) -> bytes:
    """The object with about `size` bytes."""
    return _body(shape, _count(shape, size), "x")


async def _post(session: aiohttp.ClientSession, path: str, body: bytes, **params: str) -> tuple[int, str]:
    headers = {"Content-Type": "application/json"}
    try:
        async with session.post(path, data=body, params=params, headers=headers) as response:
            text = await response.read()
            status = response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        return 0, type(error).__name__
    if status < 300:
        return status, ""
    try:
        return status, str(msgspec.json.decode(text).get("message"))
    except (msgspec.DecodeError, AttributeError):
        return status, text[:200].decode(errors="replace")


def outcome(status: int, text: str) -> str:
    """The kind of a response."""
    if 200 <= status < 300:
        return "accepted"
    if "the checks take more than" in text:
        return "refused: CPU budget"
    if "wait; try again" in text:
        return "refused: too many wait"
    if "admission webhook" in text and "denied" in text:
        return "refused by the rules"
    if "failed calling webhook" in text:
        return "webhook not reached"
    if "ValidatingAdmissionPolicy" in text:
        return "refused by a policy"
    if status in (0, 504):
        return "timed out"
    return f"refused by the API server ({status})"


class Attack:
    """One API server with our webhooks and policies, the hostile user and the probes of the other tenant."""

    def __init__(self, server: Server, admission: Admission, probes: Helper, session: aiohttp.ClientSession) -> None:
        """`session`: of the hostile user."""
        self._server = server
        self._admission = admission
        self._probes = probes
        self._session = session

    async def burst(self, shape: WorstShape) -> Burst:
        """Store one object, as large as possible, and try 20 at once."""
        path, size = _PATHS[shape.kind], MOST_BYTES
        for _ in range(_HALVINGS):
            count = _count(shape, size)
            body = _body(shape, count, "stored")
            status, text = await _post(self._session, path, body)
            first = outcome(status, text)
            if not first.startswith("refused by the API server"):
                break
            size //= 2
        if first == "accepted":
            await self._server.request("DELETE", f"{path}/stored", {"gracePeriodSeconds": 0})
        else:
            first = f"{first}: {text[:160]}" if first.startswith("refused by the API server") else first
        trial = _body(shape, count, "trial")
        await asyncio.sleep(_REST)
        pids = (self._admission.pid, self._server.plane.pid("kube-apiserver"))
        before, began = [cpu_seconds(pid) for pid in pids], time.monotonic()
        answers = await asyncio.gather(*(_post(self._session, path, trial, dryRun="All") for _ in range(_AT_ONCE)))
        ended = time.monotonic()
        used = [cpu_seconds(pid) - cpu for pid, cpu in zip(pids, before, strict=True)]
        found = [one for one in await self._until(ended + _REST) if began - _INTERVAL <= one.due <= ended]
        probes: dict[str, list[float]] = {}
        for one in found:
            probes.setdefault(one.name, []).append(1e3 * one.seconds)
        outcomes = Counter(outcome(*each) for each in answers)
        failed = sum(not 200 <= one.status < 300 for one in found)
        return Burst(shape.name, len(trial), first, dict(outcomes), ended - began, used[0], used[1], probes, failed)

    async def _until(self, moment: float) -> list[Probe]:
        """The probes so far, to the first that was due after a moment."""
        found = []
        while True:
            found.append(await self._probes.answer(Probe, _LIMIT))
            if found[-1].due > moment:
                return found


async def _wait_for_policies(session: aiohttp.ClientSession) -> None:
    body = msgspec.json.encode(pod("bound", nodeName="n1") | {"metadata": {"name": "bound", "namespace": "hostile"}})
    deadline = time.monotonic() + _LIMIT
    while True:
        status, text = await _post(session, _PATHS["Pod"], body, dryRun="All")
        if "ValidatingAdmissionPolicy" in text:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"no policy refuses a pod with a node: {status} {text}")
        await asyncio.sleep(0.5)


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


async def attack(chosen: str, console: Console) -> HostileReport:
    """All shapes whose name contains one of `chosen`, separated by commas, one after the other."""
    report = HostileReport(measure.machine(), [os.getloadavg()[0]])
    kinds = sorted({path.rpartition("/")[2] for path in _PATHS.values()} | {"configmaps"})
    rules = [{"apiGroups": ["*"], "resources": kinds, "verbs": ["*"]}]  # no subresources: these are a scheduler's
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "probe", "namespace": "healthy"},
        "spec": {"minMember": 1, "queue": "research"},
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe", "namespace": "healthy"}}
    requests = {
        "PodGroup": ("/apis/scheduling.volcano.sh/v1beta1/namespaces/healthy/podgroups", group),
        "ConfigMap": ("/api/v1/namespaces/healthy/configmaps", config),
    }
    with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
        async with Server() as server, Cluster(server.plane) as cluster:
            for name in (SYSTEM, "hostile", "healthy"):
                await cluster.make_namespace(name)
            for user in (_HOSTILE, _HEALTHY):
                await cluster.allow(user, rules, everywhere=True)
            for name in ("root", "default", "research"):
                await cluster.create(
                    {
                        "apiVersion": "scheduling.volcano.sh/v1beta1",
                        "kind": "Queue",
                        "metadata": {"name": name},
                        "spec": {},
                    }
                )
            admission = Admission(cluster, Path(folder))
            await admission.install()
            for policy in _POLICIES:
                await cluster.apply(MANIFESTS / policy)
            await admission.start()
            users = [
                Target(server.plane.server, str(server.plane.ca), server.plane.token(one))
                for one in (_HOSTILE, _HEALTHY)
            ]
            job = ProbeJob(
                users[1],
                {name: (path, msgspec.json.encode(body).decode()) for name, (path, body) in requests.items()},
                _INTERVAL,
            )
            try:
                async with users[0].session() as session:
                    await _wait_for_policies(session)
                    async with Helper("benchmarks.e2e.probes", job) as probes:
                        scene = Attack(server, admission, probes, session)
                        for shape in shapes():
                            if any(part in shape.name for part in chosen.split(",")):
                                report.bursts.append(await scene.burst(shape))
                                _show(console, report.bursts[-1])
                report.peak_mib = peak_mib(admission.pid)
            finally:
                admission.stop()
    report.load.append(os.getloadavg()[0])
    return report


def _show(console: Console, burst: Burst) -> None:
    answers = ", ".join(f"{count} {name}" for name, count in burst.outcomes.items())
    latency = "; ".join(
        f"{name} p99 {_quantile(values, 0.99):.0f} ms, longest {max(values):.0f} of {len(values)}"
        for name, values in burst.probes.items()
    )
    console.print(
        f"[dim]{burst.shape}: {burst.bytes / 1024:.0f} KiB, {burst.first}; {answers} in {burst.seconds:.2f} s; "
        f"CPU {burst.admission_cpu:.2f} s (API server {burst.server_cpu:.2f}); {latency}; {burst.failed} failed[/dim]"
    )


def summary(report: HostileReport) -> Table:
    """By kind and over all: objects, responses and the latency of the other tenant."""
    table = Table(title=f"Others meanwhile; load {report.load[0]:.1f} to {report.load[-1]:.1f}")
    for header in (
        "kind",
        "shapes",
        "largest",
        "CPU per object, longest",
        "PodGroup p50, p99, longest",
        "ConfigMap p50, p99, longest",
        "failed",
    ):
        table.add_column(header)
    kinds = dict.fromkeys(burst.shape.partition(":")[0] for burst in report.bursts)
    for kind in [*kinds, "all"]:
        bursts = [one for one in report.bursts if kind in ("all", one.shape.partition(":")[0])]
        cells = []
        for name in ("PodGroup", "ConfigMap"):
            values = [value for one in bursts for value in one.probes.get(name, ())]
            cells.append(
                ", ".join(
                    f"{value:.0f}"
                    for value in (_quantile(values, 0.5), _quantile(values, 0.99), max(values, default=0))
                )
                + " ms"
            )
        table.add_row(
            kind,
            str(len(bursts)),
            f"{max(one.bytes for one in bursts) / 1024:.0f} KiB",
            f"{1e3 * max(one.admission_cpu for one in bursts) / _AT_ONCE:.0f} ms",
            *cells,
            str(sum(one.failed for one in bursts)),
        )
    return table


@app.default
def bench(
    *,
    shape: Annotated[str, Parameter(help="Comma-separated parts of the names of shapes; all without it.")] = "",
    json: Annotated[Path | None, Parameter(help="Write the figures to this file too.")] = None,
) -> int:
    """Every shape of an object under review, 20 at once, and the latency of another tenant meanwhile."""
    console = Console()
    if not console.is_terminal:
        console.width = 240
    report = asyncio.run(attack(shape, console))
    console.print(", ".join(f"{key} {value}" for key, value in report.machine.items()))
    console.print(summary(report))
    console.print(f"admission server: peak {report.peak_mib:.0f} MiB")
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 0


if __name__ == "__main__":
    app()
