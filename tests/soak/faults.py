"""Executes the faults of a schedule."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.controlplane.cluster import Cluster, Manifest, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.proxy import Proxy
from tests.e2e.daemons import QUICK_ELECTION, Daemon
from tests.soak.schedule import ScheduledFault
from tests.soak.tenant import attempted
from tests.soak.workload import QUOTAS, Churn, Job, node_manifests

_BINDINGS: Final = "/binding$"
_STATUSES: Final = "/(status|podgroups/[^/]+)$"
_PODS: Final = "/pods/[^/]+$"
#: Requests that one request fault affects.
_TIMES: Final = 4
_NodeAction = Callable[[Manifest], Awaitable[Any]]
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
        daemon = Daemon(kubeconfig, self._folder, *QUICK_ELECTION, "--leader-elect=true", conf=self._conf, name=name)
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
    ) -> None:
        self._cluster = cluster
        self._tenant = tenant
        self._control_plane = control_plane
        self._kubelet = kubelet
        self._churn = churn
        self._replicas = replicas
        #: Names of changed nodes and queues: one fault at a time each.
        self._changed: set[str] = set()
        #: One restart of a control-plane program at a time.
        self._restarting = asyncio.Lock()
        #: One fault per replica's process at a time.
        self._process_locks = {replica.user: asyncio.Lock() for replica in replicas}

    async def execute(self, fault: ScheduledFault) -> bool:
        """Execute one fault; False if it has no target. Requests of the soak itself may fail meanwhile."""
        verb, _, rest = fault.kind.partition("-")
        action: Callable[[ScheduledFault, str], Awaitable[bool]] = getattr(self, f"_{verb}")
        try:
            return await action(fault, rest)
        except (RequestError, OSError, TimeoutError, aiohttp.ClientError):
            return False

    async def heal(self) -> None:
        """End all faults: proxies, control plane, processes, nodes, quotas."""
        for replica in self._replicas:
            replica.proxy.mend()
            with contextlib.suppress(ProcessLookupError):
                replica.daemon.signal(signal.SIGCONT)
        await asyncio.to_thread(self._control_plane.start)
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

    async def _replica(self, role: str, choice: int) -> Replica:
        for replica in self._replicas:
            if await replica.is_leader() == (role == "leader"):
                return replica
        return self._replicas[choice % len(self._replicas)]

    async def _kill(self, fault: ScheduledFault, role: str) -> bool:
        replica = await self._replica(role, fault.choice)
        async with self._process_locks[replica.user]:
            await replica.daemon.kill()
            await asyncio.sleep(fault.seconds)
            await replica.start()
        return True

    async def _terminate(self, fault: ScheduledFault, role: str) -> bool:
        replica = await self._replica(role, fault.choice)
        async with self._process_locks[replica.user]:
            await replica.daemon.stop()
            await replica.start()
        return True

    async def _stop(self, fault: ScheduledFault, role: str) -> bool:
        replica = await self._replica(role, fault.choice)
        async with self._process_locks[replica.user]:
            replica.daemon.signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            replica.daemon.signal(signal.SIGCONT)
        return True

    async def _partition(self, fault: ScheduledFault, _: str) -> bool:
        proxy = (await self._replica("leader", fault.choice)).proxy
        faults = [proxy.reset(verb, "", times=None) for verb in ("GET", "POST", "PUT", "PATCH", "DELETE", "WATCH")]
        proxy.reset_streams("")
        await asyncio.sleep(fault.seconds)
        for each in faults:
            each.lift()
        return True

    # --- control plane ----------------------------------------------------------------------------------------------

    async def _restart(self, _: ScheduledFault, program: str) -> bool:
        async with self._restarting:
            restart = getattr(self._control_plane, f"restart_{program}")
            await asyncio.to_thread(restart)
        return True

    async def _compact(self, _: ScheduledFault, __: str) -> bool:
        async with self._restarting:
            await asyncio.to_thread(self._control_plane.compact)
        return True

    # --- watches ----------------------------------------------------------------------------------------------------

    async def _cut(self, fault: ScheduledFault, what: str) -> bool:
        proxy = self._replicas[fault.choice % 2].proxy
        if what == "watches":
            return proxy.reset_streams("") > 0
        proxy.cut("/(pods|podgroups|nodes|queues)$")
        return True

    async def _pause(self, fault: ScheduledFault, kind: str) -> bool:
        pause = self._replicas[fault.choice % 2].proxy.pause(f"/{kind}$")
        await asyncio.sleep(fault.seconds)
        pause.resume()
        return True

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _refuse(self, fault: ScheduledFault, what: str) -> bool:
        verb, path = {"binds": ("POST", _BINDINGS), "writes": ("PATCH", _STATUSES), "evictions": ("DELETE", _PODS)}[
            what
        ]
        status = (500, 503, 429, 409)[fault.choice % 4]
        for replica in self._replicas:
            replica.proxy.answer(verb, path, status, times=_TIMES, retry_after=1 if status == 429 else None)
        return True

    async def _delay(self, fault: ScheduledFault, _: str) -> bool:
        for replica in self._replicas:
            replica.proxy.delay("POST", _BINDINGS, fault.seconds, after=bool(fault.choice % 2), times=_TIMES)
        return True

    async def _lose(self, _: ScheduledFault, what: str) -> bool:
        verb, path = ("POST", _BINDINGS) if what.startswith("bind") else ("DELETE", _PODS)
        for replica in self._replicas:
            replica.proxy.lose_answer(verb, path, times=_TIMES)
        return True

    async def _time(self, _: ScheduledFault, __: str) -> bool:
        for replica in self._replicas:
            replica.proxy.replace_answer("POST", _BINDINGS, 504, times=_TIMES)
        return True

    # --- cluster ----------------------------------------------------------------------------------------------------

    async def _node_fault(
        self,
        fault: ScheduledFault,
        begin: Callable[[Manifest], Awaitable[Any]],
        end: Callable[[Manifest], Awaitable[Any]],
    ) -> bool:
        manifests = node_manifests()
        manifest = manifests[fault.choice % len(manifests)]
        name = manifest["metadata"]["name"]
        if name in self._changed:
            return False
        self._changed.add(name)
        try:
            await begin(manifest)
            await asyncio.sleep(fault.seconds)
        finally:
            with contextlib.suppress(RequestError):
                await end(manifest)
            self._changed.discard(name)
        return True

    async def _delete(self, fault: ScheduledFault, what: str) -> bool:
        if what == "podgroup":
            job = await self._running_job(fault.choice)
            if job is not None:
                await attempted(self._tenant.delete("podgroups", job.name))
            return job is not None
        return await self._node_fault(
            fault, lambda node: self._cluster.delete("nodes", node["metadata"]["name"]), self._cluster.create
        )

    async def _cordon(self, fault: ScheduledFault, _: str) -> bool:
        def set_cordoned(value: bool | None) -> _NodeAction:
            patch = {"spec": {"unschedulable": value}}
            return lambda node: self._cluster.patch("nodes", node["metadata"]["name"], patch)

        return await self._node_fault(fault, set_cordoned(True), set_cordoned(None))

    async def _shrink(self, fault: ScheduledFault, _: str) -> bool:
        async def shrink(node: Manifest) -> None:
            smaller = {**node["status"]["allocatable"], "nvidia.com/gpu": "2"}
            await self._set_allocatable(node["metadata"]["name"], smaller)

        async def restore(node: Manifest) -> None:
            await self._set_allocatable(node["metadata"]["name"], node["status"]["allocatable"])

        return await self._node_fault(fault, shrink, restore)

    async def _set_allocatable(self, name: str, amounts: dict[str, str]) -> None:
        status = {"status": {"allocatable": amounts, "capacity": amounts}}
        await self._cluster.patch("nodes", name, status, subresource="status")

    async def _lower(self, fault: ScheduledFault, _: str) -> bool:
        return await self._quota_fault(fault, lambda cards: cards // 2)

    async def _raise(self, fault: ScheduledFault, _: str) -> bool:
        return await self._quota_fault(fault, lambda cards: cards + 4)

    async def _quota_fault(self, fault: ScheduledFault, change: Callable[[int], int]) -> bool:
        name = list(QUOTAS)[fault.choice % len(QUOTAS)]
        if name in self._changed:
            return False
        self._changed.add(name)
        try:
            await self._set_quota(name, {card: change(cards) for card, cards in QUOTAS[name].items()})
            await asyncio.sleep(fault.seconds)
        finally:
            with contextlib.suppress(RequestError):
                await self._set_quota(name, QUOTAS[name])
            self._changed.discard(name)
        return True

    async def _set_quota(self, name: str, quota: dict[str, int]) -> None:
        text = str(quota).replace("'", '"')
        await self._cluster.patch("queues", name, {"metadata": {"annotations": {"volcano.sh/card.quota": text}}})

    async def _slow(self, fault: ScheduledFault, _: str) -> bool:
        self._kubelet.stop_delay = 4.0
        await asyncio.sleep(fault.seconds)
        self._kubelet.stop_delay = 0.3
        return True

    async def _reassign(self, fault: ScheduledFault, _: str) -> bool:
        return await self._move_group(fault, self._cluster)

    async def _remove(self, fault: ScheduledFault, _: str) -> bool:
        job = await self._running_job(fault.choice)
        if job is not None:
            await self._cluster.delete("podgroups", job.name)
        return job is not None

    async def _move_group(self, fault: ScheduledFault, user: Cluster) -> bool:
        job = await self._running_job(fault.choice)
        if job is None:
            return False
        other = [name for name in QUOTAS if name != job.queue][fault.choice % 2]
        await attempted(user.patch("podgroups", job.name, {"spec": {"queue": other}}))
        return True

    # --- tenants ----------------------------------------------------------------------------------------------------

    async def _running_job(self, choice: int) -> Job | None:
        """A job all of whose pods are bound."""
        jobs = list(self._churn.jobs)
        bound = await self._cluster.bound()
        complete = [job for job in jobs if job.pods and all(name in bound for name in job.pods)]
        return complete[choice % len(complete)] if complete else None

    async def _edit(self, fault: ScheduledFault, _: str) -> bool:
        return await self._annotate(fault, (None, "NVIDIA-H100", "NVIDIA-A10")[fault.choice % 3])

    async def _malform(self, fault: ScheduledFault, _: str) -> bool:
        return await self._annotate(fault, _MALFORMED)

    async def _annotate(self, fault: ScheduledFault, card: str | None) -> bool:
        job = await self._running_job(fault.choice)
        if job is None:
            return False
        for name in job.pods:
            patch: Manifest = {"metadata": {"annotations": {"volcano.sh/card.name": card}}}
            await attempted(self._tenant.patch("pods", name, patch))
        return True

    async def _move(self, fault: ScheduledFault, _: str) -> bool:
        return await self._move_group(fault, self._tenant)

    async def _long(self, fault: ScheduledFault, _: str) -> bool:
        """Pods with a grace period of 10^6 s are deleted together with their PodGroup."""
        job = await self._running_job(fault.choice)
        if job is None:
            return False
        await attempted(self._tenant.delete("podgroups", job.name))
        for name in job.pods:
            await attempted(self._tenant.delete("pods", name, grace=10**6))
        return True

    async def _unnamed(self, _: ScheduledFault, __: str) -> bool:
        await self._churn.create(cards="")
        return True

    async def _critical(self, fault: ScheduledFault, _: str) -> bool:
        jobs = [job for job in self._churn.jobs if job.queue != "serving"]
        if not jobs:
            return False
        name = jobs[fault.choice % len(jobs)].name
        patch = {"spec": {"priorityClassName": "system-cluster-critical"}}
        await attempted(self._tenant.patch("podgroups", name, patch))
        return True

    async def _impossible(self, _: ScheduledFault, __: str) -> bool:
        await self._churn.create(size=40)
        return True

    async def _affinity(self, _: ScheduledFault, __: str) -> bool:
        """A pod with 200 preferred pod-affinity terms."""
        term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}
        terms = [{"weight": 1 + index % 100, "podAffinityTerm": term} for index in range(200)]
        affinity = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
        await self._churn.create(size=1, affinity=affinity)
        return True
