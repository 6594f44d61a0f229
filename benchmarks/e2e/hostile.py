"""`python -m benchmarks.e2e.hostile`: the worst objects of every kind under review, 20 at once, beside another tenant.

A real API server has our webhooks, with one admission server, and our policies. Each shape of an object is as large as
the API server stores it; 20 of it arrive at once, as trials. Meanwhile another tenant creates PodGroups, which the
webhooks review, and ConfigMaps, which nothing reviews: their latency is that of the API server on this machine.

`--without policies,schemas,webhooks` repeats the same objects without each of these parts of ours: the difference is
their part of the CPU time of the API server, with no requests of the other tenant. Without schemas, a
CustomResourceDefinition keeps fields as they are.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import aiohttp
import msgspec
import yaml
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
from tests.controlplane.preparation import CRDS
from tests.e2e.admission.server import Admission
from tests.e2e.rbac.installed import SYSTEM
from tests.manifests.documents import MANIFESTS
from tests.unit.admission.worst import WORST

app = App(name="bench-hostile", help="Measure the latency of other tenants under the worst objects.")

#: Users: the hostile one, and the other tenant.
_HOSTILE, _HEALTHY = "somebody", "nobody"
AT_ONCE: Final = 20
#: Parts of ours that can be left out; "" for none.
Part: TypeAlias = Literal["", "policies", "schemas", "webhooks"]
_PARTS: Final[tuple[Part, ...]] = ("policies", "schemas", "webhooks")
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
_SCHEDULING: Final = "scheduling.volcano.sh/v1beta1"
_WORKLOADS = ("StatefulSet", "DaemonSet", "ReplicaSet", "batch Job")


class WorstShape(NamedTuple):
    """One shape of an object: `build` makes it with a number of entries."""

    name: str
    kind: str
    build: Callable[[int], Document]


class BurstSize(NamedTuple):
    """Number of objects of a burst, and the bytes of one, at most."""

    objects: int = AT_ONCE
    bytes: int = MOST_BYTES


LARGEST: Final = BurstSize()


class Burst(msgspec.Struct):
    """Objects of one shape, all at once."""

    shape: str
    #: Of one object, and the entries of its list or map.
    bytes: int
    entries: int
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
    #: What was left out.
    without: Part = ""


class HostileReport(msgspec.Struct):
    """Everything one run found, as written by `--json`."""

    machine: dict[str, str]
    #: Load average over the last minute, at start and end.
    load: list[float]
    #: Objects of a burst.
    at_once: int = AT_ONCE
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

    def __init__(
        self,
        server: Server,
        admission: Admission | None,
        probes: Helper | None,
        session: aiohttp.ClientSession,
        without: Part = "",
        size: BurstSize = LARGEST,
    ) -> None:
        """`session`: of the hostile user. `admission`: None without webhooks; `probes`: None without other requests."""
        self._server = server
        self._admission = admission
        self._probes = probes
        self._session = session
        self._without: Part = without
        self._size = size

    async def largest(self, shape: WorstShape) -> tuple[int, str]:
        """The entries of the largest object that the API server does not refuse itself, and its response."""
        path, size = _PATHS[shape.kind], self._size.bytes
        for _ in range(_HALVINGS):
            count = _count(shape, size)
            status, text = await _post(self._session, path, _body(shape, count, "stored"))
            first = outcome(status, text)
            if not first.startswith("refused by the API server"):
                break
            size //= 2
        if first == "accepted":
            await self._server.request(
                "DELETE", f"{path}/stored", {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
            )
        return count, f"{first}: {text[:160]}" if first.startswith("refused by the API server") else first

    async def burst(self, shape: WorstShape, count: int, first: str = "") -> Burst:
        """Trials of one object, all at once. `first`: as of `largest`."""
        path, trial = _PATHS[shape.kind], _body(shape, count, "trial")
        await asyncio.sleep(_REST)
        before, began = self._cpu(), time.monotonic()
        answers = await asyncio.gather(
            *(_post(self._session, path, trial, dryRun="All") for _ in range(self._size.objects))
        )
        ended = time.monotonic()
        reviews, server = (now - cpu for now, cpu in zip(self._cpu(), before, strict=True))
        found = [one for one in await self._until(ended + _REST) if began - _INTERVAL <= one.due <= ended]
        probes: dict[str, list[float]] = {}
        for one in found:
            probes.setdefault(one.name, []).append(1e3 * one.seconds)
        outcomes = dict(Counter(outcome(*each) for each in answers))
        failed = sum(not 200 <= one.status < 300 for one in found)
        seconds = ended - began
        return Burst(
            shape.name, len(trial), count, first, outcomes, seconds, reviews, server, probes, failed, self._without
        )

    def _cpu(self) -> tuple[float, float]:
        """CPU seconds of the admission server and of kube-apiserver so far."""
        reviews = cpu_seconds(self._admission.pid) if self._admission is not None else 0.0
        return reviews, cpu_seconds(self._server.plane.pid("kube-apiserver"))

    async def _until(self, moment: float) -> list[Probe]:
        """The probes so far, to the first that was due after a moment."""
        found: list[Probe] = []
        while self._probes is not None:
            found.append(await self._probes.answer(Probe, _LIMIT))
            if found[-1].due > moment:
                break
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


def _without_schema(crd: Document) -> Document:
    """A CustomResourceDefinition that keeps the fields of `spec` and `status` as they are."""
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for version in crd["spec"]["versions"]:
        properties = version["schema"]["openAPIV3Schema"]["properties"]
        properties |= {name: kept for name in ("spec", "status") if name in properties}
    return crd


async def _drop_schemas(cluster: Cluster) -> None:
    crds = [
        _without_schema(each)
        for path in sorted(CRDS.glob("*.yaml"))
        for each in yaml.safe_load_all(path.read_text("utf-8"))
    ]
    await cluster.apply(crds)

    async def is_served() -> bool:
        found = await cluster.request("GET", "/openapi/v3/apis/scheduling.volcano.sh/v1beta1")
        return b"minTaskMember" not in msgspec.json.encode(found)

    await cluster.wait_until(is_served, "the API server to serve the definitions without schemas", within=_LIMIT)


async def _prepare(cluster: Cluster, without: Part) -> None:
    """Namespaces, users and queues."""
    kinds = sorted({path.rpartition("/")[2] for path in _PATHS.values()} | {"configmaps"})
    rules = [{"apiGroups": ["*"], "resources": kinds, "verbs": ["*"]}]  # no subresources: these are a scheduler's
    if without == "schemas":
        await _drop_schemas(cluster)
    for name in (SYSTEM, "hostile", "healthy"):
        await cluster.make_namespace(name)
    for user in (_HOSTILE, _HEALTHY):
        await cluster.allow(user, rules, everywhere=True)
    for name in ("root", "default", "research"):
        meta = {"name": name}
        await cluster.create({"apiVersion": _SCHEDULING, "kind": "Queue", "metadata": meta, "spec": {}})


def _probe_job(healthy: Target) -> ProbeJob:
    """Requests of the other tenant: path and body by name."""
    meta = {"name": "probe", "namespace": "healthy"}
    spec = {"minMember": 1, "queue": "research"}
    group = {"apiVersion": _SCHEDULING, "kind": "PodGroup", "metadata": meta, "spec": spec}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    requests = {
        "PodGroup": (f"/apis/{_SCHEDULING}/namespaces/healthy/podgroups", group),
        "ConfigMap": ("/api/v1/namespaces/healthy/configmaps", config),
    }
    bodies = {name: (path, msgspec.json.encode(body).decode()) for name, (path, body) in requests.items()}
    return ProbeJob(healthy, bodies, _INTERVAL)


@asynccontextmanager
async def _scene(
    folder: Path, without: Part, size: BurstSize, *, probed: bool
) -> AsyncIterator[tuple[Attack, Admission | None]]:
    """An API server with everything of ours but a part, and both users."""
    async with Server() as server, Cluster(server.plane) as cluster:
        await _prepare(cluster, without)
        admission = None if without == "webhooks" else Admission(cluster, folder)
        if admission is not None:
            await admission.install()
        for policy in _POLICIES if without != "policies" else ():
            await cluster.apply(MANIFESTS / policy)
        if admission is not None:
            await admission.start()
        plane = server.plane
        hostile, healthy = (Target(plane.server, str(plane.ca), plane.token(one)) for one in (_HOSTILE, _HEALTHY))
        try:
            async with hostile.session() as session:
                if without != "policies":
                    await _wait_for_policies(session)
                async with AsyncExitStack() as stack:
                    probes = None
                    if probed:
                        helper = Helper("benchmarks.e2e.probes", _probe_job(healthy))
                        probes = await stack.enter_async_context(helper)
                    yield Attack(server, admission, probes, session, without, size), admission
        finally:
            if admission is not None:
                admission.stop()


async def attack(
    chosen: str, console: Console, without: Sequence[Part] = (), size: BurstSize = LARGEST
) -> HostileReport:
    """All shapes whose name contains one of `chosen`, separated by commas, one after the other."""
    report = HostileReport(measure.machine(), [os.getloadavg()[0]], size.objects)
    found = [shape for shape in shapes() if any(part in shape.name for part in chosen.split(","))]
    entries: dict[str, int] = {}
    for part in ("", *without):
        with tempfile.TemporaryDirectory(prefix="capcard-bench-") as folder:
            async with _scene(Path(folder), part, size, probed=not without) as (scene, admission):
                for shape in found:
                    first = ""
                    if shape.name not in entries:
                        entries[shape.name], first = await scene.largest(shape)
                    report.bursts.append(await scene.burst(shape, entries[shape.name], first))
                    _show(console, report.bursts[-1])
                if admission is not None:
                    report.peak_mib = max(report.peak_mib, peak_mib(admission.pid))
    report.load.append(os.getloadavg()[0])
    return report


def _show(console: Console, burst: Burst) -> None:
    answers = ", ".join(f"{count} {name}" for name, count in burst.outcomes.items())
    latency = "; ".join(
        f"{name} p99 {_quantile(values, 0.99):.0f} ms, longest {max(values):.0f} of {len(values)}"
        for name, values in burst.probes.items()
    )
    name = f"{burst.shape} without {burst.without}" if burst.without else burst.shape
    size = f"{burst.bytes / 1024:.0f} KiB" + (f", {burst.first}" if burst.first else "")
    console.print(
        f"[dim]{name}: {size}; {answers} in {burst.seconds:.2f} s; "
        f"CPU {burst.admission_cpu:.2f} s (API server {burst.server_cpu:.2f}); {latency}; {burst.failed} failed[/dim]"
    )


def summary(report: HostileReport) -> Table:
    """By kind and over all: objects, responses and the latency of the other tenant."""
    table = Table(title=f"Others meanwhile; load {report.load[0]:.1f} to {report.load[-1]:.1f}")
    for header in (
        "kind",
        "shapes",
        "largest",
        "CPU per object, longest: admission server, API server",
        "PodGroup p50, p99, longest",
        "ConfigMap p50, p99, longest",
        "failed",
    ):
        table.add_column(header)
    whole = [one for one in report.bursts if not one.without]
    kinds = dict.fromkeys(burst.shape.partition(":")[0] for burst in whole)
    for kind in [*kinds, "all"]:
        bursts = [one for one in whole if kind in ("all", one.shape.partition(":")[0])]
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
            ", ".join(
                f"{1e3 * max(cpu) / report.at_once:.0f} ms"
                for cpu in ([one.admission_cpu for one in bursts], [one.server_cpu for one in bursts])
            ),
            *cells,
            str(sum(one.failed for one in bursts)),
        )
    return table


def shares(report: HostileReport) -> Table:
    """CPU time of the API server per object, with everything of ours and without one part of it."""
    parts = [part for part in _PARTS if any(one.without == part for one in report.bursts)]
    table = Table(title="CPU ms of the API server per object")
    for header in ("shape", "KiB", "everything", *(f"without {part}" for part in parts)):
        table.add_column(header)
    used = {(one.shape, one.without): f"{1e3 * one.server_cpu / report.at_once:.0f}" for one in report.bursts}
    for one in report.bursts:
        if not one.without:
            cells = [used[one.shape, part] for part in ("", *parts)]
            table.add_row(one.shape, f"{one.bytes / 1024:.0f}", *cells)
    return table


def _named_parts(text: str) -> tuple[Part, ...]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in _PARTS]
    if unknown:
        raise SystemExit(f"--without: {', '.join(unknown)}; accepted: {', '.join(_PARTS)}")
    return tuple(part for part in _PARTS if part in names)


@app.default
def bench(
    *,
    shape: Annotated[str, Parameter(help="Comma-separated parts of the names of shapes; all without it.")] = "",
    without: Annotated[str, Parameter(help="Repeat without each of: policies, schemas, webhooks.")] = "",
    objects: Annotated[int, Parameter(help="Objects of a burst; fewer show CPU times on a busy machine.")] = AT_ONCE,
    size: Annotated[int, Parameter(help="Bytes of an object, at most.")] = MOST_BYTES,
    json: Annotated[Path | None, Parameter(help="Write the figures to this file too.")] = None,
) -> int:
    """Every shape of an object under review, 20 at once, and the latency of another tenant meanwhile."""
    console = Console()
    if not console.is_terminal:
        console.width = 240
    report = asyncio.run(attack(shape, console, _named_parts(without), BurstSize(objects, size)))
    console.print(", ".join(f"{key} {value}" for key, value in report.machine.items()))
    console.print(summary(report))
    if without:
        console.print(shares(report))
    console.print(f"admission server: peak {report.peak_mib:.0f} MiB")
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 0


if __name__ == "__main__":
    app()
