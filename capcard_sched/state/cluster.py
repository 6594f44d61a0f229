"""The scheduler cache: only deltas and the scheduler's own placements change it.

`ClusterState` dispatches the deltas to its tables: `PodTable`, `JobTable`, `NodeCache` and one per other kind.
`Accounting` keeps the sums over tasks and the scheduler's own placements, `NodeTable` the node amounts, `ClassTable`
the classes of equal pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capcard_sched.model import deltas
from capcard_sched.model.card_labels import DEFAULT_CARD_LABELS
from capcard_sched.model.cards import discover_cards
from capcard_sched.model.intents import ObjectRef
from capcard_sched.model.job import backed_cards
from capcard_sched.model.objects import NodeObject, PodGroupObject, PriorityClassObject
from capcard_sched.model.resources import ResourceColumns
from capcard_sched.model.status import PodGroupPhase
from capcard_sched.model.task_class import NO_ACCOUNTING
from capcard_sched.model.term_limits import DEFAULT_TERM_LIMITS
from capcard_sched.state.accounting import Accounting
from capcard_sched.state.backed_resources import BackedResources
from capcard_sched.state.changes import Changes
from capcard_sched.state.claim_gate import gate_claims
from capcard_sched.state.classes import ClassTable
from capcard_sched.state.columns import NodeTable
from capcard_sched.state.decode import group_facts
from capcard_sched.state.fact_tables import FactTables
from capcard_sched.state.invalid_objects import IgnoredEdits, InvalidObjects
from capcard_sched.state.jobs import JobTable
from capcard_sched.state.kube_groups import KubeGroups
from capcard_sched.state.node_cache import NodeCache
from capcard_sched.state.pods import PodTable
from capcard_sched.state.provisioning import ProvisioningTable
from capcard_sched.state.queues import QueueTable

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping

    from capcard_sched.model.card_labels import CardLabels
    from capcard_sched.model.hyper_nodes import HyperNodeTree
    from capcard_sched.model.job import Job, Node
    from capcard_sched.model.queue import Queue
    from capcard_sched.model.task_class import DeviceAccounting
    from capcard_sched.model.term_limits import TermLimits

#: Unused classes that may stay cached, beyond twice the number of pods.
_SPARE = 1024
#: Bytes of the content of unused classes that may stay cached, beyond twice that of the classes in use.
_SPARE_BYTES = 8 << 20


class ClusterState:
    """Nodes, tasks, jobs and queues. `apply` takes deltas in any order; placements go through `place` and `unplace`."""

    def __init__(
        self,
        scheduler_names: Iterable[str],
        default_queue: str,
        term_limits: TermLimits = DEFAULT_TERM_LIMITS,
        *,
        waits_for_groups: bool = False,
    ) -> None:
        """`waits_for_groups`: pods that name no group wait for the PodGroup that a controller makes."""
        self.scheduler_names = frozenset(scheduler_names)
        self.default_queue, self.term_limits = default_queue, term_limits
        self.waits_for_groups = waits_for_groups
        self.columns = ResourceColumns()
        self.nodes = NodeTable(self.columns.width)
        self.classes = ClassTable(self.columns, term_limits)
        self.changes = Changes(everything=True)
        self.queues: dict[str, Queue] = {}
        #: Schedulable jobs with work as of the opening of the last session: not admitted yet, or with pending tasks. A
        #: superset inside a session.
        self.active: dict[str, Job] = {}
        #: Schedulable jobs with fewer bound tasks than their minimum as of the opening of the last session.
        self.partial: dict[str, Job] = {}
        #: Key of the only job that sessions attempt; "" for no such restriction.
        self._only = ""
        #: Number of times this scheduler became leader.
        self.terms = 0
        #: The rule that accounts devices.
        self.device_accounting = NO_ACCOUNTING
        self._card_labels = DEFAULT_CARD_LABELS
        self._width = self.columns.width
        #: Edits of bound pods and of their PodGroups without effect.
        self.ignored_edits = IgnoredEdits()

        self._invalid, self._affinities = InvalidObjects(), InvalidObjects()
        #: Invalid objects and their problems.
        self.problems = self._invalid.problems
        #: PodGroups with an affinity between groups, which only a plugin reads.
        self.affinities = self._affinities.problems

        self._job_table = JobTable(self.columns, self.queues, self.changes, default_queue, self.ignored_edits)
        self.jobs = self._job_table.by_key
        self.schedulable = self._job_table.schedulable
        self.orphans = self._job_table.orphans
        self.groups_missing = self._job_table.groups_missing
        self.held = self._job_table.held
        self.kube_groups = KubeGroups(self._job_table, default_queue)
        #: Deleted queues with bound pods, by name.
        self.deleted_queues = self._job_table.deleted_queues
        #: PriorityClasses: value, and whether it is the default.
        self.priority_classes = self._job_table.priority_classes

        self._queue_table = QueueTable(
            self.queues,
            columns=self.columns,
            jobs=self._job_table,
            changes=self.changes,
            invalid=self._invalid,
            offer=self._offer,
        )
        #: The tables of kinds that plugins read, one of which each name below is of.
        self._tables = FactTables(self.classes, self.changes, self._invalid, self._job_table.set_default_queue)
        #: Labels of namespaces by name.
        self.namespaces = self._tables.namespaces.labels
        #: Extended resource to the DeviceClass that offers it.
        self.device_classes = self._tables.devices.by_resource
        #: Devices, and their allocations to claims.
        self.devices = self._tables.devices.inventory
        self.claims = self._tables.devices.ledger
        #: ResourceClaimTemplates by `namespace/name`.
        self.claim_templates = self._tables.devices.templates
        #: ResourceQuotas and PodDisruptionBudgets by namespace and name; valid CardBudgets by name.
        self.quotas = self._tables.limits.quotas
        self.budgets = self._tables.limits.budgets
        self.card_budgets = self._tables.limits.card_budgets
        self.usage = self._tables.usage.usage
        self.provisioning = ProvisioningTable(self.changes, self.jobs)
        #: HyperNodes by name; the tree they form is `tree`.
        self.hyper_nodes = self._tables.hyper_nodes.known
        #: NUMA facts by node name.
        self.numa = self._tables.numa.numa
        #: Data of the ConfigMaps that plugins read, by `namespace/name`.
        self.config_maps = self._tables.config_maps
        self.volumes, self.assume_volumes = self._tables.volumes.storage, self._tables.volumes.assume

        self._accounting = Accounting(self.nodes, self.queues, self.deleted_queues, self.changes)
        # Statements call these once per gang: bound methods without a call in between.
        self.place = self._accounting.place
        self.unplace = self._accounting.unplace
        self.hold = self._accounting.hold
        self.set_binding = self._accounting.set_binding
        self.release = self._accounting.release
        self.release_claims = self._tables.devices.release
        self.unrelease = self._accounting.unrelease
        #: By key of a job: allocated amounts of resources that no node offers, in base units.
        self.unoffered: Mapping[str, Counter[str]] = self._accounting.unoffered

        accounts = self._accounting, self.changes, self._invalid
        self._node_cache = NodeCache(self.nodes, self.columns, *accounts, self._offer)
        self.node_named = self._node_cache.get
        self._backed = BackedResources(self.nodes, self._node_cache, self._tables.devices, self.classes, self.jobs)

        self._pod_table = PodTable(
            self.scheduler_names,
            classes=self.classes,
            nodes=self._node_cache,
            jobs=self._job_table,
            kube_groups=self.kube_groups,
            accounting=self._accounting,
            changes=self.changes,
            invalid=self._invalid,
            ignored_edits=self.ignored_edits,
            match_width=self._match_width,
            waits_for_groups=waits_for_groups,
        )
        self.tasks, self.confirmed = self._pod_table.tasks, self._pod_table.confirmed
        self.assume_device_notes = self._pod_table.assume_device_notes

        self._handlers = self._handlers_of_kinds()

    def _handlers_of_kinds(self) -> dict[type | str, Callable[[Any], None]]:
        """The handler of each kind: of its objects by class, of deleted ones by name."""
        return {
            **self._pod_table.handlers,
            **self._tables.handlers,
            **self._queue_table.handlers,
            **self.provisioning.handlers,
            NodeObject: self._node_cache.apply,
            "Node": lambda gone: self._node_cache.drop(gone.name),
            PodGroupObject: self._apply_group,
            "PodGroup": self._drop_group,
            PriorityClassObject: self._apply_priority_class,
            "PriorityClass": lambda gone: self._job_table.drop_priority_class(gone.name),
            deltas.ObjectUnreadable: self._apply_undecodable,
            deltas.Takeover: self._apply_takeover,
        }

    def apply(self, delta: deltas.Delta) -> None:
        """Apply one delta. Never raises for invalid content: the object is listed in `problems`."""
        self._match_width()
        match delta:
            case deltas.ObjectChanged(obj):
                self._handlers[type(obj)](obj)
            case deltas.ObjectGone(kind):
                self._handlers[kind](delta)
            case _:
                self._handlers[type(delta)](delta)

    def apply_all(
        self, found: Iterable[deltas.Delta], failed: Callable[[deltas.Delta, Exception], None] | None = None
    ) -> None:
        """Apply deltas in order. The new pods of a workload that follow one another cost a third of single ones.

        `failed` gets each delta that raises; None: the exception ends the loop.
        """
        self._match_width()
        self._forget_classes()  # a state without sessions must not grow, either
        self._pod_table.apply_all(found, self.apply, failed)

    def _apply_undecodable(self, delta: deltas.ObjectUnreadable) -> None:
        """Keep the last known facts of an object that cannot be decoded."""
        ref = delta.object
        if ref.kind == "Pod":
            self._pod_table.keep_undecodable(ref, delta.node)
        elif ref.kind == "HyperNode":
            self._tables.hyper_nodes.set_problem(ref, delta.problem)
        self._invalid.note(ref, delta.problem)

    def _apply_takeover(self, _: deltas.Takeover) -> None:
        self.terms += 1
        self.provisioning.end_term()
        self._pod_table.end_term()

    @property
    def supports_claims(self) -> bool:
        return self._pod_table.facts.claims

    def support_claims(self, supported: bool) -> None:
        """Schedules pods with ResourceClaims from now on, or excludes them. O(pods) if that changes."""
        if self._pod_table.facts.claims is not supported:
            self._pod_table.facts.claims = supported
            gate_claims(self.tasks.values(), self._accounting, supported=supported)

    def fix_accounts(self) -> None:
        """Fix the accounts of bound pods from now on: the initial lists, in any order, are complete."""
        self._job_table.fixed_queues.live = True

    def attempt_only(self, key: str) -> None:
        """Attempt one job alone in further sessions: for trials. Others keep their pods, and may be victims."""
        self._only = key
        for jobs in (self.active, self.partial):
            for other in jobs.keys() - {key}:
                del jobs[other]

    def open_session(self) -> Changes:
        """Sort the rows, refresh the tree, and drain the changes."""
        self._match_width()
        self._queue_table.refresh()
        self.fix_accounts()
        self._forget_classes()
        self.nodes.sort_rows()
        self._tables.volumes.release_unused(self.tasks)
        self._tables.devices.release_unused(self.tasks)
        self._tables.devices.note_faults()
        self._tables.devices.touch_nodes(self.nodes)
        self.back_resources()
        changed = self.changes.drain()
        self.kube_groups.refresh(changed.jobs)
        self._tables.hyper_nodes.refresh(self.nodes, changed)
        for key in changed.jobs:
            job = self.schedulable.get(key)
            if self._only not in {"", key}:
                continue
            if job is not None and job.uid and (job.pending or job.phase is PodGroupPhase.PENDING):
                self.active[key] = job
            else:
                self.active.pop(key, None)
            self._note_partial(key, job)
        return changed

    def forget_gone(self) -> None:
        """Drop names and classes of objects that are gone, once they are many, where no sessions run.

        The next session considers everything.

        O(objects) after as many changes.
        """
        most = 2 * len(self.tasks) + _SPARE
        if self.changes.size > most or len(self.classes) > most or self._has_large_classes:
            self.open_session()
            self.changes.everything = True

    @property
    def _has_large_classes(self) -> bool:
        return self.classes.bytes > 2 * self.classes.bytes_in_use + _SPARE_BYTES

    def back_resources(self) -> None:
        """Update the extended resources that nodes offer by devices."""
        self._backed.refresh(self.changes.nodes, self.changes.jobs, supported=self.supports_claims)
        self._match_width()

    def _note_partial(self, key: str, job: Job | None) -> None:
        if job is not None and not job.bound:
            job.was_whole = False
        if job is not None and job.uid and job.is_partial():
            self.partial[key] = job
        else:
            self.partial.pop(key, None)

    def _forget_classes(self) -> None:
        """Drop the classes of pods that are gone, once they are many or large."""
        is_large = self._has_large_classes
        if is_large or len(self.classes) > 2 * len(self.tasks) + _SPARE:
            self.classes.prune({task.cls for task in self.tasks.values()})
        if is_large:
            self.changes.force_resync = True  # ends what plugins keep by class: its number is limited, not its bytes

    @property
    def tree(self) -> HyperNodeTree:
        """HyperNodes and the nodes below them, as of the opening of the last session."""
        return self._tables.hyper_nodes.tree

    def refresh_tree(self) -> None:
        """Update `tree` and the problems of HyperNodes between two sessions. O(nodes)."""
        self._tables.hyper_nodes.refresh(self.nodes)

    def _match_width(self) -> None:
        """Pad every vector and matrix after resource columns were added beyond the present width."""
        width = self.columns.width
        if width == self._width:
            return
        self._width = width
        self.nodes.widen(width)
        self.classes.widen()
        for job in self.jobs.values():
            job.allocated = self.columns.fit(job.allocated)
            job.total_request = self.columns.fit(job.total_request)
            job.releasing = self.columns.fit(job.releasing)
        for queue in (*self.queues.values(), *self.deleted_queues.values()):
            queue.allocated = self.columns.fit(queue.allocated)
            queue.releasing = self.columns.fit(queue.releasing)

    @property
    def shares(self) -> frozenset[str]:
        """Resources of shared devices: queues limit them only where they name them. Each has a column."""
        return self.device_accounting.shares

    @property
    def card_labels(self) -> CardLabels:
        """The labels that name the models of devices; shared devices are no cards."""
        return self._card_labels

    @card_labels.setter
    def card_labels(self, labels: CardLabels) -> None:
        self._card_labels = labels.without(self.shares)
        self._tables.devices.name_cards(labels.drivers)

    def cards_of(self, node: Node) -> dict[str, tuple[int, str]]:
        """Card of a node to (thousandths, resource name), sorted by card. O(labels + resources)."""
        plugin = self.plugin_cards_of(node)
        return {**backed_cards(node), **plugin} if node.backed else plugin

    def plugin_cards_of(self, node: Node) -> dict[str, tuple[int, str]]:
        """Those of device plugins, without the devices that DeviceClasses offer as extended resources."""
        return discover_cards(node.labels, node.allocatable, self._card_labels).cards

    def account_devices(self, accounting: DeviceAccounting) -> bool:
        """Account the devices of all pods by another rule. Returns whether the rule changed; O(pods) then."""
        if accounting.version == self.device_accounting.version:
            return False
        self.device_accounting = accounting
        self.card_labels = self._card_labels
        for task in self.tasks.values():
            self._accounting.subtract(task)
        self.classes.offer(set(accounting.shares | accounting.unfit))
        self.classes.account_devices(accounting)
        self._match_width()
        self._job_table.set_uncounted(accounting.uncounted)
        for task in self.tasks.values():
            task.cls = self.classes.placed(task.cls, task.device_notes if task.bound else {})
        self._match_width()
        for task in self.tasks.values():
            self._accounting.add(task)
        return True

    def _offer(self, names: Iterable[str]) -> None:
        """Add columns of resources that a node offers or a queue limits. O(pods) when pods requested them before."""
        fresh = self.classes.new_names(names)
        if not fresh:
            return
        classes = self.classes.requesting(fresh)
        tasks = [task for task in self.tasks.values() if task.cls in classes] if classes else []
        for task in tasks:
            self._accounting.subtract(task)
        self.classes.offer(fresh, classes)
        self._match_width()
        for task in tasks:
            self._accounting.add(task)

    def _apply_group(self, obj: PodGroupObject) -> None:
        facts, problem = group_facts(obj, self.default_queue)
        ref = ObjectRef("PodGroup", facts.namespace, facts.name, facts.uid)
        self._invalid.note(ref, problem)
        self._affinities.note(ref, "spec.topologyAffinity" if obj.spec.topology_affinity else "")
        self._job_table.update(self.kube_groups.apply(facts))

    def _drop_group(self, gone: deltas.ObjectGone) -> None:
        for noted in (self._invalid, self._affinities):
            noted.forget("PodGroup", gone.namespace, gone.name, gone.uid)
        self.kube_groups.drop(gone.namespace, gone.name, gone.uid)
        self._job_table.drop(f"{gone.namespace}/{gone.name}", gone.uid)

    def _apply_priority_class(self, item: PriorityClassObject) -> None:
        self._job_table.set_priority_class(item.metadata.name, item.value, is_default=bool(item.global_default))
