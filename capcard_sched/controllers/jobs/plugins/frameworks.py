"""The plugins pytorch, mpi, tensorflow, ray and hcclrank: the rendezvous of distributed frameworks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.jobs.plugins.job_plugin import JobPlugin, add_env, add_port, containers
from capcard_sched.controllers.objects import SERVICE, JsonObject
from capcard_sched.model.annotations import JOB_NAME, JOB_NAMESPACE, TASK_SPEC

if TYPE_CHECKING:
    from capcard_sched.controllers.jobs.job_spec import TaskSpec

#: Pod: rank of its process in Ascend's collective communication.
RANK_INDEX: Final = "hccl/rankIndex"


class PyTorch(JobPlugin):
    """The variables of `torch.distributed`."""

    name = "pytorch"
    defaults = {"master": "master", "worker": "worker", "port": "23456"}

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """`MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE` and `RANK`."""
        master, worker = (self.job.task(self.arguments[role]) for role in ("master", "worker"))
        if task not in (master, worker):
            return
        masters = self.hosts(master) if master is not None else []
        sizes = [each.replicas if each is not None else 0 for each in (master, worker)]
        rank = index if task is master else index + sizes[0]
        values = {"WORLD_SIZE": str(sum(sizes)), "RANK": str(rank)}
        if masters:
            values = {"MASTER_ADDR": masters[0], "MASTER_PORT": str(self.port("port")), **values}
        for container in containers(pod):
            add_env(container, [{"name": name, "value": value} for name, value in values.items()])
        for container in containers(pod, init=False):
            add_port(container, "pytorchjob-port", self.port("port"))


class Mpi(JobPlugin):
    """The hosts of the workers for the launcher in the master."""

    name = "mpi"
    defaults = {"master": "master", "worker": "worker", "port": "22"}

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """`MPI_HOST` in the master; the SSH port everywhere."""
        _ = index
        if task.name == self.arguments["master"]:
            hosts = ",".join(self.task_hosts(self.arguments["worker"]))
            for container in containers(pod):
                add_env(container, [{"name": "MPI_HOST", "value": hosts}])
        for container in containers(pod, init=False):
            add_port(container, "mpijob-port", self.port("port"))


class TensorFlow(JobPlugin):
    """The cluster specification of TensorFlow."""

    name = "tensorflow"
    defaults = {"ps": "ps", "worker": "worker", "chief": "chief", "evaluator": "evaluator", "port": "2222"}

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """`TF_CONFIG`; an evaluator is no member of the cluster."""
        roles = {self.arguments[role]: role for role in ("ps", "worker", "chief", "evaluator")}
        role = roles.get(task.name)
        if role is None:
            return
        port = self.port("port")
        cluster = {
            of: [f"{host}:{port}" for host in self.task_hosts(name)]
            for name, of in roles.items()
            if of != "evaluator" and self.job.task(name) is not None
        }
        config = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}}, separators=(",", ":"))
        for container in containers(pod):
            add_env(container, [{"name": "TF_CONFIG", "value": config}])
        for container in containers(pod, init=False):
            add_port(container, "tfjob-port", port)


class Ray(JobPlugin):
    """The commands that start a Ray cluster, and a Service for its head."""

    name = "ray"
    defaults = {
        "head": "head",
        "headContainer": "head",
        "worker": "worker",
        "workerContainer": "worker",
        "port": "6379",
        "dashboardPort": "8265",
        "clientPort": "10001",
    }

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """The command of the head's and the workers' container."""
        _ = index
        if task.name == self.arguments["head"]:
            command = (
                f"ray start --head --block --dashboard-host=0.0.0.0 --port={self.port('port')} "
                f"--dashboard-port={self.port('dashboardPort')} --ray-client-server-port={self.port('clientPort')}"
            )
            chosen = self.arguments["headContainer"]
        elif task.name == self.arguments["worker"]:
            head = (self.task_hosts(self.arguments["head"]) or [""])[0]
            command = f"ray start --block --address={head}:{self.port('port')}"
            chosen = self.arguments["workerContainer"]
        else:
            return
        for container in containers(pod, init=False):
            if container.get("name") != chosen:
                continue
            container["command"] = ["sh", "-c", command]
            container.pop("args", None)
            if task.name == self.arguments["head"]:
                for name, argument in (("gcs", "port"), ("dashboard", "dashboardPort"), ("client", "clientPort")):
                    add_port(container, name, self.port(argument))

    def objects(self, job: JsonObject) -> list[JsonObject]:
        """The Service of the head."""
        labels = {JOB_NAME: self.job.name, JOB_NAMESPACE: self.job.namespace, TASK_SPEC: self.arguments["head"]}
        ports = [
            {"name": name, "port": self.port(argument), "protocol": "TCP", "targetPort": self.port(argument)}
            for name, argument in (("gcs", "port"), ("dashboard", "dashboardPort"), ("client", "clientPort"))
        ]
        name = f"{self.job.name}-head-svc"
        return [self.owned(job, "v1", SERVICE, name, spec={"selector": labels, "ports": ports})]


class HcclRank(JobPlugin):
    """The rank of a pod for Ascend devices."""

    name = "hcclrank"
    defaults = {"master": "master", "worker": "worker"}

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """The variable `RANK` of a container, else the index; masters come first."""
        given = [
            entry.get("value")
            for container in pod["spec"].get("containers") or ()
            for entry in container.get("env") or ()
            if entry.get("name") == "RANK" and entry.get("value")
        ]
        master = self.job.task(self.arguments["master"])
        if given:
            rank = str(given[0])
        elif task.name == self.arguments["worker"]:
            rank = str(index + (master.replicas if master is not None else 0))
        elif task is master:
            rank = str(index)
        else:
            return
        annotations = dict(pod["metadata"].get("annotations") or {})
        pod["metadata"]["annotations"] = {**annotations, RANK_INDEX: rank}
