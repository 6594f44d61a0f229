"""A simulated cluster without a scheduler: the test admits PodGroups and binds pods itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capcard_sched.controllers.cronjobs import CronJobController
from capcard_sched.controllers.hyper_nodes import HyperNodeController
from capcard_sched.controllers.jobs.job_controller import JobController
from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair
from capcard_sched.controllers.namespace_queues import NamespaceQueueController
from capcard_sched.controllers.podgroups import PodGroupController
from capcard_sched.controllers.queues import QueueController
from capcard_sched.controllers.ttl import TtlController
from capcard_sched.controllers.view import Controller
from capcard_sched.simulation.clock import SECOND
from capcard_sched.simulation.cluster import SimulatedCluster
from capcard_sched.simulation.store import Change
from capcard_sched.simulation.workloads.controller_runner import ControllerRunner

Manifest = dict[str, Any]
SCHEDULER = "volcano"
#: Seconds for which a pod of these tests terminates.
GRACE = 3


def template(**metadata: Any) -> Manifest:
    """A pod template that requests one CPU."""
    container = {"name": "main", "image": "train", "resources": {"requests": {"cpu": "1"}}}
    return {"metadata": metadata, "spec": {"terminationGracePeriodSeconds": GRACE, "containers": [container]}}


def task(name: str, replicas: int, **fields: Any) -> Manifest:
    """A task of a Job."""
    return {"name": name, "replicas": replicas, "template": template(), **fields}


def restart_controllers(
    cluster: SimulatedCluster, scheduler: str, made: Callable[[Controller], Controller] = lambda controller: controller
) -> None:
    """New controllers list everything; what the former ones had in memory, timers too, is gone.

    `made`: what a test puts around a controller, which then is its `controller`.
    """
    fresh: dict[type[Any], Any] = {
        JobController: JobController(scheduler, lambda: KeyPair("simulated private key", "simulated public key")),
        TtlController: TtlController(),
        CronJobController: CronJobController(),
        PodGroupController: PodGroupController((scheduler,)),
        NamespaceQueueController: NamespaceQueueController(),
        QueueController: QueueController(write_counts=True),
    }
    for runner in cluster._controllers:
        if isinstance(runner, ControllerRunner):
            former = getattr(runner._controller, "controller", runner._controller)
            types = former.types if isinstance(former, HyperNodeController) else ()
            runner._controller = made(HyperNodeController(types) if types else fresh[type(former)])
            runner._queue.clear()
            for timer in runner._timers.values():
                timer.cancel()
            runner._timers.clear()
            for kind in runner._controller.replays & set(cluster.store.kinds()):
                for found in list(cluster.store.list(kind)):
                    runner.observe(Change("added", kind, None, found))
    cluster.settle()


class ClusterBench:
    """A settled cluster with one node."""

    def __init__(self, cluster: SimulatedCluster | None = None) -> None:
        self.cluster = cluster or SimulatedCluster((SCHEDULER,), "default")
        self.store = self.cluster.store
        for name, parent in (("root", None), ("default", "root")):
            self.create("Queue", name, spec={"parent": parent} if parent else {})
        self.create("Node", "n1", status={"allocatable": {"cpu": "64"}})

    # --- objects ---

    def create(self, kind: str, name: str, **fields: Any) -> Manifest:
        self.create_quietly(kind, name, **fields)
        return self.get(kind, name)

    def create_quietly(self, kind: str, name: str, **fields: Any) -> None:
        """Create an object that may be gone when the cluster has settled."""
        metadata = {"name": name, **fields.pop("metadata", {})}
        head = {"apiVersion": API.get(kind, "v1"), "kind": kind, "metadata": metadata}
        self.store.create(kind, {**head, **fields})
        self.cluster.settle()

    def find(self, kind: str, name: str) -> Manifest | None:
        return self.store.get(kind, self.namespace_of(kind), name)

    def namespace_of(self, kind: str) -> str:
        return "" if kind in _CLUSTER_SCOPED else "default"

    def get(self, kind: str, name: str) -> Manifest:
        found = self.find(kind, name)
        assert found is not None, (kind, name)
        return found

    def all(self, kind: str) -> list[Manifest]:
        return list(self.store.list(kind))

    def names(self, kind: str) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in self.all(kind))

    def patch(self, kind: str, name: str, patch: Manifest) -> None:
        self.store.patch(kind, self.namespace_of(kind), name, patch)
        self.cluster.settle()

    def delete(self, kind: str, name: str) -> None:
        self.store.delete(kind, self.namespace_of(kind), name)
        self.cluster.settle()

    def wait(self, seconds: int) -> None:
        until = self.cluster.clock.now + seconds * SECOND
        while (due := self.cluster.clock.next_due()) is not None and due <= until:
            self.cluster.clock.fire_next()
            self.cluster.settle()
        self.cluster.clock.now = until
        self.cluster.settle()

    def restart_controllers(self) -> None:
        restart_controllers(self.cluster, SCHEDULER)

    def job_runner(self) -> ControllerRunner:
        """What runs the controller of Jobs."""
        runners = [each for each in self.cluster._controllers if isinstance(each, ControllerRunner)]
        return next(each for each in runners if isinstance(each._controller, JobController))

    # --- Jobs ---

    def job(self, name: str, *tasks: Manifest, **spec: Any) -> Manifest:
        """Create a Job."""
        metadata = spec.pop("metadata", {})
        return self.create("Job", name, metadata=metadata, spec={"tasks": list(tasks), **spec})

    def running_job(self, name: str, *tasks: Manifest, **spec: Any) -> None:
        """Create a Job and let its pods run."""
        self.job(name, *tasks, **spec)
        self.admit()
        self.bind()

    def phase(self, name: str = "j") -> str:
        return str(self.get("Job", name)["status"]["state"]["phase"])

    def status(self, name: str = "j") -> Manifest:
        return dict(self.get("Job", name)["status"])

    def retries(self, name: str = "j") -> int:
        return int(self.status(name).get("retryCount", 0))

    def command(self, action: str, target: str = "j", kind: str = "Job", name: str = "c") -> None:
        api = API[kind]
        self.create_quietly("Command", name, action=action, target={"apiVersion": api, "kind": kind, "name": target})

    # --- the part of the scheduler and of programs ---

    def admit(self) -> None:
        """Every pending PodGroup is admitted."""
        for group in self.all("PodGroup"):
            if group["status"].get("phase") == "Pending":
                self.patch("PodGroup", group["metadata"]["name"], {"status": {"phase": "Inqueue"}})

    def bind(self) -> None:
        """Every pod gets a node and runs."""
        for pod in self.all("Pod"):
            if not pod["spec"].get("nodeName"):
                self.store.patch("Pod", "default", pod["metadata"]["name"], {"spec": {"nodeName": "n1"}})
        self.cluster.settle()

    def run_again(self) -> None:
        """The pods that terminate are gone, and those that follow them run."""
        self.wait(GRACE)
        self.admit()
        self.bind()

    def evict(self, pod: str) -> None:
        self.delete("Pod", pod)

    def finish(self, pod: str, code: int = 0) -> None:
        """The program of a pod ends."""
        now = self.cluster.clock.timestamp()
        ended = {"exitCode": code, "finishedAt": now}
        rows = [{"name": "main", "ready": False, "restartCount": 0, "state": {"terminated": ended}}]
        phase = "Failed" if code else "Succeeded"
        self.patch("Pod", pod, {"status": {"phase": phase, "containerStatuses": rows}})

    def live(self) -> list[str]:
        """Pods whose deletion has not begun."""
        return sorted(
            pod["metadata"]["name"] for pod in self.all("Pod") if not pod["metadata"].get("deletionTimestamp")
        )

    def uids(self, kind: str = "Pod") -> dict[str, str]:
        return {obj["metadata"]["name"]: obj["metadata"]["uid"] for obj in self.all(kind)}

    def messages(self, kind: str, reason: str) -> list[str]:
        """Messages of the events of a reason on objects of a kind."""
        return [
            event["message"]
            for event in self.all("Event")
            if event["involvedObject"]["kind"] == kind and event["reason"] == reason
        ]


_CLUSTER_SCOPED = ("Queue", "Node", "Namespace", "PriorityClass", "PersistentVolume", "StorageClass", "HyperNode")
API = {
    "Job": "batch.volcano.sh/v1alpha1",
    "Command": "bus.volcano.sh/v1alpha1",
    "Queue": "scheduling.volcano.sh/v1beta1",
    "PodGroup": "scheduling.volcano.sh/v1beta1",
    "CronJob": "batch.volcano.sh/v1alpha1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "StorageClass": "storage.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
}
