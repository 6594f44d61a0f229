"""Array results equal a plain evaluation of every pair of pod and node, however the pods were placed.

The evaluation here is written from the rules of Kubernetes over the objects as users write them; it shares nothing
with the plugins.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.node_view import Diagnosis, NodeView
from capcard_sched.framework.session.session import Session
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.deltas import ObjectGone
from capcard_sched.testing import Harness, hooks_of
from tests import objects

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: gang
  - name: predicates
  - name: nodeorder
    arguments:
      leastrequested.weight: 0
      balancedresource.weight: 0
      imagelocality.weight: 0
      nodeaffinity.weight: 3
      podaffinity.weight: 5
      tainttoleration.weight: 7
      podtopologyspread.weight: 11
"""
Object = dict[str, Any]
#: Labels of the namespaces that exist in the cluster at hand.
NAMESPACES: dict[str, dict[str, str]] = {}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

# --- the plain evaluation -------------------------------------------------------------------------------------------


def holds(expression: Object, labels: dict[str, str]) -> bool:
    value, values, operator = labels.get(expression["key"]), expression.get("values", []), expression["operator"]
    if operator in ("In", "NotIn"):
        return bool((value in values) == (operator == "In"))
    if operator in ("Exists", "DoesNotExist"):
        return bool((value is not None) == (operator == "Exists"))
    return value is not None and value.isdigit() and int(value) > int(values[0])


def selects(selector: Object | None, labels: dict[str, str]) -> bool:
    if selector is None:
        return False
    equal = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return equal and all(holds(each, labels) for each in selector.get("matchExpressions", []))


def selects_node(term: Object, node: Object) -> bool:
    return bool(term["matchExpressions"]) and all(holds(each, node["labels"]) for each in term["matchExpressions"])


def node_passes(pod: Object, node: Object) -> bool:
    if any(node["labels"].get(key) != value for key, value in pod["nodeSelector"].items()):
        return False
    required = pod["affinity"].get("nodeAffinity", {}).get(REQUIRED)
    return required is None or any(selects_node(term, node) for term in required["nodeSelectorTerms"])


def tolerates(pod: Object, taint: Object) -> bool:
    return any(
        (each["operator"] == "Exists" or each.get("value", "") == taint["value"])
        and each.get("effect") in {None, taint["effect"]}
        and each["key"] == taint["key"]
        for each in pod["tolerations"]
    )


def repelling_taint(pod: Object, node: Object) -> Object | None:
    hard = [taint for taint in node["taints"] if taint["effect"] != "PreferNoSchedule"]
    return next((taint for taint in hard if not tolerates(pod, taint)), None)


def means(owner: Object, term: Object, pod: Object) -> bool:
    """Whether a term of `owner` means `pod`."""
    named = term.get("namespaces", [])
    by_label = term.get("namespaceSelector")
    there = {**NAMESPACES.get(pod["namespace"], {}), "kubernetes.io/metadata.name": pod["namespace"]}
    spaces = named or ([] if by_label is not None else [owner["namespace"]])
    revisions = all(
        pod["labels"].get(key) == owner["labels"][key]
        for key in term.get("matchLabelKeys", [])
        if key in owner["labels"]
    )
    return (
        (selects(by_label, there) or pod["namespace"] in spaces)
        and selects(term.get("labelSelector"), pod["labels"])
        and revisions
    )


def terms(pod: Object, side: str, kind: str) -> list[Any]:
    return list(pod["affinity"].get(side, {}).get(kind, []))


def same_domain(one: Object, other: Object, key: str) -> bool:
    return key in one["labels"] and one["labels"].get(key) == other["labels"].get(key)


Standing = list[tuple[Object, Object]]  # (pod, its node)


def counted(pod: Object, constraint: Object, other: Object) -> bool:
    selector = constraint.get("labelSelector") or {}
    narrowed = any(key in pod["labels"] for key in constraint.get("matchLabelKeys", []))
    if (
        not (selector.get("matchLabels") or selector.get("matchExpressions") or narrowed)
        or other["leaving"]
        or other["namespace"] != pod["namespace"]
    ):
        return False
    return means(pod, {**constraint, "namespaces": [pod["namespace"]]}, other)


