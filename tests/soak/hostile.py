"""A second hostile tenant: all rights on vcjobs, Commands, CronJobs, PodGroups, pods and Deployments of its namespace.

It attacks the controllers, which are killed at writes meanwhile. A Job of another tenant, the victim, keeps its pods.
Each Job of the hostile tenant must end, or run, once the faults are over.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.controlplane.cluster import Cluster, RequestError
from tests.controlplane.controlplane import ControlPlane
from tests.controlplane.kubelet import Kubelet
from tests.controlplane.manifests import Manifest, deployment, job, plain, pod, pod_group
from tests.controlplane.proxy import Proxy
from tests.e2e.controllers.killing import NthWrite
from tests.e2e.daemons import Controllers
from tests.manifests.documents import MANIFESTS
from tests.soak.tenant import TENANT, attempted
from tests.soak.workload import NAMESPACE, QUOTAS

HOSTILE_NAMESPACE: Final = "hostile"
_JOBS, _BATCH, _BUS = "jobs.batch.volcano.sh", "batch.volcano.sh/v1alpha1", "bus.volcano.sh/v1alpha1"
_RULES: Final[list[Manifest]] = [
    {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["*"]},
    {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["*"]},
    {"apiGroups": ["batch.volcano.sh"], "resources": ["jobs", "cronjobs"], "verbs": ["*"]},
    {"apiGroups": ["bus.volcano.sh"], "resources": ["commands"], "verbs": ["*"]},
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]},
]
_POLICIES: Final[tuple[dict[str, str], ...]] = (
    {"PodFailed": "RestartJob"},
    {"PodFailed": "AbortJob"},
    {"PodEvicted": "RestartTask", "PodFailed": "RestartPod"},
    {"*": "TerminateJob"},
    {},
)
#: Jobs at a time.
_MOST_JOBS: Final = 8
#: Writes of a process before the one at which it is killed, and seconds until it is killed without one.
_MOST_WRITES: Final = 40
_NEXT_WRITE: Final = 5.0
#: Seconds within which a Job ends or runs, once the faults are over.
_SETTLE: Final = 120.0
_SETTLED: Final = frozenset({"Running", "Completed", "Failed", "Terminated", "Aborted"})


def _small_job(name: str, queue: str, replicas: int, **spec: Any) -> Manifest:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "100m"}}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    tasks = [{"name": "w", "replicas": replicas, "template": template}]
    return job(name, replicas, queue=queue, tasks=tasks, **spec)


def _phase_of(found: Manifest) -> str:
    return str(((found.get("status") or {}).get("state") or {}).get("phase") or "")


class HostileTenant:
    """The tenant, the controllers that it attacks, and its victim."""

    def __init__(
        self, cluster: Cluster, control_plane: ControlPlane, kubelet: Kubelet, proxy: Proxy, folder: Path
    ) -> None:
        """`proxy`: of the controllers."""
        self._cluster = cluster
        self.proxy = proxy
        self._control_plane = control_plane
        self._kubelet = kubelet
        self._folder = folder
        self._tenant = Cluster(control_plane, user=TENANT, namespace=HOSTILE_NAMESPACE)
        self._victim: Manifest = {}
        self._pods: dict[str, str] = {}
        self._made = 0
        self._names: list[str] = []
        self._lock = asyncio.Lock()
        self.processes: list[Controllers] = []
        self.violations: list[str] = []

    async def start(self) -> None:
        """The namespace, the policy of Commands, the controllers, and the victim with its running pods."""
        await self._tenant.__aenter__()
        await self._cluster.make_namespace(HOSTILE_NAMESPACE)
        async with Cluster(self._control_plane, namespace=HOSTILE_NAMESPACE) as admin:
            await admin.allow(TENANT, _RULES)
        await self._cluster.apply(MANIFESTS / "controllers" / "admission-commands.yaml")
        await self._begin()
        self._victim = await self._cluster.create(_small_job("victim", "serving", 3))
        await self._cluster.wait_until(self._victim_runs, "the victim to run", within=120)
        self._pods = await self._pods_of_victim()

    async def stop(self) -> None:
        """End the controllers."""
        await self._tenant.__aexit__(None, None, None)
        with contextlib.suppress(AssertionError, ProcessLookupError):
            await self.processes[-1].stop()

    def running(self) -> Iterator[tuple[str, int]]:
        """Name and pid of the controllers."""
        with contextlib.suppress(AssertionError):  # it starts
            for each in self.processes[-1:]:
                yield each.log_path.stem, each.process.pid

    async def _begin(self) -> None:
        name = f"controllers-{len(self.processes) + 1}"
        kubeconfig = self.proxy.kubeconfig_for("admin")
        self.processes.append(Controllers(kubeconfig, self._folder, name=name))
        await self.processes[-1].start()

    async def kill_controllers(self, seconds: float, choice: int) -> bool:
        """Kill the controllers at one of their next writes; they run again after some time. False while they are ended.

        In half of the cases the API server has executed that write.
        """
        if self._lock.locked():
            return False
        async with self._lock:
            fault = NthWrite(1 + choice % _MOST_WRITES, taken=choice // _MOST_WRITES % 2 == 0)
            fault.strike(self.proxy)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_NEXT_WRITE):
                    await fault.reached.wait()
            await self.processes[-1].kill()
            fault.lift()
            await asyncio.sleep(seconds)
            await self._begin()
        return True

    async def act(self, kind: str, choice: int) -> bool:
        """One attack; False without a target."""
        done: bool = await getattr(self, f"_{kind.replace('-', '_')}")(choice)
        return done

    async def _hostile_job(self, choice: int) -> bool:
        """A Job whose pods fail or vanish, with any policy; a quarter of the time in the place of the oldest."""
        if len(self._names) >= _MOST_JOBS:
            if choice % 4:
                return False
            await attempted(self._tenant.delete(_JOBS, self._names.pop(0)))
        policies = [{"event": event, "action": action} for event, action in _POLICIES[choice % 5].items()]
        self._made += 1
        name = f"h-{self._made}"
        self._names.append(name)
        made = _small_job(name, list(QUOTAS)[choice % 3], 1 + choice % 4, policies=policies, maxRetry=1 + choice % 3)
        refusal = await attempted(self._tenant.create(made))
        if refusal:
            self.violations.append(f"Job {name} of the tenant is refused: {refusal}")
        return True

    async def _hostile_failure(self, choice: int) -> bool:
        """A pod of its Jobs fails, or is deleted."""
        pods = await self._tenant.list("pods")
        running = [each["metadata"]["name"] for each in pods if each["status"].get("phase") == "Running"]
        if running and choice % 2:
            await self._kubelet.finish(running[choice % len(running)], namespace=HOSTILE_NAMESPACE, phase="Failed")
        elif running:
            await attempted(self._tenant.delete("pods", running[choice % len(running)]))
        return bool(running)

    async def _hostile_command(self, choice: int) -> bool:
        """Commands for its Jobs, which resume those that are aborted, for the victim, and for the queues of all."""
        target: Manifest = {
            "apiVersion": _BATCH,
            "kind": "Job",
            "name": "victim",
            "uid": self._victim["metadata"]["uid"],
        }
        action = ("AbortJob", "ResumeJob", "RestartJob", "TerminateJob")[choice % 4]
        if choice % 3 == 0 and self._names:
            name = self._names[choice % len(self._names)]
            found = await self._tenant.find(_JOBS, name)
            uid = found["metadata"]["uid"] if found is not None else "absent"
            target |= {"name": name, "uid": uid}
            if found is not None and _phase_of(found) == "Aborted":
                action = "ResumeJob"
        elif choice % 3 == 1:
            queue = await self._cluster.get("queues", list(QUOTAS)[choice % 3])
            target = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
            target |= {"name": queue["metadata"]["name"], "uid": queue["metadata"]["uid"]}
            action = "CloseQueue"
        self._made += 1
        await attempted(self._tenant.create(plain("Command", f"c-{self._made}", _BUS, action=action, target=target)))
        return True

    async def _hostile_cronjob(self, choice: int) -> bool:
        """A CronJob of each minute; one that began in the future; one with a critical priority, which is refused."""
        self._made += 1
        fields: Manifest = {"priorityClassName": "system-cluster-critical"} if choice % 3 == 0 else {}
        spec = {"schedule": "* * * * *", "jobTemplate": {"spec": _small_job("x", "batch", 1, **fields)["spec"]}}
        name = f"cron-{self._made % 4}"
        with contextlib.suppress(RequestError):  # it exists
            await attempted(self._tenant.create(plain("CronJob", name, _BATCH, spec=spec)))
        return True

    async def _hostile_owner(self, choice: int) -> bool:
        """A failed pod, a PodGroup and a Deployment with the victim as their controller."""
        self._made += 1
        owner = {
            "apiVersion": _BATCH,
            "kind": "Job",
            "name": "victim",
            "uid": self._victim["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": False,
        }
        notes = {
            "volcano.sh/task-spec": "w",
            "volcano.sh/task-index": "0",
            "volcano.sh/job-version": "9" * (choice % 5000),
        }
        template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
        made = {
            0: pod(f"o-{self._made}", annotations=notes),
            1: pod_group(f"o-{self._made}", queue="serving", members=1),
            2: deployment(f"o-{self._made}", 1, template),
        }[choice % 3]
        made["metadata"]["ownerReferences"] = [owner]
        await attempted(self._tenant.create(made))
        if choice % 3 == 0:
            body = {"status": {"phase": "Failed"}}
            await attempted(self._tenant.patch("pods", f"o-{self._made}", body, subresource="status"))
        return True

    async def heal(self) -> None:
        """The controllers run; the tenant sends no further requests."""
        async with self._lock:
            with contextlib.suppress(ProcessLookupError):
                self.processes[-1].signal(signal.SIGCONT)

    async def check(self) -> None:
        """Report changes of the victim, and Jobs that neither end nor run; then delete the objects of the tenant."""
        for name in list(QUOTAS):
            state = ((await self._cluster.get("queues", name)).get("status") or {}).get("state")
            if state not in (None, "Open"):
                self.violations.append(f"queue {name} is {state}")
        found = await self._cluster.get(_JOBS, "victim")
        if not await self._victim_runs() or (found["status"].get("retryCount") or 0):
            self.violations.append(f"the victim is {found['status']}")
        if await self._pods_of_victim() != self._pods:
            self.violations.append(f"pods of the victim were replaced: {self._pods}")
        deadline = time.monotonic() + _SETTLE
        while waiting := await self._waiting():
            if time.monotonic() > deadline:
                self.violations += [f"Job {name} waits: {status}" for name, status in waiting.items()]
                break
            for name in [name for name, status in waiting.items() if (status or {}).get("failed")]:
                await self._end_programs(name)
            await asyncio.sleep(2)
        for kind in ("cronjobs.batch.volcano.sh", _JOBS, "commands", "deployments", "pods", "podgroups"):
            for each in await self._cluster.list(kind, namespace=HOSTILE_NAMESPACE):
                with contextlib.suppress(RequestError):
                    await self._cluster.delete(kind, each["metadata"]["name"], namespace=HOSTILE_NAMESPACE)

    async def _waiting(self) -> dict[str, Any]:
        """Jobs of the tenant that neither end nor run, with their status."""
        found = await self._cluster.list(_JOBS, namespace=HOSTILE_NAMESPACE)
        return {each["metadata"]["name"]: each.get("status") for each in found if _phase_of(each) not in _SETTLED}

    async def _end_programs(self, job: str) -> None:
        """The running pods of a Job succeed: one with failed pods may wait for them, and end afterwards."""
        for each in await self._cluster.list(
            "pods", namespace=HOSTILE_NAMESPACE, labelSelector=f"volcano.sh/job-name={job}"
        ):
            if each["status"].get("phase") == "Running" and not each["metadata"].get("deletionTimestamp"):
                with contextlib.suppress(RequestError):  # it is gone
                    await self._kubelet.finish(each["metadata"]["name"], namespace=HOSTILE_NAMESPACE)

    async def _victim_runs(self) -> bool:
        found = await self._cluster.get(_JOBS, "victim")
        return _phase_of(found) == "Running"

    async def _pods_of_victim(self) -> dict[str, str]:
        pods = await self._cluster.list("pods", namespace=NAMESPACE, labelSelector="volcano.sh/job-name=victim")
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in pods}
