"""A simulated cluster that a test changes between sessions."""

from __future__ import annotations

import json
from typing import Any, Final

from capcard_sched.framework.conf.registry import Registry
from capcard_sched.framework.conf.scheduler_conf import parse_conf
from capcard_sched.framework.core import Core
from capcard_sched.simulation.clock import EPOCH, SECOND
from capcard_sched.simulation.cluster import SimulatedCluster
from capcard_sched.simulation.effects import IntentExecutor
from capcard_sched.simulation.kinds import kind_of
from capcard_sched.simulation.scenario import Scenario
from capcard_sched.simulation.watch import StoreWatch

Manifest = dict[str, Any]

SCHEDULER: Final = "capcard-sched"
_REGISTRY: Final = Registry.load()
_CLUSTER_SCOPED: Final = ("Queue", "Node")


class SteppedCluster:
    """A cluster with our scheduler and the simulated controllers. The namespace is `default`."""

    namespace = "default"

    def __init__(self, conf: str) -> None:
        found = parse_conf(conf, registry=_REGISTRY)
        assert found.conf is not None, found.problems
        self.core = Core(found.conf, _REGISTRY, (SCHEDULER,), "default")
        self.cluster = SimulatedCluster((SCHEDULER,), "default")
        self.store = self.cluster.store
        self._feed = StoreWatch(self.store, EPOCH)
        self.store.observe(self._feed.observe)
        self._effects = IntentExecutor(self.store, self._feed, self.cluster.recorder, self.cluster.component)

    def load(self) -> None:
        """Create the built-in queues; first of all, but after other observers of the store are added."""
        self.cluster.load(Scenario((), ()))

    def advance(self) -> None:
        """One second, then one session."""
        clock = self.cluster.clock
        moment = clock.now + SECOND
        while (due := clock.next_due()) is not None and due <= moment:
            clock.fire_next()
            self.cluster.settle()
        clock.now = moment
        for intent in self.core.step(self._feed.drain(), clock.unix).intents:
            self._effects.apply(intent)
        self.cluster.settle()

    def create(self, manifest: Manifest) -> None:
        """Create an object."""
        self.store.create(kind_of(manifest), json.loads(json.dumps(manifest)))
        self.cluster.settle()

    def patch(self, kind: str, name: str, body: Manifest) -> None:
        """Merge-patch an object, or its status."""
        self.store.patch(kind, self._place(kind), name, body, by_user=True)
        self.cluster.settle()

    def delete(self, kind: str, name: str) -> None:
        """Delete an object; a pod with its grace period."""
        self.store.delete(kind, self._place(kind), name)
        self.cluster.settle()

    def finish(self, pod: str, code: int) -> None:
        """End the program of a pod."""
        ended = {"exitCode": code, "finishedAt": self.cluster.clock.timestamp()}
        rows = [{"name": "main", "ready": False, "restartCount": 0, "state": {"terminated": ended}}]
        self.patch("Pod", pod, {"status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": rows}})

    def _place(self, kind: str) -> str:
        return "" if kind in _CLUSTER_SCOPED else self.namespace
