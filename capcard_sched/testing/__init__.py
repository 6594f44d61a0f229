"""A small cluster for tests of plugins and actions: objects in, decisions out, no API server and no clock.

    h = Harness()
    h.gpu_node("n1", card="NVIDIA-H200", count=8)
    h.queue("q", cards={"NVIDIA-H200": 4})
    h.group("g", queue="q", min_member=2)
    h.pod("p0", group="g", card="NVIDIA-H200", cards=2)
    h.pod("p1", group="g", card="NVIDIA-H200", cards=2)
    h.step()
    assert h.binds == {"p0": "n1", "p1": "n1"}

Bindings are applied after each step, so the next step sees the pods bound (or Running, with
`Harness(run=True)`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from capcard_sched.framework.api.dispatch import Dispatch
from capcard_sched.framework.conf.registry import Registry
from capcard_sched.framework.conf.scheduler_conf import default_conf, parse_conf
from capcard_sched.framework.core import Core, StepResult
from capcard_sched.framework.placement.node_hooks import NodeHooks, SignatureHooks
from capcard_sched.model import deltas
from capcard_sched.model.annotations import QUEUE_ALLOCATION_GATE
from capcard_sched.model.autoscaling import DEFAULT_AUTOSCALING, AutoscalingOptions
from capcard_sched.model.intents import Bind, ClaimBinding, EmitEvent, RemoveGate, UpdatePodCondition, UpdatePodGroup
from capcard_sched.model.objects import PodObject
from capcard_sched.model.term_limits import DEFAULT_TERM_LIMITS
from capcard_sched.testing.cluster import ClusterObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.framework.api.node_view import PodSignature
    from capcard_sched.framework.api.plugin import Plugin
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.session.action import Action
    from capcard_sched.framework.session.session import Session
    from capcard_sched.framework.session.session_deadline import QueueCut
    from capcard_sched.model.job import Job, Task
    from capcard_sched.model.term_limits import TermLimits
    from capcard_sched.state.cluster import ClusterState

#: Unix seconds of 2026-01-01T00:00:00Z; objects are created one second apart from here on.
EPOCH = 1767225600


@lru_cache(maxsize=1)
def registry() -> Registry:
    """The installed plugins and actions, loaded once."""
    return Registry.load()


class Harness(ClusterObjects):
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
        term_limits: TermLimits = DEFAULT_TERM_LIMITS,
        session_deadline: float = 0.0,
        autoscaling: AutoscalingOptions = DEFAULT_AUTOSCALING,
        waits_for_groups: bool = False,
    ) -> None:
        """`plugins`, `actions`: classes to be found by name besides the installed ones; the rest as `Core` takes it."""
        super().__init__()
        self._registry = registry().including(plugins, actions)
        self.core = Core(
            self._parse(conf),
            self._registry,
            timer=timer,
            term_limits=term_limits,
            calls_webhooks=True,
            session_deadline=session_deadline,
            autoscaling=autoscaling,
            waits_for_groups=waits_for_groups,
        )
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
        #: Reason and nominated node of the last `PodScheduled=False` of each pod, by name.
        self.reasons: dict[str, tuple[str, str]] = {}
        self._run = run

    def _parse(self, conf: str | None) -> Conf:
        if conf is None:
            return default_conf(self._registry)
        result = parse_conf(conf, registry=self._registry)
        if result.conf is None:
            raise ValueError("; ".join(f"{problem.path}: {problem.message}" for problem in result.problems))
        return result.conf

    def reconfigure(self, conf: str) -> None:
        """Replace the scheduler-conf from the next step on."""
        self.core.reconfigure(self._parse(conf))

    def step(self, now: float | None = None, cuts: Mapping[str, QueueCut] | None = None) -> StepResult:
        """Run one step of the core at `now` (Unix seconds; default: one second after the last step).

        `cuts`: as `Core.step`.
        """
        self.now = self.now + 1 if now is None else now
        pending, self._deltas = self._deltas, []
        result = self.core.step(pending, self.now, self._on_commit, cuts)
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
                    _, node = self.reasons.get(intent.name, ("", ""))
                    written = intent.nominated_node
                    self.reasons[intent.name] = intent.reason, node if written is None else written
                case RemoveGate():
                    self._ungate(f"{intent.namespace}/{intent.name}")
                case UpdatePodGroup():
                    self.phases[intent.name] = intent.phase
        self.all_events.extend(self.events)
        return result

    def settle(self, most: int = 20) -> None:
        """Run steps until nothing changes."""
        for _ in range(most):
            if self.step().idle:
                return
        raise AssertionError(f"still busy after {most} steps")

    def settle_for(self, steps: int) -> None:
        """Run a number of steps."""
        for _ in range(steps):
            self.step()

    def _bound(self, bind: Bind) -> None:
        obj = self._pods.get(f"{bind.namespace}/{bind.name}")
        if obj is None:
            return
        if bind.gate:
            self._ungate(f"{bind.namespace}/{bind.name}")
        obj["spec"]["nodeName"] = bind.node
        obj["metadata"].setdefault("annotations", {}).update(bind.pod_annotations())
        obj["status"] = {"phase": "Running" if self._run else "Pending"}
        self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, PodObject)))

    def _ungate(self, key: str) -> None:
        """Remove the queue allocation gate of a pod."""
        obj = self._pods.get(key)
        if obj is not None:
            gates = obj["spec"].get("schedulingGates") or []
            obj["spec"]["schedulingGates"] = [gate for gate in gates if gate["name"] != QUEUE_ALLOCATION_GATE]
            self._deltas.append(deltas.ObjectChanged(msgspec.convert(obj, PodObject)))

    def session(self) -> Session:
        """An open session over all objects so far: plugins are open, no action has run."""
        pending, self._deltas = self._deltas, []
        for delta in pending:
            self.core.apply(delta)
        self.now += 1
        session = self.core.open_session(self.now)
        if session.results.report.errors:
            raise AssertionError(session.results.report.errors)
        return session

    def plugin(self, name: str) -> Any:
        """A plugin instance of the conf."""
        found: Plugin
        for found in self.core.snapshot().dispatch.plugins:
            if found.name == name:
                return found
        raise KeyError(name)

    @property
    def state(self) -> ClusterState:
        """The state behind the core."""
        return self.core.snapshot().state

    @property
    def last_session(self) -> Session:
        """The last session; ValueError before the first."""
        session = self.core.snapshot().session
        if session is None:
            raise ValueError("no session has run yet")
        return session

    def job(self, name: str, *, namespace: str = "default") -> Job:
        """A job by the name of its PodGroup."""
        return self.core.snapshot().state.jobs[f"{namespace}/{name}"]

    def task(self, name: str, *, namespace: str = "default") -> Task:
        """A task by the name of its pod."""
        for task in self.core.snapshot().state.tasks.values():
            if task.name == name and task.namespace == namespace:
                return task
        raise KeyError(name)

    def event_messages(self, kind: str, name: str) -> list[tuple[str, str]]:
        """(reason, message) of all events about one object, all steps."""
        return [(e.reason, e.message) for e in self.all_events if e.object.kind == kind and e.object.name == name]

    def pod_message(self, name: str) -> str:
        """The last message of the pod's `PodScheduled` condition; "" when there was none."""
        return self._messages.get(name, "")


def hooks_of(plugin: Plugin, signature: PodSignature) -> SignatureHooks:
    """The filters and scores of one plugin that apply to a pod signature."""
    return NodeHooks(Dispatch([[(plugin, {})]])).of(signature)
