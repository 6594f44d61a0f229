"""Tidal reclaim, whole sessions: one line per cluster, its victims and its refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.plugins.capacity_card.tides import H200, Tides

NOT_PREEMPTABLE = {"volcano.sh/preemptable": "false"}
SLICE = "nvidia.com/mig-1g.18gb"
MIG = f"{H200}/mig-1g.18gb-mixed"
MPS = f"{H200}/mps-140g*1/4"


def on_slices(count: int) -> dict[str, Any]:
    return {"card": MIG, "cards": 0, "requests": {SLICE: count}}


def shared(count: int) -> dict[str, Any]:
    return {"card": MPS, "cards": 0, "requests": {"nvidia.com/gpu.shared": count}}


def vector(
    number: str,
    scene: str,
    victims: list[str],
    failed: str | None = None,
    *,
    conf: dict[str, Any] | None = None,
    nodes: int | Mapping[str, str] = 1,
    pods: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """`conf`: of `Tides`; `nodes`: how many, or name to card; `pods`: special ones; the rest: plugin arguments."""
    return pytest.param(scene, victims, failed, conf or {}, arguments, nodes, pods or {}, id=number)


def cluster(h: Tides, nodes: int | Mapping[str, str] = 1) -> None:
    """Nodes n1, n2, ... of 8 H200, or named ones of other cards; those named mig-... and mps-... are shared."""
    named = dict.fromkeys([f"n{number + 1}" for number in range(nodes)], H200) if isinstance(nodes, int) else nodes
    for name, card in named.items():
        if card == "mps":
            h.gpu_node(
                name, count=4, labels={"nvidia.com/gpu.replicas": "4"},
                resources={"nvidia.com/gpu": 0, "nvidia.com/gpu.shared": 4},
            )  # fmt: skip
        else:
            h.gpu_node(name, card=card, resources={SLICE: 7})


ELASTIC = "e:T4x2m2"
ON_TWO = "g:T2x4#n1,n2 i:I4 j:I4#n2 r:I4"


@pytest.mark.parametrize(
    ("scene", "victims", "failed", "conf", "arguments", "nodes", "pods"),
    [
        vector("the newest", "a:T4 b:T4 r:I4", ["b"]),
        vector("the lower priority", "a:T4@20000 b:T4@40000 r:I4", ["a"]),
        vector("priority does not filter", "a:T4@80000 i:I4 r:I4@20000", ["a"]),
        vector(
            "unless configured", "a:T4@80000 i:I4 r:I4@20000", [], "1 priority, 1 service-type",
            reclaimRequiresHigherPriority=True,
        ),
        vector("inference is safe", "i:I4 j:I4 r:I4", [], "2 service-type"),
        vector("training takes nothing", "a:T4 b:T4 r:T4", []),
        vector("unknown may take", "a:T4 b:T4 r:U4", ["b"]),
        vector("strict: not", "a:T4 b:T4 r:U4", [], strictServiceType=True),
        vector(
            "unknown is safe", "a:U4 b:U4 r:I4", [], "2 service-type",
            pods={"a": {"owner_kind": "StatefulSet"}, "b": {"owner_kind": "StatefulSet"}},
        ),
        vector(
            "a wrong word does not fall through", "a:U8 r:I4", [], "1 service-type",
            pods={"a": {"owner_kind": "Job", "notes": {"volcano.sh/service.type": "infer"}}},
        ),
        vector(
            "owners set it", "a:U8 r:U4", ["a"],
            pods={"a": {"owner_kind": "Job"}, "r": {"owner_kind": "ReplicaSet"}},
        ),
        vector("the annotation wins", "a:T8 r:I4", ["a"], pods={"a": {"owner_kind": "ReplicaSet"}}),
        vector(
            "the pod is protected", "a:T8 r:I4", [], "1 not-preemptable",
            pods={"a": {"annotations": NOT_PREEMPTABLE}},
        ),
        vector(
            "its value is unreadable", "a:T8 r:I4", [], "1 not-preemptable",
            pods={"a": {"annotations": {"volcano.sh/preemptable": "yes"}}},
        ),
        vector("its group is protected", "a:T8 r:I4", [], "1 not-preemptable", pods={"a": {"notes": NOT_PREEMPTABLE}}),
        vector(
            "the pod's yes wins", "a:T8 r:I4", ["a"],
            pods={"a": {"notes": NOT_PREEMPTABLE, "annotations": {"volcano.sh/preemptable": "true"}}},
        ),
        vector(
            "the queue is not reclaimable", "a:T8 r:I4", [], "1 queue-not-reclaimable",
            conf={"training": {"reclaimable": False}},
        ),
        vector(
            "it has no annotation", "a:T8 r:I4", ["a"], conf={"training": {"reclaimable": None, "priority": None}},
        ),
        vector("it is closed", "a:T8 r:I4", ["a"], conf={"training": {"state": "Closed"}}),
        vector("the same queue", "a:T8 r:I4", [], "1 same-queue", pods={"a": {"queue": "qi"}}),
        vector(
            "no quota of that card", "a:T8 r:I4", [], conf={"quotas": {"NVIDIA-H20": 8}},
        ),
        vector(
            "slices of the same profile", " ".join(f"g{i}:T0" for i in range(1, 8)) + " r:I0", ["g7", "g6"],
            pods={**{f"g{i}": on_slices(1) for i in range(1, 8)}, "r": on_slices(2)},
        ),
        vector(
            "whole cards free no slice", "a:T8 i:I0 j:I0 r:I0", [], "2 service-type, 1 no-use",
            pods={"i": on_slices(4), "j": on_slices(3), "r": on_slices(1)},
        ),
        vector(
            "shares of a card", "a:T0 b:T0 r:I0", ["b", "a"], nodes={"n1": "mps"},
            pods={"a": shared(2), "b": shared(2), "r": shared(3)},
        ),
        vector("what is free counts", "a:T2 b:T2 i:I2 r:I4", ["b"]),
        vector("unneeded victims stay", "a:T2@20000 b:T4@40000 i:I2 r:I4", ["b"]),
        vector("a gang goes whole", ON_TWO, ["g-1", "g-0"], nodes=2),
        vector("or by its policy", ON_TWO, ["g-0"], nodes=2, gangEviction="policy"),
        vector("its spare members first", f"{ELASTIC} r:I4", ["e-3", "e-2"]),
        vector("then all of it", f"{ELASTIC} r:I6", ["e-3", "e-2", "e-1", "e-0"]),
        vector("or by its policy", f"{ELASTIC} r:I6", ["e-3", "e-2", "e-1"], gangEviction="policy"),
        vector(
            "a job that ends by losing one", f"{ELASTIC} r:I2", ["e-3", "e-2", "e-1", "e-0"],
            pods={"e": {"notes": {"volcano.sh/evict-scope": "job"}}},
        ),
        vector(
            "one of the gang is not preemptable", "g:T2x4 r:I4", [], "1 gang, 1 not-preemptable",
            pods={"g": {"each": [{}, {"annotations": NOT_PREEMPTABLE}]}},
        ),
        vector("one of the gang is not there yet", "g:T2x4 r:I4", [], "1 gang, 1 not-running",
               pods={"g": {"each": [{}, {"phase": "Pending"}]}}),
        vector("with gang's switch on no gang is broken", "g:T2x4 r:I4", [], "2 gang", conf={"gang": True}),
        vector("on two nodes", ON_TWO, [], "2 gang, 2 service-type", nodes=2, conf={"gang": True}),
        vector("not even for more", f"{ELASTIC} r:I6", [], "2 gang, 1 not enough", conf={"gang": True}),
        vector("the node of the lower priority", "a:T8@40000 b:T8@20000#n2 r:I4", ["b"], nodes=2),
        vector("the node of fewer jobs", "a:T2 b:T2 i:I4 c:T4#n2 j:I4#n2 r:I4", ["c"], nodes=2),
        vector(
            "the cluster's own pods", "a:T8 r:I4", [], "1 system-critical", pods={"a": {"namespace": "kube-system"}},
        ),
        vector(
            "where the queue is looked at first", "a:T8 r:I4", [], "1 same-queue",
            pods={"a": {"namespace": "kube-system", "queue": "qi"}},
        ),
        vector(
            "cpu alone frees no card", "c:T0 i:I4 r:I4", [], "1 no-use, 1 service-type",
            pods={"c": {"card": None, "requests": {"cpu": "189"}}, "i": {"requests": {"cpu": "3"}},
                  "r": {"requests": {"cpu": "1"}}},
        ),
        vector(
            "without a voice no tide", "a:T8 r:I4", [], "1 reclaimable",
            conf={"switches": ", enableReclaimable: false"},
        ),
        # Card quotas, service types and eviction units.
        vector("the last worker, by policy", "w:T2x4 r:I4", ["w-1"], gangEviction="policy"),
        vector("both workers, whole", "w:T2x4 r:I4", ["w-1", "w-0"]),
        vector("training takes no training", "a:T8 r:T4", []),
        vector("training takes no inference", "i:I8 r:T4", []),
        vector("inference takes no inference", "i:I8 r:I4", [], "1 service-type"),
        vector(
            "other words and kinds are safe", "a:U4 b:U4 r:I4", [], "2 service-type",
            pods={"a": {"notes": {"volcano.sh/service.type": "batch"}}, "b": {"owner_kind": "DaemonSet"}},
        ),
        vector("a ReplicaSet's pod may take", "a:T8 r:U4", ["a"], pods={"r": {"owner_kind": "ReplicaSet"}}),
        vector("unknown may take", "a:T8 r:U4", ["a"], pods={"r": {"owner_kind": "StatefulSet"}}),
        vector(
            "unknown may not, when strict", "a:T8 r:U4", [], pods={"r": {"owner_kind": "StatefulSet"}},
            strictServiceType=True,
        ),
        vector(
            "a queue that is not reclaimable", "a:T8 r:I4", [], "1 queue-not-reclaimable",
            conf={"training": {"reclaimable": False}},
        ),
        vector(
            "a pod that is not preemptable", "a:T8 r:I4", [], "1 not-preemptable",
            pods={"a": {"labels": NOT_PREEMPTABLE}},
        ),
        vector(
            "a job that is not", "a:T8 r:I4", [], "1 not-preemptable", pods={"a": {"notes": NOT_PREEMPTABLE}},
        ),
        vector(
            "no pod holds that card", "i:I8 c:T0 t:T8#n2 r:I2", [], "1 no-use, 1 service-type",
            nodes={"n1": H200, "n2": "NVIDIA-GeForce-RTX-4090"},
            pods={"c": {"card": None}, "t": {"card": "NVIDIA-GeForce-RTX-4090"}},
        ),
        vector(
            "an alternative without quota", "t:T8 u:T8#n2 r:I2", ["t"], nodes={"n1": H200, "n2": "H100"},
            conf={"quotas": {H200: 8, "H100": 1}}, pods={"u": {"card": "H100"}, "r": {"card": f"H100|{H200}"}},
        ),
        vector("free cards first", "t1:T4@20000 t2:T2@40000 r:I4", ["t1"]),
        vector("the lower priority", "t1:T4@40000 t2:T4@20000 r:I4", ["t2"]),
        vector("all victims are not enough", "i:I5 a:T3 r:I4", [], "1 not enough, 1 service-type"),
        vector("equal priorities", "a:T8@40000 r:I4@40000", ["a"]),
        vector(
            "higher required", "a:T8@40000 r:I4@40000", [], "1 priority", reclaimRequiresHigherPriority=True,
        ),
        vector(
            "cpu takes no cards", "a:T4 c:T0 r:I0", ["c"],
            pods={"a": {"requests": {"cpu": "100"}}, "c": {"card": None, "requests": {"cpu": "90"}},
                  "r": {"card": None, "requests": {"cpu": "4"}}},
        ),
        vector(
            "not even when nothing else is there", "a:T4 r:I0", [], "1 no-use",
            pods={"a": {"requests": {"cpu": "190"}}, "r": {"card": None, "requests": {"cpu": "4"}}},
        ),
    ],
)  # fmt: skip
def test_tidal_vector(
    scene: str,
    victims: list[str],
    failed: str | None,
    conf: dict[str, Any],
    arguments: dict[str, Any],
    nodes: int | Mapping[str, str],
    pods: dict[str, Any],
) -> None:
    h = Tides(arguments, **conf)
    cluster(h, nodes)
    h.scene(scene, **pods)
    outcome = h.outcome()
    assert (outcome.victims, outcome.failed) == (victims, failed)


def test_and_then_the_pod_is_bound_where_the_worker_was() -> None:
    h = Tides({"gangEviction": "policy"})
    cluster(h)
    h.scene("w:T2x4 r:I4")
    assert h.outcome().victims == ["w-1"]
    assert h.event_messages("Pod", "r-w-0")[-1] == (
        "Reclaimed",
        f"1 pods of 1 jobs evicted on node n1: default/w; waiting for {H200}: 4",
    )
    h.gone("w-w-1")
    assert h.outcome().victims == []
    assert h.binds == {"r-w-0": "n1"}


def test_a_job_that_the_quota_refuses_at_enqueue_evicts_nothing() -> None:
    h = Tides(quotas={H200: 6})
    cluster(h)
    h.scene("a:T8 r:I8", r={"phase_of_group": "Pending", "notes": {"volcano.sh/card.request": f'{{"{H200}": 8}}'}})
    outcome = h.outcome()
    assert (outcome.victims, outcome.failed) == ([], None)
    assert h.phases["r"] == "Pending"
    assert ("PodGroup", "InsufficientScalarQuota") in {(event.object.kind, event.reason) for event in h.events}


def test_without_a_policy_a_worker_runs_on_alone() -> None:
    """The state the reference forbids, under its own mechanism: only the job's controller could end the rest."""
    h = Tides({"gangEviction": "policy"})
    cluster(h)
    h.scene("w:T2x4 r:I4")
    assert h.outcome().victims == ["w-1"]
    h.gone("w-w-1")
    h.pod("w-w-1", group="w", card=H200, cards=4, priority=20000)  # its replacement
    assert h.outcome().victims == []
    assert h.binds == {"r-w-0": "n1"}
    assert h.task("w-w-0").status.title == "Running"
    assert h.task("w-w-1").status.title == "Pending"


