"""The scenarios of the controllers in the simulator, with the scheduler and the rules of admission."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import pytest

from capcard_sched.admission.pods import AdmissionConfig
from capcard_sched.admission.review import AdmissionRequest, ClusterView, finding_text
from capcard_sched.admission.webhooks import WEBHOOKS, WebhookContext
from capcard_sched.framework.conf.registry import Registry
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.framework.core import Core
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.objects import QueueObject
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.cluster import SimulatedCluster
from capcard_sched.simulation.effects import IntentExecutor
from capcard_sched.simulation.scenario import Scenario
from capcard_sched.simulation.store import AlreadyExistsError, Change, StoreWatch
from tests.scenarios.controllers.scenario_steps import CONF, SCHEDULER, Manifest, Player, Step, load_scenarios
from tests.scenarios.notation import manifests
from tests.unit.controllers.bench import restart_controllers

REGISTRY: Final = Registry.load()
#: Virtual seconds for which an expectation may take, and for which a state must last.
_LIMIT, _HELD = 300, 60
_WEBHOOKS: Final = {"Job": "/jobs/validate", "PodGroup": "/podgroups/validate", "Queue": "/queues/validate"}


class RejectedError(AlreadyExistsError):
    """Admission rejects an object."""


class SimulatedWorld:
    """A cluster for one scenario, with our scheduler and the simulated controllers."""

    namespace = "default"

    def __init__(self) -> None:
        found = parse_conf(CONF, registry=REGISTRY)
        assert found.conf is not None, found.problems
        self._core = Core(found.conf, REGISTRY, (SCHEDULER,), "default")
        self._cluster = SimulatedCluster((SCHEDULER,), "default")
        self._store = self._cluster.store
        self._feed = StoreWatch(self._store, EPOCH)
        self._store.observe(self._feed.observe)
        self._effects = IntentExecutor(self._store, self._feed, self._cluster.recorder, self._cluster.component)
        self._queues = ClusterView()
        self._defaults = self._store.admit
        self._store.admit = self._admit
        self._store.observe(self._observe)
        self._cluster.load(Scenario((), ()))
        self._create(*manifests("node n1 cpu=64 memory=none"))

    # --- time ---

    def _advance(self) -> None:
        """One second, then one session."""
        clock = self._cluster.clock
        moment = clock.now + SECOND
        while (due := clock.next_due()) is not None and due <= moment:
            clock.fire_next()
            self._cluster.settle()
        clock.now = moment
        for intent in self._core.step(self._feed.drain(), clock.unix).intents:
            self._effects.apply(intent)
        self._cluster.settle()

    async def until(self, check: Callable[[], Awaitable[str]]) -> None:
        for _ in range(_LIMIT):
            problem = await check()
            if not problem:
                return
            self._advance()
        raise AssertionError(problem)

    async def hold(self, check: Callable[[], Awaitable[str]]) -> None:
        for _ in range(_HELD):
            problem = await check()
            assert not problem, problem
            self._advance()

    # --- objects ---

    def _create(self, manifest: Manifest) -> None:
        self._store.create(kind_of(manifest), json.loads(json.dumps(manifest)))
        self._cluster.settle()

    async def create(self, manifest: Manifest) -> None:
        self._create(manifest)

    async def rejection(self, manifest: Manifest) -> str:
        try:
            self._admit(kind_of(manifest), {**manifest, "metadata": {"namespace": "default", **manifest["metadata"]}})
        except RejectedError as error:
            return str(error)
        return ""

    async def patch(self, kind: str, name: str, body: Manifest) -> None:
        self._store.patch(kind, self._place(kind), name, body, by_user=True)
        self._cluster.settle()

    async def delete(self, kind: str, name: str) -> None:
        self._store.delete(kind, self._place(kind), name)
        self._cluster.settle()

    async def finish(self, pod: str, code: int) -> None:
        ended = {"exitCode": code, "finishedAt": self._cluster.clock.timestamp()}
        rows = [{"name": "main", "ready": False, "restartCount": 0, "state": {"terminated": ended}}]
        phase = "Failed" if code else "Succeeded"
        await self.patch("Pod", pod, {"status": {"phase": phase, "containerStatuses": rows}})

    async def list(self, kind: str) -> list[Manifest]:
        return list(self._store.list(kind))

    async def restart_controllers(self) -> None:
        """New controllers list everything."""
        restart_controllers(self._cluster, SCHEDULER)

    def _place(self, kind: str) -> str:
        return "" if kind in ("Queue", "Node", "HyperNode") else self.namespace

    # --- admission ---

    def _observe(self, change: Change) -> None:
        if change.kind == "Queue":
            if change.new is None:
                self._queues.drop_queue(change.key[1])
            else:
                self._queues.set_queue(msgspec.convert(change.new, QueueObject, strict=False))

    def _admit(self, kind: str, obj: Manifest) -> Manifest:
        stored = self._defaults(kind, obj)
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        if kind not in _WEBHOOKS or self._store.get(kind, namespace, name) is not None:
            return stored
        request = msgspec.convert(
            {"uid": "u", "kind": {"kind": kind}, "operation": "CREATE", "name": name, "namespace": namespace,
             "object": stored}, AdmissionRequest)  # fmt: skip
        result = WEBHOOKS[_WEBHOOKS[kind]].rule(request, WebhookContext(self._queues, AdmissionConfig(), (SCHEDULER,)))
        if result.errors:
            raise RejectedError("; ".join(finding_text(finding) for finding in result.errors))
        return stored


@pytest.mark.parametrize("steps", [pytest.param(steps, id=name) for name, steps in load_scenarios().items()])
def test_scenario(steps: list[Step]) -> None:
    asyncio.run(Player(SimulatedWorld()).run(steps))
