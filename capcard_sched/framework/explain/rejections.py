"""Why no node fits a pod: the reasons of its filters, in the state of the attempt, with their nodes and figures."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from capcard_sched.framework.api.node_view import Diagnosis
from capcard_sched.framework.explain.capacity import NodeCard, held_on, holders, workload_name
from capcard_sched.framework.explain.device_causes import CANNOT_ALLOCATE, allocated_claims, devices_of
from capcard_sched.framework.explain.label_causes import (
    NO_AFFINE_POD,
    absent_demands,
    affine_nodes,
    affinity_cause,
    awaits_pods,
    demands,
    spread_cause,
    spread_text,
)
from capcard_sched.framework.explain.sentences import form, plain
from capcard_sched.framework.explain.volume_causes import attach_limits, bound_volumes, open_claims
from capcard_sched.model.annotations import NODE_VGPU_REGISTER, NODEGROUP_NAME, PREEMPTABLE, REVOCABLE_ZONE
from capcard_sched.model.diagnosis import MOST_LISTED, NearestNode, RejectedNodes
from capcard_sched.model.node_conditions import condition_word, conditions_of
from capcard_sched.model.pod_facts import admits_revocable
from capcard_sched.model.quantity import in_units, shown_amount
from capcard_sched.model.quoting import brief, plural
from capcard_sched.model.refusal import Code
from capcard_sched.model.resources import PODS
from capcard_sched.model.selectors import untolerated_taint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from capcard_sched.framework.api.node_view import NodeView, PodSignature
    from capcard_sched.framework.placement.engine import PlacementEngine
    from capcard_sched.framework.session.session import Session
    from capcard_sched.model.job import Job, Node, Task

#: Nodes per plugin whose figures are listed.
_NEAREST_NODES: Final = 3
_MOST_NAMES: Final = 4
INSUFFICIENT: Final = "Insufficient "
CORDONED: Final = "node(s) were unschedulable"
TAINTED: Final = "node(s) had untolerated taint"
_NOT_ALLOCATED: Final = "resourceclaim not available on the node"
_OTHER_ZONE: Final = "node(s) had no available volume zone"
_OTHER_NODE: Final = "node(s) didn't match PersistentVolume's node affinity"
_NO_VOLUME: Final = "node(s) didn't find available persistent volumes to bind"
#: The beginnings of reasons of nodes that are not those of an allocated claim, or of a volume.
PINNED: Final = (_NOT_ALLOCATED, _OTHER_ZONE, _OTHER_NODE, _NO_VOLUME)
#: The access mode of claims for one pod.
_ONE_POD: Final = "ReadWriteOncePod"
#: Of pods that nodes of a revocable zone never take.
_NOT_REVOCABLE: Final = f', and neither the pods nor their PodGroup have {REVOCABLE_ZONE}: "*" or {PREEMPTABLE}: "true"'
#: The beginning of a reason: `node(s) were in a domain`, `node does not satisfy an affinity`.
_VERB: Final = re.compile(r"^node(?:\(s\))? (were|had|has|didn't|does not) ")
#: Verb of a reason to that of one node and of several.
_FORMS: Final = {
    **dict.fromkeys(("were",), ("is", "are")),
    **dict.fromkeys(("had", "has"), ("has", "have")),
    **dict.fromkeys(("didn't", "does not"), ("does not", "do not")),
}
#: Cause of a shared card to its sentence.
_SHARED: Final = {
    "request": "the request for shared cards is invalid",
    "sharing mode": "no shared card of {on} has the mode that the pods request",
    "gpu cards": "{on} {has} too few shared cards",
    "unhealthy": "the shared cards of {on} are unhealthy",
    "slots": "the shared cards of {on} have no free slots",
    "memory": "the shared cards of {on} lack memory",
    "cores": "the shared cards of {on} lack cores",
    "exclusive": "the shared cards of {on} are in use",
    "type": "the annotations of the pods exclude the shared cards of {on}",
    "podgroup policy": "the shared cards of {on} have pods of the same PodGroup",
    "exclusive rule": "the shared cards of {on} have a pod that the same rule of GPUExclusiveRules selects",
    "mig slice": "the shared cards of {on} have no free MIG slice",
}
_SELECTOR: Final = "node(s) didn't match Pod's node affinity/selector"
#: Filter reason to its sentence about some nodes: `{on}` are these nodes, `{has}` and `{does}` the verbs.
_TEXTS: Final = {
    "node(s) pod number exceeded": "{on} {has} the maximum number of pods{most}",
    f"{INSUFFICIENT}{PODS}": "{on} {has} the maximum number of pods{most}",
    _SELECTOR: "{on} {does} not match {demands}{absent}",
    _NOT_ALLOCATED: "{allocated}, not on {on}",
    NO_AFFINE_POD: "pod affinity: no pod that it selects is in the topology of {on}{affine}",
    "node(s) didn't match pod anti-affinity rules": "pod anti-affinity excludes {on}",
    "node(s) didn't satisfy existing pods anti-affinity rules": "anti-affinity of pods on {on} excludes it",
    "node(s) didn't match pod topology spread constraints": "topology spread constraint{spread} excludes {on}{skew}",
    _OTHER_ZONE: "the zone of {volume} excludes {on}",
    _OTHER_NODE: "the node affinity of {volume} excludes {on}",
    _NO_VOLUME: "no PersistentVolume for {claim} is available on {on}",
    "node(s) did not have enough free storage": "{on} {does} not have enough free storage for {claim}",
    "node(s) exceed max volume count": "{on} {has} the maximum number of attached volumes{attached}",
    "current time beyond revocable zone ": "{on} {is} outside the hours of revocable zone {hours}",
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)": "{volume} does not exist",
    "node group label not found": f"{{on}} {{does}} not have the label {NODEGROUP_NAME}",
    "node group affinity not specified": "the queue names no node group (spec.affinity), and {on} {is} in one",
    "node does not satisfy the node group affinity": "spec.affinity of the queue excludes the node group of {on}",
    "node group resource limit exceeded": "the request exceeds the limit of the queue in the node group of {on}",
    **{
        f"the {kind} load of the node exceeds the upper limit.": f"the {kind} load of {{on}} exceeds its threshold"
        for kind in ("CPU", "memory")
    },
    "proportional of resource ": (
        "resource-strategy-fit reserves cpu and memory on {on} for pods that request {reserved}"
    ),
    "numa info is empty": "{on} {has} no Numatopology",
    "cpu manager policy isn't static": "the CPU manager policy of {on} is not static",
    "GpuShare no enough gpu memory": "the cards of {on} lack memory",
    "GpuNumber no enough gpu number": "{on} {has} too few cards without pods",
    **{f"hami-vgpuDeviceSharing error ({cause})": text for cause, text in _SHARED.items()},
    "node not initialized with devicehamivgpu": f"{{on}} {{does}} not register shared cards ({NODE_VGPU_REGISTER})",
}
#: Texts that show the end of the reason themselves.
_OWN_DETAIL: Final = re.compile("{(skew|hours|reserved)}")


class PodRejection(NamedTuple):
    """The filters that rejected the nodes for one pod, the causes first; and figures of devices."""

    nodes: tuple[RejectedNodes, ...] = ()
    nearest: tuple[NearestNode, ...] = ()
    #: The text of the pod's condition.
    message: str = ""
    #: No node that is large enough and has a card for the pod is near the pods that its affinity requires.
    is_apart: bool = False

    @property
    def causes(self) -> list[RejectedNodes]:
        """The rejections of the nodes that come nearest to fitting."""
        return [row for row in self.nodes if row.decides]


class ObservedAttempt:
    """The first failed attempt of one job in a session: its pods without a node, beside the placed members."""

    def __init__(self, key: str) -> None:
        self._key = key
        #: The session of the attempt; None for no failure.
        self.session: Session | None = None
        #: By uid, the pods that found no node, in task order.
        self.rejections: dict[str, PodRejection] = {}
        #: Names of the pods of the gang that had a node, and the nodes.
        self.placed: dict[str, str] = {}

    def observe(self, session: Session, job: Job, engine: PlacementEngine) -> None:
        """As `Session.observe_failure`."""
        if job.key != self._key or self.session is session:
            return
        self.session, self.rejections, self.placed = session, {}, {}
        by_signature: dict[object, PodRejection] = {}
        waiting = session.pending_tasks(job)
        for task in waiting:
            outcome = session.results.outcome_of(task.uid)
            if outcome is None or outcome.kind == "unfit":
                signature = engine.signature(session.queues[job.queue], task)
                if signature not in by_signature:
                    by_signature[signature] = rejection_of(session, engine, task)
                self.rejections[task.uid] = by_signature[signature]
        pending = {task.uid for task in waiting}
        self.placed = {
            task.name: task.node.name
            for task in job.tasks.values()
            if task.uid not in pending and task.node is not None and not task.bound
        }


def rejection_of(session: Session, engine: PlacementEngine, task: Task) -> PodRejection:
    """The filters that reject the nodes of an engine for a pod, in the present state of the session."""
    assert task.job is not None
    view = engine.all_rows()
    signature = engine.signature(session.queues[task.job.queue], task)
    text, diagnosis = engine.diagnose(signature)
    request = task.cls.fit_request
    small = (view.allocatable < request).any(axis=1)
    fixed = diagnosis.codes > Code.UNSCHEDULABLE
    # A node with other cards may lack the resource first.
    other_card = _with_other_cards(session, task, view)
    # Nodes that another end or eviction could free; those that are cordoned or tainted, then those that also lack a
    # resource; those that only are too small; others large enough, then too small, with an accepted card; the rest.
    with_card = ~small & ~other_card
    open_nodes = with_card & ~fixed
    blocked, closed = _rejected_besides(engine, signature, diagnosis)
    only_small = small & ~other_card & ~fixed & ~blocked & ((view.allocatable > 0) | (request <= 0)).all(axis=1)
    everything = np.ones(len(view), bool)
    affine, near = diagnosis.entries.get(NO_AFFINE_POD), np.ones(len(view), bool)
    awaits = awaits_pods(session.snapshot, task)
    if awaits or affine is not None:
        names = affine_nodes(session.snapshot, task)
        near = np.array([session.nodes.nodes[row].name in names for row in view.rows.tolist()], bool)
    shut = with_card & _excluded(diagnosis)
    if affine is not None and shut.any():  # a node that is opened does not have the pods of the affinity either
        shut = shut & near if (shut & near).any() else with_card & affine
    cards = (_shut_alone(engine, signature, shut), shut, open_nodes, only_small, with_card)
    tiers: tuple[NDArray[np.bool_], ...] = (
        open_nodes & ~blocked,
        open_nodes & ~closed,
        *cards,
        ~other_card,
        everything,
    )
    is_apart = awaits and not (with_card & near).any()
    if affine is not None and is_apart:
        # Nodes with another reason lack these pods, too.
        tiers = (with_card & affine, *tiers)
    nearest = next((tier for tier in tiers if tier.any()), tiers[-1])
    details = tuple(
        NearestNode(node=name, plugin=plugin, texts=tuple(texts))
        for plugin, call in session.dispatch.entries("rejection_details")
        for name, texts in list(itertools.islice(call(task, view), _NEAREST_NODES))
    )
    describe = _Description(session, engine, task)
    nodes = session.nodes.nodes
    found = []
    for reason, entries in diagnosis.entries.items():
        deciding = entries & nearest
        shown = deciding if deciding.any() else entries
        rows = view.rows[np.flatnonzero(shown)].tolist()
        plugin, hook = diagnosis.sources.get(reason, ("", "fit"))
        found.append(
            RejectedNodes(
                reason=reason,
                nodes=diagnosis.reasons[reason],
                plugin=plugin,
                hook=hook,
                names=tuple(sorted(nodes[row].name for row in rows)[:MOST_LISTED]),
                decides=bool(deciding.any()),
                text=describe.text(reason, [nodes[row] for row in rows])
                + _details(details, plugin, nodes[rows[0]].name if len(rows) == 1 else ""),
            )
        )
    # Nodes that the pod does not select are the cause only where it selects no others.
    found.sort(key=lambda row: (not row.decides, row.reason == _SELECTOR, -len(row.names), -row.nodes, row.reason))
    return PodRejection(tuple(found), details, text, is_apart)


def _excluded(diagnosis: Diagnosis) -> NDArray[np.bool_]:
    """The entries that are cordoned or tainted."""
    found = np.zeros(len(diagnosis.codes), dtype=bool)
    for reason, entries in diagnosis.entries.items():
        if _excludes(reason):
            found |= entries
    return found


def _excludes(reason: str) -> bool:
    return reason == CORDONED or reason.startswith(TAINTED)


class _WithoutExclusions(Diagnosis):
    """The other reasons of nodes that are cordoned or tainted."""

    __slots__ = ()

    def reject(self, rejected: NDArray[np.bool_], code: Code, reason: str) -> None:
        if not _excludes(reason):
            super().reject(rejected, code, reason)


def _shut_alone(engine: PlacementEngine, signature: PodSignature, shut: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The nodes that are cordoned or tainted, and rejected by nothing else: a quota may refuse the card of others."""
    rows, found = np.flatnonzero(shut), shut.copy()
    found[rows] = engine.filter_rows(signature, rows, _WithoutExclusions(len(rows))).ok
    return found


