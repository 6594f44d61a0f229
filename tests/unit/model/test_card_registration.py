from __future__ import annotations

import re
from typing import Any

import pytest

from capcard_sched.model.card_registration import (
    RegisteredCard,
    decode_registration,
    encode_registration,
    handshake_deadline,
    handshake_state,
    handshake_text,
    ignores_health,
)

L40S = "NVIDIA-NVIDIA L40S"
NOON = 1753185600.0  # 2025-07-22 12:00:00 UTC


def test_a_list_gives_its_cards_in_order() -> None:
    text = f"GPU-a11f,10,4914,{L40S},true,hami-core:GPU-b820,10,4914,{L40S},false,mig:"

    found = decode_registration(text)

    assert found.problems == ()
    assert found.cards == (
        RegisteredCard("GPU-a11f", 10, 4914, L40S, healthy=True, mode="hami-core"),
        RegisteredCard("GPU-b820", 10, 4914, L40S, healthy=False, mode="mig"),
    )
    assert encode_registration(found.cards) == text


@pytest.mark.parametrize(
    "text, uuids, problem",
    [
        ("nothing:", [], "no card in"),
        ("GPU-1,x,4914,NVIDIA,true,hami-core:GPU-2,10,5,NVIDIA,true,mps:", ["GPU-2"], 'card 0 .* count is "x"'),
        ("G,1,5,NVIDIA,true,:G,2,6,NVIDIA,true,:", ["G"], "card 1 .* same uuid"),
    ],
)
def test_an_unreadable_entry_is_named_with_its_position(text: Any, uuids: Any, problem: Any) -> None:
    """`tests/malformed/test_shared_cards.py` has the other forms."""
    found = decode_registration(text)

    assert [card.uuid for card in found.cards] == uuids
    assert len(found.problems) == 1
    assert re.search(problem, found.problems[0])


@pytest.mark.parametrize(
    "fields, healthy, mode",
    [
        ("true,hami-core", True, "hami-core"),
        ("TRUE,", True, "hami-core"),
        ("1,mps", True, "hami-core"),
        ("yes,mig", False, "mig"),
        (",mig", False, "mig"),
        ("false,mig,and,more", False, "mig"),
        ("true,MIG", True, "hami-core"),
    ],
)
def test_health_and_mode_have_a_value_for_any_text(fields: Any, healthy: Any, mode: Any) -> None:
    (card,) = decode_registration(f"G,1,5,NVIDIA,{fields}:").cards

    assert (card.healthy, card.mode) == (healthy, mode)


def test_fragments_without_a_comma_leave_no_hole() -> None:
    found = decode_registration(":x:G,1,5,NVIDIA,true,:y:H,1,5,NVIDIA,true,:")

    assert [card.uuid for card in found.cards] == ["G", "H"]
    assert found.problems == ()


def test_health_counts_unless_every_card_of_a_working_node_is_ill() -> None:
    ill, well = (RegisteredCard("G", 1, 1, L40S, healthy, "hami-core") for healthy in (False, True))

    assert ignores_health((ill, ill), 20)
    assert not ignores_health((ill, ill), 0)
    assert not ignores_health((ill, well), 20)
    assert not ignores_health((), 20)


@pytest.mark.parametrize(
    "text, state",
    [
        ("Requesting_2025.07.22 11:59:00", "requested"),
        ("Requesting_2025.07.22 11:58:59", "overdue"),
        ("Reported 2025-07-22 11:59:59.1 +0000 UTC", "alive"),
        ("Deleted_2025.07.22 11:00:00", "deleted"),
        ("", "alive"),
        ("Requesting_", "unreadable"),
        ("Requesting_yesterday", "unreadable"),
        ("Requesting_2025.13.41 99:99:99", "unreadable"),
        ("Requesting", "unreadable"),
        ("Requesting_2025.07.22 12:30:00", "requested"),
    ],
)
def test_a_handshake_has_a_state_at_noon(text: Any, state: Any) -> None:
    assert handshake_state(text, NOON) == state


def test_a_handshake_is_written_in_utc_and_read_again() -> None:
    text = handshake_text("Requesting", NOON)

    assert text == "Requesting_2025.07.22 12:00:00"
    assert handshake_deadline(text) == NOON + 60
    assert handshake_state(text, NOON + 60) == "requested"
    assert handshake_state(text, NOON + 61) == "overdue"
    assert handshake_deadline("Reported now") is None
