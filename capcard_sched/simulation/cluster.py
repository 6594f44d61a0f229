"""The simulated cluster: store, kubelets and controllers together, settled after every change; garbage collection."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from capcard_sched.controllers.cronjobs import CronJobController
from capcard_sched.controllers.hyper_nodes import HyperNodeController
from capcard_sched.controllers.jobs.job_controller import JobController
from capcard_sched.controllers.jobs.plugins.job_plugin import KeyPair
from capcard_sched.controllers.namespace_queues import NamespaceQueueController
from capcard_sched.controllers.objects import (
    CONFIG_MAP,
    HYPER_NODE,
    NODE,
    QUEUE,
    ROOT_QUEUE,
    SCHEDULING_API,
    key_of,
    meta,
)
from capcard_sched.controllers.podgroups import PodGroupController
from capcard_sched.controllers.queues import QueueController
from capcard_sched.controllers.ttl import TtlController
from capcard_sched.model.card_budgets import CARD_BUDGET
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.timestamps import format_span
from capcard_sched.model.topology_discovery import DISCOVERY_KEY, read_discovery
from capcard_sched.simulation.admission import Admission
from capcard_sched.simulation.clock import VirtualClock
from capcard_sched.simulation.kinds import NAMESPACE
from capcard_sched.simulation.kubelet import Kubelet
from capcard_sched.simulation.scenario import InputError
from capcard_sched.simulation.store import AlreadyExistsError, Change, Store, merged
from capcard_sched.simulation.workloads.batch_jobs import BatchJobController
from capcard_sched.simulation.workloads.card_budgets import CardBudgetController
from capcard_sched.simulation.workloads.claims import ResourceClaimController
from capcard_sched.simulation.workloads.controller_runner import ControllerRunner, EventRecorder, JobAdoption
from capcard_sched.simulation.workloads.deployments import DeploymentController
from capcard_sched.simulation.workloads.limits import BudgetController, QuotaController
from capcard_sched.simulation.workloads.replicas import ReplicaSetController, StatefulSetController
from capcard_sched.simulation.workloads.volumes import VolumeController
from capcard_sched.validation.structure import check_object, with_text_quantities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.topology_discovery import DiscoveryConfig, TopologyType
    from capcard_sched.simulation.scenario import Operation, Scenario


class GarbageCollector:
    """Background deletion. An object with several owners is deleted with the last of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._namespaces: OrderedDict[str, None] = OrderedDict()
        self._alive: set[str] = set()

    def observe(self, change: Change) -> None:
        """Queue removed objects."""
        uid = meta(change.object)["uid"]
        if change.verb == "removed":
            self._alive.discard(uid)
            self._gone[uid] = None
            if change.kind == NAMESPACE:
                self._namespaces[change.key[1]] = None
        else:
            self._alive.add(uid)

    def reconcile(self) -> bool:
        """Delete the dependents of removed objects; whether there were any."""
        progressed = bool(self._gone or self._namespaces)
        while self._gone:
            uid, _ = self._gone.popitem(last=False)
            for obj in self._store.dependents(uid):
                owners = [owner.get("uid") for owner in meta(obj).get("ownerReferences") or ()]
                if not any(owner in self._alive for owner in owners):
                    self._store.delete(kind_of(obj), *key_of(obj))
        while self._namespaces:
            name, _ = self._namespaces.popitem(last=False)
            for kind in list(self._store.kinds()):
                for obj in list(self._store.list(kind)):
                    if meta(obj).get("namespace") == name and self._store.get(kind, *key_of(obj)) is not None:
                        self._store.delete(kind, *key_of(obj))
        return progressed


#: Rounds of reconciling. Controllers that need more undo each other's work: a bug, not an input.
_MAX_ROUNDS = 10_000


#: Keys of the ssh plugin: a run repeats itself byte for byte, so it draws no random ones.
_KEYS = KeyPair("simulated private key", "simulated public key")


class ClusterComponent(Protocol):
    """A controller, or all kubelets."""

    def observe(self, change: Change) -> None:
        """Observe a change, without writing."""

    def reconcile(self) -> bool:
        """Reconcile what changed; whether anything did."""


