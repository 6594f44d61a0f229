"""Vectors of the protocol with their numbers: decoding, ledger, handshake, rounding."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from capcard_sched.model import annotations as keys
from capcard_sched.model.card_registration import decode_registration
from capcard_sched.model.intents import AnnotateNode
from capcard_sched.model.pod_devices import Device, decode_devices
from capcard_sched.plugins.deviceshare.card_ledger import CardLedger
from capcard_sched.plugins.deviceshare.device_choice import node_score
from capcard_sched.plugins.deviceshare.shared_card import CardUsage
from tests.unit.plugins.deviceshare.cluster import VgpuHarness
from tests.unit.plugins.deviceshare.worlds import A100_40, ledger

NOON = datetime(2025, 7, 22, 12, tzinfo=UTC).timestamp()


def _numbered(*rows: tuple[object, ...]) -> list[object]:
    return [pytest.param(*row, id=str(number)) for number, row in enumerate(rows, start=1)]


@pytest.mark.parametrize(
    "text, cards",
    _numbered(
        ("GPU-1,10,4914,NVIDIA-NVIDIA L40S,true,hami-core:", [("GPU-1", "hami-core")]),
        ("GPU-1,10,4914,NVIDIA-NVIDIA L40S,true,hami-core", []),
        ("GPU-1,10,4914,NVIDIA-NVIDIA L40S,true:", []),
        ("GPU-1,x,4914,NVIDIA,true,hami-core:GPU-2,10,5,NVIDIA,true,mps:", [("GPU-2", "hami-core")]),
    ),
)
def test_a_registration_is_decoded(text: str, cards: list[tuple[str, str]]) -> None:
    assert [(card.uuid, card.mode) for card in decode_registration(text).cards] == cards


@pytest.mark.parametrize(
    "text, containers",
    [
        pytest.param(
            "G1,NVIDIA,3000,10:;;G2,NVIDIA,5000,0:",
            ((Device("G1", 3000, 10),), (), (Device("G2", 5000, 0),)),
            id="5",
        ),
        pytest.param("G1,NVIDIA,3000:G2,NVIDIA,1,2:", ((Device("G2", 1, 2),),), id="6"),
        pytest.param("", (), id="7"),
    ],
)
def test_devices_of_a_pod_are_decoded(text: str, containers: tuple[tuple[Device, ...], ...]) -> None:
    assert decode_devices(text).containers == containers


def _book(node: CardLedger, uid: str, text: str) -> None:
    node.book(uid, node.shares_of(decode_devices(text).containers).shares)


def _twice() -> list[CardUsage]:
    node = ledger("A:10000")
    for _ in range(2):
        _book(node, "pod", "A,NVIDIA,1000,10:")
    return [card.use for card in node.cards]


def _two_containers() -> list[CardUsage]:
    node = ledger("A:10000")
    _book(node, "pod", "A,NVIDIA,2000,0:;A,NVIDIA,2000,0:")
    before = node.cards[0].use
    node.release("pod")
    return [before, node.cards[0].use]


def _unknown_pod() -> list[CardUsage]:
    node = ledger("A:10000")
    _book(node, "pod", "A,NVIDIA,1000,10:")
    node.release("other")
    return [card.use for card in node.cards]


def _discarded_gang() -> list[CardUsage]:
    h = VgpuHarness()
    h.cards("n1", "A:10000", "B:10000")
    h.group("g", min_member=3)
    for index in range(3):
        h.share(f"p{index}", 1000, cores=100)
    h.step()
    return [card.use for card in h.plugin("deviceshare").rows.by_node["n1"].ledgers[0].cards]


def _slice() -> list[CardUsage]:
    node = ledger(f"M:40536 mig type={A100_40}")
    _book(node, "pod", "M[group2-3],NVIDIA,3000,0:")
    before = node.cards[0].use
    node.release("pod")
    return [before, node.cards[0].use]


def _finished_pod() -> list[CardUsage]:
    h = VgpuHarness()
    h.cards("n1", "A:10000")
    h.pod("p", node="n1", phase="Succeeded", annotations={keys.VGPU_IDS: "A,NVIDIA,1000,10:"})
    h.step()
    return [card.use for card in h.plugin("deviceshare").rows.by_node["n1"].ledgers[0].cards]


@pytest.mark.parametrize(
    "steps, uses",
    _numbered(
        (_twice, [CardUsage(1, 1000, 10)]),
        (_two_containers, [CardUsage(2, 4000, 0), CardUsage()]),
        (_unknown_pod, [CardUsage(1, 1000, 10)]),
        (_discarded_gang, [CardUsage(), CardUsage()]),
        (_slice, [CardUsage(1, 5120, 0, (("group2", 3),)), CardUsage()]),
        (_finished_pod, [CardUsage()]),
    ),
)
def test_the_ledger_has_these_uses_afterwards(steps: Callable[[], list[CardUsage]], uses: list[CardUsage]) -> None:
    assert steps() == uses


@pytest.mark.parametrize(
    "handshake, alive, written",
    _numbered(
        ("Requesting_2025.07.22 11:59:00", True, []),
        ("Requesting_2025.07.22 11:58:59", False, ["Deleted_2025.07.22 12:00:00"]),
        ("Reported 2025-07-22 11:59:50.123 +0000 UTC", True, ["Requesting_2025.07.22 12:00:00"]),
        ("Deleted_2025.07.22 11:00:00", False, []),
    ),
)
def test_a_handshake_at_noon(handshake: str, alive: bool, written: list[str]) -> None:
    h = VgpuHarness()
    h.cards("n1", "A:10000", annotations={keys.NODE_VGPU_HANDSHAKE: handshake})

    intents = h.step(NOON).intents

    patches = [each.annotations[keys.NODE_VGPU_HANDSHAKE] for each in intents if isinstance(each, AnnotateNode)]
    assert patches == written
    assert ("n1" in h.plugin("deviceshare").rows.by_node) is alive


@pytest.mark.parametrize(
    "scores",
    _numbered(
        ([(12.5, 1, 13.0), (12.5, 10, 130.0)],),
        ([(0.49, 1, 0.0), (0.49, 10, 0.0)],),
        ([(0.0, 0, 0.0), (12.5, 0, 0.0), (800.0, 0, 0.0)],),
    ),
)
def test_a_score_is_rounded_and_weighted(scores: list[tuple[float, int, float]]) -> None:
    assert [node_score(score, weight) for score, weight, _ in scores] == [expected for *_, expected in scores]
