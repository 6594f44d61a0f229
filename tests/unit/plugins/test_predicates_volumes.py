"""Claims and volumes in the predicates plugin: nodes, volumes, reasons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capcard_sched.framework.api.node_view import Diagnosis, FilterResult, NodeView, PodSignature
from capcard_sched.framework.api.plugin import Placement
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.deltas import BindFailed
from capcard_sched.model.refusal import Code
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness, hooks_of
from capcard_sched.testing.storage import labelled, on_nodes

CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: gang
  - name: predicates
    arguments: {{{arguments}}}
"""
ZONE = "topology.kubernetes.io/zone"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
NO_ZONE = "node(s) had no available volume zone"
UNREACHABLE = "node(s) didn't match PersistentVolume's node affinity"
UNAVAILABLE = "node(s) didn't find available persistent volumes to bind"
NO_CAPACITY = "node(s) did not have enough free storage"
OVER_LIMIT = "node(s) exceed max volume count"
FAILED = "plugin VolumeBinding pre-predicates failed "


def cluster(*nodes: str, arguments: str = "", **labels: dict[str, str]) -> Harness:
    h = Harness(CONF.format(arguments=arguments))
    h.queue("q")
    h.group("g")
    for name in nodes:
        h.node(name)
    for name, found in labels.items():
        h.node(name, labels=found)
    h.storage_class("local", provisioner="kubernetes.io/no-provisioner")
    h.storage_class("disk")
    h.storage_class("now", mode="Immediate")
    return h


def uses(*claims: str) -> dict[str, Any]:
    return {"volumes": [{"name": f"v{index}", "persistentVolumeClaim": {"claimName": name}}
                        for index, name in enumerate(claims)]}  # fmt: skip


def signature(h: Harness, pod: str) -> PodSignature:
    session = h.last_session
    return session.engine.signature(session.queues["q"], h.task(pod))


def rejections(h: Harness, pod: str, *, fresh: bool = True) -> dict[str, list[str]]:
    """Per node the reasons against the pod; and a check that all nodes at once come to the same."""
    if fresh:
        h.session()
    session = h.last_session
    plugin, pod_signature = h.plugin("predicates"), signature(h, pod)
    assert plugin.pre_predicate(pod_signature) is None
    found: dict[str, list[str]] = {}
    for row, name in enumerate(session.nodes.names):
        diagnosis = Diagnosis(1)
        run_filter(plugin, pod_signature, NodeView(session.nodes, np.array([row])), diagnosis)
        found[name] = list(diagnosis.reasons)
        assert not found[name] or (diagnosis.codes[0] == Code.UNSCHEDULABLE) == (found[name] == [OVER_LIMIT])
    verdict = FilterResult(len(found))
    run_filter(plugin, pod_signature, session.all_rows(), verdict)
    assert verdict.ok.tolist() == [not reasons for reasons in found.values()]
    return found


def run_filter(plugin: Any, pod_signature: PodSignature, rows: NodeView, verdict: FilterResult) -> None:
    hooks = hooks_of(plugin, pod_signature)
    hooks.filter_static(rows, verdict)
    hooks.filter_rows(rows, verdict)
    hooks.filter_by_others(rows, verdict)


def allowed(h: Harness, pod: str) -> str:
    return " ".join(name for name, reasons in rejections(h, pod).items() if not reasons)


