"""Free and stranded cards beside their definition, without a plugin that scores by them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.framework.fragmentation.free_cards import free_cards, sum_by_card
from capcard_sched.framework.fragmentation.request_mix import RequestKind, smallest
from capcard_sched.testing import Harness

CONF = """
actions: allocate
tiers:
- plugins: [{name: gang}, {name: predicates}]
"""
NODES = st.lists(st.tuples(st.sampled_from(["A", "B"]), st.integers(1, 8), st.integers(1, 64)), min_size=1, max_size=4)
PODS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(1, 16), st.sampled_from(["", "A", "B", "A|B"])), min_size=1, max_size=8
)


def _cause(free: int, cpu: int, model: str, mix: list[tuple[int, int, str]]) -> str:
    """Why no pod of the mix can use free cards; "" when one can."""
    accepting = [each for each in mix if not each[2] or model in each[2].split("|")]
    small = [each for each in accepting if each[0] <= free]
    if any(each[1] <= cpu for each in small):
        return ""
    return "cpu" if small else "size" if accepting else "model"


@given(NODES, PODS)
def test_stranded_cards_are_those_that_no_pod_can_use(
    nodes: list[tuple[str, int, int]], pods: list[tuple[int, int, str]]
) -> None:
    harness = Harness(CONF)
    harness.queue("q")
    free: dict[str, tuple[str, int, int]] = {}
    for number, (model, cards, cpu) in enumerate(nodes):
        harness.gpu_node(f"n{number}", model, cards, cpu=str(cpu), memory="1Ti")
        free[f"n{number}"] = (model, cards, cpu)
    for number, (cards, cpu, name) in enumerate(pods):
        harness.group(f"g{number}", queue="q", min_member=1, phase="Inqueue")
        notes = {"volcano.sh/card.name": name} if name else {}
        harness.pod(f"p{number}", group=f"g{number}", annotations=notes, requests={"cpu": str(cpu)}, cards=cards)
    harness.step()
    for number, (cards, cpu, _) in enumerate(pods):
        node = harness.binds.get(f"p{number}")
        if node is not None:
            model, left, rest = free[node]
            free[node] = model, left - cards, rest - cpu
    mix = [each for each in pods if each[0]]
    session = harness.session()
    found = free_cards(session, ())
    if not mix:
        assert found is None
        return
    assert found is not None
    expected = {}
    for name, (model, cards, cpu) in free.items():
        if cards:
            cause = _cause(cards, cpu, model, mix)
            expected[name] = (model, 1000 * cards, {cause: 1000 * cards} if cause else {})
    assert {each.node: (each.card, each.free, dict(each.causes)) for each in found} == expected
    sums: Counter[str] = Counter()
    for each in found:
        sums[each.card] += each.stranded
    assert {each.card: each.stranded for each in sum_by_card(found)} == dict(sums)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.sampled_from([1000, 2000]))))
def test_the_smallest_kinds_fit_where_any_kind_fits(given_kinds: list[tuple[int, int, int]]) -> None:
    kinds = [RequestKind(cpu, memory, "gpu", amount, ()) for cpu, memory, amount in given_kinds]
    kept = smallest(kinds)
    assert set(kept) <= set(kinds)
    for kind in kinds:
        assert any(one[2:] == kind[2:] and one.cpu <= kind.cpu and one.memory <= kind.memory for one in kept)
    assert all(
        one is other or one[2:] != other[2:] or one.cpu > other.cpu or one.memory > other.memory
        for one in kept
        for other in kept
    )
