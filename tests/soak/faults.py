"""Executes the faults of a schedule."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import Manifest
from tests.controlplane.proxy import Proxy
from tests.e2e.daemons import QUICK_ELECTION, Daemon
from tests.soak.admission import AdmissionFaults
from tests.soak.hostile import HostileTenant
from tests.soak.schedule import ScheduledFault
from tests.soak.tenant import attempted
from tests.soak.workload import QUOTAS, Churn, Job, node_manifests

#: Seconds. `--half-gang-timeout` of the replicas.
HALF_GANG_SECONDS: Final = 20
_BINDINGS: Final = "/binding$"
_STATUSES: Final = "/(status|podgroups/[^/]+)$"
_PODS: Final = "/pods/[^/]+$"
#: Requests that one request fault affects.
_TIMES: Final = 4
#: A value of the annotation card.name that is not a card name.
_MALFORMED: Final = "||not a card||"


class Replica:
    """One replica that is restarted after it is killed. Each incarnation has its own log."""

    def __init__(self, user: str, proxy: Proxy, folder: Path, conf: str) -> None:
        self.user = user
        self.proxy = proxy
        self._folder = folder
        self._conf = conf
        self.daemons: list[Daemon] = []

    @property
    def daemon(self) -> Daemon:
        """The current incarnation."""
        return self.daemons[-1]

    async def start(self) -> None:
        """Start a new incarnation."""
        name = f"{self.user}-{len(self.daemons) + 1}"
        kubeconfig = self.proxy.kubeconfig_for(self.user)
        flags = (*QUICK_ELECTION, "--leader-elect=true", f"--half-gang-timeout={HALF_GANG_SECONDS}s")
        daemon = Daemon(kubeconfig, self._folder, *flags, conf=self._conf, name=name)
        self.daemons.append(await daemon.start())

    async def is_leader(self) -> bool:
        """Whether it leads; False if it does not respond."""
        try:
            async with asyncio.timeout(1):
                return bool(await self.daemon.metric("volcano_leader"))
        except (TimeoutError, OSError, aiohttp.ClientError):
            return False

    def identities(self) -> list[str]:
        """Holder identities of all incarnations, from their logs."""
        return [line["identity"] for daemon in self.daemons for line in daemon.lines("became leader")]


class FaultInjector:
    """Executes scheduled faults, overlapping as scheduled."""

    def __init__(
        self,
        cluster: Cluster,
        tenant: Cluster,
        control_plane: ControlPlane,
        kubelet: Kubelet,
        churn: Churn,
        replicas: list[Replica],
        hostile: HostileTenant,
        admission: AdmissionFaults,
    ) -> None:
        self._cluster = cluster
        self._tenant = tenant
        self._control_plane = control_plane
        self._kubelet = kubelet
        self._churn = churn
        self._replicas = replicas
        self.hostile = hostile
        self._admission = admission
        #: Names of changed nodes and queues: one fault at a time each.
        self._changed: set[str] = set()
        #: One restart of a control-plane program at a time.
        self._restarting = asyncio.Lock()
        #: One fault per replica's process at a time.
        self._process_locks = {replica.user: asyncio.Lock() for replica in replicas}

    async def execute(self, fault: ScheduledFault) -> bool:
        """Execute one fault; False if it has no target. Requests of the soak itself may fail meanwhile."""
        try:
            return await ACTIONS[fault.kind](self, fault)
        except (RequestError, OSError, TimeoutError, aiohttp.ClientError):
            return False

    async def heal(self) -> None:
        """End all faults: proxies, control plane, processes, nodes, quotas."""
        for replica in self._replicas:
            replica.proxy.mend()
            with contextlib.suppress(ProcessLookupError):
                replica.daemon.signal(signal.SIGCONT)
        await asyncio.to_thread(self._control_plane.start)
        await self._admission.heal()  # the quotas below pass its webhooks
        await self.hostile.heal()
        self._kubelet.stop_delay = 0.3
        for manifest in node_manifests():
            name = manifest["metadata"]["name"]
            found = await self._cluster.find("nodes", name)
            if found is None:
                await self._cluster.create(manifest)
            else:
                await self._cluster.patch("nodes", name, {"spec": {"unschedulable": None}})
                await self._set_allocatable(name, manifest["status"]["allocatable"])
        for name, quota in QUOTAS.items():
            await self._set_quota(name, quota)

    # --- replicas ---------------------------------------------------------------------------------------------------

    async def _replica(self, fault: ScheduledFault) -> Replica:
        """The leader, or the other one if the kind names the standby; any if neither leads."""
        for replica in self._replicas:
            if await replica.is_leader() != fault.kind.endswith("standby"):
                return replica
        return self._replicas[fault.choice % len(self._replicas)]

    async def end_process(self, fault: ScheduledFault) -> bool:
        """Kill, terminate or stop a replica; it runs again after the duration of the fault."""
        replica = await self._replica(fault)
        async with self._process_locks[replica.user]:
            if fault.kind.startswith("kill"):
                await replica.daemon.kill()
            elif fault.kind.startswith("terminate"):
                await replica.daemon.stop()
            else:
                replica.daemon.signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            if fault.kind.startswith("stop"):
                replica.daemon.signal(signal.SIGCONT)
            else:
                await replica.start()
        return True

    async def partition(self, fault: ScheduledFault) -> bool:
        proxy = (await self._replica(fault)).proxy
        faults = [proxy.reset(verb, "", times=None) for verb in ("GET", "POST", "PUT", "PATCH", "DELETE", "WATCH")]
        proxy.reset_streams("")
        await asyncio.sleep(fault.seconds)
        for each in faults:
            each.lift()
        return True

    async def disturb_watches(self, fault: ScheduledFault) -> bool:
        proxy, (verb, _, what) = self._replicas[fault.choice % 2].proxy, fault.kind.partition("-")
        if verb == "pause":
            pause = proxy.pause(f"/{what}$")
            await asyncio.sleep(fault.seconds)
            pause.resume()
        elif what == "watches":
            return proxy.reset_streams("") > 0
        else:
            proxy.cut("/(pods|podgroups|nodes|queues)$")
        return True

    async def disturb_requests(self, fault: ScheduledFault) -> bool:
        for replica in self._replicas:
            REQUESTS[fault.kind](replica.proxy, fault)
        return True

    # --- control plane and cluster ----------------------------------------------------------------------------------

    async def disturb_control_plane(self, fault: ScheduledFault) -> bool:
        """Restart a program, or compact."""
        async with self._restarting:
            await asyncio.to_thread(getattr(self._control_plane, fault.kind.replace("-", "_")))
        return True

    async def _for_a_while(
        self, fault: ScheduledFault, name: str, begin: Callable[[], Awaitable[Any]], end: Callable[[], Awaitable[Any]]
    ) -> bool:
        """Change a node or a queue for the duration of a fault; False if another fault has changed it."""
        if name in self._changed:
            return False
        self._changed.add(name)
        try:
            await begin()
            await asyncio.sleep(fault.seconds)
        finally:
            with contextlib.suppress(RequestError):
                await end()
            self._changed.discard(name)
        return True

    async def change_node(self, fault: ScheduledFault) -> bool:
        """Delete, cordon or shrink a node."""
        manifests = node_manifests()
        node = manifests[fault.choice % len(manifests)]
        name, whole = node["metadata"]["name"], node["status"]["allocatable"]
        actions: dict[str, tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]] = {
            "delete-node": (partial(self._cluster.delete, "nodes", name), partial(self._cluster.create, node)),
            "cordon-node": (partial(self._cordon, name, value=True), partial(self._cordon, name, value=None)),
            "shrink-node": (
                partial(self._set_allocatable, name, {**whole, "nvidia.com/gpu": "2"}),
                partial(self._set_allocatable, name, whole),
            ),
        }
        return await self._for_a_while(fault, name, *actions[fault.kind])

    async def _cordon(self, name: str, *, value: bool | None) -> None:
        await self._cluster.patch("nodes", name, {"spec": {"unschedulable": value}})

    async def _set_allocatable(self, name: str, amounts: dict[str, str]) -> None:
        status = {"status": {"allocatable": amounts, "capacity": amounts}}
        await self._cluster.patch("nodes", name, status, subresource="status")

    async def change_quota(self, fault: ScheduledFault) -> bool:
        """Halve a quota, or raise it by four cards."""
        name = list(QUOTAS)[fault.choice % len(QUOTAS)]
        halved = fault.kind == "lower-quota"
        changed = {card: cards // 2 if halved else cards + 4 for card, cards in QUOTAS[name].items()}
        begin, end = (partial(self._set_quota, name, quota) for quota in (changed, QUOTAS[name]))
        return await self._for_a_while(fault, name, begin, end)

    async def _set_quota(self, name: str, quota: dict[str, int]) -> None:
        text = str(quota).replace("'", '"')
        await self._cluster.patch("queues", name, {"metadata": {"annotations": {"volcano.sh/card.quota": text}}})

    async def slow_kubelet(self, fault: ScheduledFault) -> bool:
        self._kubelet.stop_delay = 4.0
        await asyncio.sleep(fault.seconds)
        self._kubelet.stop_delay = 0.3
        return True

    # --- users ------------------------------------------------------------------------------------------------------

    async def change_job(self, fault: ScheduledFault) -> bool:
        """Change a job all of whose pods are bound, as a tenant or an administrator."""
        jobs = list(self._churn.jobs)
        bound = await self._cluster.bound()
        complete = [job for job in jobs if job.pods and all(name in bound for name in job.pods)]
        if complete:
            user = self._cluster if fault.kind in _OF_ADMINISTRATORS else self._tenant
            await JOB_CHANGES[fault.kind](user, complete[fault.choice % len(complete)], fault.choice)
        return bool(complete)

    async def raise_priority(self, fault: ScheduledFault) -> bool:
        jobs = [job for job in self._churn.jobs if job.queue != "serving"]
        if jobs:
            name = jobs[fault.choice % len(jobs)].name
            patch = {"spec": {"priorityClassName": "system-cluster-critical"}}
            await attempted(self._tenant.patch("podgroups", name, patch))
        return bool(jobs)

    async def attack(self, fault: ScheduledFault) -> bool:
        """An attack on the controllers, or their end."""
        if fault.kind == "kill-controllers":
            return await self.hostile.kill_controllers(fault.seconds, fault.choice)
        return await self.hostile.act(fault.kind, fault.choice)

    async def kill_admission(self, fault: ScheduledFault) -> bool:
        return await self._admission.kill(fault.seconds)

    async def create_job(self, fault: ScheduledFault) -> bool:
        await self._churn.create(**JOBS[fault.kind])
        return True


def _refuse(verb: str, path: str, proxy: Proxy, fault: ScheduledFault) -> None:
    status = (500, 503, 429, 409)[fault.choice % 4]
    proxy.answer(verb, path, status, times=_TIMES, retry_after=1 if status == 429 else None)


def _lose_response(verb: str, path: str, proxy: Proxy, _: ScheduledFault) -> None:
    proxy.lose_answer(verb, path, times=_TIMES)


#: By kind: faults of requests, at the proxy of each replica.
REQUESTS: Final[dict[str, Callable[[Proxy, ScheduledFault], object]]] = {
    "refuse-binds": partial(_refuse, "POST", _BINDINGS),
    "refuse-writes": partial(_refuse, "PATCH", _STATUSES),
    "refuse-evictions": partial(_refuse, "DELETE", _PODS),
    "delay-binds": lambda proxy, fault: proxy.delay(
        "POST", _BINDINGS, fault.seconds, after=bool(fault.choice % 2), times=_TIMES
    ),
    "lose-bind-responses": partial(_lose_response, "POST", _BINDINGS),
    "lose-eviction-responses": partial(_lose_response, "DELETE", _PODS),
    "time-out-binds": lambda proxy, _: proxy.answer("POST", _BINDINGS, 504, done=True, times=_TIMES),
}


async def _annotate(user: Cluster, job: Job, choice: int, *values: str | None) -> None:
    for name in job.pods:
        patch: Manifest = {"metadata": {"annotations": {"volcano.sh/card.name": values[choice % len(values)]}}}
        await attempted(user.patch("pods", name, patch))


async def _move(user: Cluster, job: Job, choice: int) -> None:
    other = [name for name in QUOTAS if name != job.queue][choice % 2]
    await attempted(user.patch("podgroups", job.name, {"spec": {"queue": other}}))


async def _delete(user: Cluster, job: Job, _: int) -> None:
    await attempted(user.delete("podgroups", job.name))


async def _delete_slowly(user: Cluster, job: Job, choice: int) -> None:
    """Pods with a grace period of 10^6 s are deleted together with their PodGroup."""
    await _delete(user, job, choice)
    for name in job.pods:
        await attempted(user.delete("pods", name, grace=10**6))


#: No admission policy applies to them.
_OF_ADMINISTRATORS: Final = frozenset({"reassign-podgroup", "remove-podgroup"})
#: By kind: what a user does to a job.
JOB_CHANGES: Final[dict[str, Callable[[Cluster, Job, int], Awaitable[None]]]] = {
    "edit-card-name": lambda user, job, choice: _annotate(user, job, choice, None, "NVIDIA-H100", "NVIDIA-A10"),
    "malform-card-name": lambda user, job, choice: _annotate(user, job, choice, _MALFORMED),
    "move-podgroup": _move,
    "reassign-podgroup": _move,
    "delete-podgroup": _delete,
    "remove-podgroup": _delete,
    "long-grace": _delete_slowly,
}
_TERM: Final = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
_TERMS: Final = [{"weight": 1 + index % 100, "podAffinityTerm": _TERM} for index in range(200)]
#: By kind: a job of a tenant.
JOBS: Final[dict[str, dict[str, Any]]] = {
    "unnamed-card": {"cards": ""},
    "impossible-gang": {"size": 40},
    "affinity-terms": {
        "size": 1,
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": _TERMS}},
    },
}
_Action = Callable[[FaultInjector, ScheduledFault], Awaitable[bool]]
#: By kind.
ACTIONS: Final[dict[str, _Action]] = {
    **dict.fromkeys(
        ("kill-leader", "kill-standby", "stop-leader", "stop-standby", "terminate-leader"), FaultInjector.end_process
    ),
    **dict.fromkeys(("restart-apiserver", "restart-etcd", "compact"), FaultInjector.disturb_control_plane),
    **dict.fromkeys(
        ("cut-watches", "cut-event", "pause-pods", "pause-nodes", "pause-podgroups", "pause-queues"),
        FaultInjector.disturb_watches,
    ),
    "partition": FaultInjector.partition,
    **dict.fromkeys(REQUESTS, FaultInjector.disturb_requests),
    **dict.fromkeys(("delete-node", "cordon-node", "shrink-node"), FaultInjector.change_node),
    **dict.fromkeys(("lower-quota", "raise-quota"), FaultInjector.change_quota),
    "slow-kubelet": FaultInjector.slow_kubelet,
    **dict.fromkeys(JOB_CHANGES, FaultInjector.change_job),
    "critical-podgroup": FaultInjector.raise_priority,
    **dict.fromkeys(JOBS, FaultInjector.create_job),
    **dict.fromkeys(
        ("kill-controllers", "hostile-job", "hostile-failure", "hostile-command", "hostile-cronjob", "hostile-owner"),
        FaultInjector.attack,
    ),
    "kill-admission": FaultInjector.kill_admission,
}