def included(pod: Object, constraints: list[Object], constraint: Object, node: Object) -> bool:
    if any(each["topologyKey"] not in node["labels"] for each in constraints):
        return False
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and not node_passes(pod, node):
        return False
    return constraint.get("nodeTaintsPolicy", "Ignore") == "Ignore" or repelling_taint(pod, node) is None


def ports_taken(pod: Object, node: Object, standing: Standing) -> bool:
    return any(place is node and pod["port"] and other["port"] == pod["port"] for other, place in standing)


def affinity_reason(pod: Object, node: Object, standing: Standing) -> str | None:
    near = terms(pod, "podAffinity", REQUIRED)
    if near:
        matching = [place for other, place in standing if all(means(pod, term, other) for term in near)]
        anywhere = any(term["topologyKey"] in place["labels"] for place in matching for term in near)
        if not anywhere and all(means(pod, term, pod) for term in near):
            fits = all(term["topologyKey"] in node["labels"] for term in near)
        else:
            fits = all(any(same_domain(node, place, term["topologyKey"]) for place in matching) for term in near)
        if not fits:
            return "node(s) didn't match pod affinity rules"
    for term in terms(pod, "podAntiAffinity", REQUIRED):
        if any(means(pod, term, other) and same_domain(node, place, term["topologyKey"]) for other, place in standing):
            return "node(s) didn't match pod anti-affinity rules"
    for other, place in standing:
        for term in terms(other, "podAntiAffinity", REQUIRED):
            if means(other, term, pod) and same_domain(node, place, term["topologyKey"]):
                return "node(s) didn't satisfy existing pods anti-affinity rules"
    return None


def spread_reason(pod: Object, node: Object, nodes: list[Object], standing: Standing) -> str | None:
    constraints = [each for each in pod["spread"] if each["whenUnsatisfiable"] == "DoNotSchedule"]
    for constraint in constraints:
        key = constraint["topologyKey"]
        if key not in node["labels"]:
            return "node(s) didn't match pod topology spread constraints (missing required label)"
        domains: dict[str, int] = {}
        for place in nodes:
            if included(pod, constraints, constraint, place):
                here = sum(where is place and counted(pod, constraint, other) for other, where in standing)
                domains[place["labels"][key]] = domains.get(place["labels"][key], 0) + here
        least = min(domains.values()) if len(domains) >= max(1, constraint.get("minDomains") or 1) else 0
        itself = means(pod, {**constraint, "namespaces": [pod["namespace"]]}, pod)
        if domains.get(node["labels"][key], 0) + itself - least > constraint["maxSkew"]:
            return "node(s) didn't match pod topology spread constraints"
    return None


