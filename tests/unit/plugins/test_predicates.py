"""The predicates plugin: what `tests/vectors/predicates.yaml` and `predicates-volumes.yaml` do not show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capcard_sched.framework.api.node_view import FilterResult, NodeView, PodSignature
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.deltas import BindFailed
from capcard_sched.model.status import TaskStatus
from capcard_sched.testing import Harness, hooks_of
from capcard_sched.testing.storage import on_nodes

CONF = """
actions: "enqueue, allocate, backfill"
tiers: [{{plugins: [{{name: gang}}, {{name: predicates, arguments: {{{arguments}}}}}]}}]
"""


def cluster(*nodes: str, arguments: str = "") -> Harness:
    h = Harness(CONF.format(arguments=arguments))
    h.queue("q")
    h.group("g")
    for name in nodes:
        h.node(name, labels={"zone": name})
    h.storage_class("local", provisioner="kubernetes.io/no-provisioner")
    h.storage_class("disk")
    return h


def signature(h: Harness, pod: str) -> PodSignature:
    session = h.last_session
    return session.engine.signature(session.queues["q"], h.task(pod))


def uses(claim: str) -> dict[str, Any]:
    return {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}


def test_a_pod_with_host_ports_conflicts_with_its_own_sibling_planned_ahead() -> None:
    h = cluster("n")
    container = {"name": "main", "ports": [{"containerPort": 1, "hostPort": 80, "protocol": "TCP"}]}
    h.pod("resident", group=None, node="n")
    h.pod("p", containers=[container])
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


def test_labels_do_not_split_signatures_while_no_pod_has_terms() -> None:
    h = cluster("a")
    h.pod("p", labels={"app": "web"})
    h.pod("q", labels={"app": "db"})
    h.session()
    assert signature(h, "p") is signature(h, "q")
    assert not hooks_of(h.plugin("predicates"), signature(h, "p")).reads_other_nodes


def test_labels_split_profiles_only_by_the_terms_they_meet() -> None:
    h = cluster("a")
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    h.pod("loner", group=None, node="a", affinity=apart)
    h.pod("p", labels={"app": "web", "index": "1"})
    h.pod("p2", labels={"index": "2", "app": "web"})
    h.pod("q", labels={"app": "db"})
    h.session()
    plugin = h.plugin("predicates")
    assert signature(h, "p") is signature(h, "p2")
    assert signature(h, "p") is not signature(h, "q")
    assert hooks_of(plugin, signature(h, "p")).reads_other_nodes
    assert not hooks_of(plugin, signature(h, "q")).reads_other_nodes


def test_pods_with_bound_claims_are_placed_like_others() -> None:
    h = cluster("n1", "n2")
    h.volume("pv", claim="data", affinity=on_nodes("n2"))
    h.claim("data", volume="pv")
    h.pod("p", **uses("data"))
    h.session()
    hooks = hooks_of(h.plugin("predicates"), signature(h, "p"))
    assert (hooks.reads_pods, hooks.reads_other_nodes) == (False, False)


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
    assert session.results.binds[0].volumes[0].volume == "pv"
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
