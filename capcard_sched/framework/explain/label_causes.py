"""Which labels, and which pods, keep a pod off its nodes: the reasons of the filters name none.

Of node selectors and node affinity, of the topologies of spread constraints, and of the pods that affinity selects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from capcard_sched.framework.explain.capacity import workload_name
from capcard_sched.framework.toolkit.pod_selectors import SelectorError, term_selector
from capcard_sched.model.node_labels import absent, absent_of, pairs_text, requirement_text, selector_text
from capcard_sched.model.objects import LabelSelector, Requirement
from capcard_sched.model.quoting import brief, plural
from capcard_sched.model.selectors import matches_node_selector, untolerated_taint
from capcard_sched.model.status import COMPLETED_STATUSES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from capcard_sched.framework.session.snapshot import Snapshot
    from capcard_sched.framework.toolkit.pod_selectors import PodSelector
    from capcard_sched.model.job import Node, Task
    from capcard_sched.model.objects import NodeSelector, PodAffinityTerm, TopologySpreadConstraint
    from capcard_sched.model.task_class import TaskClass

#: The beginning of the reason of nodes without a pod that the affinity of another selects.
NO_AFFINE_POD: Final = "node(s) didn't match pod affinity rules"
_EVERY: Final = LabelSelector()


def demands(cls: TaskClass, nodes: Sequence[Node]) -> str:
    """`the node selector pool=training or the node affinity zone in (a, b)`: what some of the nodes do not match."""
    found, wanted, selector = [], cls.node_selector, _required(cls)
    if any(not wanted.items() <= node.labels.items() for node in nodes):
        found.append(f"the node selector {pairs_text(wanted)}")
    if selector is not None and any(not matches_node_selector(selector, node.labels, node.name) for node in nodes):
        found.append(f"the node affinity {selector_text(selector)}")
    return " or ".join(found) or "the node selector or node affinity of the pod"


def absent_demands(snapshot: Snapshot, cls: TaskClass) -> str:
    """`, which no node has; did you mean pool=training?`, or with the labels; "" if nodes have each of them."""
    nodes, selector = {name: node.labels for name, node in snapshot.nodes.by_name.items()}, _required(cls)
    found = absent_of(cls.node_selector, selector, nodes)
    demanded = pairs_text(cls.node_selector) if selector is None else selector_text(selector)
    if [one.text for one in found] == [demanded] and not (selector is not None and cls.node_selector):
        return f", which no node has{found[0].hint}"
    return "".join(f"; no node has {one.text}{one.hint}" for one in found)


def spread_text(snapshot: Snapshot, cls: TaskClass) -> str:
    """` (zone, maxSkew 1)` of the constraint of a pod; with `minDomains` where fewer domains exist. "" for several."""
    hard = [one for one in cls.spread if one.when_unsatisfiable == "DoNotSchedule"]
    if len(hard) != 1:
        return ""
    few = f", minDomains {hard[0].min_domains}" if _missing_domains(snapshot, cls, hard[0]) else ""
    return f" ({hard[0].topology_key}, maxSkew {hard[0].max_skew}{few})"


def spread_cause(snapshot: Snapshot, cls: TaskClass) -> str:
    """The end of a sentence about a constraint: a topology that no node has, or fewer domains than `minDomains`."""
    hard = [one for one in cls.spread if one.when_unsatisfiable == "DoNotSchedule"]
    missing = _absent_topologies(snapshot, [one.topology_key for one in hard])
    if missing or len(hard) != 1 or not (domains := _missing_domains(snapshot, cls, hard[0])):
        return missing
    key, most = hard[0].topology_key, plural(hard[0].max_skew, "pod")
    exist = "domain exists" if domains == 1 else "domains exist"
    return f"; {domains} {key} {exist}, and with fewer than {hard[0].min_domains} each takes {most}"


def _missing_domains(snapshot: Snapshot, cls: TaskClass, one: TopologySpreadConstraint) -> int:
    """The domains of a constraint, if they are fewer than `minDomains`; 0 otherwise."""
    found, selector = set(), _required(cls)
    for node in snapshot.nodes.by_name.values() if one.min_domains else ():
        matches = cls.node_selector.items() <= node.labels.items() and matches_node_selector(
            selector, node.labels, node.name
        )
        if one.node_affinity_policy == "Honor" and not matches:
            continue
        if one.node_taints_policy == "Honor" and untolerated_taint(node.taints, cls.tolerations) is not None:
            continue
        if one.topology_key in node.labels:
            found.add(node.labels[one.topology_key])
    return len(found) if len(found) < (one.min_domains or 0) else 0


def affinity_cause(snapshot: Snapshot, task: Task) -> str:
    """The end of a sentence about a required pod affinity: `; no pod of namespace ml has app=db`, or where they are."""
    terms = _terms(task)
    missing = _absent_topologies(snapshot, [term.topology_key for term in terms])
    if missing:
        return missing
    pods = [one for one in snapshot.tasks_by_uid.values() if one.status not in COMPLETED_STATUSES]
    chosen = set(pods)
    for selector in _selectors(task, terms):
        chosen = {one for one in chosen if selector.selects(one.namespace, one.labels, snapshot.namespaces)}
        if not chosen:
            return _without_pods(snapshot, selector, pods)
    chosen.discard(task)
    if not chosen:
        return ""
    placed = sorted((one for one in chosen if one.node is not None), key=lambda one: (one.namespace, one.name))
    if not placed:
        names = sorted({workload_name(one) for one in chosen})
        return f"; {brief(names)} {'is' if len(names) == 1 else 'are'} pending"
    own = [one for one in placed if one.job is not None and one.job is task.job]
    names = ["other pods of the job"] if own else []
    names += [workload_name(one) for one in placed if one not in own]
    on = brief(sorted({one.node.name for one in placed if one.node is not None}))
    names = list(dict.fromkeys(names))
    return f"; {brief(names)} {'is' if len(names) == 1 and not own else 'are'} on {on}"


def affine_nodes(snapshot: Snapshot, task: Task) -> frozenset[str]:
    """The nodes that share each topology of the required affinity of a pod with a placed pod that all terms select."""
    terms = _terms(task)
    selectors, known = list(_selectors(task, terms)), snapshot.namespaces
    placed = [
        one.node.labels
        for one in snapshot.tasks_by_uid.values()
        if one.node is not None
        and one.status not in COMPLETED_STATUSES
        and all(selector.selects(one.namespace, one.labels, known) for selector in selectors)
    ]
    domains = [{labels[term.topology_key] for labels in placed if term.topology_key in labels} for term in terms]
    return frozenset(
        node.name
        for node in snapshot.nodes.by_name.values()
        if all(node.labels.get(term.topology_key) in found for term, found in zip(terms, domains, strict=True))
    )


def awaits_pods(snapshot: Snapshot, task: Task) -> bool:
    """Whether a required affinity of a pod selects pods of others: a start depends on theirs."""
    terms = _terms(task)
    if not terms or _absent_topologies(snapshot, [term.topology_key for term in terms]):
        return False
    return not all(
        selector.selects(task.namespace, task.labels, snapshot.namespaces) for selector in _selectors(task, terms)
    )


def _required(cls: TaskClass) -> NodeSelector | None:
    affinity = cls.affinity.node_affinity if cls.affinity is not None else None
    return affinity.required if affinity is not None else None


def _terms(task: Task) -> Sequence[PodAffinityTerm]:
    side = task.cls.affinity.pod_affinity if task.cls.affinity is not None else None
    return (side.required or ()) if side is not None else ()


def _selectors(task: Task, terms: Sequence[PodAffinityTerm]) -> Iterator[PodSelector]:
    for term in terms:
        try:
            yield term_selector(term, task.namespace, task.labels)
        except SelectorError:
            continue  # the check of the pod reports it


def _absent_topologies(snapshot: Snapshot, keys: Sequence[str]) -> str:
    labels = [node.labels for node in snapshot.nodes.by_name.values()]
    found = absent([Requirement(key, "Exists") for key in dict.fromkeys(keys)], labels)
    return "".join(f"; no node has {one.text}{one.hint}" for one in found)


def _without_pods(snapshot: Snapshot, selector: PodSelector, pods: Collection[Task]) -> str:
    """That no pod has the labels of a selector; the similar labels of the pods in its namespaces follow."""
    wanted = (selector.selector.match_expressions or ()) if selector.selector is not None else ()
    anywhere = selector._replace(selector=_EVERY)
    labels = [one.labels for one in pods if anywhere.selects(one.namespace, one.labels, snapshot.namespaces)]
    hint = next((one.hint for one in absent(wanted, labels) if one.meant), "")
    of = f" of namespace {brief(selector.namespaces)}" if selector.namespaces else ""
    return f"; no known pod{of} has {', '.join(map(requirement_text, wanted)) or 'labels that it selects'}{hint}"
