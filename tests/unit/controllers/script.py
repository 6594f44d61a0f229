"""Cases in lines of text on a cluster without a scheduler: `*.yaml` of this folder and of `tests/unit/simulation`.

A file maps the name of a case to its lines, or to `of` (values of $1, $2, ...; the case is played for each row) and
`do` (the lines). A line has statements: objects as in tests/scenarios/notation.py, which are created, and the methods
of `Script`. `run job j + w*2` creates a Job and lets its pods run. Pods terminate for 30 s where they set no grace.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from capcard_sched.model.topology_discovery import read_discovery
from capcard_sched.simulation.workloads.volumes import give_volume, volume_refusal
from tests.scenarios.controllers.scenario_steps import policy_list
from tests.scenarios.notation import is_statement, manifest
from tests.scenarios.test_scenarios import fits
from tests.unit.controllers.bench import ClusterBench, Manifest
from tests.vectors.notation import statements

#: Seconds for which a pod terminates.
_GRACE = 30


def cases(folder: Path, rows_each: int | None = None) -> list[Any]:
    """The text of each case of the files of a folder, for its first `rows_each` rows of values."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        for name, content in yaml.safe_load(path.read_text("utf-8")).items():
            rows = [[]] if isinstance(content, str) else content["of"]
            for row in rows[:rows_each]:
                text = content if isinstance(content, str) else content["do"]
                for number, each in enumerate(row, 1):
                    text = text.replace(f"${number}", str(each))
                found.append(pytest.param(text, id=" ".join([path.stem, name, *map(str, row)])))
    return found


def _body(text: str) -> Any:
    return yaml.safe_load(text)


