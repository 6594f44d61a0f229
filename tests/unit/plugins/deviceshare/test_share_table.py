"""Many requests beside one card: the columns against the rule for one share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.plugins.deviceshare.share_table import ShareTable
from capcard_sched.plugins.deviceshare.shared_card import Cause
from tests.unit.plugins.deviceshare.worlds import A100_80, L40S, ledger, request

USES = st.one_of(
    st.just(""),
    st.builds(
        " {}/{}/{}".format,
        st.integers(0, 4),
        st.integers(0, 110) | st.just(100),
        st.integers(0, 110) | st.sampled_from([0, 100]),
    ),
)
CARDS = st.builds(
    "A:100{}{}{} type={}".format,
    USES,
    st.sampled_from(["", " slots=2"]),
    st.sampled_from(["", " unhealthy"]),
    st.sampled_from([L40S, A100_80, "GRID"]),
)
#: Cut into slices; one of the middle size is taken.
MIG_CARDS = st.builds(
    "A:81920{} mig{} type={}".format,
    st.sampled_from(["", " 1/20480/0"]),
    st.sampled_from(["", " group=group1:0"]),
    st.just(A100_80),
)
AMOUNTS = st.sampled_from(["-", "1x1", "2x50", "1x100", "1xp50", "1xp100", "1x1 c100", "1x0 c0", "1x40 c60", "1x20480"])
REQUESTS = st.tuples(
    st.lists(AMOUNTS, min_size=1, max_size=3).filter(lambda texts: set(texts) != {"-"}),
    st.sampled_from([{}, {"use": "L40S"}, {"nouse": "A100"}]),
)


@given(CARDS | MIG_CARDS, st.lists(REQUESTS, max_size=5))
def test_a_card_has_a_share_for_the_same_requests_as_one_by_one(
    card: str, texts: list[tuple[list[str], dict[str, str]]]
) -> None:
    state = ledger(card).cards[0]
    requests = [request(*containers, **more) for containers, more in texts]

    found = ShareTable([*requests, None]).fits(state).tolist()

    expected = [
        any(wanted is not None and not isinstance(state.try_take(wanted.share), Cause) for wanted in each.containers)
        for each in requests
    ]
    assert found == [*expected, False]