@pytest.mark.parametrize(
    ("elastic", "victims"), [(True, ["c", "b"]), (False, [])], ids=["98 all replicas", "like Volcano's capacity-card"]
)
def test_replicas_beyond_the_first_take_too(elastic: bool, victims: list[str]) -> None:
    h = Tides({"reclaimElastic": elastic}, quotas={H200: 8})
    cluster(h)
    h.scene("r:I2 a:T2 b:T2 c:T2", r={"node": "n1", "phase_of_group": "Running"})
    for index in (1, 2):
        h.pod(f"r-w-{index}", group="r", card=H200, cards=2, priority=80000)
    assert h.outcome().victims == victims


# --- cases of more than one line --------------------------------------------------------------------------------------


def test_a_queue_that_is_closing_takes_nothing() -> None:
    h = Tides()
    cluster(h)
    h.queue("qi", cards=h.every, priority=80000, reclaimable=False, state="Closing")
    h.scene("a:T8 r:I4")
    outcome = h.outcome()
    assert outcome.victims == []
    assert "QueueNotOpen" in outcome.reasons


@pytest.mark.parametrize(
    ("wanted", "victims"), [(f"{H200}|H100", ["g-0"]), (f"H100|{H200}", ["g-1"])], ids=["H200 first", "H100 first"]
)
def test_all_else_being_equal_the_earlier_alternative_decides(wanted: str, victims: list[str]) -> None:
    """Before the node's name."""
    h = Tides()
    cluster(h, {"n1": H200, "n2": "H100"})
    h.scene("g:T2x8m1#n1,n2 r:I4", g={"each": [{"card": H200}, {"card": "H100"}]}, r={"card": wanted})
    assert h.outcome().victims == victims


