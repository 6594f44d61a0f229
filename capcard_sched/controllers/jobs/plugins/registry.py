"""The plugins of Jobs, in the order in which they change a pod: a plugin is added here."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec

from capcard_sched.controllers.jobs.plugins.job_plugin import (
    JobPlugin,
    KeyPair,
    PluginError,
    add_env,
    add_mount,
    add_port,
    containers,
)
from capcard_sched.controllers.objects import (
    CONFIG_MAP,
    NETWORK_POLICY,
    NETWORKING_API,
    SECRET,
    SERVICE,
    JsonObject,
    Key,
    volume_name,
)
from capcard_sched.model.annotations import JOB_NAME, JOB_NAMESPACE, TASK_SPEC
from capcard_sched.model.job_plugins import JOB_PLUGINS, needed_plugins

if TYPE_CHECKING:
    from collections.abc import Callable

    from capcard_sched.controllers.jobs.job_spec import JobSpec, TaskSpec

_HOSTS_PATH: Final = "/etc/volcano"
_SSH_PATH: Final = "/root/.ssh"
_SSH_FILES: Final = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")
_OWNER_ONLY: Final = 0o600


class Env(JobPlugin):
    """Adds the index of a pod within its task to all its containers."""

    name = "env"

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """`VC_TASK_INDEX` and its older name."""
        for container in containers(pod):
            add_env(container, [{"name": name, "value": str(index)} for name in ("VK_TASK_INDEX", "VC_TASK_INDEX")])


class Svc(JobPlugin):
    """A headless Service, the host names of all tasks as files and variables, and a NetworkPolicy."""

    name = "svc"

    @property
    def _map_name(self) -> str:
        return f"{self.job.name}-svc"

    @cached_property
    def _variables(self) -> dict[str, str]:
        found = {}
        for task in self.job.tasks:
            name = task.name.upper().replace("-", "_")
            found[f"VC_{name}_HOSTS"] = ",".join(self.hosts(task))
            found[f"VC_{name}_NUM"] = str(task.replicas)
        return found

    @cached_property
    def _entries(self) -> list[JsonObject]:
        """The variables of a container; the pods share them."""
        return [
            {"name": key, "valueFrom": {"configMapKeyRef": {"name": self._map_name, "key": key}}}
            for key in self._variables
        ]

    @property
    def entries(self) -> int:
        """Two variables per task, and the mount."""
        return 2 * len(self.job.tasks) + 1

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """Host name, variables and the mounted host files."""
        pod["spec"]["hostname"] = pod["spec"].get("hostname") or pod["metadata"]["name"]
        pod["spec"]["subdomain"] = pod["spec"].get("subdomain") or self.job.name
        volume = {"name": volume_name(self._map_name), "configMap": {"name": self._map_name}}
        add_mount(pod, volume, _HOSTS_PATH)
        if not self.arguments.switch("inject-hosts-env"):
            return
        for container in containers(pod):
            add_env(container, self._entries)

    def contents(self) -> dict[Key, JsonObject]:
        """The ConfigMap: per task a file with a host name per line, and the variables."""
        files = {f"{task.name}.host": "\n".join(self.hosts(task)) for task in self.job.tasks}
        return {Key(CONFIG_MAP, self.job.namespace, self._map_name): {"data": {**files, **self._variables}}}

    def objects(self, job: JsonObject) -> list[JsonObject]:
        """ConfigMap, Service and NetworkPolicy."""
        selector = {JOB_NAME: self.job.name, JOB_NAMESPACE: self.job.namespace}
        (content,) = self.contents().values()
        service = {
            "clusterIP": "None",
            "selector": selector,
            "ports": [{"name": "placeholder-volcano", "port": 1, "protocol": "TCP", "targetPort": 1}],
            "publishNotReadyAddresses": self.arguments.switch("publish-not-ready-addresses"),
        }
        found = [
            self.owned(job, "v1", CONFIG_MAP, self._map_name, **content),
            self.owned(job, "v1", SERVICE, self.job.name, spec=service),
        ]
        if not self.arguments.switch("disable-network-policy"):
            own = {"matchLabels": selector}
            policy = {"podSelector": own, "ingress": [{"from": [{"podSelector": own}]}], "policyTypes": ["Ingress"]}
            found.append(self.owned(job, NETWORKING_API, NETWORK_POLICY, self.job.name, spec=policy))
        return found


class Ssh(JobPlugin):
    """A key pair and client configuration with which every pod logs in to every other."""

    name = "ssh"

    @property
    def _secret_name(self) -> str:
        return f"{self.job.name}-ssh"

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """The mounted key pair."""
        secret = {
            "secretName": self._secret_name,
            "items": [{"key": name, "path": name} for name in _SSH_FILES],
            "defaultMode": _OWNER_ONLY,
        }
        path = self.arguments.text("ssh-key-file-path") or _SSH_PATH
        add_mount(pod, {"name": volume_name(self._secret_name), "secret": secret}, path)

    def contents(self) -> dict[Key, JsonObject]:
        """The client configuration: one entry per pod."""
        lines, port = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"], self.arguments.number("ssh-port")
        for task in self.job.tasks:
            for host in self.hosts(task):
                lines += [f"Host {host.partition('.')[0]}", f"  HostName {host}", f"  Port {port}"]
        return {Key(SECRET, self.job.namespace, self._secret_name): {"stringData": {"config": "\n".join(lines) + "\n"}}}

    def objects(self, job: JsonObject) -> list[JsonObject]:
        """The Secret."""
        private, public = self.arguments.text("ssh-private-key"), self.arguments.text("ssh-public-key")
        if not (private and public):
            private, public = self.make_keys()
        (content,) = self.contents().values()
        data = {"id_rsa": private, "id_rsa.pub": public, "authorized_keys": public, **content["stringData"]}
        return [self.owned(job, "v1", SECRET, self._secret_name, type="Opaque", stringData=data)]


#: Pod: rank of its process in Ascend's collective communication.
RANK_INDEX: Final = "hccl/rankIndex"
_WAIT_FOR_MASTER: Final = "wait-for-master"
#: Shell script of the init container: connects every 2 s, for at most `timeout` seconds.
_WAIT_SCRIPT: Final = (
    'end=$(($(date +%s) + {timeout})); until nc -z -w 2 {host} {port}; do if [ "$(date +%s)" -ge "$end" ]; then '
    'echo "{host}:{port} does not listen after {timeout} s"; exit 1; fi; sleep 2; done'
)


class PyTorch(JobPlugin):
    """The variables of `torch.distributed`."""

    name = "pytorch"

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """`MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE` and `RANK`."""
        master, worker = (self.job.task(self.arguments.text(role)) for role in ("master", "worker"))
        if task not in (master, worker):
            return
        masters = self.hosts(master) if master is not None else []
        sizes = [each.replicas if each is not None else 0 for each in (master, worker)]
        rank = index if task is master else index + sizes[0]
        values = {"WORLD_SIZE": str(sum(sizes)), "RANK": str(rank)}
        if masters:
            values = {"MASTER_ADDR": masters[0], "MASTER_PORT": str(self.arguments.number("port")), **values}
        for container in containers(pod):
            add_env(container, [{"name": name, "value": value} for name, value in values.items()])
        for container in containers(pod, init=False):
            add_port(container, "pytorchjob-port", self.arguments.number("port"))
        if masters and task is worker and self.arguments.switch("wait-master-enabled"):
            self._wait_for(pod, masters[0])

    def _wait_for(self, pod: JsonObject, master: str) -> None:
        """An init container behind those of the template, unless the template has one of that name."""
        present = list(pod["spec"].get("initContainers") or ())
        if any(container.get("name") == _WAIT_FOR_MASTER for container in present):
            return
        timeout, port = self.arguments.number("wait-master-timeout"), self.arguments.number("port")
        script = _WAIT_SCRIPT.format(timeout=timeout, host=master, port=port)
        image = self.arguments.text("wait-master-image")
        container = {"name": _WAIT_FOR_MASTER, "image": image, "command": ["sh", "-c", script]}
        pod["spec"]["initContainers"] = [*present, container]


class Mpi(JobPlugin):
    """The hosts of the workers for the launcher in the master."""

    name = "mpi"

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """`MPI_HOST` in the master; the SSH port everywhere."""
        if task.name == self.arguments.text("master"):
            hosts = ",".join(self.task_hosts(self.arguments.text("worker")))
            for container in containers(pod):
                add_env(container, [{"name": "MPI_HOST", "value": hosts}])
        for container in containers(pod, init=False):
            add_port(container, "mpijob-port", self.arguments.number("port"))


class TensorFlow(JobPlugin):
    """The cluster specification of TensorFlow."""

    name = "tensorflow"

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """`TF_CONFIG`; an evaluator is no member of the cluster."""
        roles = {self.arguments.text(role): role for role in ("ps", "worker", "chief", "evaluator")}
        role = roles.get(task.name)
        if role is None:
            return
        port = self.arguments.number("port")
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

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """The command of the head's and the workers' container."""
        if task.name == self.arguments.text("head"):
            ports = [self.arguments.number(name) for name in ("port", "dashboardPort", "clientPort")]
            command = (
                f"ray start --head --block --dashboard-host=0.0.0.0 --port={ports[0]} --dashboard-port={ports[1]} "
                f"--ray-client-server-port={ports[2]}"
            )
            chosen = self.arguments.text("headContainer")
        elif task.name == self.arguments.text("worker"):
            head = (self.task_hosts(self.arguments.text("head")) or [""])[0]
            command = f"ray start --block --address={head}:{self.arguments.number('port')}"
            chosen = self.arguments.text("workerContainer")
        else:
            return
        for container in containers(pod, init=False):
            if container.get("name") != chosen:
                continue
            container["command"] = ["sh", "-c", command]
            container.pop("args", None)
            if task.name == self.arguments.text("head"):
                for name, argument in (("gcs", "port"), ("dashboard", "dashboardPort"), ("client", "clientPort")):
                    add_port(container, name, self.arguments.number(argument))

    def objects(self, job: JsonObject) -> list[JsonObject]:
        """The Service of the head."""
        labels = {JOB_NAME: self.job.name, JOB_NAMESPACE: self.job.namespace, TASK_SPEC: self.arguments.text("head")}
        ports = [
            {
                "name": name,
                "port": self.arguments.number(argument),
                "protocol": "TCP",
                "targetPort": self.arguments.number(argument),
            }
            for name, argument in (("gcs", "port"), ("dashboard", "dashboardPort"), ("client", "clientPort"))
        ]
        name = f"{self.job.name}-head-svc"
        return [self.owned(job, "v1", SERVICE, name, spec={"selector": labels, "ports": ports})]


class HcclRank(JobPlugin):
    """The rank of a pod for Ascend devices."""

    name = "hcclrank"

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """The variable `RANK` of a container, else the index; masters come first."""
        given = [
            entry.get("value")
            for container in pod["spec"].get("containers") or ()
            for entry in container.get("env") or ()
            if entry.get("name") == "RANK" and entry.get("value")
        ]
        master = self.job.task(self.arguments.text("master"))
        if given:
            rank = str(given[0])
        elif task.name == self.arguments.text("worker"):
            rank = str(index + (master.replicas if master is not None else 0))
        elif task is master:
            rank = str(index)
        else:
            return
        annotations = dict(pod["metadata"].get("annotations") or {})
        pod["metadata"]["annotations"] = {**annotations, RANK_INDEX: rank}


#: In the order of JOB_PLUGINS.
PLUGINS: Final[tuple[type[JobPlugin], ...]] = (Env, Svc, Ssh, PyTorch, Mpi, TensorFlow, Ray, HcclRank)
#: Pods of a Job with plugins: the list of their host names must fit into an object.
_MOST_HOSTS: Final = 10_000
_DIGEST_LETTERS: Final = 12


def job_plugins(job: JobSpec, make_keys: Callable[[], KeyPair]) -> list[JobPlugin]:
    """The plugins of a Job and those they need. Raises PluginError."""
    wanted = {**job.plugins, **dict.fromkeys(needed_plugins(job.plugins), ())}
    if job.plugins and job.replicas > _MOST_HOSTS:
        raise PluginError(f"plugins accept Jobs of up to {_MOST_HOSTS} pods: this one has {job.replicas}")
    known = {plugin.name: plugin for plugin in PLUGINS}
    for name in wanted:
        if name not in known:
            raise PluginError(f"unknown plugin {name!r}: accepted: {', '.join(JOB_PLUGINS)}")
    return [known[name](job, wanted[name], make_keys) for name in known if name in wanted]


def content_digest(plugin: JobPlugin) -> str:
    """A digest of what follows the Job's replicas, "" when nothing does."""
    contents = plugin.contents()
    if not contents:
        return ""
    encoded = msgspec.json.encode([(*key, content) for key, content in contents.items()], order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:_DIGEST_LETTERS]
