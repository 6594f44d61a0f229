"""The predicates plugin rule by rule: nodes and pods to the reasons of each node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capcard_sched.framework.api.node_view import Diagnosis, FilterResult, NodeView, PodSignature
from capcard_sched.model.refusal import Code
from capcard_sched.testing import Harness, hooks_of

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: gang
  - name: predicates
    arguments: {{{arguments}}}
"""
CORDONED = "node(s) were unschedulable"
SELECTOR = "node(s) didn't match Pod's node affinity/selector"
PORTS = "node(s) didn't have free ports for the requested pod ports"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
REPELLED = "node(s) didn't satisfy existing pods anti-affinity rules"

WEB = {"matchLabels": {"app": "web"}}
DB = {"matchLabels": {"app": "db"}}


def cluster(arguments: str = "") -> Harness:
    h = Harness(CONF.format(arguments=arguments))
    h.queue("q")
    h.group("g")
    return h


def zones(h: Harness, **by_node: str | None) -> None:
    """Nodes by name with their zone; None leaves the label out."""
    for name, zone in by_node.items():
        h.node(name, labels={} if zone is None else {"zone": zone})


def signature(h: Harness, pod: str) -> PodSignature:
    session = h.last_session
    return session.engine.signature(session.queues["q"], h.task(pod))


def rejections(h: Harness, pod: str, *, fresh: bool = True) -> dict[str, list[str]]:
    """Per node the reasons against the pod, in the order they were given."""
    return {name: reasons for name, (reasons, _) in judged(h, pod, fresh=fresh).items()}


def codes(h: Harness, pod: str) -> dict[str, Code]:
    return {name: code for name, (_, code) in judged(h, pod).items()}


def judged(h: Harness, pod: str, *, fresh: bool = True) -> dict[str, tuple[list[str], Code]]:
    """One diagnosis per node, and a check that all nodes at once, in a plain verdict, come to the same."""
    if fresh:
        h.session()
    session = h.last_session
    plugin, pod_signature = h.plugin("predicates"), signature(h, pod)
    found: dict[str, tuple[list[str], Code]] = {}
    for row, name in enumerate(session.nodes.names):
        diagnosis = Diagnosis(1)
        run_filter(plugin, pod_signature, NodeView(session.nodes, np.array([row])), diagnosis)
        assert all(count == 1 for count in diagnosis.reasons.values())
        found[name] = (list(diagnosis.reasons), Code(int(diagnosis.codes[0])))
    verdict = FilterResult(len(found))
    # That a pod slot is left is part of the resource fit, which comes first.
    verdict.reject(session.all_rows().future_idle[:, 2] < 1, Code.UNSCHEDULABLE, "fit")
    run_filter(plugin, pod_signature, session.all_rows(), verdict)
    assert verdict.ok.tolist() == [not reasons for reasons, _ in found.values()]
    return found


def run_filter(plugin: Any, pod_signature: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
    hooks = hooks_of(plugin, pod_signature)
    hooks.filter_static(rows, verdict)
    hooks.filter_rows(rows, verdict)
    hooks.filter_by_others(rows, verdict)


def term(selector: dict[str, Any] | None, key: str = "zone", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"topologyKey": key, **more}
    if selector is not None:
        found["labelSelector"] = selector
    return found


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def apart(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def spread(selector: dict[str, Any] | None = WEB, key: str = "zone", skew: int = 1, **more: Any) -> dict[str, Any]:
    constraint = {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **more}
    if selector is not None:
        constraint["labelSelector"] = selector
    return constraint


def ports(*wanted: tuple[int, str, str]) -> dict[str, Any]:
    return {
        "containers": [
            {
                "name": "main",
                "resources": {"requests": {"cpu": "1"}},
                "ports": [
                    {"containerPort": 1, "hostPort": port, "protocol": protocol, "hostIP": address}
                    for port, protocol, address in wanted
                ],
            }
        ]
    }


# --- the node alone -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tolerations", "reasons"),
    [
        ([], [CORDONED]),
        ([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}], []),
        ([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoExecute"}], [CORDONED]),
        ([{"operator": "Exists"}], []),
    ],
)
def test_a_cordoned_node_takes_only_pods_that_tolerate_its_taint(
    tolerations: list[dict[str, str]], reasons: list[str]
) -> None:
    h = cluster("predicate.TaintTolerationEnable: false, predicate.NodeAffinityEnable: false")
    h.node("n", unschedulable=True)
    h.pod("p", tolerations=tolerations)
    assert rejections(h, "p") == {"n": reasons}


TAINTS = [
    {"key": "a", "value": "1", "effect": "PreferNoSchedule"},
    {"key": "b", "value": "2", "effect": "NoSchedule"},
    {"key": "c", "value": "", "effect": "NoExecute"},
]


@pytest.mark.parametrize(
    ("tolerations", "reasons"),
    [
        ([], ["node(s) had untolerated taint {b: 2}"]),
        ([{"key": "b", "operator": "Equal", "value": "2"}], ["node(s) had untolerated taint {c: }"]),
        ([{"key": "b", "value": "3"}], ["node(s) had untolerated taint {b: 2}"]),
        ([{"key": "b", "operator": "Exists", "effect": "NoExecute"}], ["node(s) had untolerated taint {b: 2}"]),
        ([{"key": "b", "operator": "Exists"}, {"key": "c", "operator": "Exists"}], []),
        ([{"operator": "Exists"}], []),
    ],
)
def test_the_first_untolerated_taint_in_list_order_is_named(
    tolerations: list[dict[str, str]], reasons: list[str]
) -> None:
    h = cluster()
    h.node("n", taints=TAINTS)
    h.node("plain")
    h.pod("p", tolerations=tolerations)
    assert rejections(h, "p") == {"n": reasons, "plain": []}


def test_reasons_of_many_nodes_are_counted_by_text() -> None:
    h = cluster()
    h.node("a", taints=[{"key": "x", "value": "1", "effect": "NoSchedule"}])
    h.node("b", taints=[{"key": "y", "value": "1", "effect": "NoExecute"}])
    h.node("c", taints=[{"key": "y", "value": "1", "effect": "NoExecute"}, *TAINTS])
    h.node("d", unschedulable=True)
    h.pod("p")
    session = h.session()
    diagnosis = Diagnosis(4)
    run_filter(h.plugin("predicates"), signature(h, "p"), session.all_rows(), diagnosis)
    assert diagnosis.reasons == {
        CORDONED: 1,
        "node(s) had untolerated taint {x: 1}": 1,
        "node(s) had untolerated taint {y: 1}": 2,
    }


def node_terms(*terms: dict[str, Any]) -> dict[str, Any]:
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        }
    }


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def where(*expressions: dict[str, Any], fields: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"matchExpressions": list(expressions), "matchFields": list(fields)}