@pytest.mark.parametrize(("used", "victims"), [(6, []), (4, ["a"])], ids=["20 beyond the quota", "21 filled exactly"])
def test_the_own_quota_of_the_reclaimer_holds(used: int, victims: list[str]) -> None:
    h = Tides(quotas={H200: 8})
    cluster(h, 2)
    h.scene(f"a:T8 filler:T2#n2 rest:I{used}#n2 r:I4", rest={"queue": "qi", "node": "n2"}, filler={"queue": "qj"})
    outcome = h.outcome()
    assert outcome.victims == victims
    assert ("InsufficientScalarQuota" in outcome.reasons) == (not victims)


def test_the_card_that_has_quota_is_taken_and_charged() -> None:
    h = Tides(quotas={H200: 4, "H100": 4})
    cluster(h, {"nA": H200, "nB": "H100", "nC": H200, "nD": "H100"})
    h.queue("other", cards=h.every, priority=20000, reclaimable=False)
    h.scene(
        "a:T8#nA b:T8#nB usedA:I4#nC usedB:I1#nD fillC:T4#nC fillD:T7#nD r:I2",
        b={"card": "H100"},
        usedA={"queue": "qi"},
        usedB={"queue": "qi", "card": "H100"},
        fillC={"queue": "other"},
        fillD={"queue": "other", "card": "H100"},
        r={"card": f"{H200}|H100"},
    )
    assert h.outcome().victims == ["b"]
    h.gone("b-w-0")
    h.outcome()
    assert h.binds == {"r-w-0": "nB"}
    h.session()
    assert h.plugin("capacity-card").ledger.queues["qi"].own.allocated.cards == {H200: 4000, "H100": 3000}


