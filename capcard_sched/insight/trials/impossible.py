"""Workloads of manifests that can never start, as the plugins of a scheduler-conf find them.

The simulated controllers create the PodGroups and pods of all workloads, as if every PodGroup were admitted; the
scheduler's own check (`exceeded_limit`) then runs on them. Without nodes in the input, their size is no limit.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from capcard_sched.controllers.objects import POD_GROUP, QUEUE, annotations_of, controller_of, key_of, status
from capcard_sched.framework.core import Core
from capcard_sched.framework.quota.limits import lacks_card_quota
from capcard_sched.model.annotations import CARD_NAME, CARD_QUOTA, GPU_REPLICAS, MEMORY_SUFFIX
from capcard_sched.model.card_labels import MPS_RESOURCE, WHOLE_NVIDIA
from capcard_sched.model.cards import CardSyntaxError, parse_card_name, parse_card_quota
from capcard_sched.model.kinds import kind_of
from capcard_sched.model.refusal import ExceededLimit
from capcard_sched.simulation.cluster import SimulatedCluster
from capcard_sched.simulation.kinds import NODE, is_namespaced
from capcard_sched.simulation.run import SimulationOptions
from capcard_sched.simulation.scenario import Entry, Origin, in_creation_order
from capcard_sched.simulation.store import StoreWatch
from capcard_sched.validation.checks import card_resource
from capcard_sched.validation.inventory import Inventory
from capcard_sched.validation.templates import templates_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capcard_sched.controllers.objects import JsonObject
    from capcard_sched.framework.conf.registry import Registry
    from capcard_sched.framework.conf.scheduler_conf import Conf
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.deltas import Delta
    from capcard_sched.model.job import Job
    from capcard_sched.simulation.scenario import Scenario
    from capcard_sched.simulation.store import Store
    from capcard_sched.validation.hint_checks import QuotaPlugins


class ImpossibleWorkload(NamedTuple):
    """An object of the input whose pods can never start together."""

    kind: str
    namespace: str
    name: str
    #: The queue of its PodGroup.
    queue: str
    exceeded: ExceededLimit
    #: Whether the limit is that of a card, and its queue has no card quota.
    has_no_quota: bool
    #: The ResourceQuota that has the limit; "" for a queue and for the nodes.
    resource_quota: str = ""


class AdmittedWorkloads:
    """The cluster of a scenario, objects of its timeline included, with no pod placed.

    First no PodGroup is admitted: `card.request` counts for jobs without pods. Then all are.
    """

    def __init__(self, scenario: Scenario, plugins: QuotaPlugins | None = None) -> None:
        """`plugins`: those of the scheduler-confs."""
        options = SimulationOptions()
        cluster = SimulatedCluster(options.scheduler_names, options.default_queue)
        watch = StoreWatch(cluster.store)
        cluster.store.observe(watch.observe)
        entries = _all_entries(scenario)
        cluster.load(scenario._replace(entries=(*_nodes_of_cards(entries, plugins), *entries), operations=()))
        self._unadmitted: list[Delta] = watch.drain()
        while waiting := [group for group in cluster.store.list(POD_GROUP) if status(group).get("phase") == "Pending"]:
            for group in waiting:
                cluster.store.patch(POD_GROUP, *key_of(group), {"status": {"phase": "Inqueue"}})
            cluster.settle()
        self._options = options
        self._store: Store = cluster.store
        self._deltas: list[Delta] = watch.drain()

    def impossible(self, conf: Conf, registry: Registry) -> list[ImpossibleWorkload]:
        """The workloads whose minimum exceeds a limit under a scheduler-conf, in order of their PodGroups."""
        core = Core(conf, registry, self._options.scheduler_names, self._options.default_queue)
        found: dict[str, ImpossibleWorkload] = {}
        for deltas in (self._unadmitted, self._deltas):
            core.apply_all(deltas)
            session = core.open_session(self._store.clock.unix)
            for key in sorted(session.jobs.keys() - found.keys()):
                job = session.jobs[key]
                exceeded = session.exceeded_limit(job)
                group = self._store.get(POD_GROUP, job.namespace, job.name)
                if exceeded is not None and group is not None:
                    has_no_quota = lacks_card_quota(exceeded, session.queues, conf.quota_plugins)
                    found[key] = ImpossibleWorkload(*self._owner(group), job.queue, exceeded, has_no_quota)
                elif group is not None and session.is_pending_phase(job):
                    limited = _by_resource_quota(session, job)
                    if limited is not None:
                        found[key] = ImpossibleWorkload(
                            *self._owner(group), job.queue, limited[0], has_no_quota=False, resource_quota=limited[1]
                        )
        return [found[key] for key in sorted(found)]

    def _owner(self, obj: JsonObject) -> tuple[str, str, str]:
        """Kind, namespace and name of the topmost controller of an object, or of the owner of a bare pod's group."""
        kind, (namespace, name) = kind_of(obj), key_of(obj)
        while True:
            reference = controller_of(obj) or next(iter(obj["metadata"].get("ownerReferences") or ()), None)
            owner = None if reference is None else self._store.get(kind_of(reference), namespace, reference["name"])
            if owner is None or owner is obj:
                return kind, namespace, name
            obj, kind, name = owner, kind_of(owner), key_of(owner)[1]


