"""Headlines of lists above the bounds of their cost: each has a note that the job was not tried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capcard_sched.cli.main import run
from capcard_sched.framework.explain.diagnose import diagnose_job
from capcard_sched.insight.sources.object_view import DeltaObjects
from capcard_sched.insight.trials.attempt import UNTRIED, JobAttempt
from capcard_sched.testing import Harness
from tests.scenarios.notation import manifests
from tests.vectors.notation import VectorHarness

_NOTE = "; a start without the other jobs was not tried, `explain` tries it"


@pytest.mark.parametrize("pods, notes", [(20, False), (90, True)])
def test_the_reason_of_a_job_in_a_long_list_has_a_note(
    pods: int, notes: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["node n1 2*A cpu=200", "queue q cards=A:8 cpu=500", "pod hog queue=q gpu=2 cpu=1 card=A"]
    lines += [f"pod p{index} queue=q gpu=2 cpu=1 card=A" for index in range(pods)]
    path = tmp_path / "cluster.yaml"
    path.write_text("\n---\n".join(map(json.dumps, manifests("; ".join(lines)))))
    assert run(["job", "list", "-f", str(path), "-o", "json"]) == 0
    reasons = [item["reason"] for item in json.loads(capsys.readouterr().out)["items"] if item.get("reason")]
    assert len(reasons) >= pods
    assert {reason.endswith(_NOTE) for reason in reasons} == {notes}


def test_a_job_of_a_cluster_above_the_bound_has_a_fact_that_it_was_not_tried() -> None:
    h = Harness()
    h.gpu_node("n1", "A", 8)
    h.node("large", cpu="100000")
    h.queue("q", cards={"A": 8})
    h.group("many")
    for index in range(15_001):
        h.pod(f"m{index}", group="many", node="large")
    h.group("g")
    h.pod("hog", group="many", card="A", cards=6, node="n1")
    h.pod("p0", group="g", card="A", cards=4)
    view = DeltaObjects(list(h._deltas))
    h.step()
    found = diagnose_job(h.core.snapshot(), h.job("g"))
    assert not any(fact.startswith(UNTRIED) for fact in found.facts)
    tried = JobAttempt(h.core, view, h.job("g"), h.now).diagnose(found)
    assert tried.facts[-1] == f"{UNTRIED}: the cluster has 15003 pods, and the trial has at most 15000"


def test_a_job_whose_claim_a_provisioner_binds_may_start() -> None:
    """The cause is the claim, and no sentence excludes a start: the provisioner binds it without a change."""
    h = VectorHarness('actions: "enqueue, allocate"\ntiers: [{plugins: [{name: gang}, {name: predicates}]}]')
    h.do("node n1 cpu=8; queue q; storage_class fast provisioner=ebs.csi.aws.com mode=Immediate")
    h.do("claim data storage_class=fast; group g; pod p0 group=g cpu=1 claims=data")
    view = DeltaObjects(list(h._deltas))
    h.step()
    found = JobAttempt(h.core, view, h.job("g"), h.now).diagnose(diagnose_job(h.core.snapshot(), h.job("g")))
    bound_by = "provisioner ebs.csi.aws.com of StorageClass fast has not provisioned its volume"
    assert found.stage == "NoNodeFits"
    assert found.summary == f"No node fits: PersistentVolumeClaim data is not bound: {bound_by}"
    assert found.awaits_objects