# --- claims that keep their pod from every node ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        pytest.param(None, 'persistentvolumeclaim "data" not found', id="missing"),
        pytest.param(
            {"volume": "pv", "bound": False, "phase": "Lost"},
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "pv"',
            id="lost",
        ),
        pytest.param({"deleting": True}, 'persistentvolumeclaim "data" is being deleted', id="deleting"),
        pytest.param({"storage_class": "now"}, "pod has unbound immediate PersistentVolumeClaims", id="immediate"),
        pytest.param({}, "pod has unbound immediate PersistentVolumeClaims", id="no class"),
        pytest.param({"storage_class": "?"}, "pod has unbound immediate PersistentVolumeClaims", id="unknown class"),
        pytest.param(
            {"storage_class": "disk", "volume": "pv", "bound": False},
            "pod has unbound immediate PersistentVolumeClaims",
            id="names a volume it does not have yet",
        ),
        pytest.param(
            {"storage_class": "disk", "size": "1Gx"},
            'persistentvolumeclaim "data" cannot be read: spec.resources.requests[storage]: ',
            id="unreadable size",
        ),
    ],
)
def test_a_claim_that_allows_no_node(claim: dict[str, Any] | None, message: str) -> None:
    h = cluster("n1")
    if claim is not None:
        h.claim("data", **claim)
    h.pod("p", **uses("data"))
    h.step()
    assert h.pod_message("p").startswith(FAILED + message)
    assert not h.binds


def test_claims_of_one_name_in_two_namespaces_are_two() -> None:
    h = cluster("n1", "n2")
    h.group("g", namespace="other")
    for namespace, node in (("default", "n1"), ("other", "n2")):
        h.volume(f"pv-{namespace}", claim="data", namespace=namespace, affinity=on_nodes(node))
        h.claim("data", namespace=namespace, volume=f"pv-{namespace}")
        h.pod(f"p-{namespace}", namespace=namespace, **uses("data"))
    h.step()
    assert h.binds == {"p-default": "n1", "p-other": "n2"}


# --- bound claims ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({}, "a b none old", id="a volume without zone"),
        pytest.param({ZONE: "a"}, "a none", id="one zone; a node without any zone passes"),
        pytest.param({ZONE: "a__b"}, "a b none", id="several zones"),
        pytest.param({OLD_ZONE: "a"}, "a none", id="old label of the volume"),
        pytest.param({ZONE: "o"}, "none old", id="old label of the node"),
        pytest.param({ZONE: "a", REGION: "r"}, "a none", id="zone and region"),
        pytest.param({ZONE: "a", REGION: "x"}, "none", id="zone of another region"),
    ],
)
def test_volume_zones(labels: dict[str, str], expected: str) -> None:
    h = cluster(a={ZONE: "a", REGION: "r"}, b={ZONE: "b", REGION: "r"}, none={}, old={OLD_ZONE: "o"})
    h.volume("pv", claim="data", labels=labels)
    h.claim("data", volume="pv")
    h.pod("p", **uses("data"))
    found = rejections(h, "p")
    assert " ".join(sorted(name for name, reasons in found.items() if not reasons)) == expected
    assert {reason for reasons in found.values() for reason in reasons} <= {NO_ZONE}


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        pytest.param(None, "n1 n2 n3", id="none"),
        pytest.param(on_nodes("n2"), "n2", id="one node"),
        pytest.param(on_nodes("n3", "n1", "gone"), "n1 n3", id="some nodes"),
        pytest.param(labelled("disk", "ssd"), "n1 n2", id="a label"),
        pytest.param(
            {"nodeSelectorTerms": [
                *labelled("disk", "hdd")["nodeSelectorTerms"],
                {"matchExpressions": [
                    {"key": "disk", "operator": "In", "values": ["ssd"]},
                    {"key": "rack", "operator": "In", "values": ["r2"]},
                ]},
            ]},
            "n2 n3", id="terms are alternatives, expressions are not",
        ),
        pytest.param(
            {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "disk", "operator": "In", "values": ["ssd"]},
                {"key": "rack", "operator": "NotIn", "values": ["r2"]},
            ]}]},
            "n1", id="what no value narrows down",
        ),
        pytest.param(
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["5"]}]}]},
            "n3", id="a number",
        ),
        pytest.param({"nodeSelectorTerms": [{}]}, "", id="an empty term"),
        pytest.param({"nodeSelectorTerms": []}, "", id="no terms, which is malformed"),
    ],
)  # fmt: skip
def test_node_affinity_of_a_bound_volume(affinity: dict[str, Any] | None, expected: str) -> None:
    h = cluster(
        n1={"disk": "ssd", "rack": "r1"}, n2={"disk": "ssd", "rack": "r2", "size": "5"}, n3={"disk": "hdd", "size": "9"}
    )
    h.volume("pv", claim="data", affinity=affinity)
    h.claim("data", volume="pv")
    h.pod("p", **uses("data"))
    found = rejections(h, "p")
    assert " ".join(name for name, reasons in found.items() if not reasons) == expected
    assert {reason for reasons in found.values() for reason in reasons} <= {UNREACHABLE}