def test_a_free_alternative_is_used_before_any_eviction() -> None:
    h = Tides()
    cluster(h, {"nA": H200, "nB": "H100"})
    h.scene("a:T8#nA b:T6#nB r:I2", b={"card": "H100"}, r={"card": f"{H200}|H100"})
    assert h.outcome().victims == []
    assert h.binds == {"r-w-0": "nB"}


def test_capacity_being_released_is_waited_for() -> None:
    h = Tides()
    cluster(h)
    h.scene("a:T4 b:T4 r:I4")
    h.terminate("a-w-0")
    assert h.outcome().victims == []
    h.gone("a-w-0")
    h.outcome()
    assert h.binds == {"r-w-0": "n1"}


@pytest.mark.parametrize(("minimum", "victims"), [(2, []), (1, ["a"])], ids=["43 both or none", "44 one at least"])
def test_a_gang_that_cannot_reach_its_minimum_takes_nothing(minimum: int, victims: list[str]) -> None:
    h = Tides()
    cluster(h, 2)
    h.queue("kept", cards=h.every, priority=20000, reclaimable=False)
    h.scene(f"a:T8 b:T8#n2 r:I2x8m{minimum}", b={"queue": "kept"})
    outcome = h.outcome()
    assert outcome.victims == victims
    assert "ReclaimFailed" in outcome.reasons
    h.session()
    accounts = h.plugin("capacity-card").ledger.queues
    assert (accounts["qi"].own.allocated.cards, accounts["qt"].own.allocated.cards) == ({}, {H200: 8000})
    assert accounts["qt"].own.releasing.cards == ({H200: 8000} if victims else {})


