from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capcard_sched.model.card_registration import MIG
from capcard_sched.model.pod_devices import decode_devices, encode_devices
from capcard_sched.plugins.deviceshare.card_ledger import CardLedger
from capcard_sched.plugins.deviceshare.device_choice import BINPACK, SPREAD, DeviceChoice, NoChoice, choose_cards
from capcard_sched.plugins.deviceshare.shared_card import CardUsage
from tests.unit.plugins.deviceshare.worlds import ledger, request


def _book(node: CardLedger, uid: str, text: str) -> None:
    node.book(uid, node.shares_of(decode_devices(text).containers).shares)


def _uses(node: CardLedger) -> list[CardUsage]:
    return [card.use for card in node.cards]


MIG_A100 = "M:40536 mig type=NVIDIA-NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize(
    "card, bookings, released, use, left",
    [
        pytest.param(
            "A:10000", ["p A,NVIDIA,1000,10:", "p A,NVIDIA,1000,10:"], "p", CardUsage(1, 1000, 10), CardUsage(),
            id="a pod is booked once however often it is booked",
        ),
        pytest.param(
            "A:10000", ["p A,NVIDIA,2000,0:;A,NVIDIA,2000,0:"], "p", CardUsage(2, 4000, 0), CardUsage(),
            id="two containers on one card are two shares",
        ),
        pytest.param(
            "A:10000", ["p A,NVIDIA,1000,0:"], "other", CardUsage(1, 1000, 0), CardUsage(1, 1000, 0),
            id="a pod that is not known gives nothing back",
        ),
        pytest.param(
            MIG_A100, ["p M[group2-3],NVIDIA,3000,0:"], "p", CardUsage(1, 5120, 0, (("group2", 3),)), CardUsage(),
            id="a slice takes its own memory and its group",
        ),
        pytest.param(
            "A:100 slots=1", ["p A,NVIDIA,80,60:", "q A,NVIDIA,80,60:"], "p", CardUsage(2, 160, 120),
            CardUsage(1, 80, 60), id="a card that is booked beyond its size keeps the truth",
        ),
    ],
)  # fmt: skip
def test_a_card_holds_what_is_booked_and_not_released(
    card: str, bookings: list[str], released: str, use: CardUsage, left: CardUsage
) -> None:
    node = ledger(card)
    for booking in bookings:
        _book(node, *booking.split(" "))
    assert _uses(node) == [use]
    if use.number > 1 and card.endswith("slots=1"):
        assert isinstance(choose_cards(node.cards, request("1xp0"), BINPACK), NoChoice), "it offers nothing"

    node.release(released)

    assert _uses(node) == [left]
    assert (node.cards == node.idle) == (left == CardUsage())


@pytest.mark.parametrize(
    "text",
    [
        "M[group2-4],NVIDIA,3000,0:",
        "M[group9-0],NVIDIA,3000,0:",
        "M[group2-0],NVIDIA,3000,0:M[group2-0],NVIDIA,3000,0:",
        "M[group2-0],NVIDIA,3000,0:;M[group1-0],NVIDIA,3000,0:",
    ],
)
def test_a_slice_that_the_card_cannot_have_is_a_plain_amount(text: Any) -> None:
    node = ledger(MIG_A100)

    found = node.shares_of(decode_devices(text).containers)
    node.book("pod", found.shares)

    assert len(found.without_slice) == 1
    assert found.shares[-1].booking == (3000, 0, "", -1)
    node.release("pod")
    assert node.cards == node.idle


def test_cards_are_known_by_their_whole_uuid() -> None:
    node = ledger("GPU1:100", "GPU12:100")

    found = node.shares_of(decode_devices("GPU12,NVIDIA,10,0:GPU,NVIDIA,10,0:").containers)

    assert [share.card for share in found.shares] == [1]
    assert found.unknown == ("GPU",)


def test_terminating_pods_hold_their_shares_and_count_as_future_idle() -> None:
    node = ledger("A:100")
    _book(node, "pod", "A,NVIDIA,80,0:")

    node.set_leaving("pod", leaving=True)

    assert node.cards[0].use == CardUsage(1, 80, 0)
    assert node.future[0].use == CardUsage()
    node.set_leaving("pod", leaving=False)
    assert node.future == node.cards


def test_a_nominated_pod_keeps_its_shares_from_other_pods() -> None:
    node = ledger("A:100")
    _book(node, "leaver", "A,NVIDIA,80,0:")
    node.set_leaving("leaver", leaving=True)
    found = choose_cards(node.future, request("1x60"), BINPACK)
    assert isinstance(found, DeviceChoice)

    node.book("comer", found.shares)

    assert isinstance(choose_cards(node.cards, request("1x1"), BINPACK), NoChoice)
    assert node.future[0].use == CardUsage(1, 60, 0)
    node.release("comer")
    assert node.cards[0].use == CardUsage(1, 80, 0)
    assert node.future[0].use == CardUsage()