class SimulatedCluster:
    """The objects and every component that reacts to them, except the scheduler."""

    def __init__(
        self,
        scheduler_names: Sequence[str],
        default_queue: str,
        begin: int = 0,
        card_labels: CardLabels = DEFAULT_CARD_LABELS,
    ) -> None:
        """`begin`: the first moment of the clock, microseconds; `card_labels`: those of the scheduler-conf."""
        self.clock = VirtualClock(begin)
        self.store = Store(self.clock)
        #: Source of events that name none: the scheduler name if there is exactly one.
        self.component = scheduler_names[0] if len(scheduler_names) == 1 else "volcano"
        self.recorder = EventRecorder(self.store, self.component)
        self.admission = Admission(self.store, scheduler_names, default_queue)
        self.store.admit = self.admission.admit
        self._default_queue, self._card_labels = default_queue, card_labels
        self.kubelet = Kubelet(self.store)
        self.quotas = QuotaController(self.store)
        self._controllers: tuple[ClusterComponent, ...] = (
            self.kubelet,
            DeploymentController(self.store),
            StatefulSetController(self.store),
            ReplicaSetController(self.store),
            BatchJobController(self.store),
            JobAdoption(self.store),
            *(
                ControllerRunner(self.store, self.recorder, controller)
                for controller in (
                    JobController(scheduler_names[0], lambda: _KEYS),
                    TtlController(),
                    CronJobController(),
                    PodGroupController(scheduler_names),
                )
            ),
            VolumeController(self.store),
            ResourceClaimController(self.store),
            self.quotas,
            BudgetController(self.store),
            GarbageCollector(self.store),
            ControllerRunner(self.store, self.recorder, QueueController(write_counts=True)),
            ControllerRunner(self.store, self.recorder, NamespaceQueueController()),
        )
        for controller in self._controllers:
            self.store.observe(controller.observe)
        self.warnings: list[str] = []

    def discover(self, types: Sequence[TopologyType]) -> None:
        """Make HyperNodes from node labels."""
        runner = ControllerRunner(self.store, self.recorder, HyperNodeController(types))
        self._controllers = (*self._controllers, runner)
        self.store.observe(runner.observe)
        for kind in (NODE, HYPER_NODE):
            for found in list(self.store.list(kind)):
                runner.observe(Change("added", kind, None, found))

    def load(self, scenario: Scenario) -> None:
        """Create the initial objects and let every component react to them."""
        if any(CARD_BUDGET in (entry.kind for entry in found) for found in (scenario.entries, scenario.operations)):
            # Only then: it decodes every bound pod.
            budgets = CardBudgetController(self.store, self._default_queue, self._card_labels)
            self._controllers = (*self._controllers, budgets)
            self.store.observe(budgets.observe)
        for entry in scenario.entries:
            text = (entry.object.get("data") or {}).get(DISCOVERY_KEY) if entry.kind == CONFIG_MAP else None
            if isinstance(text, str):
                self._configure_discovery(f"ConfigMap {'/'.join(key_of(entry.object))}", read_discovery(text))
        for change in scenario.operations:
            if change.kind == CONFIG_MAP and DISCOVERY_KEY in (change.body.get("data") or {}):
                self.warnings.append(f"{change}: {DISCOVERY_KEY} is read at the start only")
        self.store.reserve_uids(scenario.uids)
        taken = [entry.object["metadata"]["name"] for entry in scenario.entries if entry.kind == QUEUE]
        for name, reclaimable in ((ROOT_QUEUE, False), (self._default_queue, True)):
            if name not in taken:
                self.store.create(QUEUE, _built_in_queue(name, reclaimable=reclaimable))
        for entry in scenario.entries:
            self.store.create(entry.kind, entry.object)
        self.settle()

    def _configure_discovery(self, where: str, found: DiscoveryConfig) -> None:
        self.warnings += [f'{where}: data["{DISCOVERY_KEY}"]: {each}' for each in (*found.problems, *found.notes)]
        if found.types:
            self.discover(found.types)

    def settle(self) -> None:
        """Reconcile until no component has work left."""
        for _ in range(_MAX_ROUNDS):
            progressed = [controller.reconcile() for controller in self._controllers]
            if not any(progressed):
                return
        raise RuntimeError("the simulated controllers do not settle")

    def operate(self, operation: Operation) -> None:
        """Apply one operation of the timeline. Raises InputError when an API server would reject it."""
        kind, namespace, name = operation.kind, operation.namespace, operation.name
        when = f"at {format_span(operation.at)}"
        if operation.verb == "create":
            try:
                self.store.create(kind, operation.body)
            except AlreadyExistsError:
                raise InputError([f"{operation}: the object already exists {when}"]) from None
            return
        present = self.store.get(kind, namespace, name)
        if present is None:
            if operation.verb == "delete" and self.store.existed(kind, namespace, name):
                self.warnings.append(f"{operation}: the object is already deleted {when}")
                return
            raise InputError([f"{operation}: the object does not exist {when}"])
        if operation.verb == "delete":
            self.store.delete(kind, namespace, name)
            return
        problems = list(check_object(kind, merged(present, operation.body)))
        if problems:
            raise InputError([f"{operation}: {problem.field}: {problem.message}" for problem in problems])
        self.store.patch(kind, namespace, name, with_text_quantities(kind, operation.body), by_user=True)


def _built_in_queue(name: str, *, reclaimable: bool) -> JsonObject:
    spec = {"weight": 1, "reclaimable": reclaimable}
    return {"apiVersion": SCHEDULING_API, "kind": QUEUE, "metadata": {"name": name}, "spec": spec}
