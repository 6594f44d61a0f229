"""The usage plugin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.api.node_view import NodeView, PodSignature
from capcard_sched.model.deltas import NodeUsageChanged
from capcard_sched.model.usage import NodeUsage, UsageFormError, parse_usage
from capcard_sched.plugins.usage.estimates import estimate
from capcard_sched.testing import EPOCH, Harness


def conf(arguments: str = "") -> str:
    return f"actions: allocate\ntiers: [{{plugins: [{{name: usage, arguments: {{{arguments}}}}}]}}]\n"


def measured(h: Harness, at: float | None = None, **nodes: tuple[float | None, float | None]) -> None:
    h.apply(NodeUsageChanged({name: NodeUsage(cpu, memory, at) for name, (cpu, memory) in nodes.items()}))


def cluster(*loads: tuple[float | None, float | None], arguments: str = "") -> Harness:
    """Nodes n0, n1, ... with these loads, and PodGroup g of queue q."""
    h = Harness(conf(arguments))
    h.queue("q")
    h.group("g")
    for index in range(len(loads)):
        h.node(f"n{index}", cpu="10", memory="100Gi")
    measured(h, None, **{f"n{index}": load for index, load in enumerate(loads)})
    return h


def profile_of(h: Harness, pod: str = "p") -> tuple[PodSignature, NodeView]:
    """The signature of a pending pod in an open session, and all nodes."""
    if pod not in {task.name for task in h.state.tasks.values()}:
        h.pod(pod)
    session = h.session()
    return session.engine.signature(session.queues["q"], h.task(pod)), session.all_rows()


# --- sessions ---------------------------------------------------------------------------------------------------------


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


def test_no_memory_grows_with_deleted_nodes() -> None:
    h = cluster((1, 1))
    for batch in range(5):
        at = EPOCH + 600.0 * batch
        h.apply(NodeUsageChanged({f"old{batch}-{index}": NodeUsage(1, 1, at) for index in range(1000)}))
    h.session()
    assert len(h.state.usage) <= 2001 + 1024
    assert h.state.usage["n0"] == NodeUsage(1, 1), "a load that holds"


# --- loads as text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu=80,memory=50", NodeUsage(80.0, 50.0)),
        (" memory = 12.5 ", NodeUsage(None, 12.5)),
        ("cpu=0", NodeUsage(0.0)),
    ],
)
def test_a_load_reads_from_text(text: str, expected: NodeUsage) -> None:
    assert parse_usage(text) == expected


@pytest.mark.parametrize("text", ["", "cpu", "cpu=101", "cpu=-1", "cpu=80%", "gpu=1", "cpu=1,cpu=2", "cpu=nan"])
def test_an_invalid_load_is_reported_with_the_accepted_form(text: str) -> None:
    with pytest.raises(UsageFormError, match="percent from 0 to 100"):
        parse_usage(text)
