"""A small cluster for tests of plugins and actions: objects in, decisions out, no API server and no clock.

    h = Harness()
    h.gpu_node("n1", card="NVIDIA-H200", count=8)
    h.queue("q", cards={"NVIDIA-H200": 4})
    h.group("g", queue="q", min_member=2)
    h.pod("p0", group="g", card="NVIDIA-H200", cards=2)
    h.pod("p1", group="g", card="NVIDIA-H200", cards=2)
    h.step()
    assert h.binds == {"p0": "n1", "p1": "n1"}

Bindings are applied back as soon as a step is over, so the next step sees the pods bound (or Running, when
`Harness(run=True)`).
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.framework.conf import default_conf, parse_conf
from capcard_sched.framework.core import Core, StepResult
from capcard_sched.framework.registry import Registry
from capcard_sched.model import annotations as keys
from capcard_sched.model import deltas
from capcard_sched.model.hyper_nodes import HyperNodeObject
from capcard_sched.model.intents import Bind, ClaimBinding, EmitEvent, UpdatePodCondition, UpdatePodGroup
from capcard_sched.model.objects import NodeObject, PodGroupObject, PodObject, PriorityClassObject, QueueObject
from capcard_sched.testing.storage import StorageObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.framework.action import Action
    from capcard_sched.framework.conf import Conf
    from capcard_sched.framework.plugin import Plugin
    from capcard_sched.framework.session import Session
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.job import Job
    from capcard_sched.model.task import Task
    from capcard_sched.state.cluster import ClusterState

#: 2026-01-01T00:00:00Z; objects are created one second apart from here on.
EPOCH = 1767225600


@lru_cache(maxsize=1)
def registry() -> Registry:
    """The installed plugins and actions, loaded once."""
    return Registry.load()


def _timestamp(second: int) -> str:
    hours, rest = divmod(second, 3600)
    return f"2026-01-{1 + hours // 24:02d}T{hours % 24:02d}:{rest // 60:02d}:{rest % 60:02d}Z"


class Harness(StorageObjects):
    """See the module docstring."""

    def __init__(
        self,
        conf: str | None = None,
        *,
        run: bool = False,
        plugins: Iterable[type[Plugin]] = (),
        actions: Iterable[type[Action]] = (),
        timer: Callable[[], float] | None = None,
        on_commit: Callable[[list[Bind]], None] | None = None,
    ) -> None:
        """`plugins`, `actions`: classes to be found by name beside the installed ones; the rest as `Core` takes it."""
        super().__init__()
        self._registry = registry().including(plugins, actions)
        self.core = Core(self._parse(conf), self._registry, timer=timer)
        self._on_commit = on_commit
        self.now = float(EPOCH)
        self.binds: dict[str, str] = {}
        self.bind_annotations: dict[str, dict[str, str]] = {}
        self.bind_volumes: dict[str, tuple[ClaimBinding, ...]] = {}
        #: Events of the last step.
        self.events: list[EmitEvent] = []
        self.all_events: list[EmitEvent] = []
        self.phases: dict[str, str] = {}
        self._messages: dict[str, str] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self._run = run
        self._created = 0
        self._births: dict[str, int] = {}
        self._queues: set[str] = set()
        self._session: Session | None = None

    def _parse(self, conf: str | None) -> Conf:
        if conf is None:
            return default_conf(self._registry)
        result = parse_conf(conf, registry=self._registry)
        if result.conf is None:
            raise ValueError("; ".join(f"{problem.path}: {problem.message}" for problem in result.problems))
        return result.conf

    def reconfigure(self, conf: str) -> None:
        """Use another scheduler-conf from the next step on."""
        self.core.reconfigure(self._parse(conf))

    # --- objects ----------------------------------------------------------------------------------------------------

    def _meta(self, name: str, namespace: str | None, **extra: Any) -> dict[str, Any]:
        uid = f"{namespace or 'cluster'}-{name}-uid"
        if uid not in self._births:  # an object that is changed keeps its age
            self._created += 1
            self._births[uid] = self._created
        meta = {
            "name": name,
            "uid": uid,
            "creationTimestamp": _timestamp(self._births[uid]),
            **{key: value for key, value in extra.items() if value},
        }
        if namespace is not None:
            meta["namespace"] = namespace
        return meta

    def node(
        self,
        name: str,
        *,
        cpu: str = "64",
        memory: str = "256Gi",
        pods: int = 110,
        resources: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        taints: Iterable[Mapping[str, str]] = (),
        unschedulable: bool = False,
        images: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Add or replace a node."""
        allocatable = {"cpu": cpu, "memory": memory, "pods": str(pods), **(resources or {})}
        obj = {
            "metadata": self._meta(
                name,
                None,
                labels={"kubernetes.io/hostname": name, **(labels or {})},
                annotations=dict(annotations or {}),
            ),
            "spec": {"taints": list(taints), "unschedulable": unschedulable},
            "status": {"allocatable": allocatable, "capacity": allocatable, "images": list(images)},
        }
        self._deltas.append(deltas.NodeChanged(msgspec.convert(obj, NodeObject)))

    def gpu_node(
        self,
        name: str,
        card: str = "NVIDIA-H200",
        count: int = 8,
        *,
        memory_mib: int = 143771,
        cpu: str = "192",
        memory: str = "2Ti",
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Add a node with whole NVIDIA cards of one model."""
        self.node(
            name,
            cpu=cpu,
            memory=memory,
            labels={
                "nvidia.com/gpu.product": card,
                "nvidia.com/gpu.memory": str(memory_mib),
                "nvidia.com/gpu.count": str(count),
                **(labels or {}),
            },
            resources={"nvidia.com/gpu": count, **(resources or {})},
            **more,
        )

    def hyper_node(
        self,
        name: str,
        tier: int,
        *,
        nodes: Iterable[str] = (),
        hyper_nodes: Iterable[str] = (),
        members: Iterable[Mapping[str, Any]] = (),
        tier_name: str | None = None,
    ) -> None:
        """Add or replace a HyperNode of nodes and HyperNodes by name; `members` are written as they are."""
        named = [("Node", member) for member in nodes] + [("HyperNode", member) for member in hyper_nodes]
        written = [{"type": of, "selector": {"exactMatch": {"name": member}}} for of, member in named]
        spec = {"tier": tier, "tierName": tier_name, "members": [*written, *members]}
        obj = {"metadata": self._meta(name, None), "spec": spec}
        self._deltas.append(deltas.HyperNodeChanged(msgspec.convert(obj, HyperNodeObject)))

    def delete_hyper_node(self, name: str) -> None:
        """A HyperNode is gone."""
        self._deltas.append(deltas.HyperNodeGone(name))

    def queue(
        self,
        name: str,
        *,
        cards: Mapping[str, int] | str | None = None,
        capability: Mapping[str, Any] | None = None,
        guarantee: Mapping[str, Any] | None = None,
        deserved: Mapping[str, Any] | None = None,
        weight: int = 1,
        priority: int | None = None,
        reclaimable: bool | None = None,
        state: str = "Open",
        annotations: Mapping[str, str] | None = None,
        parent: str | None = None,
        affinity: Mapping[str, Any] | None = None,
        dequeue: str | None = None,
    ) -> None:
        """Add or replace a queue. `cards` as a mapping is written as JSON, as a string verbatim."""
        notes = dict(annotations or {})
        if cards is not None:
            notes[keys.CARD_QUOTA] = cards if isinstance(cards, str) else json.dumps(dict(cards))
        spec: dict[str, Any] = {
            "weight": weight,
            "capability": capability,
            "deserved": deserved,
            "priority": priority,
            "reclaimable": reclaimable,
            "parent": parent,
            "affinity": affinity,
            "dequeueStrategy": dequeue,
            "guarantee": {"resource": dict(guarantee)} if guarantee is not None else None,
        }
        obj = {"metadata": self._meta(name, None, annotations=notes), "spec": spec, "status": {"state": state}}
        self._queues.add(name)
        self._deltas.append(deltas.QueueChanged(msgspec.convert(obj, QueueObject)))

    def group(
        self,
        name: str,
        *,
        queue: str = "q",
        min_member: int = 1,
        phase: str = "Inqueue",
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        min_resources: Mapping[str, Any] | None = None,
        min_task_member: Mapping[str, int] | None = None,
        priority_class: str = "",
        namespace: str = "default",
        conditions: Iterable[Mapping[str, Any]] = (),
        owner_kind: str = "",
        topology: Mapping[str, Any] | None = None,
    ) -> None:
        """Add or replace a PodGroup. `topology`: `spec.networkTopology`."""
        spec: dict[str, Any] = {"queue": queue, "minMember": min_member}
        if min_resources is not None:
            spec["minResources"] = dict(min_resources)
        if min_task_member is not None:
            spec["minTaskMember"] = dict(min_task_member)
        if priority_class:
            spec["priorityClassName"] = priority_class
        if topology is not None:
            spec["networkTopology"] = dict(topology)
        owners = [{"kind": owner_kind, "name": name, "uid": f"{name}-owner", "controller": True}] if owner_kind else []
        obj = {
            "metadata": self._meta(
                name, namespace, annotations=dict(annotations or {}), labels=dict(labels or {}), ownerReferences=owners
            ),
            "spec": spec,
            "status": {"phase": phase, "conditions": list(conditions)},
        }
        self._deltas.append(deltas.PodGroupChanged(msgspec.convert(obj, PodGroupObject)))

    def pod(
        self,
        name: str,
        *,
        group: str | None = "g",
        requests: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        card: str | None = None,
        cards: int = 0,
        node: str | None = None,
        phase: str | None = None,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        namespace: str = "default",
        role: str = "",
        priority: int | None = None,
        scheduler: str = "capcard-sched",
        owner_kind: str = "",
        conditions: Iterable[Mapping[str, Any]] = (),
        **spec: Any,
    ) -> None:
        """Add or replace a pod of one container. `card`, `cards`: card.name and that many `nvidia.com/gpu`."""
        notes = dict(annotations or {})
        if group:
            notes.setdefault(keys.GROUP_NAME, group)
        if role:
            notes.setdefault(keys.TASK_SPEC, role)
        wanted = dict(requests if requests is not None else {"cpu": "1"})
        limited = dict(limits or {})
        if card is not None:
            notes.setdefault(keys.CARD_NAME, card)
        if cards:
            wanted.setdefault("nvidia.com/gpu", cards)
            limited.setdefault("nvidia.com/gpu", cards)
        body: dict[str, Any] = {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "resources": {"requests": wanted, "limits": limited}}],
            **spec,
        }
        if node is not None:
            body["nodeName"] = node
        if priority is not None:
            body["priority"] = priority
        owners = [{"kind": owner_kind, "name": name, "uid": f"{name}-owner", "controller": True}] if owner_kind else []
        obj = {
            "metadata": self._meta(
                name, namespace, annotations=notes, labels=dict(labels or {}), ownerReferences=owners
            ),
            "spec": body,
            "status": {
                "phase": phase or ("Running" if node is not None else "Pending"),
                "conditions": [dict(condition) for condition in conditions],
            },
        }
        self._pods[f"{namespace}/{name}"] = obj
        self._deltas.append(deltas.PodChanged(msgspec.convert(obj, PodObject)))

    def priority_class(self, name: str, value: int, *, global_default: bool = False) -> None:
        """Add or replace a PriorityClass."""
        obj = {"metadata": self._meta(name, None), "value": value, "globalDefault": global_default}
        self._deltas.append(deltas.PriorityClassChanged(msgspec.convert(obj, PriorityClassObject)))

    def set_phase(self, name: str, phase: str, *, namespace: str = "default") -> None:
        """A pod's status changes."""
        obj = self._pods[f"{namespace}/{name}"]
        obj["status"] = {"phase": phase}
        self._deltas.append(deltas.PodChanged(msgspec.convert(obj, PodObject)))

    def nominate(self, name: str, node: str, *, namespace: str = "default") -> None:
        """A pod's status names the node on which room is made for it."""
        obj = self._pods[f"{namespace}/{name}"]
        obj["status"]["nominatedNodeName"] = node
        self._deltas.append(deltas.PodChanged(msgspec.convert(obj, PodObject)))

    def terminate(self, name: str, *, namespace: str = "default") -> None:
        """A pod gets a deletion timestamp and stays for now."""
        obj = self._pods[f"{namespace}/{name}"]
        obj["metadata"]["deletionTimestamp"] = _timestamp(self._created)
        self._deltas.append(deltas.PodChanged(msgspec.convert(obj, PodObject)))

    def delete_pod(self, name: str, *, namespace: str = "default") -> None:
        """A pod is gone."""
        self._pods.pop(f"{namespace}/{name}", None)
        self._deltas.append(deltas.PodGone(namespace, name))

    def delete_node(self, name: str) -> None:
        """A node is gone."""
        self._deltas.append(deltas.NodeGone(name))

    def delete_group(self, name: str, *, namespace: str = "default") -> None:
        """A PodGroup is gone."""
        self._deltas.append(deltas.PodGroupGone(namespace, name))

    def delete_queue(self, name: str) -> None:
        """A queue is gone."""
        self._deltas.append(deltas.QueueGone(name))

    def apply(self, *more: Delta) -> None:
        """Hand in deltas made elsewhere."""
        self._deltas.extend(more)

    # --- sessions ---------------------------------------------------------------------------------------------------

    def step(self, now: float | None = None) -> StepResult:
        """One step of the core, a second after the last one unless `now` (Unix seconds) says otherwise."""
        self.now = self.now + 1 if now is None else now
        pending, self._deltas = self._deltas, []
        result = self.core.step(pending, self.now, self._on_commit)
        self.events = []
        for intent in result.intents:
            match intent:
                case Bind():
                    self.binds[intent.name] = intent.node
                    self.bind_annotations[intent.name] = intent.annotations
                    self.bind_volumes[intent.name] = intent.volumes
                    self._settle(intent)
                    self._bound(intent)
                case EmitEvent():
                    self.events.append(intent)
                case UpdatePodCondition():
                    self._messages[intent.name] = intent.message
                case UpdatePodGroup():
                    self.phases[intent.name] = intent.phase
        self.all_events.extend(self.events)
        return result

    def settle(self, most: int = 20) -> None:
        """Steps until nothing changes any more."""
        for _ in range(most):
            if self.step().idle:
                return
        raise AssertionError(f"still busy after {most} steps")

    def settle_for(self, steps: int) -> None:
        """So many steps, whether or not anything changes."""
        for _ in range(steps):
            self.step()

    def _bound(self, bind: Bind) -> None:
        obj = self._pods.get(f"{bind.namespace}/{bind.name}")
        if obj is None:
            return
        obj["spec"]["nodeName"] = bind.node
        obj["metadata"].setdefault("annotations", {}).update(bind.annotations)
        obj["status"] = {"phase": "Running" if self._run else "Pending"}
        self._deltas.append(deltas.PodChanged(msgspec.convert(obj, PodObject)))

    def session(self) -> Session:
        """An open session with its plugins opened and no action run, over everything handed in so far."""
        pending, self._deltas = self._deltas, []
        for delta in pending:
            self.core.state.apply(delta)
        self.now += 1
        self._session = self.core.open_session(self.now)
        if self._session.report.errors:
            raise AssertionError(self._session.report.errors)
        return self._session

    def plugin(self, name: str) -> Any:
        """A plugin instance of the conf."""
        found: Plugin
        for found in self.core.dispatch.plugins:
            if found.name == name:
                return found
        raise KeyError(name)

    # --- answers ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """The state behind the core."""
        return self.core.state

    def job(self, name: str, *, namespace: str = "default") -> Job:
        """A job by the name of its PodGroup."""
        return self.core.state.jobs[f"{namespace}/{name}"]

    def task(self, name: str, *, namespace: str = "default") -> Task:
        """A task by the name of its pod."""
        for task in self.core.state.tasks.values():
            if task.name == name and task.namespace == namespace:
                return task
        raise KeyError(name)

    def event_messages(self, kind: str, name: str) -> list[tuple[str, str]]:
        """(reason, message) of all events about one object, all steps."""
        return [(e.reason, e.message) for e in self.all_events if e.object.kind == kind and e.object.name == name]

    def pod_message(self, name: str) -> str:
        """The last message of the pod's `PodScheduled` condition; "" when there was none."""
        return self._messages.get(name, "")
