"""The plugins env, svc and ssh: indices, names and keys by which the pods of a Job find each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.controllers.jobs.plugins.job_plugin import (
    JobPlugin,
    add_env,
    add_mount,
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
)
from capcard_sched.model.annotations import JOB_NAME, JOB_NAMESPACE

if TYPE_CHECKING:
    from capcard_sched.controllers.jobs.job_spec import TaskSpec

_HOSTS_PATH: Final = "/etc/volcano"
_SSH_PATH: Final = "/root/.ssh"
_SSH_FILES: Final = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")
_OWNER_ONLY: Final = 0o600


class Env(JobPlugin):
    """Adds the index of a pod within its task to all its containers."""

    name = "env"

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """`VC_TASK_INDEX` and its older name."""
        _ = task
        for container in containers(pod):
            add_env(container, [{"name": name, "value": str(index)} for name in ("VK_TASK_INDEX", "VC_TASK_INDEX")])


class Svc(JobPlugin):
    """A headless Service, the host names of all tasks as files and variables, and a NetworkPolicy."""

    name = "svc"
    defaults = {"publish-not-ready-addresses": "false", "disable-network-policy": "false"}

    @property
    def _map_name(self) -> str:
        return f"{self.job.name}-svc"

    def _variables(self) -> dict[str, str]:
        found = {}
        for task in self.job.tasks:
            name = task.name.upper().replace("-", "_")
            found[f"VC_{name}_HOSTS"] = ",".join(self.hosts(task))
            found[f"VC_{name}_NUM"] = str(task.replicas)
        return found

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """Host name, variables and the mounted host files."""
        _ = task, index
        pod["spec"]["hostname"] = pod["spec"].get("hostname") or pod["metadata"]["name"]
        pod["spec"]["subdomain"] = pod["spec"].get("subdomain") or self.job.name
        volume = {"name": self._map_name, "configMap": {"name": self._map_name}}
        add_mount(pod, volume, _HOSTS_PATH)
        entries = [
            {"name": key, "valueFrom": {"configMapKeyRef": {"name": self._map_name, "key": key}}}
            for key in self._variables()
        ]
        for container in containers(pod):
            add_env(container, entries)

    def contents(self) -> dict[Key, JsonObject]:
        """The ConfigMap of host names."""
        files = {f"{task.name}.host": "\n".join(self.hosts(task)) for task in self.job.tasks}
        return {Key(CONFIG_MAP, self.job.namespace, self._map_name): {"data": {**files, **self._variables()}}}

    def objects(self, job: JsonObject) -> list[JsonObject]:
        """ConfigMap, Service and NetworkPolicy."""
        selector = {JOB_NAME: self.job.name, JOB_NAMESPACE: self.job.namespace}
        (content,) = self.contents().values()
        service = {
            "clusterIP": "None",
            "selector": selector,
            "ports": [{"name": "placeholder-volcano", "port": 1, "protocol": "TCP", "targetPort": 1}],
            "publishNotReadyAddresses": self.flag("publish-not-ready-addresses"),
        }
        found = [
            self.owned(job, "v1", CONFIG_MAP, self._map_name, **content),
            self.owned(job, "v1", SERVICE, self.job.name, spec=service),
        ]
        if not self.flag("disable-network-policy"):
            own = {"matchLabels": selector}
            policy = {"podSelector": own, "ingress": [{"from": [{"podSelector": own}]}], "policyTypes": ["Ingress"]}
            found.append(self.owned(job, NETWORKING_API, NETWORK_POLICY, self.job.name, spec=policy))
        return found


class Ssh(JobPlugin):
    """A key pair and client configuration with which every pod logs in to every other."""

    name = "ssh"
    defaults = {
        "ssh-key-file-path": _SSH_PATH,
        "ssh-private-key": "",
        "ssh-public-key": "",
        "no-root": "false",
    }

    @property
    def _secret_name(self) -> str:
        return f"{self.job.name}-ssh"

    def change_pod(self, pod: JsonObject, task: TaskSpec, index: int) -> None:
        """The mounted key pair."""
        _ = task, index
        secret = {
            "secretName": self._secret_name,
            "items": [{"key": name, "path": name} for name in _SSH_FILES],
            "defaultMode": _OWNER_ONLY,
        }
        add_mount(pod, {"name": self._secret_name, "secret": secret}, self.arguments["ssh-key-file-path"] or _SSH_PATH)

    def contents(self) -> dict[Key, JsonObject]:
        """The client configuration: one entry per pod."""
        lines = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
        for task in self.job.tasks:
            for host in self.hosts(task):
                lines += [f"Host {host.partition('.')[0]}", f"  HostName {host}"]
        return {Key(SECRET, self.job.namespace, self._secret_name): {"stringData": {"config": "\n".join(lines) + "\n"}}}

    def objects(self, job: JsonObject) -> list[JsonObject]:
        """The Secret."""
        private, public = self.arguments["ssh-private-key"], self.arguments["ssh-public-key"]
        if not (private and public):
            private, public = self.make_keys()
        (content,) = self.contents().values()
        data = {"id_rsa": private, "id_rsa.pub": public, "authorized_keys": public, **content["stringData"]}
        return [self.owned(job, "v1", SECRET, self._secret_name, type="Opaque", stringData=data)]
