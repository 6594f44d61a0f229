"""One request beside the cards of many nodes: the columns against the rules for one node and one card."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.plugins.deviceshare.card_columns import CardColumns, CardModels
from capcard_sched.plugins.deviceshare.device_choice import DeviceChoice, NoChoice, choose_cards
from capcard_sched.plugins.deviceshare.share_choice import ShareChooser, one_of_each
from capcard_sched.plugins.deviceshare.shared_card import CardStates, Cause, SharedCard
from capcard_sched.plugins.deviceshare.vgpu import VgpuDevices
from tests.unit.plugins.deviceshare.test_share_table import CARDS, MIG_CARDS, REQUESTS
from tests.unit.plugins.deviceshare.worlds import ledger, request

NODES = st.lists(st.lists(CARDS | CARDS | MIG_CARDS, max_size=4), min_size=1, max_size=6)
AMOUNTS = st.sampled_from(["1x1", "1x50", "1x100", "1xp50", "1xp100", "1x1 c100", "1x0 c0", "1x40 c60"])
CARD_STATES = CardStates()
POLICIES = st.sampled_from(["binpack", "spread", "none"])
#: Types that a pod names, or a sharing mode.
WISHES = st.sampled_from([{}, {"use": "L40S"}, {"nouse": "A100"}, {"mode": "hami-core"}, {"mode": "mig"}])


def _cards(nodes: list[list[str]]) -> list[tuple[SharedCard, ...]]:
    return [tuple(ledger(card).cards[0] for card in node) for node in nodes]


def _columns(cards: list[tuple[SharedCard, ...]]) -> CardColumns:
    return CardColumns([(each or None,) for each in cards], 0, CardModels())


@given(NODES, AMOUNTS, WISHES, POLICIES, st.data())
def test_every_node_gives_the_card_that_it_gives_alone(
    nodes: list[list[str]], amounts: str, wishes: dict[str, str], policy: str, data: st.DataObject
) -> None:
    cards = _cards(nodes)
    wanted = request(amounts, **wishes)
    chooser = ShareChooser.of(wanted, policy)
    assert chooser is not None
    order = data.draw(st.permutations(range(len(cards))))

    plain, batch = _columns(cards).of(np.array(order, dtype=np.int64))

    choice, causes = chooser.choose(batch), chooser.causes(batch)
    after = chooser.after(one_of_each(batch, choice.card))
    for entry, node in enumerate(order):
        assert plain[entry] == (bool(cards[node]) and all(card.model.mode != "mig" for card in cards[node]))
        if not plain[entry]:
            continue
        alone = choose_cards(cards[node], wanted, policy)
        assert choice.fits[entry] == isinstance(alone, DeviceChoice)
        if isinstance(alone, NoChoice):
            assert list(Cause)[causes[entry]] is alone.cause
            assert choice.scores[entry] == float("-inf")
            continue
        assert choice.scores[entry] == alone.score
        card = alone.shares[0].card
        assert choice.card[entry] == card
        taken = alone.after[card]
        assert (after.number[entry], after.used[entry], after.cores[entry]) == (
            taken.use.number,
            taken.used_memory,
            taken.use.cores,
        )


@given(st.lists(CARDS, min_size=1, max_size=6), st.lists(REQUESTS, max_size=5))
def test_cards_in_columns_have_the_shares_and_parts_of_each_card(
    texts: list[str], wishes: list[tuple[list[str], dict[str, str]]]
) -> None:
    cards = _cards([[text] for text in texts])
    _, batch = _columns(cards).of(np.arange(len(cards)))
    singles = one_of_each(batch, np.zeros(len(cards), dtype=np.int64))
    kind = VgpuDevices("binpack", 1, CARD_STATES)
    requests = [*(request(*containers, **more) for containers, more in wishes), None]

    one_by_one = kind.fitting(requests)

    assert kind.fitting_cards(requests)(singles).tolist() == [one_by_one(card).tolist() for (card,) in cards]
    assert kind.free_parts(singles).tolist() == [kind.free_part(card) for (card,) in cards]


@given(st.lists(st.floats(0, 100) | st.just(float("-inf"))), st.integers(0, 10))
def test_scores_are_weighted_as_one_by_one(scores: list[float], weight: int) -> None:
    kind = VgpuDevices("binpack", weight, CARD_STATES)

    found = kind.weighted_many(np.array(scores, dtype=np.float64)).tolist()

    assert found == [score if score == float("-inf") else kind.weighted(score) for score in scores]
