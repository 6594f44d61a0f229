"""The scenarios of the controllers in the simulator, with the scheduler and the rules of admission."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import pytest

from capcard_sched.admission.pods import AdmissionConfig
from capcard_sched.admission.review import AdmissionRequest, ClusterView, finding_text
from capcard_sched.admission.webhooks import WEBHOOKS, WebhookContext
from capcard_sched.model.objects import QueueObject
from capcard_sched.simulation.kinds import kind_of
from capcard_sched.simulation.store import AlreadyExistsError, Change
from tests.scenarios.controllers.scenario_steps import CONF, Manifest, Player, Step, load_scenarios
from tests.scenarios.stepped import SCHEDULER, SteppedCluster
from tests.unit.controllers.bench import restart_controllers

#: Virtual seconds for which an expectation may take, and for which a state must last.
_LIMIT, _HELD = 300, 60
_WEBHOOKS: Final = {"Job": "/jobs/validate", "PodGroup": "/podgroups/validate", "Queue": "/queues/validate"}


class RejectedError(AlreadyExistsError):
    """Admission rejects an object."""


class SimulatedWorld:
    """A cluster for one scenario."""

    namespace = SteppedCluster.namespace

    def __init__(self) -> None:
        self._stepped = SteppedCluster(CONF)
        self._store = self._stepped.store
        self._queues = ClusterView()
        self._defaults = self._store.admit
        self._store.admit = self._admit
        self._store.observe(self._observe)
        self._stepped.load()
        self._stepped.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": "n1"},
                "status": {"allocatable": {"cpu": "64", "pods": "110"}},
            }
        )

    # --- time ---

    async def until(self, check: Callable[[], Awaitable[str]]) -> None:
        for _ in range(_LIMIT):
            problem = await check()
            if not problem:
                return
            self._stepped.advance()
        raise AssertionError(problem)

    async def hold(self, check: Callable[[], Awaitable[str]]) -> None:
        for _ in range(_HELD):
            problem = await check()
            assert not problem, problem
            self._stepped.advance()

    # --- objects ---

    async def create(self, manifest: Manifest) -> None:
        self._stepped.create(manifest)

    async def rejection(self, manifest: Manifest) -> str:
        try:
            self._admit(kind_of(manifest), {**manifest, "metadata": {"namespace": "default", **manifest["metadata"]}})
        except RejectedError as error:
            return str(error)
        return ""

    async def patch(self, kind: str, name: str, body: Manifest) -> None:
        self._stepped.patch(kind, name, body)

    async def delete(self, kind: str, name: str) -> None:
        self._stepped.delete(kind, name)

    async def finish(self, pod: str, code: int) -> None:
        self._stepped.finish(pod, code)

    async def list(self, kind: str) -> list[Manifest]:
        return list(self._store.list(kind))

    async def restart_controllers(self) -> None:
        """New controllers list everything."""
        restart_controllers(self._stepped.cluster, SCHEDULER)

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