@pytest.mark.parametrize(("elastic", "victims"), [(True, ["a"]), (False, [])])
def test_one_victim_serves_two_replicas(elastic: bool, victims: list[str]) -> None:
    h = Tides({"reclaimElastic": elastic})
    cluster(h)
    h.gpu_node("n2", count=4)
    h.scene("a:T8 r:I4#n2", r={"node": "n2", "phase_of_group": "Running"})
    for index in (1, 2):
        h.pod(f"r-w-{index}", group="r", card=H200, cards=4, priority=80000)
    assert h.outcome().victims == victims
    if victims:
        h.gone("a-w-0")
        h.outcome()
        assert h.binds == {"r-w-1": "n1", "r-w-2": "n1"}


def test_queues_are_looked_at_before_jobs() -> None:
    h = Tides()
    cluster(h)
    h.queue("qt2", cards=h.every, priority=40000, reclaimable=True)
    h.scene("a:T4@80000 b:T4@20000 r:I4", b={"queue": "qt2"})
    assert h.outcome().victims == ["a"]


def test_of_equal_queues_the_one_with_the_larger_share() -> None:
    h = Tides()
    cluster(h)
    h.queue("qt", cards={H200: 5}, priority=20000, reclaimable=True)
    h.queue("qt2", cards={H200: 8}, priority=20000, reclaimable=True)
    h.scene("a:T4 b:T4 r:I4", b={"queue": "qt2"})
    assert h.outcome().victims == ["a"]