def test_pods_with_bound_claims_are_placed_like_others() -> None:
    h = cluster("n1", "n2")
    h.volume("pv", claim="data", affinity=on_nodes("n2"))
    h.claim("data", volume="pv")
    h.pod("p", **uses("data"))
    h.session()
    hooks = hooks_of(h.plugin("predicates"), signature(h, "p"))
    assert (hooks.reads_pods, hooks.reads_other_nodes) == (False, False)


def test_a_volume_that_changes_is_looked_at_again() -> None:
    h = cluster("n1", "n2")
    h.volume("pv", claim="data", affinity=on_nodes("n2"))
    h.claim("data", volume="pv")
    h.pod("p", **uses("data"))
    assert allowed(h, "p") == "n2"
    h.volume("pv", claim="data", affinity=on_nodes("n1"))
    assert allowed(h, "p") == "n1"


# --- claims that wait for their pod ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("volume", "claim", "fits"),
    [
        ({}, {}, True),
        ({"size": "2Gi"}, {}, True),
        ({"size": "1023Mi"}, {}, False),
        ({"storage_class": "other"}, {}, False),
        ({"modes": ["ReadWriteOnce", "ReadOnlyMany"]}, {}, True),
        ({}, {"modes": ["ReadWriteOnce", "ReadOnlyMany"]}, False),
        ({"volumeMode": "Block"}, {}, False),
        ({"volumeMode": "Block"}, {"volumeMode": "Block"}, True),
        ({"volumeMode": "Filesystem"}, {}, True),
        ({}, {"selector": {"matchLabels": {"tier": "gold"}}}, False),
        ({"labels": {"tier": "gold"}}, {"selector": {"matchLabels": {"tier": "gold"}}}, True),
        ({"phase": "Released"}, {}, False),
        ({"claim": "other"}, {}, False),
        ({"claim": "data"}, {}, True),
        ({"claim": "data", "size": "1Mi"}, {}, False),
        ({"size": "x"}, {}, False),
    ],
)
def test_which_volume_a_claim_may_have(volume: dict[str, Any], claim: dict[str, Any], fits: bool) -> None:
    h = cluster("n1")
    h.volume("pv", **{"storage_class": "local", **volume})
    h.claim("data", **{"storage_class": "local", **claim})
    h.pod("p", **uses("data"))
    h.step()
    assert h.binds == ({"p": "n1"} if fits else {})
    if fits:
        assert [(each.claim, each.volume) for each in h.bind_volumes["p"]] == [("data", "pv")]
    else:
        assert h.pod_message("p") == f"0/1 nodes are unavailable: 1 {UNAVAILABLE}."


def test_two_claims_of_a_pod_never_get_one_volume() -> None:
    h = cluster("n1", "n2", "n3")
    for name, node in (("pv1", "n1"), ("pv2a", "n2"), ("pv2b", "n2")):
        h.volume(name, storage_class="local", affinity=on_nodes(node))
    h.volume("pv3", storage_class="local", affinity=on_nodes("n3"))
    h.claim("a", storage_class="local")
    h.claim("b", storage_class="local")
    h.pod("p", **uses("a", "b"))
    assert allowed(h, "p") == "n2"
    h.volume("net", storage_class="local")
    assert allowed(h, "p") == "n1 n2 n3"