# --- properties -------------------------------------------------------------------------------------------------------

MIG_TYPE = "mig type=NVIDIA-NVIDIA A100-SXM4-40GB"
CARDS = st.lists(
    st.sampled_from(["40536", "10000 slots=2", "100 slots=3", f"40536 {MIG_TYPE}", "500 unhealthy"]),
    min_size=1,
    max_size=5,
).map(lambda kinds: [f"G{index}:{kind}" for index, kind in enumerate(kinds)])
CONTAINER = st.one_of(
    st.just("-"),
    st.builds(
        "{}x{}{}".format,
        st.integers(0, 3),
        st.one_of(st.integers(1, 12000).map(str), st.integers(0, 100).map("p{}".format), st.just("whole")),
        st.one_of(st.just(""), st.integers(0, 100).map(" c{}".format), st.just(" c100")),
    ),
)
PODS = st.lists(CONTAINER, min_size=1, max_size=3).map(lambda each: (*each, "1x1"))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), PODS, st.sampled_from([BINPACK, SPREAD, ""])),
        st.tuples(st.just("remove"), st.integers(0, 30), st.none()),
        st.tuples(st.just("leave"), st.integers(0, 30), st.booleans()),
    ),
    max_size=25,
)


@settings(max_examples=3 * settings().max_examples)
@given(CARDS, STEPS)
def test_any_sequence_of_pods_keeps_the_invariants(cards: Any, steps: Any) -> None:
    node = ledger(*cards)
    alone: dict[int, str] = {}
    number = 0
    for kind, value, option in steps:
        if kind == "add":
            before, wanted = node.cards, request(*value)
            found = choose_cards(before, wanted, option)
            if isinstance(found, DeviceChoice):
                uid = f"pod-{number:03d}"
                number += 1
                node.book(uid, found.shares)
                assert node.cards == found.after
                node.release(uid)
                assert node.cards == before
                node.book(uid, found.shares)
                alone.update({share.card: uid for share in found.shares if share.booking.cores == 100})
            else:
                assert node.cards == before
        elif node.held:
            uid = sorted(node.held)[value % len(node.held)]
            if kind == "remove":
                node.release(uid)
                alone = {index: owner for index, owner in alone.items() if owner != uid}
            else:
                node.set_leaving(uid, leaving=option)
        _check(node, alone)


def _check(node: CardLedger, alone: dict[int, str]) -> None:
    for index, card in enumerate(node.cards):
        use, shares = card.use, [share for held in node.held.values() for share in held if share.card == index]
        assert 0 <= use.number <= card.model.slots
        assert 0 <= card.used_memory <= card.model.memory
        assert 0 <= use.cores <= 100
        assert use.number == len(shares)
        assert use.memory == sum(share.booking.memory for share in shares)
        assert use.cores == sum(share.booking.cores for share in shares)
        slices = [(share.booking.group, share.booking.position) for share in shares if share.booking.group]
        assert use.slices == tuple(sorted(set(slices)))
        assert len(slices) == len(use.slices)
        if index in alone:
            assert use.number == 1
        if card.model.mode == MIG and shares:
            assert len({share.booking.group for share in shares}) == 1
    # the annotations of the pods give the same ledger again, in whatever order they are read
    for order in (sorted(node.held), sorted(node.held, reverse=True)):
        fresh = CardLedger(node.uuids, node.idle)
        for uid in order:
            text = encode_devices(node.devices_of(node.held[uid], 4))
            fresh.book(uid, fresh.shares_of(decode_devices(text).containers).shares)
        assert fresh.cards == node.cards


@settings(max_examples=2 * settings().max_examples)
@given(st.text(alphabet=";:,[]-0123456789GNab \u00e9", max_size=60))
def test_no_text_breaks_the_ledger(text: Any) -> None:
    node = ledger("G:100", f"a:40536 {MIG_TYPE}")

    node.book("pod", node.shares_of(decode_devices(text).containers).shares)
    assert isinstance(choose_cards(node.cards, request("1x1"), BINPACK), DeviceChoice | NoChoice)
    node.release("pod")

    assert node.cards == node.idle


def test_a_pod_may_wait_for_the_slice_of_another_one() -> None:
    node = ledger(MIG_A100)
    _book(node, "leaver", "M[group4-0],NVIDIA,40536,0:")
    node.set_leaving("leaver", leaving=True)
    for wanted in ("1xwhole", "1x3000"):
        found = choose_cards(node.future, request(wanted), BINPACK)
        assert isinstance(found, DeviceChoice)

        node.book("comer", found.shares)

        assert isinstance(choose_cards(node.cards, request("1x1"), BINPACK), NoChoice)
        node.release("comer")
        assert _uses(node) == [CardUsage(1, 40960, 0, (("group4", 0),))]