@pytest.mark.parametrize(
    ("spec", "passing"),
    [
        pytest.param({"nodeSelector": {"disk": "ssd"}}, "a", id="selector"),
        pytest.param({"nodeSelector": {"disk": "ssd", "gen": "7"}}, "", id="selectors are anded"),
        pytest.param({"nodeSelector": {"nowhere": "x"}}, "", id="unknown key"),
        pytest.param(node_terms(where(expression("disk", "In", "ssd", "hdd"))), "ab", id="In"),
        pytest.param(node_terms(where(expression("disk", "NotIn", "ssd"))), "bc", id="NotIn passes without the label"),
        pytest.param(node_terms(where(expression("disk", "Exists"))), "ab", id="Exists"),
        pytest.param(node_terms(where(expression("disk", "DoesNotExist"))), "c", id="DoesNotExist"),
        pytest.param(node_terms(where(expression("gen", "Gt", "5"))), "b", id="Gt"),
        pytest.param(node_terms(where(expression("gen", "Lt", "7"))), "a", id="Lt skips what is no number"),
        pytest.param(node_terms(where(expression("gen", "Gt", "five"))), "", id="Gt with no number"),
        pytest.param(node_terms(where(expression("disk", "In"))), "", id="In without values"),
        pytest.param(node_terms(where(expression("disk", "Near", "ssd"))), "", id="unknown operator"),
        pytest.param(
            node_terms(where(expression("disk", "Exists"), expression("gen", "In", "7"))), "b", id="expressions anded"
        ),
        pytest.param(
            node_terms(where(expression("disk", "In", "ssd")), where(expression("gen", "In", "x"))),
            "ac",
            id="terms ored",
        ),
        pytest.param(node_terms({}), "", id="empty term"),
        pytest.param(node_terms({}, where(expression("disk", "Exists"))), "ab", id="empty term beside another"),
        pytest.param(node_terms(), "", id="no terms"),
        pytest.param(node_terms(where(fields=(expression("metadata.name", "In", "b"),))), "b", id="field In"),
        pytest.param(node_terms(where(fields=(expression("metadata.name", "NotIn", "b"),))), "ac", id="field NotIn"),
        pytest.param(node_terms(where(fields=(expression("metadata.uid", "In", "b"),))), "", id="unknown field"),
        pytest.param(node_terms(where(fields=(expression("metadata.name", "In", "nobody"),))), "", id="unknown name"),
        pytest.param(
            {"nodeSelector": {"disk": "hdd"}, **node_terms(where(expression("gen", "Gt", "5")))},
            "b",
            id="selector and affinity are anded",
        ),
    ],
)
def test_node_selector_and_affinity(spec: dict[str, Any], passing: str) -> None:
    h = cluster()
    h.node("a", labels={"disk": "ssd", "gen": "5"})
    h.node("b", labels={"disk": "hdd", "gen": "7"})
    h.node("c", labels={"gen": "x"})
    h.pod("p", **spec)
    assert judged(h, "p") == {
        name: ([], Code.SUCCESS) if name in passing else ([SELECTOR], Code.UNRESOLVABLE) for name in "abc"
    }


