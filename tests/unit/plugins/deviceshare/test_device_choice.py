from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from capcard_sched.model.pod_devices import encode_devices
from capcard_sched.plugins.deviceshare.device_choice import (
    BINPACK,
    SPREAD,
    DeviceChoice,
    NoChoice,
    card_score,
    choose_cards,
    node_score,
)
from capcard_sched.plugins.deviceshare.shared_card import Cause
from tests.unit.plugins.deviceshare.worlds import A100_80, ledger, request

VECTORS = yaml.safe_load((Path(__file__).parent / "choice_vectors.yaml").read_text())

#: Refusals as the vectors name them, with the causes they stand for.
REFUSALS = {
    "no enough gpu cards": {Cause.CARDS},
    "mode mismatch": {Cause.MODE},
    "not enough gpu fitted": set(Cause) - {Cause.CARDS, Cause.MODE, Cause.REQUEST},
}


@pytest.mark.parametrize("vector", VECTORS, ids=[str(vector["number"]) for vector in VECTORS])
def test_a_vector_gives_its_devices_and_its_score(vector: Any) -> None:
    node = ledger(*vector["cards"])
    wanted = request(*vector["containers"], **vector.get("annotations", {}))
    policy = "" if vector["policy"] == "unset" else vector["policy"]

    found = choose_cards(node.cards, wanted, policy)

    if "refused" in vector:
        assert isinstance(found, NoChoice)
        assert found.cause in REFUSALS[vector["refused"]]
    else:
        assert isinstance(found, DeviceChoice)
        assert encode_devices(node.devices_of(found.shares, len(wanted.containers))) == vector["devices"]
        assert round(found.score, 2) == vector["score"]
        assert node_score(found.score, 1) == vector["rounded"]


def test_every_vector_is_there() -> None:
    assert [vector["number"] for vector in VECTORS] == list(range(1, 60))


@pytest.mark.parametrize(
    "score, weight, expected",
    [(12.5, 1, 13), (12.5, 10, 130), (0.49, 1, 0), (0.5, 1, 1), (99.9, 0, 0), (99.9, -3, 0)],
)
def test_scores_are_rounded_half_up_before_they_are_weighted(score: Any, weight: Any, expected: Any) -> None:
    assert node_score(score, weight) == expected


@pytest.mark.parametrize(
    "cards, containers, annotations, cause",
    [
        (["A:100 unhealthy", "B:100 unhealthy"], ["1x1"], {}, Cause.CARDS),
        (["A:100 unhealthy", "B:100 1/1/0 slots=1"], ["1x1"], {}, Cause.UNHEALTHY),
        (["A:100 1/1/0 slots=1"], ["1x1"], {}, Cause.SLOTS),
        (["A:100 1/60/0"], ["1x41"], {}, Cause.MEMORY),
        (["A:100 1/60/50"], ["1x1 c51"], {}, Cause.CORES),
        (["A:100 1/60/100"], ["1x1"], {}, Cause.CORES),
        (["A:100 1/1/0"], ["1x1 c100"], {}, Cause.EXCLUSIVE),
        (["A:100"], ["1x1"], {"use": "H100"}, Cause.TYPE),
        (["A:100"], ["1x1"], {"nouse": "h100, l40s"}, Cause.TYPE),
        (["A:100 type=Ascend"], ["1x1"], {}, Cause.TYPE),
        (["A:90000 mig type=" + A100_80], ["1x80897"], {}, Cause.SLICE),
        (["A:100"], ["1x1"], {"mode": "mig"}, Cause.MODE),
        (["A:100", "B:100"], ["3x1"], {}, Cause.CARDS),
        # most cards decide, then the order of the checks
        (["A:100 1/60/0", "B:100 1/60/0", "C:100 1/1/0 slots=1"], ["1x50"], {}, Cause.MEMORY),
        (["A:100 1/60/0", "C:100 1/1/0 slots=1"], ["1x50"], {}, Cause.SLOTS),
    ],
)
def test_a_refusal_names_the_condition_that_fails_on_most_cards(
    cards: Any, containers: Any, annotations: Any, cause: Any
) -> None:
    found = choose_cards(ledger(*cards).cards, request(*containers, **annotations), BINPACK)

    assert isinstance(found, NoChoice)
    assert found.cause is cause


def test_a_refusal_has_the_cause_of_each_card() -> None:
    found = choose_cards(ledger("A:100 1/60/0", "B:100 1/1/100").cards, request("1x50"), BINPACK)

    assert isinstance(found, NoChoice)
    assert found.cards == {0: Cause.MEMORY, 1: Cause.CORES}
    assert found.container == 0


def test_cards_of_another_mode_take_no_part() -> None:
    node = ledger("A:40536", "M:40536 mig type=NVIDIA-NVIDIA A100-SXM4-40GB")

    found = choose_cards(node.cards, request("1x3000", mode="mig"), BINPACK)

    assert isinstance(found, DeviceChoice)
    assert [share.card for share in found.shares] == [1]
    assert isinstance(choose_cards(node.cards, request("2x3000", mode="mig"), BINPACK), NoChoice)


def test_a_closed_card_is_left_out() -> None:
    node = ledger("A:100", "B:100")

    found = choose_cards(node.cards, request("1x1"), BINPACK, {1: Cause.GROUP})

    assert isinstance(found, DeviceChoice)
    assert [share.card for share in found.shares] == [0]


def test_a_whole_80_gb_card_is_its_single_slice() -> None:
    node = ledger("M:81920 mig type=" + A100_80)

    found = choose_cards(node.cards, request("1xwhole"), BINPACK)

    assert isinstance(found, DeviceChoice)
    assert encode_devices(node.devices_of(found.shares, 1)) == "M[group4-0],NVIDIA,81920,0:"
    assert found.after[0].use.memory == 80896


def test_slices_of_all_kinds_of_a_group_in_use_are_found() -> None:
    node = ledger("M:40536 mig type=NVIDIA-NVIDIA A100-SXM4-40GB")

    found = choose_cards(node.cards, request("1x8000", "1x3000"), BINPACK)

    assert isinstance(found, DeviceChoice)
    assert encode_devices(node.devices_of(found.shares, 2)) == "M[group2-0],NVIDIA,8000,0:;M[group2-3],NVIDIA,3000,0:"


def test_slices_of_a_full_group_score_no_more_than_a_full_card() -> None:
    node = ledger("M:40536 1/20480/0 mig group=group3:0 type=NVIDIA-NVIDIA A100-SXM4-40GB")

    found = choose_cards(node.cards, request("1x15000"), BINPACK)

    assert isinstance(found, DeviceChoice)
    assert found.score == 100
    assert found.after[0].use.memory == 40960


def test_a_memory_factor_relates_units_to_slices() -> None:
    states = ledger("M:4053 mig type=NVIDIA-NVIDIA A100-SXM4-40GB").cards
    tenth = states[0].model._replace(factor=10)
    from capcard_sched.plugins.deviceshare.shared_card import CardStates

    found = choose_cards((CardStates().card(tenth),), request("1x800"), BINPACK)

    assert isinstance(found, DeviceChoice)
    assert found.shares[0].booking == (1024, 0, "group2", 0)
    assert found.shares[0].memory == 800


@pytest.mark.parametrize(
    "policy, use, expected",
    [(BINPACK, "1/25/0", 25), (SPREAD, "1/25/0", 100), (SPREAD, "2/25/0", 0), ("other", "1/25/0", 0)],
)
def test_a_taken_card_scores_by_policy(policy: Any, use: Any, expected: Any) -> None:
    assert card_score(ledger(f"A:100 {use}").cards[0], policy) == expected