def test_volumes_are_given_once_to_pods_of_one_session() -> None:
    h = cluster("n1", "n2", "n3")
    h.group("g", min_member=3)
    for index in range(3):
        h.volume(f"pv{index}", storage_class="local", affinity=on_nodes(f"n{index + 1}"))
        h.claim(f"data-{index}", storage_class="local")
        h.pod(f"p-{index}", **uses(f"data-{index}"))
    h.step()
    assert sorted(h.binds.values()) == ["n1", "n2", "n3"]
    assert sorted(bindings[0].volume for bindings in h.bind_volumes.values()) == ["pv0", "pv1", "pv2"]


def test_a_volume_is_kept_while_its_binding_is_under_way_and_free_again_when_that_fails() -> None:
    h = cluster("n1")
    h.group("late")
    h.volume("pv", storage_class="local")
    h.claim("first", storage_class="local")
    h.claim("second", storage_class="local")
    h.pod("p", **uses("first"))
    session = h.session()
    task, node = h.task("p"), session.nodes.by_name["n1"]
    statement = Statement(session)
    statement.allocate(h.job("g"), [task], [node])
    statement.commit()
    assert session.binds[0].volumes[0].volume == "pv"
    h.pod("other", group="late", **uses("second"))
    h.step()
    assert not h.binds
    assert h.state.volumes.assumed["default/first"].decision.volume == "pv"
    h.apply(BindFailed("default", "p", task.uid, "refused", retry_after=60.0))
    h.step()
    assert h.binds == {"other": "n1"}
    assert h.bind_volumes["other"][0].volume == "pv"
    assert "default/first" not in h.state.volumes.assumed


def test_an_assumption_ends_when_the_claim_shows_its_volume() -> None:
    h = cluster("n1")
    h.volume("pv", storage_class="local")
    h.claim("data", storage_class="local")
    h.pod("p", **uses("data"))
    h.step()
    assert set(h.state.volumes.assumed) == {"default/data"}
    h.step()
    assert not h.state.volumes.assumed


@pytest.mark.parametrize(
    ("topologies", "expected"),
    [
        ((), "a1 a2 b1 none"),
        (((ZONE, ("a",)),), "a1 a2"),
        (((ZONE, ("a",)), (ZONE, ("b",))), "a1 a2 b1"),
        (((ZONE, ()),), ""),
    ],
)
def test_topologies_of_a_class_restrict_provisioning(topologies: tuple[Any, ...], expected: str) -> None:
    h = cluster(a1={ZONE: "a"}, a2={ZONE: "a"}, b1={ZONE: "b"}, none={})
    h.storage_class("disk", topologies=topologies)
    h.claim("data", storage_class="disk")
    h.pod("p", **uses("data"))
    found = rejections(h, "p")
    assert " ".join(name for name, reasons in found.items() if not reasons) == expected
    assert {reason for reasons in found.values() for reason in reasons} <= {UNAVAILABLE}


def test_free_storage_that_a_driver_reports() -> None:
    h = cluster(a={"rack": "a"}, b={"rack": "b"}, c={"rack": "c"}, d={"rack": "d"})
    h.csi_driver("csi.test", storage_capacity=True)
    h.storage_capacity("ca", storage_class="disk", capacity="20Gi", labels={"rack": "a"})
    h.storage_capacity("cb", storage_class="disk", capacity="2Gi", labels={"rack": "b"})
    h.storage_capacity("cc", storage_class="disk", capacity="20Gi", largest="5Gi", labels={"rack": "c"})
    h.storage_capacity("cd", storage_class="other", capacity="20Gi", labels={"rack": "d"})
    h.storage_capacity("ce", storage_class="disk", capacity="20Gi", labels=None)
    h.claim("data", storage_class="disk", size="10Gi")
    h.pod("p", **uses("data"))
    assert rejections(h, "p") == {"a": [], "b": [NO_CAPACITY], "c": [NO_CAPACITY], "d": [NO_CAPACITY]}
    h.storage_capacity("everywhere", storage_class="disk", capacity="20Gi", labels={})
    assert allowed(h, "p") == "a b c d"
    h.csi_driver("csi.test", storage_capacity=False)
    assert allowed(h, "p") == "a b c d"