def _rejected_besides(
    engine: PlacementEngine, signature: PodSignature, diagnosis: Diagnosis
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The nodes that lack a resource and that filters reject, too; those of them that no end of a pod opens."""
    short = np.zeros(len(diagnosis.codes), dtype=bool)
    for reason, entries in diagnosis.entries.items():
        if reason.startswith(INSUFFICIENT):
            short |= entries
    rows, closed = np.flatnonzero(short), np.zeros(len(short), dtype=bool)
    chain = engine.filter_rows(signature, rows)
    short[rows], closed[rows] = ~chain.ok, chain.codes > Code.UNSCHEDULABLE
    return short, closed


def _with_other_cards(session: Session, task: Task, view: NodeView) -> NDArray[np.bool_]:
    """The nodes of a view without a card that a pod accepts; none for a pod without the name of a card.

    Devices of claims are no resources of their node: those of a pod with claims are the nodes without devices, unless
    all are.
    """
    cards = session.dispatch.first("pod_cards", task.cls)
    nodes, cards_of = session.nodes.nodes, session.state.cards_of
    if task.cls.claims:
        pools = session.snapshot.devices.pools
        bare = np.array([not list(pools(nodes[row].name, nodes[row].labels)) for row in view.rows.tolist()], bool)
        return bare if not bare.all() else np.zeros(len(view), dtype=bool)
    if cards is None or not cards.names:
        return np.zeros(len(view), dtype=bool)
    return np.array([cards_of(nodes[row]).keys().isdisjoint(cards.alternatives) for row in view.rows.tolist()], bool)


def _details(found: Sequence[NearestNode], plugin: str, name: str) -> str:
    """` (n1: 3 cards requested, 2 registered)`: the first figures of a plugin; without the node if it is `name`."""
    first = next((one for one in found if one.plugin == plugin), None)
    if first is None:
        return ""
    return f" ({'' if first.node == name else f'{first.node}: '}{'; '.join(first.texts)})"


class _Description:
    """Sentences about the reasons for one pod."""

    def __init__(self, session: Session, engine: PlacementEngine, task: Task) -> None:
        self._session, self._engine, self._task, self._cls = session, engine, task, task.cls
        self._special: dict[str, Callable[[Sequence[Node]], str]] = {
            CORDONED: self._cordoned,
            "node(s) didn't have free ports for the requested pod ports": self._ports,
            f"node has pod using PersistentVolumeClaim with the same name and {_ONE_POD} access mode": self._exclusive,
        }

    def _hours(self, zone: str) -> str:
        """`rz1 (10:00-12:00)` of `rz1:10:00-12:00`, and what pods lack that such nodes never take."""
        name, _, hours = zone.partition(":")
        job = self._task.job
        marked = admits_revocable(self._cls.annotations, job.annotations if job is not None else {})
        return f"{name} ({hours}){'' if marked else _NOT_REVOCABLE}"

    def text(self, reason: str, nodes: Sequence[Node]) -> str:
        """The sentence about the nodes of a reason."""
        on = named(nodes)
        if reason.startswith(INSUFFICIENT) and reason not in _TEXTS:
            return self._insufficient(reason.removeprefix(INSUFFICIENT), nodes)
        if reason.startswith(TAINTED):
            return self._tainted(nodes)
        if reason.startswith(CANNOT_ALLOCATE):
            devices = devices_of(self._session.snapshot, self._task, nodes)
            return f"{on}: {plain(reason)}{f' ({devices})' if devices else ''}"
        if reason in self._special:
            return self._special[reason](nodes)
        one, snapshot, cls = len(nodes) == 1, self._session.snapshot, self._cls
        detail = ""
        makers: dict[str, Callable[[], str]] = {
            "on": lambda: on,
            "has": lambda: "has" if one else "have",
            "is": lambda: "is" if one else "are",
            "hours": lambda: self._hours(detail),
            "reserved": lambda: detail.partition(" ")[0],
            "does": lambda: "does" if one else "do",
            "demands": lambda: demands(cls, nodes),
            "absent": lambda: absent_demands(snapshot, cls),
            "allocated": lambda: allocated_claims(snapshot, self._task) or "a ResourceClaim of the pod is allocated",
            "affine": lambda: affinity_cause(snapshot, self._task),
            "spread": lambda: spread_text(snapshot, cls),
            "skew": lambda: f"{detail}{spread_cause(snapshot, cls)}",
            "claim": lambda: open_claims(snapshot.volumes, self._task) or "a claim of the pod",
            "most": lambda: _most_pods(nodes),
            "attached": lambda: attach_limits(snapshot.volumes, nodes),
            "volume": lambda: bound_volumes(snapshot.volumes, self._task) or "a PersistentVolume of the pod",
        }
        for start, text in _TEXTS.items():
            if reason.startswith(start):
                detail = reason.removeprefix(start)
                shown = text.format(**{name: make() for name, make in makers.items() if f"{{{name}}}" in text})
                return shown if _OWN_DETAIL.search(text) else shown + detail
        if (verb := _VERB.match(reason)) is not None:
            return f"{on} {_FORMS[verb[1]][not one]} {plain(reason[verb.end() :])}"
        return f"{on}: {plain(reason)}"

    def _insufficient(self, resource: str, nodes: Sequence[Node]) -> str:
        """`n1 lacks cpu: it needs 64, and at most 32 of 96 are free (n1); held by default/job/a (64)`."""
        amount = in_units(resource, self._cls.requests.get(resource, 0))
        name = self.resource_name(resource)
        table, column = self._session.nodes, self._session.resources.find(resource)
        free = {node.name: 0 for node in nodes}
        if column is not None:
            rows = [node.row for node in nodes]
            amounts = table.allocatable[rows, column] - table.used[rows, column] + table.releasing[rows, column]
            free = dict(zip(free, amounts.tolist(), strict=True))
        most = max(free, key=lambda one: (free[one], one))
        largest = max(node.allocatable.get(resource, 0) for node in nodes)
        needs = f"it needs {shown_amount(resource, amount)} {name}"
        if in_units(resource, largest) < amount:
            has = shown_amount(resource, in_units(resource, largest))
            return f"{needs}, and {named(nodes)} {'has' if len(nodes) == 1 else 'have at most'} {has}"
        left = shown_amount(resource, max(0.0, in_units(resource, free[most])))
        job = self._task.job
        uses = held_on((NodeCard(node, resource, 0, 0) for node in nodes), attempted=job)
        held = holders(((workload, "", amount) for workload, _, amount in uses), _MOST_NAMES)
        by = ", ".join(f"{one.workload} ({shown_amount(resource, one.amount)})" for one in held)
        text = f"{needs}, and {named(nodes)} {'has' if len(nodes) == 1 else 'have at most'} {left} free"
        fitting = sum(task.job is job and not task.bound for node in nodes for task in node.tasks.values())
        text += f" beside {plural(fitting, 'pod')} of the job" if fitting else ""
        return f"{text}, held by {by}" if by else text

    def resource_name(self, resource: str) -> str:
        """The cards that the pod accepts, where the resource counts them."""
        cards = self._session.dispatch.first("pod_cards", self._cls)
        if cards is None or not cards.amount:
            return resource
        state = self._session.state
        missing = set(cards.alternatives)
        for node in state.nodes.by_name.values():
            missing.difference_update(card for card, (_, name) in state.cards_of(node).items() if name == resource)
            if not missing:  # most often after a few of thousands of nodes
                break
        own = [card for card in cards.alternatives if card not in missing]
        return " or ".join(own) or resource

    def _ports(self, nodes: Sequence[Node]) -> str:
        wanted = {port.port for port in self._cls.host_ports}
        users = [
            (task, port.port)
            for node in nodes
            for task in node.tasks.values()
            for port in task.cls.host_ports
            if port.port in wanted
        ]
        ports = sorted({port for _, port in users} or wanted)
        own = [task.name for task, _ in users if task.job is self._task.job]
        by = brief(list(dict.fromkeys(workload_name(task) for task, _ in users if task.job is not self._task.job)))
        by = ", ".join(filter(None, [by, f"{brief(own)} of the same job" if own else ""]))
        word = "host port" if len(ports) == 1 else "host ports"
        verb = "is" if len(ports) == 1 else "are"
        return f"{word} {', '.join(map(str, ports))} {verb} taken on {named(nodes)}{f' by {by}' if by else ''}"

    def _exclusive(self, nodes: Sequence[Node]) -> str:
        """`PersistentVolumeClaim data (ReadWriteOncePod) is in use by default/pod/a on n1`."""
        snapshot, own = self._session.snapshot, self._task
        claims = {name: snapshot.volumes.claims.get(f"{own.namespace}/{name}") for name in own.cls.volumes}
        exclusive = [name for name, claim in claims.items() if claim is not None and _ONE_POD in claim.access_modes]
        placed = [task for task in snapshot.tasks_by_uid.values() if task.node and task.namespace == own.namespace]
        found = [
            f"{name} ({_ONE_POD}) is in use by {workload_name(task)} on {task.node.name}"
            for name in exclusive
            for task in placed
            if task.node is not None and name in task.cls.volumes
        ]
        return f"PersistentVolumeClaim {brief(found)}" if found else f"a claim of the pod is in use on {named(nodes)}"

    @staticmethod
    def _cordoned(nodes: Sequence[Node]) -> str:
        words = {
            node.name: " and ".join(dict.fromkeys(condition_word(one.text) for one in conditions_of(node.taints)))
            for node in nodes
        }
        return brief([f"{name} is {word or 'cordoned'}" for name, word in words.items()])

    def _tainted(self, nodes: Sequence[Node]) -> str:
        found = []
        for node in nodes:
            condition = untolerated_taint(conditions_of(node.taints), self._cls.tolerations)
            if condition is not None:
                found.append(f"{node.name} is {condition_word(condition.text)}")
                continue
            taints = [one.text for one in node.taints if untolerated_taint((one,), self._cls.tolerations) is not None]
            found.append(f"{node.name} has {form(len(taints), 'taint', 'taints')} {' and '.join(taints)}")
        tolerated = ", which the pods do not tolerate" if any(" has taint" in text for text in found) else ""
        return brief(found) + tolerated


def _most_pods(nodes: Sequence[Node]) -> str:
    """` (110)`: the pods that each of some nodes takes; "" where they differ."""
    most = {node.allocatable.get(PODS, 0) for node in nodes}
    return f" ({most.pop()})" if len(most) == 1 else ""


def named(nodes: Sequence[Node]) -> str:
    """`n1 and n2`, `5 nodes (n1, n2, ...)`."""
    names = sorted(node.name for node in nodes)
    if len(names) <= 2:
        return " and ".join(names)
    return f"{plural(len(names), 'node')} ({brief(names)})"