def _by_resource_quota(session: Session, job: Job) -> tuple[ExceededLimit, str] | None:
    """The amount and the ResourceQuota that the minimum of a job exceeds, whatever is used; None within all."""
    _, refusal = session.job_enqueueable(job)
    if refusal is None or refusal.limiter is None or refusal.limiter.kind != "ResourceQuota":
        return None
    figures = [one for one in (refusal.figures, *refusal.alternatives) if one is not None and one.requested > one.limit]
    return (ExceededLimit(figures[0], ""), refusal.limiter.name) if figures else None


def _nodes_of_cards(entries: Sequence[Entry], plugins: QuotaPlugins | None) -> Iterator[Entry]:
    """A node for each card that a quota or a pod names and no node offers: it gives the card its resource.

    None for a card that quotas alone name, where the devices of that resource have no product label: pods without a
    card name are charged by the resource.
    """
    inventory = Inventory([entry.object for entry in entries], plugins)
    offered = inventory.cards
    quotas: set[str] = set()
    names: set[str] = set()
    for entry in entries:
        texts = annotations_of(entry.object)
        with suppress(CardSyntaxError):
            quotas.update(parse_card_quota(texts.get(CARD_QUOTA)) if entry.kind == QUEUE else ())
        for template in templates_of(entry.object):
            with suppress(CardSyntaxError):
                names.update(parse_card_name(template.annotations.get(CARD_NAME)))
    names |= {card for card in quotas if (card_resource(card) or WHOLE_NVIDIA) not in inventory.unlabelled}
    for number, card in enumerate(sorted(names - offered.keys())):
        product, _, share = card.partition("/")
        labels, resource = {f"{WHOLE_NVIDIA}.product": product, f"{WHOLE_NVIDIA}{MEMORY_SUFFIX}": "1024"}, WHOLE_NVIDIA
        if share:
            resource = card_resource(card) or ""
        if resource == MPS_RESOURCE:
            memory, _, replicas = share.removeprefix("mps-").partition("g*1/")
            labels |= {f"{WHOLE_NVIDIA}{MEMORY_SUFFIX}": str(int(memory) * 1024), GPU_REPLICAS: replicas}
        if resource:
            metadata = {"name": f"card-{number}", "labels": labels}
            node = {
                "apiVersion": "v1",
                "kind": NODE,
                "metadata": metadata,
                "status": {"allocatable": {resource: "1", "pods": "0"}},
            }
            yield Entry(NODE, node, Origin("", 0))


def _all_entries(scenario: Scenario) -> tuple[Entry, ...]:
    """The initial objects and those that the timeline creates, each name once."""
    created = [Entry(one.kind, one.body, one.origin) for one in scenario.operations if one.verb == "create"]
    found: dict[tuple[str, str, str], Entry] = {}
    for entry in (*scenario.entries, *created):
        metadata = entry.object["metadata"]
        namespace = (metadata.get("namespace") or "default") if is_namespaced(entry.kind) else ""
        found.setdefault((entry.kind, namespace, metadata["name"]), entry)
    return in_creation_order(found.values())