def test_a_volume_being_made_ties_its_claim_to_the_node() -> None:
    h = cluster("n1", "n2")
    h.claim("data", storage_class="disk", annotations={"volume.kubernetes.io/selected-node": "n2"})
    h.claim("stale", storage_class="disk", annotations={"volume.kubernetes.io/selected-node": "no-more"})
    h.pod("p", **uses("data"))
    h.pod("other", **uses("stale"))
    assert rejections(h, "p") == {"n1": [UNAVAILABLE], "n2": []}
    assert allowed(h, "other") == "n1 n2"


@pytest.mark.parametrize(("modes", "placed"), [(("ReadWriteMany",), 2), (("ReadWriteOnce",), 0)])
def test_a_gang_on_several_nodes_may_share_a_volume_that_is_still_to_be_made(modes: Any, placed: int) -> None:
    h = cluster()
    h.node("n1", cpu="1")
    h.node("n2", cpu="1")
    h.group("g", min_member=2)
    h.claim("data", storage_class="disk", modes=modes)
    h.pod("p-0", **uses("data"))
    h.pod("p-1", **uses("data"))
    h.step()
    assert len(h.binds) == placed


def test_the_timeout_of_the_conf_goes_with_the_binding_and_can_change() -> None:
    h = cluster("n1", arguments="volumebinding.bindTimeoutSeconds: 30")
    h.claim("a", storage_class="disk")
    h.pod("p-a", **uses("a"))
    h.step()
    assert h.bind_volumes["p-a"][0].timeout == 30
    h.reconfigure(CONF.format(arguments="volumebinding.bindTimeoutSeconds: 45"))
    h.claim("b", storage_class="disk")
    h.pod("p-b", **uses("b"))
    h.step()
    assert h.bind_volumes["p-b"][0].timeout == 45


# --- limits ---------------------------------------------------------------------------------------------------------


def bound(h: Harness, *names: str, driver: str = "csi.test", handle: str = "") -> None:
    for name in names:
        h.volume(f"pv-{name}", claim=name, driver=driver, handle=handle)
        h.claim(name, volume=f"pv-{name}", modes=["ReadWriteMany"])


def test_volume_limits_count_unique_volumes_of_the_driver() -> None:
    h = cluster("n1", "n2")
    h.csi_node("n1", csi_test=2, other_test=1)
    bound(h, "a", "b", "c")
    bound(h, "d", driver="other.test")
    h.pod("r1", node="n1", **uses("a"))
    h.pod("r2", node="n1", **uses("a", "d"))
    for name, claims in (("same", ("a",)), ("new", ("b",)), ("two", ("b", "c")), ("both", ("a", "b")), ("d", ("d",))):
        h.pod(name, **uses(*claims))
    for name, expected in (("same", []), ("new", []), ("two", [OVER_LIMIT]), ("both", []), ("d", [])):
        assert rejections(h, name) == {"n1": expected, "n2": []}


def test_a_volume_still_listed_as_attached_counts_once() -> None:
    h = cluster("n1")
    h.csi_node("n1", csi_test=2)
    bound(h, "a", "b", "c")
    h.pod("r", node="n1", **uses("a"))
    h.attachment("at-a", node="n1", volume="pv-a")
    h.pod("p", **uses("b"))
    assert allowed(h, "p") == "n1"
    h.attachment("at-c", node="n1", volume="pv-c")
    assert rejections(h, "p") == {"n1": [OVER_LIMIT]}
    h.delete_attachment("at-c")
    assert allowed(h, "p") == "n1"


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (1, 1), (3, 3), (None, 4)])
def test_pods_of_one_session_share_the_limit(limit: int | None, expected: int) -> None:
    h = cluster("n1")
    h.csi_node("n1", csi_test=limit)
    for index in range(4):
        h.group(f"g{index}")
        h.claim(f"c{index}", storage_class="disk")
        h.pod(f"p{index}", group=f"g{index}", **uses(f"c{index}"))
    h.step()
    assert len(h.binds) == expected
    h.settle()
    assert len(h.binds) == expected