class Script:
    """A cluster that executes statements; the words of a statement are the arguments of a method."""

    def __init__(self, bench: ClusterBench | None = None) -> None:
        self.bench = bench or ClusterBench()
        self._kind, self._uids = "Pod", dict[str, str]()
        self._first = ""

    def play(self, text: str) -> None:
        """Execute statements in turn."""
        for statement in statements(text):
            verb, *rest = words = [self._first if word == "$first" else word for word in statement]
            try:
                if is_statement(f"{verb} "):
                    self._make(words)
                else:
                    getattr(self, verb)(*rest)
            except Exception as error:
                error.add_note(" ".join(words))
                raise

    def _make(self, words: list[str]) -> None:
        made = manifest(words)
        for part in (made["spec"], *made["spec"].get("tasks", ())) if made["kind"] == "Job" else ():
            if "policies" in part:
                part["policies"] = policy_list(part["policies"])
        self.bench.create(made.pop("kind"), made["metadata"]["name"], **made)

    # --- changes ---

    def run(self, *words: str) -> None:
        """A Job or PodGroup whose pods run."""
        self._make(list(words))
        self.bench.admit()
        self.bench.bind()

    def create(self, kind: str, name: str, body: str = "{}") -> None:
        """Create an object that may be gone when the cluster has settled."""
        self.bench.create_quietly(kind, name, **_body(body))

    def patch(self, kind: str, name: str, body: str) -> None:
        self.bench.patch(kind, name, _body(body))

    def patch_group(self, body: str) -> None:
        """Patch the only PodGroup."""
        (name,) = self.bench.names("PodGroup")
        self.bench.patch("PodGroup", name, _body(body))

    def lws_pod(self, name: str, replica: str, index: str, revision: str = "r1") -> None:
        """A pod of the LeaderWorkerSet l with three pods per replica."""
        own = {"name": "l", "group-index": replica, "worker-index": index, "template-revision-hash": revision}
        labels = ",".join(f"leaderworkerset.sigs.k8s.io/{key}:{value}" for key, value in own.items())
        self._make(["pod", name, f"labels={labels}", "annotations=leaderworkerset.sigs.k8s.io/size:3", "cpu=1"])

    def jobset_pod(self, name: str, role: str, attempt: str = "0") -> None:
        """A pod of the JobSet j."""
        own = {"jobset-name": "j", "replicatedjob-name": role, "restart-attempt": attempt}
        labels = ",".join(f"jobset.sigs.k8s.io/{key}:{value}" for key, value in own.items())
        self._make(["pod", name, f"labels={labels}", "cpu=1"])

    def scale(self, job: str, task: str, replicas: str) -> None:
        tasks = copy.deepcopy(self.bench.get("Job", job)["spec"]["tasks"])
        for each in tasks:
            each["replicas"] = int(replicas) if each["name"] == task else each["replicas"]
        self.bench.patch("Job", job, {"spec": {"tasks": tasks}})

    def discover(self, types: str) -> None:
        """HyperNodes from node labels: labels of each type from the widest domain down, the last of them the node."""
        found = {name: [{"nodeLabel": label} for label in labels] for name, labels in _body(types).items()}
        source = {"source": "label", "enabled": True, "config": {"networkTopologyTypes": found}}
        config = read_discovery(json.dumps({"networkTopologyDiscovery": [source]}))
        assert not config.problems, config.problems
        self.bench.cluster.discover(config.types)
        self.bench.cluster.settle()

    def label(self, node: str, labels: str) -> None:
        """Labels of a node, which may be new; null removes one."""
        if self.bench.find("Node", node) is None:
            self.bench.create("Node", node, status={"allocatable": {"cpu": "64"}})
        self.bench.patch("Node", node, {"metadata": {"labels": _body(labels)}})

    def members(self, name: str, tier: str, *members: str) -> None:
        """Tier and members of a HyperNode."""
        found = self._object("HyperNode", name)["spec"]
        listed = [member["selector"]["exactMatch"]["name"] for member in found["members"]]
        assert (str(found["tier"]), listed) == (tier, [*members]), found

    def delete(self, kind: str, *names: str) -> None:
        for name in names:
            self.bench.delete(kind, name)

    def remove(self, kind: str, name: str) -> None:
        """Remove an object without its grace period."""
        self.bench.store.remove(kind, self.bench.namespace_of(kind), name)
        self.bench.cluster.settle()

    def finish(self, pod: str, code: str = "0") -> None:
        self.bench.finish(pod, int(code))

    def end(self, code: str = "0") -> None:
        """Admit and bind all pods, then end those that run."""
        self.admit()
        self.bind()
        for pod in self.bench.live():
            if self.bench.get("Pod", pod)["status"]["phase"] == "Running":
                self.finish(pod, code)

    def command(self, action: str, target: str) -> None:
        kind = "Queue" if action.endswith("Queue") else "Job"
        self.bench.command(action, target, kind=kind, name=f"{action}-{target}".lower())

    def wait(self, seconds: str) -> None:
        self.bench.wait(int(seconds))

    def admit(self) -> None:
        self.bench.admit()

    def bind(self) -> None:
        self.bench.bind()

    def again(self) -> None:
        """The pods that terminate are gone, and those that follow them run."""
        self.bench.wait(_GRACE)
        self.admit()
        self.bind()

    def restart(self) -> None:
        self.bench.restart_controllers()

    def remember(self, kind: str = "Pod") -> None:
        """Remember the objects of a kind."""
        self._kind, self._uids = kind, self.bench.uids(kind)

    def first(self) -> None:
        """`$first` is from now on the oldest pod that does not terminate."""
        live = self.bench.live()
        self._first = next(name for name in self.bench.uids() if name in live)

    def classes(self) -> None:
        """Storage classes of each kind; the node is in a zone."""
        self.bench.patch("Node", "n1", {"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}})
        self.create("StorageClass", "waits", "{provisioner: x, volumeBindingMode: WaitForFirstConsumer}")
        self.create("StorageClass", "now", "{provisioner: x}")
        self.create("StorageClass", "hand", "{provisioner: kubernetes.io/no-provisioner}")

    def cron(self, schedule: str, spec: str = "{}") -> None:
        """CronJob `c` of a Job of one pod."""
        tasks = [{"name": "w", "replicas": 1, "template": {"spec": {"containers": [{"name": "main"}]}}}]
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"tasks": tasks}}
        body = {"schedule": _body(schedule), "jobTemplate": template, **_body(spec)}
        self.bench.create("CronJob", "c", spec=body)

    def claim(self, name: str, storage_class: str, spec: str = "{}") -> None:
        """A claim of 1Gi; class `-` for none."""
        body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **_body(spec)}
        named = {} if storage_class == "-" else {"storageClassName": _body(storage_class)}
        self.bench.create("PersistentVolumeClaim", name, spec={**body, **named})

    def volume(self, name: str, storage_class: str, size: str = "1Gi", spec: str = "{}") -> None:
        body = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
        self.bench.create("PersistentVolume", name, spec={**body, **_body(spec)})

    def give(self, claim: str, volume: str = "") -> None:
        """The scheduler chose a volume, or a new one, for a pod on n1."""
        give_volume(self.bench.store, "default", claim, volume, "n1")
        self.bench.cluster.settle()

    # --- checks ---

    def phase(self, job: str, phase: str, retries: str = "0") -> None:
        """Phase and restarts of a Job."""
        assert (self.bench.phase(job), self.bench.retries(job)) == (phase, int(retries))

    def has(self, kind: str, *names: str) -> None:
        """The names of all objects of a kind."""
        assert self.bench.names(kind) == sorted(names)

    def count(self, kind: str, number: str) -> None:
        assert len(self.bench.names(kind)) == int(number)

    def live(self, *names: str) -> None:
        """The pods whose deletion has not begun."""
        assert self.bench.live() == sorted(names)

    def fresh(self, *names: str) -> None:
        """The remembered objects that are gone or replaced."""
        after = self.bench.uids(self._kind)
        assert sorted(name for name, uid in self._uids.items() if after.get(name) != uid) == sorted(names)

    def expect(self, kind: str, name: str, body: str) -> None:
        """An object has these fields; `-`: the only one of its kind, `pvc-*`: the only one of these names."""
        found = self._object(kind, name)
        assert fits(_body(body), found), found

    def lacks(self, kind: str, name: str, body: str) -> None:
        """An object does not have these fields."""
        assert not fits(_body(body), self._object(kind, name))

    def field(self, kind: str, name: str, path: str, value: str = "") -> None:
        """A field of an object has exactly this value, or is absent. `*` stands for a dot in a key."""
        found: Any = self._object(kind, name)
        for step in path.split("."):
            if isinstance(found, list):
                found = dict(enumerate(found)).get(int(step))
            else:
                found = (found or {}).get(step.replace("*", "."))
        assert found == _body(value), found

    def _object(self, kind: str, name: str) -> Manifest:
        pattern = "*" if name == "-" else name
        (found,) = (one for one in self.bench.all(kind) if fits(pattern, one["metadata"]["name"]))
        return found

    def annotated(self, pod: str, group: str, role: str) -> None:
        """PodGroup and role that a controller wrote into a pod."""
        notes = self.bench.get("Pod", pod)["metadata"].get("annotations") or {}
        found = [notes.get(key, "") for key in ("scheduling.k8s.io/group-name", "volcano.sh/task-spec")]
        assert found == [_body(group) or "", _body(role) or ""], found

    def events(self, kind: str, reason: str, *messages: str) -> None:
        """The messages of the events of a reason; `*` stands for any text."""
        found = self.bench.messages(kind, reason)
        assert len(found) == len(messages), found
        assert all(fits(_body(wanted), text) for wanted, text in zip(messages, found, strict=True)), found

    def env(self, pod: str, body: str) -> None:
        """Variables of a pod."""
        assert self._variables(pod) == _body(body)

    def json(self, pod: str, variable: str, body: str) -> None:
        """The JSON in a variable of a pod."""
        assert json.loads(self._variables(pod)[variable]) == _body(body)

    def _variables(self, pod: str) -> dict[str, Any]:
        container = self.bench.get("Pod", pod)["spec"]["containers"][0]
        return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}

    def ports(self, pod: str, *ports: str) -> None:
        """Ports of a pod."""
        container = self.bench.get("Pod", pod)["spec"]["containers"][0]
        assert [str(each["containerPort"]) for each in container["ports"]] == [*ports]

    def images(self, *wanted: str) -> None:
        """The images of the pods whose deletion has not begun."""
        pods = [self.bench.get("Pod", name) for name in self.bench.live()]
        assert sorted(pod["spec"]["containers"][0]["image"] for pod in pods) == sorted(wanted)

    def held(self, claim: str, volume: str = "") -> None:
        """The volume to which a claim is bound."""
        found = self.bench.get("PersistentVolumeClaim", claim)
        bound = found["spec"].get("volumeName", "") if found["status"]["phase"] == "Bound" else ""
        assert fits(volume, bound), bound

    def refused(self, claim: str, volume: str, message: str) -> None:
        """Whether a volume can be given to a claim, and the reason."""
        assert volume_refusal(self.bench.store, "default", claim, _body(volume)) == _body(message)
