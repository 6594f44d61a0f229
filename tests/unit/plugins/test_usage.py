"""The usage plugin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.node_view import Diagnosis, FilterResult, NodeView, PodSignature
from capcard_sched.framework.session.statement import Statement
from capcard_sched.model.deltas import NodeUsageChanged
from capcard_sched.model.refusal import Code
from capcard_sched.model.usage import NodeUsage
from capcard_sched.plugins.usage import CPU_EXCEEDS, MEMORY_EXCEEDS
from capcard_sched.plugins.usage.estimates import estimate
from capcard_sched.testing import EPOCH, Harness, hooks_of

MINUTE = 60.0


def conf(arguments: str = "", switches: str = "", *, plugins: str = "") -> str:
    return (
        f'actions: "allocate"\ntiers: [{{plugins: [{{name: usage{switches}, arguments: {{{arguments}}}}}{plugins}]}}]\n'
    )


def measured(h: Harness, at: float | None = None, **nodes: tuple[float | None, float | None]) -> None:
    h.apply(NodeUsageChanged({name: NodeUsage(cpu, memory, at) for name, (cpu, memory) in nodes.items()}))


def cluster(
    *loads: tuple[float | None, float | None], arguments: str = "", switches: str = "", at: float | None = None
) -> Harness:
    """Nodes n0, n1, ... with these loads, and PodGroup g of queue q."""
    h = Harness(conf(arguments, switches))
    h.queue("q")
    h.group("g")
    for index in range(len(loads)):
        h.node(f"n{index}", cpu="10", memory="100Gi")
    measured(h, at, **{f"n{index}": load for index, load in enumerate(loads)})
    return h


def profile_of(h: Harness, pod: str = "p") -> tuple[PodSignature, NodeView]:
    """The signature of a pending pod in an open session, and all nodes."""
    if pod not in {task.name for task in h.state.tasks.values()}:
        h.pod(pod)
    session = h.session()
    return session.engine.signature(session.queues["q"], h.task(pod)), session.all_rows()


def scores(h: Harness) -> list[float]:
    signature, rows = profile_of(h)
    plugin = h.plugin("usage")
    hooks = hooks_of(plugin, signature)
    static, changing = hooks.static_scores(rows), hooks.row_scores(rows)
    assert static is None or not changing.any(), "never counted twice"
    found: list[float] = (changing if static is None else static).tolist()
    return found


def verdict(h: Harness) -> tuple[list[int], dict[str, int]]:
    signature, rows = profile_of(h)
    diagnosis = Diagnosis(len(rows))
    hooks_of(h.plugin("usage"), signature).diagnose(rows, diagnosis)
    return diagnosis.codes.tolist(), diagnosis.reasons


# --- the vectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["", ", estimator: {enable: false}"], ids=["estimating", "not estimating"])
@pytest.mark.parametrize("switches", ["", ", enablePredicate: false"], ids=["", "score only"])
@pytest.mark.parametrize(
    ("load", "weights", "expected"),
    [
        pytest.param((40, 60), "usage.weight: 5", 250.0, id="15.1 cpu 40, memory 60"),
        pytest.param((20, 50), "cpu.weight: 3", 362.5, id="15.2 cpu 20, memory 50, weights 3 and 1"),
        pytest.param((40, 60), "usage.weight: 1", 50.0, id="another weight of the plugin"),
        pytest.param((40, 60), "cpu.weight: 0", 200.0, id="memory alone counts"),
        pytest.param((100, 100), "cpu.weight: 1", 0.0, id="a full node"),
        pytest.param((None, 60), "cpu.weight: 1", 0.0, id="one of the two is not known"),
        pytest.param((None, 60), "cpu.weight: 0", 200.0, id="the one that counts for nothing is not known"),
    ],
)
def test_the_score_is_the_remaining_share_of_a_node(
    load: tuple[float | None, float | None], weights: str, expected: float, switches: str, estimator: str
) -> None:
    assert scores(cluster(load, arguments=weights + estimator, switches=switches)) == [expected]


@pytest.mark.parametrize("arguments", ["cpu.weight: 0, memory.weight: 0", "usage.weight: 0"])
def test_weights_of_nothing_score_nothing_better_than_nan(arguments: str) -> None:
    h = cluster((40, 60), arguments=arguments)
    signature, rows = profile_of(h)
    hooks = hooks_of(h.plugin("usage"), signature)
    assert (hooks.static_scores(rows), hooks.reads_pods) == (None, False)


_UU = Code.UNRESOLVABLE


@pytest.mark.parametrize(
    ("load", "arguments", "code", "reasons"),
    [
        pytest.param((80.0, 10), "", 0, [], id="15.3 cpu 80.0"),
        pytest.param((80.1, 10), "", _UU, [CPU_EXCEEDS], id="15.3 cpu 80.1"),
        pytest.param((10, 80.1), "", _UU, [MEMORY_EXCEEDS], id="memory above its threshold"),
        pytest.param((99, 99), "", _UU, [CPU_EXCEEDS], id="both above: cpu is reported"),
        pytest.param((None, 10), "", 0, [], id="cpu not known passes"),
        pytest.param((50, 50), "thresholds: {cpu: 40}", _UU, [CPU_EXCEEDS], id="a threshold of the conf"),
        pytest.param((50, 50), "thresholds: {mem: 40}", _UU, [MEMORY_EXCEEDS], id="one of memory"),
        pytest.param((0.5, 0.5), "thresholds: {cpu: 0}", _UU, [CPU_EXCEEDS], id="a threshold of 0 is one"),
    ],
)
def test_a_node_above_a_threshold_takes_no_pods(
    load: tuple[float | None, float | None], arguments: str, code: int, reasons: list[str]
) -> None:
    codes, shown = verdict(cluster(load, arguments=arguments))
    assert (codes, list(shown)) == ([code], reasons)


@pytest.mark.parametrize(
    ("minutes", "passes"),
    [
        pytest.param(4.9, False, id="4.9 minutes old"),
        pytest.param(5, True, id="5 minutes old"),
        pytest.param(6, True, id="15.4 6 minutes old"),
    ],
)
def test_expired_measurements_do_not_count(minutes: float, passes: bool) -> None:
    h = cluster((99, 50), at=EPOCH + 1 - minutes * MINUTE)
    codes, _ = verdict(h)
    assert codes == [0 if passes else _UU]
    assert (scores(h) == [0.0]) is passes


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_without_a_measurement_the_plugin_has_no_effect() -> None:
    h = Harness(conf())
    h.queue("q")
    h.group("g")
    h.node("n0")
    signature, rows = profile_of(h)
    plugin = h.plugin("usage")
    answer = FilterResult(len(rows))
    hooks = hooks_of(plugin, signature)
    hooks.filter_static(rows, answer)
    assert answer.unanimous
    assert hooks.static_scores(rows) is None
    assert not hooks.reads_pods, "nodes need no evaluation one by one"
    assert signature.contexts == {}


@pytest.mark.parametrize(
    ("arguments", "load", "same"),
    [
        pytest.param("", (45, 60), True, id="estimating: only thresholds are kept"),
        pytest.param("", (85, 60), False, id="above a threshold now"),
        pytest.param("estimator: {enable: false}", (45, 60), False, id="scores are kept"),
        pytest.param("estimator: {enable: false}", (40, 60), True, id="nothing changed"),
        pytest.param("usage.weight: 0", (45, 60), True, id="nothing is scored"),
    ],
)
def test_the_cache_per_class_is_kept_until_its_value_changes(
    arguments: str, load: tuple[float, float], same: bool
) -> None:
    h = cluster((40, 60), arguments=arguments)
    before = profile_of(h)[0].contexts
    measured(h, n0=load)
    assert (profile_of(h)[0].contexts == before) is same
    h.node("n0", cpu="20", memory="100Gi")
    assert profile_of(h)[0].contexts.keys() == {"usage"}


def test_the_series_count_nodes_by_state_of_their_measurement() -> None:
    h = cluster((99, 10), (10, 10))
    measured(h, EPOCH - 600, n2=(1, 1))
    h.node("n2")
    h.session()
    found = {sample.labels["state"]: sample.value for sample in h.plugin("usage").metrics()}
    assert found == {"measured": 2, "over_threshold": 1, "stale": 1}


# --- estimates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "limit", "risk", "expected"),
    [
        pytest.param(1000, None, 1.0, 700, id="a part of the request"),
        pytest.param(1000, 1000, 1.0, 700, id="a limit that is the request"),
        pytest.param(1000, 4000, 1.0, 1300, id="and of what may burst (ratio .2)"),
        pytest.param(1000, None, 1.2, 840, id="more on a loaded node"),
        pytest.param(1000, 800, 1.2, 800, id="never more than the limit"),
        pytest.param(0, None, 1.0, 250, id="of a pod that names nothing"),
        pytest.param(0, 2000, 1.0, 400, id="of a pod that names a limit only"),
    ],
)
def test_the_use_of_a_pod_is_estimated(request_: int, limit: int | None, risk: float, expected: int) -> None:
    assert estimate(request_, limit, 250, request_ratio=0.7, burst_ratio=0.2, risk=risk) == expected


@given(
    request_=st.integers(0, 10**15),
    limit=st.none() | st.integers(0, 10**15),
    ratios=st.tuples(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10)),
)
def test_an_estimate_is_never_negative_nor_above_the_limit(
    request_: int, limit: int | None, ratios: tuple[float, float, float]
) -> None:
    found = estimate(request_, limit, 250, request_ratio=ratios[0], burst_ratio=ratios[1], risk=ratios[2])
    assert found >= 0
    if limit is not None:
        assert found <= limit


def test_a_burst_spreads_by_its_expected_usage() -> None:
    h = cluster((30, 30), (31, 31), (60, 60))
    h.group("burst", min_member=1)
    for index in range(8):
        h.pod(f"p{index}", group="burst", requests={"cpu": "1", "memory": "10Gi"})
    h.settle()
    counts = sorted(h.binds.values())
    assert counts == ["n0"] * 4 + ["n1"] * 4


def _placed_one(**pod: Any) -> Harness:
    """A pod of 1 core on n0 of 10, measured a second before it came."""
    h = cluster((40, 40), arguments="memory.weight: 0", at=float(EPOCH))
    h.pod("placed", **pod)
    h.step()
    assert h.binds == {"placed": "n0"}
    return h


def test_the_estimate_counts_in_the_sessions_that_follow() -> None:
    assert scores(_placed_one()) == [500 - 5 * (40 + 7)]


def test_an_evicted_pod_uses_its_node_until_it_is_gone() -> None:
    h = _placed_one()
    session = h.session()
    statement = Statement(session)
    statement.evict(h.task("placed"), "test")
    assert h.plugin("usage")._estimates.sums.tolist()[0][0] == 700
    statement.discard()
    assert h.plugin("usage")._estimates.sums.tolist()[0][0] == 700


@pytest.mark.parametrize("end", ["deleted", "done", "refused"])
def test_the_estimate_of_a_deleted_pod_is_removed(end: str) -> None:
    h = _placed_one()
    if end == "deleted":
        h.delete_pod("placed")
    elif end == "done":
        h.set_phase("placed", "Succeeded")
    else:
        h.delete_pod("placed")
        h.pod("placed")
    assert scores(h) == [500 - 5 * 40.0]


def test_a_gang_that_is_undone_leaves_no_estimate() -> None:
    h = cluster((40, 40))
    h.core.reconfigure(h._parse(conf(plugins=", {name: gang}")))
    h.group("gang", min_member=3)
    for index in range(3):
        h.pod(f"member{index}", group="gang", requests={"cpu": "4"})
    h.step()
    assert h.binds == {}
    assert h.plugin("usage")._estimates.sums.tolist() == [[0, 0]]


@given(
    loads=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), min_size=1, max_size=5),
    pods=st.lists(st.sampled_from(["100m", "1", "3"]), min_size=1, max_size=8),
)
def test_every_pod_goes_where_the_score_was_highest(loads: list[tuple[int, int]], pods: list[str]) -> None:
    """The ledger against a sum over the pods of each node, in whole numbers, one session a pod."""
    h = cluster(*loads, arguments="memory.weight: 0, estimator: {risk_factor: 1.0}")
    used = [0] * len(loads)
    room = [10_000] * len(loads)
    for index, cpu in enumerate(pods):
        amount = 100 if cpu == "100m" else 1000 * int(cpu)
        h.pod(f"p{index}", requests={"cpu": cpu})
        h.step()
        fits = [row for row in range(len(loads)) if room[row] >= amount]
        best = max(fits, key=lambda row: (-min(100.0, loads[row][0] + used[row] * 100.0 / 10_000), -row), default=None)
        assert h.binds.get(f"p{index}") == (None if best is None else f"n{best}")
        if best is not None:
            used[best] += int(amount * 0.7)
            room[best] -= amount


# --- many nodes ----------------------------------------------------------------------------------------------------


def test_no_memory_grows_with_deleted_nodes() -> None:
    h = cluster((1, 1))
    for batch in range(5):
        at = EPOCH + 600.0 * batch
        h.apply(NodeUsageChanged({f"old{batch}-{index}": NodeUsage(1, 1, at) for index in range(1000)}))
    h.session()
    assert len(h.state.usage) <= 2001 + 1024
    assert h.state.usage["n0"] == NodeUsage(1, 1), "a load that holds"


def test_measurements_are_read_by_row_in_any_order_of_arrival() -> None:
    h = cluster(*((index % 100, 10) for index in range(500)), arguments="estimator: {enable: false}")
    expected = [
        5 * (100 - load + 90) / 2 for load in (int(name[1:]) % 100 for name in sorted(f"n{i}" for i in range(500)))
    ]
    assert np.allclose(scores(h), expected)