# --- host ports -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "held", "reasons"),
    [
        ((80, "TCP", "127.0.0.1"), (80, "TCP", "0.0.0.0"), [PORTS]),
        ((80, "TCP", ""), (80, "TCP", "10.0.0.1"), [PORTS]),
        ((80, "TCP", "10.0.0.2"), (80, "TCP", "10.0.0.1"), []),
        ((80, "TCP", "10.0.0.1"), (80, "TCP", "10.0.0.1"), [PORTS]),
        ((80, "UDP", ""), (80, "TCP", ""), []),
        ((81, "TCP", ""), (80, "TCP", ""), []),
    ],
)
def test_host_ports_conflict_by_address_protocol_and_port(
    wanted: tuple[int, str, str], held: tuple[int, str, str], reasons: list[str]
) -> None:
    h = cluster()
    h.node("n")
    h.node("other")
    h.pod("holder", group=None, node="n", **ports(held))
    h.pod("p", **ports(wanted))
    assert rejections(h, "p") == {"n": reasons, "other": []}
    if reasons:
        assert codes(h, "p")["n"] is Code.UNSCHEDULABLE


def test_a_pod_with_host_ports_conflicts_with_its_own_sibling_planned_ahead() -> None:
    h = cluster()
    h.node("n")
    h.pod("resident", group=None, node="n")
    h.pod("p", **ports((80, "TCP", "")))
    h.pod("plain")
    session = h.session()
    table = session.nodes
    rows = np.zeros(3, dtype=np.intp)
    for name, expected in (("p", [True, False, False]), ("plain", [True, True, True])):
        pod_signature = signature(h, name)
        used = table.used[rows] + np.arange(3)[:, None] * pod_signature.cls.request
        verdict = FilterResult(3)
        hooks_of(h.plugin("predicates"), pod_signature).filter_rows(NodeView(table, rows, used=used), verdict)
        assert verdict.ok.tolist() == expected


# --- pod affinity ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "matching"),
    [
        pytest.param({}, "own", id="own namespace by default"),
        pytest.param({"namespaces": ["other"]}, "other", id="named"),
        pytest.param({"namespaceSelector": {}}, "own other third", id="empty selector is every namespace"),
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "third"}}, "namespaces": ["other"]},
            "other third",
            id="union of names and selector",
        ),
    ],
)
def test_namespaces_of_a_term(more: dict[str, Any], matching: str) -> None:
    h = cluster()
    zones(h, own="1", other="2", third="3")
    for name, namespace in (("own", "default"), ("other", "other"), ("third", "third")):
        h.pod(f"web-{name}", group=None, node=name, namespace=namespace, labels={"app": "web"})
    h.pod("p", **apart(term(WEB, **more)))
    assert rejections(h, "p") == {
        name: [ANTI_AFFINITY] if name in matching.split() else [] for name in ("other", "own", "third")
    }


def test_malformed_terms_reject_the_pod_before_any_node_is_filtered() -> None:
    h = cluster()
    zones(h, a="a")
    h.pod("p", **near(term({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["x"]}]})))
    h.session()
    refusal = h.plugin("predicates").pre_predicate(signature(h, "p"))
    assert (refusal.hook, refusal.plugin, refusal.code) == ("pre_predicate", "predicates", Code.UNRESOLVABLE)
    assert refusal.message.startswith("plugin InterPodAffinity pre-predicates failed parsing pod: ")
    assert "Like" in refusal.message


def test_pod_affinity_is_not_checked_when_switched_off() -> None:
    h = cluster("predicate.PodAffinityEnable: false")
    zones(h, a="a")
    h.pod("loner", group=None, node="a", **apart(term(WEB)))
    h.pod("p", labels={"app": "web"}, **near(term(DB)))
    assert rejections(h, "p") == {"a": []}
    assert signature(h, "p").context("predicates") is None


# --- profiles -------------------------------------------------------------------------------------------------------


def test_labels_do_not_split_signatures_while_no_pod_has_terms() -> None:
    h = cluster()
    zones(h, a="a")
    h.pod("p", labels={"app": "web"})
    h.pod("q", labels={"app": "db"})
    h.session()
    assert signature(h, "p") is signature(h, "q")
    assert not hooks_of(h.plugin("predicates"), signature(h, "p")).reads_other_nodes


def test_labels_split_profiles_only_by_the_terms_they_meet() -> None:
    h = cluster()
    zones(h, a="a")
    h.pod("loner", group=None, node="a", **apart(term(WEB)))
    h.pod("p", labels={"app": "web", "index": "1"})
    h.pod("p2", labels={"index": "2", "app": "web"})
    h.pod("q", labels={"app": "db"})
    h.session()
    plugin = h.plugin("predicates")
    assert signature(h, "p") is signature(h, "p2")
    assert signature(h, "p") is not signature(h, "q")
    assert hooks_of(plugin, signature(h, "p")).reads_other_nodes
    assert not hooks_of(plugin, signature(h, "q")).reads_other_nodes


def test_labels_do_not_matter_again_once_the_pods_with_terms_are_deleted() -> None:
    h = cluster()
    zones(h, a="a")
    h.pod("loner", group=None, node="a", **apart(term(WEB)))
    h.pod("p", labels={"app": "web"})
    assert rejections(h, "p") == {"a": [REPELLED]}
    h.delete_pod("loner")
    assert rejections(h, "p") == {"a": []}
    assert signature(h, "p").context("predicates") is None