def reasons(pod: Object, node: Object, nodes: list[Object], standing: Standing) -> list[str]:
    found = ["node(s) pod number exceeded"] if sum(place is node for _, place in standing) >= node["pods"] else []
    if node["unschedulable"] and not tolerates(
        pod, {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
    ):
        return [*found, "node(s) were unschedulable"]
    if not node_passes(pod, node):
        return [*found, "node(s) didn't match Pod's node affinity/selector"]
    taint = repelling_taint(pod, node)
    if taint is not None:
        return [*found, f"node(s) had untolerated taint {{{taint['key']}: {taint['value']}}}"]
    if ports_taken(pod, node, standing):
        found.append("node(s) didn't have free ports for the requested pod ports")
    reason = affinity_reason(pod, node, standing)
    if reason is not None:
        found.append(reason)
        if reason == "node(s) didn't match pod affinity rules":
            return found
    reason = spread_reason(pod, node, nodes, standing)
    return found if reason is None else [*found, reason]


def batch_scores(pod: Object, nodes: list[Object], standing: Standing) -> list[int]:
    """Weighted taint, pod affinity and spread scores; what is the same for all nodes is left out."""
    parts = [(7, taint_scores(pod, nodes)), (5, affinity_scores(pod, nodes, standing))]
    parts.append((11, spread_scores(pod, nodes, standing)))
    return [sum(weight * part[i] for weight, part in parts if len(set(part)) > 1) for i in range(len(nodes))]


def taint_scores(pod: Object, nodes: list[Object]) -> list[int]:
    raw = [
        sum(taint["effect"] == "PreferNoSchedule" and not tolerates(pod, taint) for taint in node["taints"])
        for node in nodes
    ]
    return [100 - 100 * each // max(raw) if max(raw) else 100 for each in raw]


def affinity_scores(pod: Object, nodes: list[Object], standing: Standing) -> list[int]:
    raw = [0] * len(nodes)
    for side, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
        for other, place in standing:
            pairs = [(pod, each, other) for each in terms(pod, side, PREFERRED)]
            pairs += [(other, each, pod) for each in terms(other, side, PREFERRED)]
            for owner, each, target in pairs:
                term = each["podAffinityTerm"]
                if means(owner, term, target):
                    for i, node in enumerate(nodes):
                        if same_domain(node, place, term["topologyKey"]):
                            raw[i] += sign * each["weight"]
    low, high = min(raw), max(raw)
    return [100 * (each - low) // (high - low) if high > low else 0 for each in raw]


def spread_scores(pod: Object, nodes: list[Object], standing: Standing) -> list[int]:
    constraints = [each for each in pod["spread"] if each["whenUnsatisfiable"] == "ScheduleAnyway"]
    if not constraints:
        return [0] * len(nodes)
    kept = [node for node in nodes if all(each["topologyKey"] in node["labels"] for each in constraints)]
    raw: dict[str, int] = {}
    for node in kept:
        total = 0.0
        for constraint in constraints:
            key = constraint["topologyKey"]
            host = key == "kubernetes.io/hostname"
            size = len({each["labels"][key] for each in kept})
            there = sum(
                same_domain(node, place, key)
                and counted(pod, constraint, other)
                and (host or included(pod, constraints, constraint, place))
                for other, place in standing
            )
            total += there * math.log(size + 2) + constraint["maxSkew"] - 1
        raw[node["name"]] = math.floor(total + 0.5)
    low, high = min(raw.values(), default=0), max(raw.values(), default=0)
    scores = {name: 100 * (high + low - amount) // high if high else 100 for name, amount in raw.items()}
    return [scores.get(node["name"], 0) for node in nodes]


def preferred_nodes(pod: Object, node: Object) -> int:
    found = terms(pod, "nodeAffinity", PREFERRED)
    return sum(3 * each["weight"] for each in found if selects_node(each["preference"], node))


# --- random clusters ------------------------------------------------------------------------------------------------


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Object]:
    """Objects with these fields; a value of None leaves its field out."""
    return st.fixed_dictionaries(fields).map(lambda found: {key: found[key] for key in found if found[key] is not None})


def several(items: st.SearchStrategy[Any], most: int = 2, least: int = 0) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, min_size=least, max_size=most)


pick = st.sampled_from
keys, effects = pick(["zone", "rack", "kubernetes.io/hostname"]), pick(["NoSchedule", "NoExecute", "PreferNoSchedule"])
node_objects = some(
    labels=some(zone=pick([None, "a", "b"]), rack=pick([None, *"123"]), gen=pick([None, "1", "5", "x"])),
    taints=several(some(key=pick("kl"), value=pick(["", "1"]), effect=effects)),
    unschedulable=pick([False] * 5 + [True]),
    pods=st.integers(1, 6),
)
pod_labels = some(app=pick([None, *"xy"]), rev=pick([None, *"12"]))


def expressions(*names: str) -> st.SearchStrategy[Object]:
    values = st.lists(pick(["a", "b", "1", "2", "x", "y"]), min_size=1, max_size=2, unique=True)
    return st.one_of(
        some(key=pick(names), operator=pick(["In", "NotIn"]), values=values),
        some(key=pick(names), operator=pick(["Exists", "DoesNotExist"])),
    )


greater = some(key=st.just("gen"), operator=st.just("Gt"), values=st.just(["3"]))
selectors: st.SearchStrategy[Object | None] = st.one_of(
    pick([None, {}]), some(matchLabels=pod_labels), some(matchExpressions=several(expressions("app", "rev")))
)
namespace_selectors = st.one_of(
    pick([None, None, {}, {"matchLabels": {"kubernetes.io/metadata.name": "other"}}]),
    some(matchExpressions=several(expressions("team", "rev"), least=1)),
)
namespace_labels = st.one_of(st.none(), some(team=pick([None, *"ab"]), rev=pick([None, *"12"])))
pod_terms = some(
    topologyKey=keys,
    labelSelector=selectors,
    namespaces=pick([None, None, ["default"], ["other"], ["default", "other"]]),
    namespaceSelector=namespace_selectors,
    matchLabelKeys=pick([None, None, ["rev"]]),
)
sides = some(
    **{REQUIRED: several(pod_terms, 1), PREFERRED: several(some(weight=st.integers(1, 100), podAffinityTerm=pod_terms))}
)
term_lists = some(matchExpressions=several(st.one_of(expressions("zone", "rack", "gen"), greater)))
node_affinities = some(
    **{
        REQUIRED: st.one_of(st.none(), some(nodeSelectorTerms=several(term_lists, least=1))),
        PREFERRED: several(some(weight=st.integers(1, 100), preference=term_lists)),
    }
)
constraints = some(
    maxSkew=st.integers(1, 2),
    topologyKey=keys,
    whenUnsatisfiable=pick(["DoNotSchedule", "ScheduleAnyway"]),
    labelSelector=selectors,
    minDomains=pick([None, None, 2, 3]),
    nodeAffinityPolicy=pick([None, "Honor", "Ignore"]),
    nodeTaintsPolicy=pick([None, "Honor", "Ignore"]),
    matchLabelKeys=pick([None, ["rev"]]),
)
tolerations = some(
    key=pick(["k", "l", "node.kubernetes.io/unschedulable"]),
    operator=pick(["Exists", "Equal"]),
    effect=st.one_of(st.none(), effects),
)
affinities = some(
    nodeAffinity=st.none() | node_affinities, podAffinity=st.none() | sides, podAntiAffinity=st.none() | sides
)
pod_objects = some(
    namespace=pick(["default", "other"]),
    labels=pod_labels,
    affinity=affinities,
    nodeSelector=some(zone=pick([None, *"ab"])),
    tolerations=several(tolerations),
    spread=several(constraints),
    port=pick([0, 0, 0, 80]),
)


def add_pod(h: Harness, name: str, pod: Object, node: str | None = None) -> None:
    container: Object = {"name": "main", "resources": {"requests": {"cpu": "1m"}}}
    if pod["port"]:
        container["ports"] = [{"containerPort": 1, "hostPort": pod["port"], "protocol": "TCP"}]
    fields = {key: pod[key] for key in ("namespace", "labels", "affinity", "nodeSelector", "tolerations")}
    group = f"g-{pod['namespace']}"
    h.pod(name, group=group, node=node, topologySpreadConstraints=pod["spread"], containers=[container], **fields)


def compare(h: Harness, session: Session, name: str, pod: Object, nodes: list[Object], standing: Standing) -> None:
    signature = session.engine.signature(session.queues["q"], h.task(name, namespace=pod["namespace"]))
    predicates, nodeorder = h.plugin("predicates"), h.plugin("nodeorder")
    assert predicates.pre_predicate(signature) is None
    for row, node in enumerate(nodes):
        diagnosis = Diagnosis(1)
        hooks_of(predicates, signature).diagnose(NodeView(session.nodes, np.array([row])), diagnosis)
        assert list(diagnosis.reasons) == reasons(pod, node, nodes, standing), (name, node)
    rows = session.all_rows()
    given = hooks_of(nodeorder, signature).with_comparing_scores(rows, np.zeros(len(nodes))).tolist()
    assert given == batch_scores(pod, nodes, standing), name
    static = nodeorder.score_spec(signature, rows)
    given = [0] * len(nodes) if static is None else static.tolist()
    assert given == [preferred_nodes(pod, node) for node in nodes], name
    if not hooks_of(predicates, signature).reads_other_nodes:
        # Declared to depend on no other node: no existing pod may change the result.
        for node in nodes:
            assert affinity_reason(pod, node, standing) is None
            assert spread_reason(pod, node, nodes, standing) is None


def relabel(h: Harness, name: str, labels: dict[str, str] | None) -> None:
    """Give a namespace other labels, or, for None, take it away."""
    if labels is None:
        NAMESPACES.pop(name, None)
        h.apply(ObjectGone("Namespace", "", name))
    else:
        NAMESPACES[name] = labels
        h.apply(objects.namespace(name, labels))


@given(
    nodes=st.lists(node_objects, min_size=1, max_size=5),
    residents=st.lists(st.tuples(pod_objects, st.integers(0, 4), st.sampled_from([False] * 4 + [True])), max_size=5),
    pending=st.lists(st.tuples(pod_objects, st.integers(0, 4)), min_size=1, max_size=3),
    spaces=st.lists(st.tuples(st.sampled_from(["default", "other"]), namespace_labels), min_size=2, max_size=4),
)
def test_answers_equal_a_plain_evaluation(
    nodes: list[Object],
    residents: list[tuple[Object, int, bool]],
    pending: list[tuple[Object, int]],
    spaces: list[tuple[str, dict[str, str] | None]],
) -> None:
    h = Harness(CONF)
    h.queue("q")
    NAMESPACES.clear()
    relabel(h, *spaces[0])
    for namespace in ("default", "other"):
        h.group(f"g-{namespace}", namespace=namespace)
    for index, node in enumerate(nodes):
        node["name"] = f"n{index}"
        h.node(node["name"], **{key: value for key, value in node.items() if key != "name"} | {"cpu": "64"})
        node["labels"]["kubernetes.io/hostname"] = node["name"]
    standing: Standing = []
    evictable: list[tuple[str, Object, Object]] = []
    for index, (pod, where, leaving) in enumerate(residents):
        node = nodes[where % len(nodes)]
        add_pod(h, f"r{index}", pod, node["name"])
        pod["leaving"] = leaving
        if leaving:
            h.terminate(f"r{index}", namespace=pod["namespace"])
        else:
            evictable.append((f"r{index}", pod, node))
        standing.append((pod, node))
    for index, (pod, _) in enumerate(pending):
        pod["leaving"] = False
        add_pod(h, f"p{index}", pod)
    for node in nodes:
        # Leaving pods do not fill a node (test_leaving_pods_do_not_fill_a_node).
        node["pods"] += sum(place is node and pod["leaving"] for pod, place in standing)

    def compare_all() -> None:
        for index, (pod, _) in enumerate(pending):
            if h.task(f"p{index}", namespace=pod["namespace"]).node is None:
                compare(h, session, f"p{index}", pod, nodes, standing)

    session = h.session()
    compare_all()

    # Place the pods one by one on their drawn nodes, evict an existing pod, and undo everything.
    before = list(standing)
    statement = Statement(session)
    for index, (pod, where) in enumerate(pending[1:], start=1):
        task, node = h.task(f"p{index}", namespace=pod["namespace"]), nodes[where % len(nodes)]
        assert task.job is not None
        statement.allocate(task.job, [task], [session.nodes.by_name[node["name"]]])
        standing.append((pod, node))
        compare_all()
    if evictable:
        name, pod, node = evictable[0]
        statement.evict(h.task(name, namespace=pod["namespace"]), "test")
        standing.remove((pod, node))
        compare_all()
    statement.discard()
    standing[:] = before
    compare_all()

    # Incremental sessions give the same result.
    if evictable:
        name, pod, node = evictable[0]
        h.delete_pod(name, namespace=pod["namespace"])
        standing.remove((pod, node))
    extra = pending[0][0]
    add_pod(h, "late", extra, nodes[0]["name"])
    standing.append((extra, nodes[0]))
    session = h.session()
    compare_all()
    for space in spaces[1:]:
        relabel(h, *space)
        session = h.session()
        compare_all()
    nodes[0]["labels"]["zone"] = "b"
    first = nodes[0]
    h.node(
        first["name"],
        labels=first["labels"],
        taints=first["taints"],
        unschedulable=first["unschedulable"],
        pods=first["pods"] - sum(place is first and pod["leaving"] for pod, place in standing),
    )
    session = h.session()
    compare_all()