def test_a_node_the_pod_may_not_use_is_not_looked_at() -> None:
    h = Tides()
    cluster(h)
    h.scene("a:T8 r:I4", r={"nodeSelector": {"zone": "east"}})
    outcome = h.outcome()
    assert (outcome.victims, outcome.failed) == ([], "")


def test_a_pod_that_never_preempts_has_no_victims() -> None:
    h = Tides()
    cluster(h)
    h.scene("a:T8 r1:I4 r2:I4", r1={"preemptionPolicy": "Never"})
    assert h.outcome().victims == ["a"]
    assert h.event_messages("Pod", "r2-w-0")[-1][0] == "Reclaimed"
    h.gone("a-w-0")
    h.outcome()
    assert h.binds["r2-w-0"] == "n1"


def reclaimed() -> Tides:
    """B had to leave for r, is back and waits; its cards are free, r is not bound yet."""
    h = Tides()
    cluster(h)
    h.scene("a:T4 b:T4 r:I4")
    assert h.outcome().victims == ["b"]
    return h


def back(h: Tides) -> None:
    h.gone("b-w-0")
    h.group("b", queue="qt", annotations={"volcano.sh/service.type": "training"}, priority_class="pc-20000")
    h.pod("b-w-0", group="b", card=H200, cards=4, priority=20000)


def test_freed_capacity_stays_nominated_to_the_reclaimer() -> None:
    h = reclaimed()
    back(h)
    h.outcome()
    assert h.binds == {"r-w-0": "n1"}
    assert h.task("b-w-0").status.title == "Pending"


def test_with_the_reclaimer_its_claim_is_gone() -> None:
    h = reclaimed()
    h.delete_pod("r-w-0")
    back(h)
    h.settle()
    assert h.binds == {"b-w-0": "n1"}


def test_a_nomination_expires_when_victims_stay() -> None:
    """The victim does not end: its grace and 60 seconds later the claim on its room is given up."""
    h = reclaimed()
    made = h.now
    h.terminate("b-w-0")
    h.step(made + 89)
    assert not h.events
    h.step(made + 90)
    assert ("ReclaimExpired", "reservation on node n1 expired after 90s") in h.event_messages("Pod", "r-w-0")
    assert h.binds == {}


def test_a_claim_is_gone_as_soon_as_its_queue_takes_nothing_any_more() -> None:
    h = reclaimed()
    h.queue("qi", cards=h.every, priority=80000, reclaimable=False, state="Closed")
    back(h)
    h.settle()
    assert h.binds == {"b-w-0": "n1"}


@pytest.mark.parametrize("factor", [1, 2], ids=["57 without a factor", "57 with it"])
def test_a_job_admitted_beyond_the_quota_evicts_nothing(factor: int) -> None:
    h = Tides({"overCommitFactor": factor}, quotas={H200: 8})
    cluster(h, 2)
    h.scene("a:T8 used:I8#n2 r:I4", used={"queue": "qi"}, r={"phase_of_group": "Pending"})
    outcome = h.outcome()
    assert outcome.victims == []
    assert h.phases.get("r") == ("Inqueue" if factor == 2 else "Pending")
    if factor == 2:
        text = (
            f"Queue <qi> has insufficient <{H200}> quota: requested <4000>, total would be <12000>, "
            "but capability is <8000>"
        )
        assert h.event_messages("Pod", "r-w-0").count(("InsufficientScalarQuota", text)) == 1, "reported once"
        h.scene("r2:I8", r2={"phase_of_group": "Pending"})
        h.outcome()
        assert h.phases.get("r2") == "Pending"
        text = (
            f"Queue <qi> has insufficient <{H200}> quota: requested <8000>, total would be <20000>, "
            "but capability is <16000>"
        )
        assert ("InsufficientScalarQuota", text) in h.event_messages("PodGroup", "r2")


def test_evictions_are_counted_by_the_queues_and_the_card() -> None:
    h = Tides()
    cluster(h)
    h.scene("g:T2x4 r:I4")
    assert h.outcome().victims == ["g-1", "g-0"]
    series = [one for one in h.plugin("capacity-card").metrics() if one.name == "capacity_card_evictions_total"]
    assert [(one.labels, one.value) for one in series] == [
        ({"victim_queue": "qt", "reclaimer_queue": "qi", "card": H200}, 2)
    ]