def test_a_full_node_is_reported_beside_other_reasons() -> None:
    h = cluster("n1")
    h.csi_node("n1", csi_test=0)
    h.volume("pv", claim="data", driver="csi.test", affinity=on_nodes("n2"))
    h.claim("data", volume="pv")
    h.pod("p", **uses("data"))
    session = h.session()
    _, diagnosis = session.engine.diagnose(signature(h, "p"))
    assert diagnosis.reasons == {OVER_LIMIT: 1, UNREACHABLE: 1}


# --- switches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", ""),
        ("predicate.VolumeZoneEnable: false", "elsewhere"),
        ("predicate.NodeVolumeLimitsEnable: false", "full"),
        ("predicate.VolumeBindingEnable: false", "apart"),
    ],
)
def test_each_check_has_its_switch(arguments: str, expected: str) -> None:
    zoned = {ZONE: "a", "disk": "here"}
    h = cluster(arguments=arguments, elsewhere={ZONE: "b", "disk": "here"}, full=zoned, apart={ZONE: "a"})
    for name in ("elsewhere", "apart"):
        h.csi_node(name, csi_test=5)
    h.csi_node("full", csi_test=0)
    h.volume("pv", claim="data", driver="csi.test", labels={ZONE: "a"}, affinity=labelled("disk", "here"))
    h.claim("data", volume="pv")
    h.pod("p", **uses("data"))
    assert allowed(h, "p") == expected


SHAPE = "volumebinding.shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}], volumebinding.weight: 2"


def scores(h: Harness, pod: str) -> list[float] | None:
    session = h.session()
    found = hooks_of(h.plugin("predicates"), signature(h, pod)).comparing_scores(session.all_rows())
    return None if found is None else found.tolist()


def test_a_score_is_the_share_of_the_volumes_that_is_used() -> None:
    h = cluster("n1", "n2", "n3", arguments=SHAPE)
    h.storage_class("fast")
    h.volume("pv1", storage_class="disk", size="10Gi", affinity=on_nodes("n1"))
    h.volume("pv2", storage_class="disk", size="4Gi", affinity=on_nodes("n2"))
    h.volume("pv3", storage_class="fast", size="2Gi", affinity=on_nodes("n2"))
    h.claim("data", storage_class="disk", size="2Gi")
    h.claim("log", storage_class="fast", size="2Gi")
    h.pod("p", **uses("data"))
    h.pod("both", **uses("data", "log"))
    assert scores(h, "p") == [40.0, 100.0, 0.0]
    assert scores(h, "both") == [40.0, 150.0, 0.0]


# --- keeping up -----------------------------------------------------------------------------------------------------


def test_a_node_without_the_chosen_volume_fails_that_placement_only() -> None:
    h = cluster("n1", "n2")
    h.volume("pv", storage_class="local", affinity=on_nodes("n1"))
    h.claim("data", storage_class="local")
    h.pod("p", **uses("data"))
    session = h.session()
    statement, task = Statement(session), h.task("p")
    with pytest.raises(Exception, match="claim default/data: n2 has no volume for it"):
        statement.allocate(h.job("g"), [task], [session.nodes.by_name["n2"]])
    assert task.status is TaskStatus.PENDING
    assert allowed(h, "p") == "n1"


def test_a_placement_without_claims_changes_nothing() -> None:
    h = cluster("n1")
    h.pod("p")
    session = h.session()
    task = h.task("p")
    placement = Placement(h.job("g"), task.cls, [task], [session.nodes.by_name["n1"]])
    plugin = h.plugin("predicates")
    assert plugin.bind_volumes(placement) is None
    assert plugin.signature(session.queues["q"], task) is None
